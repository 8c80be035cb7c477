//! The rules of Muster, pure: no clock, socket, file, thread or operating-system randomness.
//!
//! Bytes, time and secrets come in as arguments; values go out. The layers, low to high, import only to the left:
//! `limits ids < error < codec < hash < sign merkle grid < manifest layout state < messages < channel < assign
//! sketch coins aggregate < audit < ledger < round`. A test in `tests/` enforces it.

pub mod codec;
pub mod error;
pub mod grid;
pub mod hash;
pub mod ids;
pub mod layout;
pub mod limits;
pub mod manifest;
pub mod merkle;
pub mod sign;
pub mod state;
