//! Requests of members: each is checked, taken or refused, and answered.

use muster_core::bug::OrBug;
use muster_core::error::Reject;
use muster_core::ids::MemberId;
use muster_core::ledger::Standing;
use muster_core::messages::enrol::{CloseTree, Enrol, Return};
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::Body;
use muster_core::messages::round::{
    Checked, Commit, CommitReceipt, Delivered, DeliveryReceipt, PartResult, Receipt,
};
use muster_core::messages::wire::{InputQuery, Notice, PutBlocks, Request, Response};
use muster_core::round::{ClaimedDelivery, ShownDelivery};
use muster_core::sign::Signed;

use super::Steward;
use super::accusation::{equivocation, is_of_two_machines, two_results};
use super::admission::{dial, enrol};
use super::interface::{Bulletin, Question, StewardEffect};
use super::relays::Relay;
use crate::keeper::Wanted;

/// Reply to a second commitment.
const TWO_MACHINES: &str = "a member commits once in a round, and another commitment with this key is held. If two machines run \
    with a copy of one data directory, stop one: each needs a directory and an invitation of its own, and a key that signs two \
    results of the same work is banned for life";

/// When a request is answered.
pub(super) enum Disposition {
    /// At once.
    Now(Response),
    /// At once; the request brings nothing new, so that there is nothing to keep.
    Again,
    /// Once this record is sealed.
    Sealed(Box<Body>),
    /// Once these blocks are read.
    Read(InputQuery, Wanted),
    /// Once these blocks are stored.
    Stored(Box<PutBlocks>),
    /// Once the receipts of this delivery are checked.
    Claimed(Box<ClaimedDelivery>),
}

/// Whether the steward has taken a notice before.
#[derive(Clone, Copy)]
enum Posting {
    New,
    /// An earlier process took it.
    Again,
}

impl Steward {
    /// ROUND-9: takes a request, or refuses one that is early, late or repeated. The answer goes out now, or
    /// once something is sealed, stored, read or checked.
    pub(super) fn asked(&mut self, question: Question, from: &MemberId, request: Request, date: u64) {
        let effect = match self.judge_request(question, from, request, date) {
            Ok(Disposition::Now(response)) => StewardEffect::Answer(question, response),
            Ok(Disposition::Again) => StewardEffect::Answer(question, Response::Done),
            Ok(Disposition::Sealed(body)) => match dial(self.ledger(), &body) {
                Some(dial) => {
                    self.admission.dial(question, *body);
                    StewardEffect::DialBack(question, dial)
                }
                None => return self.propose(question, *body),
            },
            Ok(Disposition::Read(query, wanted)) => StewardEffect::Read(question, query, wanted),
            Ok(Disposition::Claimed(claimed)) => StewardEffect::CheckDelivery(question, claimed),
            Ok(Disposition::Stored(put)) => StewardEffect::Store(question, *from, put),
            Err(reject) => StewardEffect::Answer(question, Response::refused(&reject.to_string())),
        };
        self.effects.push_back(effect);
    }

    /// Proposes what its author waits for.
    fn propose(&mut self, question: Question, body: Body) {
        if let Body::Return(back) = &body {
            self.watch_move(back);
        }
        self.admission.wait(&body, question);
        self.conductor.propose(body);
    }

    /// The author of a proposal was found where it says that it is, or why not. What has changed meanwhile is looked at once more
    /// with the record.
    pub(super) fn dialled_back(&mut self, question: Question, found: Result<(), String>) {
        let body = self.admission.dialled(question).or_bug("a proposal whose author was looked for");
        match (body, found) {
            // Asked twice, because an answer was lost.
            (Some(Body::Admit(signed)), Ok(()))
                if self.ledger().member(&signed.claimed_signer()).is_some() =>
            {
                self.effects.push_back(StewardEffect::Answer(question, Response::Done));
            }
            (Some(body), Ok(())) => self.propose(question, body),
            (_, Err(why)) => {
                self.effects.push_back(StewardEffect::Answer(question, Response::refused(&why)));
            }
            (None, Ok(())) => {}
        }
    }

    /// Blocks were stored, or why not.
    pub(super) fn stored(&mut self, question: Question, stored: Result<Option<Receipt>, Reject>) {
        self.relays.stored(question, stored.is_ok());
        let answer = match stored {
            Ok(receipt) => {
                let run = self.ledger().run();
                let signed = |receipt| Response::Receipt(self.identity.sign(run, &receipt));
                receipt.map_or(Response::Done, signed)
            }
            Err(reject) => Response::refused(&reject.to_string()),
        };
        self.effects.push_back(StewardEffect::Answer(question, answer));
    }

    /// Takes requests again that an earlier process took. A request that is too late by now is refused as it
    /// would be from a member.
    pub(super) fn replay(&mut self, kept: Vec<Request>) {
        for request in kept {
            let taken = match request {
                Request::Commit(signed) => self.conductor.commit(0, signed).map(drop),
                Request::Delivered(signed) => self.conductor.delivered(0, &signed),
                Request::Notice(notice) => self.notice(notice, Posting::Again).map(drop),
                Request::Checked(signed) => self.conductor.checked(0, &signed),
                _ => Ok(()),
            };
            if let Err(reject) = taken {
                tracing::trace!("kept, but over: {reject}");
            }
        }
    }

    fn judge_request(
        &mut self,
        question: Question,
        peer: &MemberId,
        request: Request,
        date: u64,
    ) -> Result<Disposition, Reject> {
        // Only these two may come from somebody that is no member: a newcomer, or a bearer of an order of the
        // organiser.
        if let Request::Enrol(signed) = request {
            return self.enrol(signed, date);
        }
        if let Request::CloseTree(signed) = request {
            return self.close_tree(signed);
        }
        // CHAN-10: a stranger is told what is public, and takes part in nothing.
        // CALL-7: a caller that has the steward's key accuses as the steward.
        let own = *peer == self.identity.id() && matches!(request, Request::Accuse(Evidence::Answer(_)));
        if self.ledger().member(peer).is_none() && !own {
            return Err(Reject::NotEntitled("say this: it is no member"));
        }
        match request {
            Request::Commit(signed) => self.commit(signed),
            Request::Delivered(signed) => self.delivered(question, signed),
            Request::Checked(signed) => self.checked(signed),
            Request::Notice(notice) => {
                let kept = notice.clone();
                let answer = self.notice(notice, Posting::New)?;
                if matches!(answer, Disposition::Now(_)) {
                    self.keep(Request::Notice(kept));
                }
                Ok(answer)
            }
            Request::Accuse(evidence) => {
                self.accuse(*peer, evidence).map(|()| Disposition::Now(Response::Done))
            }
            Request::PutBlocks(put) => self.put(question, peer, put),
            Request::InputBlocks(query) => self.inputs(question, peer, query),
            _ => Err(Reject::Rule("this is asked of a node")),
        }
    }

    fn enrol(&mut self, signed: Signed<Enrol>, date: u64) -> Result<Disposition, Reject> {
        let admit = enrol(self.ledger(), signed, date)?;
        Ok(admit.map_or(Disposition::Now(Response::Done), |body| Disposition::Sealed(Box::new(body))))
    }

    /// The organiser's order, whoever brings it.
    fn close_tree(&self, signed: Signed<CloseTree>) -> Result<Disposition, Reject> {
        self.ledger().check_close_tree(&signed)?;
        Ok(Disposition::Sealed(Box::new(Body::CloseTree(signed))))
    }

    fn commit(&mut self, signed: Signed<Commit>) -> Result<Disposition, Reject> {
        let run = self.ledger().run();
        let said = signed.verify(run)?;
        let slot = self.ledger().current().and_then(|view| view.slot_of(&said.author()));
        let held = slot.and_then(|slot| self.conductor.held_commit(slot)).cloned();
        // The conductor would drop the second commitment, and the evidence with it.
        if let Some(evidence) = equivocation(self.ledger(), held.as_ref(), &signed) {
            // COMMIT-8: a slower machine with a copy of the data directory sums fewer leaves, and with a
            // tolerance another machine has other sums. Nobody gains by what is refused.
            let honest = is_of_two_machines(self.ledger(), &evidence);
            if !honest {
                // Whether or not the queue takes it, the second commitment is refused.
                let _ = self.accuse(self.identity.id(), evidence);
            }
            return Err(Reject::Rule(TWO_MACHINES));
        }
        let commit = self.conductor.commit(self.now, signed.clone())?;
        // Once only: a member that repeats itself must not fill the disk.
        if held.is_none() {
            self.keep(Request::Commit(signed.clone()));
        }
        // COMMIT-4: the receipt names the held commitment, however often and with whatever signature it is
        // said again.
        let kept = held.as_ref().unwrap_or(&signed);
        let receipt = CommitReceipt { commit: kept.digest(), round: commit.round };
        Ok(Disposition::Now(Response::Committed(self.identity.sign(run, &receipt))))
    }

    /// ROUND-35: a delivery is refused for what it cannot bring before the signature of any receipt is
    /// checked.
    fn delivered(&mut self, question: Question, signed: Signed<Delivered>) -> Result<Disposition, Reject> {
        let claimed = self.conductor.claim_delivery(&signed)?;
        let author = claimed.author();
        if self.deliveries.is_taken(&author, &signed.digest()) {
            // The answer may have been lost.
            return self.promise(signed).map(Disposition::Now);
        }
        if !claimed.is_new() {
            return Err(Reject::Rule("a second delivery brings a receipt that the first one did not"));
        }
        // Only an author that the round knows is counted: keys cost nothing.
        self.deliveries.try_once(author)?;
        if claimed.unchecked() == 0 {
            return self.take_delivery(signed, &claimed.check()?).map(Disposition::Now);
        }
        // ROUND-36: the phase does not end while the steward checks the receipts.
        self.conductor.owes(self.now, question.0);
        self.deliveries.check(question, signed);
        Ok(Disposition::Claimed(Box::new(claimed)))
    }

    /// The receipts of a delivery were checked.
    pub(super) fn delivery_checked(&mut self, question: Question, shown: Result<ShownDelivery, Reject>) {
        let signed = self.deliveries.checked(question).or_bug("a delivery that is being checked");
        let Some(signed) = signed else { return };
        let answer = shown.and_then(|shown| self.take_delivery(signed, &shown));
        let answer = answer.unwrap_or_else(|reject| Response::refused(&reject.to_string()));
        self.effects.push_back(StewardEffect::Answer(question, answer));
        // Last: until here the phase has waited for it.
        self.conductor.paid(self.now, question.0);
    }

    fn take_delivery(
        &mut self,
        signed: Signed<Delivered>,
        shown: &ShownDelivery,
    ) -> Result<Response, Reject> {
        self.conductor.deliver(self.now, shown)?;
        let said = signed.verify(self.ledger().run())?;
        // Before the receipt: a promise that a crash lets this steward forget would convict it (AUDIT-13).
        self.keep(Request::Delivered(signed.clone()));
        self.deliveries.take(said.author(), signed.digest());
        self.promise(signed)
    }

    /// The answer to a delivery that is taken.
    fn promise(&self, signed: Signed<Delivered>) -> Result<Response, Reject> {
        let ledger = self.ledger();
        let said = signed.verify(ledger.run())?;
        let commitment = ledger
            .current()
            .and_then(|view| view.slot_of(&said.author()).and_then(|slot| view.commitment(slot)));
        if commitment.is_none_or(|commitment| commitment.weight == 0) {
            // STAND-3: a contribution without weight does not count, so that nothing is promised.
            return Ok(Response::Done);
        }
        // ROUND-5: from here on the sealed inputs must count it.
        let receipt =
            DeliveryReceipt { delivered: signed.digest(), round: said.round, attempt: said.attempt };
        Ok(Response::Delivered(self.identity.sign(ledger.run(), &receipt)))
    }

    /// Takes an aggregator's own part, so that not its author alone has it, and some parts that an aggregator
    /// did not take.
    fn put(&mut self, question: Question, sender: &MemberId, put: PutBlocks) -> Result<Disposition, Reject> {
        let (view, me) = (self.ledger().round(put.round), self.identity.id());
        let view = view.ok_or(Reject::Stale("the round is not remembered"))?;
        let first = put.blocks.first().ok_or(Reject::Rule("a delivery holds a block"))?.block;
        let part = view.part_of(first).ok_or(Reject::Rule("a delivered block is in a part"))?;
        let kept = view.keepers(part, sender).is_some_and(|(keepers, _)| keepers.contains(&me));
        if !kept {
            let relay = Relay { sender: *sender, attempt: put.attempt, part };
            let open = self.ledger().current().is_some_and(|view| view.round() == put.round);
            // ROUND-24: half of the parts, so that nobody sends everything through the steward.
            let slot = view.slot_of(sender);
            let most = slot.map_or(0, |slot| view.parts_of(slot).count().div_ceil(2));
            if !open || !self.relays.has_room(&relay, most) {
                return Err(Reject::Rule(
                    "the steward takes half of a member's parts at most, while the round lasts",
                ));
            }
            self.relays.store(question, relay);
        }
        Ok(Disposition::Stored(Box::new(put)))
    }

    /// Looks at a request for blocks before anything is read for it.
    fn inputs(
        &mut self,
        question: Question,
        peer: &MemberId,
        query: InputQuery,
    ) -> Result<Disposition, Reject> {
        let mut wanted = Wanted::by(self.ledger(), peer, &query)?;
        if let Wanted::Now { most, .. } = wanted {
            // ROUND-36: the phase waits while the steward gives what an aggregator lacks, and again where an
            // answer was lost.
            if self.relays.ask(*peer, query.member, query.blocks.len(), most) {
                self.conductor.owes(self.now, question.0);
            } else {
                wanted = wanted.later();
            }
        }
        Ok(Disposition::Read(query, wanted))
    }

    fn checked(&mut self, signed: Signed<Checked>) -> Result<Disposition, Reject> {
        self.conductor.checked(self.now, &signed)?;
        self.keep(Request::Checked(signed));
        Ok(Disposition::Now(Response::Done))
    }

    /// Takes a result, and says whether it is new. The next turn shows the result that would be sealed.
    fn result(&mut self, signed: &Signed<PartResult>) -> Result<bool, Reject> {
        let said = signed.verify(self.ledger().run())?;
        let held = self.conductor.held_result(said.part, &said.author()).cloned();
        if let Some(evidence) = two_results(self.ledger(), held.as_ref(), signed) {
            // ROUND-22: at least one of the two is false, and only a reduction tells which.
            self.conductor.contest(said.part, &said.author());
            let _ = self.accuse(self.identity.id(), evidence);
            return Err(Reject::Rule("an aggregator signs one result for a part; the other one is held"));
        }
        self.conductor.result(self.now, signed.clone())
    }

    fn notice(&mut self, notice: Notice, posting: Posting) -> Result<Disposition, Reject> {
        let now = self.now;
        match &notice {
            Notice::Echo(signed) if !self.conductor.echo(now, signed.clone())? => {
                return Ok(Disposition::Again);
            }
            Notice::Result(signed) if !self.result(signed)? => return Ok(Disposition::Again),
            Notice::Echo(_) | Notice::Result(_) => {}
            Notice::Return(signed) => {
                self.ledger().check_return(signed)?;
                return Ok(Disposition::Sealed(Box::new(Body::Return(signed.clone()))));
            }
            Notice::Leave(signed) => {
                self.ledger().check_leave(signed)?;
                return Ok(Disposition::Sealed(Box::new(Body::Leave(signed.clone()))));
            }
            Notice::Ready(signed) => {
                self.ledger().check_ready(signed)?;
                return Ok(Disposition::Sealed(Box::new(Body::Ready(signed.clone()))));
            }
            Notice::Opinion(signed) => {
                // The next turn settles what follows.
                self.court.opinion(self.conductor.ledger(), signed)?;
                self.effects.push_back(StewardEffect::Post(notice));
            }
            // A false Charge would have jurors recompute for nothing; a false Obtained would end a silence.
            Notice::Charge(_) | Notice::Obtained(_) => {
                return Err(Reject::NotEntitled("say this: only the steward does"));
            }
            Notice::Request(_)
            | Notice::Table(_)
            | Notice::Results(_)
            | Notice::Opening(_)
            | Notice::Verdict(_)
            | Notice::Duty(_)
            | Notice::Withheld(_)
            | Notice::Recomputation(_)
            | Notice::Recheck(_) => {
                let ledger = self.conductor.ledger();
                let sealed = match posting {
                    Posting::Again => self.board.recall(now, ledger, &notice)?,
                    Posting::New => self.board.post(now, ledger, &notice)?,
                };
                self.watch_audit(&notice);
                self.effects.push_back(StewardEffect::Post(notice));
                sealed.into_iter().for_each(|body| self.conductor.propose(body));
                self.board.credits().into_iter().for_each(|credit| self.conductor.credit(credit));
            }
        }
        Ok(Disposition::Now(Response::Done))
    }

    /// COMMIT-8: tells people of a member that suddenly is at another address while it still has a
    /// connection.
    fn watch_move(&mut self, back: &Signed<Return>) {
        let (author, run) = (back.claimed_signer(), self.ledger().run());
        let member = self.ledger().member(&author).filter(|member| member.standing == Standing::Active);
        let says = back.verify(run).ok();
        let moved = member.zip(says).filter(|(member, back)| member.addresses != back.addresses);
        let how = moved.map(|(member, _)| match member.addresses.is_empty() {
            true => "can be dialled now",
            false => "is at another address now; if two machines run with its key, one must stop",
        });
        if let Some(how) = how.filter(|_| self.presence.is_connected(&author)) {
            self.tell(Bulletin::Moved(author, how));
        }
    }

    /// Counts audits for people.
    fn watch_audit(&mut self, notice: &Notice) {
        let run = self.ledger().run();
        match notice {
            Notice::Request(signed) => {
                if let Ok(request) = signed.verify(run) {
                    let verifier = request.author();
                    self.tell(Bulletin::Requested(signed.digest(), request.into_inner(), verifier));
                }
            }
            Notice::Verdict(signed) => {
                if let Ok(verdict) = signed.verify(run) {
                    let leaves = verdict.results.len();
                    self.tell(Bulletin::Judged(verdict.request, leaves, verdict.finding));
                }
            }
            Notice::Recomputation(signed) => {
                if let Ok(said) = signed.verify(run) {
                    let verifier = said.author();
                    self.tell(Bulletin::Recomputed(said.into_inner(), verifier));
                }
            }
            _ => {}
        }
    }

    /// Keeps a request until a record holds it.
    pub(super) fn keep(&mut self, request: Request) {
        let round = self.ledger().next_round();
        self.effects.push_back(StewardEffect::Keep(round, Box::new(request)));
    }
}
