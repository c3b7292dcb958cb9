#!/usr/bin/env python3
"""Adds up what the test programs reported.

usage: summary.py [--build-failed NAME]... [--skipped NAME=REASON]... [NAME=TESTLOG.json]...

Each TESTLOG is meson's one-object-per-line log. A doctest program counts with its test cases, a script that ends with
"N passed, N failed, N skipped" with those numbers, anything else as one test. The last line printed is the sum; the
exit code is 1 if anything failed or nothing passed.
"""
import json
import os
import re
import sys

DOCTEST = re.compile(r"\[doctest\] test cases:\s*(\d+)\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed\s*\|\s*(\d+) skipped")
COUNTS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped\s*$", re.M)
FILTER = re.compile(r"^-{1,2}(dt-)?(tc|ts|tce|tse|sf|sfe|test-case|test-suite|source-file)")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
TAIL = 40


def count(test):
    """(passed, failed, skipped) of one entry of the log."""
    text = COLOUR.sub("", (test.get("stdout") or "") + "\n" + (test.get("stderr") or ""))
    result = test.get("result", "ERROR")
    if result == "SKIP":
        counts = COUNTS.findall(text)
        return (0, 0, max(1, int(counts[-1][2]))) if counts else (0, 0, 1)
    good = result in ("OK", "EXPECTEDFAIL")
    found = DOCTEST.findall(text)
    if found:
        passed, failed, skipped = (sum(int(row[i]) for row in found) for i in (1, 2, 3))
        if any(FILTER.match(str(word)) for word in test.get("command", [])[1:]):
            skipped = 0  # filtered out here, run under another name
    else:
        counts = COUNTS.findall(text)
        passed, failed, skipped = (int(x) for x in counts[-1]) if counts else (1 if good else 0, 0, 0)
    if not good and failed == 0:
        failed = 1  # a crash, a time-out, a bad exit code
    return passed, failed, skipped


def tail(test):
    text = "\n".join(part for part in (test.get("stdout") or "", test.get("stderr") or "") if part.strip())
    return COLOUR.sub("", text).rstrip().split("\n")[-TAIL:]


def main():
    sys.stdout.reconfigure(errors="replace")
    total = [0, 0, 0]
    notes, failures = [], []
    words = sys.argv[1:]
    while words:
        word = words.pop(0)
        if word == "--build-failed":
            name = words.pop(0)
            total[1] += 1
            notes.append(f"FAILED   {name}: did not build")
            continue
        if word == "--skipped":
            name, _, reason = words.pop(0).partition("=")
            total[2] += 1
            notes.append(f"skipped  {name}: {reason}")
            continue
        leg, _, path = word.partition("=")
        if not os.path.exists(path):
            continue
        with open(path, encoding="utf-8", errors="replace") as log:
            tests = [json.loads(line) for line in log if line.strip()]
        for test in sorted(tests, key=lambda entry: entry["name"]):
            counts = count(test)
            total = [a + b for a, b in zip(total, counts)]
            name = test["name"].split(" / ")[-1]
            verdict = "FAILED" if counts[1] else "skipped" if counts[2] and not counts[0] else "ok"
            print(f"{verdict:8} {leg:9} {name:34} {counts[0]:5} passed {counts[1]:3} failed {counts[2]:3} skipped"
                  f"  {test.get('duration', 0.0):7.1f} s")
            if counts[1]:
                failures.append((leg, name, test))
            elif verdict == "skipped":
                lines = [line for line in tail(test) if line.strip() and not COUNTS.match(line)]
                notes.append(f"skipped  {leg} {name}: {lines[-1].strip() if lines else 'no reason given'}")
    for leg, name, test in failures:
        print(f"\n---- {leg} {name}: {test.get('result')}, exit code {test.get('returncode')}; "
              f"the last {TAIL} lines of its output:")
        print("\n".join("    " + line for line in tail(test)))
    if notes:
        print()
        print("\n".join(notes))
    print()
    if total == [0, 0, 0]:
        print("no test ran: that counts as a failure")
        total[1] = 1
    print(f"{total[0]} passed, {total[1]} failed, {total[2]} skipped")
    return 1 if total[1] or not total[0] else 0


if __name__ == "__main__":
    sys.exit(main())
