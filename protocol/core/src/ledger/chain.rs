//! The end of the chain: the last record, the newest sealed state, and what the run is doing.

use std::sync::Arc;

use super::terms::Terms;
use crate::error::{Reject, require};
use crate::ids::{Digest, Height, Round};
use crate::messages::record::{Body, Record};
use crate::sign::{Signed, Verified};
use crate::state::{ShardRoots, StateRoots};

/// What the run is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing is sealed yet.
    Empty,
    /// Waiting for members.
    Gathering,
    /// Members compute leaves.
    Computing,
    /// Members deliver parts.
    Exchanging,
    /// Aggregators reduce.
    Reducing,
    /// The last round is over, the last audits run.
    Auditing,
    /// Over.
    Closed,
}

/// The end of the chain: what a record builds on. [`Stage`] changes here alone.
#[derive(Clone)]
pub(super) struct ChainTip {
    terms: Arc<Terms>,
    head: Digest,
    height: Height,
    stage: Stage,
    state: StateRoots,
    next_round: Round,
    /// The record that opened the last round.
    opened: Option<Height>,
}

impl ChainTip {
    pub(super) fn new(terms: &Arc<Terms>) -> Self {
        let zero = ShardRoots {
            step: 0,
            beta_powers: [0; 2],
            exponents: Digest::default(),
            parameters: Digest::default(),
            first: Digest::default(),
            second: Digest::default(),
        };
        let rows = terms.manifest().model.rows_after(0);
        Self {
            terms: Arc::clone(terms),
            head: terms.run().0,
            height: Height(0),
            stage: Stage::Empty,
            state: terms.layout().all_shards(rows).map(|_| zero).collect(),
            next_round: Round(0),
            opened: None,
        }
    }

    pub(super) fn head(&self) -> Digest {
        self.head
    }

    pub(super) fn height(&self) -> Height {
        self.height
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage
    }

    pub(super) fn state(&self) -> &StateRoots {
        &self.state
    }

    pub(super) fn next_round(&self) -> Round {
        self.next_round
    }

    /// The record that opened the last round.
    pub(super) fn opened(&self) -> Option<Height> {
        self.opened
    }

    pub(super) fn record(&self, body: Body) -> Record {
        Record { height: self.height, previous: self.head, body }
    }

    /// Rows of the newest sealed state.
    pub(super) fn rows(&self) -> u16 {
        self.state.rows()
    }

    /// Rows of the state that the open round leads to.
    pub(super) fn next_rows(&self) -> u16 {
        self.terms.manifest().model.rows_after(self.state.step().saturating_add(1))
    }

    /// Whether the outcome of this round, the open one, is the run's last.
    pub(super) fn ends_with(&self, round: Round) -> bool {
        let manifest = self.terms.manifest();
        let applied = self.state.step().saturating_add(1);
        applied >= manifest.training.rounds || round.next().0 >= manifest.most_rounds()
    }

    /// The first round whose seats are not sealed yet.
    pub(super) fn first_round_without(&self) -> Round {
        match self.stage {
            Stage::Computing | Stage::Exchanging | Stage::Reducing => self.next_round.next(),
            _ => self.next_round,
        }
    }

    /// Whether members are admitted in this stage.
    pub(super) fn takes_members(&self) -> bool {
        !matches!(self.stage, Stage::Empty | Stage::Auditing | Stage::Closed)
    }

    /// Whether a member sits out failures. Between rounds, and after the last one, nobody does: no round waits then.
    pub(super) fn is_barred(&self, barred: Round) -> bool {
        !matches!(self.stage, Stage::Gathering | Stage::Auditing) && self.first_round_without() < barred
    }

    /// The window A of AUDIT-26.
    pub(super) fn audit_window(&self) -> u32 {
        self.terms.manifest().audit_window()
    }

    /// Whether everybody keeps the state that a round began with (DUTY-3).
    pub(super) fn keeps_state(&self, round: Round) -> bool {
        round.0.saturating_add(self.audit_window()) >= self.next_round.0
    }

    /// Whether contributors still have to answer about this round (AUDIT-1): one round further back while no round is
    /// open, that is after the last one or after a Rewind.
    pub(super) fn is_answerable(&self, round: Round) -> bool {
        let after = u32::from(matches!(self.stage, Stage::Auditing | Stage::Gathering));
        round.0.saturating_add(self.audit_window()).saturating_add(after) >= self.next_round.0
    }

    /// Whether every contribution of a round is audited.
    pub(super) fn in_final_audit(&self, round: Round) -> bool {
        // LEDGER-19: the last ones that were opened, however many went back.
        let last = self.next_round.0.saturating_sub(self.terms.manifest().audit.final_rounds);
        self.stage == Stage::Auditing && round.0 >= last
    }

    /// Whether the round after the next one may not begin before every case of this round is closed (AUDIT-26).
    pub(super) fn is_last_call(&self, round: Round) -> bool {
        self.stage == Stage::Auditing || round.0.saturating_add(self.audit_window()) <= self.next_round.0
    }

    /// LEDGER-1: signed by the steward, heights from 0, each record on the head before it.
    pub(super) fn check_next(&self, signed: &Signed<Record>) -> Result<Verified<Record>, Reject> {
        let record = signed.verify(self.terms.run())?;
        if record.author() != self.terms.manifest().steward {
            return Err(Reject::NotEntitled("seal records"));
        }
        if record.height != self.height {
            return Err(Reject::Stale("the record has another height"));
        }
        if record.previous != self.head {
            return Err(Reject::Rule("a record names the head before it"));
        }
        Ok(record)
    }

    /// What the record says is applied; what it opens or draws goes by its head, and by its own height still.
    pub(super) fn apply_head(&mut self, head: Digest) {
        self.head = head;
    }

    /// Everything of the record is applied.
    pub(super) fn apply_height(&mut self) {
        self.height = self.height.next();
    }

    // LEDGER-4: the roots are compared by the replica, which computes them itself.
    pub(super) fn check_open(&self, state: &StateRoots) -> Result<(), Reject> {
        require(self.stage == Stage::Empty, "a run opens once")?;
        require(self.is_initial(state), "the initial state has applied nothing to any shard of the model")
    }

    pub(super) fn apply_open(&mut self, state: &StateRoots) {
        self.state = state.clone();
        self.stage = Stage::Gathering;
    }

    /// Whether roots are those of every shard of the model before any update (STATE-7, STATE-8).
    fn is_initial(&self, state: &StateRoots) -> bool {
        let rows = self.terms.manifest().model.rows_after(0);
        state.shards.len() == self.terms.layout().all_shards(rows).count()
            && state.shards.iter().all(|shard| shard.step == 0)
    }

    /// The first round begins, or the first one after the run went back.
    pub(super) fn apply_begin(&mut self) {
        self.stage = Stage::Computing;
    }

    /// The record at hand opens a round.
    pub(super) fn apply_opening(&mut self) {
        self.opened = Some(self.height);
    }

    pub(super) fn apply_freeze(&mut self) {
        self.stage = Stage::Exchanging;
    }

    pub(super) fn apply_inputs(&mut self) {
        self.stage = Stage::Reducing;
    }

    pub(super) fn apply_reassign(&mut self) {
        self.stage = Stage::Exchanging;
    }

    /// A round is over: its state is sealed, and the run goes on in this stage.
    pub(super) fn apply_outcome(&mut self, state: &StateRoots, next_round: Round, stage: Stage) {
        self.state = state.clone();
        self.next_round = next_round;
        self.stage = stage;
    }

    /// LEDGER-18: rounds go on behind the one that was next; nothing that was said in it counts in another.
    pub(super) fn apply_rewind(&mut self, state: &StateRoots) {
        self.next_round = self.next_round.next();
        self.state = state.clone();
        self.stage = Stage::Gathering;
    }

    // LEDGER-16
    pub(super) fn check_close(&self, root: &Digest) -> Result<(), Reject> {
        require(self.stage == Stage::Auditing, "a run closes after its last round")?;
        require(*root == self.state.root(), "the last root is that of the last state")
    }

    pub(super) fn apply_close(&mut self) {
        self.stage = Stage::Closed;
    }
}
