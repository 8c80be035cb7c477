//! Reads the cases of `spec/vectors`, and writes results in their notation.

use std::path::{Path, PathBuf};

use borsh::{BorshDeserialize, BorshSerialize};
use serde_json::Value;

use muster_core::codec::decode;
use muster_core::ids::{Digest, hex};

pub(super) fn spec() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec")
}

pub(super) fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|found| found == extension));
    files.sort();
    files
}

pub(super) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(super) fn families() -> Vec<(String, Vec<Value>)> {
    let files = files(&spec().join("vectors"), "json");
    assert!(!files.is_empty(), "no vectors");
    let family = |path: &PathBuf| {
        let file = serde_json::from_str(&read(path));
        let file: Value = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let name = text(&file, "family").to_owned();
        assert_eq!(path.file_stem().and_then(|stem| stem.to_str()), Some(name.as_str()));
        (name, list(&file, "cases").clone())
    };
    files.iter().map(family).collect()
}

pub(super) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no text {name:?} in {value}"))
}

pub(super) fn list<'a>(value: &'a Value, name: &str) -> &'a Vec<Value> {
    value[name].as_array().unwrap_or_else(|| panic!("no list {name:?} in {value}"))
}

pub(super) fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no number {name:?} in {value}"))
}

pub(super) fn word(value: &Value, name: &str) -> u64 {
    as_word(&value[name])
}

pub(super) fn as_word(value: &Value) -> u64 {
    let digits = value.as_str().and_then(|text| text.strip_prefix("0x"));
    let word = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    word.unwrap_or_else(|| panic!("no word: {value}"))
}

pub(super) fn as_integer(value: &Value) -> i32 {
    let integer = value.as_i64().and_then(|v| i32::try_from(v).ok());
    integer.unwrap_or_else(|| panic!("no coefficient: {value}"))
}

pub(super) fn unhexed(value: &Value) -> Vec<u8> {
    let digits = value.as_str().unwrap_or_else(|| panic!("no bytes: {value}"));
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    let bytes: Option<Vec<u8>> = pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect();
    bytes.unwrap_or_else(|| panic!("no bytes: {digits:?}"))
}

pub(super) fn bytes(value: &Value, name: &str) -> Vec<u8> {
    unhexed(&value[name])
}

pub(super) fn as_digest(value: &Value) -> Digest {
    Digest(unhexed(value).try_into().unwrap_or_else(|_| panic!("no 32 bytes: {value}")))
}

pub(super) fn digest(value: &Value, name: &str) -> Digest {
    as_digest(&value[name])
}

/// A value that the vector holds as its canonical bytes.
pub(super) fn read_as<T: BorshDeserialize + BorshSerialize>(value: &Value, name: &str) -> T {
    decode(&bytes(value, name)).unwrap_or_else(|reject| panic!("{name}: {reject}"))
}

pub(super) fn full(digest: &Digest) -> String {
    hex(&digest.0)
}

pub(super) fn shown(word: u64) -> String {
    format!("0x{word:016x}")
}

/// As many bytes as the case says, 0 to 250 over and over.
pub(super) fn counted(inputs: &Value) -> Vec<u8> {
    (0..number(inputs, "bytes_mod_251")).map(|i| (i % 251) as u8).collect()
}
