//! The vectors of `spec/arithmetic.md`, operators and gradients, on every path of this processor.
//!
//! `spec/arithmetic.py` and `spec/training.py` computed the expectations and share no code with this crate. Runs are in
//! `tests/vectors.rs`. NaN is 7fc00000 in a vector; where it reaches a state, bits are compared as they are.

use muster_core::codec::decode;
use muster_core::ids::{Digest, Leaf};
use muster_core::layout::{Layout, ShardRange};
use muster_core::manifest::{Decoder, Family, Model, Optimiser, Projection, Variant};
use serde_json::{Value, json};

use crate::attention::{Attention, Heads};
use crate::decoder::{self, Embedded};
use crate::gpu::engine::Engine as Device;
use crate::gpu::tests::with_device;
use crate::kernel::albert;
use crate::kernel::lamb::{self, Layerwise};
use crate::kernel::matrix::{Panels, Product, multiply};
use crate::kernel::mixture::{self, Routed, balance_factor};
use crate::kernel::rows::{self, Rotation, ScoreRows};
use crate::kernel::strided::Strided;
use crate::kernel::update::{self, AdamStep};
use crate::kernel::{Fma, Hardware, Software, dot, exp};
use crate::leaf::{Batch, Engine, Setting};
use crate::optimiser::ShardPlan;
use crate::path::{Kernels, paths};
use crate::plan::{FamilyPlan, NetworkPlan};
use crate::{function, initial, optimiser};

#[test]
fn every_vector_holds_on_every_path() {
    let mut wrong = Vec::new();
    for family in ["arithmetic", "arithmetic_gradients"] {
        let path = format!("{}/../../spec/vectors/{family}.json", env!("CARGO_MANIFEST_DIR"));
        let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let cases = file["cases"].as_array().unwrap();
        assert!(!cases.is_empty(), "{family} is empty");
        for (case, path) in cases.iter().flat_map(|case| paths().into_iter().map(move |path| (case, path))) {
            let found = answer(Kernels::new(path).unwrap(), case["op"].as_str().unwrap(), &case["inputs"]);
            if found != case["expect"] {
                wrong.push(format!(
                    "{path:?}: {} {}\n spec {}\n here {found}",
                    case["rule"], case["name"], case["expect"]
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}

fn answer(kernels: Kernels, op: &str, inputs: &Value) -> Value {
    match op {
        "fma" => fused(inputs),
        "dot" => {
            let (a, b) = (reals(inputs, "a"), reals(inputs, "b"));
            json!({ "value": agreed(&[dot::<Software>(&a, &b)], &[dot::<Hardware>(&a, &b)]) })
        }
        "total" => {
            let row = reals(inputs, "row");
            json!({ "value": shown(&[albert::sum(&row, &row, |value, _, lane| lane + value)]) })
        }
        // Which zero it is changes nothing.
        "largest" => json!({ "value": shown(&[rows::largest(&reals(inputs, "row")) + 0.0]) }),
        "squares" => json!({ "sum": wide(update::sum_of_squares(kernels, &reals(inputs, "values"))) }),
        "product" => product(kernels, inputs),
        "exp" => {
            let x = reals(inputs, "x");
            let of = |exp: fn(f32) -> f32| x.iter().map(|x| exp(*x)).collect::<Vec<_>>();
            json!({ "values": agreed(&of(exp::<Software>), &of(exp::<Hardware>)) })
        }
        // ARITH-24 to ARITH-26: each on its domain; beyond it a rule defines the logarithm only.
        "functions" => {
            json!({ "values": inputs["x"].as_array().unwrap().iter().map(functions).collect::<Vec<_>>() })
        }
        _ => operator(kernels, op, inputs),
    }
}

fn operator(kernels: Kernels, op: &str, inputs: &Value) -> Value {
    match op {
        // Each of these operators with its way back: ARITH-31 and 32, 35 and 36, 5 and 37, 38 and 39, 61 and 62, 63 and 64.
        "rms_norm" => rms_norm(kernels, inputs),
        "row_sums" => {
            let mut sums = vec![0.0; number(inputs, "width")];
            rows::add_rows(kernels, &reals(inputs, "rows"), &mut sums);
            json!({ "sums": shown(&sums) })
        }
        "embedding" => embedding(inputs),
        "biased" => {
            let (rows, bias) = (reals(inputs, "rows"), reals(inputs, "bias"));
            let mut out = vec![9.0; rows.len()];
            albert::biased(kernels, &rows, &bias, &mut out);
            json!({ "rows": shown(&out) })
        }
        "bias_sums" => {
            let (rows, mut sums) = (reals(inputs, "rows"), reals(inputs, "start"));
            albert::add_columns(kernels, &rows, number(inputs, "stride"), number(inputs, "first"), &mut sums);
            json!({ "sums": shown(&sums) })
        }
        "angles" => angles(inputs),
        "scaled_angles" => scaled_angles(inputs),
        "rotate" => rotate(kernels, inputs),
        "softmax" => softmax(kernels, inputs),
        "attention" => attention(kernels, inputs),
        "swiglu" => swiglu(kernels, inputs),
        "layer_norm" => layer_norm(kernels, inputs),
        "gelu" => {
            let (x, mut d) = (reals(inputs, "x"), reals(inputs, "d"));
            let mut y = vec![9.0; x.len()];
            albert::gelu(kernels, &x, &mut y);
            albert::gelu_backward(kernels, &x, &mut d);
            json!({ "values": shown(&y), "d": shown(&d) })
        }
        "cross_entropy" => {
            let mut logits = reals(inputs, "logits");
            let (width, target) = (logits.len(), number(inputs, "target"));
            let loss = rows::cross_entropy(kernels, &mut logits, width, &[target], reals(inputs, "share")[0]);
            json!({ "loss": wide(loss), "gradient": shown(&logits) })
        }
        _ => of_experts(kernels, op, inputs),
    }
}

/// ARITH-70 to ARITH-73, each with its way back.
fn of_experts(kernels: Kernels, op: &str, inputs: &Value) -> Value {
    match op {
        "route" => {
            let mut scores = reals(inputs, "scores");
            let active = number(inputs, "active");
            let (columns, mut chosen, mut weights) = (scores.len(), vec![9; active], vec![9.0; active]);
            mixture::route(kernels, &mut scores, columns, &mut chosen, &mut weights);
            json!({ "chosen": chosen, "weights": shown(&weights) })
        }
        "route_backward" => route_backward(kernels, inputs),
        "expert" => {
            let [gate, up, weight, mut d] = ["gate", "up", "weight", "d"].map(|name| reals(inputs, name));
            let (hidden, both) = (gate.len(), [gate, up].concat());
            let [mut sigmoid, mut product] = [const { Vec::new() }; 2].map(|_: Vec<f32>| vec![9.0; hidden]);
            rows::swiglu(kernels, &both, hidden, &mut sigmoid, &mut product);
            let (mut scaled, mut d_both, mut d_weight) = (product.clone(), vec![9.0; 2 * hidden], [9.0]);
            mixture::weigh_rows(kernels, &weight, &mut scaled);
            let kept = [&*both, &*sigmoid, &*weight];
            mixture::weighted_swiglu_backward(kernels, kept, &mut d, &mut d_both, &mut d_weight);
            assert_eq!(shown(&d), shown(&scaled), "the input of the next matrix back");
            let (d_gate, d_up) = d_both.split_at(hidden);
            json!({
                "product": shown(&product),
                "scaled": shown(&scaled),
                "d_weight": shown(&d_weight),
                "d_gate": shown(d_gate),
                "d_up": shown(d_up),
            })
        }
        "shared_gate" => {
            let [mut weights, mut d] = ["s", "d_weights"].map(|name| reals(inputs, name));
            mixture::sigmoid(kernels, &mut weights);
            mixture::sigmoid_backward(kernels, &weights, &mut d);
            json!({ "weights": shown(&weights), "d_s": shown(&d) })
        }
        _ => update_or_model(kernels, op, inputs),
    }
}

fn route_backward(kernels: Kernels, inputs: &Value) -> Value {
    let [mut scores, d_weights, balance, share] =
        ["scores", "d_weights", "balance", "share"].map(|name| reals(inputs, name));
    let (columns, active) = (scores.len(), d_weights.len());
    let (mut chosen, mut weights) = (vec![9; active], vec![9.0; active]);
    mixture::route(kernels, &mut scores, columns, &mut chosen, &mut weights);
    let choices = (number(inputs, "tokens") * active) as f32;
    let shares: Vec<f32> = words(&inputs["counts"]).into_iter().map(|count| count as f32 / choices).collect();
    let routed = Routed {
        chosen: &chosen,
        weights: &weights,
        d_weights: &d_weights,
        probabilities: &scores,
        shares: &shares,
        balance: balance_factor(f64::from(balance[0]) * columns as f64, share[0]),
    };
    let mut d_scores = vec![9.0; columns];
    mixture::route_backward(kernels, &routed, &mut d_scores);
    json!({ "d_scores": shown(&d_scores) })
}

fn update_or_model(kernels: Kernels, op: &str, inputs: &Value) -> Value {
    match op {
        "adamw" => adamw(kernels, inputs),
        "lamb" => lamb(kernels, inputs),
        "clip" => clip(inputs),
        "trusts" => {
            let both = |both: &Value| [0, 1].map(|place| f64::from_bits(word(&both[place])));
            let squares: Vec<_> = inputs["squares"].as_array().unwrap().iter().map(both).collect();
            let layout = Layout::of(&model(inputs));
            let of_shard = |shard: &ShardRange| {
                optimiser::lamb::trusts(&ShardPlan::of(&layout, shard), &squares[shard.blocks.clone()])
            };
            let trusts: Vec<f64> = layout.shards().iter().flat_map(of_shard).collect();
            json!({ "trusts": trusts.into_iter().map(wide).collect::<Vec<_>>() })
        }
        "learning_rates" => {
            let settings: Optimiser = decode(&bytes(inputs, "optimiser")).unwrap();
            let rate =
                |step| wide(optimiser::learning_rate(&settings, number(inputs, "rounds") as u32, step));
            json!({ "rates": words(&inputs["steps"]).into_iter().map(rate).collect::<Vec<_>>() })
        }
        "gradient_of" => gradient(kernels, inputs, &reals(inputs, "parameters")),
        "initial_parameters" => json!({ "values": shown(&drawn(inputs)) }),
        "gradient" => gradient(kernels, inputs, &drawn(inputs)),
        _ => panic!("no operation {op:?}"),
    }
}

fn gradient(kernels: Kernels, inputs: &Value, parameters: &[f32]) -> Value {
    let windows: Vec<_> = inputs["windows"].as_array().unwrap().iter().map(words).collect();
    let (model, mut engine) = (model(inputs), Engine::new(kernels, 2));
    let leaf = Leaf(number(inputs, "leaf") as u64);
    let batch = Batch { windows: &windows, seed: Digest(bytes(inputs, "seed").try_into().unwrap()), leaf };
    let found = [false, true].map(|recompute| {
        let setting = Setting { model: &model, recompute };
        shown(engine.gradient(setting, parameters, batch))
    });
    assert_eq!(found[0], found[1], "recomputation changes no bit");
    let loss = wide(engine.evaluate(&model, parameters, batch));
    if kernels.path() == paths()[0] {
        with_device(|driver| {
            let mut device = Device::new(driver, kernels, 1);
            let mut gradient = vec![9.0; parameters.len()];
            device.gradient(&model, parameters, batch, &mut gradient).unwrap();
            assert_eq!(shown(&gradient), found[0], "on a device");
            assert_eq!(wide(device.evaluate(&model, parameters, batch).unwrap()), loss, "on a device");
        });
    }
    json!({ "loss": loss, "gradient": found[0] })
}

fn fused(inputs: &Value) -> Value {
    let [a, b, c] = ["a", "b", "c"].map(|name| reals(inputs, name));
    let of = |fma: fn(f32, f32, f32) -> f32| (0..a.len()).map(|i| fma(a[i], b[i], c[i])).collect::<Vec<_>>();
    json!({ "values": agreed(&of(Software::fma), &of(Hardware::fma)) })
}

fn product(kernels: Kernels, inputs: &Value) -> Value {
    let (depth, left, right) = (number(inputs, "depth"), reals(inputs, "left"), reals(inputs, "right"));
    let (rows, columns) = (left.len() / depth, right.len() / depth);
    let mut panels = Panels::default();
    panels.pack(kernels, Strided::transposed(&right, depth), depth, columns);
    let mut out = reals(inputs, "start");
    let add = !out.is_empty();
    out.resize(rows * columns, 9.0);
    let product = Product { add, ..Product::full(Strided::rows(&left, depth), &panels, rows) };
    multiply(kernels, &product, &mut out, columns);
    json!({ "values": shown(&out) })
}

fn functions(bits: &Value) -> [Option<String>; 4] {
    let x = f64::from_bits(word(bits));
    let turns = (x.abs() <= 131_072.0).then(|| function::sine_cosine(x));
    let power = (x.abs() <= 700.0).then(|| wide(function::exp(x)));
    [
        Some(wide(function::ln(x))),
        power,
        turns.map(|(sine, _)| wide(sine)),
        turns.map(|(_, cosine)| wide(cosine)),
    ]
}

fn rms_norm(kernels: Kernels, inputs: &Value) -> Value {
    let [x, gain, epsilon, mut d, mut residual] =
        ["x", "gain", "epsilon", "d", "residual"].map(|name| reals(inputs, name));
    let (mut y, mut scale) = (vec![9.0; x.len()], [9.0]);
    rows::rms_norm(kernels, &x, &gain, epsilon[0], &mut y, &mut scale);
    rows::rms_norm_backward(kernels, &x, &gain, &scale, &mut d, &mut residual);
    json!({ "y": shown(&y), "scale": shown(&scale), "residual": shown(&residual), "gain": shown(&d) })
}

fn layer_norm(kernels: Kernels, inputs: &Value) -> Value {
    let [x, gain, bias, epsilon, mut d] =
        ["x", "gain", "bias", "epsilon", "d"].map(|name| reals(inputs, name));
    let (mut y, mut mean, mut scale) = (vec![9.0; x.len()], [9.0], [9.0]);
    albert::layer_norm(kernels, &x, [&gain, &bias], epsilon[0], &mut y, [&mut mean, &mut scale]);
    let mut sums = [vec![0.0; x.len()], vec![0.0; x.len()]];
    albert::layer_norm_backward(
        kernels,
        &x,
        &gain,
        [&mean, &scale],
        &mut d,
        sums.each_mut().map(|sum| &mut sum[..]),
    );
    json!({ "y": shown(&y), "mean": shown(&mean), "scale": shown(&scale), "d": shown(&d), "gain": shown(&sums[0]), "bias": shown(&sums[1]) })
}

fn embedding(inputs: &Value) -> Value {
    let (width, mut gradient) = (number(inputs, "width"), reals(inputs, "start"));
    let tokens = words(&inputs["tokens"]).into_iter().map(|token| token as usize).collect();
    decoder::embed(width, 0, &[Embedded { tokens, rows: reals(inputs, "rows") }], &mut gradient);
    json!({ "gradient": shown(&gradient) })
}

fn clip(inputs: &Value) -> Value {
    let square = |bits: &Value| (!bits.is_null()).then(|| f64::from_bits(word(bits)));
    let squares: Vec<_> = inputs["squares"].as_array().unwrap().iter().map(square).collect();
    let exponents = inputs["exponents"].as_array().unwrap();
    let exponents: Vec<_> = exponents.iter().map(|exponent| exponent.as_i64().unwrap() as i16).collect();
    let layout = Layout::of(&model(inputs));
    let norm = optimiser::shard_norm(&ShardPlan::of(&layout, &layout.shards()[0]), &exponents, &squares);
    let factor = optimiser::clip_factor(f64::from(reals(inputs, "most")[0]), norm);
    json!({ "norm": wide(norm), "factor": wide(factor) })
}

/// The rotary tables of a model of one head.
fn angles(inputs: &Value) -> Value {
    tables(inputs, Family::Decoder)
}

/// The same with scaled frequencies.
fn scaled_angles(inputs: &Value) -> Value {
    let (head_width, scaling) =
        (number(inputs, "head_width") as u32, Some(decode(&bytes(inputs, "scaling")).unwrap()));
    tables(inputs, |decoder| {
        Family::Variant(Variant { decoder, head_width, projection: Projection::Plain, scaling })
    })
}

fn tables(inputs: &Value, family: impl FnOnce(Decoder) -> Family) -> Value {
    let real = |value| muster_core::codec::Real::new(value).unwrap();
    let rope_base = real(reals(inputs, "base")[0]);
    let width = number(inputs, "head_width") as u32;
    let plan = NetworkPlan::new(&Model {
        vocabulary: 2,
        width,
        layers: 1,
        heads: 1,
        hidden: 1,
        sequence: number(inputs, "tokens") as u32,
        norm_epsilon: real(1e-5),
        initial_scale: real(0.02),
        family: family(Decoder { key_value_heads: 1, tied: true, rope_base }),
    });
    let FamilyPlan::Decoder(decoder) = &plan.network else { panic!("a decoder's plan") };
    json!({ "cosines": shown(&decoder.cosines), "sines": shown(&decoder.sines) })
}

fn rotate(kernels: Kernels, inputs: &Value) -> Value {
    let [mut head, cosines, sines, scale] =
        ["head", "cosines", "sines", "scale"].map(|name| reals(inputs, name));
    let direction = inputs["direction"].as_f64().unwrap() as f32;
    let (stride, half) = (head.len(), cosines.len());
    let at =
        Rotation { stride, heads: 1, half, cosines: &cosines, sines: &sines, direction, scale: scale[0] };
    rows::rotate(kernels, &mut head, &at);
    json!({ "values": shown(&head) })
}

fn softmax(kernels: Kernels, inputs: &Value) -> Value {
    let [mut scores, mut d, output, d_output] =
        ["scores", "d", "output", "d_output"].map(|name| reals(inputs, name));
    let keys = scores.len();
    let at = ScoreRows { first: number(inputs, "seen") - 1, rows: 1, keys, stride: keys };
    rows::softmax(kernels, &mut scores, at);
    rows::softmax_backward(kernels, &mut d, &scores, at, [&output, &d_output], [output.len(); 2]);
    json!({ "probabilities": shown(&scores), "d_scores": shown(&d) })
}

fn attention(kernels: Kernels, inputs: &Value) -> Value {
    let [tokens, count, group, width] =
        ["tokens", "heads", "group", "width"].map(|name| number(inputs, name));
    let heads = Heads { tokens, count, group, width, causal: inputs["causal"].as_bool().unwrap() };
    let (joint, d_mixed) = (reals(inputs, "joint"), reals(inputs, "d_mixed"));
    let (mut mixed, mut d_joint) = (vec![9.0; d_mixed.len()], vec![9.0; joint.len()]);
    let (mut attention, mut probabilities) = (Attention::default(), Vec::new());
    attention.forward(kernels, &heads, &joint, &mut probabilities, &mut mixed);
    attention.backward(kernels, &heads, &probabilities, [&joint, &mixed, &d_mixed], &mut d_joint);
    json!({ "mixed": shown(&mixed), "d_joint": shown(&d_joint) })
}

fn swiglu(kernels: Kernels, inputs: &Value) -> Value {
    let [gate, up, mut d] = ["gate", "up", "d"].map(|name| reals(inputs, name));
    let (hidden, both) = (gate.len(), [gate, up].concat());
    let (mut sigmoid, mut product, mut d_both) =
        (vec![9.0; hidden], vec![9.0; hidden], vec![9.0; 2 * hidden]);
    rows::swiglu(kernels, &both, hidden, &mut sigmoid, &mut product);
    rows::swiglu_backward(kernels, &both, hidden, &sigmoid, &mut d, &mut d_both);
    let (d_gate, d_up) = d_both.split_at(hidden);
    json!({ "product": shown(&product), "sigmoid": shown(&sigmoid), "d_gate": shown(d_gate), "d_up": shown(d_up) })
}

fn step(inputs: &Value) -> AdamStep {
    let [unit, beta1, beta2, first_share, second_share, rate, second_scale, epsilon, keep] =
        reals(inputs, "step")[..]
    else {
        panic!("nine scalars")
    };
    AdamStep { unit, beta1, beta2, first_share, second_share, rate, second_scale, epsilon, keep }
}

fn adamw(kernels: Kernels, inputs: &Value) -> Value {
    let [values, mut parameters, mut first, mut second] =
        ["aggregate", "parameters", "first", "second"].map(|name| reals(inputs, name));
    update::adamw(kernels, &values, &mut parameters, &mut first, &mut second, &step(inputs));
    json!({ "parameters": as_they_are(&parameters), "first": as_they_are(&first), "second": as_they_are(&second) })
}

fn lamb(kernels: Kernels, inputs: &Value) -> Value {
    let [values, mut parameters, mut first, mut second] =
        ["aggregate", "parameters", "first", "second"].map(|name| reals(inputs, name));
    let [first_scale, decay, rate] = ["first_scale", "decay", "rate"].map(|name| reals(inputs, name)[0]);
    let (step, layerwise, mut along) =
        (step(inputs), Layerwise { first_scale, decay }, vec![9.0; values.len()]);
    lamb::moments(kernels, &values, &mut first, &mut second, &step);
    lamb::direction(kernels, &parameters, [&first, &second], &step, layerwise, &mut along);
    lamb::descend(kernels, &mut parameters, &along, rate);
    let [first, second] = [first, second].map(|values| as_they_are(&values));
    json!({ "parameters": as_they_are(&parameters), "first": first, "second": second, "direction": shown(&along) })
}

fn drawn(inputs: &Value) -> Vec<f32> {
    let key = bytes(inputs, "key").try_into().unwrap();
    {
        let model = model(inputs);
        initial::draw(&model, Digest(key), model.rows_after(0))
    }
}

// ------------------------------------------------------------------------------------------------ JSON

fn reals(inputs: &Value, name: &str) -> Vec<f32> {
    let text = inputs[name].as_str().unwrap_or_else(|| panic!("no {name} in {inputs}"));
    text.split_whitespace().map(|bits| f32::from_bits(u32::from_str_radix(bits, 16).unwrap())).collect()
}

fn as_they_are(values: &[f32]) -> String {
    let all: Vec<String> = values.iter().map(|value| format!("{:08x}", value.to_bits())).collect();
    all.join(" ")
}

/// With one NaN.
fn shown(values: &[f32]) -> String {
    let one = |value: &f32| if value.is_nan() { f32::from_bits(0x7fc0_0000) } else { *value };
    as_they_are(&values.iter().map(one).collect::<Vec<_>>())
}

/// What both kinds of fused multiply-add gave.
fn agreed(software: &[f32], hardware: &[f32]) -> String {
    assert_eq!(shown(software), shown(hardware));
    shown(software)
}

fn wide(value: f64) -> String {
    format!("{:#018x}", if value.is_nan() { 0x7ff8 << 48 } else { value.to_bits() })
}

fn word(value: &Value) -> u64 {
    u64::from_str_radix(&value.as_str().unwrap()[2..], 16).unwrap()
}

fn number(inputs: &Value, name: &str) -> usize {
    inputs[name].as_u64().unwrap() as usize
}

fn words(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|value| value.as_u64().unwrap() as u32).collect()
}

fn bytes(inputs: &Value, name: &str) -> Vec<u8> {
    let text = inputs[name].as_str().unwrap().as_bytes();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    text.chunks(2).map(pair).collect()
}

fn model(inputs: &Value) -> Model {
    decode(&bytes(inputs, "model")).unwrap()
}
