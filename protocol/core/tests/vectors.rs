//! The vectors of `spec/vectors`, whose expectations `spec/reference.py` computed independently of this crate.
//!
//! An operation takes a case's inputs and answers in the shape of its expectation. An unknown family, operation or
//! type, a family without cases, a rule that no chapter defines, or a hash domain without a vector fails.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use borsh::{BorshDeserialize, BorshSerialize};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};

use muster_core::aggregate::{self, Input};
use muster_core::channel::certificate::Certificate;
use muster_core::codec::{List, Real, decode, encode};
use muster_core::coins::{self, Coin, CoinKind, CoinOpening, CoinTerms, CoinTree};
use muster_core::contribution::{Commitment, PartDigest, chunk_bytes, chunk_values};
use muster_core::error::Reject;
use muster_core::grid::{self, Dither};
use muster_core::hash::{Domain, Hasher, below};
use muster_core::ids::{Block, Digest, Leaf, MemberId, Part, Round, RunId, Slot, hex};
use muster_core::layout::Layout;
use muster_core::manifest::{self, Admission, Family, Manifest, Model};
use muster_core::merkle::{self, Proof, Tree};
use muster_core::messages::{audit, enrol, evidence, gossip, record, round, wire};
use muster_core::sign::{Identity, Message, Signed, verifying_key};
use muster_core::sketch::probe::projected;
use muster_core::sketch::projection::projections;
use muster_core::standing::{audit_ppm, vouched, weight};
use muster_core::state::{StateRoots, exponents_hash, vector_root};
use muster_core::{assign, limits, reduction, sketch};

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

fn answer(family: &str, op: &str, inputs: &Value, expect: &Value) -> Value {
    match (family, op) {
        ("codec", "roundtrip") => roundtrip(inputs, expect),
        ("codec", "malformed") => malformed(inputs, expect),
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
        ("state", "state") => state(inputs),
        ("contribution", "contribution") => contribution(inputs),
        ("contribution", "chunk") => {
            let (data, mut values) = (bytes(inputs, "bytes"), Vec::new());
            let read = chunk_values(&data, number(inputs, "count") as usize, &mut values);
            assert!(read.is_err() || chunk_bytes(&values) == data);
            json!({ "values": read.is_ok().then_some(values) })
        }
        ("assignment", op) => assignment(op, inputs),
        ("grid", op) => on_grid(op, inputs),
        ("fingerprint", op) => fingerprint(op, inputs),
        ("tolerance", op) => tolerance(op, inputs),
        ("coins", op) => coin(op, inputs),
        ("audit", "table") => {
            json!({ "seal": full(&audit::table_seal(&digest(inputs, "salt").0, &read_as(inputs, "rows"))) })
        }
        ("audit", "results") => {
            let seal = audit::results_seal(&digest(inputs, "salt").0, &read_as(inputs, "results"));
            json!({ "seal": full(&seal) })
        }
        ("standing", op) => standing(op, inputs),
        ("aggregation", op) => aggregation(op, inputs),
        _ => panic!("no operation {op:?} in a family {family:?}"),
    }
}

// ------------------------------------------------------------------------------------------------ bytes

macro_rules! reencoder {
    ($($type:ty),* $(,)?) => {
        /// Decodes bytes as the type of this name, and encodes what came of it.
        fn reencode(name: &str, bytes: &[u8]) -> Result<Vec<u8>, Reject> {
            $(if stringify!($type).rsplit("::").next() == Some(name) {
                return decode::<$type>(bytes).map(|value| encode(&value));
            })*
            match name {
                "Signed" => decode::<Signed<round::Echo>>(bytes).map(|value| encode(&value)),
                _ => panic!("no type {name:?}"),
            }
        }
    };
}

reencoder!(
    Manifest,
    Model,
    manifest::Family,
    manifest::Decoder,
    manifest::Albert,
    manifest::Tolerance,
    manifest::Data,
    manifest::Tokeniser,
    manifest::TokeniserFile,
    manifest::Start,
    manifest::CommittedFile,
    manifest::Training,
    manifest::Optimiser,
    manifest::Aggregation,
    manifest::Audit,
    Admission,
    manifest::Mode,
    manifest::Listed,
    manifest::Timers,
    manifest::Retention,
    manifest::Rollback,
    Proof,
    CoinTerms,
    CoinOpening,
    Certificate,
    enrol::Invitation,
    enrol::Possession,
    enrol::Presented,
    enrol::Enrol,
    enrol::Return,
    enrol::Leave,
    enrol::CloseTree,
    enrol::Pass,
    enrol::Ticket,
    round::Commit,
    round::CommitReceipt,
    round::Echo,
    round::Receipt,
    round::Delivered,
    round::DeliveryReceipt,
    round::PartResult,
    round::Checked,
    record::Record,
    record::Body,
    record::Seat,
    record::Freeze,
    record::Inputs,
    record::Reassign,
    record::Reassigned,
    record::Outcome,
    record::Credit,
    record::Ban,
    record::Rewind,
    record::Idle,
    audit::AuditRequest,
    audit::Duty,
    audit::Recheck,
    audit::Recomputation,
    audit::Opinion,
    audit::Withheld,
    audit::Sketch,
    audit::TableSeal,
    audit::ResultsSeal,
    audit::Row,
    audit::TableOpening,
    audit::LeafResult,
    audit::Verdict,
    evidence::Transcript,
    evidence::Equivocation,
    evidence::Total,
    evidence::OmittedCommit,
    evidence::OmittedDelivery,
    evidence::Seal,
    evidence::TwoSeals,
    evidence::WrongRoot,
    evidence::Misconduct,
    evidence::FalseVerdict,
    evidence::FalseRecomputation,
    evidence::Reduction,
    evidence::TwoResults,
    evidence::Evidence,
    gossip::Head,
    gossip::Whereabouts,
    gossip::Gossiped,
    wire::Notice,
    wire::Request,
    wire::Response,
    wire::Follow,
    wire::News,
    wire::BlockData,
    wire::PutBlocks,
    wire::BlockQuery,
    wire::InputQuery,
    wire::StateOffer,
    wire::StateQuery,
    wire::DataQuery,
);

/// What messages may be is written down variant by variant: one that is new does not compile before it is listed here, and
/// fails before it has a vector.
macro_rules! variants {
    ($($module:ident::$type:ident { $($variant:ident),* $(,)? })*) => {
        const VARIANTS: &[(&str, &[&str])] = &[$((stringify!($type), &[$(stringify!($variant)),*])),*];

        /// Which variant of the type of this name bytes are.
        fn variant(name: &str, bytes: &[u8]) -> Option<&'static str> {
            $(if name == stringify!($type) {
                return decode::<$module::$type>(bytes).ok().map(|value| match value {
                    $($module::$type::$variant { .. } => stringify!($variant)),*
                });
            })*
            None
        }
    };
}

variants! {
    manifest::Family { Decoder, Albert }
    manifest::Tokeniser { Bytes, File }
    manifest::Start { Drawn, Given }
    manifest::Mode { Invited, Listed, Open }
    record::Body {
        Open, Admit, Begin, Freeze, Inputs, Reassign, Outcome, Silence, Answered, Ban, Return, Leave, Rewind, Close,
        Idle, CloseTree,
    }
    audit::Sketch { Fingerprint, Projections }
    evidence::Seal { Record, Head }
    evidence::Misconduct { Commit, Delivery, Split, Record, Root }
    evidence::Evidence {
        Equivocation, Audit, Total, Misconduct, Verdict, Aggregation, Results, Recomputation,
    }
    gossip::Gossiped { Record, Head, Commit }
    wire::Notice {
        Echo, Result, Request, Table, Results, Opening, Verdict, Return, Leave, Duty, Recheck, Charge, Opinion,
        Withheld, Obtained, Recomputation,
    }
    wire::Request {
        Manifest, Follow, Enrol, Commit, Delivered, Notice, Accuse, PutBlocks, ResultBlocks, InputBlocks, StateOffer,
        State, Data, Checked, CloseTree, Evidence,
    }
    wire::Response {
        Done, Refused, Manifest, News, Committed, Receipt, Bytes, Blocks, State, Delivered, Evidence,
    }
}

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
    for (name, variants) in VARIANTS {
        let of_it = vectors.iter().filter(|(of, _)| of == name);
        let covered: BTreeSet<&str> = of_it.filter_map(|(name, bytes)| variant(name, bytes)).collect();
        assert_eq!(covered, variants.iter().copied().collect(), "{name}");
    }
}

/// Every type that is written as `wire!` in this crate, and whether it is an enumeration.
fn wire_types() -> Vec<(String, bool)> {
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
            let kind = words.next().expect("struct or enum");
            (words.next().expect("a name").to_owned(), kind == "enum")
        });
        written.collect::<Vec<_>>()
    });
    types.collect()
}

#[test]
fn every_message_has_a_vector() {
    let (vectors, types) = (roundtrips(), wire_types());
    assert!(types.len() > 80, "{} types", types.len());
    for (name, is_enum) in types {
        assert!(vectors.iter().any(|(of, _)| *of == name), "{name} has no vector");
        let listed = VARIANTS.iter().any(|(of, _)| *of == name);
        assert!(!is_enum || listed, "the variants of {name} are listed nowhere");
    }
}

/// The bytes come back, and every shorter prefix is refused at the field that the reference names.
fn roundtrip(inputs: &Value, expect: &Value) -> Value {
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

fn malformed(inputs: &Value, expect: &Value) -> Value {
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

fn domain(inputs: &Value) -> Domain {
    let context = format!("muster 1 {}", text(inputs, "domain"));
    let found = Domain::ALL.iter().find(|domain| domain.context() == context);
    *found.unwrap_or_else(|| panic!("no domain {context:?}"))
}

fn hash(inputs: &Value) -> Value {
    let parts = list(inputs, "parts").iter().map(unhexed);
    let hasher = parts.fold(Hasher::new(domain(inputs)), |hasher, part| hasher.part(&part));
    json!({ "digest": full(&hasher.finish()), "number": shown(hasher.number()) })
}

fn counted(inputs: &Value) -> Vec<u8> {
    (0..number(inputs, "bytes_mod_251")).map(|i| (i % 251) as u8).collect()
}

fn stream(inputs: &Value) -> Value {
    let mut words = ChaCha8Rng::from_seed(digest(inputs, "key").0);
    let mut wide = words.clone();
    words.set_word_pos(u128::from(number(inputs, "first")));
    let words: Vec<u32> = (0..number(inputs, "count")).map(|_| words.next_u32()).collect();
    json!({ "words": words, "u64": (0..3).map(|_| shown(wide.next_u64())).collect::<Vec<_>>() })
}

// ------------------------------------------------------------------------------------------------ signatures

fn sign(inputs: &Value) -> Value {
    match text(inputs, "type") {
        "Echo" => sign_as::<round::Echo>(inputs),
        "Commit" => sign_as::<round::Commit>(inputs),
        "Leave" => sign_as::<enrol::Leave>(inputs),
        name => panic!("no message {name:?}"),
    }
}

fn sign_as<M: Message>(inputs: &Value) -> Value {
    let identity = Identity::from_secret(&digest(inputs, "secret").0);
    let run = RunId(digest(inputs, "run"));
    let signed = identity.sign(run, &read_as::<M>(inputs, "body"));
    assert!(signed.verify(run).is_ok());
    let covered = Hasher::new(Domain::SIGN).part(M::TAG.as_bytes()).part(&run.0.0);
    json!({
        "tag": M::TAG,
        "signer": hex(&identity.id().0),
        "signed_digest": full(&covered.part(&bytes(inputs, "body")).finish()),
        "envelope": hex(&encode(&signed)),
        "envelope_digest": full(&signed.digest()),
    })
}

fn verify(inputs: &Value) -> Value {
    let outcome = match text(inputs, "type") {
        "Echo" => verify_as::<round::Echo>(inputs),
        "Leave" => verify_as::<enrol::Leave>(inputs),
        "CommitReceipt" => verify_as::<round::CommitReceipt>(inputs),
        name => panic!("no message {name:?}"),
    };
    match outcome {
        Ok(author) => json!({ "signer": hex(&author.0) }),
        Err(Reject::WrongRun) => json!({ "refused": "wrong-run" }),
        Err(Reject::BadSignature) => json!({ "refused": "bad-signature" }),
        Err(Reject::Malformed(_)) => json!({ "refused": "malformed" }),
        Err(other) => json!({ "refused": other.to_string() }),
    }
}

fn verify_as<M: Message>(inputs: &Value) -> Result<MemberId, Reject> {
    let signed = decode::<Signed<M>>(&bytes(inputs, "envelope"))?;
    Ok(signed.verify(RunId(digest(inputs, "run")))?.author())
}

// ------------------------------------------------------------------------------------------------ trees, layout, state

fn tree(inputs: &Value) -> Value {
    let count = number(inputs, "count");
    let leaves: Vec<Digest> = (0..count).map(|i| merkle::leaf(i, &vec![i as u8; i as usize + 1])).collect();
    let tree = Tree::new(leaves.iter().copied());
    assert!(tree.prove(count).is_none());
    let proofs = (0..count).zip(&leaves).map(|(i, leaf)| {
        let proof = tree.prove(i).expect("a leaf of the tree has a proof");
        assert_eq!(proof.verify(&tree.root(), count, i, *leaf), Ok(()));
        proof.siblings.iter().map(full).collect::<Vec<_>>()
    });
    let proofs: Vec<_> = proofs.collect();
    let leaves: Vec<_> = leaves.iter().map(full).collect();
    json!({ "leaves": leaves, "root": full(&tree.root()), "proofs": proofs })
}

fn proof(inputs: &Value) -> Value {
    let siblings = list(inputs, "siblings").iter().map(as_digest).collect();
    let proof = Proof { siblings: List::new(siblings).expect("a vector has few siblings") };
    let (count, index) = (number(inputs, "count"), number(inputs, "index"));
    let verified = proof.verify(&digest(inputs, "root"), count, index, digest(inputs, "leaf"));
    json!({ "accepted": verified.is_ok() })
}

fn dataset(inputs: &Value) -> Value {
    let data = counted(inputs);
    let chunks = data.chunks(limits::DATA_CHUNK_BYTES).enumerate();
    let root = Tree::new(chunks.map(|(i, chunk)| merkle::leaf(i as u64, chunk))).root();
    let mut manifest: Manifest = read_as(inputs, "manifest");
    let sequence = number(inputs, "sequence");
    manifest.data.bytes = data.len() as u64;
    manifest.data.tokeniser = manifest::Tokeniser::Bytes;
    if inputs.get("numbers").is_some() {
        let tokens = number(inputs, "numbers") as u32;
        let file = manifest::TokeniserFile { digest: Digest::default(), bytes: 1, tokens };
        manifest.data.tokeniser = manifest::Tokeniser::File(file);
    }
    manifest.model.sequence = sequence as u32;
    let windows = manifest.windows();
    let last = [(windows - 1) * sequence, windows * sequence];
    let mut answer = json!({ "root": full(&root), "windows": windows, "last_window": last });
    if inputs.get("numbers").is_some() {
        let size = manifest.data.token_bytes();
        let [first, end] = [last[0], last[1] + 1].map(|token| (token * size) as usize);
        let numbers = data[first..end].chunks_exact(size as usize);
        let numbers =
            numbers.map(|bytes| bytes.iter().rev().fold(0, |high, byte| high << 8 | u64::from(*byte)));
        answer["token_bytes"] = size.into();
        answer["last_tokens"] = numbers.collect();
    }
    answer
}

fn layout(inputs: &Value) -> Value {
    let model: Model = read_as(inputs, "model");
    let layout = Layout::of(&model);
    assert_eq!(layout.parameters() as u64, model.parameters());
    let tensors =
        layout.tensors().iter().map(|tensor| json!([tensor.name, tensor.shape[0], tensor.shape[1]]));
    let blocks = layout.blocks().iter().map(|block| json!([block.range.start, block.range.end]));
    let chunks = layout.chunks().iter().map(|chunk| json!([chunk.start, chunk.end]));
    let (tensors, blocks): (Vec<_>, Vec<_>) = (tensors.collect(), blocks.collect());
    json!({ "tensors": tensors, "blocks": blocks, "chunks": chunks.collect::<Vec<_>>() })
}

fn state(inputs: &Value) -> Value {
    let vectors = list(inputs, "vectors").iter().map(|vector| {
        let [count, first, stride] = [0, 1, 2].map(|i| vector[i].as_u64().expect("a number") as u32);
        vector_root(&(0..count).map(|i| f32::from_bits(first + i * stride)).collect::<Vec<_>>())
    });
    let vectors: Vec<Digest> = vectors.collect();
    let exponents = list(inputs, "exponents").iter().map(|e| e.as_i64().expect("a number") as i16);
    let powers: Vec<u64> = list(inputs, "beta_powers").iter().map(as_word).collect();
    let roots = StateRoots {
        step: number(inputs, "step") as u32,
        beta_powers: [powers[0], powers[1]],
        exponents: exponents_hash(&exponents.collect::<Vec<_>>()),
        parameters: vectors[0],
        first: vectors[1],
        second: vectors[2],
    };
    let shown: Vec<String> = vectors.iter().map(full).collect();
    json!({ "exponents": full(&roots.exponents), "vectors": shown, "root": full(&roots.root()) })
}

fn contribution(inputs: &Value) -> Value {
    let layout = Layout::of(&read_as(inputs, "model"));
    let multiplier = number(inputs, "multiplier");
    let value = |c: u64| (c * multiplier % 8191) as i32 - 4095;
    let q: Vec<i32> = (0..layout.parameters() as u64).map(value).collect();
    json!({ "root": full(&Commitment::new(&layout, &q).root()) })
}

// ------------------------------------------------------------------------------------------------ assignment, grid

fn assignment(op: &str, inputs: &Value) -> Value {
    let run = || RunId(digest(inputs, "run"));
    let seed = || digest(inputs, "seed");
    let small = |name| number(inputs, name) as u16;
    let slots = || -> Vec<Slot> {
        list(inputs, "aggregators").iter().map(|slot| Slot(slot.as_u64().expect("a slot") as u16)).collect()
    };
    match op {
        "seed" => {
            let round = Round(number(inputs, "round") as u32);
            json!({ "seed": full(&assign::round_seed(run(), round, &digest(inputs, "state"))) })
        }
        "calibration" => json!({ "seed": full(&assign::calibration_seed(run())) }),
        "windows" => {
            let leaf = assign::leaf(Slot(small("slot")), small("seats"), number(inputs, "position") as u32);
            let (count, windows) = (number(inputs, "count") as u32, number(inputs, "windows"));
            json!({ "leaf": leaf.0, "windows": assign::windows(&seed(), leaf, count, windows) })
        }
        "masked" => {
            let model: Model = read_as(inputs, "model");
            let Family::Albert(albert) = &model.family else { panic!("a model that masks") };
            let tokens: Vec<u32> = (0..=model.sequence).map(|place| place % 6).collect();
            let (leaf, window) = (Leaf(number(inputs, "leaf")), number(inputs, "window") as u32);
            let masked = assign::masked(&model, albert, &seed(), leaf, window, &tokens);
            json!({ "inputs": masked.inputs, "places": masked.positions })
        }
        "parts" => {
            let plans = assign::parts(&Layout::of(&read_as(inputs, "model")), &seed(), &slots());
            let shown = plans.iter().map(|plan| {
                let blocks: Vec<u32> = plan.blocks.iter().map(|block| block.0).collect();
                json!({ "blocks": blocks, "aggregator": plan.aggregator.0 })
            });
            json!({ "parts": shown.collect::<Vec<_>>() })
        }
        "seconds" => {
            let seconds = assign::seconds(&seed(), &slots(), number(inputs, "parts") as usize);
            json!({ "seconds": seconds.iter().map(|slot| slot.map(|slot| slot.0)).collect::<Vec<_>>() })
        }
        "reassign" => {
            let order = assign::reassignment(&seed(), Part(small("part")), Slot(small("failed")), &slots());
            json!({ "order": order.iter().map(|slot| slot.0).collect::<Vec<_>>() })
        }
        _ => panic!("no operation {op:?}"),
    }
}

fn on_grid(op: &str, inputs: &Value) -> Value {
    let small = |name: &str| inputs[name].as_i64().expect("a number") as i16;
    match op {
        "quantise" => {
            let step = grid::power_of_two(-i32::from(small("exponent")));
            let gradient = f32::from_bits(word(inputs, "gradient") as u32);
            json!({ "q": grid::quantise(gradient, step, word(inputs, "word") as u32) })
        }
        "dither" => {
            let mut words = vec![0; number(inputs, "count") as usize];
            let mut dither = Dither::new(&digest(inputs, "seed"), Leaf(number(inputs, "leaf")));
            dither.seek(number(inputs, "first"));
            dither.fill(&mut words);
            json!({ "words": words })
        }
        "exponent" => {
            let rms = f64::from_bits(word(inputs, "rms"));
            let wanted = grid::exponent_of(rms, small("grid_bits") as u8, small("fallback"));
            json!({ "wanted": wanted, "next": grid::step_exponent(small("last"), wanted) })
        }
        "loss" => json!({ "fixed": grid::fixed_loss(f64::from_bits(word(inputs, "mean"))) }),
        _ => panic!("no operation {op:?}"),
    }
}

// ------------------------------------------------------------------------------------------------ audits

fn fingerprint(op: &str, inputs: &Value) -> Value {
    let points = || {
        let points: Vec<u64> = list(inputs, "points").iter().map(as_word).collect();
        [points[0], points[1]]
    };
    match op {
        "points" => json!({ "points": sketch::points(&digest(inputs, "freeze")).map(shown) }),
        "fingerprint" => {
            let q: Vec<i32> = list(inputs, "q").iter().map(as_integer).collect();
            let mut sketcher = sketch::Sketcher::new(points());
            sketcher.absorb(number(inputs, "offset"), &q);
            json!({ "fingerprint": sketcher.finish().map(shown) })
        }
        "fingerprint_rule" => {
            let (multiplier, shift) = (number(inputs, "multiplier"), number(inputs, "shift") as i64);
            let value =
                |c: u64| i32::try_from(i64::from((c * multiplier) as u32) - shift).expect("a coefficient");
            let q: Vec<i32> = (0..number(inputs, "count")).map(value).collect();
            json!({ "fingerprint": sketch::fingerprint(points(), &q).map(shown) })
        }
        _ => panic!("no operation {op:?}"),
    }
}

fn tolerance(op: &str, inputs: &Value) -> Value {
    let member = |name: &str| MemberId(digest(inputs, name).0);
    match op {
        "groups" => {
            let groups = Layout::of(&read_as(inputs, "model")).groups();
            json!({ "groups": groups.iter().map(|group| [group.start, group.end]).collect::<Vec<_>>() })
        }
        "deviation" => {
            let integers = |name: &str| -> Vec<i32> { list(inputs, name).iter().map(as_integer).collect() };
            let (seed, own, said) = (digest(inputs, "seed"), integers("own"), integers("said"));
            let bound = |range: &Value, end: usize| range[end].as_u64().expect("a number") as usize;
            let groups: Vec<_> =
                list(inputs, "groups").iter().map(|range| bound(range, 0)..bound(range, 1)).collect();
            let [first, second] = [&own, &said].map(|q| projections(&seed, &groups, 0, q));
            let pairs = groups.iter().zip(first.chunks(64).zip(second.chunks(64)));
            let deviations =
                pairs.map(|(group, (own, said))| shown(projected(group.len(), own, said).to_bits()));
            json!({ "deviations": deviations.collect::<Vec<_>>(), "projections": first })
        }
        "jury" => {
            let verifiers: Vec<MemberId> =
                list(inputs, "verifiers").iter().map(|id| MemberId(as_digest(id).0)).collect();
            let drawn =
                coins::jury(&digest(inputs, "outcome"), &member("culprit"), &member("accuser"), &verifiers);
            let place = |juror: &MemberId| verifiers.iter().position(|verifier| verifier == juror);
            json!({ "jury": drawn.iter().map(place).collect::<Vec<_>>() })
        }
        _ => panic!("no operation {op:?}"),
    }
}

fn coin(op: &str, inputs: &Value) -> Value {
    match op {
        "coin" => toss(inputs),
        "open_coin" => json!({ "accepted": opened(inputs).is_ok() }),
        "select" => {
            let (coin, freeze) = (opened(inputs).expect("a registered coin"), digest(inputs, "freeze"));
            let ppm = number(inputs, "share_ppm") as u32;
            let chosen = |who| coins::selects(&coin, &freeze, &MemberId(as_digest(who).0), ppm);
            json!({ "selected": list(inputs, "members").iter().map(chosen).collect::<Vec<_>>() })
        }
        "select_block" => {
            let (coin, freeze) = (opened(inputs).expect("a registered coin"), digest(inputs, "freeze"));
            let ppm = number(inputs, "blocks_ppm") as u32;
            let chosen = |block| coins::selects_block(&coin, &freeze, block, ppm);
            json!({ "selected": blocks(inputs).map(chosen).collect::<Vec<_>>() })
        }
        "block_inspector" => {
            let (outcome, verifiers) = (digest(inputs, "outcome"), number(inputs, "verifiers") as usize);
            let place = |block| coins::block_inspector(&outcome, block, verifiers);
            json!({ "places": blocks(inputs).map(place).collect::<Vec<_>>() })
        }
        "draw" => {
            let (coin, freeze) = (opened(inputs).expect("a registered coin"), digest(inputs, "freeze"));
            let (m, a) = (number(inputs, "m") as u32, number(inputs, "a") as u8);
            json!({ "positions": coins::draw(&coin, &freeze, &digest(inputs, "table"), m, a) })
        }
        "inspector" => {
            let verifiers: Vec<MemberId> =
                list(inputs, "verifiers").iter().map(|id| MemberId(as_digest(id).0)).collect();
            let slot = Slot(number(inputs, "slot") as u16);
            let drawn = coins::inspector(&digest(inputs, "outcome"), slot, &verifiers);
            let place = drawn.and_then(|drawn| verifiers.iter().position(|verifier| *verifier == drawn));
            json!({ "inspector": place })
        }
        "recheck" => {
            let coin = opened(inputs).expect("a registered coin");
            let (ppm, others) = (number(inputs, "recheck_ppm") as u32, number(inputs, "others") as usize);
            let drawn = |verdict| coins::rechecks(&coin, &as_digest(verdict), ppm, others);
            json!({ "drawn": list(inputs, "verdicts").iter().map(drawn).collect::<Vec<_>>() })
        }
        _ => panic!("no operation {op:?}"),
    }
}

fn blocks(inputs: &Value) -> impl Iterator<Item = Block> {
    list(inputs, "blocks").iter().map(|block| Block(block.as_u64().expect("a number") as u32))
}

fn opened(inputs: &Value) -> Result<Coin, Reject> {
    read_as::<CoinOpening>(inputs, "opening").verify(&read_as::<CoinTerms>(inputs, "terms"))
}

fn toss(inputs: &Value) -> Value {
    let round = |name| Round(number(inputs, name) as u32);
    let (rounds, leaf_coins) = (number(inputs, "rounds") as u32, number(inputs, "leaf_coins") as u16);
    let tree = CoinTree::new(digest(inputs, "secret").0, round("first_round"), rounds, leaf_coins);
    let tree = tree.expect("a vector has few coins");
    let kind = if text(inputs, "kind") == "Node" { CoinKind::Node } else { CoinKind::Leaf };
    let opening = tree.open(kind, round("round"), number(inputs, "k") as u16).expect("a registered coin");
    assert!(opening.verify(&tree.terms()).is_ok());
    let (terms, shown) = (hex(&encode(&tree.terms())), hex(&encode(&opening)));
    json!({ "coin": full(&opening.coin), "terms": terms, "opening": shown })
}

// ------------------------------------------------------------------------------------------------ standing

fn standing(op: &str, inputs: &Value) -> Value {
    let set = |name| number(inputs, name) as u32;
    let numbers = |name| -> Vec<u64> {
        list(inputs, name).iter().map(|value| value.as_u64().expect("a number")).collect()
    };
    let credits = numbers("credits");
    match op {
        "effective" => {
            let (probation, vouchers) = (set("probation"), set("vouchers") as u8);
            let admission = Admission { probation, vouchers, ..Admission::closed(1, 0, 1) };
            let credits = credits.iter().map(|credit| *credit as u32);
            let weights = numbers("m").into_iter().map(|m| weight(&admission, credits.clone(), m as u32));
            json!({ "vouched": vouched(&admission, credits.clone()), "weights": weights.collect::<Vec<_>>() })
        }
        "audit_ppm" => {
            let (newcomer_ppm, halving) = (set("newcomer_ppm"), set("halving"));
            let admission = Admission { newcomer_ppm, halving, ..Admission::closed(1, 0, 1) };
            let rates = credits.iter().map(|credit| audit_ppm(&admission, set("share_ppm"), *credit));
            json!({ "ppm": rates.collect::<Vec<_>>() })
        }
        _ => panic!("no operation {op:?}"),
    }
}

// ------------------------------------------------------------------------------------------------ aggregation

fn aggregation(op: &str, inputs: &Value) -> Value {
    match op {
        "weights" => {
            let m: Vec<u32> =
                list(inputs, "m").iter().map(|m| m.as_u64().expect("a number") as u32).collect();
            json!({ "weights": aggregate::weights(&m, number(inputs, "cap_ppm") as u32) })
        }
        "block" => block(inputs),
        "objects" => {
            let q: Vec<i32> = list(inputs, "q").iter().map(as_integer).collect();
            let bits = list(inputs, "values").iter().map(as_word);
            let values: Vec<f32> = bits.map(|bits| f32::from_bits(bits as u32)).collect();
            json!({ "objects": reduction::objects(&q, number(inputs, "m") as u32, &values) })
        }
        "part" => {
            let reals = |block: &Value| -> Vec<f32> {
                let bits = block.as_array().expect("a block").iter().map(as_word);
                bits.map(|bits| f32::from_bits(bits as u32)).collect()
            };
            let blocks = list(inputs, "blocks").iter();
            let digest = blocks.fold(PartDigest::default(), |digest, block| digest.block(&reals(block)));
            json!({ "digest": full(&digest.finish()) })
        }
        _ => panic!("no operation {op:?}"),
    }
}

fn block(inputs: &Value) -> Value {
    let rule = match text(inputs, "rule") {
        "CenteredClip" => manifest::Rule::CenteredClip,
        "Mean" => manifest::Rule::Mean,
        "Median" => manifest::Rule::Median,
        "TrimmedMean" => manifest::Rule::TrimmedMean,
        "GeometricMedian" => manifest::Rule::GeometricMedian,
        "Krum" => manifest::Rule::Krum,
        "MultiKrum" => manifest::Rule::MultiKrum,
        "FixedRadiusClip" => manifest::Rule::FixedRadiusClip,
        name => panic!("no rule {name:?}"),
    };
    let radius = Real::new(f32::from_bits(word(inputs, "radius") as u32)).expect("a radius");
    let iterations = number(inputs, "iterations") as u8;
    let (cap_ppm, assumed_ppm) = (1_000_000, number(inputs, "assumed_ppm") as u32);
    let mixing = inputs["mixing"].as_bool().expect("whether inputs are mixed");
    let settings =
        manifest::Aggregation { rule, radius, iterations, cap_ppm, assumed_ppm, mixing, replicas: 1 };
    let row = |row: &Value| -> Vec<i32> { row.as_array().expect("a row").iter().map(as_integer).collect() };
    let rows: Vec<Vec<i32>> = list(inputs, "q").iter().map(row).collect();
    let unsigned = |value: &Value| value.as_u64().expect("a number");
    let shares = list(inputs, "m").iter().zip(list(inputs, "weights"));
    let given: Vec<Input<'_>> = rows
        .iter()
        .zip(shares)
        .map(|(q, (m, weight))| Input { q, m: unsigned(m) as u32, weight: unsigned(weight) })
        .collect();
    let aggregate = aggregate::block(&settings, &given).expect("inputs that combine");
    let values: Vec<_> = aggregate.values.iter().map(|v| format!("0x{:08x}", v.to_bits())).collect();
    let factors: Vec<_> = aggregate.factors.iter().map(|f| shown(f.to_bits())).collect();
    json!({ "values": values, "factors": factors })
}

// ------------------------------------------------------------------------------------------------ reading

fn spec() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec")
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|found| found == extension));
    files.sort();
    files
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn families() -> Vec<(String, Vec<Value>)> {
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

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no text {name:?} in {value}"))
}

fn list<'a>(value: &'a Value, name: &str) -> &'a Vec<Value> {
    value[name].as_array().unwrap_or_else(|| panic!("no list {name:?} in {value}"))
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no number {name:?} in {value}"))
}

fn word(value: &Value, name: &str) -> u64 {
    as_word(&value[name])
}

fn as_word(value: &Value) -> u64 {
    let digits = value.as_str().and_then(|text| text.strip_prefix("0x"));
    let word = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    word.unwrap_or_else(|| panic!("no word: {value}"))
}

fn as_integer(value: &Value) -> i32 {
    let integer = value.as_i64().and_then(|v| i32::try_from(v).ok());
    integer.unwrap_or_else(|| panic!("no coefficient: {value}"))
}

fn unhexed(value: &Value) -> Vec<u8> {
    let digits = value.as_str().unwrap_or_else(|| panic!("no bytes: {value}"));
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    let bytes: Option<Vec<u8>> = pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect();
    bytes.unwrap_or_else(|| panic!("no bytes: {digits:?}"))
}

fn bytes(value: &Value, name: &str) -> Vec<u8> {
    unhexed(&value[name])
}

fn as_digest(value: &Value) -> Digest {
    Digest(unhexed(value).try_into().unwrap_or_else(|_| panic!("no 32 bytes: {value}")))
}

fn digest(value: &Value, name: &str) -> Digest {
    as_digest(&value[name])
}

/// A value that the vector holds as its canonical bytes.
fn read_as<T: BorshDeserialize + BorshSerialize>(value: &Value, name: &str) -> T {
    decode(&bytes(value, name)).unwrap_or_else(|reject| panic!("{name}: {reject}"))
}

fn full(digest: &Digest) -> String {
    hex(&digest.0)
}

fn shown(word: u64) -> String {
    format!("0x{word:016x}")
}
