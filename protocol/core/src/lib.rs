//! The rules of Muster, pure: no clock, socket, file, thread or operating-system randomness.
//!
//! Bytes, time and secrets come in as arguments; values go out. The layers, low to high, import only to the left:
//! `limits ids ieee lock bug < error < codec < hash < sign merkle grid router < manifest packing < regime < layout state < sketch coins
//! aggregate standing < messages < channel contribution < assign < ledger < reduction < audit < round`. A test in `tests/`
//! enforces it.

pub mod aggregate;
pub mod assign;
pub mod audit;
pub mod bug;
pub mod channel;
pub mod codec;
pub mod coins;
pub mod contribution;
pub mod error;
pub mod grid;
pub mod hash;
pub mod ids;
pub mod ieee;
pub mod layout;
pub mod ledger;
pub mod limits;
pub mod lock;
pub mod manifest;
pub mod merkle;
pub mod messages;
pub mod packing;
pub mod reduction;
pub mod regime;
pub mod relays;
pub mod round;
pub mod rounding;
pub mod router;
pub mod sign;
pub mod sketch;
pub mod standing;
pub mod state;
