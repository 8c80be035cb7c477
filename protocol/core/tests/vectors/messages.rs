//! Canonical bytes of every message: they come back, and what is cut or malformed is refused at its field.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use muster_core::channel::certificate;
use muster_core::codec::{decode, encode};
use muster_core::error::Reject;
use muster_core::messages::{audit, call, enrol, evidence, gossip, offer, record, round, service, wire};
use muster_core::sign::Signed;
use muster_core::{coins, for_each_message, manifest, merkle, sketch, state};

use super::cases::{bytes, families, list, read, text};
use super::schema::schema;

macro_rules! reencoder {
    ($($module:ident::$type:ident),* $(,)?) => {
        const NAMES: &[&str] = &[$(stringify!($type)),*];

        /// Decodes bytes as the type of this name, and encodes the result.
        fn reencode(name: &str, bytes: &[u8]) -> Result<Vec<u8>, Reject> {
            $(if name == stringify!($type) {
                return decode::<$module::$type>(bytes).map(|value| encode(&value));
            })*
            assert_eq!(name, "Signed", "no type of this name");
            decode::<Signed<round::Echo>>(bytes).map(|value| encode(&value))
        }
    };
}

for_each_message!(reencoder);

/// Types and bytes of the vectors of messages that come back as they are.
fn roundtrips() -> Vec<(String, Vec<u8>)> {
    let families = families();
    let codec = &families.iter().find(|(family, _)| family == "codec").expect("a family of messages").1;
    let whole = codec.iter().filter(|case| text(case, "op") == "roundtrip").map(|case| &case["inputs"]);
    whole.map(|inputs| (text(inputs, "type").to_owned(), bytes(inputs, "bytes"))).collect()
}

#[test]
fn every_variant_of_a_message_has_a_vector() {
    let vectors = roundtrips();
    for (name, variants) in schema().enums {
        // CODEC-3: the first byte is the variant.
        let covered: BTreeSet<u8> =
            vectors.iter().filter(|(of, _)| of == name).map(|(_, bytes)| bytes[0]).collect();
        assert_eq!(covered.len(), variants.len(), "{name} has variants without a vector");
    }
}

/// Every type that is written as `wire!` in this crate.
fn wire_types() -> Vec<String> {
    fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                sources(&path, found);
            } else {
                found.push(path);
            }
        }
    }
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    let texts = files.iter().map(|file| read(file));
    let types = texts.flat_map(|text| {
        let written = text.split("\nwire! {").skip(1).map(|written| {
            let line = written.lines().find_map(|line| line.trim().strip_prefix("pub "));
            let mut words = line.expect("a type").split_whitespace();
            words.nth(1).expect("a name").to_owned()
        });
        written.collect::<Vec<_>>()
    });
    types.collect()
}

#[test]
fn every_message_has_a_vector() {
    let (vectors, types) = (roundtrips(), wire_types());
    assert!(types.len() > 80, "{} types", types.len());
    for name in types {
        assert!(vectors.iter().any(|(of, _)| *of == name), "{name} has no vector");
        assert!(NAMES.contains(&name.as_str()), "for_each_message! lacks {name}");
    }
}

/// The bytes come back, and every shorter prefix is refused at the field that the reference names.
pub(super) fn roundtrip(inputs: &Value, expect: &Value) -> Value {
    let (name, bytes) = (text(inputs, "type"), bytes(inputs, "bytes"));
    match reencode(name, &bytes) {
        Ok(again) if again == bytes => {}
        other => return json!({ "decoded": format!("{other:?}") }),
    }
    let mut path = &Value::Null;
    for length in 0..bytes.len() {
        if let Some(next) = list(expect, "cut").iter().find(|cut| cut[0] == json!(length)) {
            path = &next[1];
        }
        if let Err(problem) = refused_at(name, &bytes[..length], path) {
            return json!({ "length": length, "problem": problem });
        }
    }
    expect.clone()
}

pub(super) fn malformed(inputs: &Value, expect: &Value) -> Value {
    match refused_at(text(inputs, "type"), &bytes(inputs, "bytes"), &expect["path"]) {
        Ok(()) => expect.clone(),
        Err(problem) => json!({ "problem": problem }),
    }
}

/// That bytes are malformed, and that the error names each step of the path, in order.
fn refused_at(name: &str, bytes: &[u8], path: &Value) -> Result<(), String> {
    let Err(Reject::Malformed(detail)) = reencode(name, bytes) else {
        return Err("not refused as malformed".into());
    };
    let mut rest = detail.as_str();
    for step in path.as_array().expect("a path") {
        let step = step.as_str().expect("a step of a path");
        let place = rest.find(step).ok_or_else(|| format!("{detail:?} lacks {step:?} of {path}"))?;
        rest = &rest[place + step.len()..];
    }
    Ok(())
}
