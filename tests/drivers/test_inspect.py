#!/usr/bin/env python3
"""k3-inspect from outside.  usage: test_inspect.py PATH/k3-inspect PATH/k3-synth DEMO_MODEL"""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

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
                      help_and_version_go_to_stdout])
    finally:
        shutil.rmtree(HOME, ignore_errors=True)
