#!/usr/bin/env python3
"""k3-synth from outside.  usage: test_synth.py PATH/k3-synth"""
import base64
import hashlib
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import support
from support import Skip, read_header, refused, run

SYNTH = sys.argv[1]
HOME = tempfile.mkdtemp(prefix="k3-synth-test-")
# Small, with odd sizes on purpose: a partial MXFP4 group (latent 83) and an odd column count.
TINY = ["--layers", 5, "--hidden", 64, "--experts", 12, "--topk", 3, "--latent", 83, "--expert-width", 34,
        "--dense-width", 72, "--kda-heads", 3, "--kda-dim", 16, "--heads", 2, "--q-lora", 24, "--kv-lora", 20,
        "--nope", 12, "--rope", 4, "--v-head", 8, "--vocab", 300, "--block", 2]
# Change only together with a line in docs/CHANGELOG.md: everything measured on a synthetic model refers to these bytes.
DIGEST = "7ac0ec114644c02d1d9cd7cebb3b75acd585f5409301f88576c77d2fc107a575"


def folder(name):
    return os.path.join(HOME, name)


def make(name, *options):
    code, out, err = run(SYNTH, "--out", folder(name), "--quiet", *options)
    assert code == 0, err
    assert err == "", err
    return folder(name)


def contents(path):
    return {name: open(os.path.join(path, name), "rb").read() for name in sorted(os.listdir(path))}


def tiny():
    if not os.path.exists(folder("tiny")):
        make("tiny", "--seed", 1, *TINY)
    return folder("tiny")


def the_bytes_of_a_small_checkpoint_never_change():
    digest = hashlib.sha256()
    for name, data in contents(tiny()).items():
        if name.endswith(".safetensors") or name == "tiktoken.model":
            digest.update(name.encode() + b"\0" + data)
    assert digest.hexdigest() == DIGEST, digest.hexdigest()


def thread_counts_and_repetitions_give_the_same_files():
    options = ["--hidden", 1024, "--vocab", 3000, "--experts", 4, "--dense-width", 3000]  # several 8 MiB pieces
    want = contents(make("threads1", "--threads", 1, *options))
    assert max(map(len, want.values())) > 2 << 23
    for threads in (2, 3, 16):
        assert contents(make(f"threads{threads}", "--threads", threads, *options)) == want, threads
    for name in ("threads1", "threads2", "threads3", "threads16"):
        shutil.rmtree(folder(name))


def another_seed_changes_every_random_tensor():
    one, two = support.tensors(tiny()), support.tensors(make("seed2", "--seed", 2, *TINY))
    assert one.keys() == two.keys()
    same = [name for name in one if one[name] == two[name]]
    assert all(name.endswith("A_log") for name in same), same


def names_key_the_values_so_more_experts_and_layers_leave_the_rest_alone():
    options = [str(word) for word in TINY]
    options[options.index("--experts") + 1] = "14"
    options[options.index("--layers") + 1] = "6"
    one = support.tensors(tiny())
    more = support.tensors(make("more", "--seed", 1, "--full-attn", "4,5", *options))
    grown = ("gate.weight", "e_score_correction_bias")
    moved = [name for name in one if not name.endswith(grown) and one[name] != more[name]]
    assert not moved and len(more) > len(one), moved


def shards_have_the_released_layout():
    path = tiny()
    files = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
    assert files == [f"model-{i:05}-of-000006.safetensors" for i in range(1, 7)], files
    width = {"F32": 4, "BF16": 2, "U8": 1}
    where, total = {}, 0
    for number, file in enumerate(files):
        entries, start, size = read_header(os.path.join(path, file))
        assert start % 8 == 0
        at = 0
        for name, dtype, shape, begin, end in entries:
            count = width[dtype]
            for dim in shape:
                count *= dim
            assert begin == at and end - begin == count, name
            at = end
            where[name] = file
            prefix = f"language_model.model.layers.{number}." if number < 5 else "language_model."
            assert name.startswith(prefix) and (number < 5 or ".layers." not in name), name
        assert start + at == size, f"{file}: {start + at} of {size} bytes"
        total += at
        assert [e[:2] for e in entries] == sorted((e[:2] for e in entries), key=lambda e: (-width[e[1]], e[0]))
        experts = [name.split(".experts.")[1] for name, *_ in entries if ".experts." in name]
        order = sorted({e.split(".")[0] for e in experts}) if experts else []
        assert experts == [f"{e}.w{w}.weight_{part}" for e in order for w in (1, 2, 3) for part in ("packed", "scale")]
        assert len(order) == (12 if 0 < number < 5 else 0)
    index = json.load(open(os.path.join(path, "model.safetensors.index.json")))
    assert index["weight_map"] == where and index["metadata"]["total_size"] == total


def shapes_and_kinds_follow_the_options():
    found = support.tensors(tiny())
    layer = "language_model.model.layers."
    shape = {name: data[1] for name, data in found.items()}
    dtype = {name: data[0] for name, data in found.items()}
    kinds = ["KDA" if f"{layer}{i}.self_attn.A_log" in found else "MLA" for i in range(5)]
    assert kinds == ["KDA", "KDA", "KDA", "MLA", "MLA"]
    assert shape[layer + "0.self_attn.A_log"] == [16] and dtype[layer + "0.self_attn.A_log"] == "F32"
    assert shape[layer + "1.self_attn.q_conv1d.weight"] == [48, 1, 4]
    assert shape[layer + "3.self_attn.kv_b_proj.weight"] == [2 * (12 + 8), 20]
    assert shape[layer + "3.self_attn.q_b_proj.weight"] == [2 * 16, 24]
    assert shape[layer + "0.mlp.down_proj.weight"] == [64, 72]
    assert shape[layer + "1.block_sparse_moe.experts.0.w1.weight_packed"] == [34, 42]
    assert shape[layer + "1.block_sparse_moe.experts.0.w1.weight_scale"] == [34, 3]
    assert shape[layer + "1.block_sparse_moe.experts.0.w2.weight_packed"] == [83, 17]
    assert shape["language_model.lm_head.weight"] == [300, 64]
    assert len([name for name in found if name.startswith(layer + "0.")]) == 23
    assert len([name for name in found if name.startswith(layer + "1.")]) == 28 + 12 * 6
    assert len([name for name in found if name.startswith(layer + "3.")]) == 22 + 12 * 6


def full_size_is_the_release_to_the_byte():
    code, out, err = run(SYNTH, "--like-release", "--layers", 93, "--experts", 896, "--dry-run", "--json")
    assert code == 0 and err == "", err
    plan = json.loads(out)
    # The published totals, less the 168 tensors and two shards of the vision tower and its projector.
    assert plan["tensors"] == 497220 - 168
    assert plan["payload_bytes"] == 1560860324864 - 802428928 - 92289024
    assert plan["shard_bytes"] == 1560936091448 - 802448352 - 92289328
    sizes = [row["file_bytes"] for row in plan["shards"]]
    assert sizes[0] == 2341216112 and sizes[1] == 16990911504 and sizes[12] == 16990916912
    assert plan["shards"][1]["header_bytes"] == 818704


def like_release_defaults_to_five_layers_and_48_experts():
    plan = json.loads(run(SYNTH, "--like-release", "--dry-run", "--json")[1])
    assert len(plan["shards"]) == 6 and plan["tensors"] == 5 + 23 + 2 * (28 + 288) + 2 * (22 + 288)


def values_have_the_spreads_that_keep_the_model_healthy():
    found = support.tensors(make("spread", "--hidden", 512, "--latent", 256, "--experts", 4, "--vocab", 600))
    layer = "language_model.model.layers.1."

    def stats(name):
        numbers = support.values(*[found[name][0], found[name][2]])
        return statistics.fmean(numbers), statistics.pstdev(numbers)

    mean, spread = stats(layer + "self_attn.q_proj.weight")
    assert abs(mean) < 0.001 and abs(spread * 512 ** 0.5 - 1) < 0.02, (mean, spread)
    mean, spread = stats(layer + "input_layernorm.weight")
    assert abs(mean - 1) < 0.03 and 0.05 < spread < 0.15
    a_log = support.values(*[found[layer + "self_attn.A_log"][i] for i in (0, 2)])
    assert a_log[0] == -2.0 and a_log[5] == 1.5 and a_log == sorted(a_log[:6]) + [0.0] * 26
    bias = support.values(*[found[layer + "self_attn.dt_bias"][i] for i in (0, 2)])
    assert -4 <= min(bias) < -3 and 1 < max(bias) < 2
    expert = layer + "block_sparse_moe.experts.2.w1.weight_"
    weights = support.mxfp4(found[expert + "packed"][2], found[expert + "scale"][2], 96, 256)
    assert abs(statistics.pstdev(weights) * 256 ** 0.5 - 1) < 0.05
    assert len(set(found[expert + "packed"][2])) == 256 and len(set(found[expert + "scale"][2])) == 3


def neighbouring_rows_and_tensors_are_unrelated():
    found = support.tensors(tiny())
    base = "language_model.model.layers."
    for one, two in (("0.self_attn.q_proj.weight", "0.self_attn.k_proj.weight"),
                     ("0.self_attn.q_proj.weight", "1.self_attn.q_proj.weight")):
        a, b = (support.values(found[base + name][0], found[base + name][2]) for name in (one, two))
        dot = sum(x * y for x, y in zip(a, b)) / sum(x * x for x in a)
        assert abs(dot) < 0.1, (one, two, dot)
    a = support.values(*[found[base + "0.self_attn.q_proj.weight"][i] for i in (0, 2)])
    assert abs(sum(x * y for x, y in zip(a, a[64:]))) / sum(x * x for x in a) < 0.1
    assert abs(sum(x * y for x, y in zip(a, a[1:]))) / sum(x * x for x in a) < 0.1


def config_says_what_was_written():
    config = json.load(open(os.path.join(tiny(), "config.json")))
    text = config["text_config"]
    linear = text["linear_attn_config"]
    assert linear["full_attn_layers"] == [4, 5] and linear["kda_layers"] == [1, 2, 3]
    assert (linear["num_heads"], linear["head_dim"], text["hidden_size"], text["vocab_size"]) == (3, 16, 64, 300)
    assert text["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] == 32
    assert "quantization_config" not in config and "vision_config" not in config
    assert config["eos_token_id"] == text["eos_token_id"] == 300 - 16 + 2


def every_token_of_the_rank_file_is_reached_by_merging():
    path = make("tokens", "--vocab", 3000, "--experts", 2)
    lines = open(os.path.join(path, "tiktoken.model")).read().splitlines()
    ranks = {base64.b64decode(line.split()[0], validate=True): int(line.split()[1]) for line in lines}
    assert len(ranks) == len(lines) == 3000 - 256 and list(ranks.values()) == list(range(len(lines)))
    assert list(ranks)[:256] == [bytes([i]) for i in range(256)]

    def bpe(piece):
        parts = [piece[i:i + 1] for i in range(len(piece))]
        while True:
            joined = [(ranks[a + b], i) for i, (a, b) in enumerate(zip(parts, parts[1:])) if a + b in ranks]
            if not joined:
                return parts
            at = min(joined)[1]
            parts[at:at + 2] = [parts[at] + parts[at + 1]]

    for token, rank in ranks.items():
        cuts = [max(ranks[token[:i]], ranks[token[i:]]) for i in range(1, len(token))
                if token[:i] in ranks and token[i:] in ranks]
        assert len(token) == 1 or min(cuts) < rank, token
        assert bpe(token) == [token], token
    added = json.load(open(os.path.join(path, "tokenizer_config.json")))["added_tokens_decoder"]
    assert len(added) == 16 and added["2744"]["content"] == "[BOS]" and added["2999"]["content"] == "[PAD]"
    assert added["2753"]["content"] == "[EOT]" and added["2747"]["special"] is False


def options_out_of_range_are_refused_by_name():
    out = ["--out", folder("never")]
    refused(run(SYNTH, *out, "--layers", 0), 2, "--layers 0", "1..9999")
    refused(run(SYNTH, *out, "--layers", 1), 2, "--layers 1", "both kinds")
    refused(run(SYNTH, *out, "--layers", "many"), 2, "--layers")
    refused(run(SYNTH, *out, "--seed", -1), 2, "--seed")
    refused(run(SYNTH, *out, "--hidden", 1 << 40), 2, "--hidden")
    refused(run(SYNTH, *out, "--topk", 20, "--experts", 16), 2, "--topk 20", "--experts 16")
    refused(run(SYNTH, *out, "--vocab", 271), 2, "--vocab 271", "272")
    refused(run(SYNTH, *out, "--full-attn", "4,9"), 2, "layer 9", "1..5")
    refused(run(SYNTH, *out, "--full-attn", "4,2"), 2, "ascending")
    refused(run(SYNTH, *out, "--full-attn", "1,2,3,4,5"), 2, "no KDA layer")
    refused(run(SYNTH, *out, "--threads", 0), 2, "--threads")
    refused(run(SYNTH, *out, "--frobnicate"), 2, "--frobnicate")
    refused(run(SYNTH), 2, "--out")
    assert not os.path.exists(folder("never"))


def foreign_files_are_never_touched():
    path = folder("foreign")
    os.mkdir(path)
    with open(os.path.join(path, "notes.txt"), "w") as file:
        file.write("mine")
    refused(run(SYNTH, "--out", path, *TINY), 2, "not empty", "--force")
    assert os.listdir(path) == ["notes.txt"]
    for _ in range(2):  # into the folder, then over itself
        assert run(SYNTH, "--out", path, "--force", "--quiet", "--seed", 1, *TINY)[0] == 0
    files = contents(path)
    assert files.pop("notes.txt") == b"mine" and files == contents(tiny())
    refused(run(SYNTH, "--out", path, "--force", *TINY[2:], "--layers", 3), 2,
            "belongs to another checkpoint")
    assert contents(path).keys() - files.keys() == {"notes.txt"}


def a_place_that_cannot_be_written_is_exit_code_3():
    refused(run(SYNTH, "--out", "/proc/k3-synth"), 3, "/proc/k3-synth")
    blocker = folder("blocker")
    open(blocker, "w").close()
    refused(run(SYNTH, "--out", blocker), 3, blocker)


def no_free_space_is_found_before_anything_is_written():
    path = folder("small-disk")
    os.mkdir(path)
    if shutil.which("mount") is None or run("mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", path)[0] != 0:
        raise Skip("cannot mount a small tmpfs here")
    try:
        refused(run(SYNTH, "--out", os.path.join(path, "model"), "--quiet"), 3, "bytes", "free")
        assert os.listdir(os.path.join(path, "model")) == []
        make("small-disk/fits", *TINY)
    finally:
        run("umount", path)


def a_write_that_fails_half_way_leaves_nothing_behind():
    def limit():  # a file may not grow beyond 1.2 MB: the second shard does
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1300000, 1300000))

    path = folder("limited")
    refused(run(SYNTH, "--out", path, "--quiet", preexec_fn=limit), 3, "model-00002-of-000006", "File too large")
    assert os.listdir(path) == []


def an_interrupt_leaves_nothing_behind():
    path = folder("interrupted")
    child = subprocess.Popen([SYNTH, "--out", path, "--like-release", "--experts", "16", "--quiet"],
                             stderr=subprocess.PIPE)
    for _ in range(500):
        if os.path.isdir(path) and os.listdir(path):
            break
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate()
    if child.returncode == 3 and b"free" in err:
        raise Skip("needs 13 GB of free space")
    assert child.returncode == 5 and b"interrupted" in err, (child.returncode, err)
    assert os.listdir(path) == []


def help_version_and_json_go_to_stdout():
    for option in ("--help", "--version"):
        code, out, err = run(SYNTH, option)
        assert code == 0 and b"k3-synth" in out and err == ""
    code, out, _ = run(SYNTH, "--out", folder("json"), "--json", *TINY)
    result = json.loads(out)
    assert code == 0 and result["shards"] == 6 and result["payload_bytes"] > 0 and result["gb_per_second"] > 0


if __name__ == "__main__":
    try:
        support.main([the_bytes_of_a_small_checkpoint_never_change, thread_counts_and_repetitions_give_the_same_files,
                      another_seed_changes_every_random_tensor,
                      names_key_the_values_so_more_experts_and_layers_leave_the_rest_alone,
                      shards_have_the_released_layout, shapes_and_kinds_follow_the_options,
                      full_size_is_the_release_to_the_byte, like_release_defaults_to_five_layers_and_48_experts,
                      values_have_the_spreads_that_keep_the_model_healthy, neighbouring_rows_and_tensors_are_unrelated,
                      config_says_what_was_written, every_token_of_the_rank_file_is_reached_by_merging,
                      options_out_of_range_are_refused_by_name, foreign_files_are_never_touched,
                      a_place_that_cannot_be_written_is_exit_code_3,
                      no_free_space_is_found_before_anything_is_written,
                      a_write_that_fails_half_way_leaves_nothing_behind, an_interrupt_leaves_nothing_behind,
                      help_version_and_json_go_to_stdout])
    finally:
        shutil.rmtree(HOME, ignore_errors=True)
