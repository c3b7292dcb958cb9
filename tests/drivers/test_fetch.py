#!/usr/bin/env python3
"""k3-fetch from outside, against a hub that misbehaves.  usage: test_fetch.py PATH/k3-fetch

What is durable is read from the journals by code of this file."""
import concurrent.futures
import functools
import hashlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import support
from hub_server import Declared, Hub
from support import Skip, refused, run, small_disk

FETCH = sys.argv[1]
K3 = FETCH[:FETCH.rfind("/") + 1] + "k3"
HOME = tempfile.mkdtemp(prefix="k3-fetch-test-")
TOKEN = "hf_SECRETsecretSECRET"
PIECE = 1 << 18
SHARD = 5 * PIECE + 12345


def model(shards=3, seed=7):
    rng = random.Random(seed)
    files = {f"model-{n:05}-of-{shards:06}.safetensors": rng.randbytes(SHARD + n) for n in range(1, shards + 1)}
    files.update({"config.json": b'{"a": 1}\n', "tiktoken.model": rng.randbytes(30000), "empty.txt": b"",
                  "extra/notes with blanks & more.md": b"# notes\n"})
    return files


def folder(name):
    path = os.path.join(HOME, name)
    shutil.rmtree(path, ignore_errors=True)
    return path


def environment(hub=None, **more):
    keep = {key: os.environ[key] for key in ("PATH", "LD_LIBRARY_PATH", "ASAN_OPTIONS", "UBSAN_OPTIONS")
            if key in os.environ}
    return {**keep, "no_proxy": "*", **({"HF_ENDPOINT": hub.origin} if hub else {}), **more}


def fetch(hub, where, *options, env=None, repo=None):
    """(exit code, stdout, stderr)"""
    code, out, err = run(FETCH, repo or hub.repo, where, "--piece", "256KiB", *options,
                         env=environment(hub, **(env or {})))
    return code, out.decode(), err


def good(*arguments, **more):
    code, out, err = fetch(*arguments, **more)
    assert code == 0, (code, out, err)
    return out, err


def refusal(result, code, *words):
    refused((result[0], result[1].encode(), result[2]), code, *words)


def summary(hub, where, *options, **more):
    code, out, err = fetch(hub, where, "--json", *options, **more)
    return code, json.loads(out), err


def start(hub, where, *options, **more):
    return subprocess.Popen([FETCH, hub.repo, where, "--piece", "256KiB", *map(str, options)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env=environment(hub, **more))


def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.005)


def command(hub, where, *more):
    """How k3-fetch says that it may be run again."""
    return shlex.join([FETCH, f"{hub.origin}/{hub.repo}", where, *more])


def overwrite(where, path, data):
    with open(os.path.join(where, path), "r+b") as file:
        file.write(data)


def contents(where):
    found = {}
    for root, _, names in os.walk(where):
        for name in names:
            path = os.path.join(root, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, where)] = file.read()
    return found


def whole(hub, where):
    """The folder holds the hub's files, byte for byte, the manifest and nothing else."""
    found = contents(where)
    manifest = json.loads(found.pop("k3-fetch.json"))
    assert set(found) == set(hub.files), set(found) ^ set(hub.files)
    for path, data in hub.files.items():
        assert found[path] == data, path
    return manifest


def durable(where):
    """path -> [(begin, end)] that the journals claim."""
    claims = {}
    for path, data in contents(where).items():
        if path.endswith(".part.journal"):
            lines = data.decode().split("\n")[1:-1]
            claims[path[:-len(".part.journal")]] = [tuple(map(int, line.split())) for line in lines]
    return claims


def everything_comes_and_is_verified():
    with Hub(model()) as hub:
        hub.page = 3
        hub.bytes_per_second = 8e6
        where = folder("whole") + "/with blanks"
        out, err = good(hub, where, "--jobs", 4)
        manifest = whole(hub, where)
        assert "every digest is right" in out, out
        assert out.endswith(f"next: {shlex.quote(K3)} '{where}' --prompt Hello\n"), out
        assert hub.commit in out
        for path in hub.files:
            assert re.search(re.escape(path) + "  .*right  ", err), (path, err)
        assert "7 files" in err and "4 connections" in err, err
        assert hub.most_active == 4, hub.most_active
        spans = [span for path, span in hub.of_files() if path.endswith("1-of-000003.safetensors")]
        assert len(spans) == 6 and all(end - begin <= PIECE for begin, end in spans), spans
        assert all(request.headers.get("Accept-Encoding") == "identity" for request in hub.log)
        assert manifest["repo"] == hub.repo and manifest["commit"] == hub.commit and manifest["revision"] == "main"
        rows = {row["path"]: row for row in manifest["files"]}
        for path, data in hub.files.items():
            assert rows[path]["size"] == len(data)
            if path.endswith((".safetensors", ".model")):
                assert rows[path]["sha256"] == hashlib.sha256(data).hexdigest()
            else:
                assert rows[path]["git-sha1"] == hub.entry(path)["oid"]


def a_second_run_fetches_nothing_and_damage_is_fetched_again():
    with Hub(model()) as hub:
        where = folder("again")
        good(hub, where)
        hub.forget()
        code, result, err = summary(hub, where)
        assert code == 0 and result["received_bytes"] == 0 and hub.of_files() == []
        assert "to compare digests" not in err, "the manifest is trusted"
        shard = "model-00002-of-000003.safetensors"
        # Same size, other time: read again. Wrong size, gone, damaged: fetched again, and nothing else.
        os.utime(os.path.join(where, "model-00001-of-000003.safetensors"))
        with open(os.path.join(where, shard), "r+b") as file:
            file.seek(1000)
            file.write(b"damage")
        os.truncate(os.path.join(where, "tiktoken.model"), 29999)
        os.remove(os.path.join(where, "config.json"))
        code, result, err = summary(hub, where)
        assert code == 0 and "reading 2 files" in err, err
        assert {path for path, _ in hub.of_files()} == {shard, "tiktoken.model", "config.json"}
        whole(hub, where)


def files_from_elsewhere_are_read_once_and_kept():
    with Hub(model()) as hub:
        where = folder("foreign")
        for path, data in hub.files.items():
            os.makedirs(os.path.dirname(os.path.join(where, path)), exist_ok=True)
            with open(os.path.join(where, path), "wb") as file:
                file.write(data if path != "config.json" else b'{"a": 2}\n')
        out, err = good(hub, where)
        assert "reading 7 files" in err and [path for path, _ in hub.of_files()] == ["config.json"], err
        whole(hub, where)
        assert "to compare digests" not in good(hub, where)[1]
        with open(os.path.join(where, "k3-fetch.json"), "w") as file:
            file.write('{"version": 1, "repo"')
        out, err = good(hub, where)
        assert "k3-fetch.json is damaged" in err and "reading 7 files" in err, err


def killed_twenty_times_it_goes_on():
    with Hub(model(shards=4)) as hub:
        hub.bytes_per_second = 1.5e6
        where, rng = folder("killed"), random.Random(20)
        held, done, kills = {}, set(), 0
        while kills < 20:
            hub.forget()
            process = start(hub, where, "--jobs", 3, "--quiet")
            try:
                process.wait(rng.uniform(0.03, 0.3))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                kills += 1
            process.communicate()
            fetched_nothing_twice(hub, held, done)
            if process.returncode == 0:  # it was quicker than the axe: once more from the start
                whole(hub, where)
                shutil.rmtree(where)
                held, done = {}, set()
                continue
            held = durable(where)
            done = {path for path in hub.files if os.path.exists(os.path.join(where, path))}
            for path in done:
                with open(os.path.join(where, path), "rb") as file:
                    assert file.read() == hub.files[path], f"{path} has its name and other bytes"
            for path, spans in held.items():
                if path in done:
                    continue
                with open(os.path.join(where, path + ".part"), "rb") as file:
                    part = file.read()
                for begin, end in spans:
                    assert part[begin:end] == hub.files[path][begin:end], (path, begin, end)
        hub.forget()
        hub.bytes_per_second = None
        good(hub, where)
        fetched_nothing_twice(hub, held, done)
        whole(hub, where)


def fetched_nothing_twice(hub, held, done):
    for path, span in hub.of_files():
        assert path not in done, f"{path} was there and was fetched again"
        begin, end = span or (0, len(hub.files[path]))
        for first, last in held.get(path, []):
            assert end <= first or last <= begin, f"{path}: {begin}-{end} asked for, {first}-{last} was on the disk"


def journals_are_believed_to_their_last_whole_line():
    with Hub(model(shards=1)) as hub:
        where, shard = folder("journal"), "model-00001-of-000001.safetensors"
        good(hub, where)
        data = hub.files[shard]
        head = f"k3-fetch-part 1 {len(data)} sha256:{hashlib.sha256(data).hexdigest()}\n"
        rows = f"{PIECE} {2 * PIECE}\n0 1000\n900 2000\n"
        part = data[:2000] + bytes(PIECE - 2000) + data[PIECE:2 * PIECE] + bytes(len(data) - 2 * PIECE)
        for journal, kept in ((head + rows, 2000 + PIECE), (head + rows + f"0 {PIECE}", 2000 + PIECE),
                              (head + rows + "7", 2000 + PIECE), (head, 0), ("", 0), (head[:-9], 0),
                              (head + rows + "7\n", 0),
                              (head.replace(" 1 ", " 2 ") + rows, 0), (head.replace("sha256:", "sha256:0") + rows, 0),
                              (head + f"0 {len(data) + 1}\n", 0), (head + "9 8\n", 0), (head + "0 9x\n", 0)):
            for name, content in ((shard + ".part", part), (shard + ".part.journal", journal.encode())):
                with open(os.path.join(where, name), "wb") as file:
                    file.write(content)
            if os.path.exists(os.path.join(where, shard)):
                os.remove(os.path.join(where, shard))
            code, result, err = summary(hub, where)
            assert code == 0 and result["received_bytes"] == len(data) - kept, (journal, result["received_bytes"], err)
            whole(hub, where)
        with open(os.path.join(where, shard + ".part"), "wb") as file:
            file.write(part[:-1])  # cut short by someone else
        with open(os.path.join(where, shard + ".part.journal"), "w") as file:
            file.write(head + rows)
        os.remove(os.path.join(where, shard))
        assert summary(hub, where)[1]["received_bytes"] == len(data)
        whole(hub, where)


def interrupted_it_says_how_to_go_on():
    with Hub(model()) as hub:
        hub.bytes_per_second = 3e5
        where = folder("interrupted")
        process = start(hub, where, "--include", "*.safetensors")
        until(lambda: hub.sent > 3 * PIECE)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        out, err = process.communicate()
        assert process.returncode == 5 and time.monotonic() - began < 5, process.returncode
        last = err.decode().splitlines()[-1]
        assert last.endswith("go on with: " + command(hub, where, "--include", "*.safetensors")), last
        held = durable(where)
        kept = sum(end - begin for spans in held.values() for begin, end in spans)
        kept += sum(len(data) for path, data in contents(where).items() if path in hub.files)
        assert kept > PIECE / 2, held  # also what was in the middle of a piece
        assert any((end - begin) % PIECE for spans in held.values() for begin, end in spans), held
        hub.forget()
        hub.bytes_per_second = None
        code, result, _ = summary(hub, where)
        fetched_nothing_twice(hub, held, set())
        assert code == 0 and result["received_bytes"] == result["bytes"] - kept, (result, kept)
        whole(hub, where)


def cut_connections_go_on_where_they_were_cut():
    with Hub(model()) as hub:
        hub.fault = lambda request: {"cut": 100000}
        where = folder("cut")
        code, result, err = summary(hub, where)
        assert code == 0 and result["received_bytes"] == result["bytes"] == hub.sent, (result, hub.sent, err)
        whole(hub, where)
        hub.fault = lambda request: {"cut": 0} if request.path == "config.json" else None
        code, result, _ = summary(hub, folder("cut"), "--retries", 2)
        bad = [row for row in result["files"] if row["state"] == "failed"]
        assert code == 1 and [row["path"] for row in bad] == ["config.json"] and "3 times" in bad[0]["why"], bad


def a_server_that_ignores_ranges_is_read_in_one_go():
    with Hub(model(shards=1)) as hub:
        hub.fault = lambda request: {"whole": True}
        where = folder("no-ranges")
        good(hub, where)
        whole(hub, where)
        # From the middle of a file, and with cuts: the beginning comes again and is left out.
        hub.fault = lambda request: None
        hub.bytes_per_second = 5e5
        hub.forget()
        process = start(hub, folder("no-ranges"), "--jobs", 2)
        until(lambda: hub.sent > 2 * PIECE + 50000)
        process.send_signal(signal.SIGTERM)
        process.communicate()
        assert process.returncode == 5 and durable(where)
        hub.bytes_per_second = None
        cuts = iter([300000, 900000])
        hub.fault = lambda request: {"whole": True, "cut": next(cuts, 1 << 30)}
        good(hub, where)
        whole(hub, where)


def the_token_stays_with_its_host():
    with Hub(model(shards=1)) as hub:
        for redirect in (None, hub.cdn, hub.cdn_by_name):
            hub.redirect = redirect
            hub.forget()
            where = folder("token")
            process = start(hub, where, "--jobs", 2, HF_TOKEN=TOKEN)
            with open(f"/proc/{process.pid}/cmdline", "rb") as file:
                assert TOKEN.encode() not in file.read()
            out, err = process.communicate()
            assert process.returncode == 0, err
            assert TOKEN.encode() not in out + err
            whole(hub, where)
            assert all(TOKEN.encode() not in data for data in contents(where).values())
            for request in hub.log:
                sent = request.headers.get("Authorization")
                assert sent == (f"Bearer {TOKEN}" if request.server == "hub" else None), request
            served = {request.server for request in hub.log if request.path in hub.files and request.range}
            assert served == ({"hub"} if redirect is None else {"hub", "cdn"}), served
        # Where the hub sent us once, the next pieces go at once.
        asked = [r.server for r in hub.log if r.path == "model-00001-of-000001.safetensors"]
        assert asked.count("cdn") == 6 and asked.count("hub") < 6, asked
        # An address is not HF_ENDPOINT: the token is meant for another host.
        hub.redirect = None
        for endpoint, sent in (("https://huggingface.co", None), (hub.cdn, None), (hub.origin, f"Bearer {TOKEN}")):
            hub.forget()
            out, err = good(hub, folder("token"), env={"HF_TOKEN": TOKEN, "HF_ENDPOINT": endpoint},
                            repo=f"{hub.origin}/org/model/tree/main")
            assert {request.headers.get("Authorization") for request in hub.log} == {sent}, endpoint
            assert ("is not sent" in err) == (sent is None) and TOKEN not in err, err
        result = fetch(hub, folder("token"), env={"HF_TOKEN": TOKEN + "\r\nX-Evil: 1"})
        refusal(result, 2, "HF_TOKEN")
        assert TOKEN not in result[2]
        # No access, with and without a token: the message is about it and does not hold it.
        hub.api_fault = lambda request: {"status": 401, "headers": {"X-Error-Message": "Invalid credentials"}}
        code, out, err = fetch(hub, folder("token"), env={"HF_TOKEN": TOKEN})
        assert code == 2 and "HF_TOKEN is valid" in err and "Invalid credentials" in err and TOKEN not in err, err
        code, out, err = fetch(hub, folder("token"))
        assert code == 2 and "set HF_TOKEN" in err, err
        # Nor what the server makes of it.
        for said in (f"no, {TOKEN}", "x" * 45 + TOKEN, TOKEN.lower() + TOKEN):
            for header in ("X-Error-Message", "X-Error-Code"):
                echo = {"status": 404, "headers": {header: said}}
                hub.api_fault, hub.fault = lambda request: {**echo, "status": 418}, lambda request: None
                code, out, err = fetch(hub, folder("token"), env={"HF_TOKEN": TOKEN})
                assert code == 1 and "***" in err and TOKEN[:9].lower() not in (out + err).lower(), err
                hub.api_fault, hub.fault = lambda request: None, lambda request: echo
                code, out, err = fetch(hub, folder("token"), "--include", "*.json", env={"HF_TOKEN": TOKEN})
                assert code == 1 and "***" in out and TOKEN[:9].lower() not in (out + err).lower(), (out, err)
        hub.listed = {"x": {"type": "file", "path": f"{TOKEN}.txt", "size": 9}}
        code, out, err = fetch(hub, folder("token"), env={"HF_TOKEN": TOKEN})
        assert code == 1 and "***.txt" in out and TOKEN not in out + err, (out, err)
        assert not any(TOKEN in path or TOKEN.encode() in data
                       for path, data in contents(folder_kept("token")).items())
        hub.listed = {}
        hub.fault = lambda request: {"status": 302, "headers": {"Location": f"http://{TOKEN}.localhost:1/"}}
        code, out, err = fetch(hub, folder("token"), "--retries", 0, env={"HF_TOKEN": TOKEN})
        assert code == 1 and "no connection" in err and TOKEN.lower() not in (out + err).lower(), err
        assert err.count("***") >= 2, err


def an_expired_address_is_asked_for_again():
    with Hub(model(shards=1)) as hub:
        hub.redirect = hub.cdn
        uses = []

        def expires(request):
            if request.server != "cdn" or request.range is None:
                return None
            uses.append(request.range)
            return {"status": 403} if len(uses) % 3 == 2 else None

        hub.fault = expires
        where = folder("expired")
        out, err = good(hub, where, "--jobs", 1)
        whole(hub, where)
        assert "403" not in err, err
        hub.fault = lambda request: {"status": 403} if request.server == "cdn" else None
        code, out, err = fetch(hub, folder("expired"), "--include", "config.json")
        assert code == 1 and "config.json" in out and "403" in out and "3 times" in out, out
        hub.redirect, hub.fault = hub.origin + "/org/model/resolve/main", lambda request: None
        code, out, err = fetch(hub, folder("expired"), "--include", "config.json")
        assert code == 1, (code, out, err)


def lies_about_length_are_found():
    with Hub(model(shards=1)) as hub:
        shard = "model-00001-of-000001.safetensors"
        for path, fault, words in ((shard, {"length": 7}, "the listing says"), (shard, {"shift": 1}, "another range"),
                                   (shard, {"chunked": 9}, "more bytes"), (shard, {"html": True}, "web page"),
                                   ("config.json", {"length": -2}, "the listing says"),
                                   ("config.json", {"chunked": 3}, "more bytes"),
                                   ("config.json", {"html": True}, "web page")):
            where = folder("lies")
            for hub.digests in (True, False):
                hub.fault = lambda request: fault if request.path == path else None
                code, out, err = fetch(hub, where, "--retries", 0, "--include", path)
                assert code == 1 and re.search(f"failed +{re.escape(path)}: .*{words}", out), (fault, code, out, err)
                assert f"fetch them with: {command(hub, where, '--include', path)}\n" in out, out
                assert not os.path.exists(os.path.join(where, path))
            hub.fault = lambda request: None  # and without a digest nothing of the lie is left to be taken for good
            good(hub, where, "--include", path)
            with open(os.path.join(where, path), "rb") as file:
                assert file.read() == hub.files[path]
        # What a body of unknown length left on the way is not taken for the file either.
        hub.fault = lambda request: {"chunked": 9, "pause": 2.2}
        where = folder("lies")
        assert fetch(hub, where, "--retries", 0, "--include", "tiktoken.model")[0] == 1
        hub.fault = lambda request: None
        hub.forget()
        good(hub, where, "--include", "tiktoken.model")
        assert len(hub.of_files()) == 1
        hub.digests = True
        # Too little, without a length that would tell: the rest is asked for.
        once = iter([{"chunked": -3}] * 3)
        hub.fault = lambda request: next(once, None)
        where = folder("lies")
        good(hub, where)
        whole(hub, where)
        hub.files[shard] = hub.files[shard][:-70000]
        hub.listed = {shard: {**hub.entry(shard), "size": SHARD + 1, "lfs": {"oid": "0" * 64, "size": SHARD + 1}}}
        code, out, err = fetch(hub, folder("lies"), "--retries", 0)
        assert code == 1 and f"the listing says {SHARD + 1}" in out, out


def damaged_bytes_never_get_the_name():
    with Hub(model(shards=1)) as hub:
        shard = "model-00001-of-000001.safetensors"
        for path in (shard, "config.json"):
            hub.fault = lambda request: {"damage": 5} if request.path == path else None
            where = folder("damaged")
            code, out, err = fetch(hub, where)
            assert code == 1 and re.search(f"damaged +{re.escape(path)}: its (sha256|git-sha1) is", out), out
            assert not any(name.startswith(path) for name in contents(where)), contents(where).keys()
            hub.fault = lambda request: None
            hub.forget()
            good(hub, where)
            assert {name for name, _ in hub.of_files()} == {path}
            whole(hub, where)


def statuses_are_answered_with_patience_or_an_end():
    with Hub(model(shards=1)) as hub:
        failures = {}

        def fails(status, times, **headers):
            def fault(request):
                failures[request.path] = failures.get(request.path, 0) + 1
                return {"status": status, "headers": headers} if failures[request.path] <= times else None
            failures.clear()
            hub.fault = fault

        fails(500, 2)
        good(hub, folder("statuses"))
        whole(hub, folder_kept("statuses"))
        fails(503, 1)
        good(hub, folder("statuses"), "--include", "config.json")
        fails(429, 1, **{"Retry-After": "1"})
        began = time.monotonic()
        out, err = good(hub, folder("statuses"), "--include", "config.json")
        assert 1 <= time.monotonic() - began < 10 and "429" in err, err
        for status, code, word in ((401, 2, "HF_TOKEN"), (403, 2, "HF_TOKEN"), (404, 1, "404"), (410, 1, "410"),
                                   (418, 1, "418"), (416, 1, "416"), (500, 1, "2 times"), (429, 1, "2 times")):
            fails(status, 99)
            where = folder("statuses")
            got, out, err = fetch(hub, where, "--retries", 1, "--include", "config.json", "--include", "tiktoken.model")
            assert got == code and word in out + err, (status, got, out, err)
            assert got == 1 or "go on with: " + command(hub, where) in err
        hub.fault = lambda request: {"status": 404} if request.path == "tiktoken.model" else None
        code, result, _ = summary(hub, folder("statuses"))
        bad = [row["path"] for row in result["files"] if row["state"] != "verified"]
        assert code == 1 and bad == ["tiktoken.model"], result
        assert result["next"].endswith("--include tiktoken.model")


def folder_kept(name):
    return os.path.join(HOME, name)


def listings_that_are_none_are_refused():
    with Hub(model(shards=1)) as hub:
        where = folder("listing")

        def turns_down(code, *words, **more):
            refusal(fetch(hub, where, "--quiet", "--retries", "0", **more), code, *words)

        turns_down(2, "org/other", repo="org/other")
        refusal(fetch(hub, where, "--quiet", "--revision", "nowhere"), 2, "nowhere")
        hub.api_fault = lambda request: {"status": 200, "body": b"<html>Please log in</html>"}
        turns_down(1, "HTML", "login page")
        hub.api_fault = lambda request: {"status": 200, "body": b"[" * 100000}
        turns_down(1, "JSON")
        hub.api_fault = lambda request: {"status": 500}
        turns_down(1, "500")
        hub.api_fault = lambda request: {"status": 302, "headers": {"Location": hub.origin + "/api/models/" + hub.repo +
                                                                    "/revision/main"}}
        turns_down(1, "redirects")
        hub.api_fault = lambda request: {"status": 302, "headers": {"Location": "file:///etc/passwd"}}
        turns_down(1, "redirects")
        hub.api_fault = lambda request: None
        for name in ("../evil", "/etc/evil", "a/../../evil", "a//b", "a/", "", ".", "nul\0", "line\nbreak",
                     "back\\slash", "n" * 300):
            hub.listed = {name: {"type": "file", "path": name, "size": 3, "oid": "0" * 40}}
            turns_down(2, "safely")
        for entry in ({"type": "file", "path": "a"}, {"type": "file", "path": "a", "size": -1},
                      {"type": "file", "path": "a", "size": 1 << 63}, {"type": "file", "path": "a", "size": "3"}):
            hub.listed = {"a": entry}
            turns_down(2, "size")
        hub.listed = {"x": {"type": "file", "path": "config.json", "size": 9}}
        turns_down(2, "twice")
        hub.listed = {"x": {"type": "file", "path": "config.json/x", "size": 9}}
        turns_down(2, "twice")
        assert not contents(where), contents(where)
        for words in (["not a repo"], ["a/b/c"], ["../b"], ["ftp://host/a/b"], ["http://user:word@host/a/b"],
                      ["http://host"]):
            refused(run(FETCH, *words, where, env=environment(hub)), 2)
        for words in ([], [hub.repo], [hub.repo, where, "--jobs", "0"], [hub.repo, where, "--jobs", "2x"],
                      [hub.repo, where, "--piece", "1"]):
            refused(run(FETCH, *words, env=environment(hub)), 2)
        refused(run(FETCH, hub.repo, where, env=environment(HF_ENDPOINT="not an address")), 2, "HF_ENDPOINT")
        for words, endpoint in ((["http://me:hidden@host/a/b"], hub.origin), (["me:hidden@host/a/b"], hub.origin),
                                (["http://me:hid/hidden@host"], hub.origin), (["a/b"], "https://me:hidden@host"),
                                (["a/b"], "me:hidden@host")):
            result = run(FETCH, *words, where, env=environment(HF_ENDPOINT=endpoint))
            refused(result, 2, "@host")
            assert "hid" not in result[2], result
    refused(run(FETCH, "org/model", where, "--quiet", "--retries", 1, env=environment(HF_ENDPOINT=hub.origin)), 1,
            "2 tries", hub.origin)


def progress_is_seen_within_a_second():
    with Hub(model(shards=1)) as hub:
        hub.api_fault = lambda request: {"wait": 1.2}
        hub.bytes_per_second = 2e5
        began = time.monotonic()
        process = start(hub, folder("progress"), "--jobs", 2)
        first = process.stderr.readline()
        assert time.monotonic() - began < 1 and b"asking " + hub.origin.encode() in first, first
        lines = []
        while not lines or b"% " not in lines[-1]:
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        assert re.search(rb"\d %  .* of 1.35 MB fetched  \d+.* [kM]B/s  .* to go  model-00001-of-000001.safetensors "
                         rb"\d+ %", lines[-1]), lines
        process.kill()
        process.communicate()


def verify_only_reads_everything_and_fetches_nothing():
    with Hub(model()) as hub:
        where, shard = folder("verify"), "model-00003-of-000003.safetensors"
        refused(run(FETCH, hub.repo, where, "--verify-only", env=environment(hub)), 2, "not a folder")
        good(hub, where)
        hub.forget()
        assert "every digest is right" in good(hub, where, "--verify-only")[0]
        assert hub.log == [], "the manifest says all there is to know"
        path = os.path.join(where, shard)
        times = os.stat(path)
        with open(path, "r+b") as file:
            file.seek(SHARD - 5)
            file.write(b"\0\0")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # damage that the clock does not show
        os.truncate(os.path.join(where, "tiktoken.model"), 7)
        os.remove(os.path.join(where, "empty.txt"))
        code, out, err = fetch(hub, where, "--verify-only")
        assert code == 1 and hub.log == [], (code, out, err)
        assert f"damaged  {shard}: its sha256 is" in out and "damaged  tiktoken.model: has 7 bytes" in out, out
        assert "missing  empty.txt" in out and "3 of 7 files are missing or damaged" in out, out
        again = re.search("fetch them with: (.*)\n", out).group(1)
        assert again == command(hub, where, "--include", "empty.txt", "--include", shard, "--include",
                                "tiktoken.model"), again
        code, out, err = run(*shlex.split(again), env=environment())  # also where HF_ENDPOINT is not set
        assert code == 0, (code, out, err)
        assert {path for path, _ in hub.of_files()} >= {shard, "tiktoken.model"}
        whole(hub, where)
        # Without a manifest the hub is asked, and with one that cannot be read, which is said.
        os.remove(os.path.join(where, "k3-fetch.json"))
        assert "every digest is right" in good(hub, where, "--verify-only")[0]
        os.truncate(os.path.join(where, "k3-fetch.json"), 100)
        out, err = good(hub, where, "--verify-only")
        assert "k3-fetch.json is damaged" in err and "every digest is right" in out, err


def patterns_choose_files():
    with Hub(model()) as hub:
        where = folder("include")
        out, _ = good(hub, where, "--include", "*.json", "--include", "*notes*")
        assert set(contents(where)) == {"k3-fetch.json", "config.json", "extra/notes with blanks & more.md"}
        assert out.endswith(f"next: {command(hub, where)}\n"), out
        out, _ = good(hub, where, "--include", "*.json", "--jobs", 3, "--any-size", "--revision", "main")
        assert out.endswith(f"next: {command(hub, where, '--revision', 'main', '--jobs', '3', '--any-size')}\n"), out
        code, out, err = fetch(hub, where, "--include", "*.gguf")
        assert code == 2 and "matches" in err, err
        good(hub, where)
        whole(hub, where)


def a_branch_that_moves_mixes_nothing():
    with Hub(model()) as hub:
        where, old = folder("moved"), hub.commit
        hub.bytes_per_second = 3e5
        process = start(hub, where)
        until(lambda: hub.sent > 3 * PIECE)
        process.send_signal(signal.SIGINT)
        process.communicate()
        assert process.returncode == 5 and durable(where)
        # Meanwhile one shard that is under way changes, and the rest does not.
        hub.bytes_per_second = None
        shard = sorted(durable(where))[0]
        hub.commit = "beef" + "1" * 36
        hub.files[shard] = random.Random(9).randbytes(len(hub.files[shard]))
        held = {path: spans for path, spans in durable(where).items() if path != shard}
        hub.forget()
        out, err = good(hub, where)
        assert "main has moved" in err and hub.commit in out and old not in out
        fetched_nothing_twice(hub, held, set())
        assert whole(hub, where)["commit"] == hub.commit
        # Within a run: the server's word for the commit changes.
        hub.forget()
        hub.says_commit = False  # not by the API; each answer has it
        hub.fault = lambda request: setattr(hub, "commit", "dead" + "2" * 36) if len(hub.of_files()) == 4 else None
        code, out, err = fetch(hub, folder("moved"), "--jobs", 1)
        assert code == 1 and "two versions" in err, (code, out, err)
        # Pinned: after the listing nobody asks for the branch.
        hub.says_commit, hub.fault = True, lambda request: None
        hub.forget()
        good(hub, folder("moved"))
        assert [r.path for r in hub.log if "/main" in r.path] == ["/api/models/org/model/revision/main"]


def without_digests_sizes_are_all_there_is():
    with Hub(model(shards=1)) as hub:
        hub.digests = False
        where = folder("sizes")
        out, _ = good(hub, where)
        assert "offers no digests" in out, out
        whole(hub, where)
        hub.forget()
        good(hub, where)
        assert hub.of_files() == []
        # Of another commit, of the same size: nothing says that they are the same.
        shard = "model-00001-of-000001.safetensors"
        hub.commit = "beef" + "1" * 36
        hub.files[shard] = random.Random(9).randbytes(len(hub.files[shard]))
        good(hub, where, "--include", "config.json")
        code, out, err = fetch(hub, where, "--verify-only")
        assert code == 1 and f"missing  {shard}: is of another version" in out, (code, out, err)
        assert contents(where)[shard] != hub.files[shard]
        good(hub, where)
        whole(hub, where)
        hub.forget()
        good(hub, where)
        assert hub.of_files() == []


def answers_with_other_statuses_are_no_files():
    with Hub(model(shards=1)) as hub:
        for hub.digests in (True, False):
            for status in (201, 202, 203):
                where = folder("no-files")
                hub.fault = lambda request: {"as_status": status} if request.path == "tiktoken.model" else None
                code, result, err = summary(hub, where, "--include", "t*", "--include", "c*")
                states = {row["path"]: row["state"] for row in result["files"]}
                assert code == 1 and states["tiktoken.model"] == "failed" and f"answers {status}" in err, (result, err)
                assert result["received_bytes"] == 9 and not durable(where).get("tiktoken.model"), result


def damaged_files_lose_their_name_at_once():
    with Hub(model(shards=1)) as hub:
        where = folder("names")
        good(hub, where)
        overwrite(where, "config.json", b"wrong")
        os.truncate(os.path.join(where, "tiktoken.model"), 7)
        hub.fault = lambda request: {"status": 404}
        before = contents(where)
        assert fetch(hub, where, "--verify-only")[0] == 1
        after = contents(where)
        assert {**before, "k3-fetch.json": 0} == {**after, "k3-fetch.json": 0}, "--verify-only changes nothing"
        code, out, err = fetch(hub, where)
        assert code == 1 and len(re.findall("k3-fetch: (config.json|tiktoken.model): .*; removed", err)) == 2, err
        assert not {"config.json", "tiktoken.model"} & set(contents(where)), contents(where).keys()
        hub.fault = lambda request: None
        good(hub, where)
        whole(hub, where)


def files_that_cannot_be_read_are_fetched_again():
    os.chmod(HOME, 0o755)
    fetch_program = shutil.copy(FETCH, os.path.join(HOME, "for-nobody"))
    other = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    with Hub(model(shards=1)) as hub:
        where = folder("unreadable")
        good(hub, where)
        for path in ("config.json", "tiktoken.model"):
            os.utime(os.path.join(where, path))
        for root, _, names in os.walk(where):
            for path in [root] + [os.path.join(root, name) for name in names]:
                if other:
                    os.chown(path, 65534, 65534)
        for path in ("config.json", "tiktoken.model"):
            os.chmod(os.path.join(where, path), 0)
        words = [fetch_program, hub.repo, where]
        code, out, err = run(*words, "--verify-only", env=environment(hub), **other)
        out = out.decode()
        assert code == 1 and "2 of 5 files are missing or damaged" in out, (code, out, err)
        for path in ("config.json", "tiktoken.model"):
            assert re.search(f"damaged +{path}: cannot be opened: Permission", out), out
        code, out, err = run(*words, env=environment(hub), **other)
        assert code == 0, (code, out, err)
        whole(hub, where)


def names_of_its_own_are_left_out():
    with Hub(model(shards=1)) as hub:
        names = ("k3-fetch.json", "k3-fetch.json.new/x", "x.part", "a/x.part.journal", "config.json.part/deep/x")
        hub.listed = {name: {"type": "file", "path": name, "size": 3, "oid": "0" * 40} for name in names}
        where = folder("own-names")
        out, err = good(hub, where)
        assert "5 files are left out" in err and "k3-fetch.json" in err, err
        whole(hub, where)
        assert "every digest is right" in good(hub, where, "--verify-only")[0]


def a_redirect_that_leads_nowhere_costs_one_file():
    with Hub(model(shards=1)) as hub:
        for location, word in (("ftp://host/file", "not a web address"),
                               (f"{hub.origin}/org/model/resolve/{hub.commit}/config.json", "more than 10 redirects")):
            answer = {"status": 302, "headers": {"Location": location}}
            hub.fault = lambda request: answer if request.path == "config.json" else None
            code, result, err = summary(hub, folder("nowhere"))
            bad = [row for row in result["files"] if row["state"] != "verified"]
            assert code == 1 and [row["path"] for row in bad] == ["config.json"] and word in bad[0]["why"], (bad, err)


def the_space_of_a_dropped_file_is_free_at_once():
    with Hub(model(shards=1)) as hub:
        hub.fault = lambda request: {"damage": 5} if request.path in ("config.json", "tiktoken.model") else None
        hub.bytes_per_second = 3e5
        process = start(hub, folder("dropped"), "--jobs", 1)
        until(lambda: any("safetensors" in path for path, _ in hub.of_files()))
        folder_of = f"/proc/{process.pid}/fd"
        opened = [os.readlink(os.path.join(folder_of, fd)) for fd in os.listdir(folder_of)]
        process.kill()
        process.communicate()
        assert any("safetensors.part" in path for path in opened), opened
        assert not any("(deleted)" in path for path in opened), opened


def links_that_were_planted_are_not_followed():
    with Hub(model(shards=1)) as hub:
        where, prey = folder("planted"), os.path.join(HOME, "prey")
        os.mkdir(where)
        for name in ("k3-fetch.json.new", "config.json.part.journal.new", "config.json.part"):
            with open(prey, "w") as file:
                file.write("mine")
            os.symlink(prey, os.path.join(where, name))
        good(hub, where)
        whole(hub, where)
        with open(prey) as file:
            assert file.read() == "mine"


def a_disk_that_is_too_small_is_refused_first():
    with Hub(model()) as hub, small_disk(folder("small"), "3m") as disk:
        refusal(fetch(hub, disk, "--quiet"), 2, "free", "go on with: " + command(hub, disk))
        assert hub.of_files() == [] and not os.listdir(disk)
        refusal(fetch(hub, disk + "/new/folder", "--quiet"), 2, "free")
        assert not os.listdir(disk), "a folder is left where nothing was fetched"
    with Hub(model()) as hub, small_disk(folder("small"), "24m") as disk:
        # It fills up while the first file comes.
        def fill(request):
            with open(os.path.join(disk, "filler"), "wb") as file:
                try:
                    while True:
                        file.write(bytes(1 << 16))
                except OSError:
                    pass
        hub.fault = fill
        code, out, err = fetch(hub, disk, "--jobs", 1)
        assert code == 3 and "No space left" in err and "go on with: " + command(hub, disk) in err, (code, err)
        hub.fault = lambda request: None
        os.remove(os.path.join(disk, "filler"))
        good(hub, disk)
        whole(hub, disk)
        # Where all is there no space is wanted, and a damaged file makes room for itself.
        fill(None)
        out, _ = good(hub, disk)
        assert "every digest is right" in out
        os.remove(os.path.join(disk, "filler"))
        with open(os.path.join(disk, "filler"), "wb") as file:
            free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
            os.posix_fallocate(file.fileno(), 0, free - (16 << 20) - SHARD // 2)
        shard = "model-00001-of-000003.safetensors"
        for damage in (lambda: overwrite(disk, shard, b"damage"),
                       lambda: os.truncate(os.path.join(disk, shard), SHARD - 1000)):
            damage()
            good(hub, disk)
            with open(os.path.join(disk, shard), "rb") as file:
                assert file.read() == hub.files[shard]


def the_release_has_its_published_sizes():
    name = lambda n: f"model-{n:05}-of-000096.safetensors"

    def published(n):
        special = {1: 2341216112, 94: 4697664072, 95: 92289328, 96: 802448352}
        digits = len(str(n - 1))
        header = 5400 if digits == 2 else 0  # once for each of its tensors the name is longer
        mla = n % 4 == 0 or n == 93
        return special.get(n, (16567501776 if mla else 16990911504) + header + (8 if header and not mla else 0))

    files = {name(n): Declared(published(n)) for n in range(1, 97)}
    assert published(13) == 16990916912 and sum(map(len, files.values())) == 1560936091448
    with Hub(files, repo="moonshotai/Kimi-K3") as hub:
        where = folder("release")
        os.mkdir(where)
        for path, file in files.items():
            with open(os.path.join(where, path), "wb") as stream:
                try:
                    stream.truncate(len(file))
                except OSError as error:
                    raise Skip(f"no file with holes of that size here: {error}")
        out, _ = good(hub, where, "--verify-only")
        assert "96 files, 1560936091448 bytes, all there; every size is right, the server offers no digests" in out, out
        os.truncate(os.path.join(where, name(17)), published(17) - 1)
        os.remove(os.path.join(where, name(96)))
        code, out, err = fetch(hub, where, "--verify-only")
        assert code == 1 and f"damaged  {name(17)}: has {published(17) - 1} bytes" in out, out
        assert f"missing  {name(96)}" in out and "2 of 96" in out, out
        # Each shard by itself, and two that are off by as much so that the total is right.
        os.remove(os.path.join(where, "k3-fetch.json"))
        for wrong in ([1], [2], [4], [10], [11], [12], [92], [93], [94], [95], [96], [13, 14]):
            for i, n in enumerate(wrong):
                hub.files[name(n)] = Declared(published(n) + (8 if i == 0 else -8))
            code, out, err = fetch(hub, where, "--verify-only")
            assert code == 2 and all(name(n) in err for n in wrong), (wrong, err)
            assert err.count("instead of") == len(wrong), (wrong, err)
            for n in wrong:
                hub.files[name(n)] = files[name(n)]
        del hub.files[name(50)]
        code, out, err = fetch(hub, where, "--verify-only")
        assert code == 2 and f"{name(50)} missing" in err and hub.of_files() == [], err
        assert fetch(hub, where, "--verify-only", "--any-size")[0] == 1
        assert fetch(hub, where)[0] == 2, "also before anything is fetched"


def a_slow_server_is_given_up_and_asked_again():
    with Hub(model(shards=1)) as hub:
        waits = iter([{"pause": 12}, {"wait": 12}])
        hub.fault = lambda request: next(waits, None)
        where = folder("slow")
        began = time.monotonic()
        good(hub, where, "--timeout", 1)
        assert time.monotonic() - began < 11
        whole(hub, where)


def one_at_a_time_and_one_repository_to_a_folder():
    with Hub(model(shards=1)) as hub:
        hub.bytes_per_second = 3e5
        where = folder("lock")
        process = start(hub, where)
        until(lambda: hub.sent > 0)
        code, out, err = fetch(hub, where)
        assert code == 2 and "another k3-fetch" in err, err
        process.kill()
        process.communicate()
        hub.bytes_per_second = None
        good(hub, where)
        hub.repo = "org/other"
        code, out, err = fetch(hub, where)
        assert code == 2 and "holds org/model" in err, err
        open(where + "-file", "wb").close()
        refusal(fetch(hub, where + "-file/x", "--quiet"), 3, "folder")


def https_is_checked_and_stays_https():
    key, pem = os.path.join(HOME, "key.pem"), os.path.join(HOME, "cert.pem")
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", key, "-out", pem, "-days", 2, "-subj", "/CN=k3", "-addext", "subjectAltName=IP:127.0.0.1"]
    if shutil.which("openssl") is None or run(*make)[0] != 0:
        raise Skip("openssl cannot make a certificate here")
    with Hub(model(shards=1), tls=(pem, key)) as hub:
        where = folder("tls")
        refusal(fetch(hub, where, "--quiet"), 1, "certificate", "SSL_CERT_FILE")
        good(hub, where, env={"SSL_CERT_FILE": pem})
        whole(hub, where)
        hub.redirect = hub.cdn
        code, out, err = fetch(hub, folder("tls"), env={"SSL_CERT_FILE": pem})
        assert code == 1 and "not https" in err, err
        assert not [request for request in hub.log if request.server == "cdn"]


def help_has_an_example_and_the_exit_codes():
    code, out, _ = run(FETCH, "--help")
    for word in (b"Example:", b"Exit codes:", b"--verify-only", b"HF_TOKEN", b"given again [all]"):
        assert code == 0 and word in out
    assert run(FETCH, "--version")[1].startswith(b"k3-fetch ")


def side_by_side(tests):
    """They wait more than they work: three at a time, told in order."""
    pool = concurrent.futures.ThreadPoolExecutor(3)

    def told(test):
        future = pool.submit(test)
        return functools.wraps(test)(lambda: future.result())

    return [told(test) for test in tests]


try:
    support.main(side_by_side([
        everything_comes_and_is_verified,
        a_second_run_fetches_nothing_and_damage_is_fetched_again,
        files_from_elsewhere_are_read_once_and_kept,
        killed_twenty_times_it_goes_on,
        journals_are_believed_to_their_last_whole_line,
        interrupted_it_says_how_to_go_on,
        cut_connections_go_on_where_they_were_cut,
        a_server_that_ignores_ranges_is_read_in_one_go,
        the_token_stays_with_its_host,
        an_expired_address_is_asked_for_again,
        lies_about_length_are_found,
        damaged_bytes_never_get_the_name,
        statuses_are_answered_with_patience_or_an_end,
        listings_that_are_none_are_refused,
        progress_is_seen_within_a_second,
        verify_only_reads_everything_and_fetches_nothing,
        patterns_choose_files,
        a_branch_that_moves_mixes_nothing,
        without_digests_sizes_are_all_there_is,
        answers_with_other_statuses_are_no_files,
        damaged_files_lose_their_name_at_once,
        files_that_cannot_be_read_are_fetched_again,
        names_of_its_own_are_left_out,
        a_redirect_that_leads_nowhere_costs_one_file,
        the_space_of_a_dropped_file_is_free_at_once,
        links_that_were_planted_are_not_followed,
        a_disk_that_is_too_small_is_refused_first,
        the_release_has_its_published_sizes,
        a_slow_server_is_given_up_and_asked_again,
        one_at_a_time_and_one_repository_to_a_folder,
        https_is_checked_and_stays_https,
        help_has_an_example_and_the_exit_codes,
    ]))
finally:
    shutil.rmtree(HOME, ignore_errors=True)
