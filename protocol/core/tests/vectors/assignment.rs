//! Whose work is what, and which integers a leaf becomes.

use serde_json::{Value, json};

use muster_core::assign;
use muster_core::grid::{self, Dither};
use muster_core::ids::{Leaf, Part, Round, RunId, Slot};
use muster_core::layout::Layout;
use muster_core::manifest::{Family, Model};

use super::cases::{digest, full, list, number, read_as, word};

pub(super) fn assignment(op: &str, inputs: &Value) -> Value {
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

pub(super) fn on_grid(op: &str, inputs: &Value) -> Value {
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
