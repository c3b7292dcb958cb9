#!/usr/bin/env python3
"""k3-conform from outside: it passes on sound checkpoints and fails, naming layer and stage, where the engine's side has
one thing wrong.  usage: test_conform.py PATH/k3-conform PATH/k3 GOLDEN DEMO_MODEL"""
import json
import math
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile

import support
from support import refused, run

CONFORM, K3, GOLDEN, DEMO = map(os.path.abspath, sys.argv[1:5])
HOME = tempfile.mkdtemp(prefix="k3-conform-test-")
F = os.path.join(GOLDEN, "F", "model")
LAYER = "language_model.model.layers."
KDA, MLA = 1, 3  # layers of F, both with experts
FEW = ["--layers", "4", "--tokens", "6", "--threads", "1", "--no-pass"]
SHARDS = {}  # tensor -> (file, offset, bytes, dtype, shape)


def index(folder):
    for file in sorted(os.listdir(folder)):
        if file.endswith(".safetensors"):
            entries, start, _ = support.read_header(os.path.join(folder, file))
            for name, dtype, shape, begin, end in entries:
                SHARDS[name] = (file, start + begin, end - begin, dtype, shape)


def good(*arguments):
    code, out, err = run(CONFORM, *arguments)
    assert code == 0, out.decode() + err
    return out.decode()


class Engine:
    """A copy of F whose shards are links until one is written to: the engine's side."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(dir=HOME)
        for file in os.listdir(F):
            os.symlink(os.path.join(F, file), os.path.join(self.path, file))
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.path)

    def own(self, file):
        path = os.path.join(self.path, file)
        if os.path.islink(path):
            os.remove(path)
            shutil.copyfile(os.path.join(F, file), path)
            os.chmod(path, 0o644)
        return path

    def read(self, tensor):
        file, offset, size, _, _ = SHARDS[tensor]
        with open(os.path.join(self.path, file), "rb") as stream:
            stream.seek(offset)
            return bytearray(stream.read(size))

    def write(self, tensor, data):
        file, offset, size, _, _ = SHARDS[tensor]
        assert len(data) == size
        with open(self.own(file), "r+b") as stream:
            stream.seek(offset)
            stream.write(data)

    def flip_top_mantissa_bit(self, tensor, element):
        """Of one value: bit 6 of a bf16, bit 22 of a float32. At least a fifth of it changes."""
        data, dtype = self.read(tensor), SHARDS[tensor][3]
        byte, bit = (2 * element, 0x40) if dtype == "BF16" else (4 * element + 2, 0x40)
        value = support.values(dtype, bytes(data))[element]
        assert value != 0 and math.isfinite(value), (tensor, element)
        data[byte] ^= bit
        self.write(tensor, data)
        return self

    def config(self, change):
        path = self.own("config.json")
        with open(path) as file:
            config = json.load(file)
        change(config["text_config"])
        with open(path, "w") as file:
            json.dump(config, file)
        return self

    def check(self):
        return run(CONFORM, F, "--engine-model", self.path, *FEW)


def fails(engine, layer, stage):
    """Exit 1; the first failure, the layer's row and a line of its own name layer and stage."""
    code, out, err = engine.check()
    out = out.decode()
    assert code == 1, f"exit code {code}: a perturbation was not seen\n{out}{err}"
    assert re.search(rf"^{layer} +\w+ +FAIL ", out, re.M), out
    assert re.search(rf"^ +{layer} {stage}: .* budget at ", out, re.M), out
    assert f"the first {layer} {stage}" in out, out
    assert "\nFAIL: " in out and out.splitlines()[-1].startswith("next: "), out


def largest(tensor, row=None, cols=None):
    """Where the largest value is: of a row, or of all. A weight that is proven used is one that counts."""
    _, offset, size, dtype, _ = SHARDS[tensor]
    with open(os.path.join(F, SHARDS[tensor][0]), "rb") as stream:
        stream.seek(offset)
        found = support.values(dtype, stream.read(size))
    where = range(len(found)) if row is None else range(row * cols, (row + 1) * cols)
    return max(where, key=lambda i: abs(found[i]))


def used_experts(layer):
    """Experts that the run of FEW chooses in a layer, read from a failure: the engine's choice is not printed on
    success, so one expert after another is damaged until the report names it."""
    return [e for e in range(6) if e in USED.setdefault(layer, probe_experts(layer))]


def probe_experts(layer):
    with Engine() as engine:
        for expert in range(6):
            tensor = f"{LAYER}{layer}.block_sparse_moe.experts.{expert}.w1.weight_scale"
            engine.write(tensor, bytes(min(255, b + 1) if b < 254 else b for b in engine.read(tensor)))
        named = set()
        for expert in range(6):  # the worst failing part is named: mend it and look again
            code, out, _ = engine.check()
            match = re.search(rf"L{layer:02d} expert inner: .* at expert (\d+) ", out.decode())
            if not match:
                break
            named.add(int(match.group(1)))
            tensor = f"{LAYER}{layer}.block_sparse_moe.experts.{match.group(1)}.w1.weight_scale"
            engine.write(tensor, bytes(true_bytes(tensor)))
        return named


def true_bytes(tensor):
    file, offset, size, _, _ = SHARDS[tensor]
    with open(os.path.join(F, file), "rb") as stream:
        stream.seek(offset)
        return stream.read(size)


USED = {}


def golden_and_demo_pass():
    for case, layers, more in (("A", 13, []), ("B", 9, []), ("F", 13, ["--tokens", "70"])):
        out = good(os.path.join(GOLDEN, case, "model"), *more)
        lines = out.splitlines()
        rows = [line for line in lines if re.match(r"L\d\d +(KDA|MLA) PASS +\d+ stages worst [0-9.]+x budget", line)]
        assert len(rows) == layers, out
        assert lines[-2].startswith(f"PASS: {layers} layers, ") and lines[-1].startswith("next: k3 "), out
        assert re.search(r"^pass +ALL PASS", out, re.M), out
    out = json.loads(good(DEMO, "--json", "--tokens", "5", "--seed", "7"))
    assert out["verdict"] == "PASS" and out["failed"] == 0 and len(out["ids"]) == 5 and out["worst"] <= 1
    stages = [stage for row in out["layers"] for stage in row["stages"]]
    assert out["wide"] == sum(stage["relative_budget"] > 0.01 for stage in stages), out
    budgets = {stage["name"]: stage["relative_budget"] for stage in stages}
    assert budgets["embedding"] == 0 and 3e-8 < budgets["logits"] < 1e-6, budgets
    assert [row["label"] for row in out["layers"]] == ["embed", *(f"L0{i}" for i in range(9)), "head", "pass"]
    names = {stage["name"] for stage in stages}
    assert {"attention mix", "projections", "recurrence", "state", "attention", "router choice", "expert output",
            "aggregate", "dense output", "logits"} <= names, names


def a_pass_of_one_token_and_of_two():
    for tokens in "1", "2":
        text = good(F, "--tokens", tokens, "--threads", "1")
        assert re.search(r"^pass +ALL PASS", text, re.M), text


def every_arch_and_one_layer_by_itself():
    code, out, _ = run(K3, "--list-arches")
    assert code == 0
    for arch in out.decode().split():
        text = good(F, "--layers", "3-4", "--tokens", "4", "--arch", arch)
        assert re.findall(r"^L\d\d", text, re.M) == ["L03", "L04"] and "head" not in text, text


# ---- one thing wrong on the engine's side; each with the layer and stage it must be found at

def an_attention_projection():
    with Engine() as e:
        fails(e.flip_top_mantissa_bit(f"{LAYER}{KDA}.self_attn.k_proj.weight", 64 * 9 + 3), "L01", "projections")
    with Engine() as e:
        fails(e.flip_top_mantissa_bit(f"{LAYER}{KDA}.self_attn.g_proj.weight", 64 * 40 + 5), "L01", "gate")
    with Engine() as e:
        fails(e.flip_top_mantissa_bit(f"{LAYER}{KDA}.self_attn.o_proj.weight", 64 * 11 + 30), "L01", "output")
    with Engine() as e:
        fails(e.flip_top_mantissa_bit(f"{LAYER}{KDA}.self_attn.f_b_proj.weight", 32 * 17 + 4), "L01", "decay")
    with Engine() as e:
        fails(e.flip_top_mantissa_bit(f"{LAYER}{MLA}.self_attn.q_a_proj.weight", 64 * 3 + 8), "L03", "queries")
    with Engine() as e:
        fails(e.flip_top_mantissa_bit(f"{LAYER}{MLA}.self_attn.kv_b_proj.weight", 24 * 5 + 7), "L03", "attention")
    with Engine() as e:  # a value row of head 1
        fails(e.flip_top_mantissa_bit(f"{LAYER}{MLA}.self_attn.kv_b_proj.weight", 24 * (40 + 20) + 1), "L03", "attention")


def a_tap_of_the_convolution():
    with Engine() as e:
        fails(e.flip_top_mantissa_bit(f"{LAYER}{KDA}.self_attn.v_conv1d.weight", 4 * 33 + 2), "L01", "convolution")
    with Engine() as e:
        fails(e.flip_top_mantissa_bit(f"{LAYER}{KDA}.self_attn.q_conv1d.weight", 4 * 33 + 3), "L01", "recurrence")


def a_log_and_dt_bias():
    with Engine() as e:
        fails(e.flip_top_mantissa_bit(f"{LAYER}{KDA}.self_attn.A_log", 1), "L01", "decay")
    with Engine() as e:
        fails(e.flip_top_mantissa_bit(f"{LAYER}{KDA}.self_attn.dt_bias", 45), "L01", "decay")


def a_norm_weight():
    with Engine() as e:
        fails(e.flip_top_mantissa_bit(f"{LAYER}{KDA}.input_layernorm.weight", 13), "L01", "attention norm")
    with Engine() as e:
        fails(e.flip_top_mantissa_bit(f"{LAYER}{KDA}.self_attn.o_norm.weight", 5), "L01", "recurrence")
    with Engine() as e:
        fails(e.flip_top_mantissa_bit(f"{LAYER}{MLA}.self_attn.kv_a_layernorm.weight", 7), "L03", "latents")
    with Engine() as e:
        fails(e.flip_top_mantissa_bit(f"{LAYER}{MLA}.block_sparse_moe.routed_expert_norm.weight", 7), "L03", "aggregate")


def the_router():
    with Engine() as e:
        fails(e.flip_top_mantissa_bit(f"{LAYER}{KDA}.block_sparse_moe.gate.weight", 64 * 2 + 20), "L01", "router logits")
    bias = f"{LAYER}{KDA}.block_sparse_moe.gate.e_score_correction_bias"
    found = []  # a bias works on the choice alone: used is one whose flip changes a choice
    for expert in range(6):
        with Engine() as e:
            code, out, _ = e.flip_top_mantissa_bit(bias, expert).check()
            if code != 0:
                found.append(expert)
                fails(e, "L01", "router choice")
    assert found, "no bias of this layer decides a choice"


def an_expert():
    expert = used_experts(KDA)[0]
    stem = f"{LAYER}{KDA}.block_sparse_moe.experts.{expert}."
    with Engine() as e:  # E2M1 has one mantissa bit: bit 0 of the nibble. 0.5 and 0 differ by it too.
        data = e.read(stem + "w1.weight_packed")
        data[20 * 3 + 4] ^= 0x01
        e.write(stem + "w1.weight_packed", data)
        fails(e, "L01", "expert inner")
    with Engine() as e:
        data = e.read(stem + "w2.weight_packed")
        data[20 * 7 + 9] ^= 0x10
        e.write(stem + "w2.weight_packed", data)
        fails(e, "L01", "expert output")
    with Engine() as e:
        data = e.read(stem + "w3.weight_scale")
        assert data[5] not in (254, 255)
        data[5] += 1
        e.write(stem + "w3.weight_scale", data)
        fails(e, "L01", "expert inner")


def an_expert_that_is_switched_off():
    with Engine() as e:
        name = f"{LAYER}{KDA}.block_sparse_moe.gate.e_score_correction_bias"
        expert = used_experts(KDA)[0]
        data = e.read(name)
        assert SHARDS[name][3] == "F32"
        data[4 * expert:4 * expert + 4] = struct.pack("<f", -math.inf)
        e.write(name, data)
        good(e.path, *FEW)
        fails(e, "L01", "router choice")  # the engine's side alone: it has to do without that expert
        code, out, _ = run(CONFORM, e.path, "--engine-model", F, *FEW)  # the reference's: it may not be chosen
        assert code == 1 and re.search(r"^ +L01 router choice: ", out.decode(), re.M), out.decode()


def two_experts_swapped():
    one, other = (used_experts(KDA) + [e for e in range(6) if e not in used_experts(KDA)])[:2]
    with Engine() as e:
        for part in ("w1.weight_packed", "w1.weight_scale", "w2.weight_packed", "w2.weight_scale", "w3.weight_packed",
                     "w3.weight_scale"):
            names = [f"{LAYER}{KDA}.block_sparse_moe.experts.{expert}.{part}" for expert in (one, other)]
            data = [e.read(name) for name in names]
            for name, bytes_of_the_other in zip(names, reversed(data)):
                e.write(name, bytes_of_the_other)
        fails(e, "L01", "expert inner")


def the_shared_expert_and_the_shared_slot_dropped():
    with Engine() as e:
        name = f"{LAYER}{MLA}.block_sparse_moe.shared_experts.down_proj.weight"
        e.write(name, bytes(len(e.read(name))))
        fails(e, "L03", "shared output")
    with Engine() as e:  # the rope rows of kv_a: rows 24 to 39 of [40, 64]
        name = f"{LAYER}{MLA}.self_attn.kv_a_proj_with_mqa.weight"
        data = e.read(name)
        data[2 * 24 * 64:] = bytes(2 * 16 * 64)
        e.write(name, data)
        fails(e, "L03", "shared keys")


def the_residual_mix():
    with Engine() as e:
        fails(e.flip_top_mantissa_bit(f"{LAYER}{MLA}.self_attention_res_proj.weight", 30), "L03", "attention mix")
    with Engine() as e:
        fails(e.flip_top_mantissa_bit(f"{LAYER}{KDA}.mlp_res_norm.weight", 31), "L01", "mlp mix")


def head_and_embedding():
    with Engine() as e:
        fails(e.flip_top_mantissa_bit("language_model.lm_head.weight", 64 * 100 + 3), "head", "logits")
    with Engine() as e:
        name = "language_model.model.embed_tokens.weight"
        data = e.read(name)
        for row in range(272):  # one value of every row: which rows are read follows from the seed
            data[2 * (64 * row + 9)] ^= 0x40
        e.write(name, data)
        fails(e, "embed", "embedding")


def a_wrong_number_in_the_config():
    def epsilon(text):
        text["rms_norm_eps"] = 1e-6

    def mla_epsilon(text):
        text["mla_norm_eps"] = 1e-5  # what several engines take there

    def scale(text):
        text["routed_scaling_factor"] = 2.5

    def bound(text):
        text["linear_attn_config"]["gate_lower_bound"] = -4.5

    def beta(text):
        text["activation_situ_beta"] = 4.5

    for change, layer, stage in ((epsilon, "L00", "attention norm"), (mla_epsilon, "L03", "queries"),
                                 (scale, "L01", "weighted sum"), (bound, "L00", "decay"), (beta, "L00", "dense inner")):
        with Engine() as e:
            fails(e.config(change), layer, stage)


def a_nan_is_a_failure_that_is_named():
    with Engine() as e:
        name = f"{LAYER}{KDA}.self_attn.v_proj.weight"
        data = e.read(name)
        data[2 * 64:2 * 64 + 2] = b"\xc0\x7f"
        e.write(name, data)
        code, out, err = e.check()
        text = out.decode() + err
        assert code == 1 and "NaN on the engine's side" in text and "L01" in text, text
        code, out, err = run(CONFORM, e.path, "--engine-model", F, *FEW)
        text = out.decode() + err
        assert code == 1 and "NaN on the reference's side" in text and "L01" in text, text


def a_perturbation_is_found_in_the_demo_model():
    path = os.path.join(HOME, "demo")
    shutil.copytree(DEMO, path)
    for file in os.listdir(path):
        os.chmod(os.path.join(path, file), 0o644)
        if file.endswith(".safetensors"):
            entries, start, _ = support.read_header(os.path.join(path, file))
            for name, _, _, begin, _ in entries:
                if name == LAYER + "2.self_attn.q_proj.weight":
                    with open(os.path.join(path, file), "r+b") as stream:
                        stream.seek(start + begin + 2 * (192 * 7 + 100))
                        byte = stream.read(1)[0]
                        stream.seek(-1, 1)
                        stream.write(bytes([byte ^ 0x40]))
    code, out, err = run(CONFORM, DEMO, "--engine-model", path, "--layers", "3", "--tokens", "4", "--json", "--no-pass")
    report = json.loads(out)
    assert code == 1 and report["verdict"] == "FAIL" and report["failed"] == 1, err
    row = report["layers"][3]
    assert row["label"] == "L02" and row["verdict"] == "FAIL"
    assert [stage["name"] for stage in row["stages"] if stage["verdict"] == "FAIL"] == ["projections"]


# ---- logit dumps

def dump(name, values, as_json=False):
    path = os.path.join(HOME, name)
    with open(path, "w" if as_json else "wb") as file:
        if as_json:
            json.dump(values, file)
        else:
            file.write(struct.pack(f"<{len(values)}f", *values))
    return path


def logit_dumps_are_compared():
    a = [math.sin(i * i) * 8 for i in range(500)]
    first = dump("a.f32", a)
    text = good("--logits", first, dump("b.json", a, True))
    for word in ("argmax", "top 10", "10 in both", "difference", "budget", "correlation", "PASS: 500 logits"):
        assert word in text, text
    got = json.loads(good("--logits", first, dump("c.json", {"logits": [x + 1e-4 for x in a]}, True), "--json"))
    assert got["verdict"] == "PASS" and got["top_overlap"] == 10 and 0.1 < got["max_of_budget"] < 0.2, got
    assert abs(got["correlation"] - 1) < 1e-9 and abs(got["mean_difference"] - 1e-4) < 1e-6
    off = list(a)
    off[7] += 0.5
    code, out, _ = run(CONFORM, "--logits", first, dump("d.f32", off))
    assert code == 1 and b"FAIL" in out and b"next: " in out
    for bad, word in (([*a[:9], math.nan, *a[10:]], b"NaN"), (a[:-1], b"against")):
        code, out, _ = run(CONFORM, "--logits", first, dump("e.f32", bad))
        assert code == 1 and word in out, out
    refused(run(CONFORM, "--logits", first, dump("f.json", {"a": 1}, True)), 2, "f.json")
    refused(run(CONFORM, "--logits", first, os.path.join(HOME, "nowhere")), 2, "nowhere")
    refused(run(CONFORM, "--logits", first, HOME), 2, HOME)
    top = max(range(500), key=a.__getitem__)
    near = list(a)
    near[(top + 1) % 500] = a[top] - 1e-4  # another argmax within the budget is no failure
    far = list(near)
    far[(top + 1) % 500] += 2e-4
    text = good("--logits", dump("near.f32", near), dump("far.f32", far))
    assert "not the same" in text, text


def the_engines_own_dump_equals_its_golden_answer():
    path, out = os.path.join(HOME, "k3.f32"), os.path.join(HOME, "run.json")
    with open(os.path.join(GOLDEN, "A", "expected.json")) as file:
        expected = json.load(file)
    ids = ",".join(map(str, expected["prompt_ids"]))
    code, _, err = run(K3, os.path.join(GOLDEN, "A", "model"), "--ids", ids, "--gen", "1", "--dump-logits", path,
                       "--out", out)
    assert code == 0, err
    text = good("--logits", dump("golden.json", expected["first_step_logits"], True), path)
    assert "10 in both" in text, text


def attention_counts_in_the_memory_it_asks_for():
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (1500 << 20, 1500 << 20))

    # Two heads at a time, seven squares of float64 each: 1.9 GB; all else is below the limit, as for a KDA layer.
    refused(run(CONFORM, F, "--layers", f"{MLA}-{MLA}", "--tokens", "4096", "--threads", "2", preexec_fn=limit), 2,
            "--tokens", "there are")


def usage_is_refused_in_one_line():
    refused(run(CONFORM), 2, "MODEL_DIR")
    refused(run(CONFORM, F, "--layers", "14"), 2, "13")
    refused(run(CONFORM, F, "--layers", "5-3"), 2, "--layers")
    refused(run(CONFORM, F, "--tokens", "1e3"), 2, "--tokens")
    refused(run(CONFORM, F, "--arch", "mmx"), 2, "mmx")
    refused(run(CONFORM, F, "--engine-model", os.path.join(GOLDEN, "A", "model")), 2, "sizes")
    refused(run(CONFORM, F, "--logits", "a", "b"), 2, "--logits")
    refused(run(CONFORM, "--logits", "a", "b", "--tokens", "4"), 2, "--logits", "--tokens")
    refused(run(CONFORM, "--logits", "a", "b", "--no-pass"), 2, "--logits", "--no-pass")
    refused(run(CONFORM, os.path.join(HOME, "nowhere")), 2, "nowhere")
    with open("/dev/full", "w") as full:
        done = subprocess.run([CONFORM, F, "--layers", "1", "--json"], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 3 and b"standard output" in done.stderr
    for option in ("--help", "--version"):
        assert "k3-conform" in good(option)


if __name__ == "__main__":
    try:
        index(F)
        support.main([golden_and_demo_pass, a_pass_of_one_token_and_of_two, every_arch_and_one_layer_by_itself,
                      an_attention_projection, a_tap_of_the_convolution, a_log_and_dt_bias, a_norm_weight, the_router,
                      an_expert, an_expert_that_is_switched_off,
                      two_experts_swapped, the_shared_expert_and_the_shared_slot_dropped, the_residual_mix,
                      head_and_embedding, a_wrong_number_in_the_config, a_nan_is_a_failure_that_is_named,
                      a_perturbation_is_found_in_the_demo_model, logit_dumps_are_compared,
                      the_engines_own_dump_equals_its_golden_answer,
                      attention_counts_in_the_memory_it_asks_for, usage_is_refused_in_one_line])
    finally:
        shutil.rmtree(HOME, ignore_errors=True)
