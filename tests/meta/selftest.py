#!/usr/bin/env python3
"""The checks of text and ranks can fail: each gets a small tree with the one mistake it is there for."""
import os
import shutil
import subprocess
import sys
import tempfile

import checks

GOOD = "#ifndef K3_{0}\n#define K3_{0}\n{1}\n#endif\n"


def header(path, body=""):
    stem = path[len("k3/"):-len(".hpp")].upper().replace("/", "_")
    return {path: GOOD.format(stem + "_HPP", body)}


# (script, words of the check's name that must fail, {path: text})
CASES = [
    ("ranks", "lower ranks", {**header("k3/core/a.hpp", '#include "k3/simd/b.hpp"'), **header("k3/simd/b.hpp")}),
    ("ranks", "lower ranks", {**header("k3/io/a.hpp", '#include "k3/simd/b.hpp"'), **header("k3/simd/b.hpp")}),
    ("ranks", "has a rank", header("k3/other/a.hpp")),
    ("ranks", "resolve", header("k3/core/a.hpp", '#include "b.hpp"')),
    ("ranks", "only k3/simd includes xsimd", header("k3/kernels/a.hpp", "#include <xsimd/xsimd.hpp>")),
    ("ranks", "no library but xsimd", header("k3/layers/a.hpp", "#include <simdjson.h>")),
    ("ranks", "arch_avx2.cpp reaches only", {**header("k3/core/a.hpp", "#include <string>"),
                                             "drivers/arch_avx2.cpp": '#include "k3/core/a.hpp"\n'}),
    ("ranks", "arch_avx2.cpp reaches only", {**header("k3/io/a.hpp"),
                                             "drivers/arch_avx2.cpp": '#include "k3/io/a.hpp"\n'}),
    ("ranks", "k3/kernels.hpp reaches", {**header("k3/kernels.hpp", '#include "k3/io/a.hpp"'),
                                         **header("k3/io/a.hpp")}),
    ("text_rules", "holds headers only", {"k3/core/a.cpp": ""}),
    ("text_rules", "at most 400 lines", header("k3/core/a.hpp", "\n" * 400)),
    ("text_rules", "OpenMP", header("k3/kernels/a.hpp", "#pragma omp parallel")),
    ("text_rules", "no std::fma", header("k3/kernels/a.hpp", "inline auto f(double x) { return std::fma(x, x, x); }")),
    ("text_rules", "<iostream>", header("k3/io/a.hpp", "#include <iostream>")),
    ("text_rules", "prints", header("k3/io/a.hpp", 'inline void f() { std::printf("x"); }')),
    ("text_rules", "ends the process", header("k3/io/a.hpp", "inline void f() { std::abort(); }")),
    ("text_rules", "reads the environment", header("k3/io/a.hpp", 'inline auto f() { return std::getenv("X"); }')),
    ("text_rules", "reads a clock", header("k3/io/a.hpp", "using C = std::chrono::steady_clock;")),
    ("text_rules", "include guards", {"k3/core/a.hpp": "#pragma once\n"}),
    ("text_rules", "include guards", {"k3/core/a.hpp": "#ifndef K3_CORE_B_HPP\n#define K3_CORE_B_HPP\n#endif\n"}),
    ("text_rules", "ASCII", header("k3/core/a.hpp", "// \u00b5")),
    ("text_rules", "line ends", header("k3/core/a.hpp", "int x; ")),
    ("text_rules", "lists every header", {**header("k3/k3.hpp"), **header("k3/core/a.hpp")}),
    ("text_rules", "lists every header", {**header("k3/k3.hpp", '#include "k3/simd/b.hpp"\n#include "k3/core/a.hpp"'),
                                          **header("k3/core/a.hpp"), **header("k3/simd/b.hpp")}),
    ("text_rules", "loose ends", header("k3/core/a.hpp", "// TO" + "DO: more")),
    ("text_rules", "loose ends", {"README.md": "see /wo" + "rk/main\n"}),
    ("text_rules", "leads somewhere", {"README.md": "[a](docs/NONE.md)\n"}),
    ("text_rules", "leads somewhere", {"README.md": "# One\n\n[a](#two)\n"}),
    ("text_rules", "laid out", {".clang-format": "BasedOnStyle: Google\n", **header("k3/core/a.hpp", "int  x;")}),
    ("text_rules", "third-party", {"subprojects/x/x.c": ""}),
    ("text_rules", "third-party", {"third_party/doctest.h": ""}),
    ("text_rules", "executable", {"tests/run": "echo\n"}),
    ("wraps", "pinned", {"subprojects/a.wrap": "[wrap-git]\nurl = https://example.org/a.git\nrevision = head\n"}),
    ("wraps", "pinned", {"subprojects/a.wrap": "[wrap-file]\ndirectory = a\nsource_url = https://example.org/a.zip\n"
                                               "source_filename = a.zip\n[provide]\na = a_dep\n"}),
]
INNOCENT = {**header("k3/core/a.hpp", '// printf("x"); std::abort(); #pragma omp; std::fma\n'
                                      'inline const char* f() { return "std::getenv("; }'),
            **header("k3/k3.hpp", '#include "k3/core/a.hpp"'),
            "README.md": "# One two\n\n[a](#one-two), [b](k3/core/a.hpp), [c](https://example.org), `[d](none.md)`\n"}


def outcome(script, tree):
    with tempfile.TemporaryDirectory() as place:
        for path, text in tree.items():
            os.makedirs(os.path.dirname(os.path.join(place, path)) or place, exist_ok=True)
            with open(os.path.join(place, path), "w", encoding="utf-8") as file:
                file.write(text)
        here = os.path.dirname(os.path.abspath(__file__))
        done = subprocess.run([sys.executable, os.path.join(here, script + ".py"), "--source", place],
                              capture_output=True, text=True)
        return [line for line in done.stdout.split("\n") if line.startswith("FAILED")], done


def main():
    checks.arguments(__doc__)
    report = checks.Report()
    for number, (script, words, tree) in enumerate(CASES, 1):
        if ".clang-format" in tree and not (shutil.which("clang-format-14") or shutil.which("clang-format")):
            report.skip(f"case {number}: {script} finds \"{words}\"", "clang-format is not installed")
            continue
        failed, done = outcome(script, tree)
        good = any(words in line for line in failed) and done.returncode == 1
        report.check(f"case {number}: {script} finds \"{words}\"", [] if good else [done.stdout + done.stderr])
    for script in ("ranks", "text_rules"):
        failed, done = outcome(script, INNOCENT)
        good = not failed and done.returncode == 0
        report.check(f"{script} passes an innocent tree", [] if good else [done.stdout + done.stderr])
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
