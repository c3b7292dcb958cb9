#!/usr/bin/env python3
"""k3-synth from outside.  usage: test_synth.py PATH/k3-synth"""
import base64
import hashlib
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import support
from support import Skip, read_header, refused, run

SYNTH = sys.argv[1]
HOME = tempfile.mkdtemp(prefix="k3-synth-test-")
# Small, with odd sizes on purpose: a partial MXFP4 group (latent 83) and an odd column count.
TINY = ["--layers", 5, "--hidden", 64, "--experts", 12, "--topk", 3, "--latent", 83, "--expert-width", 34,
        "--dense-width", 72, "--kda-heads", 3, "--kda-dim", 16, "--heads", 2, "--q-lora", 24, "--kv-lora", 20,
        "--nope", 12, "--rope", 4, "--v-head", 8, "--vocab", 300, "--block", 2]
# Change only together with a line in docs/CHANGELOG.md: everything measured on a synthetic model refers to these bytes.
DIGEST = "7ac0ec114644c02d1d9cd7cebb3b75acd585f5409301f88576c77d2fc107a575"


def folder(name):
    return os.path.join(HOME, name)


def make(name, *options):
    code, out, err = run(SYNTH, "--out", folder(name), "--quiet", *options)
    assert code == 0, err
    assert err == "", err
    return folder(name)


def contents(path):
    return {name: open(os.path.join(path, name), "rb").read() for name in sorted(os.listdir(path))}


def tiny():
    if not os.path.exists(folder("tiny")):
        make("tiny", "--seed", 1, *TINY)
    return folder("tiny")


def the_bytes_of_a_small_checkpoint_never_change():
    digest = hashlib.sha256()
    for name, data in contents(tiny()).items():
        if name.endswith(".safetensors") or name == "tiktoken.model":
            digest.update(name.encode() + b"\0" + data)
    assert digest.hexdigest() == DIGEST, digest.hexdigest()


def thread_counts_and_repetitions_give_the_same_files():
    options = ["--hidden", 1024, "--vocab", 3000, "--experts", 4, "--dense-width", 3000]  # several 8 MiB pieces
    want = contents(make("threads1", "--threads", 1, *options))
    assert max(map(len, want.values())) > 2 << 23
    for threads in (2, 3, 16):
        assert contents(make(f"threads{threads}", "--threads", threads, *options)) == want, threads
    for name in ("threads1", "threads2", "threads3", "threads16"):
        shutil.rmtree(folder(name))


def another_seed_changes_every_random_tensor():
    one, two = support.tensors(tiny()), support.tensors(make("seed2", "--seed", 2, *TINY))
    assert one.keys() == two.keys()
    same = [name for name in one if one[name] == two[name]]
    assert all(name.endswith("A_log") for name in same), same


def names_key_the_values_so_more_experts_and_layers_leave_the_rest_alone():
    options = [str(word) for word in TINY]
    options[options.index("--experts") + 1] = "14"
    options[options.index("--layers") + 1] = "6"
    one = support.tensors(tiny())
    more = support.tensors(make("more", "--seed", 1, "--full-attn", "4,5", *options))
    grown = ("gate.weight", "e_score_correction_bias")
    moved = [name for name in one if not name.endswith(grown) and one[name] != more[name]]
    assert not moved and len(more) > len(one), moved


def shards_have_the_released_layout():
    path = tiny()
    files = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
    assert files == [f"model-{i:05}-of-000006.safetensors" for i in range(1, 7)], files
    width = {"F32": 4, "BF16": 2, "U8": 1}
    where, total = {}, 0
    for number, file in enumerate(files):
        entries, start, size = read_header(os.path.join(path, file))
        assert start % 8 == 0
        at = 0
        for name, dtype, shape, begin, end in entries:
            count = width[dtype]
            for dim in shape:
                count *= dim
            assert begin == at and end - begin == count, name
            at = end
            where[name] = file
            prefix = f"language_model.model.layers.{number}." if number < 5 else "language_model."
            assert name.startswith(prefix) and (number < 5 or ".layers." not in name), name
        assert start + at == size, f"{file}: {start + at} of {size} bytes"
        total += at
        assert [e[:2] for e in entries] == sorted((e[:2] for e in entries), key=lambda e: (-width[e[1]], e[0]))
        experts = [name.split(".experts.")[1] for name, *_ in entries if ".experts." in name]
        order = sorted({e.split(".")[0] for e in experts}) if experts else []
        assert experts == [f"{e}.w{w}.weight_{part}" for e in order for w in (1, 2, 3) for part in ("packed", "scale")]
        assert len(order) == (12 if 0 < number < 5 else 0)
    index = json.load(open(os.path.join(path, "model.safetensors.index.json")))
    assert index["weight_map"] == where and index["metadata"]["total_size"] == total


def shapes_and_kinds_follow_the_options():
    found = support.tensors(tiny())
    layer = "language_model.model.layers."
    shape = {name: data[1] for name, data in found.items()}
    dtype = {name: data[0] for name, data in found.items()}
    kinds = ["KDA" if f"{layer}{i}.self_attn.A_log" in found else "MLA" for i in range(5)]
    assert kinds == ["KDA", "KDA", "KDA", "MLA", "MLA"]
    assert shape[layer + "0.self_attn.A_log"] == [16] and dtype[layer + "0.self_attn.A_log"] == "F32"
    assert shape[layer + "1.self_attn.q_conv1d.weight"] == [48, 1, 4]
    assert shape[layer + "3.self_attn.kv_b_proj.weight"] == [2 * (12 + 8), 20]
    assert shape[layer + "3.self_attn.q_b_proj.weight"] == [2 * 16, 24]
    assert shape[layer + "0.mlp.down_proj.weight"] == [64, 72]
    assert shape[layer + "1.block_sparse_moe.experts.0.w1.weight_packed"] == [34, 42]
    assert shape[layer + "1.block_sparse_moe.experts.0.w1.weight_scale"] == [34, 3]
    assert shape[layer + "1.block_sparse_moe.experts.0.w2.weight_packed"] == [83, 17]
    assert shape["language_model.lm_head.weight"] == [300, 64]
    assert len([name for name in found if name.startswith(layer + "0.")]) == 23
    assert len([name for name in found if name.startswith(layer + "1.")]) == 28 + 12 * 6
    assert len([name for name in found if name.startswith(layer + "3.")]) == 22 + 12 * 6


def full_size_is_the_release_to_the_byte():
    code, out, err = run(SYNTH, "--like-release", "--layers", 93, "--experts", 896, "--dry-run", "--json")
    assert code == 0 and err == "", err
    plan = json.loads(out)
    # The published totals, less the 168 tensors and two shards of the vision tower and its projector.
    assert plan["tensors"] == 497220 - 168
    assert plan["payload_bytes"] == 1560860324864 - 802428928 - 92289024
    assert plan["shard_bytes"] == 1560936091448 - 802448352 - 92289328
    sizes = [row["file_bytes"] for row in plan["shards"]]
    assert sizes[0] == 2341216112 and sizes[1] == 16990911504 and sizes[12] == 16990916912
    assert plan["shards"][1]["header_bytes"] == 818704


def release_is_the_release_to_the_byte_with_its_images():
    for sparse in ([], ["--sparse"]):
        code, out, err = run(SYNTH, "--release", *sparse, "--dry-run", "--json")
        assert code == 0 and err == "", err
        plan = json.loads(out)
        assert plan["tensors"] == 497220 and plan["payload_bytes"] == 1560860324864
        assert plan["shard_bytes"] == 1560936091448
        sizes = {row["name"]: row["file_bytes"] for row in plan["shards"]}
        assert list(sizes) == [f"model-{n:05}-of-000096.safetensors" for n in range(1, 97)]
        known = {1: 2341216112, 2: 16990911504, 13: 16990916912, 95: 92289328, 96: 802448352}
        assert {n: sizes[f"model-{n:05}-of-000096.safetensors"] for n in known} == known
        if sparse:
            assert plan["disk_bytes"] == sum(row["disk_bytes"] for row in plan["shards"])
            assert 6e9 < plan["disk_bytes"] < 7.9e9, plan["disk_bytes"]
        else:
            assert plan["disk_bytes"] == plan["shard_bytes"]
    refused(run(SYNTH, "--release", "--like-release", "--dry-run"), 2, "--like-release")


def blocks_of(path):
    """(offsets of the 4 KiB blocks that are stored, bytes of disk)"""
    fd = os.open(path, os.O_RDONLY)
    try:
        size, at, found = os.fstat(fd).st_size, 0, []
        while at < size:
            try:
                at = os.lseek(fd, at, os.SEEK_DATA)
            except OSError:  # no more data
                break
            end = os.lseek(fd, at, os.SEEK_HOLE)
            found += range(at // 4096 * 4096, end, 4096)
            at = end
        return found, os.fstat(fd).st_blocks * 512
    finally:
        os.close(fd)


def a_sparse_checkpoint_stores_what_it_says():
    # The released widths, so that tensors are as large as there; layer 1 is MLA with experts.
    path = make("sparse", "--release", "--sparse", "--layers", 2, "--experts", 24, "--vocab", 2000, "--seed", 5)
    plan = json.loads(run(SYNTH, "--release", "--sparse", "--layers", 2, "--experts", 24, "--vocab", 2000, "--seed", 5,
                          "--dry-run", "--json")[1])
    stored, where, total = {}, {}, 0
    for row in plan["shards"]:
        file = os.path.join(path, row["name"])
        entries, start, size = read_header(file)
        assert size == row["file_bytes"] and start == row["header_bytes"]
        found, disk = blocks_of(file)
        # The file system may round up and needs blocks of its own for the map.
        assert row["disk_bytes"] == 4096 * len(found), (row, len(found))
        assert row["disk_bytes"] <= disk <= row["disk_bytes"] * 1.02 + (1 << 16), (row, disk)
        total += disk
        found = set(found)
        for name, dtype, shape, begin, end in entries:
            begin, end = start + begin, start + end
            stored[name] = [at - begin for at in range(begin // 4096 * 4096, end, 4096) if at in found]
            where[name] = (file, begin, end)
    assert sum(row["file_bytes"] for row in plan["shards"]) > 4.3e9 and total < 0.2e9, total

    def read(name, at, count=4096):
        file, begin, end = where[name]
        with open(file, "rb") as stream:
            stream.seek(begin + at)
            return stream.read(min(count, end - begin - at))

    inside = {name: [at for at in blocks if at >= 0 and at + 4096 <= where[name][2] - where[name][1]]
              for name, blocks in stored.items()}
    layer = "language_model.model.layers."
    whole = [name for name in where if where[name][2] - where[name][1] < 2 << 20 and ".experts." not in name]
    whole += [layer + "1.block_sparse_moe.gate.weight", "language_model.lm_head.weight",
              "language_model.model.embed_tokens.weight"]
    for name in whole:
        size = where[name][2] - where[name][1]
        assert len(stored[name]) == (where[name][1] % 4096 + size + 4095) // 4096, name
        data = read(name, 0, size)
        assert size < 64 or len(set(data)) > 16, name
    large = [name for name in where if name not in whole and ".experts." not in name and "vision" not in name]
    assert len(large) > 15
    narrow = [layer + "1.self_attn." + n for n in ("q_a_proj.weight", "q_b_proj.weight", "kv_b_proj.weight",
                                                   "kv_a_proj_with_mqa.weight")] + [layer + "0.self_attn.f_b_proj.weight"]
    for name in large:
        window = 256 << 10 if name in narrow else 4 << 20
        size = where[name][2] - where[name][1]
        # One block in every window; a neighbour may share the first or the last.
        for first in range(0, size, window):
            mine = [at for at in inside[name] if first <= at < first + window and at + 4096 <= min(size, first + window)]
            assert len(mine) == 1 or (min(size, first + window) - first < 8192 and not mine), (name, first, mine)
            assert len(set(read(name, mine[0]))) > 64 if mine else True
    same = [inside[f"{layer}0.self_attn.{n}_proj.weight"] for n in ("q", "k", "v", "g")]
    assert same[1:] == same[:3]
    assert len({at % (4 << 20) for at in same[0]}) > 20
    assert inside[layer + "1.block_sparse_moe.shared_experts.gate_proj.weight"] == \
        inside[layer + "1.block_sparse_moe.shared_experts.up_proj.weight"]

    live, places = 0, set()
    for e in range(24):
        name = f"{layer}1.block_sparse_moe.experts.{e}."
        codes = [inside[f"{name}w{w}.weight_packed"] for w in (1, 2, 3)]
        assert len({len(at) for at in codes}) == 1 and codes[0] == codes[2], codes
        live += bool(codes[0])
        for w, blocks in zip((1, 2, 3), codes):
            if not blocks:
                assert len(stored[f"{name}w{w}.weight_scale"]) <= 2  # edges of neighbours
                continue
            assert len(blocks) == 1
            places.add(blocks[0])
            assert len(set(read(f"{name}w{w}.weight_packed", blocks[0]))) > 200
            scales = read(f"{name}w{w}.weight_scale", blocks[0] // 16 + 64, 128)
            assert all(118 < byte < 130 for byte in scales), scales
    assert 8 <= live < 24 and len(places) > 8, (live, places)

    again = make("sparse2", "--release", "--sparse", "--layers", 2, "--experts", 24, "--vocab", 2000, "--seed", 5,
                 "--threads", 1)
    other = make("sparse3", "--release", "--sparse", "--layers", 2, "--experts", 24, "--vocab", 2000, "--seed", 6)
    differing = 0
    for row in plan["shards"]:
        found = blocks_of(os.path.join(path, row["name"]))[0]
        assert blocks_of(os.path.join(again, row["name"]))[0] == found
        differing += blocks_of(os.path.join(other, row["name"]))[0] != found
        with open(os.path.join(path, row["name"]), "rb") as one, open(os.path.join(again, row["name"]), "rb") as two:
            for at in found:
                one.seek(at)
                two.seek(at)
                assert one.read(4096) == two.read(4096), (row["name"], at)
    assert differing >= 2
    config = json.load(open(os.path.join(path, "config.json")))
    assert config["vision_config"]["vt_num_hidden_layers"] == 27 and config["text_config"]["num_experts"] == 24
    for name in ("sparse", "sparse2", "sparse3"):
        shutil.rmtree(folder(name))


def small_tensors_of_a_sparse_checkpoint_are_those_of_the_full_one():
    full, sparse = support.tensors(tiny()), support.tensors(make("tiny-sparse", "--sparse", "--seed", 1, *TINY))
    assert full == sparse  # nothing is large there


def a_file_system_without_holes_is_refused():
    path = folder("no-holes")
    os.mkdir(path)
    # Huge pages make every block of a tmpfs file two megabytes.
    if shutil.which("mount") is None or run("mount", "-t", "tmpfs", "-o", "size=200m,huge=always", "tmpfs", path)[0]:
        raise Skip("cannot mount a tmpfs with huge pages here")
    try:
        probe = os.path.join(path, "probe")
        with open(probe, "wb") as file:
            file.truncate(16 << 20)
            file.write(b"x" * 4096)
        if os.stat(probe).st_blocks * 512 < 1 << 20:
            raise Skip("tmpfs has no huge pages here")
        os.remove(probe)
        refused(run(SYNTH, "--sparse", "--out", os.path.join(path, "model"), "--quiet", *TINY), 3, "holes", "ext4")
        assert os.listdir(os.path.join(path, "model")) == []
    finally:
        run("umount", path)


def like_release_defaults_to_five_layers_and_48_experts():
    plan = json.loads(run(SYNTH, "--like-release", "--dry-run", "--json")[1])
    assert len(plan["shards"]) == 6 and plan["tensors"] == 5 + 23 + 2 * (28 + 288) + 2 * (22 + 288)


def values_have_the_spreads_that_keep_the_model_healthy():
    found = support.tensors(make("spread", "--hidden", 512, "--latent", 256, "--experts", 4, "--vocab", 600))
    layer = "language_model.model.layers.1."

    def stats(name):
        numbers = support.values(*[found[name][0], found[name][2]])
        return statistics.fmean(numbers), statistics.pstdev(numbers)

    mean, spread = stats(layer + "self_attn.q_proj.weight")
    assert abs(mean) < 0.001 and abs(spread * 512 ** 0.5 - 1) < 0.02, (mean, spread)
    mean, spread = stats(layer + "input_layernorm.weight")
    assert abs(mean - 1) < 0.03 and 0.05 < spread < 0.15
    a_log = support.values(*[found[layer + "self_attn.A_log"][i] for i in (0, 2)])
    assert a_log[0] == -2.0 and a_log[5] == 1.5 and a_log == sorted(a_log[:6]) + [0.0] * 26
    bias = support.values(*[found[layer + "self_attn.dt_bias"][i] for i in (0, 2)])
    assert -4 <= min(bias) < -3 and 1 < max(bias) < 2
    expert = layer + "block_sparse_moe.experts.2.w1.weight_"
    weights = support.mxfp4(found[expert + "packed"][2], found[expert + "scale"][2], 96, 256)
    assert abs(statistics.pstdev(weights) * 256 ** 0.5 - 1) < 0.05
    assert len(set(found[expert + "packed"][2])) == 256 and len(set(found[expert + "scale"][2])) == 3


def neighbouring_rows_and_tensors_are_unrelated():
    found = support.tensors(tiny())
    base = "language_model.model.layers."
    for one, two in (("0.self_attn.q_proj.weight", "0.self_attn.k_proj.weight"),
                     ("0.self_attn.q_proj.weight", "1.self_attn.q_proj.weight")):
        a, b = (support.values(found[base + name][0], found[base + name][2]) for name in (one, two))
        dot = sum(x * y for x, y in zip(a, b)) / sum(x * x for x in a)
        assert abs(dot) < 0.1, (one, two, dot)
    a = support.values(*[found[base + "0.self_attn.q_proj.weight"][i] for i in (0, 2)])
    assert abs(sum(x * y for x, y in zip(a, a[64:]))) / sum(x * x for x in a) < 0.1
    assert abs(sum(x * y for x, y in zip(a, a[1:]))) / sum(x * x for x in a) < 0.1


def config_says_what_was_written():
    config = json.load(open(os.path.join(tiny(), "config.json")))
    text = config["text_config"]
    linear = text["linear_attn_config"]
    assert linear["full_attn_layers"] == [4, 5] and linear["kda_layers"] == [1, 2, 3]
    assert (linear["num_heads"], linear["head_dim"], text["hidden_size"], text["vocab_size"]) == (3, 16, 64, 300)
    assert text["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] == 32
    assert "quantization_config" not in config and "vision_config" not in config
    assert config["eos_token_id"] == text["eos_token_id"] == 300 - 16 + 2


def every_token_of_the_rank_file_is_reached_by_merging():
    path = make("tokens", "--vocab", 3000, "--experts", 2)
    lines = open(os.path.join(path, "tiktoken.model")).read().splitlines()
    ranks = {base64.b64decode(line.split()[0], validate=True): int(line.split()[1]) for line in lines}
    assert len(ranks) == len(lines) == 3000 - 256 and list(ranks.values()) == list(range(len(lines)))
    assert list(ranks)[:256] == [bytes([i]) for i in range(256)]

    def bpe(piece):
        parts = [piece[i:i + 1] for i in range(len(piece))]
        while True:
            joined = [(ranks[a + b], i) for i, (a, b) in enumerate(zip(parts, parts[1:])) if a + b in ranks]
            if not joined:
                return parts
            at = min(joined)[1]
            parts[at:at + 2] = [parts[at] + parts[at + 1]]

    for token, rank in ranks.items():
        cuts = [max(ranks[token[:i]], ranks[token[i:]]) for i in range(1, len(token))
                if token[:i] in ranks and token[i:] in ranks]
        assert len(token) == 1 or min(cuts) < rank, token
        assert bpe(token) == [token], token
    added = json.load(open(os.path.join(path, "tokenizer_config.json")))["added_tokens_decoder"]
    assert len(added) == 16 and added["2744"]["content"] == "[BOS]" and added["2999"]["content"] == "[PAD]"
    assert added["2753"]["content"] == "[EOT]" and added["2747"]["special"] is False


def options_out_of_range_are_refused_by_name():
    out = ["--out", folder("never")]
    refused(run(SYNTH, *out, "--layers", 0), 2, "--layers 0", "1..9999")
    refused(run(SYNTH, *out, "--layers", 1), 2, "--layers 1", "both kinds")
    refused(run(SYNTH, *out, "--layers", "many"), 2, "--layers")
    refused(run(SYNTH, *out, "--seed", -1), 2, "--seed")
    refused(run(SYNTH, *out, "--hidden", 1 << 40), 2, "--hidden")
    refused(run(SYNTH, *out, "--topk", 20, "--experts", 16), 2, "--topk 20", "--experts 16")
    refused(run(SYNTH, *out, "--vocab", 271), 2, "--vocab 271", "272")
    refused(run(SYNTH, *out, "--full-attn", "4,9"), 2, "layer 9", "1..5")
    refused(run(SYNTH, *out, "--full-attn", "4,2"), 2, "ascending")
    refused(run(SYNTH, *out, "--full-attn", "1,2,3,4,5"), 2, "no KDA layer")
    refused(run(SYNTH, *out, "--threads", 0), 2, "--threads")
    refused(run(SYNTH, *out, "--frobnicate"), 2, "--frobnicate")
    refused(run(SYNTH), 2, "--out")
    assert not os.path.exists(folder("never"))


def foreign_files_are_never_touched():
    path = folder("foreign")
    os.mkdir(path)
    with open(os.path.join(path, "notes.txt"), "w") as file:
        file.write("mine")
    refused(run(SYNTH, "--out", path, *TINY), 2, "not empty", "--force")
    assert os.listdir(path) == ["notes.txt"]
    for _ in range(2):  # into the folder, then over itself
        assert run(SYNTH, "--out", path, "--force", "--quiet", "--seed", 1, *TINY)[0] == 0
    files = contents(path)
    assert files.pop("notes.txt") == b"mine" and files == contents(tiny())
    refused(run(SYNTH, "--out", path, "--force", *TINY[2:], "--layers", 3), 2,
            "belongs to another checkpoint")
    assert contents(path).keys() - files.keys() == {"notes.txt"}


def a_place_that_cannot_be_written_is_exit_code_3():
    refused(run(SYNTH, "--out", "/proc/k3-synth"), 3, "/proc/k3-synth")
    blocker = folder("blocker")
    open(blocker, "w").close()
    refused(run(SYNTH, "--out", blocker), 3, blocker)


def no_free_space_is_found_before_anything_is_written():
    with support.small_disk(folder("small-disk"), "5m") as path:
        refused(run(SYNTH, "--out", os.path.join(path, "model"), "--quiet"), 3, "bytes", "free")
        assert os.listdir(os.path.join(path, "model")) == []
        make("small-disk/fits", *TINY)


def a_write_that_fails_half_way_leaves_nothing_behind():
    def limit():  # a file may not grow beyond 1.2 MB: the second shard does
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1300000, 1300000))

    path = folder("limited")
    refused(run(SYNTH, "--out", path, "--quiet", preexec_fn=limit), 3, "model-00002-of-000006", "File too large")
    assert os.listdir(path) == []


def an_interrupt_leaves_nothing_behind():
    path = folder("interrupted")
    child = subprocess.Popen([SYNTH, "--out", path, "--like-release", "--experts", "16", "--quiet"],
                             stderr=subprocess.PIPE)
    for _ in range(500):
        if os.path.isdir(path) and os.listdir(path):
            break
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate()
    if child.returncode == 3 and b"free" in err:
        raise Skip("needs 13 GB of free space")
    assert child.returncode == 5 and b"interrupted" in err, (child.returncode, err)
    assert os.listdir(path) == []


def help_version_and_json_go_to_stdout():
    for option in ("--help", "--version"):
        code, out, err = run(SYNTH, option)
        assert code == 0 and b"k3-synth" in out and err == ""
    code, out, _ = run(SYNTH, "--out", folder("json"), "--json", *TINY)
    result = json.loads(out)
    assert code == 0 and result["shards"] == 6 and result["payload_bytes"] > 0 and result["gb_per_second"] > 0


if __name__ == "__main__":
    try:
        support.main([the_bytes_of_a_small_checkpoint_never_change, thread_counts_and_repetitions_give_the_same_files,
                      another_seed_changes_every_random_tensor,
                      names_key_the_values_so_more_experts_and_layers_leave_the_rest_alone,
                      shards_have_the_released_layout, shapes_and_kinds_follow_the_options,
                      full_size_is_the_release_to_the_byte, release_is_the_release_to_the_byte_with_its_images,
                      a_sparse_checkpoint_stores_what_it_says,
                      small_tensors_of_a_sparse_checkpoint_are_those_of_the_full_one,
                      a_file_system_without_holes_is_refused, like_release_defaults_to_five_layers_and_48_experts,
                      values_have_the_spreads_that_keep_the_model_healthy, neighbouring_rows_and_tensors_are_unrelated,
                      config_says_what_was_written, every_token_of_the_rank_file_is_reached_by_merging,
                      options_out_of_range_are_refused_by_name, foreign_files_are_never_touched,
                      a_place_that_cannot_be_written_is_exit_code_3,
                      no_free_space_is_found_before_anything_is_written,
                      a_write_that_fails_half_way_leaves_nothing_behind, an_interrupt_leaves_nothing_behind,
                      help_version_and_json_go_to_stdout])
    finally:
        shutil.rmtree(HOME, ignore_errors=True)
