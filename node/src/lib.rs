//! The Muster node and steward: everything behind the binary `muster`.

pub mod address;
pub mod attack;
pub mod backend;
mod bench;
pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod demo;
pub mod generate;
mod intake;
pub mod join;
pub mod leave;
pub mod members;
pub mod organise;
pub mod progress;
mod rates;
pub mod steward;

pub use muster_replica::exit;
