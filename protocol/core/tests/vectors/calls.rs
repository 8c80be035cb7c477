//! Questions and answers of calls.

use serde_json::{Value, json};

use muster_core::audit::check_steps;
use muster_core::manifest::Manifest;
use muster_core::messages::call::{Ask, fixed, logits_digest};

use super::cases::{full, list, read_as};

pub(super) fn call(op: &str, inputs: &Value) -> Value {
    match op {
        "units" => {
            let bits = list(inputs, "logits").iter().map(|bits| bits.as_str().expect("the bits of a real"));
            let reals = bits.map(|bits| f32::from_bits(u32::from_str_radix(bits, 16).expect("hexadecimal")));
            let units: Vec<i32> = reals.map(fixed).collect();
            json!({ "units": units, "digest": full(&logits_digest(&units)) })
        }
        "askable" => {
            let manifest: Manifest = read_as(inputs, "manifest");
            json!({ "askable": read_as::<Ask>(inputs, "ask").check(&manifest).is_ok() })
        }
        "answer_fits" => {
            let manifest: Manifest = read_as(inputs, "manifest");
            json!({ "fits": check_steps(&manifest, &read_as(inputs, "evidence")).is_ok() })
        }
        _ => panic!("no operation {op:?}"),
    }
}
