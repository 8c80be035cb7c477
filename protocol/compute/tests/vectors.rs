//! The vectors of `spec/arithmetic.md`: whole runs, on every path of this processor.
//!
//! `spec/training.py` computed the expectations and shares no code with this crate; those of operations called `golden`
//! take it minutes.
#![allow(clippy::unwrap_used)] // the helpers, too, are tests

use std::collections::BTreeSet;

use muster_compute::{Exact, Path, paths};
use muster_core::codec::decode;
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Digest, Leaf, hex};
use muster_core::layout::Layout;
use muster_core::manifest::Manifest;
use muster_core::state::{Arithmetic, LeafJob, State, Update, integer_bytes};
use serde_json::{Value, json};

#[test]
fn every_vector_of_a_run_holds_on_every_path() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../spec/vectors/arithmetic_runs.json");
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert!(cases.iter().any(|case| case["op"] == "run") && cases.iter().any(|case| case["op"] == "golden"));
    for (case, path) in cases.iter().flat_map(|case| paths().into_iter().map(move |path| (case, path))) {
        let found = run(path, &case["inputs"], case["op"] == "golden");
        assert!(
            found == case["expect"],
            "{path:?}: {}\n spec {}\n here {found}",
            case["name"],
            case["expect"]
        );
    }
}

/// The rounds that `run` of `spec/arithmetic_cases.py` describes.
fn run(path: Path, inputs: &Value, golden: bool) -> Value {
    let manifest: Manifest = decode(&unhexed(&inputs["manifest"])).unwrap();
    let mut exact = Exact::new(2, Some(path)).unwrap();
    let (leaves, count) = (u64::from(manifest.training.leaves), u64::from(manifest.training.leaf_windows));
    let mut state = exact.initial(&manifest, &windows(&manifest, 0));
    let exponents = state.exponents.clone();
    let (mut roots, mut losses, mut sums) = (vec![hex(&state.root().0)], Vec::new(), Vec::new());
    let mut first_leaf = None;
    let rounds = inputs["rounds"].as_u64().unwrap();
    for round in 0..rounds {
        let mut sum = vec![0; state.parameters.len()];
        // Whatever it holds.
        let mut q = vec![7; sum.len()];
        for leaf in 0..leaves {
            let windows = windows(&manifest, count * (1 + round * leaves + leaf));
            let round_seed = Digest([round as u8; 32]);
            let job = LeafJob { state: &state, round_seed, leaf: Leaf(leaf), windows: &windows };
            losses.push(exact.leaf(&manifest, &job, &mut q));
            sum.iter_mut().zip(&q).for_each(|(sum, q): (&mut i32, _)| *sum += q);
            first_leaf.get_or_insert_with(|| sum.clone());
        }
        sums.push(hex(&Hasher::new(Domain::STATE).part(&integer_bytes(&sum)).finish().0));
        let left_out =
            if round + 1 == rounds { inputs["left_out"].as_array().unwrap().as_slice() } else { &[] };
        apply(&mut exact, &manifest, &mut state, &sum, left_out);
        roots.push(hex(&state.root().0));
    }
    let loss = exact.evaluate(&manifest, &state, &windows(&manifest, 7)[..1]);
    let mut answer = json!({
        "exponents": exponents,
        "roots": roots,
        "losses": losses,
        "sums": sums,
        "last_exponents": state.exponents,
        "evaluation": format!("{:#018x}", loss.to_bits()),
    });
    if !golden {
        answer["first_leaf"] = json!(first_leaf);
    }
    answer
}

/// Applies half a sum.
fn apply(exact: &mut Exact, manifest: &Manifest, state: &mut State, sum: &[i32], left_out: &[Value]) {
    let blocks = Layout::of(&manifest.model).blocks().len();
    let update = Update {
        values: sum.iter().map(|value| *value as f32 * 0.5).collect(),
        present: (0..blocks).map(|block| !left_out.contains(&json!(block))).collect(),
    };
    exact.apply(manifest, state, &update);
}

/// As many windows as a leaf has, from a number on.
fn windows(manifest: &Manifest, first: u64) -> Vec<Vec<u32>> {
    let vocabulary = u64::from(manifest.model.vocabulary);
    let token = |window: u64, place: u64| ((3 * place * place + 5 * place + 7 * window) % vocabulary) as u32;
    let window =
        |window| (0..=u64::from(manifest.model.sequence)).map(|place| token(window, place)).collect();
    (first..first + u64::from(manifest.training.leaf_windows)).map(window).collect()
}

fn unhexed(text: &Value) -> Vec<u8> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    text.as_str().unwrap().as_bytes().chunks(2).map(pair).collect()
}

/// Every rule of the chapter is named in this crate, and no other.
#[test]
fn rules_are_named_where_they_are_computed() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let chapter = std::fs::read_to_string(root.join("../../spec/arithmetic.md")).unwrap();
    let defined: BTreeSet<String> =
        chapter.split("**").filter(|text| ids(text).contains(*text)).map(String::from).collect();
    let mut named = BTreeSet::new();
    let mut folders = vec![root.join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                named.extend(ids(&std::fs::read_to_string(path).unwrap()));
            }
        }
    }
    assert_eq!(named, defined);
}

/// Ids of arithmetic's rules in a text.
fn ids(text: &str) -> BTreeSet<String> {
    let digits = |rest: &str| rest.chars().take_while(char::is_ascii_digit).collect::<String>();
    text.split("ARITH-").skip(1).map(|rest| format!("ARITH-{}", digits(rest))).collect()
}
