#!/usr/bin/env python3
"""The bits of another machine, as far as an emulator shows them.  usage: run.py PATH/k3 PATH/k3-bench TESTS_FOLDER

Runs what tests/golden commits: the digest of every kernel, and the golden checkpoints by ids and digest, on each arch of
the build. The words of MESON_EXE_WRAPPER, set by `meson test` in a cross build, go before the programs.
"""
import json
import os
import shlex
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "drivers"))
import support

K3, BENCH, TESTS = map(os.path.abspath, sys.argv[1:4])
WRAPPER = shlex.split(os.environ.get("MESON_EXE_WRAPPER", ""))
# A thread that spins is emulated at full cost; and k3 starts itself again to set this, which an emulator may not follow.
ENV = dict(os.environ, OMP_WAIT_POLICY="passive")


def start(*words):
    """stdout and stderr of a run that must succeed."""
    code, out, err = support.run(*WRAPPER, *words, env=ENV, stdin=subprocess.DEVNULL)
    assert code == 0, f"exit code {code}: {err[-2000:]}"
    return out.decode(), err


def load(name):
    with open(os.path.join(TESTS, name), encoding="utf-8") as file:
        return json.load(file)


def kernels(arch):
    _, err = start(BENCH, "--digest", "--arch", arch, "--expect", os.path.join(TESTS, "golden/kernel_digests.txt"))
    print(err.strip().split("\n")[-1])


def golden(case, arch, *how):
    want, digest = load(f"golden/{case}/expected.json"), load("golden/digests.json")[case]
    with tempfile.TemporaryDirectory(prefix="k3-aarch64-") as folder:
        out = os.path.join(folder, "run.json")
        start(K3, os.path.join(TESTS, "golden", case, "model"), "--ids", ",".join(map(str, want["prompt_ids"])), "--gen",
              len(want["generated_ids"]), "--arch", arch, "--out", out, "--quiet", *how)
        with open(out, encoding="utf-8") as file:
            run = json.load(file)
    assert run["arch"] == arch, run["arch"]
    assert run["generated_ids"] == want["generated_ids"] and run["full_ids"] == want["full_ids"], run["full_ids"]
    assert run["logits_digest"] == digest, f"digest {run['logits_digest']}, committed is {digest}"


def named(name, call, *words):
    def test():
        call(*words)
    test.__name__ = name
    return test


def tests():
    arches = start(K3, "--list-arches")[0].split()  # narrowest first
    for arch in arches:
        yield named(f"kernel digests, {arch}", kernels, arch)
    for case in "ABF":
        for arch in arches:
            yield named(f"golden {case}, {arch}", golden, case, arch)
    for case in "AB":
        yield named(f"golden {case}, {arches[-1]}, recomputed in chunks of 7 by two threads", golden, case, arches[-1],
                    "--recompute", "--prefill-chunk", 7, "--threads", 2)


support.main(tests())
