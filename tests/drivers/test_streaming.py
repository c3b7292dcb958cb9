#!/usr/bin/env python3
"""k3 with less memory than the model, from outside: the same answer at every budget, within the budget, and what
happens when the disk fails.  usage: test_streaming.py PATH/k3 PATH/k3-synth TESTS_FOLDER"""
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import support
from memory_cgroup import MemoryCgroup, Unavailable
from support import Skip

K3, SYNTH, TESTS = map(os.path.abspath, sys.argv[1:4])
DEMO = os.path.join(TESTS, "demo/model")
HOME = tempfile.mkdtemp(prefix="k3-streaming-test-")
ENV = dict(os.environ, OMP_WAIT_POLICY="passive")
BASIS = "cbf29ce484222325"
READERS = ["uring", "threads", "buffered"]
POLICIES = ["lru", "lfru", "s3fifo"]
# The program before it plans is not equally large in each run: pages of libraries come and go.
NOISE = 1 << 20


def comma(ids):
    return ",".join(map(str, ids))


class Run:
    """One run to its end; `result` is its --out, None if it wrote none, `rss` the kernel's count of its peak."""

    def __init__(self, *arguments, group=None, env=None):
        self.path = os.path.join(HOME, "run.json")
        if os.path.exists(self.path):
            os.remove(self.path)
        with tempfile.TemporaryFile(dir=HOME) as out, tempfile.TemporaryFile(dir=HOME) as err:
            child = subprocess.Popen([K3, *map(str, arguments), "--out", self.path], stdin=subprocess.DEVNULL,
                                     stdout=out, stderr=err, env=dict(ENV, **env) if env else ENV,
                                     preexec_fn=group.enter if group else None)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = self.code = os.waitstatus_to_exitcode(status)
            self.rss = usage.ru_maxrss * 1024
            self.disk_bytes = usage.ru_inblock * 512
            out.seek(0)
            err.seek(0)
            self.out, self.err = out.read(), err.read().decode("utf-8", "replace")
        self.result = None
        if os.path.exists(self.path):
            with open(self.path, "rb") as file:
                self.result = json.loads(file.read().decode("utf-8"))


def good(*arguments, **options):
    run = Run(*arguments, "--quiet", **options)
    assert run.code == 0, f"exit code {run.code}: {run.err}"
    return run


def refused(words, *arguments):
    """Refused before anything was read: exit 2, one line with all the words and a next step; the line."""
    run = Run(*arguments)
    assert run.code == 2, f"exit code {run.code}, not 2: {run.err}"
    assert run.out == b"" and run.result is None
    assert run.err.count("\n") == 1 and run.err.startswith("k3: ") and ";" in run.err, run.err
    for word in words:
        assert word in run.err, f"{word!r} is not in {run.err!r}"
    return run.err


def kilobytes(size):
    return f"{-(-size // 1000)}K"


def gigabytes(size):
    return f"{size / 1e9 + 5e-10:.9f}"


def least_memory(*arguments):
    """The least --memory in bytes, as the refusal of a tiny one names it."""
    err = refused(["need", "there are 1 MB", "at least"], *arguments, "--memory", "1M")
    named = re.search(r"at least (?:--memory )?([0-9.]+)([KMG]?)\b", err)
    return int(float(named[1]) * {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}[named[2]])


def least_cache(*arguments):
    """The least --cache-gb in bytes that does for every policy, as the refusals of a tiny one name it."""
    def least(policy):
        err = refused(["expert cache", "slots", "a token needs"], *arguments, "--cache-policy", policy, "--cache-gb",
                      "0.000001")
        return int(re.search(r"at least (\d+) bytes", err)[1])
    return max(map(least, POLICIES))


def readers():
    found = []
    for reader in READERS:
        run = Run(DEMO, "--ids", 5, "--gen", 0, "--reader", reader)
        if run.code == 0:
            found.append(reader)
        else:
            assert reader == "uring" and run.code == 2 and "io_uring is not there" in run.err, run.err
            print(f"notice   no io_uring here: {run.err.strip()}")
    return found


def sanitized():
    with open(K3, "rb") as file:
        return any(word in file.read() for word in (b"__asan_init", b"__tsan_init", b"__msan_init"))


_models = {}


def synthetic(name, *shape):
    if name not in _models:
        path = os.path.join(HOME, name)
        code, _, err = support.run(SYNTH, "--out", path, "--seed", 7, "--quiet", "--threads", 2, *shape)
        assert code == 0, err
        _models[name] = path
    return _models[name]


def small():
    """44 MB, lm_head 8 MB: many panels and experts, and quick."""
    return synthetic("small", "--hidden", 512, "--experts", 16, "--topk", 4, "--latent", 256, "--expert-width", 256,
                     "--dense-width", 2048, "--kda-heads", 4, "--kda-dim", 64, "--heads", 4, "--q-lora", 128,
                     "--kv-lora", 64, "--nope", 64, "--rope", 32, "--v-head", 64, "--vocab", 8192)


def middle():
    """Above 600 MB: weights outweigh everything else, and matrices are cut into panels."""
    if shutil.disk_usage(HOME).free < 3 << 30:
        raise Skip(f"{HOME} has less than 3 GiB free")
    return synthetic("middle", "--hidden", 2048, "--experts", 24, "--topk", 4, "--latent", 1024, "--expert-width", 768,
                     "--dense-width", 8192, "--kda-heads", 16, "--kda-dim", 128, "--heads", 16, "--q-lora", 512,
                     "--kv-lora", 256, "--nope", 128, "--rope", 64, "--v-head", 128, "--vocab", 16384)


# ----------------------------------------------------------------------------------------------------------- one digest


def subjects():
    with open(os.path.join(TESTS, "golden/digests.json")) as file:
        digests = json.load(file)
    for case in "AB":
        with open(os.path.join(TESTS, "golden", case, "expected.json")) as file:
            want = json.load(file)
        yield (case, [os.path.join(TESTS, "golden", case, "model"), "--ids", comma(want["prompt_ids"]), "--gen",
                      len(want["generated_ids"])], want["generated_ids"], digests[case])
    with open(os.path.join(TESTS, "demo/expected.json")) as file:
        prompts = json.load(file)["prompts"]
    for want in (prompts[0], prompts[6]):
        arguments = [DEMO, "--prompt", want["prompt_text"], "--ignore-eos", "--gen", len(want["generated_ids"])]
        yield "demo: " + want["prompt"], arguments, want["generated_ids"], None


def one_digest_at_every_setting():
    there, count = readers(), 0
    for name, arguments, ids, digest in subjects():
        def same(*options):
            nonlocal digest, count
            run = good(*arguments, *options)
            count += 1
            digest = digest or run.result["logits_digest"]  # the demo's: of the resident run, which is the first
            assert run.result["generated_ids"] == ids, (name, options, run.result["generated_ids"])
            assert run.result["logits_digest"] == digest, (name, options, run.result["logits_digest"])
            return run.result["plan"]
        resident = same()
        assert resident["trunk_streamed_bytes_per_token"] == 0 and resident["expert_slots"] == resident["experts"]
        # The whole ladder by one number. What stays grows with it.
        least, most = least_memory(*arguments, "--prefill-chunk", 4) + NOISE, resident["total_bytes"] + NOISE
        pinned = -1
        for rung in range(9):
            plan = same("--prefill-chunk", 4, "--memory", kilobytes(least + (most - least) * rung // 8))
            assert plan["total_bytes"] <= plan["ceiling_bytes"], plan
            assert plan["trunk_pinned_bytes"] >= pinned - NOISE // 2, (name, rung, pinned, plan)
            pinned = plan["trunk_pinned_bytes"]
        # And by its parts.
        trunk, cache = resident["trunk_bytes"], resident["experts_bytes"]
        tight = least_cache(*arguments)
        streamed = []
        for share in (0, 0.1, 0.25, 0.5, 0.75, 0.9, 2):
            plan = same("--trunk-gb", gigabytes(int(trunk * share)), "--cache-gb",
                        gigabytes(max(tight, int(cache * share))), "--trunk-ring", 1)
            streamed.append(plan["trunk_streamed_bytes_per_token"])
            if share < 1:
                assert plan["trunk_pinned_bytes"] <= int(trunk * share) and plan["trunk_ring_bytes"] > 0, plan
        assert streamed[0] == trunk and streamed[-1] == 0 and sorted(streamed, reverse=True) == streamed, streamed
        # Everything with everything at the tightest: for B all of it, for the others a sample.
        streaming = ("--trunk-gb", "0", "--cache-gb", gigabytes(tight))
        every = [row for row in itertools.product(POLICIES, there, (1, 2, 16), (1, 7, 64), (1, 2), (
            (), ("--no-prefetch",), ("--no-hugepages",)))]
        chosen = random.Random(len(name)).sample(every, 72 if name == "B" else 24)
        for policy, reader, ring, chunk, threads, extra in chosen:
            plan = same(*streaming, "--cache-policy", policy, "--reader", reader, "--trunk-ring", ring,
                        "--prefill-chunk", chunk, "--threads", threads, *extra)
            assert plan["trunk_streamed_bytes_per_token"] == trunk and plan["expert_slots"] < plan["experts"], plan
        for chunk in (7, 64):
            same(*streaming, "--recompute", "--prefill-chunk", chunk)
    print(f"         {count} runs")


# ------------------------------------------------------------------------------------------------------------- refusals


def a_budget_that_is_too_small_names_one_that_works():
    model = small()
    base = [model, "--ids", "5,6,7,8", "--gen", 4]
    want = good(*base).result["logits_digest"]
    for extra in ([], ["--prefill-chunk", 64], ["--trunk-ring", 3], ["--trunk-gb", "0.02"], ["--cache-gb", "0.004"],
                  ["--trunk-gb", "0.01", "--cache-gb", "0.002", "--trunk-ring", 2]):
        err = refused(["positions need", "there are 30 MB", "as asked for"], *base, *extra, "--memory", "30M")
        need = int(re.search(r"need (\d+) MB", err)[1]) * 10**6
        named = re.search(r"(?:allow at least|or allow) (?:--memory )?([0-9.]+[KMG]?)", err)
        assert named, err
        assert need > 30_000_000, err
        fit = named[1] if named[1][-1] in "KMG" else kilobytes(int(named[1]) + NOISE)
        run = good(*base, *extra, "--memory", fit)
        assert run.result["logits_digest"] == want
        # It is the nearest: two MB less do not do.
        refused(["need"], *base, *extra, "--memory", kilobytes(need - 3 * NOISE))
    # Fewer positions may fit where these do not.
    least = least_memory(model, "--ids", "5", "--gen", 100)
    err = refused(["100000 positions need", "positions fit", "--gen"], model, "--ids", "5", "--gen", 100000, "--memory",
                  kilobytes(least + 2 * NOISE))
    fit = int(re.search(r"at most (\d+) positions fit", err)[1])
    assert 100 <= fit < 100000, err
    # A ceiling above what there is stops nobody who stays below both.
    good(*base, "--memory", "500T")


def a_cache_below_what_a_token_needs_names_one_that_works():
    model = small()
    base = [model, "--ids", "5,6,7,8", "--gen", 4]
    want = good(*base).result["logits_digest"]
    err = refused(["slots of", "a token needs 5"], *base, "--cache-gb", "0.0002")
    named = int(re.search(r"at least (\d+) bytes", err)[1])
    run = good(*base, "--cache-gb", gigabytes(named))
    assert run.result["plan"]["expert_slots"] == 5 and run.result["logits_digest"] == want
    refused(["a token needs 5"], *base, "--cache-gb", f"{(named - 100) / 1e9:.9f}")
    refused(["a token needs 5"], *base, "--cache-gb", "0")


def options_that_contradict_each_other():
    base = [DEMO, "--ids", 5, "--gen", 1]
    refused(["--memory 100M is less than its parts", "90.00 MB of trunk", "50.00 MB of expert cache", "raise --memory"],
            *base, "--memory", "100M", "--trunk-gb", "0.09", "--cache-gb", "0.05")
    refused(["--memory 4G", "--memory"], *base, "--memory", "4G", "--preset", "desktop")
    refused(["--cache-policy", "fifo", "lru, lfru or s3fifo"], *base, "--cache-policy", "fifo")
    refused(["--reader", "mmap", "uring, threads or buffered"], *base, "--reader", "mmap")
    refused(["--trunk-ring", "1 to 64"], *base, "--trunk-ring", 65)
    run = Run(*base, "--trunk", "/no/such")
    assert run.code in (1, 2) and run.out == b"" and "/no/such" in run.err and ";" in run.err, (run.code, run.err)


# --------------------------------------------------------------------------------------------------- within the budget


def rungs(model, arguments):
    resident = good(model, *arguments)
    least = least_memory(model, *arguments)
    most = resident.result["plan"]["total_bytes"]
    steps = [least + NOISE] + [int(least + (most - least) * share) for share in (0.05, 0.15, 0.35, 0.6, 0.85)]
    return resident, [*steps, most + 4 * NOISE]


def peak_rss_is_within_memory_at_every_rung():
    if sanitized():
        raise Skip("a sanitizer's own memory is in the count")
    model, arguments = middle(), ["--ids", "5,6,7,8,9,10,11", "--gen", 4, "--ignore-eos"]
    resident, ladder = rungs(model, arguments)
    assert resident.result["plan"]["trunk_streamed_bytes_per_token"] == 0
    want, streamed = resident.result["logits_digest"], []
    for number, memory in enumerate(ladder):
        for reader in (["threads"], ["buffered"]) if number < 2 else ([],):
            options = ["--memory", kilobytes(memory), *(["--reader", *reader] if reader else [])]
            run = good(model, *arguments, *options)
            plan = run.result["plan"]
            limit = -(-memory // 1000) * 1000
            assert plan["ceiling_bytes"] == limit and plan["total_bytes"] <= limit, plan
            assert run.rss <= limit, f"{run.rss} bytes resident, --memory {limit}: {plan}"
            assert abs(run.rss - run.result["peak_rss_bytes"]) < 8 << 20, (run.rss, run.result["peak_rss_bytes"])
            assert run.result["logits_digest"] == want, (options, run.result["logits_digest"])
        streamed.append(plan["trunk_streamed_bytes_per_token"])
    assert streamed == sorted(streamed, reverse=True) and streamed[-1] == 0, streamed
    assert streamed[0] > 0.95 * plan["trunk_bytes"], streamed


def the_kernel_holds_it_to_memory_and_it_survives():
    if sanitized():
        raise Skip("a sanitizer's own memory is in the count")
    model, arguments = middle(), ["--ids", "5,6,7,8,9,10,11", "--gen", 4, "--ignore-eos"]
    try:
        MemoryCgroup(1 << 30).close()
    except Unavailable as reason:
        raise Skip(str(reason)) from None
    resident, ladder = rungs(model, arguments)
    for memory in ladder:
        limit = -(-memory // 1000) * 1000
        with MemoryCgroup(limit) as group:
            run = Run(model, *arguments, "--quiet", "--memory", kilobytes(memory), group=group)
            assert run.code == 0, (limit, run.code, run.err, "killed by the kernel" if group.kills() else "")
            assert run.result["logits_digest"] == resident.result["logits_digest"], limit
    # Without --memory the limit is found, and kept.
    with MemoryCgroup(300 << 20) as group:
        run = Run(model, *arguments, "--quiet", group=group)
        assert run.code == 0, (run.code, run.err)
        assert "cgroup" in run.result["plan"]["limited_by"], run.result["plan"]
        assert run.result["logits_digest"] == resident.result["logits_digest"]
        assert 0 < run.result["plan"]["trunk_streamed_bytes_per_token"] < run.result["plan"]["trunk_bytes"]
    with MemoryCgroup(300 << 20) as group:
        run = Run(model, *arguments, "--memory", "400M", group=group)
        assert run.code == 2 and "a ceiling of 400 MB is more than the" in run.err and "cgroup" in run.err, (run.code, run.err)
        named = int(re.search(r"ask for at most --memory (\d+)M", run.err)[1]) * 10**6
        run = Run(model, *arguments, "--quiet", "--memory", kilobytes(named), group=group)
        assert run.code == 0, (named, run.code, run.err)
    with MemoryCgroup(40 << 20) as group:
        run = Run(model, *arguments, group=group)
        assert run.code == 2 and "positions need" in run.err and "cgroup" in run.err, (run.code, run.err)


# ---------------------------------------------------------------------------------------------------------------- bytes


def every_byte_that_moves_is_in_the_plan():
    model = middle()
    arguments = ["--ids", "5,6,7,8,9", "--gen", 8, "--ignore-eos"]
    least = least_memory(model, *arguments)
    for options in (["--memory", kilobytes(least + NOISE)], ["--memory", "300M"],
                    ["--trunk-gb", "0.2", "--cache-gb", "0.05"], ["--memory", "300M", "--no-prefetch"],
                    ["--trunk-gb", "0.2", "--cache-policy", "lfru"],
                    ["--trunk-gb", "0.2", "--reader", "threads"]):
        run = good(model, *arguments, *options)
        result, plan = run.result, run.result["plan"]
        config, misses = result["config"], result["experts"]["misses"]
        expert = 3 * config["moe_intermediate_size"] * config["routed_expert_hidden_size"] * 17 // 32
        row = config["hidden_size"] * 2
        assert plan["trunk_streamed_bytes_per_token"] > 0, options
        assert sum(step["misses"] for step in result["steps"]) == misses
        assert result["expert_bytes_read"] == misses * expert
        for step in result["steps"][1:]:
            needed = plan["trunk_streamed_bytes_per_token"] + step["misses"] * expert + row
            assert needed <= step["bytes_read"] <= 1.01 * needed, (options, step, needed)
        # What the device moved: whole blocks, and what stays, once.
        needed = result["trunk_bytes_read"] + result["expert_bytes_read"]
        assert needed <= result["reader"]["bytes"] <= 1.01 * needed, (options, needed, result["reader"])
        if result["reader"]["direct"]:  # the kernel's count; headers come from the page cache or not
            assert run.disk_bytes <= 1.01 * result["reader"]["bytes"] + (16 << 20), (run.disk_bytes, result["reader"])
        # What stays was read once, the rest in each pass; lm_head in the passes that end in a token.
        steps, streamed = len(result["steps"]), plan["trunk_streamed_bytes_per_token"]
        passes = -(-5 // plan["prefill_chunk"]) + steps - 1
        head = result["lm_head_bytes_read"] // steps
        want = plan["trunk_bytes"] - streamed + passes * streamed - (passes - steps) * head
        assert result["trunk_bytes_read"] == want, (options, result["trunk_bytes_read"], want)


# --------------------------------------------------------------------------------------------------- faults of the disk


_shim = []


def shim():
    if not _shim:
        path, source = os.path.join(HOME, "faulty_pread.so"), os.path.join(TESTS, "drivers/faulty_pread.c")
        compiler = os.environ.get("CC", "cc").split()
        if shutil.which(compiler[0]) is None:
            raise Skip(f"there is no C compiler {compiler[0]}")
        code, _, err = support.run(*compiler, "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", path, source)
        assert code == 0, err
        _shim.append(path)
    return _shim[0]


def faults(**settings):
    """The environment of a run whose disk fails like that."""
    env = {key: str(value) for key, value in settings.items()}
    return dict(env, LD_PRELOAD=shim(), ASAN_OPTIONS="verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", ""))


PROMPT = list(range(5, 17))
GEN = 12


def streamed(model):
    """Options of a run that reads everything anew for each token, through pread."""
    cache = least_cache(model, "--ids", 5)
    return [model, "--ids", comma(PROMPT), "--reader", "threads", "--trunk-gb", "0", "--trunk-ring", 1, "--cache-gb",
            gigabytes(cache), "--prefill-chunk", 4, "--ignore-eos"]


def log_lines(path):
    with open(path) as file:
        return [line.split() for line in file]


def range_of(model, wanted):
    """(shard, first byte, end) in its file of all the tensors of one shard whose names match."""
    for shard in sorted(os.listdir(model)):
        if not shard.endswith(".safetensors"):
            continue
        entries, start, _ = support.read_header(os.path.join(model, shard))
        hits = [(start + begin, start + end) for name, _, _, begin, end in entries if re.search(wanted, name)]
        if hits:
            return shard, min(hits)[0], max(end for _, end in hits)
    raise AssertionError(f"no tensor is like {wanted}")


def tensor_at(model, shard, offset):
    entries, start, _ = support.read_header(os.path.join(model, shard))
    return [name for name, _, _, begin, end in entries if start + begin - 4096 < offset < start + end + 4096]


def a_slow_or_stuttering_disk_changes_nothing():
    model = small()
    base = streamed(model) + ["--gen", 4]
    want = good(model, "--ids", comma(PROMPT), "--gen", 4, "--ignore-eos").result["logits_digest"]
    for number, settings in enumerate((dict(FAULT="short", FAULT_EVERY=3), dict(FAULT="half"),
                                       dict(FAULT="half", FAULT_EVERY=2), dict(FAULT="eintr", FAULT_EVERY=2),
                                       dict(FAULT="eintr", FAULT_COUNT=50),
                                       dict(FAULT_USEC=2000), dict(FAULT="half", FAULT_EVERY=5, FAULT_USEC=500))):
        for reader in ("threads", "buffered"):
            log = os.path.join(HOME, f"log{number}{reader}")
            run = good(*base, "--reader", reader, env=faults(FAULT_LOG=log, **settings))
            done = [line for line in log_lines(log) if line[2] != "-"]
            assert done or "FAULT" not in settings, "the shim did nothing"
            assert run.result["logits_digest"] == want, settings
            if "FAULT" in settings:
                assert run.result["reader"]["retries"] > 0, settings


def kept(run, code, clean):
    """The run failed with `code` in its middle: what it printed and kept is a clean run's beginning, and sound."""
    assert run.code == code, (run.code, run.err)
    assert run.result is not None, run.err
    ids = run.result["generated_ids"]
    assert 0 < len(ids) < GEN, ids
    assert ids == clean.result["generated_ids"][:len(ids)] and run.result["sound_ids"] == len(ids)
    assert len(run.result["steps"]) == len(ids) and run.result["exit_code"] == code
    assert run.result["text"].encode() == run.out and clean.out.startswith(run.out.rstrip(b"\xef\xbf\xbd")), run.out
    model = run.result["model"]
    want = good(model, "--ids", comma(PROMPT), "--gen", len(ids), "--ignore-eos").result["logits_digest"]
    assert run.result["logits_digest"] == want
    assert run.err.startswith("k3: ") and run.err.count("\n") == 1 and run.path in run.err, run.err
    return ids


def middle_of(model, base, place):
    """How many reads of those bytes a clean run makes until it is well within decode. Prefill is 3 passes of 14."""
    log = os.path.join(HOME, "clean.log")
    if os.path.exists(log):
        os.remove(log)
    shard, begin, end = place
    good(*base, env=faults(FAULT_LOG=log, FAULT_FILE=shard, FAULT_BEGIN=begin, FAULT_END=end))
    count = len(log_lines(log))
    assert count >= 12, count
    return count * 2 // 3


def an_unreadable_panel_ends_the_run_with_what_it_has():
    model = small()
    base = streamed(model) + ["--gen", GEN, "--quiet"]
    clean = good(model, "--ids", comma(PROMPT), "--gen", GEN, "--ignore-eos")
    for wanted in (r"layers\.3\.self_attn\.q_b?_?proj\.weight", r"lm_head", r"layers\.1\..*shared_experts\.up_proj"):
        place = shard, begin, end = range_of(model, wanted)
        skip = middle_of(model, base, (shard, begin + 8192, end - 8192))
        for extra in ([], ["--no-prefetch"], ["--trunk-ring", 16]):
            run = Run(*base, *extra, env=faults(FAULT="eio", FAULT_FILE=shard, FAULT_BEGIN=begin + 8192,
                                                FAULT_END=end - 8192, FAULT_SKIP=skip))
            kept(run, 1, clean)
            assert shard in run.err and "Input/output error" in run.err, run.err
            offset = int(re.search(r"offset (\d+)", run.err)[1])
            assert begin - 4096 <= offset < end, (offset, place, run.err)
    # Before the first id: nothing is kept, and the code is the same.
    shard, begin, end = range_of(model, r"layers\.2\..*o_proj")
    run = Run(*base, env=faults(FAULT="eio", FAULT_FILE=shard, FAULT_BEGIN=begin + 8192, FAULT_END=end - 8192))
    assert run.code == 1 and run.out == b"" and shard in run.err and "offset" in run.err, (run.code, run.err)
    # And while loading what stays.
    run = Run(model, "--ids", 5, "--reader", "threads",
              env=faults(FAULT="eio", FAULT_FILE=shard, FAULT_BEGIN=begin + 8192, FAULT_END=end - 8192))
    assert run.code == 1 and run.out == b"" and shard in run.err and "offset" in run.err, (run.code, run.err)


def an_unreadable_expert_ends_the_run_with_what_it_has():
    model = small()
    base = streamed(model) + ["--gen", GEN, "--quiet"]
    clean = good(model, "--ids", comma(PROMPT), "--gen", GEN, "--ignore-eos")
    for layer in (1, 4):
        shard, begin, end = place = range_of(model, rf"layers\.{layer}\..*\.experts\.\d+\.")
        skip = middle_of(model, base, place)
        for extra in ([], ["--threads", 1, "--cache-policy", "s3fifo"], ["--no-prefetch"]):
            run = Run(*base, *extra, env=faults(FAULT="eio", FAULT_FILE=shard, FAULT_BEGIN=begin + 4096, FAULT_END=end,
                                                FAULT_SKIP=skip))
            kept(run, 4, clean)
            assert shard in run.err and "Input/output error" in run.err, run.err
            expert = re.search(r"expert (\d+) of layer (\d+)", run.err)
            offset = int(re.search(r"offset (\d+)", run.err)[1])
            assert int(expert[2]) == layer, run.err
            there = tensor_at(model, shard, offset)
            assert any(f".{layer}.block_sparse_moe.experts.{expert[1]}." in name for name in there), (run.err, there)
    # In the prompt: nothing is kept, and the code is the expert's.
    run = Run(*base, env=faults(FAULT="eio", FAULT_FILE=shard, FAULT_BEGIN=begin + 4096, FAULT_END=end))
    assert run.code == 4 and run.out == b"" and "expert" in run.err and shard in run.err, (run.code, run.err)
    assert run.result is None or run.result["generated_ids"] == []
    # One bad read of many does not pass unnoticed either.
    run = Run(*base, env=faults(FAULT="eio", FAULT_FILE=shard, FAULT_BEGIN=begin + 4096, FAULT_END=end, FAULT_SKIP=skip,
                                FAULT_COUNT=1))
    kept(run, 4, clean)


class Started:
    """A run under way."""

    def __init__(self, *arguments, env):
        self.path = os.path.join(HOME, "started.json")
        if os.path.exists(self.path):
            os.remove(self.path)
        self.child = subprocess.Popen([K3, *map(str, arguments), "--out", self.path], stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(ENV, **env), bufsize=0,
                                      preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        self.out = self.seen = b""

    def until_token(self):
        self.out += self.child.stdout.read(1)
        assert self.out, self.child.stderr.read()

    def until_reading(self):
        """The last line before the first step."""
        while b"\ndisk " not in self.seen or not self.seen.endswith(b"\n"):
            piece = self.child.stderr.read(1)
            assert piece, self.seen
            self.seen += piece
        time.sleep(0.1)  # to where it catches signals

    def end(self):
        out, err = self.child.communicate()
        self.code, self.out = self.child.returncode, self.out + out
        self.err = (self.seen + err).decode("utf-8", "replace")
        self.result = None
        if os.path.exists(self.path):
            with open(self.path, "rb") as file:
                self.result = json.loads(file.read().decode("utf-8"))
        return self


def a_shard_that_is_cut_under_a_running_program():
    source = small()
    clean = good(source, "--ids", comma(PROMPT), "--gen", GEN, "--ignore-eos")
    # Behind the cut: matrices of the trunk only; experts only.
    for wanted, code in ((r"layers\.0\.mlp\.", 1), (r"layers\.3\..*\.experts\.\d+\.", 4)):
        model = os.path.join(HOME, "cut")
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(source, model)
        shard, begin, end = range_of(model, wanted)
        run = Started(*streamed(model), "--gen", GEN, "--quiet", env=faults(FAULT_USEC=4000))
        run.until_token()
        cut = (begin + (end - begin) // 64) if code == 4 else begin + (end - begin) // 2
        os.truncate(os.path.join(model, shard), cut)
        run.end()
        kept(run_of(run, source), code, clean)
        assert shard in run.err and "ended early" in run.err, run.err
        offset = int(re.search(r"offset (\d+)", run.err)[1])
        assert cut - 4096 <= offset < os.path.getsize(os.path.join(source, shard)), (cut, offset, run.err)


def run_of(run, model):
    """The same, as a run of the sound model it was made from."""
    run.result["model"] = model
    return run


def an_interrupt_while_streaming():
    model = small()
    base = streamed(model) + ["--gen", GEN]
    clean = good(model, "--ids", comma(PROMPT), "--gen", GEN, "--ignore-eos")
    # In the prompt: the pass under way is given up at the next layer.
    run = Started(*base, env=faults(FAULT_USEC=20000))
    run.until_reading()
    start = time.monotonic()
    run.child.send_signal(signal.SIGINT)
    run.end()
    assert run.code == 5 and run.out == b"", (run.code, run.err)
    assert run.result["interrupted"] is True and run.result["generated_ids"] == []
    assert run.result["logits_digest"] == BASIS
    assert "k3: interrupted" in run.err.splitlines()[-1], run.err
    # In the text: the token under way is completed.
    run = Started(*base, "--quiet", env=faults(FAULT_USEC=4000))
    run.until_token()
    run.child.send_signal(signal.SIGINT)
    run.end()
    assert run.result["interrupted"] is True
    kept(run, 5, clean)
    assert time.monotonic() - start < 120


try:
    support.main([one_digest_at_every_setting, a_budget_that_is_too_small_names_one_that_works,
                  a_cache_below_what_a_token_needs_names_one_that_works, options_that_contradict_each_other,
                  peak_rss_is_within_memory_at_every_rung, the_kernel_holds_it_to_memory_and_it_survives,
                  every_byte_that_moves_is_in_the_plan, a_slow_or_stuttering_disk_changes_nothing,
                  an_unreadable_panel_ends_the_run_with_what_it_has, an_unreadable_expert_ends_the_run_with_what_it_has,
                  a_shard_that_is_cut_under_a_running_program, an_interrupt_while_streaming])
finally:
    shutil.rmtree(HOME, ignore_errors=True)
