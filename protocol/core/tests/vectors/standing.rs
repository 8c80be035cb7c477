//! What credit is worth.

use serde_json::{Value, json};

use muster_core::manifest::Admission;
use muster_core::standing::{AfterConviction, audit_ppm, vouched, weight};

use super::cases::{list, number};

pub(super) fn standing(op: &str, inputs: &Value) -> Value {
    let set = |name| number(inputs, name) as u32;
    let numbers = |name| -> Vec<u64> {
        list(inputs, name).iter().map(|value| value.as_u64().expect("a number")).collect()
    };
    if op == "voucher_banned" {
        let accused = inputs["accused"].as_bool().expect("yes or no");
        let admission = Admission { probation: set("probation"), ..Admission::closed(1, 0, 1) };
        let after = AfterConviction::of(&admission, accused, set("credit"), set("opened"), set("doubt"));
        return json!({ "credit": after.credit, "doubt": after.doubt });
    }
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
