//! What people were told already, so that they are told once.

use std::collections::BTreeSet;

use muster_core::ids::{MemberId, Round};
use muster_core::round::Awaited;

/// What was told last.
#[derive(Default)]
pub(super) struct Told {
    /// Members reported for not checking results.
    stalling: BTreeSet<MemberId>,
    /// The round reported as waiting for an audit.
    held: Option<Round>,
    /// What the open round was reported to wait for.
    awaited: Option<(Round, Awaited)>,
}

impl Told {
    /// These members do not check results; returns those to report.
    pub(super) fn stalling(&mut self, now: BTreeSet<MemberId>) -> Vec<MemberId> {
        let new = now.difference(&self.stalling).copied().collect();
        self.stalling = now;
        new
    }

    /// Whether this round was reported as waiting for an audit.
    pub(super) fn has_held(&self, round: Round) -> bool {
        self.held == Some(round)
    }

    /// This round is reported as waiting for an audit.
    pub(super) fn held(&mut self, round: Round) {
        self.held = Some(round);
    }

    /// The Freeze of the open round waits for this; returns what to report.
    pub(super) fn awaited(&mut self, awaited: Option<(Round, Awaited)>) -> Option<(Round, Awaited)> {
        if awaited == self.awaited {
            return None;
        }
        self.awaited = awaited;
        awaited
    }
}
