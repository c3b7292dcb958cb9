"""What the driver tests share: a counter, a safetensors reader, number decoders. Python's library only."""
import contextlib
import json
import os
import shutil
import struct
import subprocess
import sys
import traceback

FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
FP4 += [-x for x in FP4]


class Skip(Exception):
    pass


def run(*command, **options):
    """(exit code, stdout bytes, stderr text)"""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    return done.returncode, done.stdout, done.stderr.decode("utf-8", "replace")


@contextlib.contextmanager
def small_disk(path, size):
    """A new folder on a file system of that size, as mount writes it: "2m". Skip where that cannot be had."""
    os.mkdir(path)
    if shutil.which("mount") is None or run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path)[0] != 0:
        raise Skip("cannot mount a small tmpfs here")
    try:
        yield path
    finally:
        run("umount", path)


def refused(result, code, *words):
    """The run ended with `code` and one line on stderr that holds all the words and a next step."""
    got, out, err = result
    assert got == code, f"exit code {got}, not {code}: {err}"
    assert out == b"", out
    assert err.count("\n") == 1 and err.startswith("k3-") and ";" in err, f"not one line with a next step: {err!r}"
    for word in words:
        assert word in err, f"{word!r} is not in {err!r}"


def read_header(path):
    """(entries in file order, first data byte, file size); entries are (name, dtype, shape, begin, end)."""
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        text = file.read(length)
    pairs = json.loads(text, object_pairs_hook=list)
    entries = []
    for name, fields in pairs:
        if name == "__metadata__":
            continue
        fields = dict(fields)
        entries.append((name, fields["dtype"], fields["shape"], *fields["data_offsets"]))
    return entries, 8 + length, os.path.getsize(path)


def tensors(folder):
    """name -> (dtype, shape, bytes) of a whole checkpoint."""
    found = {}
    for file in sorted(os.listdir(folder)):
        if not file.endswith(".safetensors"):
            continue
        entries, start, _ = read_header(os.path.join(folder, file))
        with open(os.path.join(folder, file), "rb") as stream:
            data = stream.read()
        for name, dtype, shape, begin, end in entries:
            assert name not in found, name
            found[name] = (dtype, shape, data[start + begin:start + end])
    return found


def values(dtype, data):
    """Python floats; bf16 and float32 are exact in them."""
    if dtype == "BF16":
        return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]
    if dtype == "F32":
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    return list(data)


def mxfp4(packed, scales, rows, cols):
    out, stride, groups = [], (cols + 1) // 2, (cols + 31) // 32
    for r in range(rows):
        for c in range(cols):
            pair = packed[r * stride + c // 2]
            byte = scales[r * groups + c // 32]
            out.append(0.0 if byte == 255 else FP4[pair >> 4 if c % 2 else pair & 15] * 2.0 ** (byte - 127))
    return out


def read_npy(path):
    """(descr, shape, data bytes)"""
    with open(path, "rb") as file:
        data = file.read()
    assert data[:8] == b"\x93NUMPY\x01\x00", data[:8]
    length = struct.unpack("<H", data[8:10])[0]
    assert (10 + length) % 64 == 0 and data[9 + length:10 + length] == b"\n"
    head = eval(data[10:10 + length].decode("ascii"), {"__builtins__": {}})
    assert head["fortran_order"] is False
    return head["descr"], head["shape"], data[10 + length:]


def main(tests):
    passed = failed = skipped = 0
    for test in tests:
        name = test.__name__.replace("_", " ")
        try:
            test()
            passed += 1
            print(f"ok       {name}")
        except Skip as reason:
            skipped += 1
            print(f"skipped  {name}: {reason}")
        except Exception:
            failed += 1
            print(f"FAILED   {name}")
            traceback.print_exc(file=sys.stdout)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 77 if not passed else 0)
