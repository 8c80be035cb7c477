#!/usr/bin/env python3
"""The logits of an exported model beside those of `transformers`, which loads the export by its own rules.

    python3 tests/bench/transformers_check.py                 # every model below: some seconds, once built
    python3 tests/bench/transformers_check.py --models ALBERT

`bench-logits` exports a model whose gains and biases are moved away from 1 and 0, as `muster run export` does, and
says what it makes of a window. The export must give every parameter that the class wants and no other; the largest
difference of a logit must not be above 1e-4, where logits have a spread of about 1. Beside it the difference between
the class's own f32 and f64. Of a decoder, `transformers` also reads the GGUF file that `--gguf` writes: its logits must
be as near. It does not read the divisors of scaled positions in such a file, nor how wide the heads of a Qwen3 are, which
is read for it.

Then the other way: `transformers` saves models of its own making, `muster run new --init` begins runs with them, and
what `muster run export` makes of a run that nobody has trained yet gives the same logits.

Last, whether others stop where a text ends: models that end every text at once, of bytes and of the words of a tokeniser that puts
a token before each prompt. `pipeline("text-generation", EXPORT)` and `muster generate` write nothing behind a prompt, and the
export's tokeniser gives the prompt the numbers of the run.

Exits with 1 where that does not hold.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import environment

environment.enter("numpy", "torch", "transformers", "tokenizers", "gguf", "accelerate")

import gguf
import tokenizers
import torch
import transformers

LIMIT = 1e-4
COMMON = dict(width=96, layers=3, heads=6, key_value_heads=6, hidden=200, sequence=64, initial_scale=0.06)
MODELS = {
    "tied": {},
    "untied, shared keys": {"tied": False, "key_value_heads": 2, "rope_base": 500000.0, "norm_epsilon": 1e-6},
    "padded vocabulary": {"vocabulary": 320, "width": 64, "heads": 4, "key_value_heads": 1},
    "scaled positions": {"rope_base": 500000.0, "rope_factor": 8.0, "rope_original": 16},
    "wide heads": {"head_width": 24, "tied": False, "key_value_heads": 2},
    "biases": {"attention_bias": True, "key_value_heads": 2},
    "norms of queries and keys": {"head_norms": True, "head_width": 24, "key_value_heads": 2},
    "norms, scaled positions": {"head_norms": True, "rope_factor": 8.0, "rope_original": 16},
    "all three": {"width": 100, "head_width": 8, "attention_bias": True, "rope_factor": 32.0, "rope_original": 16},
    "mixture": {"family": "mixture", "hidden": 80, "experts": {"shared_hidden": 120}},
    "mixture, one of many": {"family": "mixture", "tied": False, "key_value_heads": 2, "hidden": 48,
                             "experts": {"columns": 24, "active": 1, "shared_hidden": 64}},
    "ALBERT": {"family": "albert", "vocabulary": 257, "mask_token": 256, "embedding": 32, "layers": 4,
               "norm_epsilon": 1e-12},
}

CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
           "qwen2_moe": "Qwen2MoeForCausalLM", "albert": "AlbertForMaskedLM"}
EXPERTS = dict(moe_intermediate_size=40, shared_expert_intermediate_size=72, norm_topk_prob=True)
SIZES = dict(hidden_size=64, intermediate_size=96, num_attention_heads=4, max_position_embeddings=64)
SAVED = {
    "untied Llama": (torch.float32, transformers.LlamaConfig(
        vocab_size=257, num_hidden_layers=2, num_key_value_heads=2, **SIZES)),
    "tied Llama, bf16": (torch.bfloat16, transformers.LlamaConfig(
        vocab_size=256, num_hidden_layers=2, tie_word_embeddings=True, **SIZES)),
    "Llama 3.1": (torch.float32, transformers.LlamaConfig(
        vocab_size=256, num_hidden_layers=2, num_key_value_heads=2, rope_theta=500000.0, rope_scaling=dict(
            rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16),
        **SIZES)),
    "Mistral": (torch.float32, transformers.MistralConfig(
        vocab_size=256, num_hidden_layers=2, num_key_value_heads=2, head_dim=24, sliding_window=None, **SIZES)),
    "Qwen2": (torch.float32, transformers.Qwen2Config(
        vocab_size=256, num_hidden_layers=2, num_key_value_heads=2, **SIZES)),
    "Qwen3": (torch.float32, transformers.Qwen3Config(
        vocab_size=256, num_hidden_layers=2, num_key_value_heads=2, head_dim=24, **SIZES)),
    "untied Qwen2-MoE": (torch.float32, transformers.Qwen2MoeConfig(
        vocab_size=257, num_hidden_layers=2, num_key_value_heads=2, num_experts=6, num_experts_per_tok=3, qkv_bias=False,
        **EXPERTS, **SIZES)),
    # Its biases are zero, as this class begins with them.
    "tied Qwen2-MoE, bf16": (torch.bfloat16, transformers.Qwen2MoeConfig(
        vocab_size=256, num_hidden_layers=2, num_key_value_heads=4, num_experts=12, num_experts_per_tok=1,
        tie_word_embeddings=True, **EXPERTS, **SIZES)),
    "ALBERT, f16": (torch.float16, transformers.AlbertConfig(
        vocab_size=257, num_hidden_layers=3, embedding_size=32, **SIZES)),
}


def written(value):
    """A value as TOML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


def settings_of(shape):
    """Settings as a file has them."""
    tables = {"model": {name: value for name, value in shape.items() if name != "experts"}}
    if "experts" in shape:
        tables["experts"] = shape["experts"]
    lines = ([f"[{name}]"] + [f"{key} = {written(value)}" for key, value in table.items()]
             for name, table in tables.items())
    return "\n".join(line for table in lines for line in table) + "\n"


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
    # Later releases compute all experts in one product, which torch does not have in f64.
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model.eval()


def load_gguf(file):
    """The decoder of a GGUF file, as `transformers` reads it, in f64."""
    config = transformers.AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    if config.model_type == "qwen3":
        config.head_dim = int(gguf.GGUFReader(file).get_field("qwen3.attention.key_length").contents())
    model = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, config=config, torch_dtype=torch.float32, attn_implementation="eager")
    return model.double().eval()


def compare(program, shape):
    """Largest differences of a logit: of ours from the class's f64, of its f32 and of the GGUF file from that; and the
    spread."""
    with tempfile.TemporaryDirectory() as place:
        settings, folder = pathlib.Path(place) / "run.toml", pathlib.Path(place) / "model"
        settings.write_text(settings_of(shape))
        with environment.Child(program, settings, folder) as muster:
            window = torch.randint(256, [shape["sequence"]], generator=torch.manual_seed(5))
            answer = muster.ask(" ".join(map(str, window.tolist())))
        inputs, places = torch.tensor([answer["inputs"]]), answer["places"]
        with torch.no_grad():
            double, single = (load(folder, kind)(inputs).logits[0, places].double()
                              for kind in (torch.float64, torch.float32))
            file = folder / "model.gguf"
            other = load_gguf(file)(inputs).logits[0, places].double() if file.exists() else double
    ours = torch.tensor(answer["logits"], dtype=torch.float64)
    return [(found - double).abs().max().item() for found in (ours, single, other)] + [double.std().item()]


TEXT = "To muster is to gather; to pass muster is to stand inspection.\n"
PROMPT = "To muster  \u0100 is\n to gath\u00e9r"


def commands(program, place):
    """What runs a command of `muster` there, and gives its output."""
    def muster(*words):
        done = subprocess.run([program, *words], capture_output=True, text=True, cwd=place)
        if done.returncode:
            sys.exit(f"muster {' '.join(words)}: {done.stderr}")
        return done.stdout
    return muster


def begin(program, kind, config):
    """Largest difference of a logit between a model that `transformers` saved and the beginning of a run made of it."""
    with tempfile.TemporaryDirectory() as place:
        names = "saved", "text", "corpus", "run", "out"
        saved, text, corpus, run, out = (str(pathlib.Path(place) / name) for name in names)
        torch.manual_seed(3)
        model = getattr(transformers, CLASSES[config.model_type])(config)
        # These classes begin with biases that are zero, and with gains that are one, and would not show them.
        for name, parameter in model.named_parameters():
            if config.model_type == "qwen2" and name.endswith(".bias"):
                torch.nn.init.normal_(parameter, std=0.3)
            if config.model_type == "qwen3" and name.endswith(("q_norm.weight", "k_norm.weight")):
                torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
        # In several files and an index of them.
        model.to(kind).save_pretrained(saved, max_shard_size="60KB")
        pathlib.Path(text).write_text(TEXT * 4000)
        muster = commands(program, place)
        muster("data", "pack", "--text", text, "--out", corpus)
        muster("run", "new", "--data", corpus, "--init", saved, "--out", run)
        muster("run", "export", run, "--round", "0", "--out", out)
        window = torch.randint(256, [1, config.max_position_embeddings], generator=torch.manual_seed(5))
        with torch.no_grad():
            theirs, ours = (load(folder, torch.float64)(window).logits for folder in (saved, out))
    return (theirs - ours).abs().max().item()


def words_of(text):
    """A byte-level tokeniser of words, which puts <s> before whatever it reads."""
    level = tokenizers.pre_tokenizers.ByteLevel
    words = tokenizers.Tokenizer(tokenizers.models.BPE())
    words.pre_tokenizer, words.decoder = level(add_prefix_space=False), tokenizers.decoders.ByteLevel()
    words.train_from_iterator([text], tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "<|endoftext|>"], initial_alphabet=level.alphabet(), show_progress=False))
    words.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return words


def ending(vocabulary, end):
    """A model that ends every text at once."""
    config = transformers.LlamaConfig(vocab_size=vocabulary, num_hidden_layers=1, num_key_value_heads=2, **SIZES)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for name, values in model.named_parameters():
            values.fill_(1.0 if "norm" in name or "embed" in name else 0.0)
        model.lm_head.weight[end] = 1.0
    return model


def stops(program, words):
    """What is wrong with an export of a run of words, or of bytes, whose model ends every text at once."""
    with tempfile.TemporaryDirectory() as place:
        folder, muster = pathlib.Path(place), commands(program, place)
        (folder / "text").write_text(TEXT * 400)
        packed, numbers, vocabulary, end = [], list(PROMPT.encode()), 256, 0
        if words:
            rules = words_of(TEXT)
            rules.save(str(folder / "tokenizer.json"))
            (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
            packed, numbers = ["--tokenizer", "tokenizer.json"], rules.encode(PROMPT, add_special_tokens=False).ids
            vocabulary, end = rules.get_vocab_size(), rules.token_to_id("<|endoftext|>")
        ending(vocabulary, end).save_pretrained(folder / "saved")
        muster("data", "pack", "--text", "text", *packed, "--out", "corpus")
        muster("run", "new", "--data", "corpus", "--init", "saved", "--out", "run")
        muster("run", "export", "run", "--out", "out")
        found = {
            "numbers": transformers.AutoTokenizer.from_pretrained(folder / "out")(PROMPT)["input_ids"],
            "pipeline": transformers.pipeline("text-generation", str(folder / "out"))(PROMPT, max_new_tokens=8),
            "muster": muster("generate", "run", "--prompt", PROMPT),
        }
    right = {"numbers": numbers, "pipeline": [{"generated_text": PROMPT}], "muster": PROMPT + "\n"}
    return {what: found[what] for what in found if found[what] != right[what]}


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
    transformers.logging.disable_progress_bar()
    passed = True
    print(f"{'largest difference of a logit':29} {'ours':>9} {'theirs':>9} {'gguf':>9}   spread")
    for name in arguments.models:
        ours, theirs, file, spread = compare(program, {**COMMON, **MODELS[name]})
        good = ours <= LIMIT and file <= LIMIT  # So written, a NaN is not good.
        passed &= good
        print(f"  {name:27} {ours:9.2e} {theirs:9.2e} {file:9.2e} {spread:8.3f}{'' if good else f'  ABOVE {LIMIT}'}")
    program = environment.build("muster")
    print("begun with what transformers saved")
    for name, (kind, config) in SAVED.items():
        found = begin(program, kind, config)
        good = found <= LIMIT
        passed &= good
        print(f"  {name:27} {found:9.2e}{'' if good else f'  ABOVE {LIMIT}'}")
    print("models that end every text at once")
    for name, words in (("bytes", False), ("words", True)):
        wrong = stops(program, words)
        passed &= not wrong
        print(f"  {name:27} {'stop, and read a prompt as the run does' if not wrong else f'WRONG: {wrong}'}")
    print(f"every logit within {LIMIT}, and every end an end" if passed else "NOT passed")
    sys.exit(not passed)


if __name__ == "__main__":
    main()
