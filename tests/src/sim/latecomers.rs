//! Nodes that come late, or move to another row: they fetch it in virtual time.

use muster_core::ids::Round;
use muster_core::ledger::{Holding, Ledger};

use super::Sim;
use super::clock::Event;
use super::experts::{Fetch, Wanted};
use super::node::machine;

impl Sim {
    /// Whether a node has the row that the ledger has drawn for it, which it begins to fetch otherwise.
    pub(super) fn has_its_row(&mut self, number: usize, ledger: &Ledger) -> bool {
        let holding = ledger.member(&self.id(number)).and_then(|member| member.holding);
        let Some(Holding { row, ready: false, since }) = holding else { return true };
        let (wanted, node) = (Wanted { row, since }, &mut self.nodes[number]);
        if let Some(fetch) = node.fetch.filter(|fetch| fetch.wanted == wanted) {
            return fetch.done;
        }
        node.fetch = Some(Fetch { wanted, done: false });
        self.clock.after(100, 2_000, Event::Fetched(number, wanted));
        false
    }

    /// A node has fetched a row, and says so if it is still the one that it wants.
    pub(super) fn fetched(&mut self, number: usize, wanted: Wanted) {
        if let Some(fetch) = self.nodes[number].fetch.as_mut().filter(|fetch| fetch.wanted == wanted) {
            fetch.done = true;
            self.catch_up(number);
        }
    }

    /// Has those come that are there from this round on.
    pub(super) fn bring_latecomers(&mut self, next: Round) {
        for (number, node) in self.nodes.iter().enumerate() {
            let due = node.player.joins.is_some_and(|joins| joins <= next);
            if due && self.machine.ledger().member(&node.identity.id()).is_none() {
                self.clock.after(5, 500, Event::Join(number));
            }
        }
    }

    /// A node that was not there from the beginning comes, unless the run takes nobody now: then it comes again later.
    pub(super) fn join(&mut self, number: usize) {
        if self.ledger().member(&self.id(number)).is_some() {
            return;
        }
        self.enter(number);
        if self.ledger().member(&self.id(number)).is_some() {
            let (identity, newest) = (self.nodes[number].identity.clone(), self.book.newest());
            self.nodes[number].machine = machine(&self.plan, number, identity, &newest, Vec::new());
            self.nodes[number].alive = true;
            self.catch_up(number);
        }
    }
}
