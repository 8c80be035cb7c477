//! The Muster verifier: audits a run by recomputing drawn leaves, follows one without a key, re-executes evidence and
//! whole archives.
//!
//! [`audits`] decides what to ask, to recompute and to say, without sockets, [`parts`] which blocks to reduce again;
//! `watch` gives them a network, a disk and a thread that computes. [`run`] is the whole program.

mod arguments;
pub mod audits;
pub mod calibrate;
mod check;
mod cli;
mod coins;
mod enroll;
mod observe;
mod output;
pub mod parts;
mod replay;
mod session;
mod spent;
mod watch;
mod worker;

pub use cli::{run, run_as};
pub use coins::Coins;
pub use worker::Worker;
