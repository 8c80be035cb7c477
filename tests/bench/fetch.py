#!/usr/bin/env python3
"""How much of its line a member uses that fetches a state from several holders: one that joins a run over 100 Mbit/s.

    python3 tests/bench/fetch.py                 # five minutes

A steward and three nodes that train 10.7 million parameters over fast lines, and one that joins over 100 Mbit/s with 15 ms
(`tests/links.sh`): what it fetches are the parameters with their moments. The time is from the line of its log that says that it
fetches to the one that it has fetched. Three tries; of each also how long the others' rounds took before, and
meanwhile, and when the member was admitted. The goal has a line `verdict: …`: 80 % of the line. Exits with 1 where it is missed, with
3 where the machine allows no links.
"""

import argparse
import datetime
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import environment

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import uneven  # noqa: E402

RATE, NODES, SHARE, TRIES = 100, 3, 0.8, 3
# Rounds before somebody joins: of fewer it would fetch the results, not a state.
BEFORE, ROUNDS, PATIENCE = 40, 1000, 300


def wait(what):
    begun = time.monotonic()
    while not what():
        if time.monotonic() - begun > PATIENCE:
            sys.exit("fetch: the run does not come so far")
        time.sleep(0.2)


def play(program, folder):
    """Plays the run between the hosts of `tests/links.sh`; says how fast the last member fetched the state."""
    hosts = [line.split() for line in os.environ["LINKS_HOSTS"].splitlines()]
    uneven.texts(folder)
    (folder / "run.toml").write_text(uneven.settings("10m", ROUNDS, NODES, 1))
    uneven.say(program, "data", "pack", "--text", folder / "text.txt", "--held-out", folder / "held-out.txt", "--out", folder / "corpus")
    uneven.say(program, "run", "new", "--config", folder / "run.toml", "--data", folder / "corpus", "--out", folder / "run")
    running = []

    def start(number, *words):
        log = open(folder / f"{number}.log", "w")
        command = ["ip", "netns", "exec", hosts[number][0], program, *words]
        running.append(subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        return lambda: (folder / f"{number}.log").read_text()

    try:
        start(0, "host", folder / "run", "--listen", f"{hosts[0][1]}:7777")
        wait(lambda: (folder / "run/address").exists())
        line = uneven.say(program, "invite", folder / "run", "--role", "node", "--uses", NODES + 1)
        join = lambda number: start(number, "join", line, "--data-dir", folder / f"node{number}", "--threads", "1", "--listen",
                                    f"{hosts[number][1]}:7778")
        logs = [join(number) for number in range(1, NODES + 1)]
        wait(lambda: all(len(re.findall("leaves counted", log())) >= BEFORE for log in logs))
        joiner = join(NODES + 1)
        wait(lambda: " admitted " in joiner())
        print(times(joiner(), logs[0]()))
    finally:
        for process in running:
            process.send_signal(signal.SIGKILL)
        for process in running:
            process.wait()


def at(time):
    return datetime.datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()


def times(log, other):
    """What was fetched, at which rate, and the rounds of another member."""
    said = {word: re.search(rf"^(\S+)\s+INFO ({word} .*)$", log, re.M) for word in ("fetching", "fetched", "admitted")}
    begun, ended, admitted = (at(match[1]) for match in said.values())
    rate = 8 * float(re.search(r"fetched ([\d.]+) MB", log)[1]) / (ended - begun)
    rounds = [at(time) for time in re.findall(r"^(\S+)\s+INFO round .* leaves counted", other, re.M)]
    seconds = [later - earlier for earlier, later in zip(rounds, rounds[1:])]
    of = lambda since, until: statistics.median(length for time, length in zip(rounds, seconds) if since <= time < until)
    return (f"{said['fetched'][2]}, in {ended - begun:.1f} s: {rate:.1f} Mbit/s; admitted {admitted - begun:.1f} s after it began; a "
            f"round of the others took {of(0, begun):.2f} s before, and {of(begun, admitted):.2f} s meanwhile")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--holders", type=int, default=1000, help="Mbit/s of their lines")
    parser.add_argument("--program", type=pathlib.Path, help="a built `muster`, instead of one of this tree")
    parser.add_argument("--play", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    program = (arguments.program or pathlib.Path(environment.build("muster"))).resolve()
    if arguments.play:
        return play(program, arguments.play)
    rates = ",".join(map(str, [1000] + [arguments.holders] * NODES + [RATE]))
    tries = []
    for _ in range(TRIES):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-fetch-"))
        try:
            links = ["sh", ROOT / "tests/links.sh", "--rates", rates, "--delay", "15ms", "--"]
            command = [*links, sys.executable, __file__, "--program", program, "--play", folder]
            done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(done.stdout, end="", flush=True)
        if done.returncode:
            sys.exit(done.returncode)
        tries.append(float(re.search(r"([\d.]+) Mbit/s", done.stdout)[1]))
    rate = statistics.median(tries)
    missed = environment.verdict(f"a state over {RATE} Mbit/s", f"{rate:.1f} Mbit/s", f"at least {SHARE * RATE:.0f}", rate >= SHARE * RATE)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
