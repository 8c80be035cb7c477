#!/usr/bin/env python3
"""How fast the arithmetic is, in one command: matrix products (gemm.py), then leaves (leaf.py), with all verdicts.

    python3 tests/bench/speed.py                    # both as they are
    python3 tests/bench/speed.py --quick            # a size of each, one thread: whether all works
    python3 tests/bench/speed.py --processor-time   # one thread, on a machine that is doing other things too

Each prints as it goes; the lines `verdict: …` of both come once more at the end. Exits with 1 if a goal is missed, or one
of them fails. Nothing else should run beside it, unless `--processor-time` is given.
"""

import argparse
import subprocess
import sys

import environment

QUICK = {"gemm.py": ["--sizes", "256", "--threads", "1", "--rounds", "2"], "leaf.py": ["--quick"]}
ONE_THREAD = ["--processor-time", "--threads", "1"]


def arguments_of(script, options):
    quick = QUICK[script] if options.quick else []
    return quick + (ONE_THREAD if options.processor_time else [])


def run(script, options):
    """Shows what a script prints; gives its verdicts, and whether it ended as it should."""
    command = [sys.executable, environment.BENCH / script, *arguments_of(script, options)]
    verdicts = []
    print(f"{script}", flush=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.startswith("verdict:"):
                verdicts.append(line.rstrip())
    return verdicts, process.returncode == 0 and bool(verdicts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a size of each, one thread")
    parser.add_argument("--processor-time", action="store_true", help="of one thread, instead of the time that passed")
    options = parser.parse_args()
    missed, summary = False, []
    for script in QUICK:
        verdicts, good = run(script, options)
        missed |= not good
        summary += [f"{script:8} {verdict}" for verdict in verdicts] or [f"{script:8} failed before any verdict"]
    print("\n" + "\n".join(summary))
    sys.exit(missed)


if __name__ == "__main__":
    main()
