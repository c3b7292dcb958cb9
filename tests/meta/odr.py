#!/usr/bin/env python3
"""Two units that include the whole library link into one program, and so do two that include the kernels alone."""
import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile

import checks

UNITS = {"one.cpp": "int other();\nint main() { return other(); }\n",
         "two.cpp": "int other();\nint other() { return 0; }\n"}
KERNELS = ["xsimd"]
EVERYTHING = ["xsimd", "simdjson", "nlohmann_json", "libpcre2-8"]


def build(compiler, source, umbrella, packages):
    flags = checks.pkg_config("--cflags", *packages)
    libraries = checks.pkg_config("--libs", *packages)
    if flags is None or libraries is None:
        return ["pkg-config does not know " + ", ".join(packages)]
    with tempfile.TemporaryDirectory() as place:
        def unit(item):
            name, body = item
            path = os.path.join(place, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(f'#include "{umbrella}"\n{body}')
            return subprocess.run([compiler, "-std=c++20", "-O0", "-fopenmp", "-ffp-contract=off", "-I", source, *flags,
                                   "-c", path, "-o", path + ".o"], capture_output=True, text=True)

        with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
            results = list(pool.map(unit, UNITS.items()))
        objects = [os.path.join(place, name + ".o") for name in UNITS]
        results += [subprocess.run([compiler, "-fopenmp", "-pthread", *objects, *libraries,
                                    "-o", os.path.join(place, "program")], capture_output=True, text=True)]
        for done in results:
            if done.returncode != 0:
                return done.stderr.strip().split("\n")[:12]
        done = subprocess.run([os.path.join(place, "program")])
        return [] if done.returncode == 0 else [f"the program ended with {done.returncode}"]


def main():
    args = checks.arguments(__doc__)
    report = checks.Report()
    compiler = shutil.which("g++") or shutil.which("clang++") or "c++"
    for umbrella, packages in (("k3/kernels.hpp", KERNELS), ("k3/k3.hpp", EVERYTHING)):
        name = f"two units that include {umbrella} link"
        if os.path.exists(os.path.join(args.source, umbrella)):
            report.check(name, build(compiler, args.source, umbrella, packages))
        else:
            report.skip(name, "no such file yet")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
