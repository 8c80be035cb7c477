//! Which files hold a checkpoint's tensors: one, or those that an index names.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use muster_replica::exit::{Failure, Outcome};
use serde::Deserialize;

use super::file::bounded;
use crate::hugging_face::WEIGHTS;

/// Most bytes of an index: some hundred for each tensor.
const INDEX_BYTES: u64 = 16 << 20;

/// Where PyTorch alone keeps a model.
const PICKLED: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];

/// A file of tensors.
pub(super) struct Shard {
    pub(super) path: PathBuf,
    /// Tensors that an index places in it; none where there is no index.
    pub(super) named: Vec<String>,
}

/// What `save_pretrained` writes beside several files.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The files of a folder's tensors. As `transformers` does, the one file comes before an index.
///
/// # Errors
/// [`Failure`] naming the index, and what is wrong with it; a file that it names is not looked for.
pub(super) fn shards(folder: &Path) -> Outcome<Vec<Shard>> {
    let (one, path) = (folder.join(WEIGHTS), index(folder));
    if one.exists() || !path.exists() {
        let pickled = PICKLED.iter().map(|name| folder.join(name)).find(|path| path.exists());
        return match pickled.filter(|_| !one.exists()) {
            Some(pickled) => Err(Failure::environment(format!(
                "{}: may run a stranger's program when it is read; save the model as safetensors, as `save_pretrained` of \
                 `transformers` does",
                pickled.display()
            ))),
            None => Ok(vec![Shard { path: one, named: Vec::new() }]),
        };
    }
    let wrong = |what: String| Failure::environment(format!("{}: {what}", path.display()));
    let Index { weight_map } = serde_json::from_slice(&bounded(&path, INDEX_BYTES)?)
        .map_err(|error| wrong(format!("is not an index of tensors ({error})")))?;
    let mut shards = BTreeMap::<String, Vec<String>>::new();
    for (tensor, file) in weight_map {
        // A stranger's index must not have anybody read elsewhere.
        let mut parts = Path::new(&file).components();
        let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
        if !plain || file.contains(['/', '\\']) {
            return Err(wrong(format!("places {tensor} in {file:?}, which is no file of this folder")));
        }
        shards.entry(file).or_default().push(tensor);
    }
    if shards.is_empty() {
        return Err(wrong("names no tensors in its weight_map; get the checkpoint again".into()));
    }
    let shards = shards.into_iter().map(|(file, named)| Shard { path: folder.join(file), named });
    Ok(shards.collect())
}

/// Where an index is, if there is one.
pub(super) fn index(folder: &Path) -> PathBuf {
    folder.join(format!("{WEIGHTS}.index.json"))
}
