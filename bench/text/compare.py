#!/usr/bin/env python3
"""Times k3's tokenizer and tiktoken's (npm, WebAssembly) in turn on the same bytes, and prints medians and their ratio.

usage: bench/text/compare.py TOKENIZER_BENCH SCRATCH [--mib 1,4,16,64] [--runs 3]

SCRATCH is the directory that tests/text/parity.sh SCRATCH leaves: npm's tiktoken and o200k_base's ranks. Each program is
a process of one thread, timed by the processor time of the encoding alone; both must print the same number of ids and the
same digest of them.
"""
import argparse
import os
import re
import statistics
import subprocess
import sys

LINE = re.compile(r"^(\d+) bytes  (\d+) ids  digest (\w+)  ([\d.]+) s", re.M)
HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.join(os.path.dirname(os.path.dirname(HERE)), "tests")


def run(command, directory):
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    size, ids, digest, seconds = LINE.search(done.stdout).groups()
    return (size, ids, digest), float(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("scratch")
    parser.add_argument("--mib", default="1,4,16,64")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    program, ranks = os.path.abspath(args.program), os.path.join(os.path.abspath(args.scratch), "o200k")
    for mib in args.mib.split(","):
        ours, theirs = [], []
        for _ in range(args.runs):
            work, seconds = run([program, "--ranks", ranks, "--tests", TESTS, "--mib", mib, "--runs", "1"], args.scratch)
            ours.append(seconds)
            peer, seconds = run(["node", os.path.join(HERE, "tiktoken_bench.mjs"), TESTS, ranks, mib], args.scratch)
            theirs.append(seconds)
            if work != peer:
                print(f"different work: k3 {work}, tiktoken {peer}")
                return 1
        size = int(work[0]) / 1e6
        rate = lambda all: f"{size / statistics.median(all):.2f} MB/s ({size / max(all):.2f}, {size / min(all):.2f})"
        print(f"{work[0]} bytes, {work[1]} ids, digest {work[2]}: k3 {rate(ours)}, tiktoken {rate(theirs)}, "
              f"ratio {statistics.median(theirs) / statistics.median(ours):.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
