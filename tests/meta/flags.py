#!/usr/bin/env python3
"""The same bits under any flags, and a refusal where that cannot be.

One unit (flags/digests.cpp) is built with each compiler under many flags and run; each arch it holds must print the lines
of flags/expected.txt. Under flags that change arithmetic it must not compile, and the message must name the flag; what
leaves no macro behind (clang) must be stopped by the canary before anything is computed.

A new expected.txt, after a change that is meant to move bits:  tests/meta/flags.py --print > tests/meta/flags/expected.txt"""
import concurrent.futures
import itertools
import os
import platform
import shutil
import subprocess
import sys
import tempfile

import checks

UNIT = "tests/meta/flags/digests.cpp"
EXPECTED = "tests/meta/flags/expected.txt"

# The wide builds hold three or four arches and take longest: they go first.
WIDE = [(["-O3", "-march=native"], "native"), (["-O2", "-march=haswell", "-ffp-contract=fast"], "avx2"),
        (["-O2", "-mfma", "-ffp-contract=fast"], "fma")]
PLAIN = [["-O0"], ["-O1"], ["-O2"], ["-O3"], ["-O2", "-flto"], ["-O1", "-fno-exceptions"], ["-O1", "-std=c++2b"],
         ["-O0", "-fsanitize=undefined", "-fno-sanitize-recover=all"]]  # optimised, clang takes minutes for it
ASSOCIATIVE = ["-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math"]  # alone it does nothing
REFUSED = {  # flags: what the message must hold
    "g++": [(["-ffast-math"], "-ffast-math"), (["-Ofast"], "-Ofast"), (["-ffinite-math-only"], "-ffinite-math-only"),
            (["-funsafe-math-optimizations"], "-funsafe-math-optimizations"), (ASSOCIATIVE, "-fassociative-math"),
            (["-freciprocal-math"], "-freciprocal-math"), (["-fno-signed-zeros"], "-fno-signed-zeros"),
            (["-fsingle-precision-constant"], "-fsingle-precision-constant")],
    "clang++": [(["-ffast-math"], "-ffast-math"), (["-Ofast"], "-Ofast"), (["-ffinite-math-only"], "-ffinite-math-only")],
}
CANARY = {"g++": [], "clang++": [["-funsafe-math-optimizations"], ASSOCIATIVE, ["-freciprocal-math"]]}
CANARY_EXIT = 3
CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"  # fused multiply-add in its baseline, g++ contracts by default
CROSS_FLAGS = [["-O2"], ["-O3", "-ffp-contract=fast"]]


def cpu_has(*words):
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            line = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return False
    return set(words) <= set(line.split())


class Builder:
    def __init__(self, source, place):
        self.source, self.place, self.count = source, place, itertools.count()
        self.system = [word for flag in checks.pkg_config("--cflags", "xsimd") or []
                       for word in (("-isystem", flag[2:]) if flag.startswith("-I") else (flag,))]

    def command(self, compiler, flags):
        standard = [] if any(flag.startswith("-std=") for flag in flags) else ["-std=c++20"]
        return [compiler, *standard, *flags, "-I", self.source, *self.system]

    def build(self, compiler, flags):
        """(path of the program or None, the compiler's words)"""
        path = os.path.join(self.place, f"digests{next(self.count)}")
        done = subprocess.run([*self.command(compiler, flags), os.path.join(self.source, UNIT), "-o", path],
                              capture_output=True, text=True, errors="replace")
        return (path if done.returncode == 0 else None), done.stderr

    def links(self, compiler, flags):
        """True if a program of one line can be built and run with these flags."""
        path = os.path.join(self.place, f"trivial{id(flags)}_{compiler}")
        done = subprocess.run([*self.command(compiler, flags), "-x", "c++", "-", "-o", path], input="int main() {}\n",
                              capture_output=True, text=True)
        return done.returncode == 0 and subprocess.run([path]).returncode == 0


def blocks(text):
    """{arch: [lines]}"""
    found, arch = {}, None
    for line in text.split("\n"):
        if line.startswith("["):
            arch = line.strip("[]")
            found[arch] = []
        elif line:
            found.setdefault(arch, []).append(line)
    return found


def compare(path, expected, emulator=()):
    """(arches, problems) of one program."""
    done = subprocess.run([*emulator, path], capture_output=True, text=True)
    if done.returncode == CANARY_EXIT:
        return [], ["the canary stopped it: " + " ".join(done.stdout.split())]
    if done.returncode != 0:
        return [], [f"exit code {done.returncode}", *done.stderr.split("\n")[:5]]
    problems = []
    for arch, lines in blocks(done.stdout).items():
        problems += [f"{arch}: {got}, expected {want}" for got, want in zip(lines, expected) if got != want]
        if len(lines) != len(expected):
            problems.append(f"{arch}: {len(lines)} lines, expected {len(expected)}")
    return list(blocks(done.stdout)), problems


def same_bits(builder, expected, compiler, flags):
    path, words = builder.build(compiler, flags)
    if path is None:
        return [], [line for line in words.split("\n") if "error" in line][:5] or words.split("\n")[:5]
    return compare(path, expected, [EMULATOR] if compiler == CROSS else [])


def refusal(builder, compiler, flags, name):
    path, words = builder.build(compiler, ["-O2", "-DK3_DIGEST_SCALAR", *flags])
    if path is not None:
        return [], ["it compiled"]
    return [], [] if "k3:" in words and name in words else [f"the message does not name {name}", *words.split("\n")[:3]]


def stopped(builder, compiler, flags):
    path, words = builder.build(compiler, ["-O2", "-DK3_DIGEST_SCALAR", *flags])
    if path is None:  # better still, if it is a refusal of ours
        return [], [] if "k3:" in words else words.split("\n")[:5]
    done = subprocess.run([path], capture_output=True, text=True)
    if done.returncode == CANARY_EXIT:
        return [], []
    return [], [f"it compiled, the canary passed (exit code {done.returncode}) and it computed"]


def main():
    printing = "--print" in sys.argv
    if printing:
        sys.argv.remove("--print")
    args = checks.arguments(__doc__)
    with tempfile.TemporaryDirectory() as place:
        builder = Builder(args.source, place)
        if printing:
            path, words = builder.build("g++", ["-O1", "-DK3_DIGEST_SCALAR"])
            if path is None:
                sys.exit(words)
            text = subprocess.run([path], capture_output=True, text=True, check=True).stdout
            print("\n".join(blocks(text)["scalar"]))
            return 0

        report = checks.Report()
        expected = checks.read(args.source, EXPECTED).split()
        expected = [f"{name} {value}" for name, value in zip(expected[::2], expected[1::2])]
        jobs = []  # (name, function, arguments)
        compilers = [name for name in ("g++", "clang++") if shutil.which(name)]
        for compiler in ("g++", "clang++"):
            if compiler not in compilers:
                report.skip(f"any flags with {compiler}", "it is not installed")
        x86 = platform.machine() == "x86_64"
        for flags, need in WIDE:
            for compiler in compilers:
                name = f"{compiler} {' '.join(flags)}: every arch prints expected.txt"
                if need in ("avx2", "fma") and not (x86 and cpu_has("fma", "avx2", "bmi2")):
                    report.skip(name, "this CPU cannot run it")
                else:
                    jobs.append((name, same_bits, (builder, expected, compiler, flags)))
        for flags in CROSS_FLAGS:
            name = f"{CROSS} {' '.join(flags)}: every arch prints expected.txt"
            if shutil.which(CROSS) and shutil.which(EMULATOR):
                jobs.append((name, same_bits, (builder, expected, CROSS, [*flags, "-static", "-idirafter", "/usr/include"])))
            else:
                report.skip(name, f"{CROSS} or {EMULATOR} is not installed")
        for flags in PLAIN:
            for compiler in compilers:
                name = f"{compiler} {' '.join(flags)}: every arch prints expected.txt"
                if ("-flto" in flags or "-std=c++2b" in flags or "-fsanitize=undefined" in flags) \
                        and not builder.links(compiler, flags):
                    report.skip(name, "the compiler cannot build any program with these flags")
                else:
                    jobs.append((name, same_bits, (builder, expected, compiler, flags)))
        for compiler in compilers:
            for flags, word in REFUSED[compiler]:
                jobs.append((f"{compiler} {' '.join(flags)}: refused, by name", refusal, (builder, compiler, flags, word)))
            for flags in CANARY[compiler]:
                jobs.append((f"{compiler} {' '.join(flags)}: the canary stops it", stopped, (builder, compiler, flags)))

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            futures = [(name, pool.submit(function, *words)) for name, function, words in jobs]
            for name, future in futures:
                arches, problems = future.result()
                report.check(name + (f" ({', '.join(arches)})" if arches else ""), problems)
        return report.finish()


if __name__ == "__main__":
    sys.exit(main())
