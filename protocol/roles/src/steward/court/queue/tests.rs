use muster_core::ids::{Height, Part, RunId};
use muster_core::messages::evidence::{Equivocation, Reduction, Total};
use muster_core::messages::record::{Body, Record};
use muster_core::messages::round::{Bitmap, Commit, PartResult};
use muster_core::sign::Identity;

use super::*;

fn nobody(_: &MemberId) -> bool {
    false
}

fn member(number: u8) -> MemberId {
    MemberId([number; 32])
}

/// A Total by one member against another; each number has a name of its own.
fn total(accuser: u8, culprit: u8, number: u32) -> Allegation {
    let body = Body::Close(Digest::default());
    let record = Record { height: Height(number.into()), previous: Digest::default(), body };
    let freeze = Identity::from_secret(&[7; 32]).sign(RunId(Digest::default()), &record);
    let evidence = Evidence::Total(Total { freeze, culprit: member(culprit) });
    of(evidence, accuser, culprit, number)
}

fn of(evidence: Evidence, accuser: u8, culprit: u8, round: u32) -> Allegation {
    let claim = Claim { culprit: member(culprit), subject: member(culprit), round: Round(round) };
    let (digest, accuser) = (evidence.digest(), member(accuser));
    Allegation { digest, evidence, accuser, claim, owed: false, tries: 0, reply: None }
}

fn equivocation(accuser: u8, number: u32) -> Allegation {
    let commit = |root: u8| {
        let (head, state) = Default::default();
        let (slot, seats, leaves, loss) = (muster_core::ids::Slot(0), 2, 1, 0);
        let (round, profile) = (Round(number), muster_core::manifest::Profile::Exact);
        let root = Digest([root; 32]);
        let route = None;
        let commit = Commit { round, head, state, slot, seats, route, leaves, profile, loss, root };
        Identity::from_secret(&[7; 32]).sign(RunId(Digest::default()), &commit)
    };
    of(Evidence::Equivocation(Equivocation { first: commit(0), second: commit(1) }), accuser, 99, number)
}

fn taken(queue: &mut Queue, accusations: impl Iterator<Item = Allegation>) -> usize {
    accusations.filter(|accusation| queue.accuse(accusation.clone(), false, false).is_ok()).count()
}

#[test]
fn one_cheat_that_is_found_every_time_leaves_its_accuser_room_for_the_others() {
    let mut queue = Queue::default();
    assert_eq!(taken(&mut queue, (0..30).map(|number| total(1, 10, number))), WAITING_OF_PAIR);
    assert!(queue.accuse(total(1, 11, 40), false, false).is_ok(), "another culprit");
    assert!(queue.accuse(total(2, 10, 50), false, false).is_ok(), "another accuser");
}

#[test]
fn a_slanderer_of_everybody_makes_room_for_who_has_less_to_say() {
    let mut queue = Queue::default();
    let everybody = (10..100).flat_map(|culprit| (0..4).map(move |n| total(1, culprit, n)));
    assert_eq!(taken(&mut queue, everybody), WAITING);
    assert!(queue.accuse(total(2, 10, 1000), false, false).is_ok());
    assert!(queue.accuse(total(1, 101, 1001), false, false).is_err(), "it has all the places already");
    assert_eq!(queue.brought(), WAITING);
    // Once its word has come to nothing, others are heard before it.
    let first = queue.next(0, &nobody).unwrap();
    queue.heard(0, &first.claim.culprit, Heard::Unfounded);
    assert_eq!(queue.next(0, &nobody).unwrap().accuser, member(2));
}

#[test]
fn duty_10_no_guilty_verdict_on_the_board_is_dropped() {
    let mut queue = Queue::default();
    let everybody = (10..100).flat_map(|culprit| (0..4).map(move |n| total(1, culprit, n)));
    taken(&mut queue, everybody);
    for number in 0..500 {
        let verdict = total(3, 200, 1000 + number);
        queue.owe(&verdict, true);
        queue.owe(&verdict, true);
    }
    let of_board = |queue: &Queue| queue.waiting.iter().filter(|one| !one.is_brought()).count();
    assert_eq!(of_board(&queue), 500);
    // What members bring takes no place of theirs, and is not examined a second time.
    assert_eq!(taken(&mut queue, (0..9).map(|number| total(3, 200, 1000 + number))), 9);
    assert_eq!((of_board(&queue), queue.brought()), (500, WAITING));
}

#[test]
fn duty_10_what_two_verifiers_find_is_examined_for_each_of_them() {
    let mut queue = Queue::default();
    let [first, second] = [total(1, 10, 0), total(2, 10, 0)];
    assert_eq!(first.digest, second.digest, "the same words against the same member");
    queue.owe(&first, false);
    assert_eq!(queue.next(0, &nobody).unwrap().accuser, member(1));
    queue.heard(0, &member(10), Heard::Unfounded);
    queue.owe(&first, false);
    assert!(queue.next(0, &nobody).is_none(), "once");
    queue.owe(&second, false);
    assert_eq!(queue.next(0, &nobody).unwrap().accuser, member(2));
    queue.heard(0, &member(10), Heard::Unfounded);
    queue.owe(&total(3, 10, 1), false);
    assert!(queue.next(0, &|who| *who == member(3)).is_none(), "its author is banned by now");
}

#[test]
fn one_case_of_each_culprit_is_open_and_several_culprits_are() {
    let mut queue = Queue::default();
    for (number, culprit) in [(0, 10), (1, 10), (2, 11), (3, 12)] {
        queue.accuse(total(1, culprit, number), false, false).unwrap();
    }
    let open: Vec<MemberId> =
        std::iter::from_fn(|| queue.next(0, &nobody)).map(|one| one.claim.culprit).collect();
    assert_eq!(open, [10, 11, 12].map(member));
    queue.heard(0, &member(10), Heard::Founded);
    assert!(queue.next(0, &|culprit| *culprit == member(10)).is_none(), "it is banned by now");
}

#[test]
fn what_needs_no_fetch_goes_first_and_finds_a_place() {
    let mut queue = Queue::default();
    (0..9)
        .for_each(|number| queue.accuse(total(1 + number, 10 + number, number.into()), true, false).unwrap());
    queue.accuse(total(1, 50, 50), false, false).unwrap();
    assert_eq!(queue.next(0, &nobody).unwrap().claim.culprit, member(50));
    queue.heard(0, &member(50), Heard::Founded);
    assert_eq!(std::iter::from_fn(|| queue.next(0, &nobody)).count(), FETCHING, "all of them stall");
    queue.accuse(total(1, 51, 51), false, false).unwrap();
    assert_eq!(queue.next(0, &nobody).unwrap().claim.culprit, member(51));
    // Nothing is fetched a second time of who did not show its integers.
    queue.withholds(member(18), Round(8));
    assert_eq!(queue.next(0, &nobody).unwrap().claim.culprit, member(18));
}

/// A verifier that accuses many who stall keeps no other one from being heard.
#[test]
fn one_accuser_has_some_of_the_fetches_alone() {
    let mut queue = Queue::default();
    for number in 0..4 {
        queue.accuse(total(1, 10 + number, number.into()), true, false).unwrap();
    }
    assert_eq!(std::iter::from_fn(|| queue.next(0, &nobody)).count(), FETCHING_OF_ONE);
    queue.accuse(total(2, 50, 50), true, false).unwrap();
    assert_eq!(queue.next(0, &nobody).unwrap().claim.culprit, member(50));
}

#[test]
fn what_could_not_be_decided_is_examined_again_by_itself() {
    let mut queue = Queue::default();
    queue.accuse(total(1, 10, 3), false, false).unwrap();
    assert!(!queue.is_at_rest());
    let case = queue.next(0, &nobody).unwrap();
    assert!(!queue.is_at_rest(), "it is being examined");
    queue.heard(5, &case.claim.culprit, Heard::Undecided);
    assert!(queue.is_at_rest(), "nothing waits for it");
    assert!(queue.accuse(total(2, 10, 3), false, false).is_ok(), "it is known");
    assert!(queue.next(AGAIN, &nobody).is_none(), "not at once");
    assert_eq!(queue.next(5 + AGAIN, &nobody).unwrap().tries, 1);
    queue.heard(9, &member(10), Heard::Undecided);
    assert!(queue.next(9 + AGAIN, &nobody).is_none(), "twice as long");
    queue.forget(&|round| round > Round(3));
    assert!(queue.next(u64::MAX, &nobody).is_none(), "its round is forgotten");
}

#[test]
fn who_lets_cases_end_in_nothing_is_heard_after_the_others() {
    let mut queue = Queue::default();
    (0..4).for_each(|number| queue.accuse(total(1, 10, number), true, false).unwrap());
    queue.accuse(total(2, 10, 50), true, false).unwrap();
    assert_eq!(queue.next(0, &nobody).unwrap().accuser, member(1), "it was first");
    queue.heard(0, &member(10), Heard::Undecided);
    assert_eq!(queue.next(0, &nobody).unwrap().accuser, member(2), "three others waited for longer");
}

#[test]
fn what_anybody_may_bring_leaves_room_for_what_verifiers_find() {
    let mut queue = Queue::default();
    let many = (0..200u8).map(|accuser| equivocation(accuser, u32::from(accuser)));
    assert_eq!(taken(&mut queue, many), ANYBODYS);
    assert!(queue.accuse(total(1, 10, 0), false, false).is_ok());
    assert!(queue.accuse(equivocation(250, 300), false, true).is_ok(), "the steward's own");
}

/// What an aggregator is said to have reduced wrongly in a round; each number has a name of its own.
fn aggregation(accuser: u8, culprit: u8, number: u32) -> Allegation {
    let Allegation { evidence: Evidence::Total(Total { freeze, .. }), .. } = total(accuser, culprit, number)
    else {
        panic!("a Total")
    };
    let result = PartResult {
        round: Round(0),
        part: Part(0),
        attempt: 0,
        freeze: Digest::default(),
        inputs: Bitmap::default(),
        digest: Digest::default(),
    };
    let result = Identity::from_secret(&[culprit; 32]).sign(RunId(Digest::default()), &result);
    let evidence = Evidence::Aggregation(Reduction { inputs: freeze.clone(), freeze, result });
    of(evidence, accuser, culprit, 0)
}

/// Examinations of a slanderer's accusations in so many rounds, in each of which it brings as many as it
/// likes.
fn examined(rounds: u32, how: Heard) -> Vec<u32> {
    let (mut queue, mut examined, mut number) = (Queue::default(), Vec::new(), 0);
    for round in 0..rounds {
        queue.reach(Round(round));
        for culprit in 10..20 {
            number += 1;
            let _ = queue.accuse(aggregation(1, culprit, number), true, false);
        }
        let mut open: Vec<MemberId> = Vec::new();
        while let Some(case) = queue.next(0, &nobody) {
            examined.push(round);
            open.push(case.claim.culprit);
            assert_eq!(open.len(), 1, "one at a time");
            queue.heard(0, &open.remove(0), how);
        }
    }
    examined
}

#[test]
fn audit_28_false_accusations_cost_their_author_its_hearing() {
    assert_eq!(examined(70, Heard::Unfounded), [0, 1, 3, 7, 15, 31, 63]);
    assert!(examined(3, Heard::Founded).len() > 20, "who is right is heard as often as it is");
}

#[test]
fn audit_28_one_slanderer_has_one_case_before_the_court() {
    let mut queue = Queue::default();
    (10..20).for_each(|culprit| {
        queue.accuse(aggregation(1, culprit, culprit.into()), false, false).unwrap();
    });
    assert!(queue.next(0, &nobody).is_some() && queue.next(0, &nobody).is_none());
    queue.accuse(aggregation(2, 30, 30), false, false).unwrap();
    queue.accuse(aggregation(3, 31, 31), false, true).unwrap();
    queue.accuse(aggregation(3, 32, 32), false, true).unwrap();
    let others = std::iter::from_fn(|| queue.next(0, &nobody)).map(|one| one.claim.culprit);
    assert_eq!(others.collect::<Vec<_>>(), [30, 31, 32].map(member), "the steward's own are its own work");
    // What verifiers find and sign is examined all the same (DUTY-10).
    queue.heard(0, &member(10), Heard::Unfounded);
    assert!(queue.accuse(aggregation(1, 40, 40), false, false).is_err());
    queue.owe(&total(1, 40, 41), false);
    assert_eq!(queue.next(0, &nobody).unwrap().claim.culprit, member(40));
}

/// A hundred accusations of one member leave the others room.
#[test]
fn audit_28_who_fills_the_places_of_all_gives_one_up() {
    let mut queue = Queue::default();
    let mut many = Vec::new();
    for culprit in 100..200u8 {
        let mut one = equivocation(1, u32::from(culprit));
        (one.claim.culprit, one.claim.subject) = (member(culprit), member(culprit));
        many.push(one);
    }
    assert_eq!(taken(&mut queue, many.into_iter()), ANYBODYS);
    assert!(queue.accuse(equivocation(2, 1000), false, false).is_ok());
}

/// Integers that were unavailable once are asked for again in later rounds.
#[test]
fn audit_29_marks_are_by_round_and_expire() {
    let mut queue = Queue::default();
    queue.withholds(member(9), Round(4));
    assert!(queue.has_withheld(&member(9), Round(4)) && !queue.has_withheld(&member(9), Round(5)));
    queue.withholds(member(9), Round(5));
    queue.withholds(member(9), Round(7));
    queue.reach(Round(8));
    assert_eq!([10, 11].map(|round| queue.has_withheld(&member(9), Round(round))), [true, false]);
    queue.reach(Round(7 + 64 * 3));
    assert!(queue.withheld.is_empty());
}
