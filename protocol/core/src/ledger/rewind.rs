//! Going back: which states the ledger could return to, and for whose conviction.

use std::collections::{BTreeMap, VecDeque};

use super::{Ledger, Stage};
use crate::error::{Reject, require};
use crate::ids::{Digest, Round};
use crate::messages::record::{Ban, Rewind};
use crate::state::StateRoots;

/// What a rewind may name.
#[derive(Clone, Default)]
pub(super) struct RewindTargets {
    /// Sealed states that lead to the newest one, with the rounds that they are before.
    states: VecDeque<(Round, StateRoots)>,
    /// Evidence of sealed bans that nothing was rewound for yet, with the round of the offence.
    convictions: BTreeMap<Digest, Round>,
    /// The round that the last rewind went on with.
    last: Option<Round>,
}

impl RewindTargets {
    pub(super) fn convicted(&mut self, ban: &Ban) {
        self.convictions.insert(ban.evidence, ban.round);
    }
}

impl Ledger {
    /// The sealed state before a round, if it leads to the newest one and is within reach of a rewind.
    pub fn state_before(&self, round: Round) -> Option<&StateRoots> {
        self.past.states.iter().find(|(before, _)| *before == round).map(|(_, state)| state)
    }

    /// Keeps the newest state as one to go back to.
    pub(super) fn remember_state(&mut self) {
        // A run that never goes back need not remember where to.
        if !self.manifest.rollback.is_on() {
            return;
        }
        self.past.states.push_back((self.next_round, self.state.clone()));
        let most = self.manifest.rollback.most_rounds as usize + 1;
        while self.past.states.len() > most {
            self.past.states.pop_front();
        }
    }

    /// The first round that can be the next one when a rewind is sealed: this one, or the one that is
    /// `rollback.spacing` above the last rewind's.
    pub fn next_rewind(&self) -> Round {
        let spacing = self.manifest.rollback.spacing;
        let apart = self.past.last.map_or(0, |last| last.0.saturating_add(spacing));
        Round(self.next_round.0.max(apart))
    }

    /// Whether a rewind can go back to before `round`, now or at [`Self::next_rewind`].
    pub fn can_rewind_to(&self, round: Round) -> bool {
        let back = self.next_rewind().0.checked_sub(round.0);
        let within = back.is_some_and(|back| back <= self.manifest.rollback.most_rounds);
        within && round < self.next_round && self.state_before(round).is_some()
    }

    /// Whether a rewind can go back to before `round` now, and could not any more once one more round is over.
    pub fn is_last_chance_for(&self, round: Round) -> bool {
        let after = self.next_rewind().0.max(self.next_round.next().0);
        let back = after.saturating_sub(round.0);
        self.can_rewind_to(round) && back > self.manifest.rollback.most_rounds
    }

    // LEDGER-17: a Rewind goes to a sealed state of the present line, at most most_rounds back, for a sealed Ban.
    pub(super) fn rewind(&mut self, rewind: &Rewind) -> Result<(), Reject> {
        require(self.manifest.rollback.is_on(), "this run does not go back")?;
        // Not in the final audit: its audits have no coins, would no longer be due, and would leave their
        // verifiers idle.
        let between = matches!(self.stage, Stage::Gathering | Stage::Computing);
        require(between, "the state goes back between two updates, while rounds go on")?;
        // Bounds what a steward that measures harm wrongly can cost: a sealed ban each, and one Rewind in so
        // many rounds.
        let apart = self.next_rewind() == self.next_round;
        require(apart, "rewinds are rollback.spacing rounds apart")?;
        require(self.can_rewind_to(rewind.to), "a rewind goes back at most rollback.most_rounds rounds")?;
        require(self.state_before(rewind.to) == Some(&rewind.state), "a rewind goes back to a sealed state")?;
        let offence = self.past.convictions.get(&rewind.evidence);
        require(offence.is_some(), "a rewind names the evidence of a ban, each once")?;
        // One conviction takes the state back once.
        self.past.convictions.remove(&rewind.evidence);
        if self.stage == Stage::Computing {
            // The round that was open is abandoned; nobody answers for what was said in it.
            self.rounds.pop_back();
        }
        // LEDGER-18: rounds go on behind the one that was next; nothing that was said in it counts in another.
        self.next_round = self.next_round.next();
        self.past.last = Some(self.next_round);
        // Later ones are abandoned, and earlier ones out of reach by then: spacing is above most_rounds
        // (MANIFEST-12).
        self.past.states.clear();
        self.state = rewind.state.clone();
        self.withdraw_rows();
        // ROW-6: what was computed on states that are abandoned is not applied to this one.
        self.waiting.clear();
        self.stage = Stage::Gathering;
        Ok(())
    }
}
