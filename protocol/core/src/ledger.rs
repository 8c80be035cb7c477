//! The ledger: a hash chain of sealed records, and what follows from them.
//!
//! [`Ledger::apply`] is the only way forward. It checks everything that can be decided from the records alone, so a
//! steward that seals something else is caught by every member. What needs arithmetic (state roots, evidence) is
//! checked by the replica.

mod audits;
mod event;
mod failures;
mod members;
mod rewind;
mod rounds;
mod rows;
mod standing;
mod view;
mod waiting;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub use event::Event;
pub use members::{Closed, Member, Standing, Turnout};
pub use rows::{Holding, RowHolder, deal_rows, draw_rows, move_holder};
pub use view::{FrozenRow, RoundView, WeightedCommit};

use crate::error::{Reject, require};
use crate::ids::{Digest, Height, MemberId, Round, RunId};
use crate::layout::Layout;
use crate::manifest::Manifest;
use crate::messages::record::Record;
use crate::messages::record::{Body, Seats};
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

/// The chain so far.
#[derive(Clone)]
pub struct Ledger {
    manifest: Arc<Manifest>,
    layout: Arc<Layout>,
    run: RunId,
    head: Digest,
    height: Height,
    stage: Stage,
    state: StateRoots,
    next_round: Round,
    members: Vec<Member>,
    index: BTreeMap<MemberId, usize>,
    invitations: BTreeMap<Digest, u32>,
    /// Strangers admitted since the last outcome.
    strangers: u16,
    rounds: VecDeque<RoundView>,
    /// The record that opened the last round.
    opened: Option<Height>,
    /// What silent members owe an answer to.
    debts: BTreeMap<MemberId, members::Debt>,
    past: rewind::RewindTargets,
    /// Whether rows were dealt to members.
    dealt: bool,
    waiting: waiting::WaitingUpdates,
}

impl Ledger {
    /// The empty ledger of a run.
    pub fn new(manifest: Arc<Manifest>) -> Self {
        let (run, layout) = (manifest.run(), Layout::of_run(&manifest));
        let zero = ShardRoots {
            step: 0,
            beta_powers: [0; 2],
            exponents: Digest::default(),
            parameters: Digest::default(),
            first: Digest::default(),
            second: Digest::default(),
        };
        let rows = manifest.model.rows_after(0);
        let state = layout.all_shards(rows).map(|_| zero).collect();
        Self {
            layout: layout.into(),
            run,
            head: run.0,
            height: Height(0),
            stage: Stage::Empty,
            state,
            next_round: Round(0),
            members: Vec::new(),
            index: BTreeMap::new(),
            invitations: BTreeMap::new(),
            strangers: 0,
            rounds: VecDeque::new(),
            opened: None,
            debts: BTreeMap::new(),
            past: rewind::RewindTargets::default(),
            dealt: false,
            waiting: waiting::WaitingUpdates::new(),
            manifest,
        }
    }

    /// The manifest.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// The layout of the model.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// The run id.
    pub fn run(&self) -> RunId {
        self.run
    }

    /// Hash of the last record.
    pub fn head(&self) -> Digest {
        self.head
    }

    /// Height of the next record.
    pub fn height(&self) -> Height {
        self.height
    }

    /// What the run is doing.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Roots of the newest sealed state.
    pub fn state(&self) -> &StateRoots {
        &self.state
    }

    /// Whether this is the root of the state before that round, which is remembered or comes next.
    pub fn is_state_before(&self, round: Round, root: &Digest) -> bool {
        match self.round(round) {
            Some(view) => view.state().root() == *root,
            None => round == self.next_round && self.state.root() == *root,
        }
    }

    /// The round that comes next, or is being computed.
    pub fn next_round(&self) -> Round {
        self.next_round
    }

    /// Members in order of admission.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// One member.
    pub fn member(&self, id: &MemberId) -> Option<&Member> {
        self.members.get(*self.index.get(id)?)
    }

    /// How often an invitation was used, by the digest of its signed form.
    pub fn invitation_uses(&self, invitation: &Digest) -> u32 {
        self.invitations.get(invitation).copied().unwrap_or(0)
    }

    /// The round in progress, or the last one.
    pub fn current(&self) -> Option<&RoundView> {
        self.rounds.back()
    }

    /// A round that is still remembered.
    pub fn round(&self, round: Round) -> Option<&RoundView> {
        self.rounds.iter().rev().find(|view| view.round() == round)
    }

    /// Rounds still remembered, oldest first.
    pub fn rounds(&self) -> impl DoubleEndedIterator<Item = &RoundView> {
        self.rounds.iter()
    }

    /// The next record with this body, to be signed by the steward.
    pub fn record(&self, body: Body) -> Record {
        Record { height: self.height, previous: self.head, body }
    }

    /// Checks a record and moves past it. On an error nothing has changed.
    ///
    /// # Errors
    /// [`Reject`]: not the steward's signature, not the next height or head, or against a rule of its body.
    pub fn apply(&mut self, signed: &Signed<Record>) -> Result<Verified<Record>, Reject> {
        let record = signed.verify(self.run)?;
        if record.author() != self.manifest.steward {
            return Err(Reject::NotEntitled("seal records"));
        }
        // LEDGER-1: signed by the steward, heights from 0, each record on the head before it.
        if record.height != self.height {
            return Err(Reject::Stale("the record has another height"));
        }
        if record.previous != self.head {
            return Err(Reject::Rule("a record names the head before it"));
        }
        self.apply_body(&record, signed)?;
        self.head = record.head();
        if matches!(record.body, Body::Open(_) | Body::Outcome(_) | Body::Rewind(_)) {
            self.remember_state();
        }
        if matches!(record.body, Body::Begin(_) | Body::Outcome(_)) {
            self.open_round(&record.body);
        }
        // ROW-2: after each Outcome, and after each record while the run gathers. No Outcome comes then: a node for which a
        // row is drawn can end the waiting.
        if matches!(record.body, Body::Outcome(_)) || self.stage == Stage::Gathering {
            self.draw_rows();
        }
        self.height = self.height.next();
        Ok(record)
    }

    fn apply_body(&mut self, record: &Record, signed: &Signed<Record>) -> Result<(), Reject> {
        match &record.body {
            Body::Open(state) => self.open(state),
            Body::Admit(enrol) => self.admit(enrol, signed),
            Body::Begin(seats) => self.begin(seats),
            Body::Freeze(freeze) => self.freeze(freeze, signed, record.head()),
            Body::Inputs(inputs) => self.inputs(inputs, signed),
            Body::Reassign(reassign) => self.reassign(reassign),
            Body::Outcome(outcome) => self.outcome(outcome, record.head()),
            Body::Silence(request) => self.silence(request),
            Body::Answered(request) => self.answered(request),
            Body::Ban(ban) => self.ban(ban),
            Body::Return(back) => self.welcome_back(back),
            Body::Leave(leave) => self.leave(leave),
            Body::Rewind(rewind) => self.rewind(rewind),
            Body::Close(root) => self.close(root),
            Body::Idle(idle) => self.idle(idle),
            Body::CloseTree(order) => self.close_tree(order),
            Body::Ready(ready) => self.ready_with(ready),
            Body::Late(late) => self.late(late),
        }
    }

    // LEDGER-4: the roots are compared by the replica, which computes them itself.
    fn open(&mut self, state: &StateRoots) -> Result<(), Reject> {
        require(self.stage == Stage::Empty, "a run opens once")?;
        require(self.is_initial(state), "the initial state has applied nothing to any shard of the model")?;
        self.state = state.clone();
        self.stage = Stage::Gathering;
        Ok(())
    }

    // LEDGER-6
    fn begin(&mut self, seats: &Seats) -> Result<(), Reject> {
        require(self.stage == Stage::Gathering, "rounds begin after gathering")?;
        require(self.ready(), "a run begins with the members that its manifest waits for")?;
        require(**seats == *self.derived_seats(), "the seats follow from the ledger")?;
        // Those who could begin may all wait for their rows.
        require(!seats.is_empty(), "a round has seats")?;
        self.deal(&self.dealt(self.rows()));
        self.stage = Stage::Computing;
        Ok(())
    }

    /// Opens the next round on the current head with the seats that the record gives.
    fn open_round(&mut self, body: &Body) {
        let seats = match body {
            Body::Begin(seats) => seats,
            Body::Outcome(outcome) => &outcome.seats,
            _ => return,
        };
        if seats.is_empty() {
            return;
        }
        self.opened = Some(self.height);
        // ROUND-28: while the round before went on, its state was the newest one.
        let before = self.current().filter(|_| self.manifest.delay > 0 && matches!(body, Body::Outcome(_)));
        let base = before.map_or(&self.state, RoundView::state).clone();
        let view = self.opened_with(self.next_round, seats, base);
        // By number, not by count: a round is forgotten before the coin of DUTY-7 for it is shown, whatever was left
        // out.
        let oldest = view.round().0.saturating_sub(self.manifest.retention.contributions.max(1));
        self.rounds.push_back(view);
        while self.rounds.front().is_some_and(|view| view.round().0 < oldest) {
            self.rounds.pop_front();
        }
        self.write_off(Round(oldest));
    }

    // LEDGER-16
    fn close(&mut self, root: &Digest) -> Result<(), Reject> {
        require(self.stage == Stage::Auditing, "a run closes after its last round")?;
        require(*root == self.state.root(), "the last root is that of the last state")?;
        self.stage = Stage::Closed;
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
