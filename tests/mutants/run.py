#!/usr/bin/env python3
"""Puts the wrong variants of mutants.py into a scratch copy of the sources, one at a time, and runs the tests that
should notice. By hand, not in CI:

    tests/mutants/run.py                  all of them
    tests/mutants/run.py --only kda-tap-order --only bf16-high-half
    tests/mutants/run.py --resume         all but those whose entry is the same and was killed before
    tests/mutants/run.py --check          only whether every old text is still there, once
    tests/mutants/run.py --markdown FILE  also writes the table of results

Prints `killed  ID  trap N  by "TEST CASE"` or `SURVIVED`, then `N killed, N survived, N not applicable`. Exits 1 if a
mutant survived, if an old text no longer matches, if a mutant does not compile, or if a test fails without a mutant.

The copy is built for the scalar arch alone, at -O1: the wide arches are cut out of the copy, so a mutant cannot be
noticed merely because they still have the right code. Every tests/FOLDER/test_NAME.cpp becomes a program of its own.
A mutant below the seam (kernels, layers, forward) first gets only its arch units rebuilt, linked before the rest; if
it survives that, everything that includes the file is rebuilt too before it counts as a survivor.

For x86-64. Needs g++, xsimd, simdjson, nlohmann-json, PCRE2, Eigen and doctest from the system, as tests/run installs them.
"""
import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import mutants as table  # noqa: E402

MAIN = "tests/support/main.cpp"
# A unit is linked into a program if the program's objects include the header.
ARCH_UNITS = {"drivers/kernel_table/kernel_table.hpp": "drivers/kernel_table/arch_scalar.cpp",
              "tests/layers/table.hpp": "tests/layers/arch_scalar.cpp",
              "k3/model/forward.hpp": "drivers/arch_scalar.cpp"}
BELOW_THE_SEAM = ("k3/core/", "k3/simd/", "k3/formats/", "k3/kernels/", "k3/layers/", "k3/model/forward_impl.hpp")
COPIED = ("k3", "drivers", "tests")
TIMEOUT = 900  # seconds of one program; what takes longer hangs, and that is noticed too


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


# Where arches are listed by the processor. In the copy there is no such processor.
ARCH_LISTS = ("k3/engine/arches.hpp", "k3/engine/cpu_arches.hpp", "drivers/kernel_table/cpu.hpp", "tests/layers/data.hpp")


def scalar_only(path, text):
    """Cuts the wide arches out of the lists of arches."""
    if path not in ARCH_LISTS:
        return text
    cut = text.replace("#if defined(__x86_64__)", "#if 0").replace("#elif defined(__aarch64__)", "#elif 0")
    if cut == text:
        raise SystemExit(f"{path} lists no arches by the processor: mend ARCH_LISTS")
    return cut


def find_blind(text, wanted):
    """Where `wanted` stands in `text`, white space aside (the formatter may break a line elsewhere): (begin, end) pairs."""
    at = [i for i, c in enumerate(text) if not c.isspace()]
    squeezed, wanted = "".join(text[i] for i in at), "".join(wanted.split())
    found, i = [], squeezed.find(wanted)
    while i >= 0:
        found.append((at[i], at[i + len(wanted) - 1] + 1))
        i = squeezed.find(wanted, i + 1)
    return found


class Failure(Exception):
    """A program or the compiler said no; the text says which."""


class Tree:
    """The scratch copy, its objects and programs."""

    def __init__(self, source, work, keep_copy=False):
        self.source, self.work = source, work
        self.root = os.path.join(work, "tree")
        self.mutated = {}  # path -> text, while a mutant is in place
        self.digests = {}
        self.flags = ["-std=c++20", "-O1", "-fopenmp", "-ffp-contract=off", "-DNDEBUG", "-w", "-DEIGEN_DONT_VECTORIZE",
                      f'-DK3_SOURCE_DIR="{self.root}"', f'-DK3_TEST_DATA="{self.root}/tests"',
                      f"-I{self.root}", f"-I{self.root}/tests"] + self.packages("--cflags")
        self.libraries = self.packages("--libs") + ["-pthread"]
        self.compiler = os.environ.get("CXX", "g++")
        if not keep_copy:
            self.sync()

    @staticmethod
    def packages(what):
        names = ["simdjson", "nlohmann_json", "libpcre2-8", "eigen3"] + (["xsimd"] if what == "--cflags" else [])
        return subprocess.run(["pkg-config", what] + names, check=True, capture_output=True, text=True).stdout.split()

    def sync(self):
        """Brings the copy up to date; a file whose text is the same keeps its time."""
        seen = set()
        for top in COPIED:
            for folder, folders, names in os.walk(os.path.join(self.source, top)):
                folders[:] = [name for name in folders if name not in ("__pycache__", "meta")]
                for name in names:
                    path = os.path.relpath(os.path.join(folder, name), self.source)
                    seen.add(path)
                    self.copy(path)
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = os.path.relpath(os.path.join(folder, name), self.root)
                if path not in seen:
                    os.remove(os.path.join(self.root, path))

    def copy(self, path):
        old, new = os.path.join(self.root, path), os.path.join(self.source, path)
        if path.endswith((".hpp", ".cpp")):
            text = scalar_only(path, read(new))
            if not os.path.exists(old) or read(old) != text:
                write(old, text)
        elif not os.path.exists(old) or os.path.getmtime(old) < os.path.getmtime(new):
            os.makedirs(os.path.dirname(old), exist_ok=True)
            shutil.copyfile(new, old)

    # --- mutants in and out

    def apply(self, mutant):
        for path, before, after in mutant.edits:
            full = os.path.join(self.root, path)
            text = read(full)
            places = find_blind(text, before)
            if len(places) != 1:
                self.restore()
                raise Failure(f"the old text occurs {len(places)} times in {path}, not once")
            self.mutated.setdefault(path, (text, os.stat(full)))
            begin, end = places[0]
            write(full, text[:begin] + after.strip() + text[end:])

    def restore(self):
        for path, (text, stat) in self.mutated.items():
            full = os.path.join(self.root, path)
            write(full, text)
            os.utime(full, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        self.mutated = {}

    # --- objects and programs

    def names_of(self, source, variant):
        stem = os.path.join(self.work, variant, source.replace("/", "-")[:-len(".cpp")])
        return stem + ".o", stem + ".d"

    @staticmethod
    def includes(depfile):
        """Everything an object depends on, as paths."""
        text = read(depfile).replace("\\\n", " ")
        return text.split(":", 1)[1].split()

    def digest(self, path):
        """Of a file's text; by content, since a mutant comes and goes."""
        stat = os.stat(path)
        key = (path, stat.st_mtime_ns, stat.st_size)
        if key not in self.digests:
            with open(path, "rb") as file:
                self.digests[key] = hashlib.sha256(file.read()).hexdigest()
        return self.digests[key]

    def inputs(self, dep):
        return {path: self.digest(path) for path in self.includes(dep) if path.startswith(self.root)}

    def is_fresh(self, obj, dep):
        stamp = obj + ".json"
        if not all(map(os.path.exists, (obj, dep, stamp))):
            return False
        then = json.loads(read(stamp))
        return all(os.path.exists(path) and self.digest(path) == digest for path, digest in then.items())

    def compile(self, source, variant, extra):
        obj, dep = self.names_of(source, variant)
        os.makedirs(os.path.dirname(obj), exist_ok=True)
        command = [self.compiler, *self.flags, *extra, "-MD", "-MF", dep, "-c", os.path.join(self.root, source), "-o", obj]
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            raise Failure(f"{source} does not compile within {TIMEOUT} s") from None
        if run.returncode != 0:
            if os.path.exists(obj):
                os.remove(obj)
            lines = [line for line in run.stderr.split("\n") if "error" in line] or ["no message"]
            raise Failure(f"{source} does not compile: {lines[0][-200:]}")
        write(obj + ".json", json.dumps(self.inputs(dep)))
        return obj

    def base(self, source):
        """The object without mutants; brought up to date when first needed, which prepare() does before a mutant."""
        obj, dep = self.names_of(source, "base")
        if not self.mutated and not self.is_fresh(obj, dep):
            self.compile(source, "base", [])
        return obj

    def sources_of(self, unit):
        """The program's sources: the test, then the arch units it needs."""
        main = [MAIN] if re.search(r"DOCTEST_CONFIG_IMPLEMENT", read(os.path.join(self.root, unit))) is None else []
        self.base(unit)
        included = {os.path.relpath(path, self.root) for path in self.includes(self.names_of(unit, "base")[1])}
        archs = [arch for header, arch in ARCH_UNITS.items()
                 if header in included and os.path.exists(os.path.join(self.root, arch))]
        return archs, [unit] + main

    def prepare(self, unit):
        archs, rest = self.sources_of(unit)
        for source in archs + rest:
            self.base(source)

    def touched(self, source):
        dep = self.names_of(source, "base")[1]
        included = {os.path.relpath(path, self.root) for path in self.includes(dep)}
        return any(path in included for path in self.mutated)

    def link(self, unit, program, objects):
        command = [self.compiler, *objects, "-o", program, "-fopenmp", *self.libraries]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode != 0:
            raise Failure(f"{unit} does not link: {run.stderr.strip().split(chr(10))[-2:]}")

    def program(self, unit, variant, extra=(), whole=False, built=None):
        """The path of a test program. `variant` names its folder; with a mutant in place what it touches is rebuilt:
        arch units, and with `whole` everything. `built` remembers what this variant already has."""
        built = {} if built is None else built
        archs, rest = self.sources_of(unit)
        objects = []
        for source in archs + rest:
            is_arch = source in archs
            if (self.mutated and self.touched(source) and (whole or is_arch)) or (extra and is_arch):
                if source not in built:
                    built[source] = self.compile(source, variant, list(extra) if is_arch else [])
                objects.append(built[source])
            else:
                objects.append(self.base(source))
        program = os.path.join(self.work, variant, unit.replace("/", "-")[:-len(".cpp")])
        os.makedirs(os.path.dirname(program), exist_ok=True)
        if variant != "base" or not os.path.exists(program) or any(
                os.stat(obj).st_mtime_ns > os.stat(program).st_mtime_ns for obj in objects):
            self.link(unit, program, objects)
        return program, any(obj in built.values() for obj in objects)


def launch(command):
    environment = dict(os.environ, OMP_WAIT_POLICY="passive")
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT, env=environment)


def case_filter(option, names):
    return [f"-{option}=" + ",".join(re.sub(r'[,\\"]', "?", name) for name in names)] if names else []


def run_cases(program, names=(), without=()):
    """The name of the first case that fails, in a list; empty if none does. `names`: only these."""
    command = [program, "--no-colors=true", *case_filter("tc", names), *case_filter("tce", without)]
    try:
        run = launch(command + ["--abort-after=1"])
    except subprocess.TimeoutExpired:
        return [f"{os.path.basename(program)} (not over after {TIMEOUT} s)"]
    if run.returncode == 0:
        return []
    failed = [name.strip() for name in re.findall(r"^TEST CASE:\s*(.*)$", run.stdout, re.M)]
    return failed[:1] or [f"{os.path.basename(program)} (exit code {run.returncode})"]


def case_names(program):
    run = launch([program, "--no-colors=true", "--list-test-cases"])
    return [line for line in run.stdout.split("\n") if line and not line.startswith(("[doctest]", "====="))]


def expand(tree, names):
    """layers -> every tests/layers/test_*.cpp; layers/test_kda -> that one. What is not there yet is left out."""
    units = []
    for name in names:
        folder = os.path.join(tree.root, "tests", name)
        if os.path.isdir(folder):
            units += sorted(f"tests/{name}/{file}" for file in os.listdir(folder)
                            if file.startswith("test_") and file.endswith(".cpp"))
        elif os.path.exists(folder + ".cpp"):
            units.append(f"tests/{name}.cpp")
    return list(dict.fromkeys(units))


def about_trap(traps, name):
    """Whether a test's name mentions one of the traps by number: "trap 3", "traps 8 and 9", "traps 33 to 40"."""
    mentioned = set()
    for numbers in re.findall(r"\btraps? (\d+(?:(?:, | and | to )\d+)*)", name):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", numbers):
            mentioned.update(range(int(first), int(last or first) + 1))
    return not mentioned.isdisjoint(traps)


class Runner:
    def __init__(self, tree, results_path):
        self.tree, self.results_path = tree, results_path
        self.results = json.loads(read(results_path)) if os.path.exists(results_path) else {}
        self.broken = {}  # (unit, case) -> True where a case fails without a mutant

    def save(self):
        write(self.results_path, json.dumps(self.results, indent=1))

    @staticmethod
    def fingerprint(mutant):
        return hashlib.sha256(repr((mutant.edits, mutant.flags, mutant.traps)).encode()).hexdigest()

    def build(self, unit, mutant, whole, built):
        """The program with the mutant in it, or None if the mutant is not in it. The tree is clean before and after."""
        self.tree.prepare(unit)
        self.tree.apply(mutant)
        try:
            program, changed = self.tree.program(unit, "mutant", mutant.flags, whole, built)
        finally:
            self.tree.restore()
        return program if changed else None

    def passes_without(self, unit, case, flags):
        """Whether the case passes when nothing is wrong, in a program built alike. Remembered for that program."""
        variant = "base" if not flags else "base" + re.sub(r"\W+", "_", " ".join(flags))
        program = self.tree.program(unit, variant, flags)[0]
        with open(program, "rb") as file:
            key = "control " + hashlib.sha256(file.read()).hexdigest() + " " + case
        if key not in self.results:
            self.results[key] = run_cases(program, [case] if case in case_names(program) else [])
            self.save()
        if self.results[key]:
            print(f'CONTROL  {unit} fails without a mutant: "{case}"', flush=True)
            self.broken[unit, case] = True
        return not self.results[key]

    def failing_case(self, unit, program, mutant, only_its_trap):
        """The case that fails because of the mutant, or None."""
        names = case_names(program)
        if only_its_trap:
            names = [name for name in names if about_trap(mutant.traps, name)]
        while True:
            without = [name for name in names if (unit, name) in self.broken]
            wanted = [name for name in names if name not in without] if only_its_trap else ()
            if only_its_trap and not wanted:
                return None
            failed = run_cases(program, wanted, without)
            if not failed or self.passes_without(unit, failed[0], mutant.flags):
                return failed[0] if failed else None
            if failed[0] not in names:  # it ends without naming a case: nothing can be left out
                return None

    def kill(self, mutant, units, whole):
        """The case that notices the mutant, or None. First the cases whose name has the trap's number."""
        built, programs = {}, {}
        shutil.rmtree(os.path.join(self.tree.work, "mutant"), ignore_errors=True)
        for only_its_trap in (True, False) if mutant.traps else (False,):
            for unit in units:
                if unit not in programs:
                    if only_its_trap and not any(about_trap(mutant.traps, line)
                                                 for line in read(os.path.join(self.tree.root, unit)).split("\n")):
                        continue
                    programs[unit] = self.build(unit, mutant, whole, built)
                failed = self.failing_case(unit, programs[unit], mutant, only_its_trap) if programs[unit] else None
                if failed:
                    return failed
        return None

    def run(self, mutant):
        """(status, text)"""
        units = expand(self.tree, mutant.tests)
        if not units:
            return "SURVIVED", "its tests are not there"
        try:
            killer = None
            if all(path.startswith(BELOW_THE_SEAM) for path, _, _ in mutant.edits):
                killer = self.kill(mutant, units, whole=False)
            killer = killer or self.kill(mutant, units, whole=True)
        except Failure as failure:
            return "ERROR", str(failure)
        return ("killed", killer) if killer else ("SURVIVED", "")


def markdown(path, results):
    lines = ["# Results of the mutants", "",
             "Written by `tests/mutants/run.py --markdown`. Each row is one wrong variant put into the code by itself, and",
             "the test case that failed first. Trap numbers are those of [TRAPS](../../docs/TRAPS.md).", ""]
    killed = sum(1 for m in table.MUTANTS if results.get(m.id, {}).get("status") == "killed")
    survived = sum(1 for m in table.MUTANTS if results.get(m.id, {}).get("status") == "SURVIVED")
    open_ones = len(table.MUTANTS) - killed - survived
    lines += [f"{killed} killed, {survived} survived, {open_ones} not run yet; {len(table.NOT_APPLICABLE)} trap numbers not applicable.",
              "",
              "| mutant | trap | file | what is wrong | killed by |", "|---|---|---|---|---|"]
    for mutant in table.MUTANTS:
        result = results.get(mutant.id, {"status": "not run", "text": ""})
        by = result["text"] if result["status"] == "killed" else f"**{result['status']}** {result['text']}"
        if result.get("fingerprint", "") not in ("", Runner.fingerprint(mutant)):
            by += " (with an earlier text of this entry: run it again)"
        cells = [mutant.id, mutant.trap_text(), mutant.edits[0][0], mutant.wrong, by]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += ["", "## Not applicable", "", "| trap | why |", "|---|---|"]
    lines += [f"| {number} | {why} |" for number, why in table.NOT_APPLICABLE.items()]
    write(path, "\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--source", default=os.path.dirname(os.path.dirname(HERE)))
    parser.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "k3-mutants"), help="scratch folder, kept")
    parser.add_argument("--keep-copy", action="store_true", help="do not bring the scratch copy up to date first")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true", help="only check that the old texts match")
    parser.add_argument("--only", action="append", metavar="ID")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--markdown", metavar="FILE")
    args = parser.parse_args()
    if args.list:
        for mutant in table.MUTANTS:
            print(f"{mutant.id}  {mutant.trap_text()}  {', '.join(mutant.tests)}  {mutant.wrong}")
        return 0
    known = {mutant.id for mutant in table.MUTANTS}
    for wanted in args.only or []:
        if wanted not in known:
            parser.error(f"there is no mutant {wanted}; see --list")

    tree = Tree(os.path.abspath(args.source), os.path.abspath(args.work), args.keep_copy)
    stale = 0
    for mutant in table.MUTANTS:
        try:
            tree.apply(mutant)
        except Failure as failure:
            stale += 1
            print(f"STALE    {mutant.id}: {failure}", flush=True)
        tree.restore()
    if args.check:
        print(f"{len(table.MUTANTS) - stale} of {len(table.MUTANTS)} mutants fit the sources")
        return 1 if stale else 0

    runner = Runner(tree, os.path.join(tree.work, "results.json"))
    counts = {"killed": 0, "SURVIVED": 0, "ERROR": 0}
    for mutant in table.MUTANTS:
        if args.only and mutant.id not in args.only:
            continue
        stored, fingerprint = runner.results.get(mutant.id), runner.fingerprint(mutant)
        if not (args.resume and stored and stored["status"] == "killed" and stored["fingerprint"] == fingerprint):
            start = time.monotonic()
            status, text = runner.run(mutant)
            stored = {"status": status, "text": text, "fingerprint": fingerprint, "seconds": round(time.monotonic() - start, 1)}
            runner.results[mutant.id] = stored
            runner.save()
        counts[stored["status"]] += 1
        by = f'by "{stored["text"]}"' if stored["status"] == "killed" else stored["text"]
        print(f"{stored['status']:<8} {mutant.id}  {mutant.trap_text()}  {by}  ({stored['seconds']} s)", flush=True)
        if args.markdown:
            markdown(args.markdown, runner.results)
    if args.markdown:
        markdown(args.markdown, runner.results)
    if counts["ERROR"]:
        print(f"{counts['ERROR']} mutants could not be built")
    print(f"{counts['killed']} killed, {counts['SURVIVED']} survived, {len(table.NOT_APPLICABLE)} not applicable")
    return 1 if stale or runner.broken or counts["SURVIVED"] or counts["ERROR"] else 0


if __name__ == "__main__":
    sys.exit(main())
