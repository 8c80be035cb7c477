//! What each verifier owes in the rounds that are remembered, and what it has done.
//!
//! A round owes a verifier's node coin, and the audits that the coin makes due. Everybody can compute this from the
//! ledger and the board; the steward's clock decides when a verifier is idle.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::coins::{Coin, selects};
use crate::ids::{MemberId, Round, Slot};
use crate::ledger::{Ledger, RoundView, Standing};

/// What a verifier has done since this docket began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rounds that it shared in and that are over.
    pub rounds: u64,
    /// Node coins that it has shown.
    pub coins: u64,
    /// Audits that were its own to do.
    pub due: u64,
    /// Audits that it has given a verdict on.
    pub done: u64,
    /// Coins and audits that it left undone.
    pub overdue: u64,
    /// Verdicts of others that it has re-executed.
    pub rechecks: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rounds, coins, due, done, overdue, rechecks } = self;
        write!(
            f,
            "{coins} of {rounds} coins shown, {done} of {due} audits done, {overdue} left undone, {rechecks} rechecks"
        )
    }
}

/// What is owed.
#[derive(Default)]
pub(super) struct Roster {
    coins: BTreeMap<(Round, MemberId), Coin>,
    entries: BTreeMap<(Round, Slot), Entry>,
    /// Rounds that were counted, and whose coin is its own to show still.
    served: BTreeSet<(Round, MemberId)>,
    /// What each verifier owes for the longest time, and since when it is that.
    clocks: BTreeMap<MemberId, (Owed, u64)>,
    /// Verifiers that left something undone until its round was forgotten.
    missed: BTreeSet<MemberId>,
    counts: BTreeMap<MemberId, Counts>,
}

/// A round's coin, or the next step of an audit of one of its slots, by number.
type Owed = (Round, Option<(Slot, u8)>);

/// Which step of an audit waits for its verifier, by round, verifier and target; none while the member has the word.
pub(super) type Step<'a> = &'a dyn Fn(Round, &MemberId, &MemberId) -> Option<u8>;

/// Whether the contribution of a member to a round has passed.
pub(super) type Passed<'a> = &'a dyn Fn(Round, &MemberId) -> bool;

/// One contribution, and whether its inspector owes an audit of it.
struct Entry {
    verifier: MemberId,
    target: MemberId,
    due: Due,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Due {
    /// Its inspector has not shown its coin.
    Unknown,
    No,
    Yes,
    Done,
}

impl Roster {
    pub(super) fn counts(&self) -> &BTreeMap<MemberId, Counts> {
        &self.counts
    }

    pub(super) fn coin(&self, round: Round, verifier: &MemberId) -> Option<&Coin> {
        self.coins.get(&(round, *verifier))
    }

    /// A verifier has shown its coin of a round.
    pub(super) fn shown(&mut self, verifier: MemberId, coin: Coin) {
        if self.coins.insert((coin.round(), verifier), coin).is_none() {
            self.count(verifier).coins += 1;
        }
    }

    /// A verifier has given a verdict.
    pub(super) fn judged(&mut self, verifier: MemberId, target: MemberId, key: (Round, Slot)) {
        let before = self.entries.insert(key, Entry { verifier, target, due: Due::Done });
        let counted = before.is_some_and(|entry| entry.verifier == verifier && entry.due == Due::Yes);
        let counts = self.count(verifier);
        counts.due += u64::from(!counted);
        counts.done += 1;
    }

    /// A verifier has re-executed another one's verdict.
    pub(super) fn rechecked(&mut self, verifier: MemberId) {
        self.count(verifier).rechecks += 1;
    }

    /// Takes in what the ledger has: rounds that are over, inspectors that are gone, rounds that are forgotten.
    /// `passed` says which contributions have passed already.
    pub(super) fn update(&mut self, ledger: &Ledger, passed: Passed<'_>, step: Step<'_>) {
        self.forget(ledger, step);
        // DUTY-6: whoever is left in a round no more, as one that is idle, owes nothing there when it is forgotten.
        self.served.retain(|(round, verifier)| {
            ledger.round(*round).is_some_and(|view| view.inspectors().contains(verifier))
        });
        for view in ledger.rounds().filter(|view| view.auditable()) {
            for verifier in view.inspectors() {
                if self.served.insert((view.round(), *verifier)) {
                    self.count(*verifier).rounds += 1;
                }
            }
            for (slot, commitment) in view.commitments() {
                let done = passed(view.round(), &commitment.author);
                self.assign(ledger, view, slot, commitment.author, done);
            }
        }
    }

    fn assign(&mut self, ledger: &Ledger, view: &RoundView, slot: Slot, target: MemberId, done: bool) {
        let key = (view.round(), slot);
        let Some(verifier) = view.inspector(slot) else {
            self.entries.remove(&key);
            return;
        };
        let before = self.entries.get(&key).filter(|entry| entry.verifier == verifier).map(|entry| entry.due);
        // What another one left undone, or passed falsely, is due only while its state is surely kept.
        let kept = ledger.keeps_state(view.round());
        let sure = ledger.in_final_audit(view.round()) || kept && ledger.needs_no_coin(view, slot);
        let moved = before.is_none() && self.entries.contains_key(&key);
        let stale = moved && !kept;
        let due = match (before, self.coins.get(&(view.round(), verifier)), view.freeze_digest()) {
            (Some(Due::Yes | Due::Done), ..) => return,
            _ if done => Due::No,
            _ if sure => Due::Yes,
            (Some(Due::No), ..) => return,
            _ if stale => Due::No,
            (_, Some(coin), Some(freeze)) => {
                let ppm = view.commitment(slot).map_or(0, |commitment| commitment.audit_ppm);
                if selects(coin, &freeze, &target, ppm) { Due::Yes } else { Due::No }
            }
            _ => Due::Unknown,
        };
        self.count(verifier).due += u64::from(due == Due::Yes);
        self.entries.insert(key, Entry { verifier, target, due });
    }

    fn forget(&mut self, ledger: &Ledger, step: Step<'_>) {
        let Some(oldest) = ledger.rounds().next().map(RoundView::round) else { return };
        let kept = self.entries.split_off(&(oldest, Slot(0)));
        let gone = std::mem::replace(&mut self.entries, kept);
        let undone = gone.iter().filter(|((round, _), entry)| entry.owed(ledger, *round, step).is_some());
        let unshown = self.served.iter().filter(|key| key.0 < oldest && !self.coins.contains_key(key));
        let missed = undone.map(|(_, entry)| entry.verifier).chain(unshown.map(|(_, verifier)| *verifier));
        for verifier in missed.collect::<Vec<MemberId>>() {
            self.count(verifier).overdue += 1;
            self.missed.insert(verifier);
        }
        self.served.retain(|(round, _)| *round >= oldest);
        self.coins.retain(|(round, _), _| *round >= oldest);
    }

    /// A verifier is replaced in what it owes.
    pub(super) fn replaced(&mut self, verifier: MemberId, much: u64) {
        self.count(verifier).overdue += much;
    }

    /// Verifiers that are idle, each with a round of theirs and how much they owe: those that owe the same for
    /// `patience` milliseconds, and those that left something undone until its round was forgotten.
    pub(super) fn idle(
        &mut self,
        now: u64,
        patience: u64,
        ledger: &Ledger,
        step: Step<'_>,
    ) -> Vec<(MemberId, Round, u64)> {
        let owing = self.owing(ledger, step);
        self.clocks.retain(|verifier, _| owing.contains_key(verifier));
        let mut idle = Vec::new();
        for (verifier, (oldest, much)) in &owing {
            let clock = self.clocks.entry(*verifier).or_insert((*oldest, now));
            if clock.0 != *oldest {
                *clock = (*oldest, now);
            }
            if now >= clock.1.saturating_add(patience) {
                *clock = (*oldest, now);
                idle.push((*verifier, oldest.0, *much));
            }
        }
        for verifier in std::mem::take(&mut self.missed) {
            let mut rounds = ledger.rounds().filter(|view| view.auditable());
            let its = rounds.find(|view| view.inspectors().contains(&verifier)).map(RoundView::round);
            let named = idle.iter().any(|(named, ..)| *named == verifier);
            idle.extend(its.filter(|_| !named).map(|round| (verifier, round, 0)));
        }
        idle
    }

    /// What each verifier owes now: the oldest thing, and how much it is in all.
    fn owing(&self, ledger: &Ledger, step: Step<'_>) -> BTreeMap<MemberId, (Owed, u64)> {
        let mut owing: BTreeMap<MemberId, (Owed, u64)> = BTreeMap::new();
        let mut owe = |verifier: MemberId, owed: Owed| {
            let (oldest, much) = owing.entry(verifier).or_insert((owed, 0));
            *oldest = owed.min(*oldest);
            *much += 1;
        };
        for view in ledger.rounds().filter(|view| view.auditable()) {
            let unshown = view.inspectors().iter().filter(|id| self.coin(view.round(), id).is_none());
            unshown.for_each(|verifier| owe(*verifier, (view.round(), None)));
        }
        for ((round, slot), entry) in &self.entries {
            if let Some(step) = entry.owed(ledger, *round, step) {
                owe(entry.verifier, (*round, Some((*slot, step))));
            }
        }
        owing
    }

    /// When [`Roster::idle`] may next have something.
    pub(super) fn timeout(&self, patience: u64) -> Option<u64> {
        self.clocks.values().map(|(_, since)| since.saturating_add(patience)).min()
    }

    fn count(&mut self, verifier: MemberId) -> &mut Counts {
        self.counts.entry(verifier).or_default()
    }
}

impl Entry {
    /// The step that its verifier owes. An audit of somebody who is gone is nobody's duty.
    fn owed(&self, ledger: &Ledger, round: Round, step: Step<'_>) -> Option<u8> {
        let standing = ledger.member(&self.target).map(|member| member.standing);
        let present = !matches!(standing, None | Some(Standing::Left | Standing::Banned));
        let due = self.due == Due::Yes && present;
        due.then(|| step(round, &self.verifier, &self.target)).flatten()
    }
}
