#!/usr/bin/env python3
"""A stranger's project builds against k3 in the three promised ways, and computes the same bits in each.

By copy: k3/ beside the sources, g++ -I, none of our flags (and once more with flags a stranger may have). By
subproject: this repository as subprojects/k3. By package: meson install into a staging directory, then pkg-config.
docs/API.md shows what is done here. tests/examples are built by copy too, in examples.py.
The projects' paths hold a space; the staging directory's does not: pkg-config cannot quote a redefined prefix."""
import glob
import os
import shutil
import subprocess
import sys
import tempfile

import checks

CXX = shutil.which("g++") or "c++"
PACKAGE = "g++ -std=c++20 -O2 main.cpp -o stranger $(pkg-config --cflags --libs k3)"


class Failed(Exception):
    pass


def run(words, **options):
    done = subprocess.run(words, capture_output=True, text=True, **options)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().split("\n")[-12:]
        raise Failed(f"{' '.join(words[:4])} ...: " + "\n         ".join(lines))
    return done.stdout


def copy_repository(source, to):
    """What a release archive would hold, without tests and their data."""
    os.makedirs(to)
    for path in checks.tracked(source):
        if path.split("/")[0] in ("tests", "docs", ".git", ".ci"):
            continue
        os.makedirs(os.path.dirname(os.path.join(to, path)), exist_ok=True)
        shutil.copy2(os.path.join(source, path), os.path.join(to, path))


def by_copy(source, place, flags):
    project = os.path.join(place, "by copy")
    if not os.path.isdir(project):
        shutil.copytree(os.path.join(source, "tests/meta/consumer"), project)
        shutil.copytree(os.path.join(source, "k3"), os.path.join(project, "k3"))
    xsimd = checks.pkg_config("--cflags", "xsimd") or []
    run([CXX, "-std=c++20", "-fopenmp", *flags, "-I", ".", *xsimd, "main.cpp", "-o", "stranger"], cwd=project)
    return run(["./stranger"], cwd=project)


def by_subproject(source, place):
    project = os.path.join(place, "by subproject")
    shutil.copytree(os.path.join(source, "tests/meta/consumer"), project)
    copy_repository(source, os.path.join(project, "subprojects/k3"))
    run(["meson", "setup", "out", "--force-fallback-for=k3,k3-kernels"], cwd=project)
    run(["meson", "compile", "-C", "out"], cwd=project)
    targets = run(["ninja", "-C", "out", "-t", "targets", "all"], cwd=project)
    if "subprojects/k3/drivers" in targets or "subprojects/k3/tests" in targets:
        raise Failed("as a subproject, k3 builds its drivers or tests")
    return run(["./out/stranger"], cwd=project)


def by_package(source, place):
    copy, stage = os.path.join(place, "k3 source"), os.path.join(place, "stage")
    copy_repository(source, copy)
    run(["meson", "setup", "out", "--prefix=/usr/local", "-Dtests=disabled", "-Dbench=disabled", "-Ddrivers=disabled"],
        cwd=copy)
    run(["meson", "install", "-C", "out", "--destdir", stage], cwd=copy)
    found = glob.glob(os.path.join(glob.escape(stage), "usr/local/**/k3.pc"), recursive=True)
    if len(found) != 1:
        raise Failed("meson install staged no k3.pc")
    where = [f"--define-variable=prefix={stage}/usr/local"]
    os.environ["PKG_CONFIG_PATH"] = os.path.dirname(found[0])
    flags = checks.pkg_config(*where, "--cflags", "--libs", "k3")
    if flags is None:
        raise Failed("pkg-config does not accept k3.pc")
    if "-ffp-contract=off" not in flags:
        raise Failed("k3.pc does not carry -ffp-contract=off")
    include = os.path.join(stage, "usr/local/include")
    missing = [path for path in checks.headers(source) if not os.path.exists(os.path.join(include, path))]
    if missing:
        raise Failed("not installed: " + ", ".join(missing[:5]))
    project = os.path.join(place, "by package")
    os.makedirs(project)
    shutil.copy2(os.path.join(source, "tests/meta/consumer/main.cpp"), project)
    staged = f'pkg-config() {{ command pkg-config --define-variable=prefix={stage}/usr/local "$@"; }}; '
    run(["bash", "-ec", staged + PACKAGE], cwd=project)
    return run(["./stranger"], cwd=project)


def main():
    args = checks.arguments(__doc__)
    report = checks.Report()
    if not os.path.exists(os.path.join(args.source, "k3/kernels.hpp")):
        report.skip("a stranger's project builds against k3", "k3/kernels.hpp does not exist yet")
        return report.finish()
    ways = [("a copy of k3/, with -O2", lambda place: by_copy(args.source, place, ["-O2"])),
            ("a copy of k3/, with -O3 -march=haswell",
             lambda place: by_copy(args.source, place, ["-O3", "-march=haswell"])),
            ("a meson subproject", lambda place: by_subproject(args.source, place)),
            ("an installed package and pkg-config", lambda place: by_package(args.source, place))]
    if os.uname().machine != "x86_64":
        del ways[1]
    page = checks.read(args.source, "docs/API.md")
    report.check("docs/API.md shows these ways",
                 [text for text in (checks.read(args.source, "tests/meta/consumer/meson.build"), PACKAGE)
                  if text not in page])
    printed = {}
    with tempfile.TemporaryDirectory(prefix="k3-stranger-") as place:
        for name, way in ways:
            try:
                printed[name] = way(place)
                report.check(f"a stranger builds and runs against {name}", [])
            except (Failed, OSError) as error:
                report.check(f"a stranger builds and runs against {name}", [str(error)])
    different = sorted(set(printed.values()))
    report.check("all of them print the same bits",
                 [f"{text.strip()}: {[name for name, line in printed.items() if line == text]}" for text in different]
                 if len(different) > 1 else [])
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
