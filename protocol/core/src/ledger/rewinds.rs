//! Going back: which states the ledger could return to, and for whose conviction.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::chain::{ChainTip, Stage};
use super::terms::Terms;
use crate::error::{Reject, require};
use crate::ids::{Digest, Round};
use crate::messages::record::{Ban, Rewind};
use crate::state::StateRoots;

/// What a rewind may name.
#[derive(Clone)]
pub(super) struct Rewinds {
    terms: Arc<Terms>,
    /// Sealed states that lead to the newest one, with the rounds that they are before.
    states: VecDeque<(Round, StateRoots)>,
    /// Evidence of sealed bans that nothing was rewound for yet, with the round of the offence.
    convictions: BTreeMap<Digest, Round>,
    /// The round that the last rewind went on with.
    last: Option<Round>,
}

impl Rewinds {
    pub(super) fn new(terms: &Arc<Terms>) -> Self {
        let terms = Arc::clone(terms);
        Self { terms, states: VecDeque::new(), convictions: BTreeMap::new(), last: None }
    }

    /// The sealed state before a round, if it leads to the newest one and is within reach of a rewind.
    pub(super) fn state_before(&self, round: Round) -> Option<&StateRoots> {
        self.states.iter().find(|(before, _)| *before == round).map(|(_, state)| state)
    }

    /// The first round that can be the next one when a rewind is sealed: this one, or the one that is
    /// `rollback.spacing` above the last rewind's.
    pub(super) fn next_rewind(&self, next_round: Round) -> Round {
        let spacing = self.terms.manifest().rollback.spacing;
        let apart = self.last.map_or(0, |last| last.0.saturating_add(spacing));
        Round(next_round.0.max(apart))
    }

    /// Whether a rewind can go back to before `round`, now or at [`Self::next_rewind`].
    pub(super) fn can_rewind_to(&self, round: Round, next_round: Round) -> bool {
        let back = self.next_rewind(next_round).0.checked_sub(round.0);
        let within = back.is_some_and(|back| back <= self.terms.manifest().rollback.most_rounds);
        within && round < next_round && self.state_before(round).is_some()
    }

    /// Whether a rewind can go back to before `round` now, and could not any more once one more round is over.
    pub(super) fn is_last_chance_for(&self, round: Round, next_round: Round) -> bool {
        let after = self.next_rewind(next_round).0.max(next_round.next().0);
        let back = after.saturating_sub(round.0);
        self.can_rewind_to(round, next_round) && back > self.terms.manifest().rollback.most_rounds
    }

    /// Keeps the newest state as one to go back to.
    pub(super) fn apply_state(&mut self, next_round: Round, state: &StateRoots) {
        let rollback = &self.terms.manifest().rollback;
        // A run that never goes back need not remember where to.
        if !rollback.is_on() {
            return;
        }
        self.states.push_back((next_round, state.clone()));
        let most = rollback.most_rounds as usize + 1;
        while self.states.len() > most {
            self.states.pop_front();
        }
    }

    pub(super) fn apply_ban(&mut self, ban: &Ban) {
        self.convictions.insert(ban.evidence, ban.round);
    }

    // LEDGER-17: a Rewind goes to a sealed state of the present line, at most most_rounds back, for a sealed Ban.
    pub(super) fn check_rewind(&self, chain: &ChainTip, rewind: &Rewind) -> Result<(), Reject> {
        require(self.terms.manifest().rollback.is_on(), "this run does not go back")?;
        // Not in the final audit: its audits have no coins, would no longer be due, and would leave their
        // verifiers idle.
        let between = matches!(chain.stage(), Stage::Gathering | Stage::Computing);
        require(between, "the state goes back between two updates, while rounds go on")?;
        // Bounds what a steward that measures harm wrongly can cost: a sealed ban each, and one Rewind in so
        // many rounds.
        let next_round = chain.next_round();
        let apart = self.next_rewind(next_round) == next_round;
        require(apart, "rewinds are rollback.spacing rounds apart")?;
        require(
            self.can_rewind_to(rewind.to, next_round),
            "a rewind goes back at most rollback.most_rounds rounds",
        )?;
        require(self.state_before(rewind.to) == Some(&rewind.state), "a rewind goes back to a sealed state")?;
        let offence = self.convictions.get(&rewind.evidence);
        require(offence.is_some(), "a rewind names the evidence of a ban, each once")
    }

    /// The run has gone back, and goes on with this round.
    pub(super) fn apply_rewind(&mut self, rewind: &Rewind, next_round: Round) {
        // One conviction takes the state back once.
        self.convictions.remove(&rewind.evidence);
        self.last = Some(next_round);
        // Later ones are abandoned, and earlier ones out of reach by then: spacing is above most_rounds
        // (MANIFEST-12).
        self.states.clear();
    }
}
