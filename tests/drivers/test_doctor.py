#!/usr/bin/env python3
"""k3-doctor from outside.  usage: test_doctor.py PATH/k3-doctor PATH/k3-synth"""
import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile

import support
from support import refused, run

DOCTOR, SYNTH = map(os.path.abspath, sys.argv[1:3])
HOME = tempfile.mkdtemp(prefix="k3-doctor-test-")
MODEL = os.path.join(HOME, "it's a model")  # the next command must quote it
QUICK = ["--seconds", "0"]
MB = 1000000
TOOLS = os.path.join(HOME, "tools")  # programs that tell a version: quick, and known


def doctor(*arguments, **options):
    return run(DOCTOR, *arguments, env={**os.environ, "PATH": TOOLS}, **options)


def examine(*arguments, code=0, **options):
    """The findings as JSON; they agree with the exit code and, as text, with the last line."""
    got, out, err = doctor(*arguments, "--json", **options)
    assert got == code, (got, out, err)
    found = json.loads(out)
    assert found["can_run"] is (code == 0) and (found["reason"] is None) is (code == 0)
    return found


def last_line(*arguments, code, **options):
    got, out, err = doctor(*arguments, **options)
    assert got == code and err == "", (got, out, err)
    return out.decode().splitlines()[-1]


def copy(name, source=None):
    path = os.path.join(HOME, name)
    shutil.copytree(source or MODEL, path)
    return path


def trunk_of(found):
    """Bytes of the matrices a token multiplies with: all but experts and the embedding table."""
    return sum(len(data) for name, (_, shape, data) in found.items()
               if len(shape) == 2 and shape[0] > 1 and ".experts." not in name and "embed_tokens" not in name)


def a_whole_model_is_counted_planned_and_given_its_command():
    found = examine(MODEL, *QUICK)
    tensors = support.tensors(MODEL)
    with open(os.path.join(MODEL, "config.json")) as file:
        text = json.load(file)["text_config"]
    plan = found["plan"]
    experts = {name.rsplit(".", 2)[0] for name in tensors if ".experts." in name}
    assert found["model"]["tensors"] == len(tensors) and found["model"]["shards_with_holes"] == 0
    assert found["model"]["bytes"] == sum(len(data) for _, _, data in tensors.values())
    assert plan["trunk_bytes"] == trunk_of(tensors)
    assert plan["experts"] == len(experts)
    assert plan["experts_per_token"] == text["num_experts_per_token"] * (text["num_hidden_layers"] - 1)
    one = next(iter(experts))
    assert plan["expert_bytes"] == sum(len(data) for name, (_, _, data) in tensors.items()
                                       if name.startswith(one + "."))
    parts = ("program_bytes", "reserve_bytes", "state_bytes", "scratch_bytes", "trunk_pinned_bytes",
             "trunk_ring_bytes", "expert_cache_bytes")
    assert plan["total_bytes"] == sum(plan[part] for part in parts) <= plan["ceiling_bytes"]
    assert plan["trunk_streamed_bytes_per_token"] == 0 and plan["fits"]
    machine = found["machine"]
    assert [machine["tools"][name] for name in ("g++", "meson", "clang++", "xsimd")] == ["12.9.1", "1.9.2", None, "8.9"]
    assert machine["tools"]["libcurl"] == machine["tools"]["libcrypto"] == "8.9"  # k3-fetch wants both
    assert machine["arch"] == machine["arches"][-1] and 1 <= machine["threads"] <= machine["cores"]
    assert min(row["bytes"] for row in machine["memory_limits"]) >= plan["ceiling_bytes"] - plan["program_bytes"] - MB
    # Exact, quotes included: a shell runs it.
    done = subprocess.run(found["next"] + " --out /dev/null", shell=True, cwd=HOME, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE)
    assert done.returncode == 0, (found["next"], done.stderr)
    assert last_line(MODEL, *QUICK, code=0).split(None, 1) == ["next", found["next"]]


def without_a_tokenizer_the_command_takes_ids():
    path = copy("no-tokenizer")
    os.remove(os.path.join(path, "tiktoken.model"))
    line = last_line(path, *QUICK, "--memory", "1G", "--threads", "1", "--arch", "scalar", code=0)
    assert line.endswith(" --memory 1G --threads 1 --arch scalar --ids 1,2,3 --gen 8") and path in line, line


def damage_is_the_last_line():
    lost = copy("lost")
    os.remove(os.path.join(lost, "model-00002-of-000006.safetensors"))
    cut = copy("cut")
    shard = os.path.join(cut, "model-00003-of-000006.safetensors")
    os.truncate(shard, os.path.getsize(shard) - 1)
    odd = copy("odd")
    with open(os.path.join(odd, "config.json")) as file:
        config = json.load(file)
    config["text_config"]["vocab_size"] += 1
    with open(os.path.join(odd, "config.json"), "w") as file:
        json.dump(config, file)
    bare = copy("bare")
    os.remove(os.path.join(bare, "config.json"))
    for path, words in ((lost, ["00002", "missing"]), (cut, ["00003"]), (odd, ["lm_head", "shape"]),
                        (bare, ["config.json"]), (os.path.join(HOME, "nowhere"), ["nowhere", "no such folder"]),
                        (os.path.join(MODEL, "config.json"), ["not a folder"])):
        found = examine(path, code=1)  # the disk is not read for a model that cannot run
        assert all(word in found["reason"] for word in words) and "forecast" not in found, found["reason"]
    assert last_line(lost, code=1) == "cannot run: " + examine(lost, code=1)["reason"]
    assert "k3-" in examine(os.path.join(HOME, "nowhere"), code=1)["next"]


def a_download_on_its_way_is_counted_and_goes_on():
    path = copy("on its way")
    os.remove(os.path.join(path, "model-00002-of-000006.safetensors"))
    os.rename(os.path.join(path, "model-00004-of-000006.safetensors"),
              os.path.join(path, "model-00004-of-000006.safetensors.part"))
    whole = [name for name in os.listdir(path) if name.endswith(".safetensors")]
    folder = examine(path, code=1)["folder"]
    assert folder == {"shards": 4, "shards_wanted": 6, "part_files": 1, "fetched_from": None, "revision": None,
                      "shard_bytes": sum(os.path.getsize(os.path.join(path, name)) for name in whole)}, folder
    fetch = os.path.join(os.path.dirname(DOCTOR), "k3-fetch")

    def following(**changes):
        said = {"version": 1, "repo": "someone/K3-copy", "endpoint": "https://huggingface.co", "revision": "main",
                "commit": "", "files": [{"path": name, "size": 1} for name in os.listdir(MODEL)], **changes}
        with open(os.path.join(path, "k3-fetch.json"), "w") as file:
            json.dump(said, file)
        found = examine(path, code=1)
        return found["folder"], found["next"] and shlex.split(found["next"])

    if os.path.exists(fetch):  # it is not built without libcurl
        assert following()[1] == [fetch, "someone/K3-copy", path]
        folder, words = following(endpoint="https://mirror.example/hub", revision="v1")
        assert words == [fetch, "https://mirror.example/hub/someone/K3-copy", path, "--revision", "v1"], words
        assert folder["fetched_from"] == words[1] and folder["revision"] == "v1" and folder["shards_wanted"] == 6
        os.environ["HF_ENDPOINT"] = "https://mirror.example/hub/"  # then that hub is what OWNER/NAME means
        assert following(endpoint="https://mirror.example/hub")[1] == [fetch, "someone/K3-copy", path]
        assert following()[1] == [fetch, "https://huggingface.co/someone/K3-copy", path]
        del os.environ["HF_ENDPOINT"]
        out = doctor(path)[1].decode()
        assert "4 of 6 shards" in out and "1 files on their way" in out and "someone/K3-copy, revision main" in out, out
    assert following(repo="two words\nmore")[0]["fetched_from"] is None
    with open(os.path.join(path, "k3-fetch.json"), "w") as file:
        file.write("{")
    assert examine(path, code=1)["next"] is None
    os.rename(os.path.join(path, "model-00004-of-000006.safetensors.part"),
              os.path.join(path, "model-00004-of-000096.safetensors.part"))  # by its name one of the release
    if os.path.exists(fetch):
        assert shlex.split(examine(path, code=1)["next"]) == [fetch, "moonshotai/Kimi-K3", path]
    empty = os.path.join(HOME, "empty")
    os.mkdir(empty)
    found = examine(empty, code=1)
    assert found["folder"]["shards"] == 0 and empty in found["next"], found
    assert f"{empty}: empty" in doctor(empty)[1].decode()


def too_little_memory_names_what_would_do():
    found = examine(MODEL, *QUICK, "--memory", "20M", code=1)
    assert "positions need" in found["reason"] and "as asked for" in found["reason"]
    least = found["next"].split("--memory ")[1].split()[0]
    assert abs(int(least[:-1]) * MB - found["plan"]["least_bytes"]) <= 3 * MB
    assert examine(MODEL, *QUICK, "--memory", least)["plan"]["ceiling_bytes"] == int(least[:-1]) * MB
    few = examine(MODEL, *QUICK, "--positions", "16")["plan"]
    many = examine(MODEL, *QUICK, "--positions", "100000")["plan"]
    assert (few["positions"], many["positions"]) == (16, 100000)
    assert abs(many["state_bytes"] - few["state_bytes"] - 2 * 80 * 4 * 100000) < 2 * MB  # 2 MLA layers, 80 floats each


def an_address_space_limit_is_a_limit():
    def tight():
        resource.setrlimit(resource.RLIMIT_AS, (300 * MB, 300 * MB))
    # A million positions are 640 MB of latent cache.
    found = examine(MODEL, *QUICK, "--positions", 1000000, "--threads", 1, code=1, preexec_fn=tight)
    assert "address-space limit" in found["reason"], found["reason"]
    assert found["plan"]["available_bytes"] <= 300 * MB


def the_disk_is_read_and_the_forecast_follows():
    scratch = os.path.join(HOME, "scratch")
    os.mkdir(scratch)
    least = examine(MODEL, *QUICK)["plan"]["least_bytes"]
    for more in range(2, 12):  # where trunk is streamed and some of the experts are cached
        memory = f"{(least + more * 700000) // 1000}K"
        plan = examine(MODEL, *QUICK, "--memory", memory)["plan"]
        if plan["trunk_streamed_bytes_per_token"] > 0 and 18 < plan["expert_slots"] < 60:
            break
    found = examine(MODEL, "--seconds", "0.3", "--scratch", scratch, "--memory", memory)
    assert os.listdir(scratch) == []
    disk = found["disk"]
    assert disk["not_measured"] is None and scratch in disk["place"], disk
    assert [(row["in_order"], row["depth"]) for row in disk["patterns"]] == \
        [(False, 1), (False, 4), (False, 16), (False, 32), (True, 32)]
    for row in disk["patterns"]:
        rate = row["bytes_per_second"]
        assert 1e5 < rate["least"] <= rate["median"] <= rate["most"] < 1e12
    plan, products, told = found["plan"], found["products"], found["forecast"]
    rates = [row["bytes_per_second"]["median"] for row in disk["patterns"]]
    assert plan["trunk_streamed_bytes_per_token"] > 0 and 16 <= plan["expert_slots"] < 64
    missed = plan["experts_per_token"] * (1 - plan["expert_slots"] / plan["experts"])
    want = {"missed_experts": missed,
            "trunk_read": plan["trunk_streamed_bytes_per_token"] / rates[4],
            "experts_read": missed * plan["expert_bytes"] / rates[3],
            "trunk_product": plan["trunk_bytes"] / products["trunk"]["median"],
            "experts_product": plan["experts_per_token"] * plan["expert_bytes"] / products["experts"]["median"]}
    want["seconds"] = max(want["trunk_read"] + want["experts_read"],
                          want["trunk_product"] + max(want["experts_read"], want["experts_product"]))
    for key, value in want.items():
        assert abs(told[key] - value) <= 1e-9 * max(value, 1e-9), (key, told[key], value)
    assert told["best"] <= told["seconds"] <= told["worst"]


def what_cannot_be_measured_is_said():
    found = examine(MODEL, "--seconds", "0.1", "--scratch", os.path.join(HOME, "no", "where"), "--memory", "80M")
    assert "no such folder" in found["disk"]["not_measured"], found["disk"]
    assert found["disk"]["patterns"] == [] and found["products"]["trunk"]["median"] > 0


def memory_is_not_taken_for_a_disk():
    with support.small_disk(os.path.join(HOME, "memory"), "300m") as folder:
        code, out, err = doctor(MODEL, "--seconds", "0.1", "--scratch", folder)
        assert code == 0 and "MAY BE MEMORY AND NOT A DISK" in out.decode(), (out, err)
        assert "may be that of memory" not in out.decode()  # nothing of this model is read
        memory = f"{examine(MODEL, *QUICK)['plan']['least_bytes'] // MB + 2}M"
        found = examine(MODEL, "--seconds", "0.1", "--scratch", folder, "--memory", memory)["disk"]
        assert found["direct"] is False and found["may_be_memory"], found
        out = doctor(MODEL, "--seconds", "0.1", "--scratch", folder, "--memory", memory)[1].decode()
        assert "may be that of memory" in out.split("forecast ")[1], out


def without_a_model_the_release_is_planned():
    found = examine(*QUICK, "--memory", "8G")
    hidden, heads, kda, mla, moe = 7168, 96 * 128, 69, 24, 92
    matrices = 163840 * hidden + 3 * 33792 * hidden  # lm_head and the dense layer
    matrices += kda * (5 * heads * hidden + 128 * hidden + heads * 128 + 96 * hidden)
    matrices += mla * (1536 * hidden + 96 * 192 * 1536 + 576 * hidden + 96 * 256 * 512 + 2 * heads * hidden)
    matrices += moe * (896 * hidden + 2 * 3584 * hidden + 3 * 6144 * hidden)
    plan = found["plan"]
    assert plan["trunk_bytes"] == 2 * matrices
    assert plan["expert_bytes"] == 17547264 and plan["experts"] == 82432 and plan["experts_per_token"] == 1472
    assert plan["total_bytes"] <= 8000 * MB and plan["expert_slots"] == 17
    streamed = [row["trunk_streamed_bytes_per_token"] for row in found["release_at"]]
    assert streamed == sorted(streamed, reverse=True) and streamed[-1] == 0 < streamed[0]
    assert found["release_at"][-1]["expert_slots"] == 82432
    assert "k3-" in found["next"] and found["model"]["bytes"] == 1560936091448  # what is downloaded
    assert "cannot run" in last_line(*QUICK, "--memory", "500M", code=1)


def options_are_checked():
    for words, expected in ((["--memory", "8"], "--memory"), (["--seconds", "x"], "--seconds"),
                            (["--seconds", "-1"], "--seconds"), (["--threads", "0"], "--threads"),
                            (["--arch", "z80"], "z80"), (["--positions", "1e3"], "--positions"), (["a", "b"], "b")):
        refused(doctor(*words), 2, expected)
    with open("/dev/full", "w") as full:
        done = subprocess.run([DOCTOR, MODEL, *QUICK], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 3 and b"standard output" in done.stderr
    for option in ("--help", "--version"):
        code, out, err = doctor(option)
        assert code == 0 and b"k3-doctor" in out and err == ""


if __name__ == "__main__":
    try:
        os.environ.pop("HF_ENDPOINT", None)
        os.mkdir(TOOLS)
        for name, version in (("g++", "12.9.1"), ("meson", "1.9.2"), ("pkg-config", "8.9")):
            with open(os.path.join(TOOLS, name), "w") as file:
                file.write(f"#!/bin/sh\necho {version}\n")
            os.chmod(os.path.join(TOOLS, name), 0o755)
        code, _, message = run(SYNTH, "--out", MODEL, "--quiet")
        assert code == 0, message
        support.main([a_whole_model_is_counted_planned_and_given_its_command,
                      without_a_tokenizer_the_command_takes_ids, damage_is_the_last_line,
                      a_download_on_its_way_is_counted_and_goes_on,
                      too_little_memory_names_what_would_do, an_address_space_limit_is_a_limit,
                      the_disk_is_read_and_the_forecast_follows, what_cannot_be_measured_is_said,
                      memory_is_not_taken_for_a_disk, without_a_model_the_release_is_planned, options_are_checked])
    finally:
        shutil.rmtree(HOME, ignore_errors=True)
