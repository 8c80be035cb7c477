//! What `transformers` reads of a run's tokeniser beside `tokenizer.json`, and that file for runs of bytes.

use std::collections::BTreeMap;

use muster_core::manifest::{Family, Model};
use serde_json::{Value, json};

use crate::ending::{Ending, control_token};

/// The token that an ALBERT of bytes fills in.
const MASK: &str = "[MASK]";

/// A `tokenizer.json` that gives each byte its own number, the zero that ends a text as well.
pub(super) fn of_bytes(model: &Model) -> Value {
    bytes_and(if let Family::Albert(albert) = &model.family { Some(albert.mask_token) } else { None })
}

/// Whether a file is [`of_bytes`] of any model.
pub fn is_of_bytes(file: &[u8]) -> bool {
    let Ok(file) = serde_json::from_slice::<Value>(file) else { return false };
    let mask = file["model"]["vocab"][MASK].as_u64().and_then(|mask| u32::try_from(mask).ok());
    file == bytes_and(mask)
}

fn bytes_and(mask: Option<u32>) -> Value {
    let names = (1..=u8::MAX).map(|byte| (visible(byte).to_string(), u32::from(byte)));
    let mut added = vec![("\0".to_owned(), 0)];
    added.extend(mask.map(|mask| (MASK.to_owned(), mask)));
    let vocabulary: BTreeMap<String, u32> = names.chain(added.clone()).collect();
    let added: Vec<Value> = added.into_iter().map(|(content, id)| control(&content, id)).collect();
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": [],
        },
    })
}

fn control(content: &str, id: u32) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true})
}

/// The character by which GPT-2's vocabulary, and each byte-level one since, names a byte.
pub fn visible(byte: u8) -> char {
    let is_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if is_itself(byte) {
        return byte.into();
    }
    let before = (0..byte).filter(|other| !is_itself(*other)).count() as u32;
    char::from_u32(256 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// `tokenizer_config.json`. Without it `transformers` takes the tokeniser of the model's family, which adds a token of its own.
pub(super) fn config(model: &Model, tokeniser: &[u8], ending: Option<&Ending>) -> Value {
    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.sequence,
        // A text that was read is written again as it was.
        "clean_up_tokenization_spaces": false,
    });
    if let Some(Ending { name, .. }) = ending {
        config["eos_token"] = name.as_str().into();
    }
    if let Family::Albert(albert) = &model.family
        && let Some(name) = control_token(tokeniser, albert.mask_token)
    {
        config["mask_token"] = name.into();
    }
    config
}

/// `generation_config.json`: where `generate` begins a text of nothing, and where it stops.
pub(super) fn generation(ending: &Ending) -> Value {
    json!({"bos_token_id": ending.token, "eos_token_id": ending.token})
}

#[cfg(test)]
mod tests {
    use muster_core::codec::Real;
    use muster_core::manifest::Albert;
    use tokenizers::Tokenizer;

    use super::*;

    fn albert() -> Model {
        let real = |value| Real::new(value).unwrap();
        let family = Family::Albert(Albert { embedding: 4, masked_ppm: 150_000, mask_token: 258 });
        Model {
            vocabulary: 260,
            width: 8,
            layers: 1,
            heads: 2,
            hidden: 8,
            sequence: 16,
            norm_epsilon: real(1e-5),
            initial_scale: real(0.02),
            family,
        }
    }

    #[test]
    fn every_byte_has_its_own_number_and_comes_back() {
        let file = of_bytes(&albert()).to_string();
        let bytes: Tokenizer = file.parse().unwrap();
        // The letter by which byte-level vocabularies name the zero, and the zero itself.
        for text in [
            "\u{100} a\0b\0\0",
            "l\u{ed}nea\r\n\t\u{7f}\u{a0}\u{ad}",
            "  spaces  and \u{1f600} ",
            "it's 1234",
        ] {
            let numbers = bytes.encode(text, true).unwrap().get_ids().to_vec();
            assert_eq!(numbers, text.bytes().map(u32::from).collect::<Vec<_>>(), "{text:?}");
            assert_eq!(bytes.decode(&numbers, false).unwrap(), text);
        }
        assert_eq!(bytes.encode("a[MASK]", true).unwrap().get_ids(), [97, 258]);
        let config = config(&albert(), file.as_bytes(), Some(&Ending { token: 0, name: "\0".into() }));
        assert_eq!((&config["eos_token"], &config["mask_token"]), (&json!("\0"), &json!("[MASK]")));
    }
}
