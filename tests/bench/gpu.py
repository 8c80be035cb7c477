#!/usr/bin/env python3
"""Everything about libtorch on a device, in one command: is it right, how fast is it, does an audited run work on it?

    python3 tests/bench/gpu.py                                  # builds with --features tch, then measures on cuda:0
    python3 tests/bench/gpu.py --device cpu --quick             # tries all of it where there is no graphics processor
    python3 tests/bench/gpu.py --programs DIR --out report.txt  # with programs that were built elsewhere and carried here

To carry: `cargo build --release --workspace --features tch`, then `bench-leaf`, `muster` and `muster-verifier` of
target/release beside this folder of scripts. Here they find the libtorch of the Python that runs this, which needs numpy
and PyTorch 2.11.0; no compiler, no network. What is said goes to `--out`, too. Steps, all of them or those of `--steps`:

- machine: what is compared with what;
- gradients: `libtorch.py`, distances to the gradients of defined bits and to other threads or the processor, by tensor;
- speed: `libtorch.py`, tokens a second beside PyTorch on the same device, and what the protocol adds;
- bench: `muster bench` on the device;
- run: a steward, two nodes and a verifier, leaves on the device where the profile allows it, those of the second node in
  f32 by `exact`: all must end well, hold one state, and find nobody guilty. `--arithmetic FILE` has the section of run.toml
  that names profile and tolerances; without it the profile is exact, and the run is one of the processor.

Exit code 1 if a step fails, after the others.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import environment

PATIENCE = 600
QUICK_PRECISIONS, PRECISIONS = "f32", "f32,tf32,bf16"
SETTINGS = """
[model]
width = {width}
layers = 2
heads = 4
key_value_heads = 4
hidden = {hidden}
sequence = 64

[training]
rounds = {rounds}
leaves = 8
leaf_windows = 4

[admission]
start_nodes = 2
start_verifiers = 1

[audit]
share = 0.5
"""


class Failed(Exception):
    """A step did not go as it should."""


class Report:
    """Standard output, and a file beside it."""

    def __init__(self, path):
        self.file = open(path, "w") if path else None

    def line(self, text=""):
        print(text, flush=True)
        if self.file:
            print(text, file=self.file, flush=True)

    def command(self, words):
        """Runs a command to its end, saying what it says."""
        self.line("$ " + " ".join(map(str, words)))
        process = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in process.stdout:
            self.line(line.rstrip("\n"))
        if process.wait() != 0:
            raise Failed(f"{pathlib.Path(str(words[0])).name} ended with {process.returncode}")


class Programs:
    """The programs, built here or carried."""

    def __init__(self, folder):
        if folder:
            self.paths = {name: pathlib.Path(folder, name).resolve() for name in ("bench-leaf", "muster", "muster-verifier")}
        else:
            self.paths = {name: environment.build(name, "tch") for name in ("bench-leaf", "muster", "muster-verifier")}

    def __getitem__(self, name):
        return self.paths[name]


def machine(report, arguments, programs):
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        found = "none"
    models = re.findall(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    report.line(f"graphics processor: {found}")
    report.line(f"processor: {models[0] if models else 'unknown'}, {os.cpu_count()} threads, load {os.getloadavg()[0]:.1f}")
    report.line(f"device: {arguments.device}; {subprocess.run([programs['muster'], '--version'], capture_output=True, text=True).stdout.strip()}")


def libtorch(parts):
    def step(report, arguments, programs):
        words = [sys.executable, environment.ROOT / "tests/bench/libtorch.py", "--program", programs["bench-leaf"],
                 "--device", arguments.device, "--threads", arguments.threads, "--parts", parts]
        words += ["--sizes", arguments.sizes, "--windows", arguments.windows, "--repeats", arguments.repeats,
                  "--precisions", arguments.precisions]
        report.command(words)
    return step


def bench(report, arguments, programs):
    for precision in arguments.precisions.split(","):
        report.command([programs["muster"], "bench", "--backend", "tch", "--device", arguments.device,
                        "--precision", precision, "--threads", arguments.threads])


def run(report, arguments, programs):
    with tempfile.TemporaryDirectory() as folder:
        Run(report, arguments, programs, pathlib.Path(folder)).play()


class Run:
    """A steward, two nodes and a verifier on this machine."""

    def __init__(self, report, arguments, programs, folder):
        self.report, self.arguments, self.programs, self.folder = report, arguments, programs, folder
        self.processes = {}

    def play(self):
        settings = self.folder / "run.toml"
        arithmetic = pathlib.Path(self.arguments.arithmetic).read_text() if self.arguments.arithmetic else ""
        size = dict(width=64, hidden=172, rounds=8) if self.arguments.quick else dict(width=512, hidden=1376, rounds=30)
        settings.write_text(SETTINGS.format(**size) + arithmetic)
        profile = re.search(r'^\s*profile\s*=\s*"(\w+)"', arithmetic, re.MULTILINE)
        self.profile = profile[1] if profile else "exact"
        text = environment.ROOT / "protocol/core/src"
        self.muster("data", "pack", "--text", text, "--out", self.folder / "corpus")
        self.muster("run", "new", "--config", settings, "--data", self.folder / "corpus", "--out", self.folder / "run")
        try:
            self.members()
            self.report.line(f"profile {self.profile}: " + self.ends())
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()

    def members(self):
        run = self.folder / "run"
        self.start("steward", "muster", "host", run, "--listen", "127.0.0.1:0", *self.backend())
        begun = time.monotonic()
        while "invite with" not in self.log("steward"):
            self.check(begun)
        node = self.muster("invite", run, "--role", "node", "--founder", "--uses", "2").strip()
        verifier = self.muster("invite", run, "--role", "verifier").strip()
        home = self.folder / "verifier"
        self.run([self.programs["muster-verifier"], "enroll", verifier, "--data-dir", home])
        self.start("verifier", "muster-verifier", "watch", home, *self.backend())
        for name, device in (("first", True), ("second", self.profile != "f32")):
            self.start(name, "muster", "join", node, "--data-dir", self.folder / name, "--listen", "127.0.0.1:0",
                       *self.backend(device))

    def backend(self, device=True):
        threads = ["--threads", max(1, int(self.arguments.threads) // 4)]
        if self.profile == "exact":
            return threads
        return [*threads, "--backend", *(["tch", "--device", self.arguments.device] if device else ["exact"])]

    def ends(self):
        """Waits until everybody has ended well, and says how it was."""
        begun = time.monotonic()
        while any(process.poll() is None for process in self.processes.values()):
            self.check(begun)
        self.check(begun)
        audits = re.search(r"(\d+) audits passed, (\d+) found guilty, (\d+) undecided", self.log("verifier"))
        if not audits or audits[2] != "0" or audits[1] == "0":
            raise Failed(f"the verifier: {audits[0] if audits else 'no account of its audits'}")
        roots = {name: set(re.findall(r'"final_state_root": "([0-9a-f]+)"', (self.folder / name / "result.json").read_text()))
                 for name in ("first", "second")}
        if len(roots["first"]) != 1 or roots["first"] != roots["second"]:
            raise Failed(f"the nodes hold {roots}")
        how = re.search(r"leaves are computed by (.*)", self.log("first"))
        return (f"{audits[0]}; everybody holds {roots['first'].pop()[:16]}; leaves by {how[1] if how else 'exact'}; "
                f"{time.monotonic() - begun:.0f} s")

    def check(self, begun):
        """Fails once a process did, or it all takes too long."""
        for name, process in self.processes.items():
            if process.poll() not in (None, 0):
                raise Failed(f"the {name} ended with {process.returncode}:\n{self.log(name)[-2000:]}")
        if time.monotonic() - begun > PATIENCE:
            raise Failed("the run does not end:\n" + "\n".join(f"{name}: {self.log(name)[-500:]}" for name in self.processes))
        time.sleep(0.1)

    def start(self, name, program, *words):
        log = open(self.folder / f"{name}.log", "w")
        command = [self.programs[program], *words]
        self.processes[name] = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def muster(self, *words):
        return self.run([self.programs["muster"], *words])

    def run(self, words):
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(f"{' '.join(map(str, words[1:3]))}: {done.stderr.strip()}")
        return done.stdout


STEPS = {"machine": machine, "gradients": libtorch("distance"), "speed": libtorch("speed,costs"), "bench": bench, "run": run}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0", help="cpu, cuda or cuda:N")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--steps", default=",".join(STEPS), metavar=",".join(STEPS))
    parser.add_argument("--sizes", default="10,100", help="million parameters, of those that libtorch.py knows")
    parser.add_argument("--windows", type=int, default=128, help="of 256 tokens, a leaf")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--precisions", default=PRECISIONS)
    parser.add_argument("--arithmetic", metavar="FILE", help="section of run.toml with profile and tolerances")
    parser.add_argument("--programs", metavar="DIR", help="where bench-leaf, muster and muster-verifier are")
    parser.add_argument("--out", metavar="FILE", help="where the report goes, too")
    parser.add_argument("--quick", action="store_true", help="5 M, f32, one thread, unless told otherwise")
    if "--quick" in sys.argv:
        parser.set_defaults(sizes="5", precisions=QUICK_PRECISIONS, threads=1, windows=8, repeats=2)
    arguments = parser.parse_args()
    if unknown := set(arguments.steps.split(",")) - set(STEPS):
        parser.error(f"{', '.join(unknown)}: choose of {', '.join(STEPS)}")
    return arguments


def main():
    arguments = parse()
    environment.enter("numpy", "torch")
    import torch
    if arguments.programs:
        libraries = [str(pathlib.Path(torch.__path__[0], "lib")), os.environ.get("LD_LIBRARY_PATH", "")]
        os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, libraries))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    report, programs = Report(arguments.out), Programs(arguments.programs)
    failed = []
    for name in arguments.steps.split(","):
        report.line(f"\n== {name}")
        try:
            STEPS[name](report, arguments, programs)
        except Failed as why:
            failed.append(name)
            report.line(f"FAILED: {why}")
    report.line(f"\nfailed: {', '.join(failed)}" if failed else "\nall steps passed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
