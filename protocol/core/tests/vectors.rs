//! The vectors of `spec/vectors`, whose expectations `spec/reference.py` computed independently of this crate.
//!
//! An operation takes a case's inputs and answers in the shape of its expectation. An unknown family, operation or
//! type, a family without cases, a rule that no chapter defines, or a hash domain without a vector fails.

#[path = "vectors/aggregation.rs"]
mod aggregation;
#[path = "vectors/assignment.rs"]
mod assignment;
#[path = "vectors/audits.rs"]
mod audits;
#[path = "vectors/calls.rs"]
mod calls;
#[path = "vectors/cases.rs"]
mod cases;
#[path = "vectors/channels.rs"]
mod channels;
#[path = "vectors/commitments.rs"]
mod commitments;
#[path = "vectors/hashes.rs"]
mod hashes;
#[path = "vectors/messages.rs"]
mod messages;
#[path = "vectors/schema.rs"]
mod schema;
#[path = "vectors/signatures.rs"]
mod signatures;
#[path = "vectors/standing.rs"]
mod standing;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use muster_core::codec::encode;
use muster_core::hash::{Domain, Hasher, below};
use muster_core::ids::{MemberId, Row, RowSet, Slot, hex};
use muster_core::manifest::Manifest;
use muster_core::messages::round::Bitmap;
use muster_core::messages::{audit, evidence, record};
use muster_core::packing::{pack, unpack};
use muster_core::sign::verifying_key;

use aggregation::aggregation;
use assignment::{assignment, experts, on_grid};
use audits::{coin, fingerprint, tolerance};
use calls::call;
use cases::{
    as_integer, bytes, counted, digest, families, files, full, list, number, read, read_as, shown, spec,
    text, word,
};
use channels::{channel, ticket};
use commitments::{
    block_places, branched, contribution, contribution_layout, dataset, layout, proof, router, rows_after,
    shards_state, state, tree,
};
use hashes::{domain, hash, stream};
use messages::{malformed, roundtrip};
use signatures::{sign, verify};
use standing::standing;

#[test]
fn every_vector_holds() {
    let mut wrong = Vec::new();
    // Those of arithmetic are for the crate that computes.
    for (family, cases) in families().into_iter().filter(|(family, _)| !family.starts_with("arithmetic")) {
        assert!(!cases.is_empty(), "{family} is empty");
        for case in cases {
            let (name, op) = (text(&case, "name"), text(&case, "op"));
            let answer = answer(&family, op, &case["inputs"], &case["expect"]);
            if answer != case["expect"] {
                wrong.push(format!("{family}, {name} ({op}):\n  spec {}\n  here {answer}", case["expect"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_rule_of_a_vector_is_defined() {
    let chapters: String = files(&spec(), "md").iter().map(|path| read(path)).collect();
    for (family, cases) in families() {
        for rule in cases.iter().map(|case| text(case, "rule")) {
            assert!(
                chapters.contains(&format!("**{rule}**")),
                "{family} names {rule}, which no chapter defines"
            );
        }
    }
}

#[test]
fn every_rule_is_defined_once() {
    let chapters: String = files(&spec(), "md").iter().map(|path| read(path)).collect();
    let mut ids: Vec<&str> = chapters.split("**").filter(|text| is_rule(text)).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
    let reference: String = files(&spec(), "py").iter().map(|path| read(path)).collect();
    for docstring in reference.split("\"\"\"") {
        for word in docstring.split([' ', ',', ':', '\n']).take_while(|word| word.is_empty() || is_rule(word))
        {
            assert!(word.is_empty() || ids.binary_search(&word).is_ok(), "the reference names {word}");
        }
    }
}

fn is_rule(text: &str) -> bool {
    text.split_once('-').is_some_and(|(chapter, number)| {
        chapter.len() > 1
            && chapter.bytes().all(|c| c.is_ascii_uppercase())
            && !number.is_empty()
            && number.bytes().all(|c| c.is_ascii_digit())
    })
}

#[test]
fn every_limit_has_a_row() {
    let rows = read(&spec().join("limits.md"));
    let constants =
        include_str!("../src/limits.rs").lines().filter_map(|line| line.strip_prefix("pub const "));
    for constant in constants {
        let (name, value) = constant.trim_end_matches(';').split_once(" = ").expect("a constant on one line");
        let name = name.split(':').next().unwrap_or_default();
        let row = format!("| `{name}` | {} |", value.replace('_', ",").replace("<<", "≪"));
        assert!(rows.contains(&row), "limits.md lacks {row}");
    }
}

#[test]
fn every_domain_has_a_vector() {
    let families = families();
    let hashes = &families.iter().find(|(family, _)| family == "hash").expect("a family of hashes").1;
    let names = hashes.iter().filter_map(|case| case["inputs"]["domain"].as_str());
    let covered: BTreeSet<String> = names.map(|name| format!("muster 1 {name}")).collect();
    let ours: BTreeSet<String> = Domain::ALL.iter().map(|domain| domain.context().to_owned()).collect();
    assert_eq!(ours, covered);
}

fn members(inputs: &Value) -> impl Iterator<Item = u16> {
    list(inputs, "members").iter().map(|number| as_integer(number) as u16)
}

fn codec(op: &str, inputs: &Value, expect: &Value) -> Value {
    match op {
        "roundtrip" => roundtrip(inputs, expect),
        "malformed" => malformed(inputs, expect),
        "slots" => {
            let mut bitmap = Bitmap::default();
            members(inputs).for_each(|slot| bitmap.insert(Slot(slot)));
            json!({ "bytes": hex(&encode(&bitmap)) })
        }
        "rows_of_set" => {
            json!({ "bytes": hex(&encode(&members(inputs).map(Row).collect::<RowSet>())) })
        }
        _ => panic!("no operation {op:?} in a family \"codec\""),
    }
}

fn sealed(op: &str, inputs: &Value) -> Value {
    let salt = digest(inputs, "salt").0;
    let seal = match op {
        "table" => audit::table_seal(&salt, &read_as(inputs, "rows")),
        "results" => audit::results_seal(&salt, &read_as(inputs, "results")),
        _ => panic!("no operation {op:?} in a family \"audit\""),
    };
    json!({ "seal": full(&seal) })
}

fn answer(family: &str, op: &str, inputs: &Value, expect: &Value) -> Value {
    match (family, op) {
        ("codec", op) => codec(op, inputs, expect),
        ("hash", "hash") => hash(inputs),
        ("hash", "hash_bulk") => {
            json!({ "digest": full(&Hasher::new(domain(inputs)).bulk(&counted(inputs)).finish()) })
        }
        ("hash", "below") => json!({ "value": shown(below(word(inputs, "uniform"), word(inputs, "n"))) }),
        ("hash", "stream") => stream(inputs),
        ("sign", "sign") => sign(inputs),
        ("sign", "verify") => verify(inputs),
        ("sign", "key") => {
            json!({ "strong": verifying_key(MemberId(digest(inputs, "public").0)).is_ok() })
        }
        ("merkle", "tree") => tree(inputs),
        ("merkle", "proof") => proof(inputs),
        ("dataset", "dataset") => dataset(inputs),
        ("dataset", "router") => router(inputs),
        ("manifest", "manifest") => json!({ "run": full(&read_as::<Manifest>(inputs, "bytes").run().0) }),
        ("manifest", "permitted") => {
            let refusal = read_as::<Manifest>(inputs, "bytes").check().err();
            json!({ "refused": refusal.and_then(|misuse| Some(misuse.0.split_once(' ')?.0.to_owned())) })
        }
        ("ledger", "record") => json!({ "head": full(&read_as::<record::Record>(inputs, "bytes").head()) }),
        ("ledger", "evidence") => {
            json!({ "name": full(&read_as::<evidence::Evidence>(inputs, "bytes").digest()) })
        }
        ("layout", "layout") => layout(inputs),
        ("layout", "block_places") => block_places(inputs),
        ("layout", "contribution_layout") => contribution_layout(inputs),
        ("state", "state") => state(inputs),
        ("state", "shards_state") => shards_state(inputs),
        ("state", "branched") => branched(inputs),
        ("state", "rows_after") => rows_after(inputs),
        ("experts", op) => experts(op, inputs),
        ("contribution", "contribution") => contribution(inputs),
        ("contribution", "chunk") => {
            let (data, mut values) = (bytes(inputs, "bytes"), Vec::new());
            let read = unpack(&data, number(inputs, "count") as usize, &mut values);
            assert!(read.is_err() || pack(&values) == data);
            json!({ "values": read.is_ok().then_some(values) })
        }
        ("assignment", op) => assignment(op, inputs),
        ("grid", op) => on_grid(op, inputs),
        ("fingerprint", op) => fingerprint(op, inputs),
        ("tolerance", op) => tolerance(op, inputs),
        ("coins", op) => coin(op, inputs),
        ("audit", op) => sealed(op, inputs),
        ("calls", op) => call(op, inputs),
        ("channel", op) => channel(op, inputs),
        ("ticket", op) => ticket(op, inputs),
        ("standing", op) => standing(op, inputs),
        ("aggregation", op) => aggregation(op, inputs),
        _ => panic!("no operation {op:?} in a family {family:?}"),
    }
}
