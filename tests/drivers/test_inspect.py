#!/usr/bin/env python3
"""k3-inspect from outside.  usage: test_inspect.py PATH/k3-inspect PATH/k3-synth DEMO_MODEL"""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

import support
from support import read_npy, refused, run

INSPECT, SYNTH, DEMO = sys.argv[1:4]
HOME = tempfile.mkdtemp(prefix="k3-inspect-test-")
MODEL = os.path.join(HOME, "model")
LAYER = "language_model.model.layers."
EXPERT = LAYER + "2.block_sparse_moe.experts.7"
# latent 83 and expert width 34: partial MXFP4 groups, and an odd column count in w1 and w3
OPTIONS = ["--hidden", 64, "--experts", 12, "--latent", 83, "--expert-width", 34, "--vocab", 300, "--dense-width", 72]
FOUND = {}


def good(*arguments):
    code, out, err = run(INSPECT, *arguments)
    assert code == 0, err
    return out, err


def npy(name, *options):
    path = os.path.join(HOME, "dump.npy")
    out, _ = good(MODEL, "--dump", name, "--out", path, *options)
    assert out == b""
    return read_npy(path)


def the_census_adds_up_to_the_headers():
    for model in (MODEL, DEMO):
        found = support.tensors(model)
        report = json.loads(good(model, "--json")[0])
        assert report["tensors"] == len(found)
        assert report["payload_bytes"] == sum(len(data) for _, _, data in found.values())
        for group in ("classes", "dtypes"):
            assert sum(row["tensors"] for row in report[group].values()) == len(found)
            assert sum(row["bytes"] for row in report[group].values()) == report["payload_bytes"]
        for dtype, row in report["dtypes"].items():
            assert row["bytes"] == sum(len(data) for kind, _, data in found.values() if kind == dtype)
        for row in report["layers"]:
            mine = {name: data for name, (_, _, data) in found.items() if name.startswith(f"{LAYER}{row['layer']}.")}
            experts = {name: data for name, data in mine.items() if ".experts." in name}
            assert row["experts"] == {"tensors": len(experts), "bytes": sum(map(len, experts.values()))}
            assert row["trunk"]["bytes"] == sum(map(len, mine.values())) - row["experts"]["bytes"]
            assert row["expert_count"] == len(experts) // 6 and row["one_run"] is True
        assert report["other"] == []
        assert report["classes"]["embedding"]["tensors"] == report["classes"]["lm_head"]["tensors"] == 1


def kinds_and_budget_follow_the_model():
    report = json.loads(good(DEMO, "--json")[0])
    assert [row["kind"] for row in report["layers"]] == ["KDA dense"] + [kind + " MoE" for kind in (
        "KDA", "KDA", "MLA", "KDA", "KDA", "KDA", "MLA", "MLA")]
    budget = report["budget"]
    assert budget["embedding_row"] == 192 * 2
    assert budget["expert"] == 3 * 64 * 96 * 17 // 32
    assert budget["experts_per_token"] == 8 * 4 * budget["expert"]
    assert budget["cache_per_position"] == 3 * 4 * (56 + 16)
    assert budget["recurrent_state"] == 6 * 4 * (160 * 32 + 3 * 160 * 3)
    text = good(DEMO)[0].decode()
    for words in ("by class", "by dtype", "by layer", "budget", str(report["payload_bytes"])):
        assert words in text


def the_list_names_every_tensor_with_its_place():
    lines = good(MODEL, "--list")[0].decode().splitlines()
    assert [line.split()[0] for line in lines] == list(FOUND)
    rows = json.loads(good(MODEL, "--list", "--match", "layers.1.self_attn.", "--json")[0])
    assert {row["name"] for row in rows} == {name for name in FOUND if "layers.1.self_attn." in name}
    for row in rows:
        with open(os.path.join(MODEL, row["shard"]), "rb") as file:
            file.seek(row["offset"])
            assert file.read(row["bytes"]) == FOUND[row["name"]][2]
        assert [row["dtype"], row["shape"]] == list(FOUND[row["name"]][:2])
    out, err = good(MODEL, "--list", "--match", "no such thing")
    assert out == b"" and f"0 of {len(FOUND)}" in err


def npy_dumps_hold_the_decoded_values():
    for name in ("language_model.lm_head.weight", LAYER + "0.self_attn.A_log", LAYER + "1.self_attn.q_conv1d.weight",
                 LAYER + "0.input_layernorm.weight", EXPERT + ".w1.weight_packed"):
        dtype, shape, data = FOUND[name]
        descr, got_shape, got = npy(name)
        assert got_shape == tuple(shape), (name, got_shape)
        assert descr == ("|u1" if dtype == "U8" else "<f4")
        want = support.values(dtype, data)
        assert got == (data if dtype == "U8" else struct.pack(f"<{len(want)}f", *want)), name


def an_expert_named_without_suffix_is_dequantised():
    for matrix, rows, cols in (("w1", 34, 83), ("w2", 83, 34), ("w3", 34, 83)):
        stem = f"{EXPERT}.{matrix}"
        want = support.mxfp4(FOUND[stem + ".weight_packed"][2], FOUND[stem + ".weight_scale"][2], rows, cols)
        descr, shape, got = npy(stem)
        assert (descr, shape) == ("<f4", (rows, cols))
        assert got == struct.pack(f"<{len(want)}f", *want), stem
        some = npy(stem, "--rows", "3:5")
        assert some[1] == (2, cols) and some[2] == got[3 * cols * 4:5 * cols * 4]


def rows_cut_the_first_dimension():
    whole = npy("language_model.model.embed_tokens.weight")[2]
    descr, shape, got = npy("language_model.model.embed_tokens.weight", "--rows", "10:13")
    assert shape == (3, 64) and got == whole[10 * 256:13 * 256]
    name = LAYER + "1.self_attn.q_conv1d.weight"
    assert npy(name, "--rows", "1:2")[1] == (1, 1, 4)
    for rows, word in (("5:5", "0:300"), ("0:301", "0:300"), ("7", "colon"), ("-1:2", "-1"), ("1:2:3", "2:3")):
        refused(run(INSPECT, MODEL, "--dump", "language_model.lm_head.weight", f"--rows={rows}"), 2, "--rows", word)


def text_dumps_read_back_to_the_same_floats():
    name = "language_model.lm_head.weight"
    out, err = good(MODEL, "--dump", name, "--rows", "0:4")
    lines = out.decode().splitlines()
    assert [len(line.split()) for line in lines] == [64] * 4 and "BF16 [300, 64]" in err
    want = support.values("BF16", FOUND[name][2])[:256]
    got = [float(word) for line in lines for word in line.split()]
    assert struct.pack("<256f", *got) == struct.pack("<256f", *want)
    name = LAYER + "1.self_attn.dt_bias"
    got = [float(word) for word in good(MODEL, "--dump", name)[0].split()]
    assert struct.pack(f"<{len(got)}f", *got) == FOUND[name][2]


def unknown_names_are_answered_with_the_closest():
    refused(run(INSPECT, MODEL, "--dump", "model.layers.0.self_attn.A_log"), 1, "no such tensor",
            LAYER + "0.self_attn.A_log")
    refused(run(INSPECT, MODEL, "--dump", LAYER + "0.self_attn.q_porj.weight"), 1, LAYER + "0.self_attn.q_proj.weight")
    refused(run(INSPECT, MODEL, "--dump", LAYER + "2.block_sparse_moe.experts.12.w1"), 1, "no such tensor")


def text_becomes_ids_and_ids_text():
    with open(os.path.join(DEMO, "../expected.json")) as file:
        prompts = json.load(file)
    text = "The capital of France is\n<|open|>caf\u00e9"
    ids = good(DEMO, "--encode", text)[0].decode().strip()
    assert good(DEMO, "--decode", ids)[0].decode() == text
    assert "2051" in ids.split(",")
    plain = good(DEMO, "--encode", text, "--no-specials")[0].decode().strip()
    assert "2051" not in plain.split(",") and good(DEMO, "--decode", plain)[0].decode() == text
    path = os.path.join(HOME, "text.txt")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    assert good(DEMO, "--encode-file", path, "--json")[0].decode().strip() == f"[{ids}]"
    with open(path, "rb") as file:
        assert run(INSPECT, DEMO, "--encode-file", "-", stdin=file)[1].decode().strip() == ids
    assert json.loads(good(DEMO, "--decode", ids, "--json")[0]) == text
    assert good(DEMO, "--decode", ids.replace(",", ", "))[0].decode() == text
    for row in prompts["prompts"]:
        assert good(DEMO, "--encode", row["prompt_text"])[0].decode().strip() == ",".join(map(str, row["prompt_ids"]))


def bad_ids_options_and_places_are_refused():
    refused(run(INSPECT, DEMO, "--decode", "1,,2"), 2, "--decode")
    refused(run(INSPECT, DEMO, "--decode", "1,x"), 2, "'x'")
    refused(run(INSPECT, DEMO, "--decode", "99999999"), 2, "99999999")
    refused(run(INSPECT, DEMO, "--decode", "-1"), 2, "-1")
    refused(run(INSPECT, DEMO, "--encode-file", os.path.join(HOME, "none")), 2, "--encode-file", "none")
    refused(run(INSPECT, DEMO, "--list", "--encode", "x"), 2, "--list", "--encode")
    refused(run(INSPECT, DEMO, "--rows", "1:2"), 2, "--dump")
    refused(run(INSPECT), 2, "model")
    refused(run(INSPECT, os.path.join(HOME, "nowhere")), 1, "nowhere")
    refused(run(INSPECT, MODEL, "--dump", LAYER + "0.self_attn.A_log", "--out", "/proc/no/x.npy"), 3, "/proc/no/x.npy")
    with open("/dev/full", "w") as full:
        done = subprocess.run([INSPECT, MODEL, "--list"], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 3 and b"standard output" in done.stderr


def a_refused_config_costs_the_budget_only():
    path = os.path.join(HOME, "odd")
    shutil.copytree(MODEL, path)
    with open(os.path.join(path, "config.json"), "w") as file:
        file.write("{}")
    out, err = good(path, "--json")
    assert "budget" not in json.loads(out) and "no budget" in err
    refused(run(INSPECT, path, "--encode", "x"), 2, "config.json")


def a_truncated_shard_is_refused():
    path = os.path.join(HOME, "cut")
    shutil.copytree(MODEL, path)
    shard = os.path.join(path, "model-00002-of-000006.safetensors")
    os.truncate(shard, os.path.getsize(shard) - 1)
    refused(run(INSPECT, path), 1, "model-00002-of-000006.safetensors")


def trunk():
    """name -> (dtype, shape, data) of the matrices of the trunk."""
    return {name: entry for name, entry in FOUND.items() if len(entry[1]) == 2 and entry[1][0] > 1
            and ".experts." not in name and "embed_tokens" not in name}


def a_plan_says_what_stays_and_what_a_token_reads():
    plan = json.loads(good(MODEL, "--plan", "--memory", "2G", "--json")[0])
    windows = 0  # blocks of 4096 bytes around each matrix, together on whole huge pages
    for shard in sorted(os.listdir(MODEL)):
        if not shard.endswith(".safetensors"):
            continue
        entries, start, _ = support.read_header(os.path.join(MODEL, shard))
        for name, _, _, begin, end in entries:
            if name in trunk():
                windows += ((start + end + 4095) // 4096 - (start + begin) // 4096) * 4096
    huge = 2 << 20  # a smaller buffer has ordinary pages
    assert plan["trunk_bytes"] == sum(len(data) for _, _, data in trunk().values())
    assert plan["trunk_pinned_bytes"] == (windows if windows < huge else (windows + huge - 1) // huge * huge)
    assert plan["trunk_ring_bytes"] == plan["trunk_streamed_bytes_per_token"] == plan["experts_missed_per_token"] == 0
    assert plan["expert_slots"] == plan["experts"] == 4 * 12 and plan["embedding_row_bytes"] == 64 * 2
    assert plan["expert_bytes"] == 2 * 34 * (42 + 3) + 83 * (17 + 2) and plan["experts_per_token"] == 4 * 4
    assert plan["bytes_per_token"] == 128 and plan["ceiling_bytes"] == 2 * 10**9
    seen = set()
    for more in range(400, 4400, 200):  # kilobytes above the least
        some = json.loads(good(MODEL, "--plan", "--memory", f"{plan['least_bytes'] // 1000 + more}K", "--disk-gbs", "0.5",
                               "--cores-gbs", "4", "--positions", "16", "--json")[0])
        parts = ("trunk_pinned_bytes", "trunk_ring_bytes", "expert_cache_bytes", "state_bytes", "scratch_bytes",
                 "program_bytes", "reserve_bytes")
        assert some["total_bytes"] == sum(some[part] for part in parts) <= some["ceiling_bytes"]
        missed = 16 * (1 - some["expert_slots"] / 48)  # also where the slots are fewer than the 16 a token uses
        assert some["positions"] == 16 and abs(some["experts_missed_per_token"] - missed) < 1e-9
        expert = some["expert_bytes"]
        read = some["trunk_streamed_bytes_per_token"], missed * expert
        assert abs(some["bytes_per_token"] - sum(read) - 128) < 1e-6
        seconds = max(sum(read) / 5e8, some["trunk_bytes"] / 4e9 + max(read[1] / 5e8, 16 * expert / 4e9))
        assert abs(some["seconds_per_token"] - seconds) < 1e-12
        seen.add((read[0] > 0, some["expert_slots"] < 16))
    assert (True, True) in seen and (False, False) in seen, seen
    alone = json.loads(good(MODEL, "--plan", "--memory", "2G", "--disk-gbs", "0.5", "--json")[0])
    assert "seconds_per_token" not in plan and alone["seconds_per_token"] == 0  # no byte is read: no time either
    assert "  0.000 s a token" in good(MODEL, "--plan", "--memory", "2G", "--disk-gbs", "0.5")[0].decode()
    refused(run(INSPECT, MODEL, "--plan", "--cores-gbs", "2"), 2, "--cores-gbs", "--disk-gbs")
    refused(run(INSPECT, MODEL, "--cores-gbs", "2"), 2, "--cores-gbs", "--disk-gbs")
    text = good(MODEL, "--plan", "--memory", "2G", "--disk-gbs", "1", "--cores-gbs", "2")[0].decode()
    for words in ("pinned", "plan for 512 positions", "seconds = max(T + E, C + max(E, X))", str(plan["trunk_bytes"])):
        assert words in text, text
    refused(run(INSPECT, MODEL, "--plan", "--memory", "20M"), 2, "positions need", "--memory")
    # More than this machine has: it may be a question about another one.
    assert json.loads(good(MODEL, "--plan", "--memory", "900T", "--json")[0])["ceiling_bytes"] == 900 * 10**12
    refused(run(INSPECT, MODEL, "--memory", "2G"), 2, "--plan")
    refused(run(INSPECT, MODEL, "--plan", "--disk-gbs", "-1"), 2, "--disk-gbs")
    refused(run(INSPECT, MODEL, "--plan", "--list"), 2, "--plan", "--list")


def the_heat_map_has_a_cell_for_each_layer_and_class():
    path = os.path.join(HOME, "map.svg")
    out, _ = good(MODEL, "--svg", path)
    assert b"by class" in out
    with open(path) as file:
        text = file.read()
    root = xml.etree.ElementTree.fromstring(text)
    boxes = [box.get("fill") for box in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert len(boxes) == 1 + 5 * 6 + 21  # the ground, five layers of six classes, the scale
    # Empty: MoE, experts and one kind of attention in layer 0; dense and one kind of attention in each other.
    assert boxes.count("#f4f4f4") == 3 + 4 * 2
    most = max(sum(len(data) for name, (_, _, data) in FOUND.items() if name.startswith(f"{LAYER}{n}.") and
                   (".experts." in name) is expert) for n in range(5) for expert in (True, False))
    assert boxes.count("#08306b") >= 2 and most > 0  # the largest cell and the end of the scale
    for words in ("trunk KDA", "trunk MLA", "trunk dense", "trunk MoE", "experts", "layer norms", "lm_head, in no layer"):
        assert words in text, words
    refused(run(INSPECT, MODEL, "--svg", "/proc/no/x.svg"), 3, "/proc/no/x.svg")


def a_difference_is_named_and_exits_with_1():
    other = os.path.join(HOME, "other")
    code, _, message = run(SYNTH, "--out", other, "--quiet", *OPTIONS[:2], "--experts", 13, *OPTIONS[4:8], "--vocab",
                           301, *OPTIONS[10:])
    assert code == 0, message
    theirs = support.tensors(other)
    code, out, err = run(INSPECT, MODEL, "--diff", other, "--json")
    found = json.loads(out)
    assert code == 1 and err == ""
    sides = {"only_first": set(FOUND) - set(theirs), "only_second": set(theirs) - set(FOUND),
             "changed": {n for n in FOUND if n in theirs and FOUND[n][:2] != theirs[n][:2]}}
    for key, names in sides.items():
        assert found[key] == len(names), key
    assert found["only_second"] == 4 * 6 and found["only_first"] == 0 and found["changed"] == 2 + 4 * 2
    assert found["same"] == len(FOUND) - found["changed"]
    assert {row["name"] for row in found["differences"]} == sides["changed"] | sides["only_second"]
    for row in found["differences"]:
        for key, tensors in (("first", FOUND), ("second", theirs)):
            if row["name"] in tensors:
                dtype, shape, data = tensors[row["name"]]
                assert row[key] == {"dtype": dtype, "shape": str(shape), "bytes": len(data)}
            else:
                assert key not in row
    code, out, _ = run(INSPECT, other, "--diff", MODEL)
    lines = out.decode().splitlines()
    assert code == 1 and sum(line[0] == "-" for line in lines) == 24 and sum(line[0] == "~" for line in lines) == 10
    assert "~ language_model.lm_head.weight BF16 [301, 64] 38528 bytes -> BF16 [300, 64] 38400 bytes" in lines
    out, _ = good(MODEL, "--diff", MODEL)
    assert out.decode() == f"0 only in the first, 0 only in the second, 0 of another dtype or shape, {len(FOUND)} alike\n"
    refused(run(INSPECT, MODEL, "--diff", os.path.join(HOME, "nowhere")), 1, "nowhere")


def quantised(row, most):
    """The relative error of a row in integers of -most .. most."""
    scale = struct.unpack("<f", struct.pack("<f", max(map(abs, row)) / most))[0] or 1.0
    off = sum((w - scale * max(-most, min(most, round(w / scale)))) ** 2 for w in row)
    length = sum(w * w for w in row)
    return (off ** 0.5) / (length ** 0.5) if length else 0.0


def the_quantisation_study_is_the_formula_on_every_row():
    found = json.loads(good(MODEL, "--quant-study", "--json")[0])
    assert {row["name"] for row in found["tensors"]} == set(trunk())
    for row in found["tensors"]:
        dtype, (rows, cols), data = FOUND[row["name"]]
        values = support.values(dtype, data)
        assert (row["rows"], row["cols"], row["bytes"], row["not_finite"]) == (rows, cols, len(data), 0)
        for bits in (8, 4):
            errors = [quantised(values[r * cols:(r + 1) * cols], 2 ** (bits - 1) - 1) for r in range(rows)]
            got = row[f"int{bits}"]
            assert abs(got["mean"] - sum(errors) / rows) < 1e-12 and abs(got["worst"] - max(errors)) < 1e-12, row
            assert abs(errors[got["worst_row"]] - max(errors)) < 1e-12
            assert got["bytes"] == rows * (4 + (cols * bits + 7) // 8)
    for row in found["classes"]:
        mine = [t for t in found["tensors"] if ("lm_head" in t["name"]) is (row["name"] == "lm_head")]
        if row["name"] == "lm_head":
            assert row["int4"]["mean"] == mine[0]["int4"]["mean"] and row["int8"]["worst"] == mine[0]["int8"]["worst"]
    assert sum(row["rows"] for row in found["classes"]) == sum(row["rows"] for row in found["tensors"])
    dense = [t for t in found["tensors"] if ".mlp." in t["name"]]
    total = next(row for row in found["classes"] if row["name"] == "trunk dense")
    assert total["int8"]["worst"] == max(t["int8"]["worst"] for t in dense)
    mean = sum(t["int8"]["mean"] * t["rows"] for t in dense) / sum(t["rows"] for t in dense)
    assert abs(total["int8"]["mean"] - mean) < 1e-12
    few = json.loads(good(MODEL, "--quant-study", "--match", "mlp.", "--json")[0])
    assert few["tensors"] == dense
    text = good(MODEL, "--quant-study", "--match", "lm_head")[0].decode()
    assert "int8 mean" in text and "language_model.lm_head.weight" in text and "by class" in text
    refused(run(INSPECT, MODEL, "--quant-study", "--match", "nothing"), 1, "nothing")
    refused(run(INSPECT, MODEL, "--match", "mlp"), 2, "--quant-study")


def help_and_version_go_to_stdout():
    for option in ("--help", "--version"):
        out, err = good(option)
        assert b"k3-inspect" in out and err == ""


if __name__ == "__main__":
    try:
        code, _, message = run(SYNTH, "--out", MODEL, "--quiet", *OPTIONS)
        assert code == 0, message
        FOUND.update(support.tensors(MODEL))
        support.main([the_census_adds_up_to_the_headers, kinds_and_budget_follow_the_model,
                      the_list_names_every_tensor_with_its_place, npy_dumps_hold_the_decoded_values,
                      an_expert_named_without_suffix_is_dequantised, rows_cut_the_first_dimension,
                      text_dumps_read_back_to_the_same_floats, unknown_names_are_answered_with_the_closest,
                      text_becomes_ids_and_ids_text, bad_ids_options_and_places_are_refused,
                      a_refused_config_costs_the_budget_only, a_truncated_shard_is_refused,
                      a_plan_says_what_stays_and_what_a_token_reads, the_heat_map_has_a_cell_for_each_layer_and_class,
                      a_difference_is_named_and_exits_with_1, the_quantisation_study_is_the_formula_on_every_row,
                      help_and_version_go_to_stdout])
    finally:
        shutil.rmtree(HOME, ignore_errors=True)
