#!/usr/bin/env python3
"""The token numbers of `muster data pack` beside those of the Python package `tokenizers`, for a published tokeniser.

    python3 tests/bench/tokenizer_check.py                    # the one inside a wheel on PyPI
    python3 tests/bench/tokenizer_check.py --tokenizer FILE   # another tokenizer.json
    python3 tests/bench/tokenizer_check.py --text FILE …      # other text

Packs this project's own prose and code, some lines of many scripts, and long texts of them that are packed in windows, and
compares every number of every file, and what ends it. Exits with 1 at the first that differs.
"""

import argparse
import array
import json
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import environment

environment.enter("tokenizers")

import tokenizers

# A wheel that carries the tokeniser of a model in use, where, and what ends a text in it.
WHEEL, INSIDE, END = "anthropic==0.38.0", "anthropic/tokenizer.json", "<EOT>"
# Bytes of a text that is packed in several windows.
LONG = 1 << 20
SCRIPTS = """Ärger über Öl. Ça va? Ωμέγα, Москва, 東京都, 서울, नमस्ते, שלום, مرحبا 👩‍🚀🏳️‍🌈 ﬁ ² ½ Å e\u0301
\ttabs,  two  spaces,    four\n\n\nfn main() { let x = [0u8; 1 << 20]; }  // 1234567890 0x1F 3.14e-10
<|endoftext|> and </s> are text here, too; \u00a0 no-break, \u200b zero width, \ufeff mark\n"""


def published(place):
    """The tokenizer.json of the wheel."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", place, WHEEL]
    subprocess.run(command, check=True)
    (wheel,) = place.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        path = place / "tokenizer.json"
        path.write_bytes(packed.read(INSIDE))
    return path


def ended_by(path):
    """The end of a text, as a tokenizer_config.json says."""
    word = json.loads(path.read_text())["eos_token"]
    return word if isinstance(word, str) else word["content"]


def numbers(path, size):
    """The little-endian numbers of a file of a corpus."""
    found = array.array({2: "H", 4: "I"}[size], path.read_bytes())
    if sys.byteorder == "big":
        found.byteswap()
    return found.tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=pathlib.Path, help="instead of the published one")
    parser.add_argument("--end", help="the token that ends a text, where nothing beside the tokenizer.json says it")
    parser.add_argument("--text", type=pathlib.Path, nargs="+", help="instead of this project's")
    parser.add_argument("--program", help="muster, where it is built already")
    arguments = parser.parse_args()
    program = arguments.program or environment.build("e2e-muster")
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        scripts = place / "scripts.txt"
        scripts.write_text(SCRIPTS * 20)
        root = environment.ROOT
        own = [root / "README.md", *sorted((root / "spec").glob("*.md")), *sorted((root / "node/organise/src").glob("*.rs"))]
        long, line = place / "long.txt", place / "line.txt"
        prose = "".join(path.read_bytes().decode() for path in own) + SCRIPTS * 20
        long.write_text(prose * (1 + LONG // len(prose)))
        line.write_text(" ".join(prose.split())[:LONG] + "-" * 1000 + "x" * 3000)
        texts = arguments.text or [scripts, *own, long, line]
        file = arguments.tokenizer or published(place)
        tokeniser = tokenizers.Tokenizer.from_file(str(file))
        words = (file.parent / "tokenizer_config.json")
        end = arguments.end or (ended_by(words) if words.exists() else END)
        corpus = place / "corpus"
        subprocess.run([program, "data", "pack", "--tokenizer", file, "--end", end, "--out", corpus, "--text", *texts,
                        "--held-out", scripts], check=True, stdout=subprocess.DEVNULL)
        # Control words that a text has are text.
        tokeniser.encode_special_tokens = True
        tokeniser.no_truncation()
        tokeniser.no_padding()
        kinds = 1 + max(tokeniser.get_vocab(with_added_tokens=True).values())
        end = tokeniser.token_to_id(end)
        size = 2 if kinds <= 1 << 16 else 4
        for name, paths in (("train.bin", texts), ("held-out.bin", [scripts])):
            packed, at = numbers(corpus / name, size), 0
            for path in paths:
                wanted = tokeniser.encode(path.read_bytes().decode(), add_special_tokens=False).ids
                wanted.append(end)
                found = packed[at:at + len(wanted)]
                if found != wanted:
                    place = next((i for i, (a, b) in enumerate(zip(found, wanted)) if a != b), len(found))
                    sys.exit(f"{path}: token {place} is {found[place:place + 3]}, the package has {wanted[place:place + 3]}")
                at += len(wanted)
            if at != len(packed):
                sys.exit(f"{name} has {len(packed)} tokens, the package has {at}")
            print(f"{name:13} {len(packed):8} tokens of {kinds} kinds in {len(paths)} texts: every number as `tokenizers` has it")


if __name__ == "__main__":
    main()
