//! The Muster node and steward.

pub mod join;
pub mod progress;
