//! What the steward does for its rooms: it carries out what the court orders, has exhibits kept, looks into
//! the past of convicts, and closes the run once nothing is left to examine.

use muster_core::error::Reject;
use muster_core::ids::MemberId;
use muster_core::ledger::Stage;
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::{Ban, Body};
use muster_core::messages::wire::Notice;

use super::Steward;
use super::accusation::Allegation;
use super::closing::is_judged;
use super::court::{Court, Facts, Order};
use super::exhibits::{OwedContribution, OwedPart};
use super::hearing::Ruling;
use super::interface::{Bulletin, StewardEffect};
use super::past::{Consequences, PastRound};

impl Steward {
    /// Lets the court act, and carries out its orders at once.
    pub(super) fn in_court<T>(&mut self, act: impl FnOnce(&mut Court, &Facts<'_>) -> T) -> T {
        let facts = Facts {
            ledger: self.conductor.ledger(),
            docket: self.board.docket(),
            steward: self.identity.id(),
            now: self.now,
        };
        let done = act(&mut self.court, &facts);
        while let Some(order) = self.court.poll_order() {
            self.carry_out(order);
        }
        done
    }

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Hear(accusation, matter) => {
                self.effects.push_back(StewardEffect::Hear(accusation, matter));
            }
            Order::Suspect(round, member) => self.exhibits.suspect(round, member),
            Order::KeepEvidence(evidence, contribution) => {
                self.effects.push_back(StewardEffect::KeepEvidence(evidence, contribution));
            }
            Order::Charge(evidence) => self.effects.push_back(StewardEffect::Post(Notice::Charge(*evidence))),
            Order::Ban(ban) => self.conductor.propose(Body::Ban(ban)),
            Order::Strike { round, target, verifier } => self.board.strike(round, &target, &verifier),
            Order::Dismissed { accuser, culprit, why } => {
                self.tell(Bulletin::Dismissed { accuser, culprit, why });
            }
        }
    }

    /// Brings evidence before the court.
    ///
    /// # Errors
    /// As [`Court::accuse`].
    pub(super) fn accuse(&mut self, accuser: MemberId, evidence: Evidence) -> Result<(), Reject> {
        self.in_court(|court, facts| court.accuse(facts, accuser, evidence))
    }

    /// An examination is over.
    pub(super) fn heard(&mut self, accusation: &Allegation, ruling: Ruling) {
        self.in_court(|court, facts| court.heard(facts, accusation, ruling));
    }

    /// After a restart: members that a false verdict let pass may not have been examined yet.
    pub(super) fn examine_acquitted(&mut self, bans: &[(Ban, Option<Evidence>)]) {
        for (ban, evidence) in bans {
            if let Some(evidence) = evidence {
                self.in_court(|court, facts| court.examine_acquitted(facts, ban.accuser, evidence));
            }
        }
    }

    /// Goes on with whatever is owed: the next examinations, exhibits, the pasts of convicts, the end of the
    /// run.
    pub(super) fn pursue(&mut self) {
        // Charges first, the end last: the run does not close over a finding that is on the board already.
        self.in_court(|court, facts| court.advance(facts));
        self.fetch_exhibits();
        self.show_obtained();
        self.write_exhibits();
        self.pursue_past();
        self.close_when_settled();
    }

    fn fetch_exhibits(&mut self) {
        let ledger = self.conductor.ledger();
        let owed = self.exhibits.fetch(self.now, ledger, self.board.docket());
        self.effects.extend(owed.into_iter().map(StewardEffect::Exhibit));
    }

    /// Tells the verifiers that waited for a contribution that the steward has it now.
    fn show_obtained(&mut self) {
        for (request, back) in self.board.obtained(self.conductor.ledger(), &self.exhibits) {
            self.effects.push_back(StewardEffect::Post(Notice::Obtained(request)));
            back.into_iter().for_each(|body| self.conductor.propose(body));
        }
    }

    fn write_exhibits(&mut self) {
        let parts = self.exhibits.write(self.now, self.conductor.ledger());
        if !parts.is_empty() {
            self.effects.push_back(StewardEffect::KeepParts { parts, at_once: false });
        }
    }

    /// A contribution was fetched, or why not.
    pub(super) fn exhibited(&mut self, owed: OwedContribution, kept: Result<(), String>) {
        let lost = self.exhibits.fetched(self.now, owed, kept.is_ok());
        if let (true, Err(why)) = (lost, kept) {
            self.tell(Bulletin::Lost(owed.round, owed.member, why));
        }
    }

    /// These parts were to be kept by value, and the lost ones among them could not be.
    pub(super) fn parts_kept(&mut self, owed: Vec<OwedPart>, lost: Vec<OwedPart>) {
        self.exhibits.written(self.now, owed, lost);
    }

    /// A round has ended.
    pub(super) fn forget_exhibits(&mut self) {
        for (round, member) in self.exhibits.forget(self.conductor.ledger()) {
            self.tell(Bulletin::Lost(round, member, "its round is forgotten".into()));
        }
        let (ledger, docket) = (self.conductor.ledger(), self.board.docket());
        let dropped = self.exhibits.drop_needless(ledger, docket);
        let parts = self.exhibits.write_ahead(ledger, docket);
        if !dropped.is_empty() {
            self.effects.push_back(StewardEffect::DropParts(dropped));
        }
        if !parts.is_empty() {
            self.effects.push_back(StewardEffect::KeepParts { parts, at_once: false });
        }
    }

    fn pursue_past(&mut self) {
        let Consequences { measure, out_of_reach, rewind } =
            self.past.pursue(self.conductor.ledger(), self.now, &self.exhibits);
        self.effects.extend(measure.into_iter().map(StewardEffect::Measure));
        for culprit in out_of_reach {
            self.tell(Bulletin::OutOfReach(culprit));
        }
        if let Some(rewind) = rewind {
            self.conductor.propose(Body::Rewind(rewind));
        }
    }

    /// The past of a convict was measured.
    pub(super) fn measured(&mut self, culprit: MemberId, past: Vec<PastRound>) {
        for evidence in past.iter().flat_map(|past| &past.wrong) {
            self.in_court(|court, facts| court.examine_second(facts, evidence));
        }
        self.past.measured(self.conductor.ledger(), culprit, &past);
        if !past.is_empty() {
            self.tell(Bulletin::Past(culprit, past));
        }
    }

    /// AUDIT-26: the run ends when no case is open.
    fn close_when_settled(&mut self) {
        let (ledger, docket) = (self.conductor.ledger(), self.board.docket());
        let open = ledger.stage() != Stage::Auditing || docket.oldest_open(ledger).is_some();
        // What is proposed may be a ban, and something follows from that.
        if open || !self.closing.is_to_be_proposed() || self.conductor.proposes() {
            return;
        }
        let exact = ledger.manifest().profile.is_replayable();
        let overdue = self.conductor.overdue();
        let over = if self.closing.is_out_of_patience(self.now, ledger, overdue) {
            // Others may always have something more to say, and jurors nothing at all. Only what the steward
            // itself owes is still waited for, however long that takes.
            !(self.court.owes_hearings() || exact && self.exhibits.are_open(exact))
        } else {
            let rest = self.court.is_at_rest() && !self.past.is_open() && !self.exhibits.are_open(exact);
            // Without a verifier nobody can judge: waiting would only use up `final_audit`.
            rest && (overdue || !self.has_verifier() || is_judged(ledger, docket))
        };
        if over {
            self.closing.propose();
            let root = ledger.state().root();
            self.conductor.propose(Body::Close(root));
        }
    }
}
