//! Re-executing a run from its archive, round by round, in whole or in samples; it can be interrupted and resumed.

mod aggregates;
mod bans;
mod contributions;
mod plan;
mod resume;

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_compute::{Backend, Exact};
use muster_core::error::Misuse;
use muster_core::ids::{Round, Row};
use muster_core::ledger::{Ledger, RoundView, Stage};
use muster_core::messages::record::{Body, Outcome, Record, Rewind};
use muster_core::sign::{Signed, Verified};
use muster_core::state::{ShardStep, Update};
use muster_store::rows::RowFiles;

use self::plan::{Outlook, leaves};
pub use self::plan::{Plan, Sample};
pub use self::resume::{KeptProgress, Progress, Resumed};
use super::states::initial;
use super::{Archive, ReplayError, Replayed, mean_loss, wrong};
use crate::crew::Crew;
use crate::held::{HeldState, Stepper};
use crate::memory::Room;
use crate::replica::mean_held_out_loss;
use crate::stopwatch::Stopwatch;

/// A run that is being re-executed.
pub struct Replay<'a> {
    archive: &'a Archive,
    plan: Plan,
    outlook: Outlook,
    ledger: Ledger,
    state: HeldState,
    /// Where rows are that are not in memory.
    row_files: Option<RowFiles>,
    /// For everything but leaves.
    arithmetic: Exact,
    crew: Crew,
    held: BTreeMap<Round, HeldState>,
    /// Aggregates of which something was not applied yet.
    waiting: BTreeMap<Round, Arc<Update>>,
    /// Rounds of which somebody is convicted later: the ledger may have forgotten them by then.
    views: BTreeMap<Round, RoundView>,
    recomputed: u64,
    counted: u64,
    resumed: Option<Resumed>,
    replayed: Replayed,
}

impl<'a> Replay<'a> {
    /// At the beginning of the run.
    ///
    /// # Errors
    /// [`Misuse`] when this machine cannot compute in defined bits.
    pub fn begin(archive: &'a Archive, plan: &Plan) -> Result<Self, Misuse> {
        let (manifest, dataset) = (archive.manifest.clone(), archive.dataset.clone());
        let mut arithmetic = Exact::new(plan.threads, plan.path)?;
        let state = initial(&manifest, &dataset, &mut arithmetic)?;
        Ok(Self {
            archive,
            plan: plan.clone(),
            outlook: Outlook::of(archive, plan.sample.as_ref()),
            ledger: Ledger::new(manifest.clone()),
            state: HeldState::whole(state),
            row_files: None,
            arithmetic,
            crew: Crew::new(manifest, dataset.clone(), plan.threads, plan.path)?,
            held: BTreeMap::new(),
            waiting: BTreeMap::new(),
            views: BTreeMap::new(),
            recomputed: 0,
            counted: 0,
            resumed: None,
            replayed: Replayed::default(),
        })
    }

    /// The same, which keeps rows on the disk: in memory are the trunk and the row that it computes on. A state that takes more
    /// than its room is on the disk as a whole.
    ///
    /// # Errors
    /// What the disk reports.
    pub fn with_row_files(mut self, files: RowFiles, room: Room) -> Result<Self, ReplayError> {
        let whole = self.state.bytes() > room.state;
        if whole || self.state.roots.rows() > 1 {
            self.state.put_away(&files, whole)?;
        }
        self.row_files = Some(files).filter(|_| whole || self.archive.manifest.model.rows() > 1);
        Ok(self)
    }

    /// The same, with leaves of contributions on a device, which has defined bits. What bans stand on is recomputed on the
    /// processor.
    pub fn with_device(self, device: Box<dyn Backend>) -> Self {
        Self { crew: self.crew.with_device(device), ..self }
    }

    /// Leaves to recompute from the beginning to the end, at most.
    pub fn leaves(&self) -> u64 {
        self.outlook.leaves
    }

    /// The ledger as far as it was re-executed.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Contributions recomputed so far, of how many that counted.
    pub fn recomputed(&self) -> (u64, u64) {
        (self.recomputed, self.counted)
    }

    /// Where this process went on from what an earlier one had kept; `None` if it began at the beginning.
    pub fn resumed(&self) -> Option<Resumed> {
        self.resumed
    }

    /// Leaves of the rounds that are over, to compare with [`Replay::leaves`].
    pub fn leaves_done(&self) -> u64 {
        let run = self.ledger.run();
        let over = self.archive.records.iter().take(self.ledger.height().index());
        let records = over.filter_map(|signed| signed.verify(run).ok());
        records.map(|record| leaves(&record, self.plan.sample.as_ref(), run)).sum()
    }

    /// Computes something with known bits.
    ///
    /// # Errors
    /// [`Misuse`] when a bit differs.
    pub fn self_test(&mut self) -> Result<(), Misuse> {
        self.arithmetic.self_test()
    }

    /// Re-executes up to the end of a round; `None` once the run is over. `told` is called after each leaf, on any
    /// thread.
    ///
    /// # Errors
    /// [`ReplayError`] at the first thing that differs.
    pub fn round(&mut self, told: &(dyn Fn() + Sync)) -> Result<Option<Round>, ReplayError> {
        let archive = self.archive;
        while let Some(signed) = archive.records.get(self.ledger.height().index()) {
            let record = self.take(signed)?;
            match &record.body {
                Body::Outcome(outcome) => {
                    self.outcome(outcome, told)?;
                    return Ok(Some(outcome.round));
                }
                Body::Ban(ban) => self.ban(ban)?,
                Body::Rewind(rewind) => self.rewind(rewind)?,
                _ => {}
            }
        }
        // A ledger that was cut off has nothing that differs in it; it is not whole all the same.
        if self.ledger.stage() == Stage::Closed {
            return Ok(None);
        }
        Err(ReplayError::Wrong("the ledger ends before the run was closed".into()))
    }

    /// The state before the next round.
    pub fn into_state(self) -> HeldState {
        self.state
    }

    /// What was found, at the end.
    pub fn finish(mut self) -> Replayed {
        let manifest = &self.archive.manifest;
        self.replayed.root = self.state.roots.root();
        self.replayed.held_out_loss =
            mean_held_out_loss(&mut self.arithmetic, manifest, &self.archive.dataset, &self.state);
        self.replayed
    }

    /// Moves the ledger past a record.
    fn take(&mut self, signed: &Signed<Record>) -> Result<Verified<Record>, ReplayError> {
        let at = format!("record {}", self.ledger.height());
        let record = self.ledger.apply(signed).map_err(wrong(&at))?;
        if let Body::Open(roots) = &record.body {
            // The initial state follows from manifest and text; a steward may have begun with another one.
            if *roots != self.state.roots {
                let (computed, sealed) = (self.state.roots.root(), roots.root());
                let what = format!("{at}: the initial state is {computed}, sealed is {sealed}");
                return Err(ReplayError::Wrong(what));
            }
            self.hold();
        }
        if let Body::Outcome(outcome) = &record.body {
            let height = record.height;
            self.views.retain(|round, _| self.outlook.needs(*round, height));
            // Kept now: by the record that needs it, the ledger may have forgotten the round.
            let view = self.ledger.round(outcome.round).filter(|_| self.outlook.needs(outcome.round, height));
            self.views.extend(view.map(|view| (outcome.round, view.clone())));
        }
        Ok(record)
    }

    /// A round as the ledger has it, or had it when it was over.
    fn view(&self, round: Round) -> Option<&RoundView> {
        self.ledger.round(round).or_else(|| self.views.get(&round))
    }

    /// Keeps the newest state if a later record needs it, and drops those that none needs any more.
    fn hold(&mut self) {
        let (round, height) = (self.ledger.next_round(), self.ledger.height());
        // A state is three vectors of the model: only those that a later ban or Rewind needs are kept.
        let delayed = self.ledger.regime().computes_behind();
        let needs = |of: Round| {
            // ROUND-28: leaves of a round may be computed on the state before the one before it.
            let on_it = delayed && (of.next() >= round || self.outlook.needs(of.next(), height));
            on_it || self.outlook.needs(of, height)
        };
        self.held.retain(|of, _| needs(*of));
        if needs(round) {
            self.held.insert(round, self.state.clone());
        }
    }

    fn outcome(&mut self, outcome: &Outcome, told: &(dyn Fn() + Sync)) -> Result<(), ReplayError> {
        let round = outcome.round;
        let view = self.ledger.round(round).cloned();
        let view = view.ok_or_else(|| ReplayError::Wrong(format!("round {round} is not open")))?;
        let aggregate = Arc::new(self.update(&view, told)?);
        self.waiting.insert(round, aggregate);
        let (layout, waiting) = (self.ledger.layout().clone(), &self.waiting);
        // Shard by shard: an aggregate is as large as all of them.
        let step = |step: &ShardStep| {
            let own = Update::of_steps(&layout, std::slice::from_ref(step), |of| waiting.get(&of).cloned())?;
            let late = if step.round == round { Vec::new() } else { own.shards.clone() };
            Some(Update { late, behind: view.is_behind(), ..own })
        };
        let steps = view.shard_steps();
        let has =
            |step: &ShardStep| waiting.get(&step.round).is_some_and(|of| of.shards.contains(&step.shard));
        if !steps.iter().all(has) {
            return Err(ReplayError::Wrong(format!("round {round} applies what no earlier round gave")));
        }
        let manifest = &*self.archive.manifest;
        let rows: Vec<Row> = (0..manifest.model.rows()).map(Row).collect();
        let (arithmetic, stopwatch) = (&mut self.arithmetic, &Stopwatch::default());
        let with = Stepper { manifest, arithmetic, row_files: self.row_files.as_ref(), stopwatch };
        self.state.advance(with, &rows, steps.iter().filter_map(step).map(Ok))?;
        // As large as the model each: only those of which a row waits.
        self.waiting.retain(|round, _| self.ledger.waits(*round));
        let roots = &self.state.roots;
        // Each round, so that the first step that does not follow is named, and nothing is computed on it.
        if *roots != outcome.state {
            let (computed, sealed) = (roots.root(), outcome.state.root());
            let what = format!("round {round} gives state {computed}, sealed is {sealed}");
            return Err(ReplayError::Wrong(what));
        }
        self.account(round);
        self.hold();
        Ok(())
    }

    /// What the ledger alone says of a round that is over.
    fn account(&mut self, round: Round) {
        let Some(view) = self.ledger.round(round) else { return };
        for (slot, commitment) in view.commitments() {
            if view.counted(slot) {
                self.counted += 1;
                *self.replayed.leaves.entry(commitment.author).or_default() +=
                    u64::from(commitment.commit.leaves);
            }
        }
        self.replayed.losses.push(mean_loss(view));
    }

    /// Goes back to a state that was re-executed before.
    fn rewind(&mut self, rewind: &Rewind) -> Result<(), ReplayError> {
        let held = self.held.get(&rewind.to).filter(|held| held.roots == rewind.state);
        let missing =
            || ReplayError::Wrong(format!("the state before round {} is not the sealed one", rewind.to));
        self.state = held.ok_or_else(missing)?.clone();
        self.hold();
        Ok(())
    }
}
