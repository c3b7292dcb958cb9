#!/usr/bin/env python3
"""k3 from outside.  usage: test_k3.py PATH/k3 PATH/k3-inspect TESTS_FOLDER"""
import json
import os
import pty
import re
import resource
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

import support
from support import Skip

K3, INSPECT, TESTS = map(os.path.abspath, sys.argv[1:4])  # runs start in another folder
DEMO = os.path.join(TESTS, "demo/model")
HOME = tempfile.mkdtemp(prefix="k3-run-test-")
CWD = os.path.join(HOME, "cwd")  # every run starts here: what it leaves behind is seen
# The machine may be busy with other tests: threads that spin while they wait would only wait longer.
ENV = dict(os.environ, OMP_WAIT_POLICY="passive")
BASIS = "cbf29ce484222325"
ROOT = "language_model."


def golden(case):
    with open(os.path.join(TESTS, "golden", case, "expected.json")) as file:
        return os.path.join(TESTS, "golden", case, "model"), json.load(file)


def demo():
    with open(os.path.join(TESTS, "demo/expected.json")) as file:
        return json.load(file)["prompts"]


def comma(ids):
    return ",".join(map(str, ids))


def k3(*arguments, **options):
    options.setdefault("stdin", subprocess.DEVNULL)
    return support.run(K3, *arguments, cwd=CWD, env=ENV, **options)


def good(*arguments, **options):
    """(result JSON, stdout bytes, stderr text) of a run that must succeed"""
    out = os.path.join(HOME, "run.json")
    code, text, err = k3(*arguments, "--out", out, **options)
    assert code == 0, f"exit code {code}: {err}"
    with open(out, "rb") as file:
        return json.loads(file.read().decode("utf-8")), text, err


def is_one_line(err, *words):
    assert err.count("\n") == 1 and err.endswith("\n") and err.startswith("k3: "), f"not one line: {err!r}"
    assert ";" in err, f"no next step: {err!r}"
    for word in words:
        assert word in err, f"{word!r} is not in {err!r}"


def refused(code, words, *arguments, **options):
    """The run ends with `code`, one line on stderr that holds all the words and a next step, and nothing written."""
    got, out, err = k3(*arguments, **options)
    assert got == code, f"exit code {got}, not {code}: {err}"
    assert out == b"", out
    is_one_line(err, *words)
    left = os.listdir(CWD)
    for name in left:
        os.remove(os.path.join(CWD, name))
    assert left == [], left


def usage(words, *arguments):
    refused(2, words, DEMO, *arguments)


def copy_of(model, name):
    path = os.path.join(HOME, name)
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(model, path)
    return path


def edit_json(path, change):
    with open(path) as file:
        value = json.load(file)
    change(value)
    with open(path, "w") as file:
        json.dump(value, file)


def shard_tensors(path):
    """name -> [dtype, shape, bytes] of one shard; its metadata is left out."""
    with open(path, "rb") as file:
        data = file.read()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {name: [entry["dtype"], entry["shape"], data[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]]]
            for name, entry in header.items()}


def edit_tensors(model, change):
    """Rewrites every shard after `change(tensors)`, a dictionary name -> [dtype, shape, bytes]."""
    for name in sorted(os.listdir(model)):
        path = os.path.join(model, name)
        if name == "model.safetensors.index.json":
            os.remove(path)
        if not name.endswith(".safetensors"):
            continue
        tensors = shard_tensors(path)
        change(tensors)
        header, at = {}, 0
        for key, (dtype, shape, content) in tensors.items():
            header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(content)]}
            at += len(content)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + b"".join(content for _, _, content in tensors.values()))


def fnv(data):
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 % (1 << 64)
    return f"{value:016x}"


def arches():
    code, out, err = k3("--list-arches")
    assert code == 0 and err == "", err
    return out.decode().split()


# ---------------------------------------------------------------------------------------------------------- the answers


def golden_ids_by_every_path_and_one_digest():
    for case in "ABF":
        model, want = golden(case)
        digests = {}
        for arch in arches():
            for path in ("--incremental", "--recompute"):
                for chunk in (1, 64):
                    for threads in (1, 2):
                        how = (path, "--prefill-chunk", chunk, "--threads", threads, "--arch", arch)
                        run, out, _ = good(model, "--ids", comma(want["prompt_ids"]), "--gen",
                                           len(want["generated_ids"]), "--ignore-eos", "--quiet", *how)
                        assert run["generated_ids"] == want["generated_ids"], (case, how)
                        assert run["full_ids"] == want["full_ids"] and run["prompt_ids"] == want["prompt_ids"]
                        assert (run["arch"], run["threads"]) == (arch, threads) and run["decoding"] == path[2:]
                        assert run["plan"]["prefill_chunk"] <= chunk
                        digests.setdefault(run["logits_digest"], how)
        assert len(digests) == 1, (case, digests)


def readme_digest():
    """The digest that the README prints below its command, and the command's words after the program."""
    with open(os.path.join(TESTS, "..", "README.md"), encoding="utf-8") as file:
        text = file.read()
    command = re.search(r"^\$ build/drivers/k3 (tests/demo/model .*)$", text, re.M).group(1)
    digest = re.search(r"^logits digest ([0-9a-f]{16})$", text, re.M).group(1)
    words = shlex.split(command)
    words[0] = os.path.join(TESTS, "..", words[0])
    return words[:words.index("--out")], digest


def the_digest_in_the_readme_on_every_arch_for_every_number_of_threads():
    command, digest = readme_digest()
    for arch in arches():
        for threads in (1, 2, 3):
            run, _, err = good(*command, "--arch", arch, "--threads", threads)
            assert run["logits_digest"] == digest and "logits digest " + digest in err, (arch, threads, digest, err)


def what_the_environment_tells_openmp_changes_no_bit():
    command, digest = readme_digest()
    for setting in ("OMP_NUM_THREADS=1", "OMP_NUM_THREADS=7", "OMP_SCHEDULE=dynamic,1", "OMP_SCHEDULE=guided",
                    "OMP_DYNAMIC=true", "OMP_THREAD_LIMIT=1", "OMP_THREAD_LIMIT=2", "OMP_MAX_ACTIVE_LEVELS=1",
                    "OMP_NESTED=true OMP_MAX_ACTIVE_LEVELS=4 OMP_NUM_THREADS=2,2", "OMP_PROC_BIND=true",
                    "OMP_STACKSIZE=256K"):
        more = dict(ENV, **dict(word.split("=", 1) for word in setting.split()))
        out = os.path.join(HOME, "run.json")
        code, _, err = support.run(K3, *command, "--threads", 3, "--out", out, cwd=CWD, env=more)
        assert code == 0, (setting, err)
        with open(out, encoding="utf-8") as file:
            run = json.load(file)
        assert (run["logits_digest"], run["threads"]) == (digest, 3), (setting, run["logits_digest"])


def the_default_number_of_threads_follows_affinity_and_not_openmp():
    one = min(os.sched_getaffinity(0))
    out = os.path.join(HOME, "run.json")
    code, _, err = support.run(K3, DEMO, "--ids", "5", "--gen", 1, "--quiet", "--out", out, cwd=CWD,
                               env=dict(ENV, OMP_NUM_THREADS="5"), preexec_fn=lambda: os.sched_setaffinity(0, {one}))
    assert code == 0, err
    with open(out, encoding="utf-8") as file:
        assert json.load(file)["threads"] == 1


def waiting_threads_sleep_unless_the_user_says_otherwise():
    def settings(**more):
        env = {key: value for key, value in os.environ.items()
               if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")}
        code, _, err = support.run(K3, "--list-arches", cwd=CWD, env=dict(env, OMP_DISPLAY_ENV="verbose", **more))
        assert code == 0, err
        return re.findall(r"GOMP_SPINCOUNT *= *'(\d+)'|KMP_BLOCKTIME *= *'(\d+)", err)
    default = settings()
    if not default:
        raise Skip("this OpenMP does not print its settings")
    assert default[-1] in (("10000", ""), ("", "0")), default  # the last block is that of the program started over
    kept = settings(OMP_WAIT_POLICY="active")
    assert len(kept) == 1 and kept[0] not in (("10000", ""), ("", "0")), kept  # not started over


def the_first_row_of_logits_is_the_reference_and_what_the_digest_hashes():
    for case in "ABF":
        model, want = golden(case)
        path = os.path.join(HOME, "logits.f32")
        run, _, _ = good(model, "--ids", comma(want["prompt_ids"]), "--gen", 1, "--dump-logits", path)
        with open(path, "rb") as file:
            data = file.read()
        got = struct.unpack(f"<{len(data) // 4}f", data)
        reference = want["first_step_logits"]
        assert len(got) == len(reference)
        worst = max(abs(a - b) for a, b in zip(got, reference)) / max(map(abs, reference))
        assert worst <= 1e-4, (case, worst)
        assert run["logits_digest"] == fnv(data)


def golden_texts():
    for case in "BF":
        model, want = golden(case)
        for text in want["text"]:
            run, _, _ = good(model, "--prompt", text["text"], "--gen", len(text["generated_ids"]), "--ignore-eos")
            assert run["prompt_ids"] == text["prompt_ids"] and run["generated_ids"] == text["generated_ids"], text


def demo_prompts_stream_the_expected_text():
    for want in demo():
        run, out, _ = good(DEMO, "--prompt", want["prompt_text"], "--gen", len(want["generated_ids"]), "--ignore-eos")
        assert run["prompt_ids"] == want["prompt_ids"] and run["generated_ids"] == want["generated_ids"], want["prompt"]
        assert out.decode() == want["generated_text"] == run["text"] == run["generated_text"], out


def a_list_of_ids_gives_text_with_a_tokenizer_and_ids_without():
    want = demo()[0]
    for separator in (",", " ", ", ", " ,\n"):
        _, out, _ = good(DEMO, "--ids", separator.join(map(str, want["prompt_ids"])), "--gen", 5)
        assert want["generated_text"].startswith(out.decode()) and out
    model, want = golden("A")
    run, out, _ = good(model, "--ids", comma(want["prompt_ids"]), "--gen", 5)
    assert out.decode() == comma(want["generated_ids"][:5]) + "\n"
    assert run["generated_text"] is None and run["text"] == ""
    # --tok elsewhere makes text possible, here with a tokenizer of the same vocabulary
    bare = copy_of(DEMO, "bare")
    for name in ("tiktoken.model", "tokenizer_config.json"):
        os.remove(os.path.join(bare, name))
    want = demo()[0]
    _, out, _ = good(bare, "--tok", DEMO, "--prompt", want["prompt_text"], "--gen", 24)
    assert out.decode() == want["generated_text"]
    _, out, _ = good(bare, "--ids", comma(want["prompt_ids"]), "--gen", 24)
    assert out.decode() == comma(want["generated_ids"]) + "\n"


def characters_that_span_tokens_are_never_cut():
    want = next(row for row in demo() if row["generated_text"].startswith("巴黎"))
    for gen in range(1, 9):
        run, out, _ = good(DEMO, "--prompt", want["prompt_text"], "--gen", gen)
        assert run["text"] == out.decode("utf-8")
        assert out.decode().rstrip("�") == want["generated_text"][:len(out.decode().rstrip("�"))], out


def text_stops_at_every_declared_end_id():
    chat = next(row for row in demo() if row["prompt"].startswith("chat, thinking off"))
    ids = chat["generated_ids"]
    cut = ids.index(2050)
    run, out, err = good(DEMO, "--prompt", chat["prompt_text"], "--gen", 24)
    assert run["generated_ids"] == ids[:cut + 1] and run["stopped_at"] == 2050 and len(run["steps"]) == cut + 1
    assert out.decode() == chat["generated_text"].split("<|end_of_msg|>")[0] and "2050" in err
    run, _, _ = good(DEMO, "--prompt", chat["prompt_text"], "--gen", 24, "--ignore-eos")
    assert run["generated_ids"] == ids and run["stopped_at"] == -1
    run, _, _ = good(DEMO, "--ids", comma(chat["prompt_ids"]), "--gen", 24)
    assert run["generated_ids"] == ids and run["stopped_at"] == -1
    # The union of what config.json, generation_config.json and the tokenizer name.
    want = demo()[0]
    for file, value, stop in (("generation_config.json", 1443, 1443), ("generation_config.json", [2050, 46], 46),
                              ("config.json", 46, 46), ("config.json", [1443, 2049], 1443)):
        model = copy_of(DEMO, "ends")

        def change(config):
            config["eos_token_id"] = value
            if "text_config" in config:
                config["text_config"]["eos_token_id"] = value
        edit_json(os.path.join(model, file), change)
        run, _, _ = good(model, "--prompt", want["prompt_text"], "--gen", 24)
        assert run["stopped_at"] == stop, (file, value, run["stopped_at"])
        assert run["generated_ids"] == want["generated_ids"][:want["generated_ids"].index(stop) + 1]
    model = copy_of(DEMO, "ends")  # and the tokenizer's own, which no config names here: [EOS] comes right after
    edit_json(os.path.join(model, "config.json"), lambda c: (c.pop("eos_token_id"), c["text_config"].pop("eos_token_id")))
    os.remove(os.path.join(model, "generation_config.json"))
    run, _, _ = good(model, "--prompt", chat["prompt_text"] + chat["generated_text"].split("[EOS]")[0], "--gen", 5)
    assert run["stopped_at"] == 2049 and run["generated_ids"] == [2049] and run["text"] == ""


def gen_0_reads_the_prompt_and_writes_nothing():
    path = os.path.join(HOME, "row")
    run, out, _ = good(DEMO, "--prompt", "The", "--gen", 0, "--dump-logits", path)
    assert run["generated_ids"] == [] and run["logits_digest"] == BASIS and out == b"" and run["steps"] == []
    assert os.path.getsize(path) == 2304 * 4


def prompt_files_are_taken_byte_for_byte():
    path = os.path.join(HOME, "prompt")
    for data in (b"one\r\ntwo\r\n", b"A\0B", b"\xef\xbb\xbfBOM first", b"no newline", b"newline\n", b"\n",
                 "naïve 漢字 🙂\n".encode(), b"[EOS]<|open|>"):
        with open(path, "wb") as file:
            file.write(data)
        code, ids, err = support.run(INSPECT, DEMO, "--encode-file", path, "--json")
        assert code == 0, err
        assert good(DEMO, "--prompt-file", path, "--gen", 0)[0]["prompt_ids"] == json.loads(ids), data
        with open(path, "rb") as file:
            assert good(DEMO, "--prompt-file", "-", "--gen", 0, stdin=file)[0]["prompt_ids"] == json.loads(ids), data
        if b"\0" not in data:  # trap 74: a text that is an argument is not converted either
            assert good(DEMO, "--prompt", data.decode(), "--gen", 0)[0]["prompt_ids"] == json.loads(ids), data


def a_prompt_may_look_like_an_option():
    for text in ("--help", "-h", "- item", "[EOS]", "[1,2]", "--gen=3", "%%", "{}", "-1", " "):
        want = json.loads(support.run(INSPECT, DEMO, f"--encode={text}", "--json")[1])
        assert good(DEMO, "--prompt", text, "--gen", 0)[0]["prompt_ids"] == want, text


def the_later_option_wins():
    want = demo()[0]
    run, _, _ = good(DEMO, "--prompt", "x", "--gen", 9, "--recompute", "--prompt", want["prompt_text"], "--gen", 3,
                     "--incremental", "--threads", 1, "--threads", 2)
    assert run["generated_ids"] == want["generated_ids"][:3] and run["decoding"] == "incremental"
    assert run["threads"] == 2 and good(DEMO, "--ids", 5, "--incremental", "--recompute")[0]["decoding"] == "recompute"
    # a preset after --trunk-gb replaces it, one before is replaced: 3 + 1 GB fit 5G, 50 + 1 do not
    good(DEMO, "--ids", 5, "--gen", 0, "--memory", "5G", "--trunk-gb", 50, "--preset", "laptop")
    usage(["--memory 5G", "50.00 GB"], "--ids", 5, "--memory", "5G", "--preset", "laptop", "--trunk-gb", 50)


def fewer_layers_give_another_answer():
    run, _, err = good(DEMO, "--ids", 5, "--layers", 4)
    assert (run["layers"], run["layers_requested"], run["layers_completed"]) == (9, 4, 4) and "4 of 9 layers" in err


# ------------------------------------------------------------------------------------------------- streams and results


def the_report_goes_to_stderr_and_quiet_silences_it():
    want = demo()[0]
    arguments = (DEMO, "--prompt", want["prompt_text"], "--gen", 24)
    run, out, err = good(*arguments)
    for word in ("model ", "memory ", "STEP", "prefill  5 tokens in", "decode   23 tokens in", "24 tokens in",
                 "s/token average", "PEAK RSS for the whole run: ", "logits digest " + run["logits_digest"]):
        assert word in err, word
    assert "\r" not in err and "\033" not in err
    steps = [line.split() for line in err.split("\n") if line.split() and line.split()[0].isdigit()]
    assert len([step for step in steps if len(step) == 7]) == 24  # one line a token
    assert good(*arguments, "--quiet")[1:] == (out, "")
    assert os.listdir(CWD) == []
    good(*arguments, "--memory", "8GiB", "--cache-gb", "0.001", "--dump-cache-trace", "traces/of this")
    assert sorted(os.listdir(os.path.join(CWD, "traces/of this"))) == [
        "expert_hist.json", "expert_lookahead.bin", "expert_trace.bin", "expert_trace.json"]
    shutil.rmtree(os.path.join(CWD, "traces"))


def on_one_terminal_text_and_report_do_not_mix():
    want = demo()[0]
    master, slave = pty.openpty()
    child = subprocess.Popen([K3, DEMO, "--prompt", want["prompt_text"], "--gen", "24", "--out", HOME + "/tty.json"],
                             stdout=slave, stderr=slave, stdin=slave, cwd=CWD, env=ENV)
    os.close(slave)
    seen = b""
    while True:
        try:
            piece = os.read(master, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        seen += piece
    os.close(master)
    assert child.wait() == 0
    seen = seen.decode().replace("\r\n", "\n")
    before, text, after = seen.partition(want["generated_text"])
    assert text and "STEP" not in seen and "memory" in before, seen
    assert after.startswith("\nprefill") and "logits digest" in after, after
    assert before.endswith(("\n", "\033[K")), before


def the_result_has_the_promised_keys():
    run, _, _ = good(DEMO, "--prompt", "The capital", "--gen", 4)
    for key in ("version model arch threads config plan prompt_ids generated_ids text logits_digest steps totals "
                "expert_drops exit_code full_ids layers layers_requested layers_completed peak_rss_bytes wall_seconds "
                "seconds_per_token expert_bytes_read trunk_bytes_read embedding_bytes_read lm_head_bytes_read "
                "stopped_at interrupted generated_text").split():
        assert key in run, key
    assert [step["token"] for step in run["steps"]] == run["generated_ids"]
    assert set(run["steps"][0]) == {"token", "seconds", "bytes_read", "wait_seconds", "cache_hits", "resident_hits", "misses",
                                    "evictions"}
    assert {"seconds", "bytes_read", "io_seconds", "peak_rss_bytes"} <= set(run["totals"])
    assert run["embedding_bytes_read"] == (len(run["full_ids"]) - 1) * 192 * 2
    assert run["peak_rss_bytes"] > 1 << 20 and run["exit_code"] == run["expert_drops"] == 0
    assert run["interrupted"] is False and run["stopped_at"] == -1 and run["sound_ids"] == 4
    code, _, _ = k3(DEMO, "--ids", 5, "--gen", 1)  # the default name
    assert code == 0 and os.listdir(CWD) == ["k3_run.json"]
    os.remove(os.path.join(CWD, "k3_run.json"))


def results_that_cannot_be_written():
    for option in ("--out", "--dump-logits"):
        refused(3, ["/no/such"], DEMO, "--ids", 5, option, "/no/such/folder/file")
        refused(3, [CWD, "directory"], DEMO, "--ids", 5, option, CWD)
        usage([option], "--ids", 5, option, "-")
    usage(["same file"], "--ids", 5, "--out", "x", "--dump-logits", "./x")
    for option in ("--out", "--dump-logits"):  # these are found only when written
        extra = ["--out", "/dev/null"] if option != "--out" else []
        code, _, err = k3(DEMO, "--ids", 5, "--quiet", *extra, option, "/dev/full")
        assert code == 3, (code, err)
        is_one_line(err, "/dev/full", "No space")
    old, link = os.path.join(HOME, "old"), os.path.join(HOME, "link")
    with open(old, "w") as file:
        file.write("an older result")
    refused(2, ["301"], golden("B")[0], "--ids", 301, "--out", old)
    assert open(old).read() == "an older result"
    os.symlink(old, link)
    assert k3(DEMO, "--ids", 5, "--gen", 1, "--out", link)[0] == 0
    assert os.path.islink(link) and json.load(open(old))["exit_code"] == 0
    assert k3(DEMO, "--ids", 5, "--gen", 1, "--out", "/dev/null")[0] == 0


def a_reader_that_goes_away_is_no_crash():
    out = os.path.join(HOME, "head.json")
    child = subprocess.Popen([K3, DEMO, "--prompt", "The capital of France is", "--gen", "900", "--recompute", "--quiet",
                              "--ignore-eos", "--out", out], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV)
    child.stdout.read(1)
    child.stdout.close()
    err = child.stderr.read().decode()
    assert child.wait() == 3, (child.returncode, err)
    is_one_line(err, "standard output", out)
    run = json.load(open(out))
    assert run["exit_code"] == 3 and 0 < len(run["generated_ids"]) < 900
    with open("/dev/full", "wb") as full:
        child = subprocess.run([K3, DEMO, "--ids", "5", "--quiet", "--out", out], stdout=full, stderr=subprocess.PIPE)
    assert child.returncode == 3
    is_one_line(child.stderr.decode(), "No space left")


def the_first_interrupt_ends_in_order():
    out = os.path.join(HOME, "interrupted.json")
    want = demo()[0]

    def start():
        return subprocess.Popen(
            [K3, DEMO, "--prompt", want["prompt_text"], "--gen", "1000", "--ignore-eos", "--recompute", "--out", out],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV, bufsize=0,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    child = start()
    first = child.stdout.read(1)  # the first token is there
    child.send_signal(signal.SIGINT)
    text, err = child.communicate()
    err = err.decode()
    assert child.returncode == 5, (child.returncode, err)
    run = json.load(open(out))
    assert run["interrupted"] is True and run["exit_code"] == 5 and 0 < len(run["generated_ids"]) < 1000
    assert (first + text).decode() == run["text"]
    head = min(24, len(run["generated_ids"]))
    assert run["generated_ids"][:head] == want["generated_ids"][:head]
    is_one_line(err.splitlines(True)[-1], "interrupted", out)
    assert "interrupt again" in err


# ------------------------------------------------------------------------------------------------------------ bad input


def options_that_make_no_sense():
    for arguments in (["--help"], ["--version"], ["--list-presets"], ["--list-arches"]):
        code, out, err = k3(*arguments)
        assert code == 0 and out and err == "", arguments
    refused(2, ["model directory"], "--ids", 5)
    refused(2, ["/no/such", "no such directory"], "/no/such", "--ids", 5)
    refused(2, ["not a directory"], K3, "--ids", 5)
    refused(2, ["--frobnicate"], DEMO, "--ids", 5, "--frobnicate")
    refused(2, ["extra"], DEMO, "extra", "--ids", 5)
    usage(["no prompt", "--prompt-file"])
    usage(["--prompt and --ids"], "--ids", 5, "--prompt", "x")
    usage(["--prompt-file and --ids"], "--ids", 5, "--prompt-file", "x")
    usage(["--gen"], "--ids", 5, "--gen")
    for option, values in (("--gen", ("-1", "x", "1e3", "8.0", "", "99999999999999999999", "+1", "0x10", " 1", "1 ")),
                           ("--layers", ("0", "10", "-1", "all")), ("--threads", ("0", "-2", "many", "100000")),
                           ("--prefill-chunk", ("0", "64k")), ("--trunk-ring", ("0", "x"))):
        for value in values:
            usage([option, value.strip()], "--ids", 5, option, value)
    for value in ("8", "8X", "G", "", "-8G", "8e9", "8GiBB", "1.2.3G", "9999999999T", "0G", "auto", "8 G", "nanG"):
        usage(["--memory", value], "--ids", 5, "--memory", value)
    for option in ("--trunk-gb", "--cache-gb"):
        for value in ("x", "-1", "", "1e3"):
            usage([option, value], "--ids", 5, option, value)
    usage(["--preset", "huge", "laptop"], "--ids", 5, "--preset", "huge")
    usage(["--memory 4G", "5.00 GB"], "--ids", 5, "--memory", "4G", "--cache-gb", "5")
    usage(["--memory 8G", "110 GB"], "--ids", 5, "--memory", "8G", "--preset", "server")
    for good_size in ("8G", "8GB", "8GiB", "8gib", "8000M", "0.5T", "8589934592K"):
        good(DEMO, "--ids", 5, "--gen", 0, "--memory", good_size)
    for arch in ("avx3", "", "AVX2", "neon" if "neon" not in arches() else "avx2"):
        usage(["--arch", arch, ", ".join(arches())], "--ids", 5, "--arch", arch)


def ids_with_junk_or_out_of_range():
    for text, word in (("1,,2", "comma"), (",1", "comma"), ("1,", "comma"), (",", "comma"), ("1 , , 2", "comma"),
                       ("1 x", "'x'"), ("1;2", "'1;2'"), ("1.5", "'1.5'"), ("+1", "'+1'"), ("0x1", "'0x1'"),
                       ("-", "'-'"), ("1-2", "'1-2'"), ("１", "'１'"), ("", "empty"), (" \n", "empty")):
        usage(["--ids", word], f"--ids={text}")
    for text in ("-1", "2304", "5,2304", "99999999999999999999", "4294967297", "-99999999999999999999"):
        usage(["--ids", "id " + text.split(",")[-1], "vocabulary of 2304", "0 to 2303"], "--ids", text)


def prompts_that_cannot_be_read():
    usage(["--prompt", "empty"], "--prompt", "")
    usage(["--prompt", "empty"], "--prompt=", "--gen", 3)
    empty, bad = os.path.join(HOME, "empty"), os.path.join(HOME, "bad")
    open(empty, "w").close()
    usage(["--prompt-file", "empty"], "--prompt-file", empty)
    usage(["--prompt-file", "empty"], "--prompt-file", "-")
    usage(["/no/such", "No such file"], "--prompt-file", "/no/such")
    usage([HOME, "directory"], "--prompt-file", HOME)
    for data, offset in ((b"abc\x80", 3), (b"\xc0\xafx", 0), (b"ab\xed\xa0\x80", 2), (b"x\xf0\x9f\x99", 1), (b"\xff", 0)):
        with open(bad, "wb") as file:
            file.write(data)
        usage([bad, "not UTF-8", f"offset {offset}"], "--prompt-file", bad)
    refused(2, ["--prompt", "not UTF-8", "offset 1"], DEMO, "--prompt", os.fsdecode(b"a\xff"))


def tokenizer_files_that_are_missing():
    for name in ("tiktoken.model", "tokenizer_config.json"):
        model = copy_of(DEMO, "untokenized")
        os.remove(os.path.join(model, name))
        refused(2, [os.path.join(model, name), "--tok"], model, "--prompt", "x")
    usage(["/no/such/tiktoken.model", "--tok"], "--prompt", "x", "--tok", "/no/such")
    usage(["/no/such/tiktoken.model", "--tok"], "--ids", 5, "--tok", "/no/such")
    usage(["tok"], "--prompt", "x", "--tok", golden("B")[0])  # another vocabulary


def configs_that_are_refused():
    def case(words, change, name="config.json"):
        model = copy_of(golden("B")[0], "odd")
        edit_json(os.path.join(model, name), change)
        refused(2, ["config.json", *words], model, "--ids", 5)
    case(["hidden_size"], lambda c: c["text_config"].pop("hidden_size"))
    case(["num_experts", "vocab_size", "kv_lora_rank"],
         lambda c: [c["text_config"].pop(key) for key in ("num_experts", "vocab_size", "kv_lora_rank")])
    case(["num_hidden_layers"], lambda c: c["text_config"].update(num_hidden_layers="9"))
    case(["num_hidden_layers"], lambda c: c["text_config"].update(num_hidden_layers=9.5))
    case(["hidden_size"], lambda c: c["text_config"].update(hidden_size=-1))
    case(["rms_norm_eps"], lambda c: c["text_config"].update(rms_norm_eps=0))
    case(["mla_use_nope"], lambda c: c["text_config"].update(mla_use_nope=False))
    case(["num_experts_per_token"], lambda c: c["text_config"].update(num_experts_per_token=8))
    case(["layers"], lambda c: c["text_config"]["linear_attn_config"]["kda_layers"].pop())
    model = copy_of(golden("B")[0], "odd")
    os.remove(os.path.join(model, "config.json"))
    refused(2, ["config.json"], model, "--ids", 5)
    for text in ("", "{", "[]", "<html>"):
        with open(os.path.join(model, "config.json"), "w") as file:
            file.write(text)
        refused(2, ["config.json"], model, "--ids", 5)
    good(model, "--ids", 5, "--config", os.path.join(golden("B")[0], "config.json"))
    refused(2, ["/no/such.json"], model, "--ids", 5, "--config", "/no/such.json")


def checkpoints_that_are_damaged():
    source = golden("B")[0]
    shard = "model-00002-of-000004.safetensors"
    names = [name for file in sorted(os.listdir(source)) if file.endswith(".safetensors")
             for name in shard_tensors(os.path.join(source, file))]

    def case(words, damage):
        model = copy_of(source, "damaged")
        damage(model)
        refused(1, words, model, "--ids", 5)
        return model

    def write(data):
        return lambda model: open(os.path.join(model, shard), "wb").write(data)
    size = os.path.getsize(os.path.join(source, shard))
    case([shard, str(size), str(size - 100)], lambda model: os.truncate(os.path.join(model, shard), size - 100))
    case([shard, "Git LFS pointer"],
         write(b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1\n"))
    case([shard], write(b"<!DOCTYPE html><html><body>Not found</body></html>\n"))
    case([shard], write(b""))
    case([shard[:11]], lambda model: os.remove(os.path.join(model, shard)))
    gone = [next(name for name in names if name.endswith(end)) for end in ("q_proj.weight", "w2.weight_scale", "A_log")]
    case(gone, lambda model: edit_tensors(model, lambda t: [t.pop(name, None) for name in gone]))

    def replace(name, value):
        def change(tensors):
            if name in tensors:
                tensors[name] = value(*tensors[name])
        return lambda model: edit_tensors(model, change)
    head = ROOT + "lm_head.weight"
    case([head, "[100, 301]", "[301, 100]"], replace(head, lambda d, s, b: [d, [s[1], s[0]], b]))
    case([head, "F16", "BF16"], replace(head, lambda d, s, b: ["F16", s, b]))
    case([gone[1], "I8"], replace(gone[1], lambda d, s, b: ["I8", s, b]))


def a_nan_is_never_chosen():
    def poison(tensors):
        name = ROOT + "lm_head.weight"
        if name in tensors:
            dtype, shape, data = tensors[name]
            row = shape[1] * 2
            tensors[name] = [dtype, shape, data[:7 * row] + b"\xc0\x7f" * shape[1] + data[8 * row:]]
    model = copy_of(golden("B")[0], "nan")
    edit_tensors(model, poison)
    for arch in arches():
        refused(1, ["NaN", "position 3", "step 0"], model, "--ids", "5,6,7", "--arch", arch, "--quiet")


def runs_that_do_not_fit():
    usage(["2001 positions", "1024"], "--ids", "5,6", "--gen", 2000)
    model = golden("B")[0]
    limit = 1 << 29

    def small():
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    code, _, err = k3(model, "--ids", 5, "--gen", 1, "--quiet", "--out", "/dev/null", preexec_fn=small)
    if code != 0:
        raise Skip(f"this build cannot run in 512 MiB of address space: {err.strip()}")
    # 672 bytes a position: latent rows and scores
    refused(2, ["1000000 positions need", " MB", "there are", "positions fit"], model, "--ids", 5, "--gen", 1000000,
            "--threads", 1, preexec_fn=small)
    path = os.path.join(HOME, "long")
    with open(path, "w") as file:
        file.write("the other thing " * 170000)
    refused(2, ["positions need", "there are", "positions fit"], model, "--prompt-file", path, "--gen", 1, "--threads", 1,
            preexec_fn=small)


os.makedirs(CWD)
try:
    support.main([golden_ids_by_every_path_and_one_digest,
                  the_digest_in_the_readme_on_every_arch_for_every_number_of_threads,
                  what_the_environment_tells_openmp_changes_no_bit,
                  the_default_number_of_threads_follows_affinity_and_not_openmp,
                  waiting_threads_sleep_unless_the_user_says_otherwise,
                  the_first_row_of_logits_is_the_reference_and_what_the_digest_hashes, golden_texts,
                  demo_prompts_stream_the_expected_text, a_list_of_ids_gives_text_with_a_tokenizer_and_ids_without,
                  characters_that_span_tokens_are_never_cut, text_stops_at_every_declared_end_id,
                  gen_0_reads_the_prompt_and_writes_nothing, prompt_files_are_taken_byte_for_byte,
                  a_prompt_may_look_like_an_option, the_later_option_wins, fewer_layers_give_another_answer,
                  the_report_goes_to_stderr_and_quiet_silences_it, on_one_terminal_text_and_report_do_not_mix,
                  the_result_has_the_promised_keys, results_that_cannot_be_written,
                  a_reader_that_goes_away_is_no_crash, the_first_interrupt_ends_in_order, options_that_make_no_sense,
                  ids_with_junk_or_out_of_range, prompts_that_cannot_be_read, tokenizer_files_that_are_missing,
                  configs_that_are_refused, checkpoints_that_are_damaged, a_nan_is_never_chosen, runs_that_do_not_fit])
finally:
    shutil.rmtree(HOME, ignore_errors=True)
