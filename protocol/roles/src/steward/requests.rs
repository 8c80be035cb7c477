//! What members say to the steward, checked, and the answers.

use muster_core::codec::encode;
use muster_core::error::Reject;
use muster_core::ids::MemberId;
use muster_core::ledger::Standing;
use muster_core::messages::enrol::{CloseTree, Enrol};
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::Body;
use muster_core::messages::round::{Checked, Commit, CommitReceipt, PartResult, Receipt};
use muster_core::messages::wire::{InputQuery, Notice, PutBlocks, Request, Response};
use muster_core::round::ClaimedDelivery;
use muster_core::sign::Signed;

use super::accusation::{equivocation, is_of_two_machines, two_results};
use super::{Bulletin, Question, Steward, StewardEffect};
use crate::keeper::Wanted;

/// How often an aggregator may ask for the same blocks of the open round before others.
const ASKED_AGAIN: usize = 4;

/// What is said to a second commitment.
const TWO_MACHINES: &str = "a member commits once in a round, and another commitment with this key is held. If two machines run \
    with a copy of one data directory, stop one: each needs a directory and an invitation of its own, and a key that signs two \
    results of the same work is banned for life";

/// What is taken at once, or sealed or read first.
pub(super) enum Disposition {
    Now(Response),
    /// At once, but it brings nothing new: there is nothing to keep.
    Again,
    /// Once this is sealed.
    Sealed(Box<Body>),
    /// Once it is read.
    Read(InputQuery, Wanted),
    /// Once it is stored.
    Stored(Box<PutBlocks>),
    /// Once its receipts are checked.
    Claimed(Box<ClaimedDelivery>),
}

impl Steward {
    /// ROUND-9: takes a request, or refuses what is early, late or said twice. Answers now, or once what is asked for is
    /// sealed, stored or read.
    pub(super) fn asked(&mut self, question: Question, from: &MemberId, request: Request, date: u64) {
        let effect = match self.judge_request(question, from, request, date) {
            Ok(Disposition::Now(response)) => StewardEffect::Answer(question, response),
            Ok(Disposition::Again) => StewardEffect::Answer(question, Response::Done),
            Ok(Disposition::Sealed(body)) => {
                self.waiting.push((encode(&*body), question));
                return self.conductor.propose(*body);
            }
            Ok(Disposition::Read(query, wanted)) => StewardEffect::Read(question, query, wanted),
            Ok(Disposition::Claimed(claimed)) => StewardEffect::CheckDelivery(question, claimed),
            Ok(Disposition::Stored(put)) => StewardEffect::Store(question, *from, put),
            Err(reject) => StewardEffect::Answer(question, Response::refused(&reject.to_string())),
        };
        self.effects.push_back(effect);
    }

    /// Blocks were stored, or why not.
    pub(super) fn stored(&mut self, question: Question, stored: Result<Option<Receipt>, Reject>) {
        let relayed = self.storing.remove(&question);
        let answer = match stored {
            Ok(receipt) => {
                if let Some((sender, attempt, part)) = relayed {
                    self.relayed.entry((sender, attempt)).or_default().insert(part);
                }
                let run = self.ledger().run();
                let signed = |receipt| Response::Receipt(self.identity.sign(run, &receipt));
                receipt.map_or(Response::Done, signed)
            }
            Err(reject) => Response::refused(&reject.to_string()),
        };
        self.effects.push_back(StewardEffect::Answer(question, answer));
    }

    /// Takes again what was taken before the process ended; what is over by now is refused as it would be from a
    /// member.
    pub(super) fn replay(&mut self, kept: Vec<Request>) {
        self.replaying = true;
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
        self.replaying = false;
    }

    fn judge_request(
        &mut self,
        question: Question,
        peer: &MemberId,
        request: Request,
        date: u64,
    ) -> Result<Disposition, Reject> {
        // These two come from whoever is no member: a newcomer, or somebody who brings an order of the organiser.
        if let Request::Enrol(signed) = request {
            return self.enrol(signed, date);
        }
        if let Request::CloseTree(signed) = request {
            return self.close_tree(signed);
        }
        // CHAN-10: who is no member is told what is public, and takes part in nothing.
        // CALL-7: whoever calls with the steward's key brings what it has found as the steward itself.
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
                let answer = self.notice(notice)?;
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
        let run = self.ledger().run();
        let author = signed.verify(run)?.author();
        // A request may come twice when its answer was lost.
        if let Some(member) = self.ledger().member(&author) {
            let gone = matches!(member.standing, Standing::Banned | Standing::Left);
            return if gone {
                Err(Reject::NotEntitled("enrol again"))
            } else {
                Ok(Disposition::Now(Response::Done))
            };
        }
        let enrol = self.ledger().check_enrol(&signed)?;
        let expires = enrol.invitation.as_ref().map(|shown| shown.invitation.verify(run)).transpose()?;
        // LEDGER-5: only the steward has a clock, so no follower can check this.
        if expires.is_some_and(|invitation| invitation.expires < date) {
            return Err(Reject::Rule("the invitation has expired; ask for another one"));
        }
        Ok(Disposition::Sealed(Box::new(Body::Admit(signed))))
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
        // Before the conductor, which would drop the second commitment, and the evidence with it.
        if let Some(evidence) = equivocation(self.ledger(), held.as_ref(), &signed) {
            // COMMIT-8: a slower machine with a copy of the data directory sums fewer leaves, and with a tolerance another
            // machine has other sums. Nobody gains by what is refused.
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
        // COMMIT-4: the receipt is of the one that is held, however often and with whatever signature it is said again.
        let kept = held.as_ref().unwrap_or(&signed);
        let receipt = CommitReceipt { commit: kept.digest(), round: commit.round };
        Ok(Disposition::Now(Response::Committed(self.identity.sign(run, &receipt))))
    }

    /// Keeps an aggregator's own part, so that it is not in its author's hands alone, and some of those that an
    /// aggregator did not take.
    fn put(&mut self, question: Question, sender: &MemberId, put: PutBlocks) -> Result<Disposition, Reject> {
        let (view, me) = (self.ledger().round(put.round), self.identity.id());
        let view = view.ok_or(Reject::Stale("the round is not remembered"))?;
        let first = put.blocks.first().ok_or(Reject::Rule("a delivery holds a block"))?.block;
        let part = view.part_of(first).ok_or(Reject::Rule("a delivered block is in a part"))?;
        let attempt = put.attempt;
        let relayed = !view.keepers(part, sender).is_some_and(|(keepers, _)| keepers.contains(&me));
        if relayed {
            let open = self.ledger().current().is_some_and(|view| view.round() == put.round);
            let mut held = self.relayed.get(&(*sender, attempt)).cloned().unwrap_or_default();
            // Those that are on their way to the disk take room as well.
            let storing = self.storing.values().filter(|(by, of, _)| (by, *of) == (sender, attempt));
            held.extend(storing.map(|(_, _, part)| *part));
            let slot = view.slot_of(sender);
            let most = slot.map_or(0, |slot| view.parts_of(slot).count().div_ceil(2));
            // ROUND-24: half of the parts, so that nobody sends everything through the steward.
            // A part that is here already takes no more room: its receipt may have been lost on the way.
            let room = held.contains(&part) || held.len() < most;
            if !open || !room {
                return Err(Reject::Rule(
                    "the steward takes half of a member's parts at most, while the round lasts",
                ));
            }
            // Counted once it is stored: a delivery that is refused uses up no room.
            self.storing.insert(question, (*sender, attempt, part));
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
            let asked = self.asked.entry((*peer, query.member)).or_default();
            *asked = asked.saturating_add(query.blocks.len());
            // ROUND-36: what an aggregator lacks, and again where an answer was lost. Whoever asks for ever is served like
            // everybody, and no phase waits for it.
            if *asked <= most.saturating_mul(ASKED_AGAIN) {
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

    /// Takes a result; what would be sealed of a part is shown in the next turn. Says whether it is new.
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

    fn notice(&mut self, notice: Notice) -> Result<Disposition, Reject> {
        let now = self.now;
        match &notice {
            Notice::Echo(signed) if !self.conductor.echo(now, signed.clone())? => {
                return Ok(Disposition::Again);
            }
            Notice::Result(signed) if !self.result(signed)? => return Ok(Disposition::Again),
            Notice::Echo(_) | Notice::Result(_) => {}
            Notice::Return(signed) => {
                self.ledger().check_return(signed)?;
                self.watch_move(&signed.claimed_signer());
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
                self.opinion(signed)?;
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
                // A step that was taken before a restart counts by who was entitled to it then.
                let sealed = match self.replaying {
                    true => self.docket.recall(now, ledger, &notice)?,
                    false => self.docket.post(now, ledger, &notice)?,
                };
                self.watch_audit(&notice);
                self.effects.push_back(StewardEffect::Post(notice));
                sealed.into_iter().for_each(|body| self.conductor.propose(body));
                self.docket.credits().into_iter().for_each(|credit| self.conductor.credit(credit));
            }
        }
        Ok(Disposition::Now(Response::Done))
    }

    /// COMMIT-8: tells people of a member that is elsewhere all at once while it still has a connection.
    fn watch_move(&mut self, member: &MemberId) {
        let active = self.ledger().member(member).is_some_and(|member| member.standing == Standing::Active);
        if active && self.presence.is_connected(member) {
            self.tell(Bulletin::Moved(
                *member,
                "is at another address now; if two machines run with its key, one must stop",
            ));
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

    /// Keeps what was said until a record holds it.
    pub(super) fn keep(&mut self, request: Request) {
        let round = self.ledger().next_round();
        self.effects.push_back(StewardEffect::Keep(round, Box::new(request)));
    }
}
