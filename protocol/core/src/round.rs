//! The round as machines without input or output: the steward's [`Conductor`], a member's [`Duties`], and a
//! contributor's [`Checks`].
//!
//! Both are driven by levels, not edges: whatever has happened, and in whatever order, what to do next follows from
//! the ledger and from what was done already. That is what makes a restart at any point safe.

mod checks;
mod conductor;
mod duties;

pub use checks::{Check, Checks};
pub use conductor::{Awaited, ClaimedDelivery, Conductor, Output, Owed, ShownDelivery};
pub use duties::{Duties, Obligation};

#[cfg(test)]
mod tests;
