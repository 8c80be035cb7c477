//! The Muster node and steward: everything behind the binary `muster`.

pub mod cli;
pub mod config;
pub mod exit;
pub mod join;
pub mod organise;
pub mod progress;
pub mod steward;
