//! Checkpoints of several files, and files that are not there.

use serde_json::json;

use super::*;

const INDEX: &str = "model.safetensors.index.json";

/// A checkpoint in two files, and what its one file held.
struct Sharded {
    folder: PathBuf,
    manifest: Manifest,
    parameters: Vec<f32>,
    tensors: Tensors,
    _directory: tempfile::TempDir,
}

/// Names of the files.
const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

impl Sharded {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("model");
        let manifest = manifest(TIED);
        let parameters = values(manifest.model.parameters());
        exported(&manifest, &parameters, &folder);
        let tensors = read(&folder);
        fs::remove_file(folder.join(WEIGHTS)).unwrap();
        let sharded = Self { folder, manifest, parameters, tensors, _directory: directory };
        sharded.write_shards(|_| true);
        sharded.write_index(|_| ());
        sharded
    }

    /// The second layer and the last norm are in the second file.
    fn shard(name: &str) -> usize {
        usize::from(name.contains(".1.") || name == "model.norm.weight")
    }

    fn write_shards(&self, kept: impl Fn(&str) -> bool) {
        for (number, file) in SHARDS.iter().enumerate() {
            let of = |name: &str| Self::shard(name) == number && kept(name);
            let tensors = self.tensors.iter().filter(|(name, _)| of(name));
            write_file(
                &self.folder.join(file),
                &tensors.map(|(name, tensor)| (name.clone(), tensor.clone())).collect(),
            );
        }
    }

    fn write_index(&self, change: impl Fn(&mut serde_json::Map<String, serde_json::Value>)) {
        let place = |name: &String| (name.clone(), json!(SHARDS[Self::shard(name)]));
        let mut map = self.tensors.keys().map(place).collect();
        change(&mut map);
        let text = json!({"metadata": {"total_size": 1}, "weight_map": map}).to_string();
        fs::write(self.folder.join(INDEX), text).unwrap();
    }

    fn taken(&self) -> Outcome<Vec<f32>> {
        Given::open(&self.folder, None)?.parameters(&self.manifest.model)
    }

    fn refused(&self, words: &[&str]) {
        let failure = self.taken().unwrap_err();
        assert!(words.iter().all(|word| failure.message.contains(word)), "{words:?}: {failure}");
    }
}

#[test]
fn a_checkpoint_of_several_files_is_taken() {
    let sharded = Sharded::new();
    assert_eq!(bits(&sharded.taken().unwrap()), bits(&sharded.parameters));
    // The head may be saved beside the embedding that it shares, in another file.
    let mut tensors: Tensors = BTreeMap::new();
    tensors.insert("lm_head.weight".into(), sharded.tensors["model.embed_tokens.weight"].clone());
    write_file(&sharded.folder.join("head.safetensors"), &tensors);
    let with_head = |map: &mut serde_json::Map<_, _>| {
        drop(map.insert("lm_head.weight".into(), json!("head.safetensors")))
    };
    sharded.write_index(with_head);
    assert_eq!(bits(&sharded.taken().unwrap()), bits(&sharded.parameters));
    tensors.get_mut("lm_head.weight").unwrap().2[3] ^= 0x80;
    write_file(&sharded.folder.join("head.safetensors"), &tensors);
    sharded.refused(&["lm_head.weight differs from model.embed_tokens.weight"]);
    // As for `transformers`, one file comes before an index.
    write(&sharded.folder, &sharded.tensors);
    assert_eq!(bits(&sharded.taken().unwrap()), bits(&sharded.parameters));
}

#[test]
fn an_index_that_is_wrong_is_refused() {
    let sharded = Sharded::new();
    let norm = "model.norm.weight";
    for elsewhere in
        ["../x.safetensors", "/x.safetensors", "a/b.safetensors", "a\\b.safetensors", "..", ".", ""]
    {
        sharded.write_index(|map| drop(map.insert(norm.into(), json!(elsewhere))));
        sharded.refused(&[INDEX, "places model.norm.weight in", "no file of this folder"]);
    }
    // The file is there, but the tensor is in another one.
    sharded.write_index(|map| drop(map.insert(norm.into(), json!(SHARDS[0]))));
    sharded.refused(&[SHARDS[0], "lacks model.norm.weight, which the index places in it"]);
    sharded.write_index(|map| map.clear());
    sharded.refused(&[INDEX, "names no tensors"]);
    sharded.write_index(|map| drop(map.insert(norm.into(), json!(3))));
    sharded.refused(&[INDEX, "is not an index of tensors"]);
    for text in ["{}", "[", ""] {
        fs::write(sharded.folder.join(INDEX), text).unwrap();
        sharded.refused(&[INDEX, "is not an index of tensors"]);
    }
}

#[test]
fn files_that_do_not_fit_their_index_are_refused() {
    let sharded = Sharded::new();
    // A tensor in two files.
    let second = sharded.folder.join(SHARDS[1]);
    let mut tensors: Tensors = sharded.tensors.clone();
    tensors.retain(|name, _| Sharded::shard(name) == 1 || name == "model.embed_tokens.weight");
    write_file(&second, &tensors);
    sharded.refused(&[SHARDS[1], "holds model.embed_tokens.weight, and so does another file"]);
    // One that no file has, and that the index does not name.
    sharded.write_shards(|name| name != "model.norm.weight");
    sharded.write_index(|map| drop(map.remove("model.norm.weight")));
    sharded.refused(&[INDEX, "lacks model.norm.weight"]);
    sharded.write_index(|_| ());
    fs::remove_file(second).unwrap();
    sharded.refused(&[SHARDS[1], "does not exist", INDEX, "get all files"]);
}

#[test]
fn a_checkpoint_that_is_pickled_is_named() {
    let sharded = Sharded::new();
    for name in [INDEX, SHARDS[0], SHARDS[1]] {
        fs::remove_file(sharded.folder.join(name)).unwrap();
    }
    sharded.refused(&[WEIGHTS, "cannot be read"]);
    fs::write(sharded.folder.join("pytorch_model.bin"), "").unwrap();
    sharded.refused(&["pytorch_model.bin: may run a stranger's program", "as safetensors"]);
    write(&sharded.folder, &sharded.tensors);
    sharded.taken().unwrap();
}

#[test]
fn pointers_of_git_lfs_are_named() {
    let sharded = Sharded::new();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n";
    let folder = sharded.folder.display().to_string();
    let mut data = sharded.manifest.data.clone();
    data.tokeniser = Tokeniser::Bytes;
    for file in [SHARDS[1], INDEX, CONFIG, TOKENISER, WEIGHTS] {
        let path = sharded.folder.join(file);
        let before = fs::read(&path).ok();
        fs::write(&path, pointer).unwrap();
        let given = Given::open(&sharded.folder, None);
        let checked = given.and_then(|given| {
            given.check_tokeniser(&data, &sharded.folder)?;
            given.parameters(&sharded.manifest.model)
        });
        let failure = checked.unwrap_err();
        for words in [file, "is a pointer of Git LFS", &format!("`git lfs pull` in {folder}")] {
            assert!(failure.message.contains(words), "{failure}");
        }
        match before {
            Some(bytes) => fs::write(path, bytes).unwrap(),
            None => fs::remove_file(path).unwrap(),
        }
    }
    fs::write(sharded.folder.join(TOKENISER), pointer).unwrap();
    let failure = crate::tokenise::LoadedTokeniser::open(&sharded.folder.join(TOKENISER)).err().unwrap();
    assert!(failure.message.contains("`git lfs pull`"), "{failure}");
}

#[test]
fn what_a_folder_has_instead_of_a_model_is_named() {
    let sharded = Sharded::new();
    fs::remove_file(sharded.folder.join(INDEX)).unwrap();
    let refused = sharded.taken().unwrap_err().message;
    assert!(refused.contains("model.safetensors.index.json: does not exist, but "), "{refused}");
    assert!(refused.contains(&format!("{} is there; get all files", SHARDS[0])), "{refused}");
    fs::remove_file(sharded.folder.join("config.json")).unwrap();
    fs::write(sharded.folder.join("adapter_config.json"), "{}").unwrap();
    let refused = Given::open(&sharded.folder, None).err().unwrap().message;
    assert!(
        refused.contains("adapter_config.json: is of an adapter, which is no model; merge it"),
        "{refused}"
    );
}

#[test]
fn json_that_an_editor_of_windows_saved_is_read_all_the_same() {
    let sharded = Sharded::new();
    let mark = |text: &str| -> Vec<u8> {
        format!("\u{feff}{text}").encode_utf16().flat_map(u16::to_le_bytes).collect()
    };
    for name in ["config.json", INDEX] {
        let path = sharded.folder.join(name);
        let text = fs::read_to_string(&path).unwrap();
        for bytes in
            [format!("\u{feff}{text}").into_bytes(), mark(&text), text.replace('\n', "\r\n").into_bytes()]
        {
            fs::write(&path, bytes).unwrap();
            assert_eq!(bits(&sharded.taken().unwrap()), bits(&sharded.parameters), "{name}");
        }
    }
}
