//! The rehearsal's text: Rust sources that cargo has unpacked on this machine to build Muster.
//!
//! Crates, versions and order are fixed, so everybody packs the same bytes and gets the same roots. The versions are
//! those of `Cargo.lock`. The sources are looked for where cargo unpacks them, not asked of `cargo metadata`: that
//! command fails offline unless the dependencies of every test and platform were downloaded too, and a machine that
//! has only built the program lacks them.

use std::path::{Path, PathBuf};
use std::{env, fs};

use muster_core::manifest::Data;
use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::{self, RouterSize, SourceText};
use muster_store::error::StoreError;

const LOCK: &str = include_str!("../../../Cargo.lock");

/// Crates to train on: the same on every platform, needed in their newest version by every build of `muster`.
const TRAINING: [&str; 20] = [
    "arrayvec",
    "blake3",
    "borsh",
    "clap_builder",
    "ed25519-dalek",
    "futures-util",
    "log",
    "memchr",
    "once_cell",
    "proc-macro2",
    "redb",
    "regex-syntax",
    "serde",
    "serde_json",
    "smallvec",
    "toml",
    "toml_edit",
    "tracing-core",
    "tracing-subscriber",
    "winnow",
];
/// Crates that no training window comes from.
const HELD_OUT: [&str; 3] = ["bytes", "indexmap", "snow"];

/// Packs the sources into a new directory, with a router for the rows of a mixture if it has several.
///
/// # Errors
/// [`Failure`] naming the crate whose sources are not here.
pub fn pack(out: &Path, router: Option<RouterSize>) -> Outcome<Data> {
    pack_from(&unpacked()?, out, router)
}

/// Packs out of folders of unpacked crates.
fn pack_from(folders: &[PathBuf], out: &Path, router: Option<RouterSize>) -> Outcome<Data> {
    let train = texts(folders, &TRAINING)?;
    let held_out = texts(folders, &HELD_OUT)?;
    Ok(dataset::pack_routed(train, held_out, out, router, &mut |_| ())?)
}

/// Where cargo unpacks sources: one folder for each registry.
fn unpacked() -> Outcome<Vec<PathBuf>> {
    let cargo = env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo = cargo.or_else(|| Some(env::home_dir()?.join(".cargo")));
    let sources = cargo.unwrap_or_default().join("registry").join("src");
    let read = |error| missing(&format!("{}: cannot be read ({error})", sources.display()));
    let entries: Result<Vec<_>, _> = fs::read_dir(&sources).map_err(read)?.collect();
    let mut folders: Vec<PathBuf> = entries.map_err(read)?.iter().map(fs::DirEntry::path).collect();
    folders.sort();
    Ok(folders)
}

fn missing(what: &str) -> Failure {
    Failure::environment(format!(
        "{what}; run `cargo fetch --locked` in Muster's folder, or train on other text with --text PATH"
    ))
}

type Texts = Vec<Result<SourceText, StoreError>>;

/// The sources of crates, in order of (crate, path).
fn texts(folders: &[PathBuf], crates: &[&str]) -> Outcome<Texts> {
    let mut texts = Vec::new();
    for name in crates {
        let version =
            version(name).ok_or_else(|| Failure::environment(format!("Cargo.lock does not name {name}")))?;
        let unpacked = format!("{name}-{version}");
        let folder = folders.iter().map(|folder| folder.join(&unpacked)).find(|folder| folder.is_dir());
        let folder =
            folder.ok_or_else(|| missing(&format!("the sources of {unpacked} are not on this machine")))?;
        let mut paths = Vec::new();
        walk(&folder, &unpacked, &mut paths)
            .map_err(|error| missing(&format!("{}: cannot be read ({error})", folder.display())))?;
        paths.sort();
        texts.extend(paths.into_iter().map(|(name, path)| SourceText::read(&path, name)));
    }
    Ok(texts)
}

/// The version of a crate in `Cargo.lock`, the newest where there are several.
fn version(name: &str) -> Option<String> {
    let lock: toml::Table = LOCK.parse().ok()?;
    let packages = lock.get("package")?.as_array()?;
    let text = |package: &toml::Value, key| Some(package.get(key)?.as_str()?.to_owned());
    let named = packages.iter().filter(|package| text(package, "name").as_deref() == Some(name));
    named.filter_map(|package| text(package, "version")).max_by_key(|version| age(version))
}

/// The numbers of a version, which sort by age.
fn age(version: &str) -> Vec<u64> {
    version.split(['.', '+', '-']).map_while(|number| number.parse().ok()).collect()
}

/// Collects the Rust files of a folder under names with slashes, which sort alike on every system.
fn walk(folder: &Path, name: &str, found: &mut Vec<(String, PathBuf)>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = format!("{name}/{}", entry.file_name().to_string_lossy());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            walk(&entry.path(), &name, found)?;
        } else if kind.is_file() && name.ends_with(".rs") {
            found.push((name, entry.path()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use muster_replica::exit::Exit;

    use muster_core::manifest::DataFile;

    use super::*;

    #[test]
    fn every_crate_has_a_version() {
        for name in TRAINING.iter().chain(&HELD_OUT) {
            assert!(version(name).is_some(), "{name}");
        }
        assert!(version("no-such-crate").is_none());
        assert!(age("0.17.1") > age("0.9.12") && age("1.0.0+spec-1.1.0") > age("0.17.1"));
        assert!(TRAINING.is_sorted() && HELD_OUT.is_sorted());
        assert!(!TRAINING.iter().any(|name| HELD_OUT.contains(name)));
    }

    #[test]
    fn packing_twice_gives_the_same_root() {
        let directory = tempfile::tempdir().unwrap();
        let first = pack(&directory.path().join("first"), None).unwrap();
        let second = pack(&directory.path().join("second"), None).unwrap();
        assert_eq!(first, second);
        assert!(first.bytes > 4 << 20 && first.bytes <= 16 << 20, "{} bytes to train on", first.bytes);
        assert!(first.held_out_bytes > 1 << 18, "{} bytes held out", first.held_out_bytes);
    }

    /// Crates of one file each, the paths chosen so that folders and bytes sort differently.
    fn registry(directory: &Path) -> PathBuf {
        for name in TRAINING.iter().chain(&HELD_OUT) {
            let folder = directory.join(format!("{name}-{}", version(name).unwrap()));
            fs::create_dir_all(folder.join("src")).unwrap();
            fs::write(folder.join("src.rs"), format!("{name} second")).unwrap();
            fs::write(folder.join("src/lib.rs"), format!("{name} third")).unwrap();
            fs::write(folder.join("README.md"), "no Rust").unwrap();
            fs::write(folder.join("build.rs"), "first").unwrap();
        }
        directory.to_owned()
    }

    #[test]
    fn files_are_sorted_by_crate_and_path() {
        let directory = tempfile::tempdir().unwrap();
        let folders = [directory.path().join("empty"), registry(&directory.path().join("registry"))];
        let out = directory.path().join("corpus");
        let data = pack_from(&folders, &out, None).unwrap();
        let corpus = dataset::Dataset::open(&out, &data).unwrap();
        let text = |file| String::from_utf8(corpus.read(file, 0..u64::MAX).unwrap()).unwrap();
        let train = text(DataFile::Training);
        assert!(
            train.starts_with("first\0arrayvec second\0arrayvec third\0first\0blake3 second\0"),
            "{train}"
        );
        assert!(text(DataFile::HeldOut).starts_with("first\0bytes second\0bytes third\0"));
    }

    #[test]
    fn missing_sources_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let registry = registry(&directory.path().join("registry"));
        fs::remove_dir_all(registry.join(format!("redb-{}", version("redb").unwrap()))).unwrap();
        let failure = pack_from(&[registry], &directory.path().join("corpus"), None).unwrap_err();
        assert_eq!(failure.exit, Exit::Environment);
        assert!(failure.message.contains("redb-") && failure.message.contains("--text"), "{failure}");
    }
}
