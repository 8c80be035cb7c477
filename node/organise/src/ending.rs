//! What ends the texts that a run is trained on: where a model that writes has finished.

use std::path::Path;

use muster_core::manifest::{Data, Tokeniser};
use muster_replica::exit::Outcome;
use muster_store::dataset::last_tokens;
use serde::Deserialize;

use super::DATA;

/// The token that ends each text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Its number.
    pub token: u32,
    /// What the tokeniser's file calls it.
    pub name: String,
}

/// What ends the texts of a run, from a folder that has them; `file` is the run's `tokenizer.json`, empty for bytes. None where the
/// texts are not there, or end with no token of their own.
///
/// The texts say it themselves: packing writes the end after each of them, the last one too. A last token that is no control token
/// is text.
///
/// # Errors
/// [`muster_replica::exit::Failure`] naming a text that cannot be read.
pub fn ending(folder: &Path, data: &Data, file: &[u8]) -> Outcome<Option<Ending>> {
    if data.tokeniser == Tokeniser::Bytes {
        return Ok(Some(Ending { token: 0, name: "\0".into() }));
    }
    let last = last_tokens(&folder.join(DATA), data)?;
    let Some([token, _]) = last.filter(|[training, held_out]| training == held_out) else { return Ok(None) };
    Ok(control_token(file, token).map(|name| Ending { token, name }))
}

/// The name of an added token of a `tokenizer.json`.
pub(super) fn control_token(file: &[u8], token: u32) -> Option<String> {
    let Tokens { added_tokens } = serde_json::from_slice(file).ok()?;
    added_tokens.into_iter().find(|added| added.id == token).map(|added| added.content)
}

#[derive(Deserialize)]
struct Tokens {
    #[serde(default)]
    added_tokens: Vec<Added>,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
}
