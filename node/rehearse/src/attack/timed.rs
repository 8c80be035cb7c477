//! Peer that is honest until its round comes, so that it has weight to lose.

use std::sync::Arc;
use std::time::Duration;

use muster_core::ids::{MemberId, Part, Round};
use muster_core::manifest::Manifest;
use muster_core::messages::audit::Rows;
use muster_core::messages::offer::StateQuery;
use muster_core::messages::round::Commit;
use muster_core::reduction::Reduced;
use muster_core::state::Arithmetic;
use muster_member::{
    AggregatorView, AskedCall, Assignment, AuditedContribution, Delay, HonestNode, NodeConduct, Outside,
    Summed,
};

pub(super) struct Timed {
    /// The attack's first round.
    pub(super) from: Round,
    pub(super) attack: Arc<dyn NodeConduct>,
}

impl Timed {
    fn at(&self, round: Round) -> &dyn NodeConduct {
        if round < self.from { &HonestNode } else { &*self.attack }
    }
}

impl NodeConduct for Timed {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        self.at(work.round).contribute(work, arithmetic)
    }

    fn commit(&self, commit: Commit) -> Vec<Commit> {
        self.at(commit.round).commit(commit)
    }

    fn deliver(&self, round: Round, parts: Vec<(Part, MemberId)>) -> Option<Vec<(Part, MemberId)>> {
        self.at(round).deliver(round, parts)
    }

    fn echoes(&self, round: Round) -> bool {
        self.at(round).echoes(round)
    }

    fn takes_in(&self, round: Round, sender: &MemberId) -> bool {
        self.at(round).takes_in(round, sender)
    }

    fn shows(&self, round: Round) -> bool {
        self.at(round).shows(round)
    }

    fn besides(&self, round: Round, outside: &Outside) {
        self.at(round).besides(round, outside);
    }

    fn serves(&self, round: Round, steward: bool) -> bool {
        self.at(round).serves(round, steward)
    }

    fn lingers(&self, over: Delay, manifest: &Manifest) -> Duration {
        self.attack.lingers(over, manifest)
    }

    fn dawdles(&self, round: Round) -> bool {
        self.at(round).dawdles(round)
    }

    fn seal(&self, asked: &AuditedContribution<'_>, rows: Rows) -> Option<Rows> {
        self.at(asked.commit.round).seal(asked, rows)
    }

    fn open(&self, round: Round, rows: Rows) -> Option<Rows> {
        self.at(round).open(round, rows)
    }

    fn reduce(&self, part: &AggregatorView<'_>) -> Vec<Reduced> {
        self.at(part.round).reduce(part)
    }

    fn answer(&self, call: &AskedCall<'_>, logits: Vec<i32>) -> Option<Vec<i32>> {
        self.at(call.ask.round).answer(call, logits)
    }

    fn piece(&self, query: &StateQuery, bytes: Vec<u8>) -> Option<Vec<u8>> {
        self.at(query.round).piece(query, bytes)
    }

    fn stays(&self, round: Round) -> bool {
        self.at(round).stays(round)
    }
}
