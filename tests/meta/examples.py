#!/usr/bin/env python3
"""The programs in README.md and docs/API.md are files of tests/examples, and their commands print what the pages say.

A stranger's folder holds a copy of k3/, the examples, the arch units and the demo checkpoint; every block whose first
line begins with "$ " is run there. The four arch units of the engine are taken from this build (--full compiles them,
which takes minutes): their commands must name the flags that this build has used."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

import checks

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
ARCH_UNIT = re.compile(r"g\+\+ (.*) -c arch_(\w+)\.cpp")
ENGINE = ("simdjson", "nlohmann_json", "libpcre2-8")
X86 = os.uname().machine == "x86_64"


def section(page, title):
    return re.search(rf"^{re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.M | re.S).group(1)


def stranger(source, place):
    """The folder in which the commands run."""
    shutil.copytree(os.path.join(source, "k3"), os.path.join(place, "k3"))
    shutil.copytree(os.path.join(source, "tests/examples"), place, dirs_exist_ok=True)
    for name in os.listdir(os.path.join(source, "drivers")):
        if name.startswith("arch_"):
            shutil.copy(os.path.join(source, "drivers", name), place)
    os.symlink(os.path.join(source, "tests/demo/model"), os.path.join(place, "model"))


def steps(block):
    """[(command, what it prints)]; a command goes on in the next line after a backslash."""
    found = []
    for line in block.replace("\\\n", "\\\0").split("\n"):
        if line.startswith("$ "):
            found.append([line[2:].replace("\\\0", "\\\n"), ""])
        elif found and line:
            found[-1][1] += line + "\n"
    return found


def arch_unit(command, build, place):
    """Puts the object of this build where the command would; [] or what is wrong with the command."""
    flags, arch = ARCH_UNIT.match(command).groups()
    wanted = checks.ARCH_FLAGS.get(arch, [])
    given = [flag for flag in flags.split() if flag.startswith("-m")]
    if given != wanted:
        return [f"{command}: the flags of {arch} are {' '.join(wanted)}"]
    shutil.copy(os.path.join(build, f"drivers/libk3_arch_{arch}.a.p/arch_{arch}.cpp.o"),
                os.path.join(place, f"arch_{arch}.o"))
    return []


def run_block(block, args, place):
    for command, wanted in steps(block):
        if ARCH_UNIT.match(command) and not args.full:
            problems = arch_unit(command, args.build, place)
            if problems:
                return problems
            continue
        done = subprocess.run(["bash", "-ec", command], cwd=place, capture_output=True, text=True,
                              env=dict(os.environ, OMP_WAIT_POLICY="passive"))
        if done.returncode != 0:
            return [f"$ {command}", *(done.stderr or done.stdout).strip().split("\n")[-12:]]
        if done.stdout != wanted:
            return [f"$ {command}", f"prints {done.stdout!r}", f"the page has {wanted!r}"]
    return []


def main():
    full = "--full" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--full"]
    args = checks.arguments(__doc__)
    args.full = full
    report = checks.Report()
    pages = {"README.md": section(checks.read(args.source, "README.md"), "## Use the headers"),
             "docs/API.md": checks.read(args.source, "docs/API.md")}
    examples = [path for path in checks.tracked(args.source) if path.startswith("tests/examples/")]
    texts = {checks.read(args.source, path) for path in examples}
    report.check("every program that a page shows is a file of tests/examples",
                 [f"{page}: {text.splitlines()[0]}" for page, words in pages.items()
                  for kind, text in BLOCK.findall(words) if kind == "cpp" and text not in texts])
    report.check("every example is shown or linked", [path for path in examples if path.endswith(".cpp")
                                                      and os.path.basename(path) not in pages["docs/API.md"]])
    have_units = os.path.exists(os.path.join(args.build, "drivers/libk3_arch_scalar.a.p/arch_scalar.cpp.o"))
    with tempfile.TemporaryDirectory(prefix="k3-examples-") as place:
        stranger(args.source, place)
        for page, words in pages.items():
            for _, block in BLOCK.findall(words):
                if not block.startswith("$ "):
                    continue
                name = f"{page}: {steps(block)[-1][0]}"
                if not X86 and " -m" in block:
                    report.skip(name, "these are the flags of x86-64")
                elif "arch_" in block and not have_units and not args.full:
                    report.skip(name, "the arch units are not built")
                elif "pkg-config" in block and checks.pkg_config("--exists", *ENGINE) is None:
                    report.skip(name, "one of " + ", ".join(ENGINE) + " has no system package here")
                else:
                    report.check(name, run_block(block, args, place))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
