"""What the scripts of this folder run on: a virtual environment of their own, built programs, and talk with them.

    python3 tests/bench/environment.py           # makes target/bench-venv and says where it is
"""

import functools
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time

BENCH = pathlib.Path(__file__).resolve().parent
# Of the sources, where this folder is among them.
ROOT = BENCH.parents[1] if len(BENCH.parents) > 1 else BENCH
VENV = ROOT / "target" / "bench-venv"
# Name of the module: what pip installs for it.
PACKAGES = {"numpy": "numpy", "torch": "torch==2.11.0", "transformers": "transformers==4.57.1",
            "tokenizers": "tokenizers<0.23", "gguf": "gguf", "accelerate": "accelerate",
            # ByzFL wants a torchvision, and the newest one would replace torch.
            "torchvision": "torchvision==0.26.0", "byzfl": "byzfl==0.0.11",
            "hivemind": "hivemind==1.1.12"}


def python(*modules):
    """The virtual environment's Python, able to import these modules of `PACKAGES`; about 5 GB with torch."""
    program = VENV / "bin" / "python"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    missing = [name for name in modules if not has(program, name)]
    if missing:
        names = ", ".join(missing)
        print(f"installing {names} under {VENV.relative_to(ROOT)}", file=sys.stderr)
        subprocess.run([program, "-m", "pip", "install", "--quiet", *map(PACKAGES.get, missing)], check=True)
    return program


def here(module):
    """Whether this Python has the version of a module that `PACKAGES` names."""
    name, _, version = PACKAGES[module].partition("==")
    try:
        return bool(version) and importlib.metadata.version(name).split("+")[0] == version or (
            not version and importlib.util.find_spec(module) is not None)
    except importlib.metadata.PackageNotFoundError:
        return False


def has(program, module):
    find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([program, "-c", find]).returncode == 0


def enter(*modules):
    """Goes on as the same script under the virtual environment's Python, unless the one at work has what is pinned."""
    if all(map(here, modules)):
        return
    program = python(*modules)
    if pathlib.Path(sys.prefix).resolve() != VENV.resolve():
        os.execv(program, [program, *sys.argv])


def verdict(name, measured, goal, met, judged=True):
    """Says in one line whether a goal is met; gives whether it is missed."""
    word = "not judged" if not judged else "met" if met else "MISSED"
    print(f"verdict: {word}: {name}: {measured} (goal: {goal})", flush=True)
    return judged and not met


@functools.cache
def build(binary, *features, kind="bin"):
    """Builds a binary or an example of the workspace, out of what its tests are built of; returns its path."""
    command = ["cargo", "build", "--release", "--locked", "--workspace", f"--{kind}", binary, "--message-format=json"]
    command += [f"--features={name}" for name in features]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        hint = "\nlibtorch is fetched by protocol/compute/libtorch.sh" if "tch" in features and not (ROOT / ".libtorch").exists() else ""
        sys.exit(f"{' '.join(command)} failed{hint}")
    messages = (json.loads(line) for line in done.stdout.splitlines())
    built = [message for message in messages if message.get("executable")]
    return next(message["executable"] for message in built if message["target"]["name"] == binary)


def settings(words):
    """`name=value …` as a dictionary of numbers."""
    pairs = (word.split("=") for word in words)
    return {name: float(value) if set(value) & set(".e") else int(value) for name, value in pairs}


def words(shape):
    """The inverse of `settings`."""
    return [f"{name}={value}" for name, value in shape.items()]


def good(program, folder, *words):
    """Runs a program in a folder, which must end well; what it prints."""
    done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{pathlib.Path(program).name} {' '.join(words)}: {done.stderr}")
    return done.stdout.strip()


class Child:
    """A program that answers each line with a line of JSON."""

    def __init__(self, *command):
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, task):
        self.tell(task)
        return self.hear()

    def tell(self, task):
        self.task = task
        try:
            self.process.stdin.write(f"{task}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.ended()

    def hear(self):
        try:
            return json.loads(self.process.stdout.readline())
        except json.JSONDecodeError:
            self.ended()

    def ended(self):
        sys.exit(f"{self.process.args[:2]} ended at the task {self.task!r}")

    def processor_seconds(self):
        """Time of all processors that it was given so far."""
        return time.clock_gettime((~self.process.pid << 3) | 2)  # as Linux names another process's clock

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended already, and whoever spoke to it knows
        self.process.wait()


if __name__ == "__main__":
    print(python(*PACKAGES))
