//! What a round must not be spent without: a past that is being measured, a verifier, a member with weight.

use super::Conductor;
use crate::ids::MemberId;
use crate::ledger::{Member, RoundView, Stage, Standing};
use crate::messages::enrol::Role;
use crate::standing::voucher_share;

/// What the Freeze of the open round waits for, besides commitments and pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The past of this convict: one more round, and a Rewind could not reach the first round that it may have spoiled.
    Past(MemberId),
    /// A verifier that takes part and is connected.
    Verifier,
    /// A node that has weight, or a newcomer that could still earn some.
    Weight,
}

impl Conductor {
    /// Takes note of a convict whose past has to be measured before the next round is spent (ROLLBACK-5), or that there is none.
    pub fn measuring(&mut self, now: u64, convict: Option<MemberId>) {
        self.measured = convict;
        self.tick(now);
    }

    /// What the Freeze of the open round waits for. The number of rounds in a run is limited, and what has to be there before
    /// one is worth spending may come back: nothing but its coming ends the wait.
    pub fn awaits(&self) -> Option<Awaited> {
        if self.ledger.stage() != Stage::Computing {
            return None;
        }
        // ROLLBACK-5: no Freeze with which a round would leave the reach of a Rewind while a convict's past is being measured.
        let past = self.measured.map(Awaited::Past);
        // ROUND-33: a run that began with verifiers spends no round while none of them is there.
        let verifier = || self.lacks_verifier().then_some(Awaited::Verifier);
        // ROUND-32: no round is spent while nobody has weight, nor can earn any.
        let weight = || self.lacks_weight().then_some(Awaited::Weight);
        past.or_else(verifier).or_else(weight)
    }

    /// Connected members of a role that pass a test.
    fn connected(&self, role: Role, test: impl Fn(&Member) -> bool) -> impl Iterator<Item = &Member> {
        let members = self.ledger.members().iter();
        members.filter(move |member| member.role == role && self.is_live(&member.id) && test(member))
    }

    fn verifiers(&self) -> impl Iterator<Item = &Member> {
        self.connected(Role::Verifier, |member| member.standing == Standing::Active)
    }

    fn lacks_verifier(&self) -> bool {
        let waits = self.ledger.manifest().admission.start_verifiers > 0;
        // Where one sits out rounds, because another one was active, these have to go by.
        let sits_out = |member: &Member| self.ledger.sits_out(member);
        let back = || self.connected(Role::Verifier, sits_out).next().is_some();
        waits && self.verifiers().next().is_none() && !back()
    }

    fn lacks_weight(&self) -> bool {
        let ledger = &self.ledger;
        // Also one that is away: where it sits out rounds, these have to go by.
        let weighs = |member: &Member| self.trains(member) && ledger.weighs(member);
        // Without a probation everybody has weight.
        let earned = ledger.manifest().admission.probation > 0;
        earned && self.connected(Role::Node, weighs).next().is_none() && !self.may_earn()
    }

    /// Whether a node computes in the round or in those to come: whoever says that it rests owes the round all the same (LEDGER-24).
    fn trains(&self, member: &Member) -> bool {
        let owes = |view: &RoundView| view.slot_of(&member.id).is_some_and(|slot| view.trains(slot));
        member.trains() || member.is_node_still() && self.ledger.current().is_some_and(owes)
    }

    /// Whether some connected newcomer comes closer to the end of its probation if a connected verifier passes it (STAND-2).
    fn may_earn(&self) -> bool {
        let most = voucher_share(&self.ledger.manifest().admission);
        let newcomers = || self.connected(Role::Node, |member| self.trains(member));
        let earns = |newcomer: &Member, verifier: &Member| {
            newcomer.credits.get(&verifier.id).copied().unwrap_or(0) < most
        };
        self.verifiers().any(|verifier| newcomers().any(|newcomer| earns(newcomer, verifier)))
    }
}
