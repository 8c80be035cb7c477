//! The ledger: a hash chain of sealed records, and what follows from them.
//!
//! [`Ledger::apply`] is the only way forward. It checks everything that can be decided from the records alone, so a
//! steward that seals something else is caught by every member. What needs arithmetic (state roots, evidence) is
//! checked by the replica.
//!
//! What follows is kept in rooms: `chain`, `roster`, `rounds`, `rows` and `rewinds`, each a struct with private fields.
//! `check_x` of a room says whether a record is good, and changes nothing; `apply_x` does what the record says, and cannot
//! fail. The ledger puts them in order: all checks of a record come before the first change.

mod audits;
mod chain;
mod event;
mod member;
mod members;
mod phases;
mod queries;
mod rewinds;
mod roster;
mod rounds;
mod rows;
mod terms;
mod view;

use std::sync::Arc;

use chain::ChainTip;
pub use chain::Stage;
pub use event::Event;
pub use member::{Closed, Holding, Member, Service, Standing, Turnout};
use rewinds::Rewinds;
use roster::Roster;
use rounds::Rounds;
use rows::Rows;
pub use rows::{RowHolder, deal_rows, draw_rows, move_holder};
use terms::Terms;
pub use view::{FrozenRow, RoundView, WeightedCommit};

use crate::error::{Reject, require};
use crate::ids::{Digest, Height, MemberId, Round, RunId};
use crate::layout::Layout;
use crate::manifest::Manifest;
use crate::messages::record::{Body, Record, Rewind, Seats};
use crate::regime::Regime;
use crate::sign::{Signed, Verified};
use crate::state::StateRoots;

/// What follows from the sealed records so far.
#[derive(Clone)]
pub struct Ledger {
    terms: Arc<Terms>,
    chain: ChainTip,
    roster: Roster,
    rounds: Rounds,
    rewinds: Rewinds,
    rows: Rows,
}

impl Ledger {
    /// The empty ledger of a run.
    pub fn new(manifest: Arc<Manifest>) -> Self {
        let terms = Terms::of(manifest);
        Self {
            chain: ChainTip::new(&terms),
            roster: Roster::new(&terms),
            rounds: Rounds::new(&terms),
            rewinds: Rewinds::new(&terms),
            rows: Rows::new(&terms),
            terms,
        }
    }

    /// The manifest.
    pub fn manifest(&self) -> &Arc<Manifest> {
        self.terms.manifest()
    }

    /// The layout of the model.
    pub fn layout(&self) -> &Arc<Layout> {
        self.terms.layout()
    }

    /// What the settings of the run mean for those who keep its rules.
    pub fn regime(&self) -> &Regime {
        self.terms.regime()
    }

    /// The run id.
    pub fn run(&self) -> RunId {
        self.terms.run()
    }

    /// Hash of the last record.
    pub fn head(&self) -> Digest {
        self.chain.head()
    }

    /// Height of the next record.
    pub fn height(&self) -> Height {
        self.chain.height()
    }

    /// What the run is doing.
    pub fn stage(&self) -> Stage {
        self.chain.stage()
    }

    /// Roots of the newest sealed state.
    pub fn state(&self) -> &StateRoots {
        self.chain.state()
    }

    /// Whether this is the root of the state before that round, which is remembered or comes next.
    pub fn is_state_before(&self, round: Round, root: &Digest) -> bool {
        match self.round(round) {
            Some(view) => view.state().root() == *root,
            None => round == self.next_round() && self.state().root() == *root,
        }
    }

    /// The round that comes next, or is being computed.
    pub fn next_round(&self) -> Round {
        self.chain.next_round()
    }

    /// Members in order of admission.
    pub fn members(&self) -> &[Member] {
        self.roster.members()
    }

    /// One member.
    pub fn member(&self, id: &MemberId) -> Option<&Member> {
        self.roster.member(id)
    }

    /// How often an invitation was used, by the digest of its signed form.
    pub fn invitation_uses(&self, invitation: &Digest) -> u32 {
        self.roster.invitation_uses(invitation)
    }

    /// The round in progress, or the last one.
    pub fn current(&self) -> Option<&RoundView> {
        self.rounds.current()
    }

    /// A round that is still remembered.
    pub fn round(&self, round: Round) -> Option<&RoundView> {
        self.rounds.round(round)
    }

    /// Rounds still remembered, oldest first.
    pub fn rounds(&self) -> impl DoubleEndedIterator<Item = &RoundView> {
        self.rounds.iter()
    }

    /// The next record with this body, to be signed by the steward.
    pub fn record(&self, body: Body) -> Record {
        self.chain.record(body)
    }

    /// Checks a record and moves past it. On an error nothing has changed.
    ///
    /// # Errors
    /// [`Reject`]: not the steward's signature, not the next height or head, or against a rule of its body.
    pub fn apply(&mut self, signed: &Signed<Record>) -> Result<Verified<Record>, Reject> {
        let record = self.chain.check_next(signed)?;
        self.apply_body(&record, signed)?;
        self.chain.apply_head(record.head());
        if matches!(record.body, Body::Open(_) | Body::Outcome(_) | Body::Rewind(_)) {
            self.rewinds.apply_state(self.chain.next_round(), self.chain.state());
        }
        if matches!(record.body, Body::Begin(_) | Body::Outcome(_)) {
            self.open_round(&record.body);
        }
        // ROW-2: after each Outcome, and after each record while the run gathers. No Outcome comes then: a node for which a
        // row is drawn can end the waiting.
        if matches!(record.body, Body::Outcome(_)) || self.stage() == Stage::Gathering {
            let drawn = self.rows.drawn(&self.chain, &self.roster, &self.rounds);
            self.hold(drawn, false);
        }
        self.chain.apply_height();
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
            Body::Shares(shares) => self.shares(shares),
        }
    }

    fn open(&mut self, state: &StateRoots) -> Result<(), Reject> {
        self.chain.check_open(state)?;
        self.chain.apply_open(state);
        Ok(())
    }

    // LEDGER-6
    fn begin(&mut self, seats: &Seats) -> Result<(), Reject> {
        require(self.stage() == Stage::Gathering, "rounds begin after gathering")?;
        require(self.ready(), "a run begins with the members that its manifest waits for")?;
        require(**seats == *self.derived_seats(), "the seats follow from the ledger")?;
        // Those who could begin may all wait for their rows.
        require(!seats.is_empty(), "a round has seats")?;
        self.deal(self.dealt(self.rows()));
        self.chain.apply_begin();
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
        self.chain.apply_opening();
        // ROUND-28: while the round before went on, its state was the newest one.
        let before = self.current().filter(|_| matches!(body, Body::Outcome(_))).map(RoundView::state);
        let base = self.regime().base_of(self.state(), before).clone();
        let view = self.opening(self.next_round(), seats, base);
        let oldest = self.rounds.apply_opening(view);
        self.roster.apply_oldest(oldest, self.chain.height());
    }

    // LEDGER-17
    fn rewind(&mut self, rewind: &Rewind) -> Result<(), Reject> {
        self.rewinds.check_rewind(&self.chain, rewind)?;
        if self.stage() == Stage::Computing {
            self.rounds.apply_abandon();
        }
        self.chain.apply_rewind(&rewind.state);
        self.rewinds.apply_rewind(rewind, self.chain.next_round());
        if self.rows.apply_rewind(&self.chain) {
            self.roster.apply_withdrawal();
        }
        Ok(())
    }

    fn close(&mut self, root: &Digest) -> Result<(), Reject> {
        self.chain.check_close(root)?;
        self.chain.apply_close();
        Ok(())
    }

    /// The sealed state before a round, if it leads to the newest one and is within reach of a rewind.
    pub fn state_before(&self, round: Round) -> Option<&StateRoots> {
        self.rewinds.state_before(round)
    }

    /// The first round that can be the next one when a rewind is sealed: this one, or the one that is
    /// `rollback.spacing` above the last rewind's.
    pub fn next_rewind(&self) -> Round {
        self.rewinds.next_rewind(self.next_round())
    }

    /// Whether a rewind can go back to before `round`, now or at [`Self::next_rewind`].
    pub fn can_rewind_to(&self, round: Round) -> bool {
        self.rewinds.can_rewind_to(round, self.next_round())
    }

    /// Whether a rewind can go back to before `round` now, and could not any more once one more round is over.
    pub fn is_last_chance_for(&self, round: Round) -> bool {
        self.rewinds.is_last_chance_for(round, self.next_round())
    }
}

#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
#[cfg(test)]
mod tests;
