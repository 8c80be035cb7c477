//! What a `tokenizer.json` may demand of the library that reads it.
//!
//! The file may be a stranger's. The library believes what it says of its own lengths, and rules that replace a letter
//! by a book make a book of each letter. Everything here is found out from the file alone, before the library sees it.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Bytes that the rules may make of one byte of text. Those of known models make up to 726 in the worst case that this file can
/// see, and rarely more than 3 of a text.
const GROWTH: usize = 1024;
/// Bytes that a decoder may make of one byte of its tokens; those of known models make no more than they get.
const DECODED_GROWTH: usize = 64;
/// Bytes of a text, as long as the rules may make it, that are in work at a time for each piece.
const PIECE_GROWN: usize = 4 << 20;
/// Bytes of all added tokens, as long as the rules may make them.
const ADDED_GROWN: usize = 64 << 20;
/// Bytes of a prefix or suffix of a part of a word, which the library writes once for each part.
const AFFIX: usize = 256;
/// Characters of a word that WordPiece looks at, in time that grows with their square; known models have 100.
const WORD: u64 = 1000;
/// Bytes of one token.
const TOKEN: usize = 4096;

/// What a file demands, within bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Demands {
    /// Bytes that the rules make of one byte of text, at most.
    growth: usize,
}

impl Demands {
    /// Reads them.
    ///
    /// # Errors
    /// In words: what the file demands too much of.
    pub(super) fn of(file: &[u8]) -> Result<Self, String> {
        let file: Rules = serde_json::from_slice(file).map_err(|error| error.to_string())?;
        let normaliser = grown("normalizer", "normalizers", file.normalizer.as_ref(), &normalised)?;
        let splitter = grown("pre_tokenizer", "pretokenizers", file.pre_tokenizer.as_ref(), &split)?;
        let growth = normaliser.saturating_mul(splitter);
        within("its rules may make a text", growth, GROWTH)?;
        let decoded = grown("decoder", "decoders", file.decoder.as_ref(), &joined)?;
        within("its decoder may make a text", decoded, DECODED_GROWTH)?;
        let added = file.added_tokens.iter().flatten().map(|added| added.content.len());
        let added: usize = added.fold(0, usize::saturating_add);
        if added.saturating_mul(growth) > ADDED_GROWN {
            return Err(format!("its added tokens, {added} bytes, may become more than {ADDED_GROWN}"));
        }
        file.model.check()?;
        Ok(Self { growth })
    }

    /// Bytes of text to give to the library at once, at most `most`: fewer where the rules may make much of them.
    pub(super) fn piece(self, most: usize) -> usize {
        (PIECE_GROWN / self.growth.max(1)).clamp(1, most)
    }
}

/// Refuses a vocabulary with a token that is as long as a text: whoever decodes numbers would write it for each of them.
///
/// # Errors
/// In words.
pub(super) fn check_tokens(tokens: impl Iterator<Item = usize>) -> Result<(), String> {
    let longest = tokens.max().unwrap_or_default();
    if longest > TOKEN {
        return Err(format!("has a token of {longest} bytes, at most {TOKEN} are allowed"));
    }
    Ok(())
}

/// The file as far as it is looked at. A key that is there twice is refused: the library would read both.
#[derive(Deserialize)]
struct Rules {
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    decoder: Option<Value>,
    added_tokens: Option<Vec<AddedToken>>,
    model: WordModel,
}

#[derive(Deserialize)]
struct AddedToken {
    #[serde(default)]
    content: String,
}

#[derive(Deserialize)]
struct WordModel {
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    max_input_chars_per_word: Option<u64>,
}

impl WordModel {
    fn check(&self) -> Result<(), String> {
        let affixes = [&self.continuing_subword_prefix, &self.end_of_word_suffix];
        if affixes.into_iter().flatten().any(|affix| affix.len() > AFFIX) {
            return Err(format!("its model has a prefix or suffix of more than {AFFIX} bytes"));
        }
        if self.max_input_chars_per_word.is_some_and(|length| length > WORD) {
            return Err(format!("max_input_chars_per_word is more than {WORD}"));
        }
        Ok(())
    }
}

fn within(what: &str, growth: usize, most: usize) -> Result<(), String> {
    if growth > most {
        return Err(format!("{what} {growth} times as long, at most {most} times is allowed"));
    }
    Ok(())
}

/// How much longer one step may make a text, in whole times.
type Growth<'a> = &'a dyn Fn(&Map<String, Value>) -> Result<usize, String>;

/// How much longer steps may make a text that follow each other.
fn grown(name: &str, list: &str, step: Option<&Value>, growth: Growth<'_>) -> Result<usize, String> {
    let step = match step {
        None | Some(Value::Null) => return Ok(1),
        Some(Value::Object(step)) => step,
        // The library also reads steps whose fields have no names.
        Some(_) => return Err(format!("{name} is no object")),
    };
    let inner = match step.get(list) {
        None => &[][..],
        Some(Value::Array(steps)) => steps,
        Some(_) => return Err(format!("{list} is no list")),
    };
    inner.iter().try_fold(growth(step)?, |before, step| {
        Ok(before.saturating_mul(grown(name, list, Some(step), growth)?))
    })
}

/// A step without a known type is judged by all of its fields: the library takes whatever fits them.
fn kind(step: &Map<String, Value>) -> Option<&str> {
    step.get("type")?.as_str()
}

fn text<'a>(step: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    step.get(name)?.as_str()
}

/// Steps of a normaliser. The growth of Unicode's forms is that of Unicode Standard Annex 15, in UTF-8.
fn normalised(step: &Map<String, Value>) -> Result<usize, String> {
    let map = step.get("precompiled_charsmap").map_or(Ok(1), charsmap)?;
    // Before each part of a text that lies between added tokens, however short it is.
    let prepended = text(step, "prepend").map_or(1, |prepend| prepend.len().saturating_add(1));
    let own = match kind(step) {
        Some("Sequence" | "Precompiled" | "Prepend" | "Replace" | "Strip" | "StripAccents" | "Nmt") => 1,
        Some("NFKC" | "NFKD") => 11,
        _ => 3,
    };
    Ok(map.saturating_mul(prepended).saturating_mul(replaced(step)).saturating_mul(own))
}

/// Steps that cut a text into words.
fn split(step: &Map<String, Value>) -> Result<usize, String> {
    Ok(match kind(step) {
        Some(
            "Sequence" | "Split" | "Digits" | "Punctuation" | "Whitespace" | "WhitespaceSplit"
            | "BertPreTokenizer" | "CharDelimiterSplit" | "Delimiter" | "UnicodeScripts" | "FixedLength",
        ) => 1,
        // A letter of up to four bytes before each word.
        Some("Metaspace") => 5,
        // Each byte becomes a letter of up to two, with a space before the word.
        _ => 3,
    })
}

/// Steps of a decoder.
fn joined(step: &Map<String, Value>) -> Result<usize, String> {
    let own = if matches!(kind(step), Some("Sequence" | "Replace" | "Strip" | "Fuse" | "ByteFallback")) {
        1
    } else {
        2
    };
    Ok(replaced(step).saturating_mul(own))
}

/// A step that writes something in the place of whatever matches.
fn replaced(step: &Map<String, Value>) -> usize {
    let (Some(content), Some(pattern)) = (text(step, "content"), step.get("pattern")) else { return 1 };
    match pattern.get("String").and_then(Value::as_str) {
        Some(pattern) if !pattern.is_empty() => content.len().div_ceil(pattern.len()).max(1),
        // An expression may match nothing, between any two letters.
        _ => content.len().saturating_add(1),
    }
}

/// A map of SentencePiece: the length of a trie in bytes, the trie, and texts, each ended by a zero byte, of which one stands
/// in the place of whatever the trie finds.
fn charsmap(map: &Value) -> Result<usize, String> {
    let padding = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let base64 = GeneralPurpose::new(&STANDARD, padding);
    let bytes = map.as_str().and_then(|map| base64.decode(map).ok());
    let bytes = bytes.ok_or("precompiled_charsmap is not base64")?;
    // The library allocates what the length says before it looks how much there is.
    let (length, rest) = bytes.split_first_chunk().ok_or("precompiled_charsmap has no length")?;
    let length = u32::from_le_bytes(*length) as usize;
    let (_, texts) = rest.split_at_checked(length).filter(|_| length.is_multiple_of(4)).ok_or_else(|| {
        format!("precompiled_charsmap says that its trie has {length} bytes, and {} follow", rest.len())
    })?;
    if core::str::from_utf8(texts).is_err() {
        return Err("precompiled_charsmap has texts that are not UTF-8".into());
    }
    Ok(texts.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or_default().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demands(normaliser: &str, splitter: &str, decoder: &str) -> Result<usize, String> {
        let file = format!(
            r#"{{"normalizer": {normaliser}, "pre_tokenizer": {splitter}, "decoder": {decoder}, "model": {{"vocab": {{}}}}}}"#
        );
        Demands::of(file.as_bytes()).map(|demands| demands.growth)
    }

    fn map(texts: &str) -> String {
        let bytes = [&8u32.to_le_bytes()[..], &[0; 8], texts.as_bytes()].concat();
        let text = base64::engine::general_purpose::STANDARD.encode(bytes);
        format!(r#"{{"type": "Precompiled", "precompiled_charsmap": "{text}"}}"#)
    }

    #[test]
    fn rules_of_known_models_are_taken() {
        let quotes = r#"{"type": "Replace", "pattern": {"String": "``"}, "content": "\""}"#;
        let spaces = r#"{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}"#;
        let seen = [
            ("null", r#"{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true}"#, 3),
            (
                r#"{"type": "NFC"}"#,
                r#"{"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]}"#,
                9,
            ),
            (
                r#"{"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}"#,
                "null",
                12,
            ),
            (
                &format!(
                    r#"{{"type": "Sequence", "normalizers": [{quotes}, {{"type": "NFKD"}}, {{"type": "StripAccents"}},
                {{"type": "Lowercase"}}, {}, {spaces}]}}"#,
                    map("wwwwwwwwww\0")
                ),
                "null",
                660,
            ),
        ];
        for (normaliser, splitter, growth) in seen {
            assert_eq!(demands(normaliser, splitter, "null"), Ok(growth), "{normaliser}");
        }
    }

    #[test]
    fn text_does_not_grow_without_bound() {
        let replace = |content: usize| {
            format!(
                r#"{{"type": "Replace", "pattern": {{"String": "a"}}, "content": "{}"}}"#,
                "b".repeat(content)
            )
        };
        let sequence =
            |steps: Vec<String>| format!(r#"{{"type": "Sequence", "normalizers": [{}]}}"#, steps.join(","));
        assert_eq!(demands(&replace(1024), "null", "null"), Ok(1024));
        let long = [
            replace(100_000),
            sequence(vec![replace(2); 11]),
            sequence(vec![sequence(vec![replace(2); 6]); 2]),
            format!(r#"{{"type": "Prepend", "prepend": "{}"}}"#, "b".repeat(1024)),
            format!(r#"{{"prepend": "{}"}}"#, "b".repeat(1024)),
            map(&"b".repeat(1025)),
        ];
        for normaliser in long {
            let said = demands(&normaliser, "null", "null").expect_err("it grows");
            assert!(said.contains("times as long, at most 1024 times is allowed"), "{said}");
        }
        let bytes = format!(
            r#"{{"type": "Sequence", "pretokenizers": [{}]}}"#,
            [r#"{"type": "ByteLevel"}"#; 7].join(",")
        );
        demands("null", &bytes, "null").expect_err("each step doubles it");
        assert!(demands("null", "null", &replace(65)).expect_err("it grows").contains("its decoder"));
        // Steps whose fields have no names, and a key that is there twice.
        demands(r#"["bbbb"]"#, "null", "null").expect_err("no object");
        demands(r#"null, "normalizer": null"#, "null", "null").expect_err("twice");
    }

    #[test]
    fn a_map_is_as_long_as_it_says() {
        for map in ["AAAAAA==", "AAAAAAA=", "AAAAAA"] {
            let normaliser = format!(r#"{{"type": "Precompiled", "precompiled_charsmap": "{map}"}}"#);
            demands(&normaliser, "null", "null").expect("an empty one");
        }
        for map in ["", "AAAA", "/////w==", "CAAAAAAAAAA=", "BQAAAAAAAAAA", "====", "\u{e4}"] {
            for kind in [r#""type": "Precompiled", "#, ""] {
                let normaliser = format!(r#"{{{kind}"precompiled_charsmap": "{map}"}}"#);
                let said = demands(&normaliser, "null", "null").expect_err(map);
                assert!(said.contains("precompiled_charsmap"), "{said}");
            }
        }
    }

    #[test]
    fn a_model_asks_for_no_endless_work() {
        let model = |field: &str| Demands::of(format!(r#"{{"model": {{{field}}}}}"#).as_bytes());
        assert_eq!(model(r#""max_input_chars_per_word": 100"#), Ok(Demands { growth: 1 }));
        model(r#""max_input_chars_per_word": 1000000"#).expect_err("quadratic");
        let long = "#".repeat(AFFIX + 1);
        model(&format!(r#""continuing_subword_prefix": "{long}""#)).expect_err("once for each part");
        check_tokens([3, TOKEN].into_iter()).expect("short");
        check_tokens([3, TOKEN + 1].into_iter()).expect_err("a text");
    }

    #[test]
    fn pieces_are_shorter_where_text_grows() {
        assert_eq!(Demands { growth: 12 }.piece(1 << 18), 1 << 18);
        assert_eq!(Demands { growth: 1024 }.piece(1 << 18), 1 << 12);
    }
}
