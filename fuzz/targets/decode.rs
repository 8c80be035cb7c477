//! What decodes, re-encodes to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_core::codec::{decode, encode};
use muster_core::manifest::Manifest;
use muster_core::messages::audit::Evidence;
use muster_core::messages::enrol::{Enrol, Ticket};
use muster_core::messages::record::Record;
use muster_core::messages::round::{Commit, Delivered};
use muster_core::messages::wire::{Request, Response};

macro_rules! canonical {
    ($bytes:expr, $($type:ty),*) => { $(
        if let Ok(value) = decode::<$type>($bytes) {
            assert_eq!(encode(&value), $bytes);
        }
    )* };
}

fuzz_target!(|input: (u8, &[u8])| {
    let (kind, bytes) = input;
    match kind % 9 {
        0 => canonical!(bytes, Manifest),
        1 => canonical!(bytes, Evidence),
        2 => canonical!(bytes, Enrol),
        3 => canonical!(bytes, Ticket),
        4 => canonical!(bytes, Record),
        5 => canonical!(bytes, Commit),
        6 => canonical!(bytes, Delivered),
        7 => canonical!(bytes, Request),
        _ => canonical!(bytes, Response),
    }
});
