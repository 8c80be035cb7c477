//! The arithmetic as a whole, through the interface that a run uses.

#![allow(clippy::unwrap_used)]

mod agreement;
mod families;
mod gradient;
mod learning;
mod local;
mod optimiser;
mod reference;
mod setting;
mod streamed;
