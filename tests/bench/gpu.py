#!/usr/bin/env python3
"""Everything about libtorch on a device, in one command: is it right, how fast is it, do audited runs work on it?

    python3 tests/bench/gpu.py                                  # builds with --features tch, then measures on cuda:0
    python3 tests/bench/gpu.py --device cpu --quick             # tries all of it where there is no graphics processor
    python3 tests/bench/gpu.py --pack gpu.tar.xz                # builds, and packs programs and scripts, to be carried
    tar xf gpu.tar.xz; python3 gpu/gpu.py --programs gpu/programs --out report.txt      # there

Programs that were carried find the libtorch of the Python that runs this, which needs numpy and PyTorch 2.11.0; no compiler, no
network. What is said goes to `--out`, too. Steps, all of them or those of `--steps`:

- machine: what is compared with what;
- gradients: `libtorch.py`, distances to the gradients of defined bits and to other threads or the processor, by tensor;
- speed: `libtorch.py`, tokens a second beside PyTorch on the same device, and what the protocol adds;
- bench: `muster bench` on the device;
- runs: for each precision a draft, `muster-verifier calibrate` on the processor and the device, a run with what that found: a
  steward, two nodes, two verifiers, leaves on the device, in f32 those of the second node by `exact`; and a member that
  commits old gradients. All must end well, hold one state, and that member must be banned and nobody else;
- evidence: tables for spec/tolerance.md, which cheats tolerances let through and how far gradients are apart, tensor by
  tensor; also into `--tables`;
- integers: `integer_products.py`, products whose every sum is an integer sum, beside cuBLAS.

Each goal has a line that begins with `verdict:`, and all of them come once more at the end. Goals of speed are for a graphics
processor: they are not judged with `--device cpu` or `--quick`. Exit code 1 if a step fails or a goal is missed, after
all other steps.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

import environment

PATIENCE = 900
QUICK_PRECISIONS, PRECISIONS = "f32,bf16", "f32,tf32,bf16"
PROGRAMS = ("bench-leaf", "evidence", "muster", "muster-torch", "muster-verifier", "muster-verifier-torch")
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
leaves = 12
leaf_windows = 4

[audit]
share = 1.0
leaves = 2
coin_lead = 4
final_rounds = 2

[admission]
start_nodes = 3
start_verifiers = 2
"""
# The round from which the attacker commits old gradients.
FROM = 5


class Failed(Exception):
    """A step did not go as it should."""


class Report:
    """Standard output, and a file beside it."""

    def __init__(self, path):
        self.file = open(path, "w") if path else None
        self.verdicts = []

    @property
    def missed(self):
        return [verdict for verdict in self.verdicts if verdict.startswith("verdict: MISSED")]

    def line(self, text=""):
        print(text, flush=True)
        if self.file:
            print(text, file=self.file, flush=True)

    def command(self, words):
        """Runs a command to its end, saying what it says."""
        self.line("$ " + " ".join(map(str, words)))
        process = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        missed = len(self.missed)
        for line in process.stdout:
            self.line(line.rstrip("\n"))
            if line.startswith("verdict:"):
                self.verdicts.append(line.strip())
        # It says so itself where a goal is missed.
        if process.wait() != 0 and len(self.missed) == missed:
            raise Failed(f"{pathlib.Path(str(words[0])).name} ended with {process.returncode}")


class Programs:
    """The programs, built here or carried."""

    def __init__(self, folder):
        if folder:
            self.paths = {name: pathlib.Path(folder, name).resolve() for name in PROGRAMS}
        else:
            self.paths = {name: environment.build(name, "tch") for name in PROGRAMS}
        if missing := [name for name, path in self.paths.items() if not os.access(path, os.X_OK)]:
            sys.exit(f"{folder} has no program {', '.join(missing)}")

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
        words = [sys.executable, environment.BENCH / "libtorch.py", "--program", programs["bench-leaf"],
                 "--device", arguments.device, "--threads", arguments.threads, "--parts", parts]
        words += ["--sizes", arguments.sizes, "--windows", arguments.windows, "--repeats", arguments.repeats,
                  "--precisions", arguments.precisions, *(["--quick"] if arguments.quick else [])]
        report.command(words)
    return step


def bench(report, arguments, programs):
    for precision in arguments.precisions.split(","):
        report.command([programs["muster"], "bench", "--backend", "tch", "--device", arguments.device,
                        "--precision", precision, "--threads", arguments.threads])


def runs(report, arguments, programs):
    failed = []
    for precision in arguments.precisions.split(","):
        with tempfile.TemporaryDirectory() as folder:
            try:
                Run(report, arguments, programs, (precision, pathlib.Path(folder))).play()
            except Failed as why:
                failed.append(precision)
                report.line(f"{precision}: {why}")
    if failed:
        raise Failed(f"runs in {', '.join(failed)}")


def evidence(report, arguments, programs):
    words = [programs["evidence"], *devices(arguments), "--threads", arguments.threads, "--grid", "8"]
    words += ["--rounds", "10", "--leaves", "4"] if arguments.quick else []
    words = list(map(str, words))
    report.line("$ " + " ".join(words))
    done = subprocess.run(words, capture_output=True, text=True)
    report.line(done.stdout)
    if done.returncode != 0:
        raise Failed(done.stderr.strip())
    if arguments.tables:
        pathlib.Path(arguments.tables).write_text(done.stdout)
        report.line(f"the tables are in {arguments.tables}, too")


def integers(report, arguments, _):
    report.command([sys.executable, environment.BENCH / "integer_products.py", *(["--dry"] if arguments.device == "cpu" else [])])


def pack(target):
    """Programs and scripts in an archive, in a folder `gpu`."""
    paths = Programs(None).paths
    with tempfile.TemporaryDirectory() as folder, tarfile.open(target, "w:xz") as archive:
        for script in sorted(environment.BENCH.glob("*.py")):
            archive.add(script, pathlib.Path("gpu", script.name))
        for name, path in paths.items():
            # Without their symbols they are a third smaller.
            if shutil.which("strip"):
                subprocess.run(["strip", "-o", pathlib.Path(folder, name), path], check=True)
                path = pathlib.Path(folder, name)
            archive.add(path, pathlib.Path("gpu", "programs", name))
    print(f"{target}: {os.path.getsize(target) / 1e6:.0f} MB; there: tar xf {pathlib.Path(target).name}; "
          "python3 gpu/gpu.py --programs gpu/programs")


def devices(arguments):
    """The processor, and the device that all this is about."""
    return [word for name in dict.fromkeys(["cpu", arguments.device]) for word in ("--device", name)]


class Run:
    """A calibrated run: a steward, two nodes, two verifiers and an attacker on this machine."""

    def __init__(self, report, arguments, programs, place):
        self.report, self.arguments, self.programs = report, arguments, programs
        self.profile, self.folder = place
        self.processes = {}

    def play(self):
        self.make()
        try:
            self.members()
            self.report.line(f"profile {self.profile}: " + self.ends())
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()

    def make(self):
        """The draft, what it is calibrated to, and the run."""
        settings, corpus, found = (self.folder / name for name in ("run.toml", "corpus", "found.toml"))
        quick = self.arguments.quick
        size = dict(width=64, hidden=172, rounds=24) if quick else dict(width=512, hidden=1376, rounds=40)
        settings.write_text(SETTINGS.format(**size))
        # Any text will do: these scripts are always at hand.
        self.muster("data", "pack", "--text", *sorted(environment.BENCH.glob("*.py")), "--out", corpus)
        new = ["run", "new", "--config", settings, "--data", corpus]
        self.muster(*new, "--out", self.folder / "draft")
        # Every kind of device that members have here is measured.
        self.report.command([self.programs["muster-verifier"], "calibrate", self.folder / "draft", "--profile", self.profile,
                             "--members-only", *devices(self.arguments), "--threads", self.arguments.threads,
                             "--leaves", 8 if quick else 32, "--out", found])
        self.report.line(found.read_text())
        self.muster(*new, "--calibration", found, "--out", self.folder / "run")

    def members(self):
        run = self.folder / "run"
        self.start("steward", "muster", "host", run, "--listen", "127.0.0.1:0", *self.backend())
        begun = time.monotonic()
        while "invite with" not in self.log("steward"):
            self.check(begun)
        node = self.muster("invite", run, "--role", "node", "--founder", "--uses", "3").strip()
        verifier = self.muster("invite", run, "--role", "verifier", "--uses", "2").strip()
        for name in ("verifier", "juror"):
            self.run([self.programs["muster-verifier"], "enroll", verifier, "--data-dir", self.folder / name])
            self.start(name, "muster-verifier", "watch", self.folder / name, *self.backend())
        for name, device in (("first", True), ("second", self.profile != "f32")):
            self.start(name, "muster", "join", node, "--data-dir", self.folder / name, "--listen", "127.0.0.1:0",
                       *self.backend(device))
        self.start("attacker", "muster", "demo-role", "attacker", "lazy", FROM, node, self.folder / "attacker")

    def backend(self, device=True):
        threads = ["--threads", max(1, int(self.arguments.threads) // 4)]
        return [*threads, "--backend", *(["tch", "--device", self.arguments.device] if device else ["exact"])]

    def ends(self):
        """Waits until everybody has ended as they should, and says how it was."""
        begun = time.monotonic()
        while any(process.poll() is None for process in self.processes.values()):
            self.check(begun)
        self.check(begun)
        events = map(json.loads, (self.folder / "run" / "log.jsonl").read_text().splitlines())
        bans = [event for event in events if event["event"] == "ban"]
        if len(bans) != 1 or self.processes["attacker"].returncode != 1:
            raise Failed(f"the attacker should be banned, and nobody else: {bans}\n{self.log('attacker')[-2000:]}")
        counted = re.compile(r"(\d+) audits passed, (\d+) found guilty, (\d+) undecided")
        audits = [counted.search(self.log(name)) for name in ("verifier", "juror")]
        if not all(audits) or not sum(int(each[1]) for each in audits):
            raise Failed(f"the verifiers: {[each and each[0] for each in audits]}")
        results = {name: json.loads((self.folder / name / "result.json").read_text())
                   for name in ("first", "second", "verifier", "juror")}
        roots = {name: result["final_state_root"] for name, result in results.items()}
        if len(set(roots.values())) != 1:
            raise Failed(f"the members hold {roots}")
        how = re.search(r"leaves are computed by (.*)", self.log("first"))
        return (f"{'; '.join(each[0] for each in audits)}; the attacker, from round {FROM} on, was banned from round "
                f"{bans[0]['effective']} on for a {bans[0]['finding']}; everybody holds "
                f"{roots['first'][:16]}; leaves by {how[1] if how else 'nobody'}; {time.monotonic() - begun:.0f} s")

    def check(self, begun):
        """Fails once a process ended otherwise than it should, or it all takes too long."""
        for name, process in self.processes.items():
            if process.poll() not in (None, 1 if name == "attacker" else 0):
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


STEPS = {"machine": machine, "gradients": libtorch("distance"), "speed": libtorch("speed,costs"), "bench": bench,
         "runs": runs, "evidence": evidence, "integers": integers}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0", help="cpu, cuda or cuda:N")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--steps", default=",".join(STEPS), metavar=",".join(STEPS))
    parser.add_argument("--sizes", default="10,100", help="million parameters, of those that libtorch.py knows")
    parser.add_argument("--windows", type=int, default=128, help="of 256 tokens, a leaf")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--precisions", default=PRECISIONS)
    parser.add_argument("--pack", metavar="FILE", help="packs programs and scripts into an archive (.tar.xz), and does nothing else")
    parser.add_argument("--programs", metavar="DIR", help=f"where {', '.join(PROGRAMS)} are")
    parser.add_argument("--tables", metavar="FILE", help="where the tables of the evidence go, too, in Markdown")
    parser.add_argument("--out", metavar="FILE", help="where the report goes, too")
    parser.add_argument("--quick", action="store_true", help="5 M, f32 and bf16, one thread, unless told otherwise")
    if "--quick" in sys.argv:
        parser.set_defaults(sizes="5", precisions=QUICK_PRECISIONS, threads=1, windows=8, repeats=2)
    arguments = parser.parse_args()
    if unknown := set(arguments.steps.split(",")) - set(STEPS):
        parser.error(f"{', '.join(unknown)}: choose of {', '.join(STEPS)}")
    return arguments


def main():
    arguments = parse()
    if arguments.pack:
        return pack(arguments.pack)
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
        begun = time.monotonic()
        try:
            STEPS[name](report, arguments, programs)
        except Failed as why:
            failed.append(name)
            report.line(f"FAILED: {why}")
        report.line(f"{name}: {time.monotonic() - begun:.0f} s")
    report.line("\n== goals")
    for verdict in report.verdicts:
        report.line(verdict)
    if arguments.quick or arguments.device == "cpu":
        report.line("goals of speed are not judged: they are for a graphics processor, and not for --quick")
    said = [f"failed: {', '.join(failed)}"] if failed else ["no step failed"]
    said.append(f"{len(report.missed)} goals missed" if report.missed else "no goal that was judged is missed")
    report.line("\n" + "; ".join(said))
    sys.exit(1 if failed or report.missed else 0)


if __name__ == "__main__":
    main()
