//! Kinds of checkpoints that people have.

use super::*;

const DECODER: &str = r#""vocab_size": 256, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 12"#;

/// The settings of a config with these entries, for windows of so many tokens.
fn settings(entries: &str, sequence: Option<u32>, text: &str) -> Outcome<Settings> {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(CONFIG), format!("{{{DECODER}, {entries}}}")).unwrap();
    let (path, given) = (Path::new("run.toml"), Given::open(directory.path(), sequence)?);
    let mut settings = Settings::parse(path, text).unwrap();
    given.complete(&mut settings, path, text)?;
    Ok(settings)
}

fn refused(entries: &str, sequence: Option<u32>, text: &str, words: &str) {
    let failure = settings(entries, sequence, text).unwrap_err();
    assert!(failure.message.contains(words), "{failure}");
}

#[test]
fn frequencies_that_a_llama_was_saved_with_are_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("model");
    let manifest = manifest(TIED);
    let parameters = values(manifest.model.parameters());
    exported(&manifest, &parameters, &folder);
    let mut tensors = read(&folder);
    for name in ["model.layers.0.self_attn.", "model.layers.1.self_attn.", "model."] {
        let frequencies = (Dtype::F32, vec![2], bytes_of(&[1.0, 0.01]));
        tensors.insert(format!("{name}rotary_emb.inv_freq"), frequencies);
    }
    write(&folder, &tensors);
    let given = Given::open(&folder, None).unwrap();
    assert_eq!(bits(&given.parameters(&manifest.model).unwrap()), bits(&parameters));
}

#[test]
fn what_predicts_no_tokens_of_an_albert_is_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("model");
    let manifest = manifest(ALBERT);
    let parameters = values(manifest.model.parameters());
    exported(&manifest, &parameters, &folder);
    let mut tensors = read(&folder);
    for name in ["albert.pooler.weight", "albert.pooler.bias", "sop_classifier.classifier.bias"] {
        tensors.insert(name.into(), (Dtype::F32, vec![1], vec![0; 4]));
    }
    tensors.insert("albert.embeddings.position_ids".into(), (Dtype::I64, vec![1, 1], vec![0; 8]));
    write(&folder, &tensors);
    let given = Given::open(&folder, None).unwrap();
    assert_eq!(bits(&given.parameters(&manifest.model).unwrap()), bits(&parameters));
}

#[test]
fn an_entry_that_nobody_reads_may_be_no_number() {
    let llama = r#""model_type": "llama""#;
    settings(&format!(r#"{llama}, "limit": [0.0, Infinity, -Infinity], "x": NaN"#), None, "").unwrap();
    for (entry, words) in [
        (r#""rms_norm_eps": NaN"#, "rms_norm_eps is \"NaN\", where a number is needed"),
        (r#""rope_theta": Infinity"#, "rope_theta is \"Infinity\", where a number is needed"),
        (r#""num_key_value_heads": -Infinity"#, "num_key_value_heads is \"-Infinity\""),
    ] {
        refused(&format!("{llama}, {entry}"), None, "", words);
    }
}

#[test]
fn a_mistral_is_a_llama_within_its_sliding_window() {
    let mistral = |entries: &str, sequence| {
        let entries = format!(r#""model_type": "mistral", "max_position_embeddings": 300{entries}"#);
        settings(&entries, sequence, "").map(|settings| settings.model)
    };
    let model = mistral(r#", "sliding_window": null, "num_key_value_heads": 1"#, None).unwrap();
    assert_eq!((model.sequence, model.key_value_heads, model.hidden), (300, 1, 12));
    assert_eq!(model.family, crate::config::model::FamilySetting::Decoder);
    // Null is as many as there are queries; what is missing is as `transformers` has it.
    assert_eq!(mistral(r#", "num_key_value_heads": null"#, None).unwrap().key_value_heads, 2);
    assert_eq!(mistral("", None).unwrap().key_value_heads, 8);
    assert_eq!(mistral(r#", "sliding_window": 300"#, None).unwrap().sequence, 300);
    // Within the window a token sees all tokens before it.
    assert_eq!(mistral(r#", "sliding_window": 40"#, None).unwrap().sequence, 40);
    assert_eq!(mistral(r#", "sliding_window": 40"#, Some(40)).unwrap().sequence, 40);
    let failure = mistral(r#", "sliding_window": 40"#, Some(41)).unwrap_err();
    let words = "--sequence is 41, but ";
    assert!(
        failure.message.contains(words) && failure.message.contains("40 positions (sliding_window)"),
        "{failure}"
    );
    let missing = r#""model_type": "mistral", "max_position_embeddings": 9000"#;
    refused(missing, Some(4097), "", "knows 4096 positions (sliding_window)");
    settings(&missing.replace("9000", "9000, \"sliding_window\": null"), Some(9000), "").unwrap();
}

#[test]
fn a_long_context_is_no_window_unless_somebody_says_so() {
    let llama = r#""model_type": "llama", "max_position_embeddings": 131072"#;
    let sequence = |asked, text: &str| settings(llama, asked, text).map(|settings| settings.model.sequence);
    assert_eq!(sequence(None, "").unwrap(), 512);
    assert_eq!(sequence(Some(2048), "").unwrap(), 2048);
    assert_eq!(sequence(None, "[model]\nsequence = 4096\n").unwrap(), 4096);
    assert_eq!(sequence(Some(4096), "[model]\nsequence = 4096\n").unwrap(), 4096);
    let contradicts = "run.toml: model.sequence is 64, but --sequence says 128; delete the line";
    refused(llama, Some(128), "[model]\nsequence = 64\n", contradicts);
    refused(&llama.replace("131072", "100"), Some(101), "", "--sequence is 101, but ");
    // An ALBERT has an embedding for each position.
    let albert = r#""model_type": "albert", "embedding_size": 4, "max_position_embeddings": 600"#;
    assert_eq!(settings(albert, None, "").unwrap().model.sequence, 600);
    refused(albert, Some(64), "", "--sequence is 64, but ");
}

/// What a checkpoint's config says of positions.
const LLAMA3: &str = r#""factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64"#;

#[test]
fn scaled_positions_are_taken_as_either_version_says_them() {
    let llama = r#""model_type": "llama", "rope_theta": 500000.0"#;
    let model = |entry: &str| settings(&format!("{llama}, {entry}"), None, "").unwrap().model;
    for entry in [
        format!(r#""rope_scaling": {{"rope_type": "llama3", {LLAMA3}}}"#),
        format!(r#""rope_scaling": {{"type": "llama3", {LLAMA3}}}"#),
        format!(r#""rope_parameters": {{"rope_type": "llama3", "rope_theta": 500000.0, {LLAMA3}}}"#),
    ] {
        let model = model(&entry);
        let scaling =
            (model.rope_base, model.rope_factor, model.rope_low, model.rope_high, model.rope_original);
        assert_eq!(scaling, (5e5, 8.0, 1.0, 4.0, 64), "{entry}");
    }
    assert_eq!(model(r#""rope_scaling": {"rope_type": "default"}"#).rope_factor, 1.0);
    for (scaling, words) in [
        (LLAMA3.replace("8.0", "\"8\""), "rope_scaling.factor is \"8\", where a number is needed"),
        (LLAMA3.replace("low_freq", "low"), "rope_scaling.low_freq_factor is missing"),
        (LLAMA3.replace("64", "64.5"), "rope_scaling.original_max_position_embeddings is 64.5"),
    ] {
        refused(
            &format!(r#"{llama}, "rope_scaling": {{"rope_type": "llama3", {scaling}}}"#),
            None,
            "",
            words,
        );
    }
    let partial = r#""partial_rotary_factor": 0.5"#;
    refused(&format!("{llama}, {partial}"), None, "", "partial_rotary_factor is 0.5");
    refused(
        &format!(r#"{llama}, "rope_scaling": 8"#),
        None,
        "",
        "rope_scaling is 8, where entries of its own",
    );
    // What a run cannot have is named by the setting, and where it comes from.
    let text = "[model]\nrope_factor = 4.0\n";
    let entry = format!(r#""rope_scaling": {{"rope_type": "llama3", {LLAMA3}}}"#);
    refused(&format!("{llama}, {entry}"), None, text, "model.rope_factor is 4.0, but ");
}

#[test]
fn a_qwen2_has_biases() {
    let qwen2 = r#""model_type": "qwen2", "num_key_value_heads": 1, "max_position_embeddings": 300"#;
    let model = |entries: &str| settings(&format!("{qwen2}{entries}"), None, "").unwrap().model;
    let plain = model("");
    assert!(plain.attention_bias && plain.head_width == 0 && plain.sequence == 300);
    assert_eq!(model(r#", "use_sliding_window": true, "sliding_window": 40"#).sequence, 40);
    // A window that is not used says nothing.
    assert_eq!(model(r#", "use_sliding_window": false, "sliding_window": 40"#).sequence, 300);
    let layers = r#""layer_types": ["sliding_attention"]"#;
    model(&format!(r#", "use_sliding_window": true, "sliding_window": 40, {layers}"#));
    refused(&format!("{qwen2}, {layers}"), None, "", "layer_types names others than full_attention");
    assert_eq!(
        settings(&qwen2.replace(r#""num_key_value_heads": 1,"#, ""), None, "").unwrap().model.key_value_heads,
        32
    );
}

#[test]
fn a_qwen3_has_norms_of_queries_and_keys() {
    let qwen3 = r#""model_type": "qwen3", "num_key_value_heads": 1, "max_position_embeddings": 300"#;
    let model = |entries: &str| settings(&format!("{qwen3}{entries}"), None, "").unwrap().model;
    let plain = model(r#", "head_dim": 16"#);
    assert!(plain.head_norms && !plain.attention_bias && plain.head_width == 16);
    // What is missing is as `transformers` has it; what width and heads give is the plain one.
    assert_eq!((model("").head_width, model(r#", "head_dim": 4"#).head_width), (128, 0));
    assert_eq!(model(r#", "use_sliding_window": true, "sliding_window": 40"#).sequence, 40);
    refused(&format!(r#"{qwen3}, "attention_bias": true"#), None, "", "attention_bias is true");
    let both = "[model]\nattention_bias = true\n";
    refused(qwen3, None, both, "model.attention_bias is true, but ");
}

#[test]
fn heads_may_have_a_width_of_their_own() {
    let width = |kind: &str, head: &str| {
        settings(&format!(r#""model_type": "{kind}", "head_dim": {head}"#), None, "")
            .unwrap()
            .model
            .head_width
    };
    assert_eq!((width("llama", "16"), width("mistral", "16"), width("qwen2", "2")), (16, 16, 2));
    // What width and heads give, and null, are the plain ones.
    assert_eq!((width("llama", "4"), width("mistral", "null")), (0, 0));
}

#[test]
fn a_model_that_is_quantised_or_turns_its_layers_apart_is_named() {
    let llama = r#""model_type": "llama""#;
    for (entry, words) in [
        (
            r#""quantization_config": {"quant_method": "gptq", "bits": 4}"#,
            "quantization_config says that the model is quantised by gptq; begin with the model that was",
        ),
        (r#""quantization_config": {"bits": 4}"#, "by a method that it does not name"),
        (
            r#""rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}"#,
            "rope_parameters says it for each kind of layers, a run's models have one kind",
        ),
        (r#""rope_scaling": {"rope_type": "yarn", "factor": 4.0}"#, "scales the rotary positions by yarn"),
        (r#""rope_scaling": {"type": "dynamic", "factor": 2.0}"#, "scales the rotary positions by dynamic"),
    ] {
        refused(&format!("{llama}, {entry}"), None, "", words);
    }
    settings(&format!(r#"{llama}, "quantization_config": null"#), None, "").unwrap();
}

#[test]
fn a_vocabulary_that_is_not_that_of_the_text_says_how_to_pack_it() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("model");
    let manifest = manifest(UNTIED);
    exported(&manifest, &values(manifest.model.parameters()), &folder);
    let given = Given::open(&folder, None).unwrap();
    let mut model = manifest.model.clone();
    for (known, good) in [(255, false), (256, true), (256 + 1023, true), (256 + 1024, false)] {
        model.vocabulary = known;
        let checked = given.check_kinds(&manifest.data, &model);
        assert_eq!(checked.is_ok(), good, "{known}");
        if let Err(failure) = checked {
            assert!(
                failure.message.contains(&format!("config.json: knows {known} kinds of tokens")),
                "{failure}"
            );
            assert!(
                failure.message.contains("tokenizer.json beside it: they are of two models"),
                "{failure}"
            );
        }
    }
    fs::remove_file(folder.join(TOKENISER)).unwrap();
    let failure = given.check_kinds(&manifest.data, &model).unwrap_err();
    assert!(failure.message.contains("not in this folder (muster data pack --tokenizer FILE)"), "{failure}");
}
