#!/usr/bin/env python3
"""Who may include whom: ranks, xsimd's one home, and the closure of the arch units."""
import glob
import os
import sys

import checks

ARCH_FOLDERS = ("core", "simd", "formats", "kernels", "layers", "model")
ARCH_BANNED = ("string", "vector", "algorithm", "functional", "map", "unordered_map", "set", "memory", "iostream",
               "sstream", "deque", "list", "optional", "variant", "any", "ranges", "regex", "filesystem", "thread",
               "mutex")
ARCH_BANNED_LIBRARIES = ("Eigen/", "nlohmann/", "simdjson", "pcre2", "CLI/", "doctest")
HEAVY = ("Eigen/", "nlohmann/", "simdjson", "pcre2", "liburing", "curl/")


def closure(source, start):
    """{path from the root: the file that included it} of the quoted includes that start reaches, and its own lines."""
    reached, open_files = {start: None}, [start]
    outside = []
    while open_files:
        path = open_files.pop()
        for bracket, target in checks.includes(checks.read(source, path)):
            if target.startswith("k3/"):
                inner = target
            elif bracket == '"':
                inner = next((candidate for candidate in (os.path.join(os.path.dirname(path), target), target)
                              if os.path.exists(os.path.join(source, candidate))), None)
            else:
                inner = None
            if inner is None:
                outside.append((path, target))
            elif inner not in reached and os.path.exists(os.path.join(source, inner)):
                inner = os.path.normpath(inner)
                if inner not in reached:
                    reached[inner] = path
                    open_files.append(inner)
    return reached, outside


def chain(reached, path):
    steps = [path]
    while reached.get(steps[-1]):
        steps.append(reached[steps[-1]])
    return " <- ".join(steps)


def main():
    args = checks.arguments(__doc__)
    report = checks.Report()
    source = args.source
    all_headers = checks.headers(source)

    upward, missing, bracketed, xsimd, heavy, strangers = [], [], [], [], [], []
    for path in all_headers:
        folder = checks.folder_of(path)
        if folder and folder not in checks.RANKS:
            strangers.append(f"{path}: folder {folder} has no rank")
            continue
        for bracket, target in checks.includes(checks.read(source, path)):
            if target.startswith("k3/"):
                if bracket == "<":
                    bracketed.append(f"{path} includes <{target}>; use quotes")
                if not os.path.exists(os.path.join(source, target)):
                    missing.append(f"{path} includes {target}, which does not exist")
                other = checks.folder_of(target)
                if path in checks.UMBRELLAS:
                    continue
                if target in checks.UMBRELLAS:
                    upward.append(f"{path} includes the umbrella {target}")
                elif other != folder and checks.RANKS.get(other, 99) >= checks.RANKS[folder]:
                    upward.append(f"{path} (rank {checks.RANKS[folder]}) includes {target} (rank "
                                  f"{checks.RANKS.get(other, '?')})")
            elif bracket == '"':
                missing.append(f'{path} includes "{target}"; write the path from the root, "k3/..."')
            if target.startswith("xsimd") and folder != "simd":
                xsimd.append(f"{path} includes {target}")
            if target.startswith(HEAVY) and folder in checks.KERNEL_FOLDERS:
                heavy.append(f"{path} includes {target}")
    report.check("every folder under k3/ has a rank", strangers)
    report.check("headers include lower ranks and their own folder only", upward)
    report.check("includes of our headers resolve and are written from the root", missing)
    report.check("our headers are included in quotes", bracketed)
    report.check("only k3/simd includes xsimd", xsimd)
    report.check("core, simd, formats, kernels and layers include no library but xsimd", heavy)

    problems = []
    umbrella = "k3/kernels.hpp"
    if os.path.exists(os.path.join(source, umbrella)):
        for path in closure(source, umbrella)[0]:
            if path != umbrella and checks.folder_of(path) not in checks.KERNEL_FOLDERS:
                problems.append(f"it reaches {path}")
        report.check("k3/kernels.hpp reaches ranks 0 to 4 without io, checkpoint and text", problems)
    else:
        report.skip("k3/kernels.hpp reaches ranks 0 to 4 without io, checkpoint and text", "no such file yet")

    units = sorted(os.path.relpath(path, source)
                   for pattern in ("drivers/**/arch_*.cpp", "tests/support/arch_*.cpp", "bench/**/arch_*.cpp")
                   for path in glob.glob(os.path.join(glob.escape(source), pattern), recursive=True))
    if not any(unit.startswith("drivers/") for unit in units):
        report.skip("arch units stay within their ranks", "no drivers/arch_*.cpp yet")
    for unit in units:
        reached, outside = closure(source, unit)
        problems = [f"reaches {chain(reached, path)}" for path in sorted(reached)
                    if path.startswith("k3/") and checks.folder_of(path) not in ARCH_FOLDERS]
        problems += [f"reaches <{target}> by {chain(reached, path)}" for path, target in sorted(set(outside))
                     if target in ARCH_BANNED or target.startswith(ARCH_BANNED_LIBRARIES)]
        report.check(f"{unit} reaches only core, simd, formats, kernels, layers, model and light std headers", problems)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
