//! The vectors of `spec/arithmetic.md`: whole runs, on every path of this processor.
//!
//! `spec/training.py` computed the expectations and shares no code with this crate; those of operations called `golden`
//! take it minutes.
#![allow(clippy::unwrap_used)] // the helpers, too, are tests

use std::collections::BTreeSet;

use muster_compute::{Exact, Path, paths};
use muster_core::codec::decode;
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Digest, Leaf, Row, hex};
use muster_core::layout::Layout;
use muster_core::manifest::Manifest;
use muster_core::state::{Arithmetic, LeafTask, State, Update, integer_bytes};
use serde_json::{Value, json};

#[test]
fn every_vector_of_a_run_holds_on_every_path() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../spec/vectors/arithmetic_runs.json");
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert!(cases.iter().any(|case| case["op"] == "run") && cases.iter().any(|case| case["op"] == "golden"));
    for (case, path) in cases.iter().flat_map(|case| paths().into_iter().map(move |path| (case, path))) {
        let golden = case["op"] == "golden";
        // A million parameters: what threads share is large enough to be shared.
        let threads = if golden && path == Path::detect() { [1, 2, 3, 8].as_slice() } else { &[2] };
        for threads in threads {
            let found = run((path, *threads), &case["inputs"], golden);
            let (name, expected) = (&case["name"], &case["expect"]);
            assert!(found == *expected, "{path:?} {threads}: {name}\n spec {expected}\n here {found}");
        }
    }
}

/// The rounds that `run` of `spec/arithmetic_cases.py` describes.
fn run((path, threads): (Path, usize), inputs: &Value, golden: bool) -> Value {
    let manifest: Manifest = decode(&unhexed(&inputs["manifest"])).unwrap();
    let mut exact = Exact::new(threads, Some(path)).unwrap();
    let (leaves, count) = (u64::from(manifest.training.leaves), u64::from(manifest.windows_of_leaf()));
    let mut state = exact.initial(&manifest, &windows(&manifest, 0));
    let exponents = state.exponents.clone();
    let (mut roots, mut losses, mut sums) = (vec![hex(&state.root().0)], Vec::new(), Vec::new());
    if let Some(place) = inputs.get("spoiled").and_then(Value::as_u64) {
        // One that no vector holds: with a sign and a payload.
        state.parameters[place as usize] = f32::from_bits(0xffc0_0001);
    }
    let mut first_leaf = None;
    let rounds = inputs["rounds"].as_u64().unwrap();
    for round in 0..rounds {
        let mut sum = vec![0; Layout::of_run(&manifest).coefficients()];
        let mut tasks = (0..leaves).map(|leaf| {
            let windows = windows(&manifest, count * (1 + round * leaves + leaf));
            // Whatever it holds.
            let q = vec![7; 3];
            LeafTask { state: &state, round_seed: Digest([round as u8; 32]), leaf: Leaf(leaf), windows, q }
        });
        exact.leaves(&manifest, &mut tasks, &mut |q, loss| {
            losses.push(loss);
            sum.iter_mut().zip(&q).for_each(|(sum, q): (&mut i32, _)| *sum += q);
            first_leaf.get_or_insert_with(|| sum.clone());
        });
        sums.push(hex(&Hasher::new(Domain::STATE).part(&integer_bytes(&sum)).finish().0));
        let left_out =
            if round + 1 == rounds { inputs["left_out"].as_array().unwrap().as_slice() } else { &[] };
        apply(&mut exact, &manifest, &mut state, &sum, left_out);
        roots.push(hex(&state.root().0));
    }
    let loss = exact.evaluate(&manifest, &state, &windows(&manifest, 7)[..1]);
    // To the bit: initial exponents (ARITH-49), losses and the evaluation (ARITH-45), later exponents (ARITH-48).
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

/// Applies half a sum, and of second moments all of it.
fn apply(exact: &mut Exact, manifest: &Manifest, state: &mut State, sum: &[i32], left_out: &[Value]) {
    let layout = Layout::of_run(manifest);
    let mut update = Update::empty(&layout, state.held());
    for (place, block) in layout.path_blocks(Row(0)).enumerate() {
        let by = if layout.is_of_moments(block) { 1.0 } else { 0.5 };
        let range = layout.block(block).unwrap().range.clone();
        let values: Vec<f32> = sum[range].iter().map(|value| *value as f32 * by).collect();
        if !left_out.contains(&json!(place)) {
            update.put(&layout, block, &values).unwrap();
        }
    }
    exact.apply(manifest, state, &update);
}

/// As many windows as a leaf has, from a number on.
fn windows(manifest: &Manifest, first: u64) -> Vec<Vec<u32>> {
    let vocabulary = u64::from(manifest.model.vocabulary);
    let token = |window: u64, place: u64| ((3 * place * place + 5 * place + 7 * window) % vocabulary) as u32;
    let window =
        |window| (0..=u64::from(manifest.model.sequence)).map(|place| token(window, place)).collect();
    (first..first + u64::from(manifest.windows_of_leaf())).map(window).collect()
}

fn unhexed(text: &Value) -> Vec<u8> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    text.as_str().unwrap().as_bytes().chunks(2).map(pair).collect()
}

/// Every rule of these chapters is named where it is computed, and no other.
#[test]
fn rules_are_named_where_they_are_computed() {
    let here = ["src"].as_slice();
    let chapters = [
        ("arithmetic", "ARITH-", here),
        ("grid", "GRID-", &["src", "../core/src"]),
        ("local", "LOCAL-", &["src", "../core/src"]),
        ("layout", "LAYOUT-", &["../core/src/layout.rs"]),
        ("assignment", "ASSIGN-", &["../core/src"]),
    ];
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    for (chapter, prefix, places) in chapters {
        let text = std::fs::read_to_string(root.join(format!("../../spec/{chapter}.md"))).unwrap();
        let defined: BTreeSet<String> =
            text.split("**").filter(|text| ids(text, prefix).contains(*text)).map(String::from).collect();
        assert!(!defined.is_empty(), "{chapter}");
        let mut named = BTreeSet::new();
        for text in places.iter().flat_map(|place| sources(&root.join(place))) {
            named.extend(ids(&text, prefix));
        }
        assert_eq!(named, defined, "{chapter}");
    }
}

/// A file's text, or those of a folder's files.
fn sources(place: &std::path::Path) -> Vec<String> {
    if place.is_file() {
        return vec![std::fs::read_to_string(place).unwrap()];
    }
    std::fs::read_dir(place).unwrap().flat_map(|entry| sources(&entry.unwrap().path())).collect()
}

/// Ids of a chapter's rules in a text.
fn ids(text: &str, prefix: &str) -> BTreeSet<String> {
    let digits = |rest: &str| rest.chars().take_while(char::is_ascii_digit).collect::<String>();
    text.split(prefix).skip(1).map(|rest| format!("{prefix}{}", digits(rest))).collect()
}
