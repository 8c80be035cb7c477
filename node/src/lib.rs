//! The command line of `muster`, above the crates that do its work: the rehearsal, then steward and member, which do not
//! see each other, then the organiser's work. A rehearsal plays cheats, which no honest path names; a build without the
//! feature `rehearse` does not have it.

pub mod cli;
