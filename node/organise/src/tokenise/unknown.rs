//! The token for what a tokeniser does not know.

use serde::Deserialize;

use super::LoadedTokeniser;

/// A token that stands for any part of a text: what it stood for is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Its number.
    pub number: u32,
    /// Its name.
    pub word: String,
}

#[derive(Deserialize)]
struct File {
    model: Model,
}

/// Kinds of models say it by one or the other.
#[derive(Deserialize)]
struct Model {
    unk_token: Option<String>,
    unk_id: Option<u32>,
}

impl LoadedTokeniser {
    /// Its token for what it does not know, if it has one.
    pub fn unknown(&self) -> Option<Unknown> {
        let File { model } = serde_json::from_slice(&self.file).ok()?;
        let number = model.unk_id.or_else(|| self.rules.token_to_id(model.unk_token.as_deref()?))?;
        Some(Unknown { number, word: self.rules.id_to_token(number)? })
    }
}
