//! Small models of each family on a device, in any memory.

use muster_core::codec::Real;
use muster_core::grid::fixed_loss;
use muster_core::ids::{Digest, Leaf};
use muster_core::manifest::{Albert, Decoder, Family, Mixture, Model, Projection, Scaling, Variant};

use super::{Other, with_device};
use crate::gpu::driver::Driver;
use crate::gpu::engine::Engine;
use crate::initial;
use crate::leaf::{self, Batch, Setting};
use crate::path::Kernels;

fn real(value: f32) -> Real {
    Real::new(value).unwrap()
}

fn model(family: Family) -> Model {
    Model {
        vocabulary: 41,
        width: 24,
        layers: 3,
        heads: 6,
        hidden: 21,
        sequence: 30,
        norm_epsilon: real(1e-5),
        initial_scale: real(0.2),
        family,
    }
}

fn decoder() -> Decoder {
    Decoder { key_value_heads: 3, tied: true, rope_base: real(10_000.0) }
}

/// So many experts that some have no token of a window, or none at all.
fn mixture() -> Family {
    Family::Mixture(Mixture {
        decoder: decoder(),
        columns: 70,
        active: 2,
        shared_hidden: 18,
        balance: real(0.5),
        trust: real(4.0),
        rows: 1,
        branch: 0,
        few: 0,
        held: 0,
        lag: 0,
    })
}

/// Heads that are wider together than the stream, with scaled positions.
fn variant(projection: Projection) -> Family {
    let scaling = Scaling { factor: real(8.0), low: real(1.0), high: real(4.0), original: 16 };
    Family::Variant(Variant { decoder: decoder(), head_width: 6, projection, scaling: Some(scaling) })
}

fn families() -> [Family; 5] {
    let albert = Albert { embedding: 13, masked_ppm: 200_000, mask_token: 3 };
    let [biased, normed] = [Projection::Biased, Projection::Normed].map(variant);
    [Family::Decoder(decoder()), mixture(), Family::Albert(albert), biased, normed]
}

fn windows(model: &Model, count: u32) -> Vec<Vec<u32>> {
    let token = |window: u32, place: u32| (window * 31 + place * place * 3 + place * 7) % model.vocabulary;
    (0..count).map(|window| (0..=model.sequence).map(|place| token(window, place)).collect()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn is_decoder(model: &Model) -> bool {
    !matches!(model.family, Family::Albert(_))
}

/// The processor's logits of a text, a row for each token.
fn read(model: &Model, parameters: &[f32], text: &[u32]) -> Vec<f32> {
    let mut processor = leaf::Engine::new(Kernels::detect(), 1);
    processor.open(model, parameters);
    let model = Model { sequence: text.len() as u32, ..model.clone() };
    let windows = &[[text, &[0]].concat()];
    processor.logits(&model, parameters, Batch { windows, seed: Digest([4; 32]), leaf: Leaf(7) }, 0)
}

/// One window and one layer at a time, more of either, all of them. What does not fit is refused, and nothing of it stays.
#[test]
fn any_memory_of_a_device_gives_the_processors_bits() {
    with_device(|mut driver| {
        for family in families() {
            driver = in_any_memory(driver, &model(family));
        }
    });
}

fn in_any_memory(mut driver: Box<dyn Driver>, model: &Model) -> Box<dyn Driver> {
    let (kernels, setting) = (Kernels::detect(), Setting { model, recompute: false });
    let mut parameters = initial::draw(model, Digest([3; 32]), 1);
    // Biases begin at zero, and would not show.
    parameters
        .iter_mut()
        .filter(|value| **value == 0.0)
        .zip(1..)
        .for_each(|(value, at)| *value = 0.001 * at as f32);
    let windows = windows(model, 5);
    let batch = Batch { windows: &windows, seed: Digest([4; 32]), leaf: Leaf(7) };
    let mut processor = leaf::Engine::new(kernels, 1);
    let evaluated = processor.evaluate(model, &parameters, batch);
    let (right, loss) = processor.gradient_and_loss(setting, &parameters, batch);
    let (mut enough, lengths) = (0, [1, 7, model.sequence as usize]);
    let read =
        is_decoder(model).then(|| lengths.map(|length| read(model, &parameters, &windows[0][..length])));
    for memory in (10..40).map(|log| 1 << log) {
        let mut other = Other::new(driver, |_: &mut [u8]| ());
        other.description.memory = memory;
        let mut engine = Engine::new(Box::new(other), kernels, 2);
        let mut gradient = vec![f32::NAN; parameters.len()];
        let found = engine.gradient(model, &parameters, batch, &mut gradient);
        assert!(found.is_ok() || enough == 0, "{memory} bytes");
        if let Ok(mean) = found {
            enough += 1;
            assert!(bits(&gradient) == bits(right), "{:?} in {memory} bytes", model.family);
            assert_eq!(fixed_loss(mean), loss);
            let found = engine.evaluate(model, &parameters, batch).unwrap();
            assert_eq!(found.to_bits(), evaluated.to_bits());
            for (rows, length) in read.iter().flatten().zip(lengths) {
                let mut window = windows[0][..length].to_vec();
                window.resize(model.sequence as usize + 1, 0);
                // The parameters are there since the first one.
                let parameters = (length == 1).then_some(&parameters[..]);
                let found = engine.logits(model, parameters, &window, 0..length).unwrap();
                assert!(bits(&found) == bits(rows), "{:?}: {length} tokens", model.family);
            }
        }
        driver = engine.into_driver();
        if enough == 4 {
            return driver;
        }
    }
    panic!("{:?} does not fit", model.family)
}
