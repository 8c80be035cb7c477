//! COMMIT-8: whether another machine runs with this member's key, as from a copied data directory. The ledger shows it: a
//! Freeze has a commitment of this key that is not on this disk.

use std::collections::BTreeMap;

use muster_core::bug::OrBug;
use muster_core::ids::{Digest, MemberId, Round};
use muster_core::ledger::{Ledger, Stage};
use muster_core::messages::record::Freeze;
use muster_core::messages::round::Commit;
use muster_core::round::Obligation;
use muster_core::sign::Signed;

/// Rounds whose commitments are known, at most: a Freeze comes soon after the commitments.
const KEPT: usize = 4;

/// What this disk has signed, and what waits while somebody else may be signing.
#[derive(Default)]
pub(super) struct Twin {
    signed: BTreeMap<Round, Vec<Digest>>,
    /// The round that was open, or the last one, when this process had read everything for the first time.
    before: Option<Round>,
    /// Until when it is doubtful who signs for this key.
    doubtful: Option<u64>,
    /// What is to be computed once that is over.
    held: Option<Obligation>,
}

impl Twin {
    /// With what an earlier process of this disk committed to.
    pub(super) fn new(committed: &[Signed<Commit>], ledger: &Ledger) -> Self {
        let mut own = Self::default();
        own.committed(committed, ledger);
        own
    }

    /// These are written down here.
    pub(super) fn committed(&mut self, commits: &[Signed<Commit>], ledger: &Ledger) {
        for signed in commits {
            let own = signed.verify(ledger.run()).or_bug("a commitment that this member has signed");
            let Some(commit) = own else { continue };
            self.signed.entry(commit.round).or_default().push(signed.digest());
        }
        while self.signed.len() > KEPT {
            self.signed.pop_first();
        }
    }

    /// Everything was read for the first time.
    pub(super) fn began(&mut self, ledger: &Ledger) {
        self.before = ledger.current().map(|view| view.round());
    }

    /// Takes a Freeze at time `now`. Whether it shows that another machine signs for `me` while this one runs.
    pub(super) fn frozen(&mut self, now: u64, ledger: &Ledger, freeze: &Freeze, me: &MemberId) -> bool {
        let of_me = freeze.commits.iter().find(|signed| signed.claimed_signer() == *me);
        let here = |signed: &Signed<Commit>| {
            self.signed.get(&freeze.round).is_some_and(|own| own.contains(&signed.digest()))
        };
        let fresh = self.before.is_none_or(|before| freeze.round > before);
        match of_me {
            Some(signed) if !here(signed) => {
                // It may also be a disk that was restored from an older copy, whose last words were said before this process.
                let patience = u64::from(ledger.manifest().timers.commit);
                self.doubtful = Some(now.saturating_add(patience));
                fresh
            }
            // A round in which it could have committed, and nobody else has with its key.
            _ => {
                let seated = ledger.round(freeze.round).is_some_and(|view| view.slot_of(me).is_some());
                self.doubtful.take_if(|_| fresh && seated);
                false
            }
        }
    }

    /// What may be begun now. Computing waits while it is doubtful who signs.
    pub(super) fn begun(&mut self, now: u64, duty: Obligation) -> Option<Obligation> {
        if matches!(duty, Obligation::Compute { .. }) && self.is_doubtful(now) {
            self.held = Some(duty);
            return None;
        }
        Some(duty)
    }

    /// What has waited for long enough, if its round still waits for it.
    pub(super) fn released(&mut self, now: u64, ledger: &Ledger) -> Option<Obligation> {
        if self.is_doubtful(now) {
            return None;
        }
        let open = ledger.current().filter(|_| ledger.stage() == Stage::Computing).map(|view| view.round());
        let due =
            |duty: &Obligation| matches!(duty, Obligation::Compute { round, .. } if Some(*round) == open);
        self.held.take().filter(due)
    }

    /// When something follows from the time alone.
    pub(super) fn timeout(&self) -> Option<u64> {
        self.held.as_ref().and(self.doubtful)
    }

    fn is_doubtful(&self, now: u64) -> bool {
        self.doubtful.is_some_and(|until| now < until)
    }
}
