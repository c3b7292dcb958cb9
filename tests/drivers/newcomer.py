#!/usr/bin/env python3
"""The commands of docs/QUICKSTART.md, typed by somebody who has only that page.
usage: newcomer.py BUILD_DIR SOURCE_DIR [--show]

Twice: once without the line that makes a checkpoint, once without the line that downloads one. A hub on this machine
stands for the real one: it has the demo checkpoint, cuts connections, and the download is killed once before it is run
again. --show prints what every command printed."""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import support
from hub_server import Hub

BUILD, SOURCE = map(os.path.abspath, sys.argv[1:3])
SHOW = "--show" in sys.argv
HOME = tempfile.mkdtemp(prefix="k3-newcomer-")
MODEL = os.path.join(SOURCE, "tests/demo/model")


def commands(left_out):
    with open(os.path.join(SOURCE, "docs/QUICKSTART.md"), encoding="utf-8") as file:
        every = [line[2:].rstrip("\n") for line in file if line.startswith("$ ")]
    kept = [line for line in every if f"build/drivers/{left_out} " not in line]
    assert len(kept) == len(every) - 1, f"one line of the page runs {left_out}"
    return kept


def checkpoint():
    files = {}
    for name in os.listdir(MODEL):
        with open(os.path.join(MODEL, name), "rb") as file:
            files[name] = file.read()
    return files


def cut_now_and_then(request):
    """The first answers for each shard end too early."""
    return {"cut": 100000 * request.number} if request.path.endswith(".safetensors") and request.number <= 2 else None


def shell(command, home, environment, kill_after=None):
    started = subprocess.Popen(["bash", "-ec", "exec " + command if kill_after else command], cwd=home, env=environment,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if kill_after:
        time.sleep(kill_after)
        started.send_signal(signal.SIGKILL)
    out, err = started.communicate(timeout=300)
    if SHOW:
        print(f"$ {command}\n{out.decode()}{err.decode()}", flush=True)
    return started.returncode, out.decode(), err.decode()


def follow_the_page(home, left_out):
    os.makedirs(os.path.join(home, "build"))
    os.symlink(os.path.join(BUILD, "drivers"), os.path.join(home, "build/drivers"))
    seen = set()
    with Hub(checkpoint(), repo="demo/model") as hub:
        hub.fault = cut_now_and_then
        environment = {**os.environ, "HF_ENDPOINT": hub.origin, "no_proxy": "*", "OMP_WAIT_POLICY": "passive"}
        for line in commands(left_out):
            program = re.search(r"build/drivers/([\w-]+)", line)
            # The release is not here, and a disk need not be measured for seconds to show that it can be.
            command = line.replace("moonshotai/Kimi-K3", "demo/model")
            if program and program.group(1) == "k3-doctor":
                command += " --seconds 0"
            if program and program.group(1) == "k3-fetch":
                hub.bytes_per_second = 4000000
                code, _, err = shell(command, home, environment, kill_after=0.7)
                assert code == -signal.SIGKILL and err, f"nothing was said within a second: {err!r}"
                hub.bytes_per_second = None
                if os.path.exists(os.path.join(home, "model/k3-fetch.json")):  # unless it was killed before it had a list
                    out = shell("build/drivers/k3-doctor model", home, environment)[1]
                    assert re.search(r"^next +build/drivers/k3-fetch demo/model model$", out, re.M), out
            code, out, err = shell(command, home, environment)
            if "--chat" in line and left_out == "k3-fetch":  # the page says so
                assert code == 0 or (code == 1 and "of the reply: " in err), f"$ {line}\nexit code {code}\n{err}"
                continue
            assert code == 0, f"$ {line}\nexit code {code}\n{out}\n{err}"
            assert out or not program, f"$ {line}\nprinted nothing\n{err}"
            if program:
                seen.add(program.group(1))
                answer = out
            if program and program.group(1) == "k3-doctor" and "model" in line:
                following = out.splitlines()[-1]
                assert re.match(r"next +build/drivers/k3 |next +\S*/k3 ", following), following
    every = {"k3", "k3-fetch", "k3-doctor", "k3-inspect", "k3-synth", "k3-conform", "k3-trace"}
    assert seen == every - {left_out}, seen
    assert "perplexity" in answer, answer


def the_quick_start_works_with_the_download():
    home = os.path.join(HOME, "download")
    follow_the_page(home, "k3-synth")
    for name, data in checkpoint().items():
        with open(os.path.join(home, "model", name), "rb") as file:
            assert file.read() == data, name


def the_quick_start_works_without_the_release():
    follow_the_page(os.path.join(HOME, "made"), "k3-fetch")


try:
    support.main([the_quick_start_works_with_the_download, the_quick_start_works_without_the_release])
finally:
    shutil.rmtree(HOME, ignore_errors=True)
