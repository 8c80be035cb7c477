"""Whole runs over uneven links, one program after the other, round by round in seconds: what share classes are worth.

    sh tests/links.sh --rates 1000,4/40,100,100,100 -- python3 tests/uneven.py [--rounds 12] [--size 3m] [--local 8] PROGRAM…

The steward is on the first host, a node on each of the others. PROGRAM is a built `muster`; several are played one after the
other over the same links.
`muster plan --link …` says what to expect, and `tests/bench/plan.py` compares that with this.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = {
    "1m": "width = 160\nlayers = 3\nhidden = 480\nheads = 4\nkey_value_heads = 4",
    "3m": "width = 256\nlayers = 3\nhidden = 1024\nheads = 4\nkey_value_heads = 4",
    "10m": "width = 384\nlayers = 6\nhidden = 1024\nheads = 6\nkey_value_heads = 6",
}


def say(*words):
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout.strip().splitlines()[-1]


def settings(size, rounds, nodes, local):
    """Those of a run whose rounds are mostly bytes: a leaf for each node, or so many local steps."""
    leaves = f"leaves = {nodes}\n" if local == 1 else ""
    steps = f"[local]\nsteps = {local}\n" if local > 1 else ""
    return (f'name = "uneven"\n[model]\n{SIZES[size]}\nsequence = 16\n[training]\nrounds = {rounds}\n{leaves}'
            f"leaf_windows = 1\n{steps}[audit]\nshare = 0.05\n[admission]\nstart_nodes = {nodes}\nstart_verifiers = 0\n"
            "[timers]\ncommit = 60.0\npart = 120.0\nresult = 120.0\n")


def texts(folder):
    """A text to train on, and hardly one to measure losses on: the steward's measuring would share the nodes' processors."""
    squares = " ".join(str(number * number) for number in range(40_000))
    (folder / "text.txt").write_text(squares)
    (folder / "held-out.txt").write_text(squares[:400])


def play(program, hosts, arguments, folder):
    """The log's entries of all rounds of a run, and the bytes that each host's device sent and received."""
    at = lambda name: str(folder / name)
    nodes = len(hosts) - 1
    (folder / "run.toml").write_text(settings(arguments.size, arguments.rounds, nodes, arguments.local))
    texts(folder)
    say(program, "data", "pack", "--text", at("text.txt"), "--held-out", at("held-out.txt"), "--out", at("corpus"))
    say(program, "run", "new", "--config", at("run.toml"), "--data", at("corpus"), "--out", at("run"))
    running = []

    def start(host, log, *words):
        with open(at(log), "a") as out:
            words = ["ip", "netns", "exec", host, str(program), *words]
            running.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out))
        return running[-1]

    (steward, address), *others = hosts
    before = [carried(host) for host, _ in hosts]
    try:
        host = start(steward, "host.log", "host", at("run"), "--listen", f"{address}:7777", "--exit-when-done")
        while not os.path.exists(at("run/address")):
            time.sleep(0.1)
        line = say(program, "invite", at("run"), "--role", "node", "--uses", nodes)
        for number, (name, own) in enumerate(others):
            start(name, f"node{number}.log", "join", line, "--data-dir", at(f"node{number}"), "--threads", "1", "--listen", f"{own}:7778")
        host.wait(timeout=arguments.patience)
    except subprocess.TimeoutExpired:
        print("  not over in time", flush=True)
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    entries = [json.loads(line) for line in open(at("run/log.jsonl")) if line.startswith("{")]
    moved = [[after - one for one, after in zip(was, carried(host))] for was, (host, _) in zip(before, hosts)]
    return [entry for entry in entries if entry.get("event") == "round"], moved


def carried(host):
    """Bytes sent and received by a host's device."""
    shown = subprocess.run(["ip", "-n", host, "-s", "-j", "link", "show", "dev", "wire"], check=True, capture_output=True, text=True)
    stats = json.loads(shown.stdout)[0]["stats64"]
    return stats["tx"]["bytes"], stats["rx"]["bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="+", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--size", choices=SIZES, default="3m")
    parser.add_argument("--local", type=int, default=1, help="steps between two exchanges")
    parser.add_argument("--patience", type=int, default=900)
    arguments = parser.parse_args()
    if "LINKS_HOSTS" not in os.environ:
        sys.exit("uneven: run it under tests/links.sh --rates")
    hosts = [line.split() for line in os.environ["LINKS_HOSTS"].splitlines()]
    medians = []
    for program in arguments.programs:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="uneven-"))
        try:
            rounds, moved = play(program.resolve(), hosts, arguments, folder)
        finally:
            if not os.environ.get("KEEP"):
                shutil.rmtree(folder, ignore_errors=True)
        seconds = [entry["seconds"] for entry in rounds]
        # The last half: classes have found their place by then.
        half = seconds[len(seconds) // 2:]
        medians.append(statistics.median(half) if half else float("nan"))
        print(f"{program}: median of the last half {medians[-1]:.2f} s; rounds " + " ".join(f"{one:.1f}" for one in seconds), flush=True)
        for entry in rounds[-2:]:
            print("  " + ", ".join(f"{name} {value:.1f}" for name, value in entry.get("stages", {}).items()), flush=True)
        sent = ", ".join(f"{tx / 1e6:.0f}/{rx / 1e6:.0f}" for tx, rx in moved)
        print(f"  MB sent/received, steward first: {sent}", flush=True)
    for program, median in zip(arguments.programs[1:], medians[1:]):
        print(f"{program}: {medians[0] / median:.2f} times as fast as the first")


if __name__ == "__main__":
    main()
