//! The cases that nothing sealed has closed yet (AUDIT-26).

use super::{Docket, is_present, owed_step};
use crate::ids::{MemberId, Round};
use crate::ledger::{Ledger, RoundView};

/// A due audit, or the coin that tells which are due, that nothing sealed has closed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenCase {
    /// Of which round.
    pub round: Round,
    /// Whose contribution; none for a coin.
    pub target: Option<MemberId>,
    /// Whose case it is.
    pub verifier: MemberId,
    /// What it waits for.
    pub waits_for: WaitsFor,
}

/// What an open case waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// The audited member: its table, or the opening of it.
    Member,
    /// The verifier: its coin, its next step, or all leaves recomputed.
    Verifier,
    /// The steward, which examines what the verifier has found.
    Judgement,
}

impl Docket {
    /// The cases that nothing sealed has closed yet, in order of rounds (AUDIT-26). [`Docket::idles`] must have seen the
    /// ledger as it is.
    pub fn open_cases<'a>(&'a self, ledger: &'a Ledger) -> impl Iterator<Item = OpenCase> + 'a {
        let rounds = ledger.rounds().filter(|view| view.auditable());
        rounds.flat_map(move |view| {
            let coins = self.roster.unshown(view).map(move |verifier| OpenCase {
                round: view.round(),
                target: None,
                verifier,
                waits_for: WaitsFor::Verifier,
            });
            coins.chain(self.open_in(ledger, view))
        })
    }

    /// The oldest round with an open case.
    pub fn oldest_open(&self, ledger: &Ledger) -> Option<Round> {
        self.open_cases(ledger).map(|case| case.round).next()
    }

    fn open_in<'a>(&'a self, ledger: &'a Ledger, view: &'a RoundView) -> impl Iterator<Item = OpenCase> + 'a {
        view.commitments().filter_map(move |(slot, commitment)| {
            let (round, target) = (view.round(), commitment.author);
            let open = |verifier, waits_for| OpenCase { round, target: Some(target), verifier, waits_for };
            if ledger.is_banned(&target) {
                return None;
            }
            if self.is_charged(ledger, round, &target) {
                let verifier = self.chargers(ledger, round, &target).next()?;
                return Some(open(verifier, WaitsFor::Judgement));
            }
            let verifier = self.roster.owes(round, slot)?;
            if owed_step(&self.asked, &self.cases, ledger, (round, &verifier, &target)).is_some() {
                return Some(open(verifier, WaitsFor::Verifier));
            }
            is_present(ledger, &target).then(|| open(verifier, WaitsFor::Member))
        })
    }
}
