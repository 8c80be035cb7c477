//! How a membership goes on and ends: the Return, the Leave, and the dismissal of a convict.

use muster_core::bug::OrBug;
use muster_core::ids::{MemberId, Round};
use muster_core::ledger::{Holding, Ledger, Member, RoundView, Stage, Standing};
use muster_core::messages::enrol::{Addresses, Engagement, Leave, Ready, Return};
use muster_core::messages::record::{Ban, Body};
use muster_core::messages::wire::{Notice, Request};
use muster_core::sign::Signed;

use super::{MembershipEnd, Milestone, Node, NodeEffect};

/// How long a convict still serves after its last round, in milliseconds.
const LINGER: u64 = 10_000;

/// The rest of a convict's membership.
pub(super) struct Dismissal {
    pub(super) ban: Box<Ban>,
    /// Since when it has no seat any more.
    served: Option<u64>,
}

impl Dismissal {
    /// When it is over.
    pub(super) fn timeout(&self) -> Option<u64> {
        self.served.map(|since| since + LINGER)
    }
}

impl Node {
    /// What a record means for this membership.
    pub(super) fn sealed(&mut self, body: &Body) {
        match body {
            Body::Ban(ban) if ban.culprit == self.me() => {
                // The seal is believed: if every node re-executed every ban, that would cost more than the audits. The
                // evidence is kept for whoever doubts it.
                self.tell(Milestone::Banned);
                let ban = Box::new(ban.clone());
                self.effects.push_back(NodeEffect::FetchEvidence(ban.clone()));
                self.dismissal = Some(Dismissal { ban, served: None });
            }
            Body::Leave(leave) if leave.claimed_signer() == self.me() => {
                self.tell(Milestone::Leaving);
                self.leaving = Some(MembershipEnd::Left);
            }
            Body::Return(back) if back.claimed_signer() == self.me() => self.returned(back),
            Body::Freeze(freeze) => {
                self.tabulate(freeze.round);
                // COMMIT-8: the machine whose commitment is sealed goes on, and the other one stops.
                if self.twin.frozen(self.now, &self.ledger, freeze, &self.identity.id()) {
                    self.end(MembershipEnd::Twice(freeze.round));
                }
            }
            _ => {}
        }
        // ROUND-33: whoever waits in vain for a Freeze may want to know why.
        let goes = matches!(body, Body::Idle(_) | Body::Ban(_) | Body::Leave(_));
        if goes
            && self.ledger.is_unwatched()
            && !matches!(self.ledger.stage(), Stage::Auditing | Stage::Closed)
        {
            self.tell(Milestone::Unwatched);
        }
    }

    /// COMMIT-8: a Return that this process did not say, from somewhere else: two machines run with one key, as from a copied
    /// data directory. The one that was there first stops, before they contradict each other.
    fn returned(&mut self, back: &Signed<Return>) {
        let back = back.verify(self.ledger.run()).or_bug("a sealed Return that its author has signed");
        let Some(back) = back else { return };
        // What an earlier process of this machine said was said before this one had read everything.
        let later = self.since.is_some_and(|since| back.height > since);
        if later && !self.contact.sealed(&back.addresses) {
            self.end(MembershipEnd::Elsewhere(back.into_inner().addresses));
        }
    }

    /// A round is over: what of it counted, and what is too old now.
    pub(super) fn over(&mut self, round: Round) {
        self.applied = true;
        if let Some(view) = self.ledger.round(round) {
            let slot = view.slot_of(&self.me()).filter(|slot| view.counted(*slot));
            let counted = slot.and_then(|slot| view.commitment(slot)).map_or(0, |own| own.commit.leaves);
            self.tell(Milestone::Over(round, counted));
        }
        // Audits and exhibits ask for contributions for that long (ROUND-4).
        let keep = self.ledger.manifest().retention.contributions;
        self.effects.push_back(NodeEffect::Prune(Round(round.0.saturating_sub(keep))));
    }

    /// Says that it is back when the ledger has it away, silent where no round is under way, at another address, or at other work.
    pub(super) fn come_back(&mut self) {
        let ledger = &self.ledger;
        // A steward may withhold the record that admits this node: it is nowhere to come back to.
        let Some(member) = ledger.member(&self.me()) else { return };
        let due = match member.standing {
            // Whoever rests is as well off away.
            Standing::Away | Standing::Silent(_) if self.engagement == Engagement::Rests => false,
            Standing::Away => !ledger.is_barred(member.barred),
            Standing::Silent(_) => ledger.stage() == Stage::Gathering,
            Standing::Active => {
                member.addresses != *self.contact.says() || member.engagement != self.engagement
            }
            Standing::Left | Standing::Banned => false,
        };
        // Said once for each change of standing: the first Return is sealed, or refused and then forgotten here.
        let said = self.back.is_some_and(|height| height > member.since);
        // A Return names a height above the last change of standing (LEDGER-13), and whoever is not in step could not
        // compute.
        if !due || said || !self.in_step || member.since >= ledger.height() {
            return;
        }
        let height = ledger.height();
        let back = Return { height, addresses: self.contact.says().clone(), engagement: self.engagement };
        let back = self.identity.sign(ledger.run(), &back);
        // A member that has moved says so once a round (LEDGER-13), and not before the first one.
        if ledger.check_return(&back).is_err() {
            return;
        }
        // Not where it has only found another way to itself.
        let moves = member.addresses != *self.contact.says() && !self.contact.is_elsewhere(&member.addresses);
        if member.standing == Standing::Active && moves {
            tracing::warn!(
                "this member is somewhere else than it last said; a machine that still runs there with its key stops now"
            );
        }
        self.back = Some(height);
        self.say([Request::Notice(Notice::Return(back))]);
    }

    /// CHAN-24: whether it is time to say where this member listens, after the ledger has it without an address.
    pub(super) fn says_again(&mut self) -> bool {
        // What it said last is read first: a record of its own must not look like another machine's.
        let elsewhere = |member: &Member| {
            member.standing == Standing::Active && self.contact.is_elsewhere(&member.addresses)
        };
        self.ledger.member(&self.me()).is_some_and(elsewhere) && self.contact.is_due(self.now)
    }

    /// A Return was refused, or did not reach the steward.
    pub(super) fn not_back(&mut self) {
        self.back = None;
        self.contact.refused(self.now);
    }

    /// Says that it holds the row that was drawn for it, with the state that it holds (ROW-3).
    pub(super) fn be_ready(&mut self) {
        let ledger = &self.ledger;
        let holding = ledger.member(&self.me()).and_then(|member| member.holding);
        let Some(Holding { row, ready: false, .. }) = holding else {
            self.ready = None;
            return;
        };
        if !self.complete || !self.in_step || self.ready == Some(row) {
            return;
        }
        let ready = Ready { round: ledger.next_round(), row, root: ledger.state().root() };
        let notice = Notice::Ready(self.identity.sign(ledger.run(), &ready));
        self.ready = Some(row);
        self.say([Request::Notice(notice)]);
    }

    /// Asks to be let go for good.
    pub(super) fn leave(&mut self) {
        let leave = Leave { height: self.ledger.height() };
        let notice = Notice::Leave(self.identity.sign(self.ledger.run(), &leave));
        self.say([Request::Notice(notice)]);
    }

    /// It is met there behind its router from now on.
    pub(super) fn met(&mut self, behind: Addresses) {
        self.contact.met(behind);
        // It is said with what is known now, and not only with the next news.
        self.followed = true;
    }

    /// Whether nobody can dial this member, by the ledger and by what it says itself.
    pub fn lacks_address(&self) -> bool {
        let without = |member: &Member| member.standing == Standing::Active && member.addresses.is_empty();
        self.contact.says().is_empty() && self.ledger.member(&self.me()).is_some_and(without)
    }

    /// From the next round on it wants to do this.
    pub(super) fn engage(&mut self, engagement: Engagement) {
        self.engagement = engagement;
        // It is said with what is known now, and not only with the next news.
        self.followed = true;
    }

    /// Whether it rests, and may go without letting anybody wait.
    pub(super) fn is_at_rest(&self) -> bool {
        self.engagement == Engagement::Rests
            && self.ledger.stage() != Stage::Closed
            && is_at_rest(&self.ledger, &self.me())
    }

    /// Ends between two rounds, or after the one that is under way.
    pub(super) fn interrupted(&mut self) {
        self.tell(Milestone::Stopping);
        // A Leave that is sealed says more than an interruption.
        self.leaving.get_or_insert(MembershipEnd::Interrupted);
        if self.is_idle() {
            self.end(MembershipEnd::Interrupted);
        }
    }

    /// Whether no round is under way that this member has a part in.
    pub(super) fn is_idle(&self) -> bool {
        is_idle(&self.ledger, &self.me())
    }

    /// The ban of a convict once the round in which it still has a seat is over, and its contributions could be fetched:
    /// others need what it holds.
    pub(super) fn served_out(&mut self) -> Option<Box<Ban>> {
        let dismissal = self.dismissal.as_mut()?;
        if self.ledger.next_round() < dismissal.ban.effective {
            return None;
        }
        // From the round in which it has no seat any more, not from the ban: until then it may still contribute.
        let since = *dismissal.served.get_or_insert(self.now);
        (self.now >= since + LINGER).then(|| dismissal.ban.clone())
    }
}

/// Whether a member rests by the ledger, or is away, and lets nobody wait: it has no part in the round under way, and answers for no
/// earlier one any more (AUDIT-1).
pub fn is_at_rest(ledger: &Ledger, me: &MemberId) -> bool {
    let rests = |member: &Member| match member.standing {
        Standing::Active => member.engagement == Engagement::Rests,
        Standing::Away => true,
        Standing::Silent(_) | Standing::Left | Standing::Banned => false,
    };
    let answers = |view: &RoundView| {
        let slot = view.slot_of(me);
        ledger.is_answerable(view.round()) && slot.is_some_and(|slot| view.commitment(slot).is_some())
    };
    ledger.member(me).is_some_and(rests) && is_idle(ledger, me) && !ledger.rounds().any(answers)
}

/// Whether no round is under way that a member has a part in.
fn is_idle(ledger: &Ledger, me: &MemberId) -> bool {
    let under_way = matches!(ledger.stage(), Stage::Computing | Stage::Exchanging | Stage::Reducing);
    !under_way || ledger.current().and_then(|view| view.slot_of(me)).is_none()
}
