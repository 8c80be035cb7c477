//! Going back: which states the ledger could return to, and for whose conviction.

use std::collections::{BTreeMap, VecDeque};

use super::{Ledger, Stage};
use crate::error::Reject;
use crate::ids::{Digest, Round};
use crate::messages::record::{Ban, Rewind};
use crate::state::StateRoots;

/// What a rewind may name.
#[derive(Clone, Default)]
pub(super) struct Past {
    /// Sealed states that lead to the newest one, with the rounds that they are before.
    states: VecDeque<(Round, StateRoots)>,
    /// Evidence of sealed bans that nothing was rewound for yet, with the round of the offence.
    convictions: BTreeMap<Digest, Round>,
    /// The round that the last rewind went on with.
    last: Option<Round>,
}

impl Past {
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
        if !self.manifest.rollback.is_on() {
            return;
        }
        self.past.states.push_back((self.next_round, self.state));
        let most = self.manifest.rollback.most_rounds as usize + 1;
        while self.past.states.len() > most {
            self.past.states.pop_front();
        }
    }

    /// The first round to which the run may go back now; none while it may not.
    ///
    /// # Errors
    /// [`Reject`] naming the rule that stands against it.
    pub fn check_rewind_time(&self) -> Result<Round, Reject> {
        let rollback = &self.manifest.rollback;
        self.require(rollback.is_on(), "this run does not go back")?;
        let between = matches!(self.stage, Stage::Gathering | Stage::Computing);
        self.require(between, "the state goes back between two updates, while rounds go on")?;
        let spaced = |last: Round| self.next_round.0 >= last.0.saturating_add(rollback.spacing);
        self.require(self.past.last.is_none_or(spaced), "rewinds are rollback.spacing rounds apart")?;
        let first = self.past.states.iter().map(|(before, _)| *before);
        let within = |round: &Round| self.next_round.0 - round.0 <= rollback.most_rounds;
        let mut first = first.filter(|round| *round < self.next_round && within(round));
        first.next().ok_or(Reject::Rule("there is an update to take back"))
    }

    // LEDGER-17: a Rewind goes to a sealed state of the present line, at most most_rounds back, for a sealed Ban.
    pub(super) fn rewind(&mut self, rewind: &Rewind) -> Result<(), Reject> {
        let first = self.check_rewind_time()?;
        self.require(
            rewind.to >= first && rewind.to < self.next_round,
            "a rewind goes back at most rollback.most_rounds rounds",
        )?;
        self.require(
            self.state_before(rewind.to) == Some(&rewind.state),
            "a rewind goes back to a sealed state",
        )?;
        let offence = self.past.convictions.get(&rewind.evidence);
        self.require(offence.is_some(), "a rewind names the evidence of a ban, each once")?;
        self.past.convictions.remove(&rewind.evidence);
        if self.stage == Stage::Computing {
            self.rounds.pop_back();
        }
        // LEDGER-18: rounds go on behind the one that was next; nothing that was said in it counts in another.
        self.next_round = self.next_round.next();
        self.past.last = Some(self.next_round);
        self.past.states.clear();
        self.state = rewind.state;
        self.stage = Stage::Gathering;
        Ok(())
    }
}
