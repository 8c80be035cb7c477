//! A `tokenizer.json` as llama.cpp has tokenisers: the two families of which it makes the same numbers, and what they need.
//!
//! `gpt2`: byte-level BPE. The rules that cut a text into words have names there, and no file can bring others.
//! `llama`: BPE of SentencePiece, in which a pair is joined by the score of what it becomes.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

/// What kinds of token the format knows, of which these are used.
pub(super) const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
pub(super) const UNUSED: i32 = 5;
pub(super) const BYTE: i32 = 6;

/// Bytes of a word of SentencePiece at most: each of its cuts is looked at, so that a long one would take hours.
const WORD_BYTES: usize = 256;

/// How SentencePiece writes a space.
const SPACE: char = '\u{2581}';

/// A token: what it is called there, its kind, and its score where a family has scores.
pub(super) struct GgufToken {
    pub(super) name: String,
    pub(super) kind: i32,
    pub(super) score: f32,
}

/// A tokeniser of one of the families.
pub(super) struct GgufWords {
    /// In the order of their numbers.
    pub(super) tokens: Vec<GgufToken>,
    pub(super) unknown: Option<u32>,
    pub(super) family: WordFamily,
}

pub(super) enum WordFamily {
    /// `gpt2`, with the name of its rules and its merges.
    ByteLevel { rules: &'static str, merges: Vec<String> },
    /// `llama`; whether a space is put before a text.
    SentencePiece { space_before: bool },
}

/// The rules of llama.cpp by what cuts a text into words, one expression after the other, and by whether words of the vocabulary are
/// taken whole. `trillion` and `smollm` cut as GPT-2 and StarCoder do, and leave spaces before signs where they are.
const RULES: [(&[&str], bool, &str); 6] = [
    (&[GPT2], false, "trillion"),
    (&[r"\p{N}", GPT2], false, "smollm"),
    (&[LLAMA3], true, "llama-bpe"),
    (&[LLAMA3], false, "dbrx"),
    (&[QWEN2], false, "qwen2"),
    (&[r"\p{N}{1,3}", "[一-龥\u{3040}-ゟ゠-ヿ]+", DEEPSEEK3], false, "deepseek-v3"),
];
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// A `tokenizer.json` with as many tokens as a model has.
///
/// # Errors
/// In words: what of it llama.cpp has not.
pub(super) fn words(file: &[u8], vocabulary: u32) -> Result<GgufWords, String> {
    let file: File = serde_json::from_slice(file).map_err(|_| "its model is no BPE".to_owned())?;
    let family = match &file.model {
        model if !model.is_plain() => return Err("its model is no plain BPE".into()),
        model if model.byte_fallback => file.sentence_piece()?,
        _ => file.byte_level()?,
    };
    Ok(GgufWords { tokens: file.tokens(vocabulary, &family), unknown: file.unknown(), family })
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    model: Bpe,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Bpe {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    vocab: BTreeMap<String, u32>,
    merges: Vec<Merge>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

/// In files of before 2024 a line, later a pair.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Line(String),
}

impl Merge {
    fn pair(&self) -> Option<(&str, &str)> {
        match self {
            Self::Pair(left, right) => Some((left, right)),
            Self::Line(line) => line.split_once(' '),
        }
    }
}

impl Bpe {
    fn is_plain(&self) -> bool {
        let is_empty = |word: &Option<String>| word.as_ref().is_none_or(String::is_empty);
        self.kind.as_ref().is_none_or(|kind| kind == "BPE")
            && is_empty(&self.continuing_subword_prefix)
            && is_empty(&self.end_of_word_suffix)
    }
}

impl File {
    fn byte_level(&self) -> Result<WordFamily, String> {
        if !is_composed(&self.normalizer) {
            return Err("it rewrites a text before it reads it (normalizer)".into());
        }
        let cuts = cuts(&self.pre_tokenizer)
            .ok_or("llama.cpp has no name for how it cuts a text into words (pre_tokenizer)")?;
        // Some files write the end of a line as it is.
        let cuts: Vec<String> =
            cuts.iter().map(|cut| cut.replace('\r', r"\r").replace('\n', r"\n")).collect();
        let named =
            RULES.iter().find(|(rules, whole, _)| *rules == cuts && *whole == self.model.ignore_merges);
        let Some((.., rules)) = named else {
            return Err("llama.cpp has no name for how it cuts a text into words (pre_tokenizer)".into());
        };
        let line = |merge: &Merge| {
            let (left, right) = merge.pair()?;
            (!left.contains(' ') && !right.contains(' ')).then(|| format!("{left} {right}"))
        };
        let merges = self.model.merges.iter().map(line).collect::<Option<Vec<_>>>();
        let merges = merges.ok_or("one of its merges has a space in a part")?;
        Ok(WordFamily::ByteLevel { rules, merges })
    }

    fn sentence_piece(&self) -> Result<WordFamily, String> {
        let rewrites = || "it rewrites a text otherwise than SentencePiece (normalizer)".to_owned();
        let before = prefixed(&self.normalizer).ok_or_else(rewrites)?;
        let cut = |before| {
            format!("it cuts a text into words otherwise than SentencePiece (pre_tokenizer{before})")
        };
        let (space_before, words) = match &self.pre_tokenizer {
            Value::Null => (before, false),
            // Without spaces there is nothing to cut.
            split
                if split["type"] == "Split"
                    && split["pattern"]["String"] == " "
                    && !self.normalizer.is_null() =>
            {
                (before, false)
            }
            space if space["type"] == "Metaspace" && self.normalizer.is_null() => {
                let first = match space["prepend_scheme"].as_str() {
                    Some(scheme) => scheme != "never",
                    None => space["add_prefix_space"].as_bool().unwrap_or(true),
                };
                (first, space["split"].as_bool().unwrap_or(true))
            }
            _ => return Err(cut("")),
        };
        if words && self.model.vocab.keys().any(|word| word.chars().skip(1).any(|c| c == SPACE)) {
            return Err(cut(", with words of several spaces"));
        }
        // Some write a sign as itself instead.
        let vocabulary = &self.model.vocab;
        let is_itself = |byte: u8| byte.is_ascii() && vocabulary.contains_key(&char::from(byte).to_string());
        let has = |byte: u8| vocabulary.contains_key(&format!("<0x{byte:02X}>")) || is_itself(byte);
        if let Some(byte) = (0..=u8::MAX).find(|byte| !has(*byte)) {
            return Err(format!("it has no token <0x{byte:02X}>"));
        }
        if vocabulary.keys().any(|word| word.len() > WORD_BYTES) {
            return Err(format!("it has a word of more than {WORD_BYTES} bytes"));
        }
        if self.scores().is_none() {
            return Err("its merges have another order than its words".into());
        }
        Ok(WordFamily::SentencePiece { space_before })
    }

    /// The scores by which llama.cpp joins what the merges join: of each word, how late its merges come. None where no scores do, since
    /// there a word's rank does not depend on its parts, and any two parts are joined.
    fn scores(&self) -> Option<BTreeMap<&str, f32>> {
        let vocabulary = &self.model.vocab;
        let added: BTreeSet<&str> = self.added_tokens.iter().map(|added| added.content.as_str()).collect();
        let mut ranks: BTreeMap<String, (usize, BTreeSet<usize>)> = BTreeMap::new();
        let (mut last, mut rank) = (String::new(), 0);
        for merge in &self.model.merges {
            let (left, right) = merge.pair()?;
            let whole = format!("{left}{right}");
            if whole != last {
                rank += 1;
                last.clone_from(&whole);
            }
            let (first, parts) = ranks.entry(whole).or_insert((rank, BTreeSet::new()));
            // The merges of a word follow each other.
            if *first != rank {
                return None;
            }
            parts.insert(left.len());
        }
        let mut scores = BTreeMap::new();
        for word in vocabulary.keys().filter(|word| !added.contains(word.as_str()) && !is_byte(word)) {
            let cuts = word.char_indices().skip(1).map(|(place, _)| place);
            let known = |part: &str| vocabulary.contains_key(part) && !added.contains(part) && !is_byte(part);
            let joined: BTreeSet<usize> =
                cuts.filter(|place| known(&word[..*place]) && known(&word[*place..])).collect();
            let (rank, merged) = ranks.remove(word).unwrap_or_default();
            if merged != joined {
                return None;
            }
            scores.insert(word.as_str(), -(rank as f32));
        }
        // What is left makes words that there are not.
        (ranks.is_empty() && rank < 1 << 24).then_some(scores)
    }

    fn unknown(&self) -> Option<u32> {
        self.model.unk_token.as_ref().and_then(|name| self.model.vocab.get(name)).copied()
    }

    fn tokens(&self, vocabulary: u32, family: &WordFamily) -> Vec<GgufToken> {
        let unused = |number| GgufToken { name: format!("<unused {number}>"), kind: UNUSED, score: 0.0 };
        let mut tokens: Vec<GgufToken> = (0..vocabulary).map(unused).collect();
        let mut put = |number: u32, token: GgufToken| {
            if let Some(place) = tokens.get_mut(number as usize) {
                *place = token;
            }
        };
        let pieces = matches!(family, WordFamily::SentencePiece { .. });
        let scores = if pieces { self.scores().unwrap_or_default() } else { BTreeMap::new() };
        let unknown = self.unknown();
        for (name, number) in &self.model.vocab {
            let kind = match number {
                _ if pieces && is_byte(name) => BYTE,
                number if unknown == Some(*number) => UNKNOWN,
                _ => NORMAL,
            };
            let score = scores.get(name.as_str()).copied().unwrap_or_default();
            put(*number, GgufToken { name: name.clone(), kind, score });
        }
        for added in &self.added_tokens {
            let kind = match added {
                added if unknown == Some(added.id) => UNKNOWN,
                Added { special: true, .. } => CONTROL,
                _ => USER_DEFINED,
            };
            put(added.id, GgufToken { name: added.content.clone(), kind, score: 0.0 });
        }
        tokens
    }
}

fn is_byte(word: &str) -> bool {
    let digits = word.strip_prefix("<0x").and_then(|word| word.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

/// The expressions by which a byte-level tokeniser cuts a text, one after the other. None where it does anything else.
fn cuts(pre_tokenizer: &Value) -> Option<Vec<&str>> {
    let steps = match pre_tokenizer["pretokenizers"].as_array() {
        Some(steps) if pre_tokenizer["type"] == "Sequence" => steps.iter().collect(),
        _ => vec![pre_tokenizer],
    };
    let (last, steps) = steps.split_last()?;
    let mut cuts = steps.iter().map(|step| cut(step)).collect::<Option<Vec<_>>>()?;
    if last["type"] != "ByteLevel" || last["add_prefix_space"].as_bool().unwrap_or(true) {
        return None;
    }
    if last["use_regex"].as_bool().unwrap_or(true) {
        cuts.push(GPT2);
    }
    Some(cuts)
}

fn cut(step: &Value) -> Option<&str> {
    let invert = step["invert"].as_bool().unwrap_or(false);
    match (step["type"].as_str()?, step["behavior"].as_str()) {
        ("Digits", _) if step["individual_digits"] == true => Some(r"\p{N}"),
        // Everything is a match of the expressions above: it is all the same whether the rest is kept.
        ("Split", Some("Isolated")) if !invert => step["pattern"]["Regex"].as_str(),
        ("Split", Some("Removed")) if invert => step["pattern"]["Regex"].as_str(),
        _ => None,
    }
}

/// Whether a normaliser leaves a text as it is, or at most puts marks and letters together, which nearly every text has already.
fn is_composed(normalizer: &Value) -> bool {
    match normalizer["normalizers"].as_array() {
        Some(steps) if normalizer["type"] == "Sequence" => steps.iter().all(is_composed),
        _ => normalizer.is_null() || normalizer["type"] == "NFC",
    }
}

/// Whether a normaliser of SentencePiece puts a space before a text. None where it is another one.
fn prefixed(normalizer: &Value) -> Option<bool> {
    let steps = match (&normalizer, normalizer["normalizers"].as_array()) {
        (Value::Null, _) => vec![],
        (_, Some(steps)) if normalizer["type"] == "Sequence" => steps.iter().collect(),
        _ => vec![normalizer],
    };
    let space = SPACE.to_string();
    let mut before = false;
    for step in steps {
        match step["type"].as_str()? {
            "Prepend" if step["prepend"] == space.as_str() => before = true,
            "Replace" if step["pattern"]["String"] == " " && step["content"] == space.as_str() => {}
            _ => return None,
        }
    }
    Some(before)
}

#[cfg(test)]
pub(crate) mod tests;
