#!/usr/bin/env python3
"""k3-trace from outside.  usage: test_trace.py PATH/k3-trace

The traces are written here, and LRU and Belady's rule are written once more, on lists."""
import json
import os
import random
import shutil
import struct
import sys
import tempfile
import xml.etree.ElementTree

import support
from support import refused, run

TRACE = sys.argv[1]
HOME = tempfile.mkdtemp(prefix="k3-trace-test-")
LAYERS, EXPERTS, TOP_K, BYTES = 4, 12, 2, 1000000


def steps(seed=1):
    """(mode, tokens, [(layer, experts requested)]); layer 0 is dense."""
    rng = random.Random(seed)
    draw = lambda: rng.sample(range(4), 1) + rng.sample(range(4, EXPERTS), 1)
    shape = [("prefill", 9)] + [("decode", 1)] * 60
    return [(mode, tokens, [(layer, sum((draw() for _ in range(tokens)), [])) for layer in range(1, LAYERS)])
            for mode, tokens in shape]


def lru(trace, slots):
    """Counters by mode of a plain LRU: a batch's resident experts first, then its missing ones."""
    order, totals = [], {}
    for mode, _, batches in trace:
        c = totals.setdefault(mode, dict.fromkeys(
            ["requests", "resident_hits", "prefetched_hits", "lookahead_hits", "misses", "evictions", "lookahead_loads",
             "lookahead_wasted", "drops"], 0))
        for layer, ids in batches:
            keys = [(layer, e) for e in ids]
            distinct = list(dict.fromkeys(keys))
            there = [key for key in distinct if key in order]
            c["requests"] += len(keys)
            c["resident_hits"] += sum(key in order for key in keys)
            c["misses"] += len(distinct) - len(there)
            c["prefetched_hits"] += sum(key not in order for key in keys) - (len(distinct) - len(there))
            for key in there + [key for key in distinct if key not in there]:
                if key in order:
                    order.remove(key)
                elif len(order) == slots:
                    order.pop(0)
                    c["evictions"] += 1
                order.append(key)
    return totals


def write(name, trace, slots=7, **changes):
    folder = os.path.join(HOME, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder)
    pairs = [(layer, e) for _, _, batches in trace for layer, ids in batches for e in ids]
    with open(os.path.join(folder, "expert_trace.bin"), "wb") as file:
        file.write(b"".join(struct.pack("<ii", *pair) for pair in pairs))
    open(os.path.join(folder, "expert_lookahead.bin"), "wb").close()
    counts = {}
    for layer, e in pairs:
        counts[f"{layer},{e}"] = counts.get(f"{layer},{e}", 0) + 1
    with open(os.path.join(folder, "expert_hist.json"), "w") as file:
        json.dump({"n_layers": LAYERS, "n_experts": EXPERTS, "counts": counts}, file)
    totals = lru(trace, slots)
    sidecar = {
        "version": 1, "layers": LAYERS, "experts": EXPERTS, "top_k": TOP_K, "expert_bytes": BYTES, "truncated": False,
        "run": {"slots": slots, "policy": "lru",
                "counters": {key: sum(c[key] for c in totals.values()) for key in totals["decode"]}},
        "steps": [{"mode": mode, "tokens": tokens, "batches": len(batches), "requests": sum(len(i) for _, i in batches)}
                  for mode, tokens, batches in trace]}
    sidecar.update(changes)
    with open(os.path.join(folder, "expert_trace.json"), "w") as file:
        json.dump(sidecar, file)
    return folder


def lines(name="lines.jsonl", text=None):
    path = os.path.join(HOME, name)
    with open(path, "w") as file:
        if text is not None:
            file.write(text)
        else:
            for _, _, batches in steps():
                if len(batches[0][1]) == TOP_K:
                    file.write(json.dumps({"layers": [ids for _, ids in batches]}) + "\n")
    return path


def good(*arguments):
    code, out, err = run(TRACE, *arguments)
    assert code == 0, err
    return out.decode(), err


def rows_of(*arguments):
    report = json.loads(good(*arguments, "--json")[0])
    return report, {(row["slots"], row["policy"], row["mode"]): row for row in report["rows"]}


def the_check_passes_on_a_true_run_and_fails_on_any_other():
    out, _ = good(write("run", steps()), "--check")
    assert "every counter is the same" in out and "7 slots, lru" in out, out
    report = json.loads(good(os.path.join(HOME, "run"), "--check", "--json")[0])
    assert report["same"] is True and report["run"] == report["replay"] and report["run"]["requests"] == 414
    with open(os.path.join(HOME, "run", "expert_trace.json")) as file:
        true = json.load(file)["run"]
    for counter in true["counters"]:
        if counter == "drops":
            continue
        counters = dict(true["counters"], **{counter: true["counters"][counter] + 1})
        code, out, _ = run(TRACE, write("wrong", steps(), run=dict(true, counters=counters)), "--check")
        assert code == 1, counter
        different = [line for line in out.decode().splitlines() if "DIFFERENT" in line]
        assert len(different) == 1 and different[0].split()[0] == counter, out
    assert run(TRACE, write("wrong", steps(), run=dict(true, slots=8)), "--check")[0] == 1
    assert run(TRACE, write("wrong", steps(), run=dict(true, policy="s3fifo")), "--check")[0] == 1
    refused(run(TRACE, write("wrong", steps(), truncated=True), "--check"), 2, "limit")
    dropped = dict(true, counters=dict(true["counters"], drops=1))
    refused(run(TRACE, write("wrong", steps(), run=dropped), "--check"), 2, "failed to load")
    refused(run(TRACE, lines(), "--check"), 2, "what run")
    refused(run(TRACE, os.path.join(HOME, "run"), "--check", "--capacity", 9), 2, "--check")


def lru_counts_what_lru_on_lists_counts():
    folder = write("run", steps())
    report, rows = rows_of(folder, "--capacity", "3,5,9,20,36", "--policy", "lru")
    assert {row["policy"] for row in report["rows"]} == {"lru", "belady", "compulsory"}
    for slots in (3, 5, 9, 20, 36):
        for mode, counters in lru(steps(), slots).items():
            row = rows[slots, "lru", mode]
            assert row["counters"] == counters, (slots, mode, row["counters"], counters)
            assert row["loads"] == counters["misses"]
            assert abs(row["hit_rate"] - (1 - counters["misses"] / counters["requests"])) < 1e-12
            tokens = 9 if mode == "prefill" else 60
            assert abs(row["loads_per_token"] - row["loads"] / tokens) < 1e-9
            assert abs(row["bytes_per_token"] - row["loads"] * BYTES / tokens) < 1e-3


def the_bounds_bound():
    report, rows = rows_of(write("run", steps()))
    distinct = len({(layer, e) for _, _, batches in steps() for layer, ids in batches for e in ids})
    assert report["distinct_experts"] == distinct
    compulsory = sum(row["loads"] for row in report["rows"] if row["policy"] == "compulsory")
    assert compulsory == distinct
    slots = sorted({key[0] for key in rows if key[1] == "belady"})
    assert 7 in slots, "the run's own capacity is in the table"
    total = lambda s, policy: sum(rows[s, policy, mode]["loads"] for mode in ("prefill", "decode"))
    for s in slots:
        for policy in ("lru", "lfru", "s3fifo"):
            assert compulsory <= total(s, "belady") <= total(s, policy), (s, policy)
    assert total(slots[0], "belady") > compulsory


def capacities_are_slots_sizes_or_shares():
    folder = write("run", steps())
    slots = lambda text, *more: sorted({row["slots"] for row in rows_of(folder, "--capacity", text, *more)[0]["rows"]
                                        if row["policy"] != "compulsory"})
    assert slots("5") == [5]
    assert slots("9,5,9") == [5, 9]
    assert slots("8M,10MB") == [8, 10]
    assert slots("8M", "--expert-bytes", 2000000) == [4]
    assert slots("25%") == [9]       # of 3 layers with requests
    assert slots("100%,5000") == [36]  # more slots than experts are not used
    refused(run(TRACE, folder, "--capacity", "2"), 2, "2 slots", "at least top_k + 1 = 3")
    refused(run(TRACE, folder, "--capacity", "1M"), 2, "1 slots")
    refused(run(TRACE, folder, "--capacity", "5x"), 2, "'5x'")
    refused(run(TRACE, folder, "--capacity", "5,,9"), 2, "''")
    refused(run(TRACE, folder, "--capacity", "0%"), 2, "'0'")
    refused(run(TRACE, lines(), "--capacity", "8G"), 2, "--expert-bytes")
    refused(run(TRACE, lines(), "--disk", "5"), 2, "--expert-bytes")


def the_table_says_gigabytes_and_seconds():
    out, _ = good(write("run", steps()), "--capacity", 9, "--policy", "lru", "--disk", 0.002)
    line = next(line for line in out.splitlines() if " lru " in line and "decode" in line).split()
    loads = lru(steps(), 9)["decode"]["misses"]
    assert line[0] == "9" and line[1:3] == ["9.00", "MB"], line
    assert int(line[6]) == loads
    assert abs(float(line[-2]) - loads / 60 / 1000) < 1e-6 and abs(float(line[-1]) - loads / 60 / 2) < 1e-3, line
    report, rows = rows_of(os.path.join(HOME, "run"), "--capacity", 9, "--disk", 0.002)
    assert abs(rows[9, "lru", "decode"]["seconds_per_token"] - loads / 60 / 2) < 1e-9
    for wrong in ("0", "-1", "5x", "nan", "inf"):
        refused(run(TRACE, os.path.join(HOME, "run"), "--disk=" + wrong), 2, "--disk")


def json_lines_and_bare_traces_are_read():
    report, _ = rows_of(lines(), "--experts", EXPERTS)
    assert report["decode"] == {"steps": 60, "tokens": 60, "requests": 360} and report["experts"] == EXPERTS
    decode = [step for step in steps() if step[0] == "decode"]
    bare = write("bare", decode)
    _, whole = rows_of(bare, "--capacity", "5,9")
    os.remove(os.path.join(bare, "expert_trace.json"))
    os.remove(os.path.join(bare, "expert_lookahead.bin"))
    refused(run(TRACE, bare), 2, "--top-k")
    _, found = rows_of(bare, "--top-k", TOP_K, "--capacity", "5,9", "--expert-bytes", BYTES)
    assert found == whole


def look_aheads_are_replayed_or_left_out():
    trace = steps()
    folder = write("ahead", trace)
    with open(os.path.join(folder, "expert_trace.json")) as file:
        sidecar = json.load(file)
    with open(os.path.join(folder, "expert_lookahead.bin"), "wb") as file:
        for row, (_, _, batches) in zip(sidecar["steps"], trace):
            row["lookaheads"] = [1] * (len(batches) - 1) + [0]
            for layer, ids in batches[1:]:
                file.write(struct.pack("<ii", layer, ids[0]))  # a look-ahead that is always right
    with open(os.path.join(folder, "expert_trace.json"), "w") as file:
        json.dump(sidecar, file)
    _, with_them = rows_of(folder, "--capacity", 9)
    _, without = rows_of(folder, "--capacity", 9, "--no-lookahead")
    key = 9, "lru", "decode"
    assert with_them[key]["counters"]["lookahead_hits"] > 0 == with_them[key]["counters"]["lookahead_wasted"]
    assert without[key]["counters"] == lru(trace, 9)["decode"]
    assert with_them[key]["hit_rate"] > without[key]["hit_rate"]


def damage_is_one_line():
    folder = write("damaged", steps())
    os.truncate(os.path.join(folder, "expert_trace.bin"), 101)
    refused(run(TRACE, folder), 1, "offset 96")
    refused(run(TRACE, os.path.join(folder, "expert_trace.bin")), 2, "folder")
    refused(run(TRACE, os.path.join(HOME, "nowhere")), 1, "nowhere")
    refused(run(TRACE, lines("bad.jsonl", '{"layers": [[0, 1]]}\n{"layers": [[0, 1')), 1, "offset 21")
    refused(run(TRACE), 2)
    refused(run(TRACE, folder, "--policy", "arc"), 2, "'arc'")
    refused(run(TRACE, folder, "--expert-bytes", "5k"), 2, "--expert-bytes")


def the_chart_is_an_svg_with_a_line_for_each_policy():
    path = os.path.join(HOME, "chart.svg")
    good(write("run", steps()), "--chart", path)
    root = xml.etree.ElementTree.parse(path).getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for word in ("lru", "lfru", "s3fifo", "belady", "compulsory", "0 %", "100 %"):
        assert texts.count(word) == 2, (word, texts)  # prefill and decode
    width, height = float(root.get("width")), float(root.get("height"))
    for circle in root.iter("{http://www.w3.org/2000/svg}circle"):
        assert 0 < float(circle.get("cx")) < width and 0 < float(circle.get("cy")) < height
    refused(run(TRACE, os.path.join(HOME, "run"), "--chart", os.path.join(HOME, "no", "chart.svg")), 3, "chart.svg")


def full_standard_output_is_not_success():
    with open("/dev/full", "wb") as full:
        code = support.subprocess.run([TRACE, write("run", steps())], stdout=full, stderr=support.subprocess.PIPE)
    assert code.returncode == 3, code


def help_has_an_example_and_the_exit_codes():
    out, _ = good("--help")
    for word in ("Example:", "Exit codes:", "--capacity", "--check"):
        assert word in out
    assert good("--version")[0].startswith("k3-trace ")


try:
    support.main([
        the_check_passes_on_a_true_run_and_fails_on_any_other,
        lru_counts_what_lru_on_lists_counts,
        the_bounds_bound,
        capacities_are_slots_sizes_or_shares,
        the_table_says_gigabytes_and_seconds,
        json_lines_and_bare_traces_are_read,
        look_aheads_are_replayed_or_left_out,
        damage_is_one_line,
        the_chart_is_an_svg_with_a_line_for_each_policy,
        full_standard_output_is_not_success,
        help_has_an_example_and_the_exit_codes,
    ])
finally:
    shutil.rmtree(HOME, ignore_errors=True)
