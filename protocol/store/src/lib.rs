//! A member's files, safe against a crash at any moment; no network.
//!
//! A [`home::Home`] is one directory, held by one process. Everything in it is whole or absent: files are written
//! aside, synced and renamed into place; the ledger and the votes live in a [`journal::Journal`], whose writes are
//! on the disk before they return. What is read is checked against a checksum or a root, and every error names the
//! file and what to do.
//!
//! | in the home | what | after a power failure |
//! |---|---|---|
//! | `format`, `lock` | marks the directory; keeps a second process out | there |
//! | `*.key`, `ticket` | secrets, for the owner only | there |
//! | `journal.redb` | ledger, votes, notes | there |
//! | `states/`, `updates/` | states and aggregates by round | there |
//! | `exhibits/`, `evidence/` | what convicted members left | there |
//! | `contributions/` | blocks of recent rounds | may be lost, never wrong |
//! | `rows/` | states that are not kept in memory, and those for others to fetch | dropped at the next start |

pub mod archive;
pub mod bundles;
pub mod contributions;
pub mod dataset;
pub mod error;
mod files;
pub mod home;
pub mod journal;
pub mod offers;
pub mod patience;
pub mod reading;
pub mod regular;
pub mod room;
pub mod rows;
mod scratch;
pub mod secrets;
pub mod states;
pub mod updates;
mod vectors;
