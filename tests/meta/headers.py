#!/usr/bin/env python3
"""Every header compiles alone, and included twice, without a warning: those that others drop into their own build
(core, simd, formats, kernels, layers) and k3.hpp with g++ and clang++, the rest with g++ (clang++ sees them in k3.hpp).

One compilation covers "alone" and "twice". Headers of core, simd, formats, kernels and layers are compiled with
-fno-exceptions (core/error.hpp, which is the exception, and core/buffer.hpp, which throws it, apart), the others with exceptions. A header named
*_<arch>.hpp is compiled with that arch's flags, kernels.hpp with each of them; what is for aarch64 goes to the cross
compiler if there is one."""
import concurrent.futures
import platform
import shutil
import subprocess
import sys

import checks

FLAGS = ["-std=c++20", "-fsyntax-only", "-fopenmp", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-x", "c++"]


def arches_here():
    machine = platform.machine()
    if machine == "x86_64":
        return ["sse42", "avx2", "avx512"]
    return ["neon"] if machine in ("aarch64", "arm64") else []


CROSS = "aarch64-linux-gnu-g++"  # finds the libraries of headers alone behind its own: -idirafter


def compile_one(compiler, source, header, extra, system):
    text = f'#include "{header}"\n#include "{header}"\n'
    done = subprocess.run([compiler, *FLAGS, *extra, "-I", source, *system, "-"], input=text, capture_output=True,
                          text=True, cwd=source)
    if done.returncode == 0:
        return []
    lines = done.stderr.split("\n")
    return ([line for line in lines if "error" in line or "warning" in line] or lines)[:8]


def main():
    args = checks.arguments(__doc__)
    report = checks.Report()
    compilers = [name for name in ("g++", "clang++") if shutil.which(name)]
    for name in ("g++", "clang++"):
        if name not in compilers:
            report.skip(f"headers compile with {name}", "it is not installed")
    flags = checks.pkg_config("--cflags", "xsimd", "simdjson", "nlohmann_json", "libpcre2-8") or []
    system = [word for flag in flags for word in (("-isystem", flag[2:]) if flag.startswith("-I") else (flag,))]

    jobs = []
    for header in checks.headers(args.source):
        arch = checks.arch_of(header)
        if arch == "neon" and arch not in arches_here() and shutil.which(CROSS):
            jobs.append((header, CROSS, header, ["-fno-exceptions", "-idirafter", "/usr/include"]))
            continue
        if arch and arch not in arches_here():
            report.skip(f"{header} compiles alone and twice", f"it is for {arch}, this machine is {platform.machine()}")
            continue
        extra = list(checks.ARCH_FLAGS[arch]) if arch else []
        light = checks.folder_of(header) in checks.KERNEL_FOLDERS or header == "k3/kernels.hpp"
        if light and header not in ("k3/core/error.hpp", "k3/core/buffer.hpp"):
            extra.append("-fno-exceptions")
        variants = [("", extra)]
        if header == "k3/kernels.hpp":
            variants += [(f" for {name}", extra + checks.ARCH_FLAGS[name]) for name in arches_here()]
        if header == "k3/kernels.hpp" and "neon" not in arches_here() and shutil.which(CROSS):
            jobs.append((header + " for neon", CROSS, header, [*extra, "-idirafter", "/usr/include"]))
        if header == "k3/io/detail/uring_backend.hpp" and checks.pkg_config("--cflags", "liburing") is not None:
            variants.append((" with liburing", extra + ["-DK3_HAVE_URING=1"]))
        mine = compilers if light or header == "k3/k3.hpp" else compilers[:1]
        jobs += [(header + suffix, compiler, header, words) for suffix, words in variants for compiler in mine]
    if not jobs:
        report.skip("headers compile", "there are none yet")

    def work(job):
        name, compiler, header, extra = job
        without = " -fno-exceptions" if "-fno-exceptions" in extra else ""
        return (f"{name} compiles alone and twice with {compiler}{without}",
                compile_one(compiler, args.source, header, extra, system))

    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        for name, problems in pool.map(work, jobs):
            report.check(name, problems)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
