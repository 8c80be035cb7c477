//! Rotary positions: cosine and sine by token and frequency, computed in f64 (ARITH-33, ARITH-75).

use std::f64::consts::TAU;

use muster_core::manifest::{Model, Scaling};

use crate::function;

/// Cosines and sines of a model's windows, for frequencies of this base.
pub(super) fn tables(model: &Model, base: f64) -> [Vec<f32>; 2] {
    let frequencies = frequencies(model.head_width() as usize, base);
    let frequencies: Vec<f64> = match scaling(model) {
        Some(scaling) => frequencies.map(|frequency| scaled(frequency, scaling)).collect(),
        None => frequencies.collect(),
    };
    let tokens = 0..model.sequence as usize;
    let angles = tokens.flat_map(|token| frequencies.iter().map(move |f| token as f64 * f));
    angles.map(function::sine_cosine).map(|(sine, cosine)| (cosine as f32, sine as f32)).unzip().into()
}

/// What the frequencies of a model with scaled positions are divided by; empty for any other model.
pub fn rotary_divisors(model: &Model) -> Vec<f32> {
    let (Some(scaling), Some(decoder)) = (scaling(model), model.decoder()) else { return Vec::new() };
    let frequencies = frequencies(model.head_width() as usize, decoder.rope_base.value().into());
    frequencies.map(|frequency| (frequency / scaled(frequency, scaling)) as f32).collect()
}

fn scaling(model: &Model) -> Option<&Scaling> {
    model.variant().and_then(|variant| variant.scaling.as_ref())
}

/// `base^(−2i/head width)`.
fn frequencies(head_width: usize, base: f64) -> impl Iterator<Item = f64> {
    let log = function::ln(base);
    (0..head_width / 2).map(move |i| function::exp(-((2 * i) as f64) / head_width as f64 * log))
}

/// ARITH-75: what turns slowly is divided by the factor, what turns often keeps its value, and what lies between is mixed.
fn scaled(frequency: f64, scaling: &Scaling) -> f64 {
    let [factor, low, high] = [scaling.factor, scaling.low, scaling.high].map(|real| f64::from(real.value()));
    let turns = frequency * f64::from(scaling.original) / TAU;
    if turns < low {
        return frequency / factor;
    }
    if turns > high {
        return frequency;
    }
    let mixed = (turns - low) / (high - low);
    (1.0 - mixed) * (frequency / factor) + mixed * frequency
}
