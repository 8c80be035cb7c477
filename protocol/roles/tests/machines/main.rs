//! Machines of nodes against the steward's machine.
#![allow(clippy::unwrap_used)] // the helpers, too, are tests

mod calls;
mod exhibits;
mod node;
mod run;
mod steward;
