//! What decodes, re-encodes to the same bytes: any bytes, and messages of which some bytes were changed.
#![no_main]

use std::fmt::Debug;

use arbitrary::{Arbitrary, Unstructured};
use borsh::{BorshDeserialize, BorshSerialize};
use libfuzzer_sys::fuzz_target;
use muster_core::channel::certificate;
use muster_core::codec::{decode, encode};
use muster_core::messages::{audit, call, enrol, evidence, gossip, offer, record, round, service, wire};
use muster_core::{coins, for_each_message, manifest, merkle, sketch, state};

#[derive(Arbitrary, Debug)]
struct Case<'a> {
    kind: u8,
    /// None: the bytes are the message. Else they are what a message is made of, and its encoding is changed.
    edits: Option<Vec<Edit>>,
    bytes: &'a [u8],
}

#[derive(Arbitrary, Debug)]
enum Edit {
    Flip(u16, u8),
    Cut(u16),
    Insert(u16, u8),
    Add(u16, i8),
}

impl Edit {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let (Self::Flip(at, _) | Self::Cut(at) | Self::Insert(at, _) | Self::Add(at, _)) = self;
        let at = usize::from(*at) % (bytes.len() + 1);
        match self {
            Self::Insert(_, byte) => bytes.insert(at, *byte),
            Self::Cut(_) => bytes.truncate(at),
            Self::Flip(_, bits) => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= bits),
            Self::Add(_, n) => {
                bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = byte.wrapping_add_signed(*n))
            }
        }
    }
}

fn check<T>(case: &Case<'_>)
where
    T: for<'a> Arbitrary<'a> + BorshSerialize + BorshDeserialize + PartialEq + Debug,
{
    let mut bytes = case.bytes.to_vec();
    if let Some(edits) = &case.edits {
        let Ok(value) = T::arbitrary(&mut Unstructured::new(case.bytes)) else { return };
        bytes = encode(&value);
        // From here on the bytes are nearly a message, which bytes drawn at random hardly ever are.
        assert_eq!(decode::<T>(&bytes).expect("an encoding decodes"), value);
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
    }
    if let Ok(value) = decode::<T>(&bytes) {
        assert_eq!(encode(&value), bytes);
    }
}

macro_rules! kinds {
    ($($module:ident::$kind:ident),* $(,)?) => {
        const KINDS: &[fn(&Case<'_>)] = &[$(check::<$module::$kind>),*];
    };
}

for_each_message!(kinds);

fuzz_target!(|case: Case<'_>| KINDS[usize::from(case.kind) % KINDS.len()](&case));
