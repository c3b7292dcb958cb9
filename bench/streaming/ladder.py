#!/usr/bin/env python3
"""The memory ladder: one model, one prompt, less and less memory.  See --help."""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../tests/drivers"))

from disk_probe import DiskProbe  # noqa: E402
from memory_cgroup import MemoryCgroup, Unavailable  # noqa: E402

COLUMNS = [
    ("rung", "what was asked for"), ("memory", "--memory, or the plan's total without one; bytes"),
    ("pinned", "bytes of the trunk that stay"), ("ring", "bytes"), ("slots", "experts in memory at a time"),
    ("s_token", "seconds of a decode step, median over all runs; prefill and the step after it left out"),
    ("spread", "(largest - smallest median of a run) / median"),
    ("needed", "bytes a decode step needs from the disk: what streams of the trunk, missed experts, one embedding row"),
    ("moved", "bytes a decode step reads, as k3 counts them"),
    ("gb_s", "10^9 bytes a second of all that the reader moved, loading included, over the time with a read under way"),
    ("probe_gb_s", "of the disk probe beside it"), ("of_probe", "median ratio of the two, run by run"),
    ("step_of_probe", "needed bytes over s_token, over the probe: how much of the disk the whole step uses"),
    ("wait", "share of the decode time that stood still for the disk"),
    ("starved", "seconds without a read under way while some were wanted, share of the reading time"),
    ("depth", "reads under way, mean"),
    ("io_s", "needed over the probe: the least time the disk allows"), ("bound", "s_token over max(io_s, compute)"),
    ("rss", "peak resident bytes, the kernel's count"),
    ("capped", "held to its memory by a cgroup: yes, no, or - if not asked"),
    ("digest", "of the logits: must be one"),
]


def size(text):
    units = {"K": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
    for unit in sorted(units, key=len, reverse=True):
        if text.rstrip("B").endswith(unit):
            return int(float(text.rstrip("B")[:-len(unit)]) * units[unit])
    raise argparse.ArgumentTypeError(f"{text!r} is not a size like 8G or 512M")


def options():
    columns = "\n".join(f"  {name:14}{meaning}" for name, meaning in COLUMNS)
    parser = argparse.ArgumentParser(
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="""Runs k3 at a row of memory ceilings, each in a memory cgroup of that size, and with all that the
machine has. Runs of one rung alternate with a disk probe over the same shards that shares no code with
k3's reader. The resident run gives the time to compute. Exit code 1: two runs differ in their digest,
one was above its memory, or failed.""",
        epilog="columns of the table:\n" + columns + """

example:
  k3-synth --like-release --out /data/rel
  bench/streaming/ladder.py --k3 build/drivers/k3 --model /data/rel --rungs 2G,3G,4G,6G,8G,10G \\
      --tsv docs/data/ladder.tsv --svg docs/images/ladder.svg""")
    parser.add_argument("--k3", required=True, metavar="PATH", help="the program")
    parser.add_argument("--model", required=True, metavar="DIR", help="the checkpoint, on the disk to be measured")
    parser.add_argument("--rungs", default="2G,3G,4G,6G,8G,10G", help="values of --memory [%(default)s]")
    parser.add_argument("--splits", default="", metavar="M:T:C,...",
                        help="also these: --memory M with --trunk-gb T and --cache-gb C, as in 6G:4:1,6G:3:2 [none]; "
                             "auto for either leaves it to the plan")
    parser.add_argument("--no-resident", action="store_true",
                        help="leave the resident run out; without --compute, bound is then against the disk alone")
    parser.add_argument("--compute", type=float, metavar="S",
                        help="seconds a token of computing, from a resident run before; else it is measured")
    parser.add_argument("--ids", default="1,2,3,4,5,6,7,8", help="the prompt [%(default)s]")
    parser.add_argument("--gen", type=int, default=4, help="tokens; the first comes out of the prefill [%(default)s]")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each rung [%(default)s]")
    parser.add_argument("--probe-seconds", type=float, default=2, help="of each probe [%(default)s]")
    parser.add_argument("--probe-threads", type=int, default=24, help="[%(default)s]")
    parser.add_argument("--extra", default="", help="more options for k3, separated by spaces, as '--reader threads'")
    parser.add_argument("--tsv", metavar="FILE", help="write the table here")
    parser.add_argument("--svg", metavar="FILE", help="draw it here")
    chosen = parser.parse_args()
    if chosen.gen < 3:
        parser.error("--gen: less than 3 has no steady step")
    if chosen.repeat < 1:
        parser.error("--repeat: give 1 or more")
    return chosen


class Rung:
    def __init__(self, name, arguments, memory):
        self.name, self.arguments, self.memory = name, arguments, memory
        self.runs, self.rss, self.probes, self.faults = [], [], [], []
        self.capped = "-"

    def run(self, chosen, home, probe):
        self.probes.append(probe.measure(chosen.probe_seconds))
        out = os.path.join(home, "run.json")
        if os.path.exists(out):
            os.remove(out)
        command = [chosen.k3, chosen.model, "--ids", chosen.ids, "--gen", str(chosen.gen), "--ignore-eos", "--quiet",
                   "--out", out, *self.arguments, *chosen.extra.split()]
        group = None
        if self.memory:
            try:
                group = MemoryCgroup(self.memory)
                self.capped = "yes"
            except Unavailable as reason:
                self.capped = "no"
                print(f"ladder: {self.name} runs without a cap: {reason}", file=sys.stderr)
        child = None
        try:
            child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                     preexec_fn=group.enter if group else None)
            err = child.stderr.read().decode("utf-8", "replace").strip()
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            child.stderr.close()
        finally:
            if child and child.returncode is None:  # we are being interrupted
                child.kill()
                child.wait()
            if group:
                group.close()
        if child.returncode != 0:
            self.faults.append(f"exit code {child.returncode}: {err}")
            return
        with open(out, encoding="utf-8") as file:
            self.runs.append(json.load(file))
        self.rss.append(usage.ru_maxrss * 1024)
        if self.memory and self.rss[-1] > self.memory:
            self.faults.append(f"{self.rss[-1]} bytes resident, allowed {self.memory}")

    def row(self, compute):
        plan, config = self.runs[0]["plan"], self.runs[0]["config"]
        expert = 3 * config["moe_intermediate_size"] * config["routed_expert_hidden_size"] * 17 // 32
        steady = [run["steps"][2:] for run in self.runs]  # step 0 is the prefill, step 1 may still be warming up
        medians = [statistics.median(step["seconds"] for step in steps) for steps in steady]
        steps = [step for each in steady for step in each]
        seconds = statistics.median(step["seconds"] for step in steps)
        each = plan["trunk_streamed_bytes_per_token"] + config["hidden_size"] * 2
        needed = each + expert * statistics.mean(step["misses"] for step in steps)
        readers = [run["reader"] for run in self.runs]
        rates = [reader["bytes"] / reader["busy_seconds"] for reader in readers]
        probe = statistics.median(self.probes)
        io = needed / probe
        return {
            "rung": self.name, "memory": self.memory or plan["total_bytes"], "pinned": plan["trunk_pinned_bytes"],
            "ring": plan["trunk_ring_bytes"], "slots": plan["expert_slots"], "s_token": seconds,
            "spread": (max(medians) - min(medians)) / seconds, "needed": int(needed),
            "moved": int(statistics.mean(step["bytes_read"] for step in steps)), "gb_s": statistics.median(rates) / 1e9,
            "probe_gb_s": probe / 1e9,
            "of_probe": statistics.median(rate / beside for rate, beside in zip(rates, self.probes)),
            "step_of_probe": needed / seconds / probe,
            "wait": sum(step["wait_seconds"] for step in steps) / sum(step["seconds"] for step in steps),
            "starved": statistics.median(reader["starved_seconds"] / reader["busy_seconds"] for reader in readers),
            "depth": statistics.median(reader["mean_depth"] for reader in readers), "io_s": io,
            "bound": seconds / max(io, compute or 0), "rss": max(self.rss), "capped": self.capped,
            "digest": "/".join(sorted({run["logits_digest"] for run in self.runs})),
        }


def shown(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def rungs_of(chosen):
    rungs = [] if chosen.no_resident else [Rung("resident", [], None)]
    for word in filter(None, chosen.rungs.split(",")):
        rungs.append(Rung(word, ["--memory", word], size(word)))
    for word in filter(None, chosen.splits.split(",")):
        memory, trunk, cache = word.split(":")
        rungs.append(Rung(word, ["--memory", memory, "--trunk-gb", trunk, "--cache-gb", cache], size(memory)))
    return rungs


# -------------------------------------------------------------------------------------------------------------- picture


def picture(rows, compute, title):
    """Seconds a token over memory: measured, and what the disk and the arithmetic allow. White behind it: it is read on
    dark pages too."""
    width, height, left, right, top, bottom = 720, 360, 64, 24, 56, 52
    points = sorted((row for row in rows if ":" not in row["rung"]), key=lambda row: row["memory"])
    splits = [row for row in rows if ":" in row["rung"]]
    most_x = max(row["memory"] for row in rows) / 1e9 * 1.04
    most_y = max(max(row["s_token"], row["io_s"]) for row in rows) * 1.1
    x = lambda value: left + value / 1e9 / most_x * (width - left - right)  # noqa: E731
    y = lambda value: height - bottom - value / most_y * (height - top - bottom)  # noqa: E731
    body = []

    def text(at_x, at_y, words, anchor="middle", style="font-size=\"12\""):
        words = str(words).replace("&", "&amp;").replace("<", "&lt;")
        body.append(f'<text x="{at_x:.1f}" y="{at_y:.1f}" text-anchor="{anchor}" {style}>{words}</text>')

    def line(pairs, style):
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in pairs)
        body.append(f'<polyline points="{path}" fill="none" {style}/>')

    def dot(row, style):
        body.append(f'<circle cx="{x(row["memory"]):.1f}" cy="{y(row["s_token"]):.1f}" r="3.5" {style}/>')

    def ticks(most):
        step = 10 ** len(str(int(most))) / 10 if most >= 1 else 0.1
        step = next(step * f for f in (0.1, 0.2, 0.5, 1, 2, 5, 10) if most / (step * f) <= 8)
        return [n * step for n in range(int(most / step) + 1)]
    text(16, 24, title, "start", 'font-size="14"')
    for value in ticks(most_y):
        line([(left, y(value)), (width - right, y(value))], 'stroke="#ddd"')
        text(left - 6, y(value) + 4, f"{value:g}", "end", 'font-size="11"')
    for value in ticks(most_x):
        text(x(value * 1e9), height - bottom + 16, f"{value:g}", style='font-size="11"')
    text((left + width - right) / 2, height - 14, "memory, 10^9 bytes")
    text(left - 48, top - 14, "seconds a token", "start")
    line([(x(row["memory"]), y(row["io_s"])) for row in points], 'stroke="#b00" stroke-dasharray="5 3"')
    text(width - right, top + 4, "dashed red: what the disk allows", "end", 'font-size="11" fill="#b00"')
    if compute:
        line([(left, y(compute)), (width - right, y(compute))], 'stroke="#777" stroke-dasharray="2 3"')
        text(width - right, top + 20, "dotted: computing alone", "end", 'font-size="11" fill="#555"')
    line([(x(row["memory"]), y(row["s_token"])) for row in points], 'stroke="#08519c" stroke-width="2"')
    for row in points:
        dot(row, 'fill="#08519c"')
        text(x(row["memory"]), y(row["s_token"]) - 8, f"{row['s_token']:.3g}", style='font-size="11" fill="#08519c"')
    text(width - right, top + 36, "blue: measured" + (", open: other splits" if splits else ""), "end",
         'font-size="11" fill="#08519c"')
    for row in splits:
        dot(row, 'fill="none" stroke="#08519c"')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" fill="#222">\n<rect width="100%" height="100%" fill="#fff"/>\n' +
            "\n".join(body) + "\n</svg>\n")


def main():
    chosen = options()
    chosen.k3, chosen.model = os.path.abspath(chosen.k3), os.path.abspath(chosen.model)
    for path in filter(None, (chosen.tsv, chosen.svg)):
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            sys.exit(f"ladder: {path}: the folder {folder} does not exist")
    rungs, compute, rows, code = rungs_of(chosen), chosen.compute, [], 0
    probe = DiskProbe(chosen.model, chosen.probe_threads)
    home = tempfile.mkdtemp(prefix="k3-ladder-")
    print("\t".join(name for name, _ in COLUMNS), flush=True)
    try:
        for rung in rungs:
            for _ in range(chosen.repeat):
                rung.run(chosen, home, probe)
            for fault in rung.faults:
                print(f"ladder: {rung.name}: {fault}", file=sys.stderr)
                code = 1
            if not rung.runs:
                continue
            if rung.name == "resident" and not chosen.compute:
                steps = [step for run in rung.runs for step in run["steps"][2:]]
                compute = statistics.median(step["seconds"] - step["wait_seconds"] for step in steps)
            rows.append(rung.row(compute))
            print("\t".join(shown(rows[-1][name]) for name, _ in COLUMNS), flush=True)
    finally:
        probe.close()
        shutil.rmtree(home, ignore_errors=True)
    if len({row["digest"] for row in rows}) > 1:
        print("ladder: the digests differ", file=sys.stderr)
        code = 1
    if compute:
        print(f"compute {compute:.4f} s/token (resident, without waiting)", file=sys.stderr)
    if chosen.tsv:
        with open(chosen.tsv, "w", encoding="utf-8") as file:
            for row in [{name: name for name, _ in COLUMNS}, *rows]:
                file.write("\t".join(shown(row[name]) for name, _ in COLUMNS) + "\n")
    if chosen.svg and rows:
        shape = next(rung for rung in rungs if rung.runs).runs[0]["config"]
        title = (f"k3: {shape['num_hidden_layers']} layers, {shape['num_experts']} experts, "
                 f"hidden {shape['hidden_size']}, one token at a time")
        with open(chosen.svg, "w", encoding="utf-8") as file:
            file.write(picture(rows, compute, title))
    return code


if __name__ == "__main__":
    sys.exit(main())
