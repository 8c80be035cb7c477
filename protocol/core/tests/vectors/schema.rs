//! `spec/schema.json`: the bytes of all types, as the types say them. Programs that share no code with this crate compare their
//! own tables with it; `spec/reference.py` does.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::PathBuf;

use serde_json::{Value, json};

use muster_core::channel::certificate;
use muster_core::codec::schema::{Described, Schema, Shape};
use muster_core::messages::{audit, call, enrol, evidence, gossip, offer, record, round, service, wire};
use muster_core::sign::Message;
use muster_core::{coins, for_each_message, manifest, merkle, sketch, state};

use super::cases::{read, spec};

/// A type, to be asked whether it is signed.
struct Asked<T>(PhantomData<T>);

trait Unsigned {
    const TAG: Option<&str> = None;
}

impl<T> Unsigned for Asked<T> {}

impl<T: Message> Asked<T> {
    // A constant of the type itself goes before one of a trait: what is signed has this one.
    const TAG: Option<&str> = Some(T::TAG);
}

macro_rules! described {
    ($($module:ident::$type:ident),* $(,)?) => {
        /// All types.
        pub(super) fn schema() -> Schema {
            let mut schema = Schema::default();
            $(<$module::$type>::shape(&mut schema);)*
            schema
        }

        /// The tags of all types that are signed.
        fn tags() -> BTreeMap<&'static str, &'static str> {
            let all = [$((stringify!($type), Asked::<$module::$type>::TAG)),*];
            all.into_iter().filter_map(|(name, tag)| Some((name, tag?))).collect()
        }
    };
}

for_each_message!(described);

fn shape(of: &Shape) -> Value {
    match of {
        Shape::Integer(size) => json!(["int", size]),
        Shape::Signed(size) => json!(["signed", size]),
        Shape::Raw(size) => json!(["raw", size]),
        Shape::Row(parts) => tuple("pair", parts.iter().map(shape)),
        Shape::Bytes(most) => json!(["bytes", most]),
        Shape::Text(most) => json!(["text", most]),
        Shape::Real => json!(["real"]),
        Shape::Bool => json!(["bool"]),
        Shape::Option(value) => json!(["option", shape(value)]),
        Shape::List(item, most) => json!(["list", shape(item), most]),
        Shape::Choice(names) => tuple("choice", names.iter().map(|name| json!(name))),
        Shape::Tagged(variants) => tuple("tagged", variants.iter().map(payload)),
        Shape::Named(name) => json!(name),
    }
}

fn tuple(form: &str, rest: impl Iterator<Item = Value>) -> Value {
    std::iter::once(json!(form)).chain(rest).collect()
}

fn payload((name, payload): &(&'static str, Option<Shape>)) -> Value {
    json!([name, payload.as_ref().map(shape)])
}

fn fields(of: &[(&str, Shape)]) -> Value {
    of.iter().map(|(name, field)| json!([name, shape(field)])).collect()
}

/// One type a line, in order of the names.
fn table(entries: impl Iterator<Item = (&'static str, Value)>) -> String {
    let lines: Vec<String> = entries.map(|(name, value)| format!("    {}: {value}", json!(name))).collect();
    format!("{{\n{}\n  }}", lines.join(",\n"))
}

fn written() -> String {
    let (schema, tags) = (schema(), tags());
    let structs = table(schema.structs.iter().map(|(name, of)| (*name, fields(of))));
    let enums = table(schema.enums.iter().map(|(name, of)| (*name, of.iter().map(payload).collect())));
    let tags = table(tags.into_iter().map(|(name, tag)| (name, json!(tag))));
    format!("{{\n  \"structs\": {structs},\n  \"enums\": {enums},\n  \"tags\": {tags}\n}}\n")
}

fn file() -> PathBuf {
    spec().join("schema.json")
}

#[test]
fn the_schema_is_current() {
    assert!(
        read(&file()) == written(),
        "spec/schema.json is old: write it with `--test vectors -- --ignored write_the_schema`"
    );
}

#[test]
#[ignore = "writes spec/schema.json"]
fn write_the_schema() {
    std::fs::write(file(), written()).expect("spec/schema.json");
}
