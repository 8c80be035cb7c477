"""Text that is on every machine that has built Muster, shapes of models, and settings as a file has them.

The text are the Rust sources of the crates of `Cargo.lock` that cargo has unpacked, and the library of the Python that runs the
script, half of each. Whole crates and modules are held out.
"""

import hashlib
import json
import pathlib
import random
import re
import sysconfig

import environment

HELD_OUT_CRATES = ("bytes", "indexmap", "snow", "toml_edit", "redb")
LARGEST_FILE = 100_000
# Of models: the demo's with 0.6 M parameters, and one with 5 M.
SHAPES = {"demo": dict(width=128, layers=3, heads=4, key_value_heads=4, hidden=344, sequence=128, initial_scale=0.08),
          "large": dict(width=256, layers=6, heads=4, key_value_heads=4, hidden=688, sequence=128, initial_scale=0.06)}


def crates():
    """Folders of unpacked crates that `Cargo.lock` names, by name and version."""
    lock = (environment.ROOT / "Cargo.lock").read_text()
    wanted = [f"{name}-{version}" for name, version in re.findall(r'name = "(.*)"\nversion = "(.*)"\nsource', lock)]
    sources = pathlib.Path(environment.os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo")) / "registry" / "src"
    folders = {folder.name: folder for registry in sorted(sources.glob("*")) for folder in registry.iterdir()}
    return [folders[name] for name in sorted(wanted) if name in folders]


def read(files, most):
    """The texts of files in the order of a fixed draw, up to so many bytes."""
    files, taken = sorted(files), []
    random.Random(7).shuffle(files)
    for file in files:
        text = file.read_bytes()
        if 1_000 < len(text) <= LARGEST_FILE:
            taken.append(text[: max(0, most)])
            most -= len(text)
        if most <= 0:
            break
    return taken


def corpus(most):
    """Training text and held-out text, of Rust and Python alike."""
    found = {True: [], False: []}
    for folder in crates():
        held = folder.name.rsplit("-", 1)[0] in HELD_OUT_CRATES
        found[held] += folder.rglob("*.rs")
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    modules = [path for path in library.rglob("*.py") if "site-packages" not in path.parts]
    # A module in ten, with all files of its folder: the first letter of a digest of its name says which.
    held = lambda path: hashlib.sha256(path.relative_to(library).parts[0].encode()).digest()[0] < 26
    texts = []
    for part, share in ((False, most), (True, 1_000_000)):
        both = read(found[part], share // 2) + read([path for path in modules if held(path) == part], share // 2)
        random.Random(11).shuffle(both)
        texts.append(b"\0".join(both))
    return texts


def written(tables):
    """Settings as a file has them."""
    return "\n".join(f"[{name}]\n" + "\n".join(f"{key} = {json.dumps(one)}" for key, one in table.items())
                     for name, table in tables.items()) + "\n"
