//! What members say to the steward, checked, and the answers.

use muster_core::codec::encode;
use muster_core::error::Reject;
use muster_core::ids::{Digest, MemberId};
use muster_core::ledger::Standing;
use muster_core::messages::audit::Finding;
use muster_core::messages::enrol::{CloseTree, Enrol};
use muster_core::messages::record::Body;
use muster_core::messages::round::{Checked, Commit, CommitReceipt, Delivered, DeliveryReceipt, PartResult};
use muster_core::messages::wire::{InputQuery, Notice, PutBlocks, Request, Response};
use muster_core::sign::Signed;
use tokio::sync::oneshot;

use super::actor::Actor;
use super::court::{equivocation, two_results};
use super::server::refused;
use crate::intake::part_of;
use crate::organise::invite;

/// Different deliveries of one member in one round at most: a restarted node may have more receipts than before.
const DELIVERIES: usize = 8;

/// What is taken at once, or sealed or read first.
enum Answer {
    Now(Response),
    /// At once, but it brings nothing new: there is nothing to keep.
    Again,
    /// Once this is sealed.
    Sealed(Box<Body>),
    /// Once it is read, of the contribution with this root.
    Read(InputQuery, Digest),
}

impl Actor {
    /// Answers a request, now or once what it asks for is sealed or read.
    pub(super) fn answer(&mut self, peer: MemberId, request: Request, answer: oneshot::Sender<Response>) {
        match self.judge_request(&peer, request) {
            Ok(Answer::Now(response)) => {
                let _ = answer.send(response);
            }
            Ok(Answer::Again) => {
                let _ = answer.send(Response::Done);
            }
            Ok(Answer::Sealed(body)) => {
                self.state.waiting.push((encode(&*body), answer));
                self.conductor.propose(*body);
            }
            Ok(Answer::Read(query, root)) => {
                let read = self.intake.clone().answer(query, root);
                tokio::spawn(async move {
                    let _ = answer.send(read.await.unwrap_or_else(|reject| refused(&reject.to_string())));
                });
            }
            Err(reject) => {
                let _ = answer.send(refused(&reject.to_string()));
            }
        }
    }

    /// Takes again what was taken before the process ended; what is over by now is refused as it would be from a
    /// member.
    pub(super) fn replay(&mut self, kept: Vec<Request>) {
        self.state.replaying = true;
        for request in kept {
            let taken = match request {
                Request::Commit(signed) => self.conductor.commit(0, signed).map(drop),
                Request::Delivered(signed) => self.conductor.delivered(0, &signed),
                Request::Notice(notice) => self.notice(notice).map(drop),
                Request::Checked(signed) => self.conductor.checked(0, &signed),
                _ => Ok(()),
            };
            if let Err(reject) = taken {
                tracing::trace!("kept, but over: {reject}");
            }
        }
        self.state.replaying = false;
    }

    fn judge_request(&mut self, peer: &MemberId, request: Request) -> Result<Answer, Reject> {
        if let Request::Enrol(signed) = request {
            return self.enrol(signed);
        }
        if let Request::CloseTree(signed) = request {
            return self.close_tree(signed);
        }
        if self.ledger().member(peer).is_none() {
            return Err(Reject::NotEntitled("say this: it is no member"));
        }
        match request {
            Request::Commit(signed) => self.commit(signed),
            Request::Delivered(signed) => self.delivered(signed),
            Request::Checked(signed) => self.checked(signed),
            Request::Notice(notice) => {
                let kept = notice.clone();
                let answer = self.notice(notice)?;
                if matches!(answer, Answer::Now(_)) {
                    self.keep(Request::Notice(kept))?;
                }
                Ok(answer)
            }
            Request::Accuse(evidence) => self.accuse(*peer, evidence).map(|()| Answer::Now(Response::Done)),
            Request::PutBlocks(put) => self.put(peer, put),
            Request::InputBlocks(query) => self.inputs(query),
            _ => Err(Reject::Rule("this is asked of a node")),
        }
    }

    fn enrol(&mut self, signed: Signed<Enrol>) -> Result<Answer, Reject> {
        let run = self.ledger().run();
        let author = signed.verify(run)?.author();
        // A request may come twice when its answer was lost.
        if let Some(member) = self.ledger().member(&author) {
            let gone = matches!(member.standing, Standing::Banned | Standing::Left);
            return if gone {
                Err(Reject::NotEntitled("enrol again"))
            } else {
                Ok(Answer::Now(Response::Done))
            };
        }
        let enrol = self.ledger().check_enrol(&signed)?;
        let expires = enrol.invitation.as_ref().map(|shown| shown.invitation.verify(run)).transpose()?;
        if expires.is_some_and(|invitation| invitation.expires < invite::now()) {
            return Err(Reject::Rule("the invitation has expired; ask for another one"));
        }
        Ok(Answer::Sealed(Box::new(Body::Admit(signed))))
    }

    /// The organiser's order, whoever brings it.
    fn close_tree(&self, signed: Signed<CloseTree>) -> Result<Answer, Reject> {
        self.ledger().check_close_tree(&signed)?;
        Ok(Answer::Sealed(Box::new(Body::CloseTree(signed))))
    }

    fn commit(&mut self, signed: Signed<Commit>) -> Result<Answer, Reject> {
        let run = self.ledger().run();
        let said = signed.verify(run)?;
        let slot = self.ledger().current().and_then(|view| view.slot_of(&said.author()));
        let held = slot.and_then(|slot| self.conductor.held_commit(slot)).cloned();
        if let Some(evidence) = equivocation(self.ledger(), held.as_ref(), &signed) {
            let _ = self.accuse(self.identity.id(), evidence);
            return Err(Reject::Rule("a member commits once in a round; the other commitment is held"));
        }
        let commit = self.conductor.commit(self.now(), signed.clone())?;
        if held.is_none() {
            self.keep(Request::Commit(signed.clone()))?;
        }
        // COMMIT-4: the receipt is of the one that is held, however often and with whatever signature it is said again.
        let kept = held.as_ref().unwrap_or(&signed);
        let receipt = CommitReceipt { commit: kept.digest(), round: commit.round };
        Ok(Answer::Now(Response::Committed(self.identity.sign(run, &receipt))))
    }

    /// Keeps an aggregator's own part, so that it is not in its author's hands alone, and some of those that an
    /// aggregator did not take.
    fn put(&mut self, sender: &MemberId, put: PutBlocks) -> Result<Answer, Reject> {
        let (view, me) = (self.ledger().round(put.round), self.identity.id());
        let view = view.ok_or(Reject::Stale("the round is not remembered"))?;
        let (part, attempt) = (part_of(view, &put)?, put.attempt);
        let relayed = !view.keepers(part, sender).is_some_and(|(keepers, _)| keepers.contains(&me));
        if relayed {
            let open = self.ledger().current().is_some_and(|view| view.round() == put.round);
            let held = self.state.relayed.get(&(*sender, attempt));
            let most = view.parts().len().div_ceil(2);
            // ROUND-24: half of the parts, so that nobody sends everything through the steward.
            let room = held.is_none_or(|held| held.contains(&part) || held.len() < most);
            if !open || !room {
                return Err(Reject::Rule(
                    "the steward takes half of a member's parts at most, while the round lasts",
                ));
            }
        }
        let receipt = self.intake.take(view, &me, sender, put)?;
        if relayed {
            self.state.relayed.entry((*sender, attempt)).or_default().insert(part);
        }
        let run = self.ledger().run();
        Ok(Answer::Now(
            receipt.map_or(Response::Done, |receipt| Response::Receipt(self.identity.sign(run, &receipt))),
        ))
    }

    fn inputs(&self, query: InputQuery) -> Result<Answer, Reject> {
        let view = self.ledger().round(query.round).ok_or(Reject::Stale("the round is not remembered"))?;
        let commitment = view.slot_of(&query.member).and_then(|slot| view.commitment(slot));
        let root = commitment.ok_or(Reject::Rule("only a frozen contribution is kept"))?.commit.root;
        Ok(Answer::Read(query, root))
    }

    fn delivered(&mut self, signed: Signed<Delivered>) -> Result<Answer, Reject> {
        let said = signed.verify(self.ledger().run())?;
        let name = signed.digest();
        // Nothing is kept of an author before the round knows it: keys cost nothing.
        let told = self.state.delivered.get(&said.author());
        let new = told.is_none_or(|told| !told.contains(&name));
        if new && told.is_some_and(|told| told.len() >= DELIVERIES) {
            return Err(Reject::Rule("a delivery is told a few times in a round at most"));
        }
        self.conductor.delivered(self.now(), &signed)?;
        if new {
            self.keep(Request::Delivered(signed))?;
            self.state.delivered.entry(said.author()).or_default().insert(name);
        }
        let ledger = self.ledger();
        let commitment = ledger
            .current()
            .and_then(|view| view.slot_of(&said.author()).and_then(|slot| view.commitment(slot)));
        if commitment.is_none_or(|commitment| commitment.weight == 0) {
            // STAND-3: what has no weight is not counted, so nothing is promised.
            return Ok(Answer::Now(Response::Done));
        }
        // ROUND-5: from here on the sealed inputs must count it.
        let receipt = DeliveryReceipt { delivered: name, round: said.round, attempt: said.attempt };
        Ok(Answer::Now(Response::Delivered(self.identity.sign(self.ledger().run(), &receipt))))
    }

    fn checked(&mut self, signed: Signed<Checked>) -> Result<Answer, Reject> {
        self.conductor.checked(self.now(), &signed)?;
        self.keep(Request::Checked(signed))?;
        Ok(Answer::Now(Response::Done))
    }

    /// Takes a result; what would be sealed of a part is shown in the next turn. Says whether it is new.
    fn result(&mut self, signed: &Signed<PartResult>) -> Result<bool, Reject> {
        let said = signed.verify(self.ledger().run())?;
        let held = self.conductor.held_result(said.part, &said.author()).cloned();
        if let Some(evidence) = two_results(self.ledger(), held.as_ref(), signed) {
            self.conductor.contest(said.part, &said.author());
            let _ = self.accuse(self.identity.id(), evidence);
            return Err(Reject::Rule("an aggregator signs one result for a part; the other one is held"));
        }
        self.conductor.result(self.now(), signed.clone())
    }

    fn notice(&mut self, notice: Notice) -> Result<Answer, Reject> {
        let now = self.now();
        match &notice {
            Notice::Echo(signed) if !self.conductor.echo(now, signed.clone())? => return Ok(Answer::Again),
            Notice::Result(signed) if !self.result(signed)? => return Ok(Answer::Again),
            Notice::Echo(_) | Notice::Result(_) => {}
            Notice::Return(signed) => {
                self.ledger().check_return(signed)?;
                return Ok(Answer::Sealed(Box::new(Body::Return(signed.clone()))));
            }
            Notice::Leave(signed) => {
                self.ledger().check_leave(signed)?;
                return Ok(Answer::Sealed(Box::new(Body::Leave(signed.clone()))));
            }
            Notice::Opinion(signed) => {
                self.opinion(signed)?;
                self.board.post(notice);
            }
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
                let sealed = match self.state.replaying {
                    true => self.docket.recall(now, ledger, &notice)?,
                    false => self.docket.post(now, ledger, &notice)?,
                };
                self.watch_audit(&notice);
                self.board.post(notice);
                sealed.into_iter().for_each(|body| self.conductor.propose(body));
                self.docket.credits().into_iter().for_each(|credit| self.conductor.credit(credit));
            }
        }
        Ok(Answer::Now(Response::Done))
    }

    /// Counts audits for people.
    fn watch_audit(&mut self, notice: &Notice) {
        let run = self.ledger().run();
        match notice {
            Notice::Request(signed) => {
                if let Ok(request) = signed.verify(run) {
                    self.report.audit(&request, request.author());
                }
            }
            Notice::Verdict(signed) => {
                if let Ok(verdict) = signed.verify(run) {
                    let pass = verdict.finding == Finding::Pass;
                    self.report.verdict(pass);
                }
            }
            Notice::Recomputation(signed) => {
                let said = signed.verify(run);
                said.into_iter().for_each(|said| self.report.verdict(said.finding == Finding::Pass));
            }
            _ => {}
        }
    }

    /// Keeps what was said on the disk until a record holds it.
    ///
    /// # Errors
    /// [`Reject`] when the disk does not take it: then nothing may be promised, and the steward ends.
    fn keep(&mut self, request: Request) -> Result<(), Reject> {
        let round = self.ledger().next_round();
        self.inbox.keep(round, &request).map_err(|failure| {
            self.state.failed = Some(failure);
            Reject::Rule("the steward's disk does not take it; try again later")
        })
    }
}
