//! What each role of a run decides, as state machines without sockets, disk, clock, threads or randomness.
//!
//! A machine takes one input at a time, with the time at which it came, and gives effects out. Whoever drives it performs
//! the effects in their order; what takes long comes back as an input. The programs, the simulator and the fuzzers drive
//! the same machines.

pub mod keeper;
pub mod node;
pub mod steward;
pub mod verifier;

mod setback;
