use muster_core::audit::docket::Docket;
use muster_core::ids::Digest;
use muster_core::ledger::fixture::{Makers, Newcomer, commitment};
use muster_core::messages::evidence::Equivocation;
use muster_core::sign::Identity;

use super::*;

pub(super) const OTHER: u8 = 11;
pub(super) const CHEAT: u8 = 12;

pub(super) fn member(number: u8) -> Identity {
    Identity::from_secret(&[number; 32])
}

/// A ledger in its first round, and who seals what comes next.
pub(super) fn begun() -> (Ledger, Identity) {
    let makers = Makers::of(1, 2);
    let members = [OTHER, CHEAT].map(member);
    let ledger = makers.begin(makers.tiny(4, 2), members.iter().map(Newcomer::node));
    (ledger, makers.steward)
}

/// Two commitments of the cheat in one round.
pub(super) fn two_commitments(ledger: &Ledger) -> Evidence {
    let cheat = member(CHEAT);
    let commit = |root| cheat.sign(ledger.run(), &commitment(ledger, &cheat, 0, Digest([root; 32])));
    Evidence::Equivocation(Equivocation { first: commit(0), second: commit(1) })
}

fn orders(court: &mut Court) -> Vec<Order> {
    std::iter::from_fn(|| court.poll_order()).collect()
}

/// The accusation that the court wants examined, if that is its only order.
fn to_hear(court: &mut Court) -> Allegation {
    match orders(court).as_slice() {
        [Order::Hear(accusation, _)] => Allegation::clone(accusation),
        other => panic!("{} orders", other.len()),
    }
}

#[test]
fn an_accusation_goes_through_queue_and_hearing_to_a_ban() {
    let (ledger, steward) = begun();
    let docket = Docket::default();
    let facts = Facts { ledger: &ledger, docket: &docket, steward: steward.id(), now: 0 };
    let (mut court, evidence) = (Court::default(), two_commitments(&ledger));
    court.accuse(&facts, member(OTHER).id(), evidence.clone()).unwrap();
    assert!(orders(&mut court).is_empty() && !court.is_at_rest(), "it waits for its turn");
    court.advance(&facts);
    let accusation = to_hear(&mut court);
    court.advance(&facts);
    assert!(orders(&mut court).is_empty(), "it is examined once");
    let culprit = member(CHEAT).id();
    let (round, finding, detail) = (Round(0), FindingKind::Equivocation, String::new());
    let guilty = Judgement::Guilty { culprit, round, finding, detail };
    court.heard(&facts, &accusation, Ruling::plain(evidence.clone(), guilty));
    let orders = orders(&mut court);
    let [Order::KeepEvidence(kept, None), Order::Ban(ban)] = orders.as_slice() else {
        panic!("{} orders: the evidence is kept before the ban is sealed", orders.len())
    };
    assert_eq!(kept.digest(), evidence.digest());
    let named = (ban.culprit, ban.accuser, ban.evidence, ban.finding);
    assert_eq!(named, (culprit, member(OTHER).id(), evidence.digest(), finding));
    assert_eq!(ban.effective, ledger.first_round_without());
    assert!(court.is_at_rest());
}

#[test]
fn nobody_is_convicted_by_its_own_word() {
    let (ledger, steward) = begun();
    let docket = Docket::default();
    let facts = Facts { ledger: &ledger, docket: &docket, steward: steward.id(), now: 0 };
    let (mut court, evidence) = (Court::default(), two_commitments(&ledger));
    court.accuse(&facts, member(CHEAT).id(), evidence.clone()).unwrap();
    court.advance(&facts);
    let accusation = to_hear(&mut court);
    let (round, finding, detail) = (Round(0), FindingKind::Equivocation, String::new());
    let guilty = Judgement::Guilty { culprit: member(CHEAT).id(), round, finding, detail };
    court.heard(&facts, &accusation, Ruling::plain(evidence, guilty));
    let orders = orders(&mut court);
    assert!(matches!(orders.as_slice(), [_, Order::Ban(ban)] if ban.accuser == steward.id()));
}

#[test]
fn an_undecided_accusation_is_reported_once_and_examined_again() {
    let (ledger, steward) = begun();
    let docket = Docket::default();
    let facts = |now| Facts { ledger: &ledger, docket: &docket, steward: steward.id(), now };
    let (mut court, evidence) = (Court::default(), two_commitments(&ledger));
    court.accuse(&facts(0), member(OTHER).id(), evidence.clone()).unwrap();
    court.advance(&facts(0));
    let ruling = || Ruling::plain(evidence.clone(), Judgement::Undecided("a state is unavailable".into()));
    let ruling = || Ruling { open: true, ..ruling() };
    let first = to_hear(&mut court);
    court.heard(&facts(0), &first, ruling());
    assert!(matches!(orders(&mut court).as_slice(), [Order::Dismissed { .. }]));
    court.advance(&facts(0));
    assert!(orders(&mut court).is_empty(), "not at once");
    let due = court.timeout(0).unwrap();
    court.advance(&facts(due));
    let again = to_hear(&mut court);
    assert_eq!((first.tries, again.tries), (0, 1));
    court.heard(&facts(due), &again, ruling());
    assert!(orders(&mut court).is_empty(), "that is no news");
}
