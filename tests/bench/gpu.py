#!/usr/bin/env python3
"""Everything about a graphics processor, in one command: is it right, how fast is it, do audited runs work on it?

    python3 tests/bench/gpu.py                                  # builds with --features tch, then measures on cuda:0
    python3 tests/bench/gpu.py --device cpu --quick             # tries all of it where there is none; PoCL takes its place
    python3 tests/bench/gpu.py --pack gpu.tar.xz                # builds, and packs programs and scripts, to be carried
    python3 -m tarfile -e gpu.tar.xz; python3 gpu/gpu.py --programs gpu/programs --within 450 --out report.txt      # there

Programs that were carried find the libtorch of the Python that runs this, which needs numpy and PyTorch 2.11.0; no compiler, no
network. What is said goes to `--out`, too, line by line. Steps, all of them in this order or those of `--steps`:

- machine: what is compared with what, and what a graphics processor's driver brings;
- exact: leaves with defined bits, by OpenCL or CUDA: how many coefficients differ from the processor's, tokens a second, and where
  the time goes;
- run-exact: a run in the profile `exact`, without calibration: of two nodes and of two verifiers one computes on the device and
  one on the processor; all hold one state, and a member that commits old gradients is banned;
- bench: `muster bench` by libtorch on the device in each precision;
- gradients: `libtorch.py`, distances to the gradients of defined bits and to other threads or the processor, by tensor;
- speed: `libtorch.py`, tokens a second beside PyTorch on the same device, and what the protocol adds;
- run-bf16, run-f32, run-tf32: a draft, `muster-verifier calibrate` on the device, a run with what that found: a steward, two
  nodes, two verifiers, leaves on the device, in f32 those of the second node by `exact`; and a member that commits old
  gradients. All must end well, hold one state, and that member must be banned and nobody else;
- integers: `integer_products.py`, products whose every sum is an integer sum, beside cuBLAS;
- evidence: tables for spec/tolerance.md, which cheats tolerances let through and how far gradients are apart, tensor by
  tensor; also into `--tables`.

A step that fails, or takes longer than its row in `STEPS` allows, is ended, and the next one follows; `--within` bounds all of
them, for a machine that is lent. Each goal has a line that begins with `verdict:`, and all of them come once more at the end.
Goals of speed are for a graphics processor: they are not judged with `--device cpu` or `--quick`. Exit code 1 if a step fails
or a goal is missed, after all other steps.
"""

import argparse
import dataclasses
import json
import lzma
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import traceback
import typing

import environment

# Seconds that a run may take, a command of a run, and a calibration; `muster bench` in one precision.
PATIENCE, MOMENT, CALIBRATION, BENCH = 120, 30, 60, 30
# A step is not begun with less.
LEAST = 5
PROGRAMS = ("bench-leaf", "evidence", "gpu", "muster", "muster-torch", "muster-verifier", "muster-verifier-torch")
# Programs that would only become the one beside them, which is linked with libtorch: an archive has links instead.
LINKED = {"muster": "muster-torch", "muster-verifier": "muster-verifier-torch"}
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
# Of a run; and the one from which the attacker commits old gradients.
ROUNDS, FROM = 24, 5


class Failed(Exception):
    """A step did not go as it should."""


class Report:
    """Standard output, and a file beside it. Knows until when the step at work may take."""

    def __init__(self, path, within):
        self.file = open(path, "w") if path else None
        self.end = time.monotonic() + within
        self.deadline = self.end
        self.verdicts = []

    def begin(self, limit):
        """Begins a step that may take so many seconds; gives how many it has."""
        self.deadline = min(time.monotonic() + limit, self.end)
        return self.left()

    def left(self, most=float("inf")):
        return min(self.deadline - time.monotonic(), most)

    @property
    def missed(self):
        return [verdict for verdict in self.verdicts if verdict.startswith("verdict: MISSED")]

    def line(self, text=""):
        print(text, flush=True)
        if self.file:
            print(text, file=self.file, flush=True)

    def command(self, words, limit=float("inf")):
        """Runs a command to its end, or to that of its time, saying what it says."""
        words = list(map(str, words))
        self.line("$ " + " ".join(words))
        # A session of its own: its time ends for its own children, too.
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                   start_new_session=True)
        left, ended = self.left(limit), []
        timer = threading.Timer(max(left, 0), lambda: (ended.append(True), os.killpg(process.pid, signal.SIGKILL)))
        timer.start()
        missed, name = len(self.missed), pathlib.Path(words[0]).name
        try:
            for line in process.stdout:
                self.line(line.rstrip("\n"))
                if line.startswith("verdict:"):
                    self.verdicts.append(line.strip())
            status = process.wait()
        finally:
            timer.cancel()
        if ended:
            raise Failed(f"{name} was ended after {left:.0f} s")
        # It says so itself where a goal is missed.
        if status != 0 and len(self.missed) == missed:
            raise Failed(f"{name} ended with {status}")

    def each(self, tries):
        """Does all of these, by name, whichever fail."""
        failed = []
        for name, attempt in tries.items():
            try:
                attempt()
            except Failed as why:
                failed.append(name)
                self.line(f"FAILED: {name}: {why}")
        if failed:
            raise Failed(", ".join(failed))


def built(name):
    """The path of a program that is built here."""
    return environment.build(name, "tch", kind="example" if name == "gpu" else "bin")


class Programs:
    """The programs, built here or carried."""

    def __init__(self, folder):
        if folder:
            self.paths = {name: pathlib.Path(folder, name).resolve() for name in PROGRAMS}
        else:
            self.paths = {name: built(name) for name in PROGRAMS}
        if missing := [name for name, path in self.paths.items() if not os.access(path, os.X_OK)]:
            sys.exit(f"{folder} has no program {', '.join(missing)}")

    def __getitem__(self, name):
        return self.paths[name]


def said(*words):
    """What a program of this machine says, or that it does not."""
    try:
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=MOMENT)
        return done.stdout.strip() or "nothing" if done.returncode == 0 else f"exit code {done.returncode} {done.stderr.strip()}"
    except (OSError, subprocess.SubprocessError) as why:
        return str(why)


def machine(report, arguments, programs):
    import torch
    models = re.findall(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    report.line(f"processor: {models[0] if models else 'unknown'}, {os.cpu_count()} threads, load {os.getloadavg()[0]:.1f}")
    query = "name,driver_version,memory.total,memory.free,clocks.max.sm,power.limit,ecc.mode.current,compute_mode"
    report.line(f"graphics processor: {said('nvidia-smi', f'--query-gpu={query}', '--format=csv,noheader')}")
    report.line(f"system: {said('ldd', '--version').splitlines()[0]}; {said('uname', '-r')}")
    report.line(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, {torch.__path__[0]}")
    libraries = [line.strip() for line in said("ldconfig", "-p").splitlines() if "opencl" in line.lower()]
    report.line(f"OpenCL by ldconfig: {'; '.join(libraries) or 'none'}")
    found = [str(path) for folder in ("/usr/lib", "/usr/lib64", "/usr/local/nvidia", "/usr/local/cuda/lib64", "/etc/OpenCL")
             for pattern in ("libnvidia-opencl*", "*/libnvidia-opencl*", "libOpenCL*", "*/libOpenCL*", "vendors/*")
             for path in pathlib.Path(folder).glob(pattern)]
    report.line(f"OpenCL on disk: {'; '.join(found) or 'none'}")
    set_here = {name: value for name, value in os.environ.items() if re.match("NVIDIA_|CUDA_|CUBLAS|TORCH_|PYTORCH_", name)}
    report.line(f"environment: {set_here or 'nothing of CUDA'}")
    report.line(f"device: {arguments.device}; {said(programs['muster'], '--version')}")


def exact(report, arguments, programs):
    leaves, windows = (4, 1) if arguments.quick else (100, arguments.windows)
    report.each({
        "check": lambda: report.command([programs["gpu"], "check", leaves]),
        "speed": lambda: report.command([programs["gpu"], "speed", windows, arguments.exact_device]),
    })


def libtorch(parts):
    def step(report, arguments, programs):
        distance = parts == "distance"
        # Distances need no large leaf, and the gradient of defined bits is the processor's.
        windows = min(arguments.windows, 32) if distance else arguments.windows
        words = [sys.executable, environment.BENCH / "libtorch.py", "--program", programs["bench-leaf"],
                 "--device", arguments.device, "--threads", arguments.threads, "--parts", parts, "--windows", windows,
                 "--sizes", arguments.near if distance else arguments.sizes,
                 "--precisions", arguments.precisions if distance else arguments.fast]
        words += ["--repeats", arguments.repeats, "--contribution", 2, *(["--quick"] if arguments.quick else [])]
        report.command(words)
    return step


def bench(report, arguments, programs):
    def attempt(precision):
        return lambda: report.command([programs["muster"], "bench", "--backend", "tch", "--device", arguments.device,
                                       "--precision", precision, "--threads", arguments.threads], BENCH)
    report.each({precision: attempt(precision) for precision in arguments.precisions.split(",")})


def run(precision):
    def step(report, arguments, programs):
        with tempfile.TemporaryDirectory() as folder:
            Run(report, arguments, programs, (precision, pathlib.Path(folder))).play()
    return step


def evidence(report, arguments, programs):
    words = [programs["evidence"], *devices(arguments), "--threads", arguments.threads, "--grid", "8"]
    words += ["--rounds", "10", "--leaves", "4"] if arguments.quick else []
    words = list(map(str, words))
    report.line("$ " + " ".join(words))
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=report.left())
    except subprocess.TimeoutExpired as late:
        raise Failed(f"it was ended after {late.timeout:.0f} s") from late
    report.line(done.stdout)
    if done.returncode != 0:
        raise Failed(done.stderr.strip())
    if arguments.tables:
        pathlib.Path(arguments.tables).write_text(done.stdout)
        report.line(f"the tables are in {arguments.tables}, too")


def integers(report, arguments, _):
    where = ["--dry"] if arguments.device == "cpu" else ["--ways", "int8-four", "--k", 4096, "--patience", 60]
    report.command([sys.executable, environment.BENCH / "integer_products.py", *where])


def pack(target):
    """Programs and scripts in an archive, in a folder `gpu`."""
    if not shutil.which("strip"):
        sys.exit("packing needs the program strip, of the package binutils")
    carried = [name for name in PROGRAMS if name not in LINKED]
    paths = {name: built(name) for name in carried}
    with tempfile.TemporaryDirectory() as folder, tarfile.open(target, "w:xz", preset=9 | lzma.PRESET_EXTREME) as archive:
        for script in sorted(environment.BENCH.glob("*.py")):
            archive.add(script, pathlib.Path("gpu", script.name))
        for name, path in paths.items():
            stripped = pathlib.Path(folder, name)
            subprocess.run(["strip", "--strip-all", "-o", stripped, path], check=True)
            archive.add(stripped, pathlib.Path("gpu", "programs", name))
        for name, linked in LINKED.items():
            link = tarfile.TarInfo(f"gpu/programs/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, linked
            archive.addfile(link)
    print(f"{target}: {os.path.getsize(target) / 1e6:.0f} MB; there: python3 -m tarfile -e {pathlib.Path(target).name}; "
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
        try:
            self.make()
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
        size = dict(width=64, hidden=172) if quick else dict(width=256, hidden=688)
        size["rounds"] = ROUNDS
        settings.write_text(SETTINGS.format(**size))
        # Any text will do: these scripts are always at hand.
        self.muster("data", "pack", "--text", *sorted(environment.BENCH.glob("*.py")), "--out", corpus)
        new = ["run", "new", "--config", settings, "--data", corpus]
        if self.profile == "exact":
            self.muster(*new, "--out", self.folder / "run")
            return
        self.muster(*new, "--out", self.folder / "draft")
        # What members have here, and nothing else: the device, and in f32 the kernels with defined bits.
        self.report.command([self.programs["muster-verifier"], "calibrate", self.folder / "draft", "--profile", self.profile,
                             "--members-only", "--device", self.arguments.device, "--threads", self.arguments.threads,
                             "--rounds", ROUNDS // 2, "--leaves", 8 if quick else 16, "--out", found], CALIBRATION)
        self.report.line(found.read_text())
        self.muster(*new, "--calibration", found, "--out", self.folder / "run")

    def members(self):
        run = self.folder / "run"
        self.start("steward", "muster", "host", run, "--exit-when-done", "--listen", "127.0.0.1:0",
                   *self.backend(self.profile != "exact"))
        begun = time.monotonic()
        while "invite with" not in self.log("steward"):
            self.check(begun)
        node = self.muster("invite", run, "--role", "node", "--founder", "--uses", "3").strip()
        verifier = self.muster("invite", run, "--role", "verifier", "--uses", "2").strip()
        for name, device in (("verifier", True), ("juror", self.profile != "exact")):
            self.run([self.programs["muster-verifier"], "enroll", verifier, "--data-dir", self.folder / name])
            self.start(name, "muster-verifier", "watch", self.folder / name, *self.backend(device))
        for name, device in (("first", True), ("second", self.profile not in ("exact", "f32"))):
            self.start(name, "muster", "join", node, "--data-dir", self.folder / name, "--listen", "127.0.0.1:0",
                       *self.backend(device))
        self.start("attacker", "muster", "demo-role", "attacker", "lazy", FROM, node, self.folder / "attacker")

    def backend(self, device=True):
        threads = ["--threads", max(1, int(self.arguments.threads) // 4)]
        if self.profile == "exact":
            return [*threads, "--device", f"gpu:{self.arguments.exact_device}" if device else "cpu"]
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
        counted = re.compile(r"(\d+) audits? passed, (\d+) found guilty, (\d+) undecided")
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
        if time.monotonic() - begun > PATIENCE or self.report.left() <= 0:
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
        try:
            limit = max(self.report.left(MOMENT), 0)
            done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired as late:
            raise Failed(f"{' '.join(map(str, words[1:3]))} was ended after {late.timeout:.0f} s") from late
        if done.returncode != 0:
            raise Failed(f"{' '.join(map(str, words[1:3]))}: {done.stderr.strip()}")
        return done.stdout


@dataclasses.dataclass
class Step:
    """What is done, and the seconds that it may take."""

    play: typing.Callable
    limit: float


STEPS = {
    "machine": Step(machine, 30),
    "exact": Step(exact, 120),
    "run-exact": Step(run("exact"), 120),
    "bench": Step(bench, 90),
    "gradients": Step(libtorch("distance"), 100),
    "speed": Step(libtorch("speed,costs"), 150),
    "run-bf16": Step(run("bf16"), 150),
    "run-f32": Step(run("f32"), 150),
    "run-tf32": Step(run("tf32"), 150),
    "integers": Step(integers, 90),
    "evidence": Step(evidence, 900),
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0", help="of libtorch: cpu, cuda or cuda:N")
    parser.add_argument("--exact-device", type=int, default=0, metavar="N", help="of those that `muster doctor` names gpu:N")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--steps", default=",".join(STEPS), metavar=",".join(STEPS))
    parser.add_argument("--within", type=float, default=float("inf"), metavar="SECONDS", help="of all steps together")
    parser.add_argument("--near", default="10", metavar="SIZES",
                        help="million parameters of the gradients, of those that libtorch.py knows")
    parser.add_argument("--sizes", default="100", help="the same, of the speed")
    parser.add_argument("--windows", type=int, default=128, help="of 256 tokens, a leaf")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--precisions", default="bf16,tf32,f32", help="of bench and gradients")
    parser.add_argument("--fast", default="bf16,tf32", metavar="PRECISIONS", help="of the speed")
    parser.add_argument("--pack", metavar="FILE", help="packs programs and scripts into an archive (.tar.xz), and does nothing else")
    parser.add_argument("--programs", metavar="DIR", help=f"where {', '.join(PROGRAMS)} are")
    parser.add_argument("--tables", metavar="FILE", help="where the tables of the evidence go, too, in Markdown")
    parser.add_argument("--out", metavar="FILE", help="where the report goes, too")
    parser.add_argument("--quick", action="store_true", help="5 M, f32 and bf16, one thread, unless told otherwise")
    if "--quick" in sys.argv:
        parser.set_defaults(near="5", sizes="5", precisions="bf16,f32", fast="bf16", threads=1, windows=8, repeats=2)
    arguments = parser.parse_args()
    if unknown := set(arguments.steps.split(",")) - set(STEPS):
        parser.error(f"{', '.join(unknown)}: choose of {', '.join(STEPS)}")
    return arguments


def play(name, report, arguments, programs):
    """Does a step, come what may; gives whether it went well."""
    report.line(f"\n== {name}")
    begun = time.monotonic()
    try:
        if report.begin(STEPS[name].limit) < LEAST:
            raise Failed("no time is left for it")
        STEPS[name].play(report, arguments, programs)
        return True
    except Failed as why:
        report.line(f"FAILED: {why}")
    except (Exception, SystemExit):
        report.line(f"FAILED: {traceback.format_exc()}")
    finally:
        report.line(f"{name}: {time.monotonic() - begun:.0f} s")
    return False


def main():
    arguments = parse()
    if arguments.pack:
        return pack(arguments.pack)
    if not arguments.programs:
        environment.enter("numpy", "torch")
    # Most steps need nothing else; what lacks numpy says so itself, and the others go on.
    import torch
    if arguments.programs:
        libraries = [str(pathlib.Path(torch.__path__[0], "lib")), os.environ.get("LD_LIBRARY_PATH", "")]
        os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, libraries))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # What a step has said before its time ends is not lost.
    os.environ["PYTHONUNBUFFERED"] = "1"
    report, programs = Report(arguments.out, arguments.within), Programs(arguments.programs)
    failed = [name for name in arguments.steps.split(",") if not play(name, report, arguments, programs)]
    report.line("\n== goals")
    for verdict in report.verdicts:
        report.line(verdict)
    if arguments.quick or arguments.device == "cpu":
        report.line("goals of speed are not judged: they are for a graphics processor, and not for --quick")
    summary = [f"failed: {', '.join(failed)}"] if failed else ["no step failed"]
    summary.append(f"{len(report.missed)} goals missed" if report.missed else "no goal that was judged is missed")
    report.line("\n" + "; ".join(summary))
    sys.exit(1 if failed or report.missed else 0)


if __name__ == "__main__":
    main()
