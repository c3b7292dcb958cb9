#!/usr/bin/env python3
"""k3-pack from outside.  usage: test_pack.py PATH/k3-pack PATH/k3-synth tests/golden"""
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import support
from support import Skip, read_header, refused, run

PACK, SYNTH, GOLDEN = sys.argv[1:4]
HOME = tempfile.mkdtemp(prefix="k3-pack-test-")
TRUNK = re.compile(r"language_model\.model\.layers\.(\d+)\.(?!block_sparse_moe\.experts\.)")


def folder(name):
    return os.path.join(HOME, name)


def model(golden):
    return os.path.join(GOLDEN, golden, "model")


def pack(source, name, *options):
    code, out, err = run(PACK, source, folder(name), "--quiet", "--json", *options)
    assert code == 0 and err == "", err
    return json.loads(out), json.load(open(folder(name) + "/trunk.json"))


def check_pair(source, name, trunk):
    """Every trunk tensor of the checkpoint is in the pair, byte for byte, and nothing else is."""
    data = open(folder(name) + "/trunk.bin", "rb").read()
    want = {n: t for n, t in support.tensors(source).items() if TRUNK.match(n)}
    layers = trunk["layers"]
    assert trunk["n_layers"] == len(layers) and trunk["align"] == 4096
    end, got = 0, 0
    used = bytearray(len(data))
    for number, layer in enumerate(layers):
        assert set(layer) == {"layer", "file_off", "nbytes", "tensors"} and layer["layer"] == number
        assert layer["file_off"] == end and end % 4096 == 0 and layer["nbytes"] % 4096 == 0
        end += layer["nbytes"]
        last = max(t["off"] + t["nbytes"] for t in layer["tensors"].values())
        assert layer["nbytes"] - last < 4096
        for tensor, at in layer["tensors"].items():
            assert int(TRUNK.match(tensor).group(1)) == number
            dtype, shape, bytes_ = want[tensor]
            assert list(at) == ["off", "nbytes", "dtype", "shape"]
            assert at["dtype"] == dtype and at["shape"] == shape and at["nbytes"] == len(bytes_)
            first = layer["file_off"] + at["off"]
            assert data[first:first + len(bytes_)] == bytes_, tensor
            assert not any(used[first:first + len(bytes_)]), f"{tensor} overlaps another"
            used[first:first + len(bytes_)] = b"\1" * len(bytes_)
            got += 1
    assert end == len(data) and got == len(want)
    assert not any(byte for byte, mine in zip(data, used) if not mine), "padding is not zero"


def golden_models_are_packed_byte_for_byte():
    for golden in "ABF":
        for threads in (1, 5):
            name = f"{golden}{threads}"
            result, trunk = pack(model(golden), name, "--threads", threads, "--verify")
            check_pair(model(golden), name, trunk)
            assert sorted(os.listdir(folder(name))) == ["trunk.bin", "trunk.json"]
            assert result["bytes"] == os.path.getsize(folder(name) + "/trunk.bin") and result["verified"] is True
            assert result["tensors"] == sum(len(layer["tensors"]) for layer in trunk["layers"])
        one, two = (open(folder(golden + t) + "/trunk.bin", "rb").read() for t in "15")
        assert one == two


def a_layer_that_is_one_run_is_copied_as_it_is():
    source = folder("run")
    assert run(SYNTH, "--out", source, "--quiet", "--hidden", 512, "--dense-width", 9000, "--experts", 4)[0] == 0
    result, trunk = pack(source, "run-packed", "--threads", 3)
    check_pair(source, "run-packed", trunk)
    assert result["verbatim_layers"] == result["layers"] == 5 and result["verified"] is False
    data = open(folder("run-packed") + "/trunk.bin", "rb").read()
    assert len(data) > 2 << 23  # several pieces
    for number, layer in enumerate(trunk["layers"]):
        file = os.path.join(source, f"model-{number + 1:05}-of-000006.safetensors")
        entries, start, _ = read_header(file)
        mine = [e for e in entries if TRUNK.match(e[0])]
        assert {e[0]: e[3] for e in mine} == {n: t["off"] for n, t in layer["tensors"].items()}
        with open(file, "rb") as stream:
            stream.seek(start)
            copy = stream.read(mine[-1][4])
        assert data[layer["file_off"]:layer["file_off"] + len(copy)] == copy


def write_shards(name, tensors, shards):
    """Puts the tensors, in the order given, into `shards` files, in turns."""
    os.makedirs(folder(name))
    shutil.copy(model("A") + "/config.json", folder(name))
    for s in range(shards):
        header, data = {}, b""
        for tensor, (dtype, shape, bytes_) in tensors[s::shards]:
            header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(bytes_)]}
            data += bytes_
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(folder(name), f"model-{s + 1:05}-of-{shards:06}.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + data)
    return folder(name)


def layers_in_pieces_over_several_shards_are_no_obstacle():
    tensors = sorted(support.tensors(model("A")).items(), key=lambda item: (len(item[1][2]) * 7919 + len(item[0])) % 101)
    source = write_shards("scattered", tensors, 3)
    result, trunk = pack(source, "scattered-packed", "--verify")
    check_pair(source, "scattered-packed", trunk)
    assert result["verbatim_layers"] < result["layers"]


def a_missing_tensor_is_refused_by_name_and_a_missing_expert_is_not():
    tensors = support.tensors(model("A"))
    lost = ["language_model.model.layers.3.self_attn.kv_b_proj.weight",
            "language_model.model.layers.7.mlp_res_norm.weight"]
    source = write_shards("lost", [item for item in tensors.items() if item[0] not in lost], 1)
    refused(run(PACK, source, folder("lost-packed"), "--quiet"), 1, "2 tensors are missing", *lost)
    assert not os.path.exists(folder("lost-packed"))
    source = write_shards("bare", [item for item in tensors.items() if TRUNK.match(item[0])], 1)
    check_pair(source, "bare-packed", pack(source, "bare-packed")[1])


def a_tensor_that_is_there_twice_is_refused():
    tensors = list(support.tensors(model("A")).items())
    # Number 4 comes first as well and is then number 5: one in each shard.
    source = write_shards("twice", [tensors[4]] + tensors, 2)
    refused(run(PACK, source, folder("twice-packed"), "--quiet"), 1, tensors[4][0], "model-00001", "model-00002")
    assert not os.path.exists(folder("twice-packed"))


def what_is_there_is_replaced_with_force_only():
    pack(model("A"), "force")
    before = open(folder("force") + "/trunk.bin", "rb").read()
    refused(run(PACK, model("B"), folder("force"), "--quiet"), 2, "trunk.bin", "--force")
    os.remove(folder("force") + "/trunk.bin")
    refused(run(PACK, model("B"), folder("force"), "--quiet"), 2, "trunk.json", "--force")
    with open(folder("force") + "/notes.txt", "w") as file:
        file.write("mine")
    check_pair(model("B"), "force", pack(model("B"), "force", "--force")[1])
    assert open(folder("force") + "/trunk.bin", "rb").read() != before
    assert sorted(os.listdir(folder("force"))) == ["notes.txt", "trunk.bin", "trunk.json"]


def a_write_that_fails_half_way_leaves_the_old_pair_and_nothing_else():
    def limit():  # a file may not grow beyond a megabyte
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    refused(run(PACK, model("A"), folder("limited"), "--quiet", preexec_fn=limit), 3, "trunk.bin", "File too large")
    assert os.listdir(folder("limited")) == []
    _, trunk = pack(model("A"), "limited")
    refused(run(PACK, model("A"), folder("limited"), "--quiet", "--force", preexec_fn=limit), 3, "trunk.bin")
    check_pair(model("A"), "limited", trunk)
    assert sorted(os.listdir(folder("limited"))) == ["trunk.bin", "trunk.json"]


def a_shard_that_cannot_be_read_leaves_nothing():
    source = write_shards("short", list(support.tensors(model("A")).items()), 1)
    file = source + "/model-00001-of-000001.safetensors"
    os.truncate(file, os.path.getsize(file) - 8)
    refused(run(PACK, source, folder("short-packed"), "--quiet"), 1, "model-00001-of-000001")
    assert not os.path.exists(folder("short-packed"))


def no_free_space_is_found_before_anything_is_written():
    with support.small_disk(folder("small-disk"), "2m") as path:
        refused(run(PACK, model("A"), os.path.join(path, "trunk"), "--quiet"), 3, "bytes", "free")
        assert os.listdir(os.path.join(path, "trunk")) == []


def an_interrupt_leaves_nothing_behind():
    source = folder("large")  # 0.8 GB of zeros that take no space
    code, _, err = run(SYNTH, "--out", source, "--quiet", "--sparse", "--like-release", "--layers", 2, "--experts", 2,
                       "--topk", 1, "--vocab", 300, "--dense-width", 7168)
    assert code == 0, err
    for stop in (signal.SIGINT, signal.SIGTERM):
        child = subprocess.Popen([PACK, source, folder("interrupted"), "--threads", "1", "--verify"],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(500):
            if os.path.isdir(folder("interrupted")) and os.listdir(folder("interrupted")):
                break
            time.sleep(0.01)
        child.send_signal(stop)
        _, err = child.communicate()
        if child.returncode == 3 and b"free" in err:
            raise Skip("needs 2 GB of free space")
        assert child.returncode == 5 and b"interrupted" in err, (child.returncode, err)
        assert os.listdir(folder("interrupted")) == []
    shutil.rmtree(source)


def wrong_arguments_are_refused():
    refused(run(PACK), 2, "model_dir")
    refused(run(PACK, model("A")), 2, "out_dir")
    refused(run(PACK, folder("nowhere"), folder("out"), "--quiet"), 2, "nowhere")
    refused(run(PACK, model("A"), folder("out"), "--threads", 0), 2, "--threads")
    blocker = folder("blocker")
    open(blocker, "w").close()
    refused(run(PACK, model("A"), blocker, "--quiet"), 3, blocker)
    assert not os.path.exists(folder("out"))


def help_version_and_progress_go_where_they_should():
    for option in ("--help", "--version"):
        code, out, err = run(PACK, option)
        assert code == 0 and b"k3-pack" in out and err == ""
    assert b"Example: k3-pack " in run(PACK, "--help")[1]
    code, out, err = run(PACK, model("A"), folder("shown"))
    assert code == 0 and b"13 layers" in out and "GB/s" in err and "to go" in err


if __name__ == "__main__":
    try:
        support.main([golden_models_are_packed_byte_for_byte, a_layer_that_is_one_run_is_copied_as_it_is,
                      layers_in_pieces_over_several_shards_are_no_obstacle,
                      a_missing_tensor_is_refused_by_name_and_a_missing_expert_is_not,
                      a_tensor_that_is_there_twice_is_refused, what_is_there_is_replaced_with_force_only,
                      a_write_that_fails_half_way_leaves_the_old_pair_and_nothing_else,
                      a_shard_that_cannot_be_read_leaves_nothing, no_free_space_is_found_before_anything_is_written,
                      an_interrupt_leaves_nothing_behind, wrong_arguments_are_refused,
                      help_version_and_progress_go_where_they_should])
    finally:
        shutil.rmtree(HOME, ignore_errors=True)
