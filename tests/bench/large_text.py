#!/usr/bin/env python3
"""A text that fits on no volunteer's disk: memory and time of packing it, and how soon a member trains that joins over a slow line.

    python3 tests/bench/large_text.py                 # 10 GB, which take 20 GB of disk for as long as it runs
    python3 tests/bench/large_text.py --size 1        # tries it

A steward and a node on fast links, and one that joins over 50 Mbit/s each way with 15 ms (`tests/links.sh`); a small model, so that what
is fetched is the text. Goals, each with a line `verdict: …`: packing takes at most 1 GiB of memory; the first leaf of the one that joins
counts within a minute of its start. Exits with 1 where one is missed, with 3 where the machine allows no links.
"""

import argparse
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import environment

ROOT = pathlib.Path(__file__).resolve().parents[2]
RATE, WITHIN, MEMORY = 50, 60, 1 << 30
SETTINGS = "[training]\nrounds = 5000\nleaves = 8\nleaf_windows = 1\n[admission]\nstart_nodes = 1\nstart_verifiers = 0\n"
# Rounds that the other node trains alone before somebody joins.
ALONE = 20


def out(*command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def write(path, size):
    """A text of so many GB: a megabyte of numbers, again and again."""
    # Small: what this process has counts for those that it starts.
    piece = "".join(f"{number} times {number} is {number * number}.\n" for number in range(34_000)).encode()
    with open(path, "wb") as file:
        for _ in range(round(size * 1e9 / len(piece))):
            file.write(piece)


def received(host):
    shown = out("ip", "-n", host, "-s", "-j", "link", "show", "dev", "wire")
    return json.loads(shown)[0]["stats64"]["rx"]["bytes"]


def wait(what, within):
    """Seconds until something holds; none if it does not in time."""
    begun = time.monotonic()
    while time.monotonic() - begun < within:
        if what():
            return time.monotonic() - begun
        time.sleep(0.2)
    return None


def join(program, folder):
    """Plays the run between the hosts of `tests/links.sh`, and says when the first leaf of the one that joined counted."""
    hosts = [line.split() for line in os.environ["LINKS_HOSTS"].splitlines()]
    running, logs = [], {}

    def start(name, *words):
        host, logs[name] = hosts[len(running)][0], folder / f"{name}.log"
        with open(logs[name], "w") as log:
            command = ["ip", "netns", "exec", host, program, *words]
            running.append(subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    try:
        start("steward", "host", folder / "run", "--listen", f"{hosts[0][1]}:7777")
        ready = wait(lambda: (folder / "run/address").exists(), 600)
        print(f"the steward has read the text's outline after {ready or 600:.1f} s", flush=True)
        line = out(program, "invite", folder / "run", "--role", "node", "--uses", "2").strip().splitlines()[-1]
        # Rounds of which a leaf of this node counted.
        counted = lambda name: len(re.findall(r"\b[1-9]\d* of your leaves counted", logs[name].read_text()))
        for name, (_, address) in zip(("node", "joiner"), hosts[1:]):
            before = received(hosts[len(running)][0])
            start(name, "join", line, "--data-dir", folder / name, "--threads", "1", "--listen", f"{address}:7778")
            seconds = wait(lambda: counted(name) >= (ALONE if name == "node" else 1), 300)
        fetched = (received(hosts[2][0]) - before) / 1e6
        print(f"joiner: first leaf that counts after {seconds or 300:.1f} s, {fetched:.1f} MB received")
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=float, default=10, help="GB of text")
    parser.add_argument("--program", type=pathlib.Path, help="a built `muster`, instead of one of this tree")
    parser.add_argument("--join", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    program = (arguments.program or pathlib.Path(environment.build("muster"))).resolve()
    if arguments.join:
        return join(program, arguments.join)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-text-"))
    try:
        write(folder / "text.txt", arguments.size)
        (folder / "run.toml").write_text(SETTINGS)
        begun = time.monotonic()
        out(program, "data", "pack", "--text", folder / "text.txt", "--out", folder / "corpus")
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        packed, peak = time.monotonic() - begun, used.ru_maxrss * 1024
        print(f"packing {arguments.size:g} GB: {packed:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of a processor", flush=True)
        (folder / "text.txt").unlink()
        missed = environment.verdict("memory of packing", f"{peak / 2**20:.0f} MiB", f"at most {MEMORY >> 20} MiB", peak <= MEMORY)
        out(program, "run", "new", "--config", folder / "run.toml", "--data", folder / "corpus", "--out", folder / "run")
        shutil.rmtree(folder / "corpus")
        links = ["sh", ROOT / "tests/links.sh", "--rates", f"1000,1000,{RATE}", "--delay", "15ms", "--"]
        play = [sys.executable, __file__, "--program", program, "--join", folder]
        done = subprocess.run([str(word) for word in links + play], stdout=subprocess.PIPE, text=True)
        print(done.stdout, end="", flush=True)
        if done.returncode:
            sys.exit(done.returncode)
        seconds = float(done.stdout.split("counts after ")[1].split()[0])
        missed |= environment.verdict(f"a member trains that joins over {RATE} Mbit/s", f"{seconds:.1f} s", f"at most {WITHIN} s",
                                      seconds <= WITHIN)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
