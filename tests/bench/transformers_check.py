#!/usr/bin/env python3
"""The logits of an exported model beside those of `transformers`, which loads the export by its own rules.

    python3 tests/bench/transformers_check.py                 # every model below: some seconds
    python3 tests/bench/transformers_check.py --models ALBERT

`bench-logits` exports a model whose gains and biases are moved away from 1 and 0, as `muster run export` does, and
says what it makes of a window. The export must give every parameter that the class wants and no other; the largest
difference of a logit must not be above 1e-4, where logits have a spread of about 1. Beside it the difference between
the class's own f32 and f64. Exits with 1 where that does not hold.
"""

import argparse
import pathlib
import sys
import tempfile

import environment

environment.enter("numpy", "torch", "transformers")

import torch
import transformers

LIMIT = 1e-4
COMMON = dict(width=96, layers=3, heads=6, key_value_heads=6, hidden=200, sequence=64, initial_scale=0.06)
MODELS = {
    "tied": {},
    "untied, shared keys": {"tied": False, "key_value_heads": 2, "rope_base": 500000.0, "norm_epsilon": 1e-6},
    "padded vocabulary": {"vocabulary": 320, "width": 64, "heads": 4, "key_value_heads": 1},
    "ALBERT": {"family": "albert", "vocabulary": 257, "mask_token": 256, "embedding": 32, "layers": 4,
               "norm_epsilon": 1e-12},
}


def written(value):
    """A value as TOML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


def load(folder, kind):
    """The model that the export names, which must find all that it wants and nothing else."""
    config = transformers.AutoConfig.from_pretrained(folder)
    (name,) = config.architectures
    model, found = getattr(transformers, name).from_pretrained(
        folder, torch_dtype=kind, attn_implementation="eager", output_loading_info=True
    )
    wrong = {what: names for what, names in found.items() if names}
    if wrong:
        sys.exit(f"{name} does not fit the export: {wrong}")
    return model.eval()


def compare(program, shape):
    """Largest differences of a logit: of ours from the class's f64, and of its f32 from that; and the spread."""
    with tempfile.TemporaryDirectory() as place:
        settings, folder = pathlib.Path(place) / "run.toml", pathlib.Path(place) / "model"
        settings.write_text("[model]\n" + "".join(f"{name} = {written(value)}\n" for name, value in shape.items()))
        with environment.Child(program, settings, folder) as muster:
            window = torch.randint(256, [shape["sequence"]], generator=torch.manual_seed(5))
            answer = muster.ask(" ".join(map(str, window.tolist())))
        inputs, places = torch.tensor([answer["inputs"]]), answer["places"]
        with torch.no_grad():
            double, single = (load(folder, kind)(inputs).logits[0, places].double()
                              for kind in (torch.float64, torch.float32))
    ours = torch.tensor(answer["logits"], dtype=torch.float64)
    return [(found - double).abs().max().item() for found in (ours, single)] + [double.std().item()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=lambda text: text.split(";"), default=list(MODELS), metavar="A;B",
                        help="of: " + "; ".join(MODELS))
    parser.add_argument("--program", help="bench-logits, where it is built already")
    arguments = parser.parse_args()
    unknown = set(arguments.models) - set(MODELS)
    if unknown:
        parser.error(f"no model is called {'; '.join(unknown)}")
    program = arguments.program or environment.build("bench-logits")
    transformers.logging.set_verbosity_error()
    passed = True
    print(f"{'largest difference of a logit':24} {'ours':>9} {'theirs':>9}   spread")
    for name in arguments.models:
        ours, theirs, spread = compare(program, {**COMMON, **MODELS[name]})
        good = ours <= LIMIT  # So written, a NaN is not good.
        passed &= good
        print(f"  {name:22} {ours:9.2e} {theirs:9.2e} {spread:8.3f}{'' if good else f'  ABOVE {LIMIT}'}")
    print(f"{'every' if passed else 'NOT every'} logit within {LIMIT}")
    sys.exit(not passed)


if __name__ == "__main__":
    main()
