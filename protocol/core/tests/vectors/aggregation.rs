//! Weights, rules, objections and digests of parts.

use serde_json::{Value, json};

use muster_core::aggregate::{self, Input};
use muster_core::codec::Real;
use muster_core::contribution::PartDigest;
use muster_core::grid::power_of_two;
use muster_core::ids::Block;
use muster_core::manifest;
use muster_core::reduction::{self, OwnBlock};
use muster_core::rounding::ResultGrid;

use super::cases::{as_integer, as_word, bytes, digest, full, list, number, shown, text, word};

pub(super) fn aggregation(op: &str, inputs: &Value) -> Value {
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
            let m = number(inputs, "m") as u32;
            let scale = inputs.get("scale").map_or(1.0, |scale| f64::from_bits(as_word(scale)));
            let own = OwnBlock { q: &q, m, scale, step: power_of_two(number(inputs, "exponent") as i32) };
            json!({ "objects": own.objects(&values) })
        }
        "segments_taken" => {
            let numbers = |name: &str| list(inputs, name).iter().map(|of| of.as_u64().expect("a number"));
            let scale = reduction::mean_segments(&numbers("weights").collect::<Vec<_>>(), numbers("m"));
            json!({ "scale": format!("{:#018x}", scale.to_bits()) })
        }
        "trust" => {
            let bits = list(inputs, "values").iter().map(as_word);
            let mut values: Vec<f32> = bits.map(|bits| f32::from_bits(bits as u32)).collect();
            let most = f64::from(f32::from_bits(word(inputs, "most") as u32));
            aggregate::bound(&mut values, most * 2f64.powi(number(inputs, "grid_bits") as i32 + 1));
            json!({ "values": patterns(&values) })
        }
        "rounded" => {
            let (mut values, block) = (reals(&inputs["values"]), Block(number(inputs, "block") as u32));
            grid(inputs).round(&mut values, &digest(inputs, "freeze"), block);
            json!({ "values": patterns(&values) })
        }
        "values_of" => {
            let (data, grid) = (bytes(inputs, "bytes"), grid(inputs));
            let read = grid.unpack(&data, number(inputs, "count") as usize).ok();
            let values = read.filter(|(_, rest)| rest.is_empty()).map(|(values, _)| values);
            assert!(values.as_ref().is_none_or(|values| grid.pack(values).as_ref() == Some(&data)));
            json!({ "values": values.map(|values| patterns(&values)) })
        }
        "part" => {
            let blocks = list(inputs, "blocks").iter();
            let digest = blocks.fold(PartDigest::default(), |digest, block| digest.block(&reals(block)));
            json!({ "digest": full(&digest.finish()) })
        }
        _ => panic!("no operation {op:?}"),
    }
}

fn grid(inputs: &Value) -> ResultGrid {
    ResultGrid::by(number(inputs, "exponent") as u8)
}

fn reals(values: &Value) -> Vec<f32> {
    let bits = values.as_array().expect("values").iter().map(as_word);
    bits.map(|bits| f32::from_bits(bits as u32)).collect()
}

fn patterns(values: &[f32]) -> Vec<String> {
    values.iter().map(|value| format!("0x{:08x}", value.to_bits())).collect()
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
    let settings = manifest::Aggregation {
        rule,
        radius,
        iterations,
        cap_ppm,
        assumed_ppm,
        mixing,
        replicas: 1,
        result_bits: 4,
    };
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
