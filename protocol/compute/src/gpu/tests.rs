//! Devices beside the processor. Without a device, nothing is tested, and a word is printed.

use muster_core::codec::Real;
use muster_core::ids::Digest;
use muster_core::manifest::{Decoder, Family, Mixture, Model};

use super::*;
use crate::leaf::{self, Setting};
use crate::path::Kernels;
use crate::{initial, leaf::Batch};

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

fn families() -> [Family; 2] {
    [Family::Decoder(decoder()), mixture()]
}

fn windows(model: &Model, count: u32) -> Vec<Vec<u32>> {
    let token = |window: u32, place: u32| (window * 31 + place * place * 3 + place * 7) % model.vocabulary;
    (0..count).map(|window| (0..=model.sequence).map(|place| token(window, place)).collect()).collect()
}

/// The first device, as if it had so many bytes of memory.
fn device(memory: u64) -> Option<Engine> {
    let mut found = devices().into_iter().next()?;
    found.description.memory = found.description.memory.min(memory);
    let driver = found.open().unwrap();
    Some(Engine::new(driver, Host { kernels: Kernels::detect(), threads: 2 }))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn any_memory_of_a_device_gives_the_processors_bits() {
    for family in families() {
        let model = model(family);
        let parameters = initial::draw(&model, Digest([3; 32]), 1);
        let windows = windows(&model, 5);
        let batch = Batch { windows: &windows, seed: Digest([4; 32]), leaf: Leaf(7) };
        let mut processor = leaf::Engine::new(Kernels::detect(), 1);
        let setting = Setting { model: &model, recompute: false };
        let (right, loss) = processor.gradient_and_loss(setting, &parameters, batch);
        let evaluated = leaf::Engine::new(Kernels::detect(), 1).evaluate(&model, &parameters, batch);
        let mut enough = 0;
        for memory in (10..36).map(|log| 1 << log) {
            let Some(mut engine) = device(memory) else {
                println!("skipped: no device is found");
                return;
            };
            let mut gradient = vec![f32::NAN; parameters.len()];
            // What does not fit is refused, and nothing of it stays.
            let Ok(mean) = engine.gradient(&model, &parameters, batch, &mut gradient) else {
                assert_eq!(enough, 0, "{memory} bytes");
                continue;
            };
            enough += 1;
            assert!(bits(&gradient) == bits(right), "{:?} in {memory} bytes", model.family);
            assert_eq!(fixed_loss(mean), loss);
            let found = engine.evaluate(&model, &parameters, batch).unwrap();
            assert_eq!(found.to_bits(), evaluated.to_bits());
            if enough == 4 {
                break;
            }
        }
        // One window and one layer at a time, more of either, all of them.
        assert_eq!(enough, 4);
    }
}
