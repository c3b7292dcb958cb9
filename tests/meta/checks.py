"""Shared by the meta checks: arguments, the report, and reading the tree."""
import argparse
import os
import re
import subprocess
import sys

RANKS = {"core": 0, "simd": 1, "io": 1, "checkpoint": 2, "formats": 2, "text": 2, "kernels": 3, "layers": 4, "model": 5,
         "stream": 6, "engine": 7}
KERNEL_FOLDERS = ("core", "simd", "formats", "kernels", "layers")  # xsimd and OpenMP, nothing else
UMBRELLAS = ("k3/k3.hpp", "k3/kernels.hpp")
# What one unit of each arch may be compiled with; a name that ends in the arch's name is compiled so.
ARCH_FLAGS = {"sse42": ["-msse4.2"], "avx2": ["-mavx2", "-mfma"],
              "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"], "neon": []}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
MODULE_SKIP = 77


class Report:
    """One line per check; finish() prints the sum and gives the exit code."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def check(self, name, problems):
        """`problems`: a list of sentences; none means passed."""
        problems = list(problems)
        if problems:
            self.failed += 1
            print(f"FAILED   {name}")
            for problem in problems[:50]:
                print(f"         {problem}")
            if len(problems) > 50:
                print(f"         ... and {len(problems) - 50} more")
        else:
            self.passed += 1
            print(f"ok       {name}")
        sys.stdout.flush()

    def skip(self, name, reason):
        self.skipped += 1
        print(f"skipped  {name}: {reason}")

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        if self.failed:
            return 1
        return 0 if self.passed else MODULE_SKIP


def arguments(text):
    parser = argparse.ArgumentParser(description=text)
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--source", default=os.path.dirname(os.path.dirname(here)))
    parser.add_argument("--build", default=None, help="a meson build directory")
    parser.add_argument("--buildtype", default="release")
    args = parser.parse_args()
    args.source = os.path.abspath(args.source)
    args.build = os.path.abspath(args.build or os.path.join(args.source, "build"))
    return args


def read(source, path):
    with open(os.path.join(source, path), encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def headers(source):
    """Every header under k3/, as paths from the root, sorted."""
    found = []
    for folder, _, names in os.walk(os.path.join(source, "k3")):
        found += [os.path.relpath(os.path.join(folder, name), source) for name in names if name.endswith(".hpp")]
    return sorted(found)


def folder_of(path):
    """k3/simd/lanes.hpp -> simd; k3/k3.hpp -> ''."""
    parts = path.split("/")
    return parts[1] if len(parts) > 2 else ""


def arch_of(path):
    """The arch whose flags a header needs, by its name: lanes_avx2.hpp -> avx2; else None."""
    stem = os.path.basename(path).rsplit(".", 1)[0]
    return next((arch for arch in ARCH_FLAGS if stem == arch or stem.endswith("_" + arch)), None)


def uncommented(text, keep_strings=True):
    """C++ without comments (and, if asked, without the insides of string and character literals); lines stay put."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^( ]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
                         r"|(?<![0-9A-Za-z])'(?:\\.|[^'\\\n])+'", re.S)

    def replace(match):
        found = match.group(0)
        if found.startswith("/"):
            return " " + "\n" * found.count("\n")
        if keep_strings:
            return found
        return '""' + "\n" * found.count("\n")

    return pattern.sub(replace, text)


def includes(text):
    """[(bracket, target)] of the include lines."""
    return [(match.group(1), match.group(2)) for match in INCLUDE.finditer(uncommented(text))]


def tracked(source):
    """Files of the repository: what git knows or would add; without git, the tree without build directories."""
    try:
        done = subprocess.run(["git", "-C", source, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                              capture_output=True, check=True)
        names = [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
        names = [name for name in names if os.path.isfile(os.path.join(source, name))]
        if names:
            return sorted(set(names))
    except (OSError, subprocess.CalledProcessError):
        pass
    found = []
    for folder, folders, names in os.walk(source):
        if folder == source:
            folders[:] = [name for name in folders if name != ".git" and not name.startswith("build")]
        found += [os.path.relpath(os.path.join(folder, name), source) for name in names]
    return sorted(found)


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def pkg_config(*words):
    import shlex
    done = subprocess.run(["pkg-config", *words], capture_output=True, text=True)
    return shlex.split(done.stdout) if done.returncode == 0 else None
