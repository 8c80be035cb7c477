//! Any records sealed by the real steward's key, honest ones among them: no panic; on an error nothing has changed; a
//! second reader of the same bytes comes to the same head; and nobody who is out comes back in.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_core::ledger::Ledger;
use muster_fuzz::records::{Readers, Step};
use muster_fuzz::{PEOPLE, manifest};

fuzz_target!(|input: (u8, Vec<Step>)| {
    let (settings, steps) = input;
    let (rounds, nodes) = (1 + u32::from(settings % 4), 1 + u16::from(settings / 4) % PEOPLE as u16);
    let mut readers = Readers::new(Ledger::new(manifest(rounds, nodes)));
    steps.iter().take(64).for_each(|step| drop(readers.show(step)));
    readers.finish();
});
