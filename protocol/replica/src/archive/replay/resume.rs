//! Interrupting a replay, and going on where it stopped.

use std::collections::BTreeMap;
use std::sync::Arc;

use borsh::{BorshDeserialize, BorshSerialize};
use muster_core::ids::{Digest, Height, MemberId, Round, RunId};
use muster_core::layout::Layout;
use muster_core::messages::record::Body;
use muster_core::state::{StateRoots, Update};

use super::Replay;
use super::aggregates::differs;
use super::plan::Sample;
use crate::archive::BadContribution;
use crate::held::HeldState;

/// How far a replay came, to go on from there. It says of what it names only that somebody checked it before: whoever
/// resumes trusts whoever wrote it, and must therefore know that it was itself.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Progress {
    /// The run.
    pub run: RunId,
    /// What was sampled.
    pub sample: Option<Sample>,
    /// Records re-executed, and the head after them.
    pub height: Height,
    /// See `height`.
    pub head: Digest,
    /// The round that comes next.
    pub round: Round,
    /// Earlier rounds whose states are still needed.
    pub held: Vec<Round>,
    /// Contributions recomputed so far.
    pub recomputed: u64,
    /// What was found: round, member, and the bits of the factor.
    bad: Vec<(Round, MemberId, Option<u64>)>,
}

/// Where an earlier process stopped and this one went on: what lies before it was re-executed by the earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// The first record of this process.
    pub height: Height,
    /// Its first round.
    pub round: Round,
}

/// What an interrupted replay has kept.
pub trait KeptProgress {
    /// The state before a round.
    fn state(&self, round: Round) -> Option<HeldState>;
    /// The aggregate of a round.
    fn aggregate(&self, layout: &Layout, round: Round) -> Option<Update>;
}

impl Replay<'_> {
    /// How far it came, and the states that go with it. Between two rounds.
    pub fn progress(&self) -> (Progress, impl Iterator<Item = (Round, &HeldState)>) {
        let bad = self.replayed.bad.iter();
        let progress = Progress {
            run: self.ledger.run(),
            sample: self.plan.sample,
            height: self.ledger.height(),
            head: self.ledger.head(),
            round: self.ledger.next_round(),
            held: self.held.keys().copied().collect(),
            recomputed: self.recomputed,
            bad: bad.map(|bad| (bad.round, bad.member, bad.factor.map(f64::to_bits))).collect(),
        };
        let newest = (self.ledger.next_round(), &self.state);
        (progress, self.held.iter().map(|(round, state)| (*round, state)).chain([newest]))
    }

    /// The aggregates that later steps may take, which go with the progress as well.
    pub fn waiting(&self) -> impl Iterator<Item = (Round, &Update)> {
        self.waiting.iter().map(|(round, update)| (*round, &**update))
    }

    /// Goes to where an interrupted replay of the same archive and sample came, with the states and aggregates that it kept.
    ///
    /// # Errors
    /// Why that is not possible, in words; the replay must then begin anew.
    pub fn skip(&mut self, progress: &Progress, kept: &dyn KeptProgress) -> Result<(), String> {
        if progress.run != self.ledger.run() {
            return Err("it belongs to another run".into());
        }
        if progress.sample != self.plan.sample {
            return Err("it belongs to another share of the contributions".into());
        }
        let mut sealed: BTreeMap<Round, StateRoots> = BTreeMap::new();
        while self.ledger.height() < progress.height {
            let signed = self.archive.records.get(self.ledger.height().index());
            let signed = signed.ok_or("it goes beyond the end of this ledger")?;
            // Records are cheap to check: only states and contributions are taken from the earlier process.
            let record = self.take(signed).map_err(|error| error.to_string())?;
            if let Body::Outcome(outcome) = &record.body {
                self.account(outcome.round);
            }
            sealed.insert(self.ledger.next_round(), self.ledger.state().clone());
        }
        // The archive may have been exchanged since: another ledger of the same height has another head.
        if self.ledger.head() != progress.head || self.ledger.next_round() != progress.round {
            return Err("it belongs to another ledger".into());
        }
        let checked = |round: Round| {
            // States are on the disk of this machine; one with another root than the sealed one is not gone on from.
            let held = kept.state(round).filter(|held| Some(&held.found_roots()) == sealed.get(&round));
            held.ok_or_else(|| format!("the state before round {round} is missing or not the sealed one"))
        };
        self.state = checked(progress.round)?;
        self.held = progress
            .held
            .iter()
            .map(|round| Ok((*round, checked(*round)?)))
            .collect::<Result<_, String>>()?;
        for view in self.ledger.rounds().filter(|view| self.ledger.waits(view.round())) {
            let layout = self.ledger.layout();
            let update = kept.aggregate(layout, view.round()).filter(|update| update.fits(layout));
            let update = update.filter(|update| {
                self.check_results(view, update, |result| differs(view, result.part)).is_ok()
            });
            let missing =
                || format!("the aggregate of round {} is missing or not the sealed one", view.round());
            self.waiting.insert(view.round(), Arc::new(update.ok_or_else(missing)?));
        }
        self.recomputed = progress.recomputed;
        self.resumed = Some(Resumed { height: progress.height, round: progress.round });
        let bad = progress.bad.iter().map(|(round, member, factor)| BadContribution {
            round: *round,
            member: *member,
            factor: factor.map(f64::from_bits),
        });
        self.replayed.bad = bad.collect();
        Ok(())
    }
}
