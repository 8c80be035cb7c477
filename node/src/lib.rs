//! The Muster node and steward: everything behind the binary `muster`.
//!
//! Modules see only those below them: the command line, then the rehearsal, then steward and member, which do not see each
//! other, then the organiser's work. A rehearsal plays cheats, which no honest path names; a build without the feature
//! `rehearse` does not have it.

pub mod cli;

pub use muster_replica::exit;
