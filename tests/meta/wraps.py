#!/usr/bin/env python3
"""Every subproject is pinned by the hash of its archive, fetched over https, and has a build description."""
import configparser
import glob
import os
import re
import sys

import checks

SHA256 = re.compile(r"[0-9a-f]{64}")


def problems_of(source, path):
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(path, encoding="utf-8")
    if "wrap-file" not in parser:
        return ["it is not a [wrap-file]: an archive can be pinned by hash, a branch cannot"]
    fields, found = parser["wrap-file"], []
    for part in ("source", "patch"):
        needed = part == "source" or any(key in fields for key in ("patch_url", "patch_filename"))
        if not needed:
            continue
        if not SHA256.fullmatch(fields.get(part + "_hash", "")):
            found.append(f"{part}_hash is not a sha256")
        if not fields.get(part + "_url", "").startswith("https://"):
            found.append(f"{part}_url is not https")
        if not fields.get(part + "_filename"):
            found.append(f"{part}_filename is missing")
    if not fields.get("directory"):
        found.append("directory is missing")
    if "patch_directory" in fields:
        found.append("patch_directory: subprojects/ holds wraps only; let meson.build take it with cmake.subproject()")
    name = os.path.basename(path)[: -len(".wrap")]
    build, by_cmake = os.path.join(source, "meson.build"), False
    if os.path.exists(build):
        with open(build, encoding="utf-8") as text:
            by_cmake = f"subproject('{name}'" in text.read()
    if not by_cmake and (not parser.has_section("provide") or not parser.items("provide")):
        found.append("neither [provide] nor a cmake.subproject() in meson.build: dependency() would not find it")
    return found


def main():
    args = checks.arguments(__doc__)
    report = checks.Report()
    wraps = sorted(glob.glob(os.path.join(glob.escape(args.source), "subprojects", "*.wrap")))
    if not wraps:
        report.skip("subprojects are pinned", "there are no wraps")
    for path in wraps:
        report.check(f"subprojects/{os.path.basename(path)} is pinned by hash", problems_of(args.source, path))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
