//! The Muster verifier: audits a run by recomputing drawn leaves, follows one without a key, re-executes evidence and
//! whole archives.
//!
//! [`muster_roles::verifier`] decides what to ask, to recompute and to say; `watch` gives it a network, a disk and a thread
//! that computes. [`run`] is the whole program.

mod arguments;
pub mod calibrate;
mod check;
mod cli;
mod enroll;
mod notes;
mod observe;
mod output;
pub mod parts;
mod replay;
mod session;
mod spent;
mod watch;
mod worker;

pub use cli::{run, run_as};
pub use notes::Journaled;
pub use replay::{Place, ReplayFolder};
pub use worker::AuditWorker;
