#!/usr/bin/env python3
"""k3 --save-state and --load-state from outside; the file is read and written here by code of its own.
usage: test_state.py PATH/k3 PATH/k3-synth TESTS_FOLDER"""
import json
import os
import random
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time

import support

K3, SYNTH, TESTS = map(os.path.abspath, sys.argv[1:4])
DEMO = os.path.join(TESTS, "demo/model")
HOME = tempfile.mkdtemp(prefix="k3-state-test-")
ENV = dict(os.environ, OMP_WAIT_POLICY="passive")
HEADER = 44 * 8  # bytes, the checksum of the header included
# Words of the header.
VERSION, FLAGS, IDS, FED, GENERATOR, TURN, CONFIG, TOKENIZER = 1, 2, 3, 4, 6, 8, 9, 42


def place(name):
    return os.path.join(HOME, name)


def golden(case):
    with open(os.path.join(TESTS, "golden", case, "expected.json")) as file:
        return os.path.join(TESTS, "golden", case, "model"), json.load(file)


def comma(ids):
    return ",".join(map(str, ids))


def k3(*arguments, **options):
    return support.run(K3, *arguments, "--quiet", stdin=subprocess.DEVNULL, env=ENV, **options)


def good(*arguments, **options):
    out = place("run.json")
    code, _, err = k3(*arguments, "--out", out, **options)
    assert code == 0, f"exit code {code}: {err}"
    with open(out) as file:
        return json.load(file)


def refused(code, words, *arguments, **options):
    got, out, err = k3(*arguments, "--out", place("refused.json"), **options)
    assert got == code, f"exit code {got}, not {code}: {err}"
    assert out == b"", out
    assert err.count("\n") == 1 and err.startswith("k3: ") and ";" in err, f"not one line with a next step: {err!r}"
    for word in words:
        assert word in err, f"{word!r} is not in {err!r}"
    assert not os.path.exists(place("refused.json"))


def read(path):
    with open(path, "rb") as file:
        return file.read()


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)
    return path


def checksum(data):
    mask, odd = (1 << 64) - 1, 0x9E3779B97F4A7C15
    value = odd
    words = struct.unpack(f"<{(len(data) + 7) // 8}Q", data + bytes(-len(data) % 8))
    for word in (*words, len(data)):
        value = (value ^ word) * odd & mask
        value ^= value >> 32
    return value


def words_of(data):
    return struct.unpack("<44Q", data[:HEADER])


def sealed(data, word=None, value=0):
    """The file with one word of the header changed and both checksums made right."""
    data = bytearray(data)
    if word is not None:
        data[8 * word:8 * word + 8] = struct.pack("<Q", value)
    data[HEADER - 8:HEADER] = struct.pack("<Q", checksum(bytes(data[:HEADER - 8])))
    data[-8:] = struct.pack("<Q", checksum(bytes(data[:-8])))
    return bytes(data)


def is_whole(path):
    data = read(path)
    return data[:8] == b"k3-state" and sealed(data) == data


def a_run_in_two_parts_is_one_run():
    for case in "AB":
        model, want = golden(case)
        ids, state = want["prompt_ids"], place("parts")
        whole = good(model, "--ids", comma(ids), "--gen", 8)
        for first in (0, 1, 2, 5, 8) if case == "A" else (0, 1, 6):
            head = good(model, "--ids", comma(ids), "--gen", first, "--save-state", state, "--threads", 1,
                        "--prefill-chunk", 3, "--arch", "scalar")
            assert is_whole(state)
            assert words_of(read(state))[IDS:FED + 1] == (len(ids) + first, len(ids) + max(0, first - 1))
            tail = good(model, "--load-state", state, "--gen", 8 - first, "--ignore-eos", "--threads", 2, "--trunk-gb", 0,
                        "--trunk-ring", 1)
            assert head["generated_ids"] + tail["generated_ids"] == whole["generated_ids"], (case, first)
            assert tail["logits_digest"] == whole["logits_digest"], (case, first)
            assert tail["full_ids"] == whole["full_ids"], (case, first)
    # More prompt after a state; the whole again with --recompute.
    model, want = golden("A")
    ids = want["prompt_ids"]
    good(model, "--ids", comma(ids), "--gen", 0, "--save-state", state)
    one = good(model, "--ids", comma(ids + [7, 8]), "--gen", 4)
    for how in ("--incremental", "--recompute"):
        two = good(model, "--load-state", state, "--ids", "7,8", "--gen", 4, how)
        assert (two["generated_ids"], two["logits_digest"]) == (one["generated_ids"], one["logits_digest"])
    # Saved over itself, again and again.
    good(model, "--ids", comma(ids), "--gen", 1, "--save-state", state)
    for _ in range(7):
        last = good(model, "--load-state", state, "--gen", 1, "--save-state", state)
    whole = good(model, "--ids", comma(ids), "--gen", 8)
    assert (last["full_ids"], last["logits_digest"]) == (whole["full_ids"], whole["logits_digest"])


def a_run_that_draws_goes_on_drawing():
    model, state = golden("A")[0], place("drawing")
    draw = ["--ids", "5,6,7", "--temperature", 2, "--top-p", 1, "--seed", 11]
    whole = good(model, *draw, "--gen", 9)
    assert whole["generated_ids"] != good(model, *draw, "--seed", 12, "--gen", 9)["generated_ids"]
    seen = set()
    for first in (1, 4, 8):
        head = good(model, *draw, "--gen", first, "--save-state", state)
        words = words_of(read(state))
        assert words[FLAGS] == 2 + 4 and words[TURN] == 1
        seen.add(words[GENERATOR:TURN])
        go_on = ["--load-state", state, "--gen", 9 - first, "--temperature", 2, "--top-p", 1, "--ignore-eos"]
        tail = good(model, *go_on)
        assert head["generated_ids"] + tail["generated_ids"] == whole["generated_ids"], first
        assert tail["logits_digest"] == whole["logits_digest"]
    assert len(seen) == 3  # the generator moved on
    good(model, "--ids", "5,6,7", "--gen", 1, "--save-state", state)
    assert words_of(read(state))[FLAGS] == 4 and set(words_of(read(state))[GENERATOR:TURN + 1]) == {0}


def text_goes_on_where_it_stopped():
    state = place("text")
    whole = good(DEMO, "--prompt", "The capital of France is", "--gen", 24)
    head = good(DEMO, "--prompt", "The capital of France is", "--gen", 9, "--save-state", state)
    tail = good(DEMO, "--load-state", state, "--gen", 15)
    assert head["text"] + tail["text"] == whole["text"]
    files = [read(os.path.join(DEMO, name)) for name in ("tiktoken.model", "tokenizer_config.json")]
    assert words_of(read(state))[TOKENIZER] == checksum(struct.pack("<Q", len(files[0])) + b"".join(files))
    assert tail["logits_digest"] == whole["logits_digest"]


def what_is_refused_is_refused_in_one_line():
    model, state = golden("A")[0], place("refuse")
    good(model, "--ids", "5,6,7", "--gen", 2, "--save-state", state)
    data = read(state)
    load = ["--load-state", state, "--gen", 1]
    refused(2, [state, "hidden_size"], golden("B")[0], *load)
    refused(2, [state, "layers", "--layers"], model, *load, "--layers", 5)
    refused(2, ["/no/such", "No such file"], model, "--load-state", "/no/such", "--gen", 1)
    refused(2, [HOME, "directory"], model, "--load-state", HOME, "--gen", 1)
    refused(2, ["/dev/null", "regular"], model, "--load-state", "/dev/null", "--gen", 1)
    for change, words in ((lambda d: d[:-1], ["cut short", str(len(data)), str(len(data) - 1)]),
                          (lambda d: d[:100], ["cut short"]), (lambda d: b"", ["0 bytes"]),
                          (lambda d: d + b"\0", ["after its end"]),
                          (lambda d: d[:999] + bytes([d[999] ^ 1]) + d[1000:], ["damaged"]),
                          (lambda d: b"K3ST" + d[4:], ["another engine"]),
                          (lambda d: read(os.path.join(model, "config.json")), ["JSON"]),
                          (lambda d: sealed(d, VERSION, 2), ["version 2"]),
                          (lambda d: sealed(d, CONFIG, 129), ["hidden_size is 129, here it is 128"]),
                          (lambda d: sealed(d, IDS, 1 << 60), ["more than the model's"]),
                          (lambda d: sealed(d, FED, 1 << 60), ["contradicts"])):
        write(state, change(data))
        refused(2, [state, *words], model, *load)
    good(model, "--load-state", write(state, sealed(data)), "--gen", 1)
    # Every byte of the header, and some of the rest.
    places = [*range(HEADER), *range(HEADER, len(data), len(data) // 40), len(data) - 1]
    for at in random.Random(1).sample(places, 20):
        write(state, data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1:])
        refused(2, [state], model, *load)
    # A tokenizer is compared where both have one.
    good(DEMO, "--prompt", "The capital", "--gen", 2, "--save-state", state)
    tok = place("tok")
    shutil.rmtree(tok, ignore_errors=True)
    os.mkdir(tok)
    for name in ("tiktoken.model", "tokenizer_config.json"):
        shutil.copy(os.path.join(DEMO, name), tok)
    good(DEMO, "--load-state", state, "--gen", 1, "--tok", tok)
    with open(os.path.join(tok, "tokenizer_config.json"), "a") as file:
        file.write("\n")
    refused(2, [state, "tokenizer", "--tok"], DEMO, "--load-state", state, "--gen", 1, "--tok", tok)
    good(DEMO, "--load-state", write(state, sealed(read(state), TOKENIZER, 0)), "--gen", 1, "--tok", tok)


def where_a_state_cannot_be_written():
    model, state = golden("A")[0], place("unwritable")
    run = [model, "--ids", "5,6,7", "--gen", 2]
    good(*run, "--save-state", state)
    data = read(state)
    fifo = place("fifo")
    os.mkfifo(fifo)
    for path in ("/no/such/folder/state", HOME, state + "/x", fifo):
        refused(3, [path], *run, "--save-state", path)
    assert stat.S_ISFIFO(os.stat(fifo).st_mode)
    with support.small_disk(place("small-disk"), "256k") as disk:
        path = os.path.join(disk, "state")
        good(*run, "--save-state", path)
        assert read(path) == data
        old = sorted(os.listdir(disk))
        write(os.path.join(disk, "filler"), bytes(170000))  # the state has 65 kB
        refused(3, [disk, "free"], model, "--load-state", path, "--gen", 1, "--save-state", path)  # before the run
        assert read(path) == data
        os.remove(os.path.join(disk, "filler"))
        # Room when the run starts, none when it ends.
        child = subprocess.Popen([K3, model, "--load-state", path, "--gen", "150", "--save-state", path, "--quiet", "--out",
                                  place("full.json")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV)
        child.stdout.read(1)
        write(os.path.join(disk, "filler"), bytes(170000))
        child.stdout.read()
        err = child.stderr.read().decode()
        assert child.wait() == 3, (child.returncode, err)
        assert disk in err.splitlines()[-1] and ";" in err.splitlines()[-1], err
        assert read(path) == data and json.load(open(place("full.json")))["exit_code"] == 3
        os.remove(os.path.join(disk, "filler"))
        assert sorted(os.listdir(disk)) == old


def an_interrupt_keeps_the_steps_that_were_done():
    model, want = golden("A")
    state, out = place("interrupted"), place("interrupted.json")

    def interrupted(wait, *arguments):
        child = subprocess.Popen([K3, model, *arguments, "--save-state", state, "--out", out], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, env=ENV,
                                 preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        wait(child)
        child.send_signal(signal.SIGINT)
        child.stdout.read()
        err = child.stderr.read().decode()
        assert child.wait() == 5, (child.returncode, err)
        assert is_whole(state)
        return json.load(open(out))

    def inside_the_prompt(child):
        while not child.stderr.readline().startswith(b"disk"):  # the last line before it
            assert child.poll() is None
        time.sleep(0.1)

    head = interrupted(lambda child: child.stdout.read(20), "--ids", comma(want["prompt_ids"]), "--gen", "100000")
    done = len(head["generated_ids"])
    assert 0 < done < 100000
    tail = good(model, "--load-state", state, "--gen", 5)
    whole = good(model, "--ids", comma(want["prompt_ids"]), "--gen", done + 5)
    assert head["generated_ids"] + tail["generated_ids"] == whole["generated_ids"]
    assert tail["logits_digest"] == whole["logits_digest"]
    # In the middle of a long prompt.
    ids = [i * i % 251 for i in range(2500)]
    head = interrupted(inside_the_prompt, "--ids", comma(ids), "--gen", "3", "--prefill-chunk", "8", "--threads", "1")
    fed = words_of(read(state))[FED]
    assert head["generated_ids"] == [] and fed % 8 == 0 and fed < 2500 and words_of(read(state))[IDS] == 2500, fed
    tail = good(model, "--load-state", state, "--gen", 3)
    whole = good(model, "--ids", comma(ids), "--gen", 3)
    assert (tail["full_ids"], tail["logits_digest"]) == (whole["full_ids"], whole["logits_digest"])


def a_writer_that_is_killed_leaves_the_old_state_or_the_new_one():
    model, folder = place("large"), place("killed")
    code, _, err = support.run(SYNTH, "--out", model, "--quiet", "--layers", 4, "--kda-heads", 32, "--kda-dim", 256,
                               "--hidden", 64)
    assert code == 0, err
    os.mkdir(folder)
    state, new = os.path.join(folder, "state"), place("new")
    good(model, "--ids", "5,6,7", "--gen", 1, "--save-state", state)
    old_bytes = read(state)
    want = good(model, "--load-state", state, "--gen", 1, "--save-state", new)
    new_bytes = read(new)
    assert len(old_bytes) > 25000000 and old_bytes != new_bytes

    def size_of(path):
        try:
            return os.path.getsize(path)
        except FileNotFoundError:
            return 0

    seen, chance, writing = {"old": 0, "new": 0, "partial": 0}, random.Random(7), 0.0
    for tries in range(60):
        child = subprocess.Popen([K3, model, "--load-state", state, "--gen", "1", "--save-state", state, "--quiet",
                                  "--out", place("killed.json")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 env=ENV)
        temporary = f"{state}.tmp.{child.pid}"
        while child.poll() is None and size_of(temporary) == 0:  # it is empty when the path is tried before the run
            time.sleep(0.0002)
        start = time.monotonic()
        if tries == 0:  # to the end: how long it writes
            assert child.wait() == 0
            writing = time.monotonic() - start
        time.sleep(writing * 1.1 * chance.random())
        child.kill()
        child.wait()
        now = read(state)
        assert now in (old_bytes, new_bytes), f"neither the old nor the new state: {len(now)} bytes"
        seen["old" if now == old_bytes else "new"] += 1
        seen["partial"] += os.path.exists(temporary)
        if now == new_bytes:
            assert not os.path.exists(temporary)
            write(state, old_bytes)
        if tries >= 9 and seen["new"] > 1 and seen["partial"] > 1:
            break
    print(f"         {seen}, writing {writing * 1000:.0f} ms")
    assert seen["partial"] > 1 and seen["new"] > 1, seen
    # What the killed ones left is not taken for a state, and stays for whoever left it.
    left = set(os.listdir(folder)) - {"state"}
    run = good(model, "--load-state", state, "--gen", 1, "--save-state", state)
    assert run["logits_digest"] == want["logits_digest"] and read(state) == new_bytes
    assert set(os.listdir(folder)) - {"state"} == left and len(left) == seen["partial"]
    for name in left:
        assert name.startswith("state.tmp.")
        if size_of(os.path.join(folder, name)) and read(os.path.join(folder, name)) not in (old_bytes, new_bytes):
            refused(2, [name], model, "--load-state", os.path.join(folder, name), "--gen", 1)


try:
    support.main([a_run_in_two_parts_is_one_run, a_run_that_draws_goes_on_drawing, text_goes_on_where_it_stopped,
                  what_is_refused_is_refused_in_one_line, where_a_state_cannot_be_written,
                  an_interrupt_keeps_the_steps_that_were_done,
                  a_writer_that_is_killed_leaves_the_old_state_or_the_new_one])
finally:
    shutil.rmtree(HOME, ignore_errors=True)
