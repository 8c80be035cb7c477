//! Runs of every kind of model, as real processes: members, verifier and replay agree, and what was trained comes out
//! again as text and as safetensors.

use std::collections::BTreeSet;
use std::fs;

use e2e::processes::Run;
use e2e::programs;
use muster_compute::Machine;
use muster_core::codec::decode;
use muster_core::layout::Layout;
use muster_core::limits;
use muster_core::manifest::Manifest;
use muster_replica::memory;
use muster_store::dataset::open_router;

/// Settings that every run of this file shares.
const COMMON: &str = "[training]\nrounds = 8\nleaves = 4\nleaf_windows = 2\nrecompute = true\n\
                      [audit]\nshare = 1.0\nleaves = 2\nfinal_rounds = 2\n\
                      [admission]\nstart_nodes = 2\nstart_verifiers = 1\n";

/// Words of the tests' text, with their spaces.
const TOKENISER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [
    {"id": 0, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
     "special": true}],
    "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"<|endoftext|>": 0, "?": 1, "let": 2, "mut": 3,
    "state": 4, "=": 5, "round": 6, "(": 7, ")": 8, ";": 9, "if": 10, "else": 11, "{": 12, "}": 13, "leaf": 14,
    ".": 15, "sum": 16, "42": 17}}}"#;

/// Trains with two nodes and a verifier that audits everything, to the end.
fn train(run: &Run) {
    let mut steward = run.host();
    let mut verifier = run.watch("verifier", &run.invite("verifier", 1));
    let nodes = run.invite("node", 2);
    let mut first = run.join("first", &nodes, &["--threads", "2"]);
    let mut second = run.join("second", &nodes, &["--kernel", "portable"]);
    for process in [&mut first, &mut second, &mut verifier, &mut steward] {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    run.check_end(&["first", "second", "verifier"]);
}

#[test]
fn an_albert_is_trained_by_lamb_audited_and_exported() {
    let model = "[model]\nfamily = \"albert\"\nvocabulary = 257\nwidth = 16\nlayers = 3\nheads = 2\nhidden = 24\n\
                 sequence = 32\nembedding = 8\nmask_token = 256\n[optimiser]\nmethod = \"lamb\"\nwarmup = 2\n";
    let run = Run::packed(programs!(), &format!("{model}{COMMON}"), None);
    train(&run);
    run.good(&["run", "export", &run.at("run"), "--out", &run.at("model")]);
    let weights = fs::read(run.path("model/model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&weights).unwrap();
    let layer = "albert.encoder.albert_layer_groups.0.albert_layers.0";
    let shape = |name: &str| tensors.tensor(name).unwrap().shape().to_vec();
    assert_eq!(shape(&format!("{layer}.ffn.weight")), [24, 16]);
    assert_eq!(shape(&format!("{layer}.attention.key.bias")), [16]);
    assert_eq!(shape("predictions.bias"), [257]);
    let (code, output) = run.muster(&["generate", &run.at("run")]);
    assert!(code == 2 && output.contains("only a decoder continues text"), "{code}: {output}");
    comes_back(&run, "[model]\nmask_token = 256\n");
}

/// That a run with the exported model as its beginning exports the same.
fn comes_back(run: &Run, settings: &str) {
    fs::write(run.path("next.toml"), settings).expect("a file");
    let (config, data, init, next) = (run.at("next.toml"), run.at("corpus"), run.at("model"), run.at("next"));
    run.good(&["run", "new", "--config", &config, "--data", &data, "--init", &init, "--out", &next]);
    run.good(&["run", "export", &next, "--out", &run.at("again")]);
    for name in ["model.safetensors", "config.json"] {
        let [model, again] =
            ["model", "again"].map(|folder| fs::read(run.path(folder).join(name)).expect("a file"));
        assert!(model == again, "{name} differs");
    }
}

#[test]
fn a_decoder_of_words_is_trained_and_continues_them() {
    let model = "[model]\nvocabulary = 18\nwidth = 16\nlayers = 2\nheads = 4\nkey_value_heads = 2\nhidden = 24\n\
                 sequence = 24\ntied = false\n";
    let run = Run::packed(programs!(), &format!("{model}{COMMON}"), Some(TOKENISER));
    train(&run);
    let generate = |folder: &str, more: &[&str]| {
        let mut arguments = vec!["generate", folder, "--prompt", "let mut", "--tokens", "12"];
        arguments.extend(more);
        run.good(&arguments)
    };
    let (host, member) = (run.at("run"), run.at("second"));
    let text = generate(&host, &[]);
    // A text may end at any word, and the likeliest one of so few words may be that of an untrained model, too.
    let drawn = |more: &[&str]| {
        let seeds = (0..16).map(|seed: u32| seed.to_string());
        seeds.map(|seed| generate(&host, &[&["--seed", &seed], more].concat())).collect::<Vec<_>>()
    };
    let texts = drawn(&[]);
    let goes_on = texts.iter().any(|text| text.split_whitespace().count() > 8);
    assert!(text.starts_with("let mut") && goes_on, "{text}{texts:?}");
    assert_eq!(
        generate(&member, &["--threads", "2"]),
        text,
        "a member has the same model, tokeniser and draws"
    );
    fs::remove_file(run.path("second/data/tokenizer.json")).unwrap();
    assert_eq!(generate(&member, &["--tokenizer", &run.at("tokenizer.json")]), text);
    let (code, output) = run.muster(&["generate", &member]);
    assert!(
        code == 3 && output.contains("tokenizer.json") && output.contains("--tokenizer"),
        "{code}: {output}"
    );
    assert_ne!(drawn(&["--round", "0"]), texts, "an untrained model says something else");
    // The likeliest text is one, whatever the seed.
    let likeliest = |seed| generate(&host, &["--temperature", "0", "--seed", seed]);
    assert_eq!(likeliest("1"), likeliest("2"));
    run.good(&["run", "export", &host, "--out", &run.at("model")]);
    let weights = fs::read(run.path("model/model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&weights).unwrap();
    assert_eq!(tensors.tensor("lm_head.weight").unwrap().shape(), [18, 16]);
    assert_eq!(fs::read_to_string(run.path("model/tokenizer.json")).unwrap(), TOKENISER);
    let (code, output) = run.muster(&["run", "export", &host, "--out", &run.at("model")]);
    assert!(code == 3 && output.contains("already holds something"), "{code}: {output}");
    let (code, output) = run.muster(&["generate", &host, "--round", "99"]);
    assert!(code == 3 && output.contains("has no state before round 99"), "{code}: {output}");
    comes_back(&run, "");
}

/// Heads of a width of their own, biases and scaled positions.
#[test]
fn a_variant_is_trained_audited_and_exported_and_continues_text() {
    let model = "[model]\nwidth = 18\nlayers = 2\nheads = 4\nkey_value_heads = 2\nhidden = 24\nsequence = 32\n\
                 head_width = 6\nattention_bias = true\nrope_factor = 8.0\nrope_original = 16\n";
    let run = Run::packed(programs!(), &format!("{model}{COMMON}"), None);
    train(&run);
    let generate = |folder: &str, threads: &str| {
        run.good(&["generate", folder, "--prompt", "let mut", "--tokens", "24", "--threads", threads])
    };
    let text = generate(&run.at("run"), "1");
    assert!(text.starts_with("let mut"), "{text}");
    assert_eq!(generate(&run.at("second"), "2"), text, "a member has the same model and draws");
    run.good(&["run", "export", &run.at("run"), "--out", &run.at("model")]);
    let weights = fs::read(run.path("model/model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&weights).unwrap();
    let tensor = |name: &str| tensors.tensor(&format!("model.layers.1.self_attn.{name}")).unwrap();
    assert_eq!(tensor("o_proj.weight").shape(), [18, 24]);
    assert_eq!(tensor("k_proj.bias").shape(), [12]);
    assert!(tensor("q_proj.bias").data().iter().any(|byte| *byte != 0), "biases learn");
    comes_back(&run, "");
}

#[test]
fn a_mixture_is_trained_audited_and_exported_and_continues_text() {
    let model = "[model]\nfamily = \"mixture\"\nwidth = 16\nlayers = 2\nheads = 4\nkey_value_heads = 2\nhidden = 12\n\
                 sequence = 32\n[experts]\ncolumns = 5\nactive = 2\nshared_hidden = 20\nbalance = 0.05\n";
    let run = Run::packed(programs!(), &format!("{model}{COMMON}"), None);
    train(&run);
    let (config, data, host) = (run.at("run.toml"), run.at("corpus"), run.at("run"));
    let said = run.good(&["run", "new", "--config", &config, "--data", &data, "--out", &run.at("same")]);
    assert!(said.contains(" parameters (") && said.contains(" used by each token), 8 rounds"), "{said}");
    let generate = |folder: &str, threads: &str| {
        run.good(&["generate", folder, "--prompt", "let mut", "--tokens", "24", "--threads", threads])
    };
    let text = generate(&host, "1");
    assert!(text.starts_with("let mut") && text.len() > 8, "{text}");
    assert_eq!(generate(&run.at("second"), "2"), text, "a member has the same model and draws");
    run.good(&["run", "export", &host, "--out", &run.at("model")]);
    let weights = fs::read(run.path("model/model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&weights).unwrap();
    let shape =
        |name: &str| tensors.tensor(&format!("model.layers.1.mlp.{name}.weight")).unwrap().shape().to_vec();
    assert_eq!(shape("gate"), [5, 16]);
    assert_eq!(shape("shared_expert_gate"), [1, 16]);
    assert_eq!(shape("shared_expert.down_proj"), [16, 20]);
    assert_eq!(shape("experts.4.up_proj"), [12, 16]);
    comes_back(&run, "");
    let (code, output) = run.verifier(&["calibrate", &host, "--profile", "bf16"]);
    assert!(code == 2 && output.contains("there is nothing to calibrate"), "{code}: {output}");
}

/// A model of three rows of experts.
const EXPERTS: &str = "[experts]\ncolumns = 4\nactive = 2\nshared_hidden = 8\nrows = 3\n";

/// Rows come to be after the second of eight rounds: two nodes hold one of three each, the steward all.
#[test]
fn rows_of_experts_are_exported_each_alone_and_the_best_one_reads() {
    let model = "[model]\nfamily = \"mixture\"\nwidth = 16\nlayers = 1\nheads = 2\nkey_value_heads = 1\nhidden = 12\n\
                 sequence = 32\n";
    let settings = format!("{model}{EXPERTS}branch = 0.25\nheld = 0\nlag = 0\n{COMMON}");
    let run = Run::routed(programs!(), &settings, None, 3);
    train(&run);
    exports_every_row(&run);
    for node in ["first", "second"] {
        exports_the_row_that_it_holds(&run, node);
    }
    reads_with_the_best_row(&run);
    begins_with_one_row(&run);
}

fn weights(run: &Run, folder: &str) -> Vec<u8> {
    fs::read(run.path(folder).join("model.safetensors")).expect("weights")
}

fn exports_every_row(run: &Run) {
    let host = run.at("run");
    let said = run.good(&["run", "export", &host, "--out", &run.at("all")]);
    assert!(said.contains("a folder row-N for each of rows 0, 1, 2"), "{said}");
    for row in ["0", "1", "2"] {
        let out = format!("row{row}");
        let said = run.good(&["run", "export", &host, "--row", row, "--out", &run.at(&out)]);
        assert!(said.contains(&format!("trunk and row {row}, is in ")), "{said}");
        assert!(weights(run, &out) == weights(run, &format!("all/row-{row}")));
    }
    let [first, second, third] = ["row0", "row1", "row2"].map(|folder| weights(run, folder));
    assert!(first != second && second != third);
    let [table, own] =
        ["all/router.bin", "run/data/router.bin"].map(|file| fs::read(run.path(file)).expect("a router"));
    assert!(table == own && run.path("all/rows.json").exists());
    let (code, output) = run.muster(&["run", "export", &host, "--row", "3", "--out", &run.at("none")]);
    assert!(
        code == 3 && output.contains("has no row 3") && output.contains("has rows 0 to 2"),
        "{code}: {output}"
    );
    let (code, output) = run.muster(&["run", "export", &host, "--out", &run.at("all")]);
    assert!(code == 3 && output.contains("already holds something"), "{code}: {output}");
    // Before they came to be there was one.
    run.good(&["run", "export", &host, "--round", "0", "--out", &run.at("begun")]);
    assert!(run.path("begun/config.json").exists() && !run.path("begun/rows.json").exists());
}

/// A node's directory has the trunk and its row.
fn exports_the_row_that_it_holds(run: &Run, node: &str) {
    let (folder, out) = (run.at(node), format!("of-{node}"));
    let said = run.good(&["run", "export", &folder, "--out", &run.at(&out)]);
    let row = said.split("trunk and row ").nth(1).and_then(|rest| rest.split(',').next()).expect("its row");
    assert!(said.contains("of its 3 rows "), "{said}");
    assert!(weights(run, &out) == weights(run, &format!("row{row}")));
    let other = if row == "0" { "1" } else { "0" };
    let (code, output) = run.muster(&["run", "export", &folder, "--row", other, "--out", &run.at("none")]);
    assert!(code == 3 && output.contains(&format!("here is row {row}")), "{code}: {output}");
    let output = run.good(&["generate", &folder, "--prompt", "let mut", "--tokens", "4"]);
    let said = format!("reading with row {row}, the only one of 3 that is here");
    assert!(output.contains(&said), "{output}");
}

/// The steward's folder has all rows: each text is continued with the row that the router ranks first.
fn reads_with_the_best_row(run: &Run) {
    let host = run.at("run");
    let manifest = fs::read(run.path("run/manifest.bin")).expect("a manifest");
    let manifest: Manifest = decode(&manifest).expect("a manifest");
    let named = manifest.data.router.as_ref().expect("a router");
    let router = open_router(&run.path("run/data"), named).expect("a router");
    let text = fs::read_to_string(run.path("text/a.txt")).expect("ASCII");
    let mut read = BTreeSet::new();
    for prompt in text.as_bytes().chunks(64).map(|piece| std::str::from_utf8(piece).expect("ASCII")) {
        let tokens: Vec<u32> = prompt.bytes().map(u32::from).collect();
        let best = router.ranked(&tokens)[0];
        if !read.insert(best) {
            continue;
        }
        let output = run.good(&["generate", &host, "--prompt", prompt, "--tokens", "4"]);
        let said = format!("reading with row {best} of 3, which suits the prompt best");
        assert!(output.starts_with(prompt) && output.contains(&said), "{output}");
    }
    assert_eq!(read.len(), 3, "the text suits every row somewhere");
    let output = run.good(&["generate", &host, "--round", "0", "--tokens", "4"]);
    assert!(!output.contains("reading with"), "there was one row: {output}");
}

/// Every row of a new run begins with the one that is given.
fn begins_with_one_row(run: &Run) {
    fs::write(run.path("next.toml"), format!("{EXPERTS}branch = 0.0\n")).expect("a file");
    let begin = |init: &str| {
        let (config, data, init) = (run.at("next.toml"), run.at("corpus"), run.at(init));
        let out = run.at("next");
        run.muster(&["run", "new", "--config", &config, "--data", &data, "--init", &init, "--out", &out])
    };
    let (code, output) = begin("all");
    assert!(code == 2 && output.contains("--init ") && output.contains("all/row-0"), "{code}: {output}");
    let (code, output) = begin("all/row-1");
    assert_eq!(code, 0, "{output}");
    run.good(&["run", "export", &run.at("next"), "--out", &run.at("again")]);
    for row in ["row-0", "row-1", "row-2"] {
        assert!(weights(run, &format!("again/{row}")) == weights(run, "all/row-1"));
    }
}

#[test]
fn models_that_cannot_work_are_refused_by_field_and_rule() {
    let run = Run::packed(programs!(), "", None);
    let refused = |settings: &str, words: &str| {
        fs::write(run.path("wrong.toml"), settings).unwrap();
        let (config, data, out) = (run.at("wrong.toml"), run.at("corpus"), run.at("wrong"));
        let (code, output) = run.muster(&["run", "new", "--config", &config, "--data", &data, "--out", &out]);
        assert!(code == 2 && output.contains("wrong.toml") && output.contains(words), "{code}: {output}");
        assert!(!run.path("wrong").exists());
    };
    refused("[model]\nwidth = 64\nheads = 3\n", "model.heads must divide model.width, 64; it is 3");
    refused("[model]\nkey_value_heads = 3\n", "model.key_value_heads must divide model.heads");
    refused("[model]\nwidth = 36\nheads = 4\n", "must leave an even head width for rotary positions, not 9");
    refused("[model]\nrope_base = 0.5\n", "model.rope_base must be at least 1; it is 0.5");
    refused("[model]\nhead_width = 7\n", "model.head_width must be even: positions turn pairs; it is 7");
    refused(
        "[model]\nrope_factor = 0.5\n",
        "model.rope_factor must be above 1 where positions are scaled; it is 0.5",
    );
    refused("[model]\nwidth = 62\nattention_bias = true\n", "it is 4 (or say model.head_width)");
    refused(
        "[model]\nfamily = \"albert\"\nmask_token = 1\nattention_bias = true\n",
        "model.attention_bias is for decoders; set it to false",
    );
    refused(
        "[model]\nattention_bias = true\nhead_norms = true\n",
        "model.attention_bias and model.head_norms are both true",
    );
    refused("[model]\nvocabulary = 255\n", "model.vocabulary is 255, but the text's tokens are of 256 kinds");
    refused(
        "[model]\nvocabulary = 4096\n",
        "model.vocabulary is 4096, but the text's tokens are of 256 kinds",
    );
    refused("[model]\nsequence = 65000\n", "model.sequence must be below the training text's tokens");
    refused("[model]\nsequence = 65537\n", "model.sequence must be 1 to 65536; it is 65537");
    refused("[model]\nlayers = 300\n", "model.layers must be 1 to 256; it is 300");
    refused("[model]\nwidth = 1048578\n", "model.width must be 1 to 1048576; it is 1048578");
    refused("[training]\nleaf_windows = 1025\n", "training.leaf_windows must be 1 to 1024; it is 1025");
    refused("[model]\nwidth = 1048576\nhidden = 1048576\n", "model has more than");
    refused("[model]\nfamily = \"albert\"\n", "model.mask_token must lie below model.vocabulary");
    refused(
        "[model]\nfamily = \"albert\"\nmask_token = 1\nmasked = 0.0\n",
        "model.masked must lie in (0, 1]; it is 0",
    );
    refused("[model]\nfamily = \"perceptron\"\n", "family: unknown variant");
    refused(
        "[experts]\ncolumns = 4\n",
        "model.family must be \"mixture\" where there is a section [experts]",
    );
    let mixture = |experts: &str| format!("[model]\nfamily = \"mixture\"\n[experts]\n{experts}\n");
    refused(&mixture("active = 9"), "experts.active must be 1 to experts.columns, 8; it is 9");
    refused(&mixture("columns = 257"), "experts.columns must be 1 to 256; it is 257");
    refused(&mixture("[arithmetic]\nprofile = \"f32\""), "profile must be exact for a mixture of experts");
}

/// The shape of TinyLlama, a layer more: its tokens are bytes.
const BILLION: &str = "[model]\nwidth = 2048\nlayers = 23\nheads = 32\nkey_value_heads = 4\nhidden = 5632\n\
                       sequence = 2048\n[training]\nleaf_windows = 1\nrecompute = true\n";

#[test]
fn a_billion_parameters_are_planned_without_the_memory_for_them() {
    let run = Run::packed(programs!(), "", None);
    fs::write(run.path("large.toml"), BILLION).unwrap();
    let (config, data, out) = (run.at("large.toml"), run.at("corpus"), run.at("large"));
    run.good(&["run", "new", "--config", &config, "--data", &data, "--out", &out, "--elsewhere"]);
    let manifest: Manifest = decode(&fs::read(run.path("large/manifest.bin")).unwrap()).unwrap();
    manifest.check().unwrap();
    let layout = Layout::of_run(&manifest);
    assert_eq!(layout.parameters() as u64, manifest.model.parameters());
    assert_eq!(layout.parameters(), 1_013_544_960);
    assert!(layout.tensors().len() <= limits::TENSORS);
    // Tensors of a whole number of blocks, and norms.
    let norms = layout.tensors().iter().filter(|tensor| tensor.shape[0] == 1).count();
    let whole = layout.parameters() - norms * 2048;
    assert_eq!(layout.blocks().len(), whole / limits::BLOCK_COEFFICIENTS + norms);
    assert_eq!(layout.chunks().len(), whole / limits::CHUNK_COEFFICIENTS + norms);
    let need = memory::contributing(&manifest, &Machine::new(4, None));
    let gibibytes = need.bytes() >> 30;
    assert_eq!(gibibytes, 16, "README.md says 16");
    memory::within(need, Some(need.bytes())).unwrap();
    let why = memory::within(need, Some(12 << 30)).unwrap_err().to_string();
    assert!(why.contains("model.*") && why.contains("has 12.0 GiB left"), "{why}");
}
