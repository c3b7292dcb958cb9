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
sys.path[:0] = [os.path.join(HERE, "../../tests/drivers"), os.path.join(HERE, "../../docs/images")]

from disk_probe import DiskProbe  # noqa: E402
from draw import Picture  # noqa: E402
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
      --tsv docs/data/ladder.tsv --svg docs/images/ladder.svg
  bench/streaming/ladder.py --from-tsv docs/data/ladder.tsv --svg docs/images/ladder.svg""")
    parser.add_argument("--k3", metavar="PATH", help="the program")
    parser.add_argument("--model", metavar="DIR", help="the checkpoint, on the disk to be measured")
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
    parser.add_argument("--title", default="Seconds a token by memory", help="of the picture [%(default)s]")
    parser.add_argument("--from-tsv", metavar="FILE", help="run nothing: draw --svg again from a table that --tsv wrote")
    chosen = parser.parse_args()
    if chosen.from_tsv and not chosen.svg:
        parser.error("--from-tsv: give --svg too")
    if not chosen.from_tsv and not (chosen.k3 and chosen.model):
        parser.error("give --k3 and --model")
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


def ticks(most):
    step = 10 ** len(str(int(most))) / 10 if most >= 1 else 0.1
    step = next(step * f for f in (0.1, 0.2, 0.5, 1, 2, 5, 10) if most / (step * f) <= 8)
    return [n * step for n in range(int(most / step) + 1)]


def picture(rows, compute, title):
    """Seconds a token over memory: measured, and what the disk and the arithmetic allow."""
    drawn = Picture(760, 400, title)
    left, right, top, bottom = 60, 736, 84, 344
    points = sorted((row for row in rows if ":" not in row["rung"]), key=lambda row: row["memory"])
    splits = [row for row in rows if ":" in row["rung"]]
    most_x = max(row["memory"] for row in rows) / 1e9 * 1.08
    most_y = max(max(row["s_token"], row["io_s"]) for row in rows) * 1.08

    def at(memory, seconds):
        return left + memory / 1e9 / most_x * (right - left), bottom - seconds / most_y * (bottom - top)

    drawn.text(20, 28, title, size=16, bold=True)
    entries = [("blue", False, "measured"), ("orange", True, "what the disk allows")]
    if compute:
        entries.append(("grey", True, "computing alone"))
    for i, (colour, dashed, words) in enumerate(entries):
        drawn.line([(20 + 190 * i, 50), (44 + 190 * i, 50)], colour, 2, dashed)
        drawn.text(50 + 190 * i, 54, words)
    if splits:
        x = 32 + 190 * len(entries)
        drawn.dot(x, 50, "blue", hollow=True)
        drawn.text(x + 10, 54, "other splits")
    for value in ticks(most_y):
        y = at(0, value)[1]
        drawn.line([(left, y), (right, y)], "grid")
        drawn.text(left - 8, y + 4, f"{value:g}", "soft", 11, "end")
    for value in ticks(most_x):
        drawn.text(at(value * 1e9, 0)[0], bottom + 18, f"{value:g}", "soft", 11, "middle")
    drawn.text(20, 76, "seconds a token", "soft")
    drawn.text((left + right) / 2, bottom + 40, "memory, 10^9 bytes", "soft", 12, "middle")
    drawn.line([at(row["memory"], row["io_s"]) for row in points], "orange", 2, dashed=True)
    if compute:
        drawn.line([at(0, compute), (right, at(0, compute)[1])], "grey", 2, dashed=True)
    for row in points:  # to the right of the point, where a curve that falls leaves room; other lines give way
        x, y = at(row["memory"], row["s_token"])
        words = f"{row['s_token']:#.3g}"
        drawn.box(x + 7, y - 15, 6 * len(words) + 3, 12, "paper")
        drawn.text(x + 8, y - 5, words, size=11)
    drawn.line([at(row["memory"], row["s_token"]) for row in points], "blue", 2.5)
    for row in points:
        drawn.dot(*at(row["memory"], row["s_token"]), "blue")
    for row in splits:
        drawn.dot(*at(row["memory"], row["s_token"]), "blue", hollow=True)
    return drawn.finish()


def read_table(path):
    with open(path, encoding="utf-8") as file:
        names, *rows = [line.rstrip("\n").split("\t") for line in file]
    missing = [name for name, _ in COLUMNS if name not in names]
    if missing:
        sys.exit(f"ladder: {path} has no column {missing[0]}; give a table that --tsv wrote")
    numbers = {"memory", "s_token", "io_s", "wait"}
    return [{name: float(word) if name in numbers else word for name, word in zip(names, row)} for row in rows]


def redraw(chosen):
    rows = read_table(chosen.from_tsv)
    resident = [row["s_token"] * (1 - row["wait"]) for row in rows if row["rung"] == "resident"]
    with open(chosen.svg, "w", encoding="utf-8") as file:
        file.write(picture(rows, chosen.compute or (resident[0] if resident else None), chosen.title))
    return 0


def main():
    chosen = options()
    if chosen.from_tsv:
        return redraw(chosen)
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
        with open(chosen.svg, "w", encoding="utf-8") as file:
            file.write(picture(rows, compute, chosen.title))
    return code


if __name__ == "__main__":
    sys.exit(main())
