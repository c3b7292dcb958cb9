#!/usr/bin/env python3
"""Runs a suite of test_text that needs files which are not in the repository.

usage: with_files.py TEST_TEXT SUITE VARIABLE

The environment variable VARIABLE names a directory with tiktoken.model and tokenizer_config.json. Without it: NOT RUN,
exit code 77, which meson counts as a skip. With it the suite must run at least one case: no files never mean success.
"""
import os
import re
import subprocess
import sys


def main():
    program, suite, variable = sys.argv[1:]
    directory = os.environ.get(variable)
    if not directory:
        print(f"NOT RUN: {variable} names no directory with tiktoken.model and tokenizer_config.json")
        return 77
    done = subprocess.run([program, "--no-skip", f"-ts={suite}"], capture_output=True, text=True, errors="replace", check=False)
    print(done.stdout, done.stderr, sep="", end="")
    passed = re.search(r"test cases:\s*\d+\s*\|\s*(\d+) passed", done.stdout)
    if done.returncode == 0 and (passed is None or int(passed[1]) == 0):
        print(f"no case of the suite {suite} has run")
        return 1
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
