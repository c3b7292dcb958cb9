#!/usr/bin/env python3
"""House rules that can be read off the text of the repository."""
import os
import re
import shutil
import subprocess
import sys

import checks

MAX_LINES = 400
# Words that must not reach the repository: machine paths, names of tools of the place it was written in, loose ends.
# Spelt in pieces so that this file passes its own check.
BANNED = [re.compile(pattern) for pattern in
          ("/wo" r"rk/", r"\bfa" r"rm-", r"\bTO" r"DO\b", r"\bFIX" r"ME\b", r"\bX" r"XX\b")]
SOURCE = (".hpp", ".cpp", ".h", ".py", ".sh", ".build", ".txt", ".md", ".ini", ".wrap", ".yml", ".yaml", ".toml",
          ".clang-format")
OPENMP = re.compile(r'#\s*pragma\s+omp|_Pragma\s*\(\s*"\s*omp|#\s*include\s*<omp\.h>')
FMA = re.compile(r"\bstd::fma[fl]?\b|\b__builtin_fma[fl]?\b|(?<![\w:])::fma[fl]?\b")
HEAVY = ("iostream", "regex", "ranges", "format", "expected", "source_location")
DATA = ("tests/golden/", "tests/demo/")
CALLS = {
    "prints": r"\b(?:printf|fprintf|vprintf|vfprintf|puts|fputs|putchar|perror)\s*\(|\bstd::(?:cout|cerr|clog)\b",
    "ends the process": r"(?<![\w.>:])(?:std::|::)?(?:exit|_exit|_Exit|quick_exit|abort|terminate)\s*\(",
    "reads the environment": r"\b(?:secure_)?getenv\s*\(",
    "reads a clock": r"\bstd::chrono::\w*clock\b|\bclock_gettime\s*\(|\bgettimeofday\s*\(",
}
# Statistics of the disk reader: nothing computed depends on them.
CLOCK_FILES = ("k3/io/detail/depth_meter.hpp", "k3/io/stopwatch.hpp")


def is_table(path):
    """Generated or numeric tables may be long: their names say so."""
    stem = os.path.basename(path).rsplit(".", 1)[0]
    return stem.endswith("_table") or stem.endswith("_tables")


def guard_of(path):
    return re.sub(r"[^A-Z0-9]", "_", path[:-len(".hpp")].upper()) + "_HPP"


def anchors(text):
    """GitHub's anchors of a Markdown text."""
    found, inside = {}, False
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            inside = not inside
        match = None if inside else re.match(r"#{1,6}\s+(.*?)\s*#*$", line)
        if match:
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match.group(1)).lower()
            slug = re.sub(r"[^\w\- ]", "", plain.replace("`", "")).replace(" ", "-")
            seen = found.get(slug, 0)
            found[slug] = seen + 1
            if seen:
                found[f"{slug}-{seen}"] = 1
    return set(found) | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


def code_checks(report, source, files):
    headers = [path for path in files if path.startswith("k3/") and path.endswith(".hpp")]
    report.check("k3/ holds headers only",
                 [path for path in files if path.startswith("k3/") and not path.endswith(".hpp")])
    raw = {path: checks.read(source, path) for path in headers}
    bare = {path: checks.uncommented(text, keep_strings=False) for path, text in raw.items()}

    long_files = [f"{path} has {text.count(chr(10))} lines" for path, text in
                  ((path, checks.read(source, path)) for path in files
                   if path.endswith((".hpp", ".cpp")) and path.split("/")[0] in ("k3", "drivers", "bench"))
                  if text.count("\n") > MAX_LINES and not is_table(path)]
    report.check(f"sources have at most {MAX_LINES} lines (tables and tests apart)", long_files)

    omp, fma, heavy = [], [], []
    for path, text in raw.items():
        code = bare[path]
        with_strings = checks.uncommented(text)
        if path != "k3/core/parallel.hpp":
            omp += [f"{path}:{checks.line_of(with_strings, match.start())}: {match.group(0)}"
                    for match in OPENMP.finditer(with_strings)]
        fma += [f"{path}:{checks.line_of(code, match.start())}: {match.group(0)}" for match in FMA.finditer(code)]
        heavy += [f"{path} includes <{name}>" for name in HEAVY if re.search(rf"#\s*include\s*<{name}>", code)]
    report.check("OpenMP is spoken in k3/core/parallel.hpp only", omp)
    report.check("no std::fma: products that are not exact must not fuse", fma)
    report.check("k3/ includes no <iostream>, <regex>, <ranges>, nor what both compilers lack", heavy)

    for what, pattern in CALLS.items():
        compiled = re.compile(pattern)
        found = [f"{path}:{checks.line_of(code, match.start())}: {match.group(0).strip()}"
                 for path, code in bare.items() for match in compiled.finditer(code)
                 if what != "reads a clock" or path not in CLOCK_FILES]
        report.check(f"nothing in k3/ {what}", found)

    guards = []
    for path, text in raw.items():
        want = guard_of(path)
        lines = [line.strip() for line in checks.uncommented(text).split("\n") if line.strip()]
        if lines[:2] != [f"#ifndef {want}", f"#define {want}"] or lines[-1] != "#endif":
            guards.append(f"{path}: the guard must be {want}, first line to last")
    report.check("include guards are K3_FOLDER_FILE_HPP and enclose the file", guards)

    report.check("sources in k3/ are ASCII, without tabs or carriage returns",
                 [f"{path}:{checks.line_of(text, match.start())}: {match.group(0)!r}" for path, text in raw.items()
                  for match in [re.search(r"[^\n\x20-\x7e]", text)] if match])
    report.check("line ends: no trailing spaces in k3/, drivers/, tests/, bench/",
                 [f"{path}:{checks.line_of(text, match.start())}" for path, text in
                  ((path, checks.read(source, path)) for path in files
                   if path.endswith((".hpp", ".cpp")) and path.split("/")[0] in ("k3", "drivers", "tests", "bench"))
                  for match in [re.search(r"[ \t]+$", text, re.M)] if match])


def umbrella_check(report, source, files):
    name = "k3/k3.hpp lists every header, in rank order"
    if "k3/k3.hpp" not in files:
        report.skip(name, "no such file yet")
        return
    listed = [target for _, target in checks.includes(checks.read(source, "k3/k3.hpp"))]
    # Reached through others, or for arch units only: per-arch files, implementation files, detail folders.
    wanted = [path for path in files if path.startswith("k3/") and path.endswith(".hpp")
              and path not in checks.UMBRELLAS and "/detail/" not in path and not checks.arch_of(path)
              and not path.endswith(("_impl.hpp", "_scalar.hpp"))]
    expanded = []
    for target in listed:
        if target == "k3/kernels.hpp":
            expanded += [inner for _, inner in checks.includes(checks.read(source, target))]
        expanded.append(target)
    problems = [f"{path} is not listed" for path in wanted if path not in expanded]
    problems += [f"{path} is listed twice" for path in sorted(set(listed)) if listed.count(path) > 1]
    ranked = [(checks.RANKS[checks.folder_of(path)], path) for path in listed
              if checks.folder_of(path) in checks.RANKS]
    problems += [f"{after} (rank {b}) comes after {before} (rank {a})"
                 for (a, before), (b, after) in zip(ranked, ranked[1:]) if b < a]
    report.check(name, problems)


def text_checks(report, source, files):
    banned = []
    for path in files:
        if path.startswith(DATA) and not path.endswith(".md"):
            continue
        text = None
        if path.endswith(SOURCE) or os.path.basename(path) in ("meson_options.txt", "LICENSE"):
            text = checks.read(source, path)
        elif "." not in os.path.basename(path):
            text = checks.read(source, path)
            text = text if text.startswith("#!") else None
        if text is None or path == "LICENSE":
            continue
        banned += [f"{path}:{checks.line_of(text, match.start())}: {match.group(0)}" for pattern in BANNED
                   for match in pattern.finditer(text)]
    report.check("no machine paths, names of local tools or loose ends", banned)

    broken, texts = [], {path: checks.read(source, path) for path in files if path.endswith(".md")}
    known = set(files) | {parent for path in files for parent in parents(path)}
    for path, text in texts.items():
        plain = re.sub(r"```.*?```", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.S)
        plain = re.sub(r"`[^`\n]*`", "", plain)
        for match in re.finditer(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)", plain):
            target = match.group(1)
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            full = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
            if file.startswith("/") or full not in known and full != ".":
                broken.append(f"{path}:{checks.line_of(plain, match.start())}: {target}")
            elif anchor and full in texts and anchor.lower() not in anchors(texts[full]):
                broken.append(f"{path}:{checks.line_of(plain, match.start())}: no heading #{anchor} in {full}")
    report.check("every link of the documents leads somewhere", broken)

    # subprojects/ holds pins, and the build descriptions we wrote for archives that have none.
    strangers = [path for path in files if path.startswith("subprojects/") and not path.endswith(".wrap")
                 and not re.fullmatch(r"subprojects/packagefiles/\w+/meson\.build|subprojects/\.gitignore", path)]
    strangers += [path for path in files
                  if re.search(r"(^|/)(third_party|thirdparty|vendor|external|extern|deps)/", path)]
    strangers += [path for path in files if os.path.basename(path) in
                  ("doctest.h", "json.hpp", "simdjson.h", "simdjson.cpp", "CLI11.hpp", "xsimd.hpp")]
    report.check("no third-party code in the repository", strangers)

    report.check("scripts start with #! and are executable",
                 [path for path in files if path in ("tests/run", "drivers/demo", ".ci/run")
                  and not (checks.read(source, path).startswith("#!")
                           and os.access(os.path.join(source, path), os.X_OK))])


def format_check(report, source, files):
    """Only version 14 counts: others lay out the same style differently."""
    name = "C++ is laid out by .clang-format"
    if ".clang-format" not in files:
        report.skip(name, "there is no .clang-format")
        return
    for tool in ("clang-format-14", "clang-format"):
        if shutil.which(tool):
            version = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False).stdout
            if re.search(r"version 14\.", version):
                break
    else:
        report.skip(name, "clang-format 14 is not installed")
        return
    # The texts are compared: --dry-run reports changes that change nothing.
    report.check(name, [f"{path}: run {tool} -i on it" for path in files if path.endswith((".hpp", ".cpp"))
                        and subprocess.run([tool, path], cwd=source, capture_output=True, check=False).stdout
                        != checks.read(source, path).encode()])


def parents(path):
    while "/" in path:
        path = path.rsplit("/", 1)[0]
        yield path


def main():
    args = checks.arguments(__doc__)
    report = checks.Report()
    files = checks.tracked(args.source)
    code_checks(report, args.source, files)
    umbrella_check(report, args.source, files)
    text_checks(report, args.source, files)
    format_check(report, args.source, files)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
