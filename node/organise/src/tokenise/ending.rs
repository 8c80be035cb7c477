//! Which token of a tokeniser ends a text: as the files of its model say, or somebody does. A name proves nothing.

use std::fs;
use std::path::Path;

use muster_replica::exit::{Failure, Outcome};
use muster_store::regular;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::LoadedTokeniser;
use crate::python::words_quoted;

/// The file beside a `tokenizer.json` that names the end in words.
pub const TOKENISER_CONFIG: &str = "tokenizer_config.json";
/// What names it by its number.
const GENERATION_CONFIG: &str = "generation_config.json";
/// Bytes of either, at most.
const MOST_BYTES: u64 = 64 << 20;
/// Special tokens that are listed for whoever has to name one.
const LISTED: usize = 12;

/// The token that ends each text of a corpus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// How it is written.
    pub word: String,
    /// Its number.
    pub number: u32,
    /// Who says so.
    pub said_by: String,
}

#[derive(Deserialize)]
struct TokeniserConfig {
    eos_token: Option<Word>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Word {
    Plain(String),
    Described { content: String },
}

#[derive(Deserialize)]
struct GenerationConfig {
    eos_token_id: Option<Numbers>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Numbers {
    One(u32),
    Several(Vec<u32>),
}

impl Ending {
    /// The end of texts, as somebody has named it, else as the files beside the `tokenizer.json` do. None where an empty word
    /// was named: then texts run into each other.
    ///
    /// # Errors
    /// [`Failure`] where nothing says it, or not clearly, or the tokeniser does not know the word.
    pub fn of(tokeniser: &LoadedTokeniser, named: Option<&str>) -> Outcome<Option<Self>> {
        if named == Some("") {
            return Ok(None);
        }
        let folder = tokeniser.path.parent().unwrap_or(Path::new(""));
        let (words, numbers) = (folder.join(TOKENISER_CONFIG), folder.join(GENERATION_CONFIG));
        let known = |word: String, said_by: String| match tokeniser.rules.token_to_id(&word) {
            Some(number) => Ok(Some(Self { word, number, said_by })),
            None => Err(unknown(tokeniser, &format!("{said_by} names {word:?}, which is no token of it"))),
        };
        if let Some(word) = named {
            return known(word.to_owned(), "--end".into());
        }
        match said::<TokeniserConfig>(&words)?.and_then(|config| config.eos_token) {
            Some(Word::Plain(word) | Word::Described { content: word }) => {
                return known(word, words.display().to_string());
            }
            None => {}
        }
        let number = match said::<GenerationConfig>(&numbers)?.and_then(|config| config.eos_token_id) {
            None => return Err(unknown(tokeniser, "nothing beside it says which token ends a text")),
            Some(Numbers::One(number)) => number,
            Some(Numbers::Several(several)) => match several.as_slice() {
                [number] => *number,
                _ => {
                    let words = several.iter().filter_map(|number| tokeniser.rules.id_to_token(*number));
                    let words = words.collect::<Vec<_>>().join(" ");
                    return Err(unknown(
                        tokeniser,
                        &format!("{} names several ends: {words}", numbers.display()),
                    ));
                }
            },
        };
        let said_by = numbers.display().to_string();
        match tokeniser.rules.id_to_token(number) {
            Some(word) => Ok(Some(Self { word, number, said_by })),
            None => {
                Err(unknown(tokeniser, &format!("{said_by} names token {number}, which it does not know")))
            }
        }
    }
}

impl Ending {
    /// Says it beside the `tokenizer.json` of a corpus, for whoever packs more text in the same numbers.
    ///
    /// # Errors
    /// [`Failure`] when the file cannot be written.
    pub fn write(&self, corpus: &Path) -> Outcome<()> {
        let path = corpus.join(TOKENISER_CONFIG);
        let config =
            serde_json::json!({ "eos_token": self.word, "tokenizer_class": "PreTrainedTokenizerFast" });
        fs::write(&path, format!("{config}\n"))
            .map_err(|error| Failure::environment(format!("{}: cannot be written ({error})", path.display())))
    }
}

fn unknown(tokeniser: &LoadedTokeniser, what: &str) -> Failure {
    let added = tokeniser.rules.get_added_tokens_decoder();
    let mut special: Vec<(u32, String)> = added
        .into_iter()
        .filter_map(|(number, token)| token.special.then_some((number, token.content)))
        .collect();
    special.sort();
    let words: Vec<String> = special.iter().take(LISTED).map(|(_, word)| word.clone()).collect();
    let more = if special.len() > LISTED { " …" } else { "" };
    let path = tokeniser.path.display();
    let known = if words.is_empty() {
        "it has no special tokens".into()
    } else {
        format!("its special tokens: {}{more}", words.join(" "))
    };
    Failure::usage(format!(
        "{path}: {what}; say --end WORD, or put the model's {TOKENISER_CONFIG} beside it (--end '': nothing ends a text); {known}"
    ))
}

/// What a file says; nothing where there is none.
fn said<T: DeserializeOwned>(path: &Path) -> Outcome<Option<T>> {
    let Some(text) = regular::text_if_there(path, MOST_BYTES)? else { return Ok(None) };
    let read = serde_json::from_slice(&words_quoted(text.as_bytes())).map_err(|error| {
        Failure::environment(format!(
            "{}: cannot be read ({error}); get it again, or say --end WORD",
            path.display()
        ))
    });
    read.map(Some)
}

#[cfg(test)]
mod tests {
    use super::super::tests::WORDS;
    use super::*;

    #[test]
    fn the_end_of_a_text_is_what_the_models_files_or_somebody_says() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokenizer.json");
        fs::write(&path, WORDS).unwrap();
        let words = LoadedTokeniser::open(&path).unwrap();
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        let found = |named| Ending::of(&words, named).map(|end| end.map(|end| (end.word, end.number)));
        let end = || Ok(Some(("</s>".to_owned(), 300)));
        // </s> is a common name for it, which proves nothing.
        let refused = Ending::of(&words, None).unwrap_err();
        assert!(
            refused.message.contains("nothing beside it says which token ends a text; say --end WORD"),
            "{refused}"
        );
        assert!(refused.message.ends_with("its special tokens: </s>"), "{refused}");
        assert_eq!(found(Some("")), Ok(None));
        assert_eq!(found(Some("</s>")), end());
        assert_eq!(found(Some("butter")), Ok(Some(("butter".to_owned(), 258))));
        let refused = found(Some("<eos>")).unwrap_err();
        assert!(refused.message.contains("--end names \"<eos>\", which is no token of it"), "{refused}");
        write(GENERATION_CONFIG, r#"{"eos_token_id": [258, 300]}"#);
        let refused = found(None).unwrap_err();
        assert!(refused.message.contains("names several ends: butter </s>"), "{refused}");
        write(GENERATION_CONFIG, r#"{"eos_token_id": 299}"#);
        assert!(found(None).unwrap_err().message.contains("names token 299, which it does not know"));
        for id in ["300", "[300]"] {
            write(GENERATION_CONFIG, &format!(r#"{{"eos_token_id": {id}}}"#));
            assert_eq!(found(None), end());
        }
        for word in [r#""butter""#, r#"{"__type": "AddedToken", "content": "butter", "lstrip": false}"#] {
            write(TOKENISER_CONFIG, &format!(r#"{{"eos_token": {word}}}"#));
            assert_eq!(found(None), Ok(Some(("butter".to_owned(), 258))));
            assert_eq!(found(Some("</s>")), end());
        }
        write(TOKENISER_CONFIG, r#"{"eos_token": null}"#);
        assert_eq!(found(None), end());
        write(TOKENISER_CONFIG, r#"{"eos_token": "<eos>"}"#);
        assert!(found(None).unwrap_err().message.contains("tokenizer_config.json names \"<eos>\""));
        Ending::of(&words, Some("butter")).unwrap().unwrap().write(directory.path()).unwrap();
        assert_eq!(found(None), Ok(Some(("butter".to_owned(), 258))));
        write(TOKENISER_CONFIG, "{");
        assert!(found(None).unwrap_err().message.contains("tokenizer_config.json: cannot be read"));
    }
}
