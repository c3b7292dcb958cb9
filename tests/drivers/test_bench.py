#!/usr/bin/env python3
"""k3-bench from outside.  usage: test_bench.py PATH/k3-bench KERNEL_DIGESTS"""
import json
import os
import re
import shutil
import sys
import tempfile
import xml.dom.minidom

import support
from support import refused, run

BENCH, DIGESTS = sys.argv[1:3]
HOME = tempfile.mkdtemp(prefix="k3-bench-test-")
FEW = ["--digest", "--filter", "delta_rule"]  # a fast part of the digests


def good(*arguments):
    code, out, err = run(BENCH, *arguments)
    assert code == 0, err
    return out.decode(), err


def lines_of(path):
    with open(path, encoding="ascii") as file:
        return [line for line in file.read().splitlines() if line and not line.startswith("#")]


def changed(edit):
    """A copy of the committed digests with its lines run through edit()."""
    path = os.path.join(HOME, "changed.txt")
    with open(path, "w", encoding="ascii") as file:
        file.write("# changed\n" + "".join(line + "\n" for line in edit(lines_of(DIGESTS))))
    return path


def flipped(line):
    return line[:-1] + ("1" if line[-1] == "0" else "0")


def every_kernel_has_committed_digests_with_f64_sums_of_every_format():
    names = [line.split()[:2] for line in lines_of(DIGESTS)]
    for kernel in ("matmul", "column_dot", "dot64", "exp", "sigmoid", "tanh", "silu", "rmsnorm", "l2norm",
                   "l2norm_scaled", "add", "sigmoid_gate", "scaled_add", "situ_glu", "decay", "delta_rule",
                   "short_conv", "attention_residual", "latent_attention", "route", "argmax"):
        assert any(name[0] == kernel for name in names), kernel
    for kind in ("bf16", "f32", "mxfp4"):
        assert ["matmul", kind] in names
    assert len({line.rsplit(" ", 1)[0] for line in lines_of(DIGESTS)}) == len(names)


def digests_are_one_line_per_arch_and_case_and_as_committed():
    out, err = good(*FEW, "--expect", DIGESTS)
    wanted = [line for line in lines_of(DIGESTS) if "delta_rule" in line]
    arches = {line.split(" ", 1)[0] for line in out.splitlines()}
    assert "scalar" in arches and wanted
    for arch in arches:
        assert [line.split(" ", 1)[1] for line in out.splitlines() if line.startswith(arch + " ")] == wanted
    assert f"{len(wanted) * len(arches)} digests, 0 differences" in err


def one_arch_is_its_part_of_all():
    out, _ = good(*FEW, "--arch", "scalar")
    assert all(line.startswith("scalar ") for line in out.splitlines())
    assert out == "".join(line + "\n" for line in good(*FEW)[0].splitlines() if line.startswith("scalar "))


def a_changed_digest_ends_with_1_and_names_the_line():
    name = "delta_rule f32 K=13 V=75"
    path = changed(lambda lines: [flipped(line) if line.startswith(name) else line for line in lines])
    code, out, err = run(BENCH, *FEW, "--expect", path)
    assert code == 1, err
    assert out.decode() == good(*FEW)[0], "the digests are printed all the same"
    notes = [line for line in err.splitlines() if path in line]
    assert notes and all(line.startswith("k3-bench: ") and name in line for line in notes), err


def a_line_too_many_and_a_line_too_few_are_differences():
    path = changed(lambda lines: lines + ["delta_rule f32 K=1 V=1 0123456789abcdef"])
    code, _, err = run(BENCH, *FEW, "--expect", path)
    assert code == 1 and "K=1 V=1" in err and "no such case" in err, err
    path = changed(lambda lines: [line for line in lines if "K=13" not in line])
    code, _, err = run(BENCH, *FEW, "--expect", path)
    assert code == 1 and "delta_rule f32 K=13 V=75" in err and "no such line" in err, err


def a_written_file_is_expected_again():
    path = os.path.join(HOME, "written.txt")
    good(*FEW, "--write", path)
    assert lines_of(path) == [line for line in lines_of(DIGESTS) if "delta_rule" in line]
    good(*FEW, "--expect", path)


def nothing_is_written_when_digests_differ():
    path = os.path.join(HOME, "not-written.txt")
    code, _, err = run(BENCH, *FEW, "--expect", changed(lambda lines: [flipped(line) for line in lines]), "--write", path)
    assert code == 1 and "not written" in err and not os.path.exists(path)


def bad_options_are_refused_in_one_line():
    for words in (["--nonsense"], ["--repeats", "0"], ["--repeats", "3x"], ["--tokens", "1,,2"], ["--tokens", "0"],
                  ["--tokens", ""], ["--threads", "-1"], ["--expect", DIGESTS], ["--digest", "--json"],
                  ["--digest", "--expect", ""], ["--digest", "--expect", os.path.join(HOME, "absent")],
                  ["--digest", "--expect", os.path.abspath(__file__)], ["--digest", "--filter", "no such kernel"],
                  ["--filter", "no such kernel"], ["--arch", "z80"], ["extra"]):
        refused(run(BENCH, *words), 2)
    refused(run(BENCH, "--arch", "z80"), 2, "'z80'", "scalar")
    refused(run(BENCH, *FEW, "--write", os.path.join(HOME, "no", "such", "folder")), 3, "folder")
    refused(run(BENCH, "--filter", "argmax", "--chart", HOME), 3, HOME)


def help_and_version():
    out, _ = good("--help")
    for word in ("--digest", "--expect", "--write", "--filter", "--arch", "--threads", "--tokens",
                 "--repeats", "--quick", "--json", "--chart", "Exit codes"):
        assert word in out, word
    assert re.fullmatch(r"k3-bench \d+\.\d+\.\d+\n", good("--version")[0])


def json_and_chart_can_be_read():
    chart = os.path.join(HOME, "chart.svg")
    out, _ = good("--quick", "--filter", "matmul mxfp4 T=1 R=3072 C=3584", "--repeats", 1, "--threads", 1, "--json",
                  "--chart", chart)
    report = json.loads(out)
    rows = report["rows"]
    kinds = {row["who"] for row in rows}
    assert "scalar" in kinds and "seed scalar" in kinds
    for row in rows:
        assert row["kernel"] == "matmul" and row["format"] == "mxfp4" and row["shape"] == "3072x3584"
        assert 0 < row["seconds_least"] <= row["seconds"] <= row["seconds_most"]
        assert row["of_limit"] > 0 and row["limit"] in ("read", "f64", "f32")
        if row["who"] in ("scalar", "seed scalar"):
            assert row["of_seed"] > 0 and row["of_seed_auto"] > 0
        assert abs(row["gflop_per_s"] * row["seconds"] * 1e9 / (2 * row["panel"] * 3584) - 1) < 1e-6
    digests = {row["digest"] for row in rows if row["digest"]}
    assert len(digests) == 1 and report["differences"] == []
    assert any(limit["name"] == "read" for limit in report["limits"])
    assert {target["verdict"] for target in report["targets"]} <= {"reached", "NOT REACHED", "not measured"}
    assert any(target["got"] is not None for target in report["targets"])
    document = xml.dom.minidom.parse(chart)
    assert document.documentElement.tagName == "svg" and document.getElementsByTagName("rect").length > 3


def a_table_has_a_line_for_each_arch():
    out, _ = good("--filter", "exp f32", "--repeats", 1)
    for word in ("scalar", "libm", "ns/elem", "targets"):
        assert word in out, word


if __name__ == "__main__":
    try:
        support.main([every_kernel_has_committed_digests_with_f64_sums_of_every_format,
                      digests_are_one_line_per_arch_and_case_and_as_committed, one_arch_is_its_part_of_all,
                      a_changed_digest_ends_with_1_and_names_the_line,
                      a_line_too_many_and_a_line_too_few_are_differences, a_written_file_is_expected_again,
                      nothing_is_written_when_digests_differ, bad_options_are_refused_in_one_line, help_and_version,
                      json_and_chart_can_be_read, a_table_has_a_line_for_each_arch])
    finally:
        shutil.rmtree(HOME, ignore_errors=True)
