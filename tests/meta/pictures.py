#!/usr/bin/env python3
"""The pictures of the documents are what the committed scripts draw from the committed data.

docs/data/demo-trace is a run of the demo model, made with
    k3 tests/demo/model --prompt "The capital of France is" --gen 128 --ignore-eos --threads 1 \\
        --dump-cache-trace docs/data/demo-trace
and docs/data/demo-cache.json what k3-trace says about it, with the capacities below."""
import os
import subprocess
import sys

import checks

CAPACITY = "5%,10%,20%,30%,40%,50%,60%,70%,80%,90%,100%"
LADDER = "Seconds a token by memory: 5 layers of the release's widths"
LARGEST = 40000  # bytes: a page loads several


def main():
    args = checks.arguments(__doc__)
    report = checks.Report()
    images = os.path.join(args.source, "docs/images")
    drawn = subprocess.run([sys.executable, os.path.join(images, "draw.py"), "--check"], capture_output=True, text=True)
    report.check("the pictures are what docs/images/draw.py draws",
                 [] if drawn.returncode == 0 else drawn.stdout.splitlines() or [drawn.stderr.strip()])
    ladder = os.path.join(args.build, "ladder.svg")
    drawn = subprocess.run([sys.executable, os.path.join(args.source, "bench/streaming/ladder.py"), "--title", LADDER,
                            "--from-tsv", os.path.join(args.source, "docs/data/ladder.tsv"), "--svg", ladder],
                           capture_output=True, text=True)
    same = drawn.returncode == 0 and \
        checks.read(args.build, "ladder.svg") == checks.read(args.source, "docs/images/ladder.svg")
    report.check("the ladder is what bench/streaming/ladder.py draws from its table",
                 [] if same else [drawn.stderr.strip() or "draw it again: docs/BENCHMARKING.md#streaming has the command"])
    pictures = sorted(name for name in os.listdir(images) if name.endswith(".svg"))
    report.check("no picture is large",
                 [name for name in pictures if os.path.getsize(os.path.join(images, name)) > LARGEST])
    pages = "".join(checks.read(args.source, path) for path in checks.tracked(args.source) if path.endswith(".md"))
    report.check("every picture is shown on a page", [name for name in pictures if f"images/{name})" not in pages])

    k3_trace = os.path.join(args.build, "drivers/k3-trace")
    name = "the cache's figures are what k3-trace computes from the trace"
    if not os.path.exists(k3_trace):
        report.skip(name, "k3-trace is not built")
        return report.finish()
    trace = os.path.join(args.source, "docs/data/demo-trace")
    problems = []
    if subprocess.run([k3_trace, trace, "--check"], capture_output=True).returncode != 0:
        problems.append("k3-trace docs/data/demo-trace --check fails: record the run again")
    now = subprocess.run([k3_trace, trace, "--json", "--capacity", CAPACITY], capture_output=True, text=True)
    if now.stdout != checks.read(args.source, "docs/data/demo-cache.json"):
        problems.append("docs/data/demo-cache.json is another: "
                        f"k3-trace docs/data/demo-trace --json --capacity {CAPACITY} > docs/data/demo-cache.json, "
                        "then docs/images/draw.py")
    report.check(name, problems)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
