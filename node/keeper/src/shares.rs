//! Shares: what several members want of one process is divided among them, and is not given to whoever comes first.
//!
//! [`Turns`] is the order, [`Places`] are what is given: a few at a time, one for each member.

mod places;
mod turns;

pub use places::Places;
pub use turns::{Rank, Turns};
