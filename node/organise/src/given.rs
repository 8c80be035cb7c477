//! `muster run new --init`: somebody's checkpoint becomes the parameters that a run begins with.
//!
//! A checkpoint is a folder with `config.json` and `model.safetensors`, or the files that `model.safetensors.index.json` names,
//! under Hugging Face's names: what `muster run export` writes, and what `transformers` saves of a model that a run can train
//! (`config/family.rs`). It comes from a stranger: every length is bounded before memory is taken for it, and what does not
//! fit is refused by file, tensor and rule.

mod config;
mod file;
mod known;
mod shards;
mod weights;

use std::path::{Path, PathBuf};

use muster_core::hash::{Domain, Hasher};
use muster_core::ids::Row;
use muster_core::manifest::{Data, Model, Tokeniser};
use muster_core::{layout, limits};
use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::TOKENISER;
use muster_store::regular::unmarked;

use self::config::ModelConfig;
use self::file::bounded;
use super::hugging_face::{CONFIG, ROWS, row_folder};
use crate::config::Settings;
use crate::export::words;
use crate::tokenise::LoadedTokeniser;

/// Most bytes of a `config.json`.
const CONFIG_BYTES: u64 = 1 << 20;

/// A checkpoint of which the config was read.
pub struct Given {
    folder: PathBuf,
    known: ModelConfig,
}

impl Given {
    /// Reads a checkpoint's config, for windows of `sequence` tokens; where nobody says how many, of all that the checkpoint
    /// knows, up to 512.
    ///
    /// # Errors
    /// [`Failure`] naming the file that is missing, the entry that is missing or that no model here has, or the windows that
    /// the checkpoint does not know.
    pub fn open(folder: &Path, sequence: Option<u32>) -> Outcome<Self> {
        let path = folder.join(CONFIG);
        if !path.exists() && folder.join(ROWS).exists() {
            let what = "has a checkpoint for each row of experts; name one of them, as in";
            let row = folder.join(row_folder(Row(0)));
            return Err(Failure::usage(format!("{}: {what} --init {}", folder.display(), row.display())));
        }
        if !path.exists() {
            shards::no_adapter(folder)?;
        }
        let known = ModelConfig::read(&path, &unmarked(bounded(&path, CONFIG_BYTES)?), sequence)?;
        Ok(Self { folder: folder.to_owned(), known })
    }

    /// Most tokens of a window that the checkpoint knows, where its config says.
    pub fn context(&self) -> Option<u32> {
        self.known.context()
    }

    /// A commented file of settings for this checkpoint.
    pub fn template(&self) -> String {
        self.known.template()
    }

    /// Fills in what settings leave out of the model; `path` and `text` are what they were read from. Gives the same
    /// text, with what was filled in said in comments at its end.
    ///
    /// # Errors
    /// [`Failure`] naming a setting that the config contradicts.
    pub fn complete(&self, settings: &mut Settings, path: &Path, text: &str) -> Outcome<String> {
        self.known.complete(settings, path, text)
    }

    /// The parameters in the canonical layout of a checked model.
    ///
    /// # Errors
    /// [`Failure`] naming the file, and the tensor that is missing, not the model's, of another shape or type, or not
    /// finite.
    pub fn parameters(&self, model: &Model) -> Outcome<Vec<f32>> {
        weights::parameters(&self.folder, model, &layout::Layout::of(model))
    }

    /// Refuses a text whose tokens are of more kinds than the model knows, or of far fewer.
    ///
    /// # Errors
    /// [`Failure`] naming the config and the way out.
    pub fn check_kinds(&self, data: &Data, model: &Model) -> Outcome<()> {
        let (kinds, known) = (data.kinds(), model.vocabulary);
        if (kinds..=kinds.saturating_add(limits::PADDED_TOKENS)).contains(&known) {
            return Ok(());
        }
        // Where there is a tokeniser, the text was packed with it (`check_tokeniser`).
        let then = if self.folder.join(TOKENISER).exists() {
            format!(
                "though it was packed with the {TOKENISER} beside it: they are of two models, get both again"
            )
        } else {
            format!(
                "pack the text with the model's own tokeniser, whose {TOKENISER} is not in this folder (muster data pack \
                 --tokenizer FILE)"
            )
        };
        let config = self.folder.join(CONFIG);
        let what = format!("knows {known} kinds of tokens, and the text has {kinds}");
        Err(Failure::usage(format!("{}: {what}; {then}", config.display())))
    }

    /// Refuses a checkpoint that brings another tokeniser than the text's in the folder `corpus`: its tokens would mean something
    /// else. What an export leaves out of a tokeniser makes no other one of it.
    ///
    /// # Errors
    /// [`Failure`] naming the file.
    pub fn check_tokeniser(&self, data: &Data, corpus: &Path) -> Outcome<()> {
        let path = self.folder.join(TOKENISER);
        if !path.exists() {
            return Ok(());
        }
        let file = unmarked(bounded(&path, limits::TOKENISER_BYTES.into())?);
        let is_same = match &data.tokeniser {
            Tokeniser::Bytes => words::is_of_bytes(&file),
            Tokeniser::File(named) => {
                Hasher::new(Domain::TOKENISER).part(&file).finish() == named.digest
                    || LoadedTokeniser::open(&corpus.join(TOKENISER))?.as_read()? == file
            }
        };
        if is_same {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "{}: is not the tokeniser of the text; pack the text with it (`muster data pack --tokenizer`), or take it \
             away if it gives the same numbers",
            path.display()
        )))
    }
}

#[cfg(test)]
mod tests;
