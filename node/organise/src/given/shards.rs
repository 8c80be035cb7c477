//! Which files hold a checkpoint's tensors: one, or those that an index names.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use muster_replica::exit::{Failure, Outcome};
use muster_store::regular::unmarked;
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

/// Where others keep what is trained beside a model.
const ADAPTER: &str = "adapter_config.json";

/// The files of a folder's tensors. As `transformers` does, the one file comes before an index.
///
/// # Errors
/// [`Failure`] naming the index, and what is wrong with it; a file that it names is not looked for.
pub(super) fn shards(folder: &Path) -> Outcome<Vec<Shard>> {
    let (one, path) = (folder.join(WEIGHTS), index(folder));
    if !one.exists()
        && !path.exists()
        && let Some(first) = first_of_several(folder)
    {
        return Err(Failure::environment(format!(
            "{}: does not exist, but {} is there; get all files of the checkpoint",
            path.display(),
            first.display()
        )));
    }
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
    let Index { weight_map } = serde_json::from_slice(&unmarked(bounded(&path, INDEX_BYTES)?))
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

/// The first of several files of tensors, as they are usually called, if it is there.
fn first_of_several(folder: &Path) -> Option<PathBuf> {
    // Of more, nobody has lost the index alone.
    let names = (2..1000).map(|count| format!("model-00001-of-{count:05}.safetensors"));
    names.map(|name| folder.join(name)).find(|path| path.exists())
}

/// Refuses a folder that has no model, only what was trained beside one.
///
/// # Errors
/// [`Failure`] naming the file that shows it.
pub(super) fn no_adapter(folder: &Path) -> Outcome<()> {
    let path = folder.join(ADAPTER);
    if !path.exists() {
        return Ok(());
    }
    let what = "is of an adapter, which is no model; merge it into its model (`merge_and_unload` of `peft`), and save that";
    Err(Failure::environment(format!("{}: {what}", path.display())))
}

/// Where an index is, if there is one.
pub(super) fn index(folder: &Path) -> PathBuf {
    folder.join(format!("{WEIGHTS}.index.json"))
}
