//! Every message: what decodes is the one encoding of what it decodes to, and damage is refused by name.

use arbitrary::{Arbitrary, Unstructured};
use borsh::{BorshDeserialize, BorshSerialize};
use muster_core::channel::certificate;
use muster_core::codec::{decode, encode};
use muster_core::messages::{audit, call, enrol, evidence, gossip, offer, record, round, service, wire};
use muster_core::{coins, for_each_message, manifest, merkle, sketch, state};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

const CASES: usize = 300;

fn check<T>(name: &str)
where
    T: for<'a> Arbitrary<'a> + BorshSerialize + BorshDeserialize + PartialEq + std::fmt::Debug,
{
    let mut random = ChaCha8Rng::seed_from_u64(name.len() as u64);
    let mut made = 0;
    for _ in 0..CASES {
        let mut seed = vec![0; 4096];
        random.fill_bytes(&mut seed);
        let Ok(value) = T::arbitrary(&mut Unstructured::new(&seed)) else { continue };
        made += 1;
        let bytes = encode(&value);
        assert_eq!(decode::<T>(&bytes).expect(name), value, "{name}");
        let trailing = [bytes.as_slice(), &[0]].concat();
        decode::<T>(&trailing).expect_err(name);
        if !bytes.is_empty() {
            let cut = random.next_u32() as usize % bytes.len();
            let error = decode::<T>(&bytes[..cut]).expect_err(name).to_string();
            assert!(error.contains("malformed"), "{name}: {error}");
            let mut damaged = bytes.clone();
            damaged[cut] ^= 1 << (random.next_u32() % 8);
            if let Ok(other) = decode::<T>(&damaged) {
                assert_eq!(encode(&other), damaged, "{name}: two encodings of one value");
            }
        }
        let mut garbage = seed;
        garbage.truncate(random.next_u32() as usize % 200);
        if let Ok(other) = decode::<T>(&garbage) {
            assert_eq!(encode(&other), garbage, "{name}: two encodings of one value");
        }
    }
    assert!(made > CASES / 2, "{name}: only {made} values");
}

macro_rules! canonical {
    ($($module:ident::$type:ident),* $(,)?) => { $(
        #[test]
        fn $type() {
            check::<$module::$type>(stringify!($type));
        }
    )* };
}

for_each_message!(canonical);

#[test]
fn errors_name_the_field() {
    let bytes = encode(&round::Echo { round: muster_core::ids::Round(1), freeze: Default::default() });
    let error = decode::<round::Echo>(&bytes[..20]).expect_err("cut").to_string();
    assert!(error.contains("Echo.freeze"), "{error}");
}
