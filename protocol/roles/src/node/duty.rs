//! What a node owes in a round, and what it says of it.

use std::collections::BTreeMap;

use muster_core::bug::OrBug;
use muster_core::ids::{Block, Digest, MemberId, Part, Round, Slot};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::messages::audit::{AuditRequest, Rows, TableOpening};
use muster_core::messages::enrol::Engagement;
use muster_core::messages::round::{Commit, Delivered, Echo, PartResult, Receipt};
use muster_core::messages::wire::{Notice, Request, Response};
use muster_core::round::{Check, Obligation};
use muster_core::sign::Signed;

use super::delivery::{Delivery, Parcel};
use super::{Node, NodeEffect, PartTask};

/// Rounds before this one whose deliveries may still be under way.
const BEHIND: u32 = 1;

/// The sum of a contribution.
#[derive(Clone, Copy, Debug)]
pub struct Computed {
    /// Leaves in it.
    pub leaves: u32,
    /// Sum of their losses.
    pub loss: i64,
    /// Root of its integers' tree.
    pub root: Digest,
}

/// What the member of this slot commits to; none once the round is forgotten.
pub fn commit_to(ledger: &Ledger, round: Round, slot: Slot, computed: Computed) -> Option<Commit> {
    let view = ledger.round(round)?;
    let Computed { leaves, loss, root } = computed;
    Some(Commit {
        round,
        head: view.head(),
        state: view.base().root(),
        slot,
        seats: view.seats().len() as u16,
        route: view.route(slot),
        leaves,
        profile: ledger.manifest().profile,
        loss,
        root,
    })
}

impl Node {
    pub(super) fn begin(&mut self, duty: Obligation) {
        let effect = match duty {
            Obligation::Compute { round, slot, quota } => NodeEffect::Compute { round, slot, quota },
            Obligation::Echo { round, freeze } => {
                // Opened here, so that a delivery that is ready early finds that the echo is on its way.
                self.echoes.insert(round, Vec::new());
                NodeEffect::WriteEcho(round, freeze)
            }
            Obligation::Deliver { round, attempt, parts } => NodeEffect::Prepare { round, attempt, parts },
            Obligation::Reduce { round, part, attempt, inputs } => {
                NodeEffect::Reduce(PartTask { round, part, attempt, inputs })
            }
        };
        self.effects.push_back(effect);
    }

    /// ROUND-29: has the next round's leaves computed while the values of this one travel, once a round and after everything
    /// that others wait for.
    pub(super) fn foresee(&mut self) {
        let next = self.ledger.current().map(|view| view.round().next());
        // A member that is about to go, or is behind, computes nothing in vain.
        let goes = self.leaving.is_some() || self.engagement != Engagement::Trains;
        if self.foreseen == next || !self.in_step || goes {
            return;
        }
        if let Some(view) = self.ledger.foreseen() {
            self.foreseen = next;
            let slot = view.slot_of(&self.me()).filter(|slot| view.trains(*slot));
            self.effects.extend(slot.map(|slot| NodeEffect::Foresee(Box::new(view), slot)));
        }
    }

    /// Says which freeze it has seen, unless it has said something else before, or says nothing.
    pub(super) fn echo_written(&mut self, round: Round, said: Option<Digest>) {
        let freeze = self.ledger.round(round).and_then(RoundView::freeze_digest);
        match said.filter(|said| freeze == Some(*said)) {
            Some(freeze) => {
                let echo = self.identity.sign(self.ledger.run(), &Echo { round, freeze });
                self.say([Request::Notice(Notice::Echo(echo))]);
            }
            // Nothing is said, so nothing is answered: deliveries must not wait for it.
            None => self.echoed(round),
        }
    }

    /// The steward has taken the echo of a round, or refused it for good, or there is none: what waits for it is said.
    fn echoed(&mut self, round: Round) {
        let waiting = self.echoes.remove(&round);
        waiting.into_iter().flatten().for_each(|delivered| self.say_delivered(delivered));
    }

    pub(super) fn prepared(&mut self, round: Round, attempt: u8, parts: Vec<(Part, MemberId)>) {
        // A delivery of the round before may still be reported; older ones are refused (ROUND-9).
        let oldest = Round(round.0.saturating_sub(BEHIND));
        self.deliveries.retain(|(round, _), _| *round >= oldest);
        self.echoes.retain(|round, _| *round >= oldest);
        let delivery = Delivery::new(self.me(), self.ledger.clone(), round, attempt, parts);
        self.effects.extend(delivery.parcels().into_iter().map(NodeEffect::Bring));
        self.deliveries.insert((round, attempt), delivery);
        // With no parts to bring the delivery is over at once, and is said all the same (ROUND-3).
        self.look_after(round, attempt);
    }

    pub(super) fn brought(&mut self, parcel: &Parcel, receipt: Option<Signed<Receipt>>) {
        let name = (parcel.round, parcel.attempt);
        // Its round is over by now: what nobody reports any more was dropped.
        let Some(delivery) = self.deliveries.get_mut(&name) else { return };
        let relayed = delivery.brought(parcel, receipt);
        self.effects.extend(relayed.map(NodeEffect::Bring));
        self.look_after(parcel.round, parcel.attempt);
    }

    /// Says what was delivered once nothing is on its way any more. ROUND-5: nothing of a member that has not echoed counts, so
    /// that the steward takes no delivery before.
    fn look_after(&mut self, round: Round, attempt: u8) {
        let name = (round, attempt);
        if !self.deliveries.get(&name).is_some_and(Delivery::is_over) {
            return;
        }
        let delivered = self.deliveries.remove(&name).and_then(|delivery| delivery.said());
        let Some(delivered) = delivered.or_bug("receipts of all parts of a delivery that is over") else {
            return;
        };
        match self.echoes.get_mut(&round) {
            Some(waiting) => waiting.push(delivered),
            None => self.say_delivered(delivered),
        }
    }

    fn say_delivered(&mut self, delivered: Delivered) {
        let delivered = self.identity.sign(self.ledger.run(), &delivered);
        self.say([Request::Delivered(delivered)]);
    }

    pub(super) fn reduced(&mut self, task: PartTask, digests: &[Digest]) {
        let PartTask { round, part, attempt, inputs } = task;
        if digests.is_empty() {
            tracing::warn!("part {part} of round {round} cannot be reduced: an input is not here any more");
        }
        // A part may be reduced when its round is forgotten already: nobody waits for it then.
        let Some(freeze) = self.ledger.round(round).and_then(RoundView::freeze_digest) else { return };
        let results: Vec<Request> = digests
            .iter()
            .map(|digest| {
                let result = PartResult { round, part, attempt, freeze, inputs, digest: *digest };
                Request::Notice(Notice::Result(self.identity.sign(self.ledger.run(), &result)))
            })
            .collect();
        self.say(results);
    }

    pub(super) fn compared(&mut self, check: &Check, objections: &BTreeMap<Part, Vec<Block>>) {
        for (part, blocks) in objections {
            tracing::warn!(
                "round {}: of part {part} this many blocks came out far from this member's own gradient: {}; it asks the steward to \
                 combine them again",
                check.round,
                blocks.len()
            );
        }
        let word = self.identity.sign(self.ledger.run(), &check.word(objections));
        self.say([Request::Checked(word)]);
    }

    /// AUDIT-2: the table of a round that was just frozen is written down, so that a restart does not make this member silent
    /// about it. Not with a tolerance, where rows hang on the request.
    pub(super) fn tabulate(&mut self, round: Round) {
        if self.ledger.manifest().profile.has_one_table() {
            self.effects.push_back(NodeEffect::Tabulate(round));
        }
    }

    pub(super) fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::Result(result) => {
                if let Err(reject) = self.checks.saw(&self.ledger, &result) {
                    tracing::debug!("a result on the board: {reject}");
                }
            }
            Notice::Request(signed) => {
                // AUDIT-1: whoever is not drawn would otherwise have any member compute tables for nothing.
                let request = self.ledger.check_request(&signed);
                let oldest = self.ledger.rounds().next().map_or(Round(0), RoundView::round);
                // Expected before the rows are made: after a restart the board may show the results first.
                if let Ok(request) = request
                    && request.target == self.me()
                    && self.tables.expect(signed.digest(), request.round, oldest)
                {
                    self.effects.push_back(NodeEffect::MakeRows(Box::new(signed)));
                }
            }
            Notice::Results(results) => {
                let opening = self.tables.open(&results);
                self.effects.extend(opening.map(open));
            }
            _ => {}
        }
    }

    /// AUDIT-2: seals the table that was asked for.
    pub(super) fn seal_table(&mut self, signed: &Signed<AuditRequest>, root: Digest, rows: Rows) {
        let request =
            signed.verify(self.ledger.run()).or_bug("a request that was checked before its rows were made");
        let Some(request) = request else { return };
        let table = self.tables.seal(&self.identity, signed, &request, root, rows);
        self.say([Request::Notice(Notice::Table(table))]);
        // The results may have been read before the table was sealed again.
        let opening = self.tables.open_at_once(&signed.digest());
        self.effects.extend(opening.map(open));
    }

    /// The steward has answered, or refused.
    pub(super) fn told(&mut self, request: Request, answer: Option<Response>) {
        match (request, answer) {
            (Request::Commit(commit), Some(Response::Committed(receipt))) => {
                self.pledges.committed(&self.ledger, &commit, receipt);
            }
            (Request::Delivered(delivered), Some(Response::Delivered(receipt))) => {
                self.pledges.delivered(&self.ledger, &delivered, receipt);
            }
            (Request::Notice(Notice::Echo(echo)), _) => {
                let own = echo.verify(self.ledger.run()).or_bug("an echo that this member has signed");
                own.into_iter().for_each(|echo| self.echoed(echo.round));
            }
            // It is sealed, and read soon.
            (Request::Notice(Notice::Return(_)), Some(_)) => self.contact.taken(),
            // With the next news it is said again.
            (Request::Notice(Notice::Return(_)), None) => self.not_back(),
            (Request::Notice(Notice::Ready(_)), None) => self.ready = None,
            // A steward that refuses, or takes what has no weight (STAND-3), promises nothing.
            _ => {}
        }
    }
}

/// Has the driver sign and say an opening.
fn open(opened: (Round, TableOpening)) -> NodeEffect {
    let (round, opening) = opened;
    NodeEffect::Open(round, Box::new(opening))
}
