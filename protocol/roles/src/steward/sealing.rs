//! Sealing: a proposal becomes a signed record, and the rooms learn of each kind of record.

use muster_core::codec::encode;
use muster_core::ids::Round;
use muster_core::messages::record::{Body, Record};
use muster_core::messages::wire::Response;

use super::Steward;
use super::interface::{Bulletin, StewardEffect};

/// Records of the round itself that may be refused in a row: more mean a bug.
const REFUSALS: u32 = 16;
/// The news of a late member (AUDIT-27).
const LATE: &str = "lets its audits wait: its work counts again once it has answered them";

impl Steward {
    pub(super) fn seal(&mut self, mut body: Body) {
        // LEDGER-12: since the ban was proposed, more seats may have been sealed.
        if let Body::Ban(ban) = &mut body {
            ban.effective = self.ledger().first_round_without();
        }
        // AUDIT-24: effects are performed in order, so the values are on the disk before the record that
        // forgets them.
        let ledger = self.conductor.ledger();
        let parts = self.exhibits.write_before(ledger, self.board.docket(), &body);
        if !parts.is_empty() {
            self.effects.push_back(StewardEffect::KeepParts { parts, at_once: true });
        }
        let (name, of_round) = (encode(&body), is_of_round(&body));
        let record = self.ledger().record(body);
        let signed = self.identity.sign(self.ledger().run(), &record);
        let answer = match self.conductor.sealed(self.now, &signed) {
            Ok(verified) => {
                // LEDGER-3: before any effect that follows from the record, so that nothing is shown that a
                // crash can undo.
                self.effects.push_back(StewardEffect::Seal(Box::new(signed), Box::new(verified)));
                self.refusals = 0;
                self.sealed(&record);
                Response::Done
            }
            Err(reject) => {
                // LEDGER-3: a refused record is shown to nobody, and the next one has its height.
                tracing::debug!("a proposed record was not sealed: {reject}");
                // Members can have their proposals refused as often as they like: that is no fault of this
                // steward.
                self.refusals += u32::from(of_round);
                if self.refusals >= REFUSALS {
                    self.effects.push_back(StewardEffect::Halt(format!(
                        "the round cannot go on, its record is refused: {reject}; please report this"
                    )));
                }
                Response::refused(&reject.to_string())
            }
        };
        if let Some(question) = self.admission.answered(&name) {
            self.effects.push_back(StewardEffect::Answer(question, answer));
        }
    }

    /// Tells the rooms of a record, and people.
    fn sealed(&mut self, record: &Record) {
        if matches!(record.body, Body::Freeze(_) | Body::Inputs(_) | Body::Outcome(_)) {
            self.tell_failures(record.height);
        }
        match &record.body {
            Body::Admit(enrol) => self.tell(Bulletin::Admitted(enrol.claimed_signer())),
            Body::Begin(_) => self.tell(Bulletin::Began),
            // A member that has read of a Reassign cannot take in results that were shown just before it.
            Body::Inputs(_) => {
                self.board.forget_results();
                self.relays.inputs_sealed();
            }
            Body::Outcome(outcome) => self.over(outcome.round),
            Body::Silence(request) => {
                if let Ok(request) = request.verify(self.ledger().run()) {
                    // AUDIT-24: by the time of a ban its round may be forgotten and the keepers gone.
                    self.exhibits.suspect(request.round, request.target);
                    self.tell(Bulletin::Moved(request.target, "did not answer an audit"));
                }
            }
            Body::Ban(ban) => {
                self.exhibits.banned(&ban.culprit);
                self.tell(Bulletin::Banned(ban.clone()));
                self.past.convicted(ban);
            }
            Body::Idle(idle) => self.tell(Bulletin::Idle(idle.clone())),
            Body::Late(_) => {
                let members = self.ledger().newly_late();
                members.into_iter().for_each(|member| self.tell(Bulletin::Moved(member, LATE)));
            }
            Body::Return(back) => self.tell(Bulletin::Moved(back.claimed_signer(), "is back")),
            Body::Ready(ready) => self.tell(Bulletin::Moved(ready.claimed_signer(), "holds its row")),
            Body::Leave(leave) => self.tell(Bulletin::Moved(leave.claimed_signer(), "left")),
            Body::CloseTree(order) => {
                if let Ok(order) = order.verify(self.ledger().run()) {
                    self.tell(Bulletin::TreeClosed(order.member));
                }
            }
            Body::Close(root) => {
                self.effects.push_back(StewardEffect::Archive);
                self.tell(Bulletin::Closed(*root));
                self.closing.closed(self.now);
            }
            Body::Rewind(rewind) => {
                let round = self.ledger().next_round();
                // Before any effect of the next round: its Begin names the state that the Rewind has made the
                // newest.
                self.effects.push_back(StewardEffect::GoBack(Box::new(rewind.clone())));
                self.past.went_back(&rewind.evidence);
                self.tell(Bulletin::WentBack(rewind.clone(), round));
            }
            Body::Open(_) | Body::Freeze(_) | Body::Reassign(_) | Body::Shares(_) | Body::Answered(_) => {}
        }
    }

    /// A round is over.
    fn over(&mut self, round: Round) {
        self.board.forget_results();
        self.relays.forget();
        self.deliveries.forget();
        self.court.forget(self.conductor.ledger());
        self.forget_exhibits();
        let pause = self.conductor.paused_until().map(|until| until.saturating_sub(self.now));
        self.tell(Bulletin::Ended(round, pause));
        let keep = self.ledger().manifest().retention.contributions.saturating_add(2);
        self.effects.push_back(StewardEffect::Prune(Round(round.0.saturating_sub(keep))));
    }
}

/// Whether the round itself needs this record to go on.
fn is_of_round(body: &Body) -> bool {
    matches!(
        body,
        Body::Begin(_)
            | Body::Late(_)
            | Body::Freeze(_)
            | Body::Inputs(_)
            | Body::Reassign(_)
            | Body::Shares(_)
            | Body::Outcome(_)
    )
}
