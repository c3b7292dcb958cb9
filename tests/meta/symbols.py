#!/usr/bin/env python3
"""The objects that are compiled with wide flags hold nothing that another unit could pick up by accident.

The linker keeps one copy of a weak symbol. If that copy came from a wide unit, a narrow machine dies of an illegal
instruction (or a wide one computes other bits). So in a release build every weak function of an arch archive
(libk3_*arch_<name>.a) carries the arch's tag in its name; none comes from std:: or xsimd::; the code uses its own
arch's registers only; nothing runs before main. A vectorised module of k3-bench exports one function only."""
import os
import re
import shutil
import subprocess
import sys

import checks

MODULE = re.compile(r"^k3_bench_eigen_\w+\.so$")  # wide code that is loaded at run time
MODULE_EXPORTS = ["k3_bench_eigen_sgemm"]
ARCHIVE = re.compile(r"^libk3_(?:\w+_)?arch_(scalar|sse42|avx2|avx512|neon)\.a$")
# Weak functions that may appear untagged, and why.
ALLOWED = {
    "__clang_call_terminate": "clang's own helper of noexcept; calls only",
}
ALLOWED_PREFIXES = (
    "DW.ref.",  # exception personality references: data in all but name
)
FOREIGN = ("std::", "__gnu_cxx::", "xsimd::")
# The inline namespace (k3/simd/arch.hpp, K3_TARGET) that a unit of each arch puts its names in.
TARGETS = {"scalar": "unit_(?:x86_64|aarch64)", "sse42": "unit_sse42", "avx2": "unit_avx2", "avx512": "unit_avx512",
           "neon": "unit_aarch64"}
# Registers and encodings that an arch's code must not contain.
X86_BANNED = {
    "scalar": (re.compile(r"%[yz]mm|%k[1-7]|\tv[a-z]"), "VEX instructions, ymm or zmm"),
    "sse42": (re.compile(r"%[yz]mm|%k[1-7]|\tv[a-z]"), "VEX instructions, ymm or zmm"),
    "avx2": (re.compile(r"%zmm|%k[1-7]|%[xy]mm(?:1[6-9]|2\d|3[01])"), "zmm, mask registers or registers above 15"),
}


def run(*words):
    return subprocess.run(words, capture_output=True, text=True, errors="replace", check=True).stdout


def weak_functions(archive):
    """(object, demangled name) of every defined weak or unique function."""
    found, member = [], ""
    for line in run("readelf", "-sW", archive).split("\n"):
        if line.startswith("File:"):
            member = line.split(":", 1)[1].strip()
            continue
        words = line.split()
        if len(words) >= 8 and words[3] in ("FUNC", "IFUNC") and words[4] in ("WEAK", "UNIQUE") and words[6] != "UND":
            found.append((member, words[7]))
    if not found:
        return []
    names = subprocess.run(["c++filt"], input="\n".join(name for _, name in found), capture_output=True, text=True,
                           check=True).stdout.split("\n")
    return [(member, name) for (member, _), name in zip(found, names)]


def tagged(name, arch):
    """True when the demangled name mentions k3's tag of this arch, or the inline namespace of its units."""
    return re.search(rf"\bk3::simd::(?:\w+::)?{arch}\b|\bk3::(?:\w+::)*{TARGETS[arch]}\b", name) is not None


def own_name(name):
    """The qualified name of the function itself, without return type, template arguments and parameters."""
    name = name.replace("(anonymous namespace)", "anonymous")
    name = re.sub(r"operator\s*(?:\(\)|<=>|<<=?|>>=?|<=?|>=?|->\*?)", "operator_", name)
    kept, depth = "", 0
    for letter in name:
        if letter == "(" and depth == 0:
            break
        depth += letter in "<([{"
        if depth == 0:
            kept += letter
        depth -= letter in ">)]}"
    return kept.strip().split(" ")[-1].lstrip("*&")


def check_archive(report, path, arch, machine):
    label = os.path.basename(path)
    weak = weak_functions(path)
    untagged, foreign = [], []
    for member, name in weak:
        if name in ALLOWED or name.startswith(ALLOWED_PREFIXES):
            continue
        if own_name(name).startswith(FOREIGN):
            foreign.append(name)
        elif not tagged(name, arch):
            untagged.append(name)
    report.check(f"{label}: every weak function of ours is tagged {arch} ({len(weak)} weak functions)",
                 sorted(set(untagged)))
    report.check(f"{label}: no weak function of std:: or xsimd::", sorted(set(foreign)))

    sections = run("readelf", "-SW", path)
    symbols = run("nm", path)
    problems = sorted(set(re.findall(r"\.(?:pre)?init_array\S*|\.ctors\S*", sections)))
    problems += sorted(set(re.findall(r"_GLOBAL__sub_I\S*|__cxa_atexit|__cxa_guard_acquire", symbols)))
    report.check(f"{label}: nothing runs before main, no guarded statics", problems)

    if machine == "x86" and arch in X86_BANNED:
        pattern, what = X86_BANNED[arch]
        problems, function = {}, "?"
        listing = run("objdump", "-dC", "--no-show-raw-insn", path)
        for line in listing.split("\n"):
            if line.endswith(">:"):
                function = line.split("<", 1)[1][:-2]
            elif "\t" in line and pattern.search(line):
                problems.setdefault(function, line.strip())
        report.check(f"{label}: no {what}", [f"{name}: {line}" for name, line in problems.items()])


def check_module(report, path):
    """A module shares no function with the program in either direction if it exports nothing else."""
    exported = [line.split()[-1] for line in run("nm", "-D", "--defined-only", path).split("\n") if line.strip()]
    report.check(f"{os.path.basename(path)}: exports one function and nothing else",
                 [] if exported == MODULE_EXPORTS else exported or ["it exports nothing"])
    problems = sorted(set(re.findall(r" u .*| i .*", run("nm", "-D", path))))
    report.check(f"{os.path.basename(path)}: no symbol that is unique in a process", problems)


def main():
    args = checks.arguments(__doc__)
    report = checks.Report()
    if args.buildtype not in ("release", "minsize"):
        report.skip("symbols of the arch archives",
                    f"a {args.buildtype} build keeps helpers out of line; release is checked")
        return report.finish()
    if not all(shutil.which(tool) for tool in ("readelf", "nm", "objdump", "c++filt")):
        report.skip("symbols of the arch archives", "binutils are not installed")
        return report.finish()
    archives, modules = [], []
    for folder, _, names in os.walk(args.build):
        matches = ((name, ARCHIVE.match(name)) for name in names)
        archives += [(os.path.join(folder, name), match.group(1)) for name, match in matches if match]
        modules += [os.path.join(folder, name) for name in names if MODULE.match(name)]
    for path in sorted(modules):
        check_module(report, path)
    if not archives:
        report.skip("symbols of the arch archives", "this build has no libk3_arch_<name>.a")
    for path, arch in sorted(archives):
        header = run("readelf", "-hW", path)
        machine = "x86" if "X86-64" in header else "other"
        if ".gnu.lto_" in run("readelf", "-SW", path):
            report.skip(os.path.basename(path), "built for link-time optimisation")
            continue
        check_archive(report, path, arch, machine)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
