#!/usr/bin/env python3
"""k3 --score and --tf-check from outside.  usage: test_score.py PATH/k3 TESTS_FOLDER"""
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import support

K3, TESTS = map(os.path.abspath, sys.argv[1:3])
DEMO = os.path.join(TESTS, "demo/model")
HOME = tempfile.mkdtemp(prefix="k3-score-test-")
ENV = dict(os.environ, OMP_WAIT_POLICY="passive")


def k3(*arguments):
    return support.run(K3, *arguments, cwd=HOME, env=ENV, stdin=subprocess.DEVNULL)


def good(*arguments):
    """(result JSON, stdout, stderr) of a run that must succeed"""
    out = os.path.join(HOME, "score.json")
    code, text, err = k3(*arguments, "--out", out)
    assert code == 0, f"exit code {code}: {err}"
    with open(out, encoding="utf-8") as file:
        return json.load(file), text.decode(), err


def refused(code, words, *arguments):
    got, out, err = k3(*arguments)
    assert got == code and out == b"", (got, out, err)
    assert err.count("\n") == 1 and err.startswith("k3: ") and ";" in err, err
    for word in words:
        assert word in err, f"{word!r} is not in {err!r}"


def golden(case):
    folder = os.path.join(TESTS, "golden", case)
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as file:
        expected = json.load(file)
    with open(os.path.join(folder, "logits.f64"), "rb") as file:
        data = file.read()
    ids = expected["full_ids"]
    vocab = len(data) // 8 // len(ids)
    rows = [struct.unpack_from(f"<{vocab}d", data, 8 * vocab * t) for t in range(len(ids))]
    return os.path.join(folder, "model"), ids, expected["teacher_forced_argmax"], rows


def digest_of(log_probs):
    value = 0xcbf29ce484222325
    for byte in struct.pack(f"<{len(log_probs)}d", *log_probs):
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return f"{value:016x}"


def scores_are_those_of_the_float64_logits():
    for case in "AF":
        model, ids, argmax, rows = golden(case)
        run, out, err = good(model, "--ids", ",".join(map(str, ids)), "--tf-check")
        n = len(ids) - 1
        assert list(run)[:3] == ["tf_positions", "tf_matches", "tf_agreement"], list(run)
        assert run["ids"] == ids and run["tf_positions"] == len(run["log_probs"]) == n
        assert run["greedy_ids"] == argmax[:n]
        matches = sum(a == b for a, b in zip(argmax, ids[1:]))
        assert run["tf_matches"] == matches and run["tf_agreement"] == matches / n
        for t, got in enumerate(run["log_probs"]):
            most = max(rows[t])
            want = rows[t][ids[t + 1]] - most - math.log(sum(math.exp(l - most) for l in rows[t]))
            assert abs(got - want) <= 2e-4 * max(map(abs, rows[t])), (case, t, got, want)
        assert abs(run["nll"] + math.fsum(run["log_probs"])) < 1e-12 * run["nll"]
        assert abs(run["perplexity"] - math.exp(run["nll"] / n)) < 1e-13 * run["perplexity"]
        assert run["score_digest"] == digest_of(run["log_probs"])
        for word in (f"{run['perplexity']:.6g}", f"{n} tokens", f"{matches} of {n}", run["score_digest"]):
            assert word in out, (word, out)
        assert out.count("\n") == 3 and "judged" in err, (out, err)
        assert (run["exit_code"], run["error"], run["interrupted"]) == (0, None, False)


def one_digest_on_every_arch_for_every_chunk_thread_and_budget():
    model, ids, _, _ = golden("A")
    code, arches, _ = k3("--list-arches")
    assert code == 0
    found = set()
    for arch in arches.decode().split():
        for how in (["--threads", 1, "--prefill-chunk", 1], ["--threads", 2, "--prefill-chunk", 7], ["--threads", 2],
                    ["--trunk-gb", 0, "--cache-gb", 0.0006, "--threads", 1]):
            run, out, err = good(model, "--ids", " ".join(map(str, ids)), "--tf-check", "--quiet", "--arch", arch, *how)
            assert err == "", err
            found.add(run["score_digest"])
    assert len(found) == 1, found


def a_text_is_scored_by_either_name_and_the_greedy_text_agrees_with_itself():
    with open(os.path.join(TESTS, "demo/expected.json"), encoding="utf-8") as file:
        prompt = json.load(file)["prompts"][0]
    path = os.path.join(HOME, "text.txt")
    with open(path, "wb") as file:
        file.write((prompt["prompt_text"] + prompt["generated_text"]).encode())
    first, out, _ = good(DEMO, "--score", path)
    drop = lambda run: {key: value for key, value in run.items() if key not in ("seconds", "peak_rss_bytes", "plan")}
    second, again, _ = good(DEMO, "--prompt-file", path, "--tf-check")
    assert drop(first) == drop(second) and out == again
    given, made = prompt["prompt_ids"], prompt["generated_ids"]
    assert first["ids"][:len(given)] == given
    if first["ids"] == given + made:  # else the tokenizer joined the two in another way
        assert first["greedy_ids"][len(given) - 1:] == made
    assert first["tf_matches"] >= len(made) - 1 and first["perplexity"] > 1
    # Other text is less likely.
    with open(path, "wb") as file:
        file.write(b"is France the colourless green Of planet capital; the sleep furiously?")
    worse, _, _ = good(DEMO, "--score", path)
    assert worse["perplexity"] > 10 * first["perplexity"], (worse["perplexity"], first["perplexity"])


def what_makes_no_sense_is_refused():
    model, _, _, _ = golden("A")
    path = os.path.join(HOME, "one.txt")
    with open(path, "wb") as file:
        file.write(b"a")
    refused(2, ["one token", "two"], model, "--ids", "5", "--tf-check")
    refused(2, ["one token"], DEMO, "--score", path)
    refused(2, ["--score", "/nonexistent"], DEMO, "--score", "/nonexistent")
    refused(2, ["--score", "--ids"], DEMO, "--score", path, "--ids", "1,2")
    refused(2, ["prompt"], DEMO, "--tf-check")
    for option in (["--gen", 4], ["--dump-logits", "x"], ["--dump-cache-trace", "x"]):
        refused(2, [option[0], "leave"], model, "--ids", "5,6", "--tf-check", *option)
    with open(path, "wb") as file:
        file.write(b"\xff\xfe")
    refused(2, ["--score", path], DEMO, "--score", path)
    refused(2, ["positions"], DEMO, "--ids", ",".join("5" for _ in range(1026)), "--tf-check")
    good(DEMO, "--ids", ",".join("5" for _ in range(1025)), "--tf-check", "--quiet")  # the last id is not fed
    refused(3, ["/nonexistent/x"], model, "--ids", "5,6", "--tf-check", "--out", "/nonexistent/x")


def a_full_standard_output_still_gives_the_result():
    model, ids, _, _ = golden("A")
    out = os.path.join(HOME, "full.json")
    with open("/dev/full", "wb") as full:
        done = subprocess.run([K3, model, "--ids", ",".join(map(str, ids)), "--tf-check", "--quiet", "--out", out],
                              stdout=full, stderr=subprocess.PIPE, env=ENV, cwd=HOME)
    assert done.returncode == 3 and out.encode() in done.stderr, done.stderr
    with open(out, encoding="utf-8") as file:
        run = json.load(file)
    assert run["tf_positions"] == len(ids) - 1 and run["exit_code"] == 3


def an_interrupt_keeps_what_was_judged():
    out = os.path.join(HOME, "interrupted.json")
    ids = [5 + 7 * i % 2000 for i in range(1000)]
    whole, _, _ = good(DEMO, "--ids", ",".join(map(str, ids)), "--tf-check", "--quiet")
    command = [K3, DEMO, "--ids", ",".join(map(str, ids)), "--tf-check", "--out", out, "--threads", "1",
               "--prefill-chunk", "1", "--arch", "scalar"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV, cwd=HOME,
                          preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as process:
        for line in process.stderr:
            if line.startswith(b"disk"):  # the last line before the first token
                break
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        text, err = process.communicate()
    assert process.returncode == 5, (process.returncode, err)
    with open(out, encoding="utf-8") as file:
        run = json.load(file)
    n = run["tf_positions"]
    assert 0 < n < 999 and run["interrupted"] is True and run["exit_code"] == 5 and run["error"]
    assert run["log_probs"] == whole["log_probs"][:n]
    assert f"{n} tokens" in text.decode() and out.encode() in err.splitlines()[-1], (text, err)


if __name__ == "__main__":
    try:
        support.main([scores_are_those_of_the_float64_logits,
                      one_digest_on_every_arch_for_every_chunk_thread_and_budget,
                      a_text_is_scored_by_either_name_and_the_greedy_text_agrees_with_itself,
                      what_makes_no_sense_is_refused, a_full_standard_output_still_gives_the_result,
                      an_interrupt_keeps_what_was_judged])
    finally:
        shutil.rmtree(HOME, ignore_errors=True)
