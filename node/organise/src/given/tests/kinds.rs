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
        let frequencies = (Dtype::F32, vec![2], real_bytes(&[1.0, 0.01]));
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
