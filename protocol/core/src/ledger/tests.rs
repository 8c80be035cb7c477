mod engagement;
mod enrolment;
mod shares;

use super::fixture::chain::{
    Chain, coins, identity, manifest, node, organiser, roots, slots, steward, verifier,
};
use super::fixture::{Newcomer, invitation};
use super::*;
use crate::assign::round_seed;
use crate::codec::{List, Text};
use crate::coins::{CoinKind, CoinTree, drawn_leaves};
use crate::ids::{Part, Slot};
use crate::limits::{NAME_BYTES, QUOTA};
use crate::manifest::{Admission, Manifest, Mode, Rollback};
use crate::messages::audit::{Duty, FindingKind};
use crate::messages::enrol::{CloseTree, Enrol, Invitation, InvitationSecret, Leave, Return, Role};
use crate::messages::record::{Ban, Credit, Idle, Late, Outcome, Reassign, Reassigned};
use crate::messages::round::{Bitmap, Commit, PartResult};
use crate::sign::Identity;

/// Whether the ledger takes a record.
fn takes(chain: &Chain, body: Body) -> bool {
    chain.refusal(body).is_none()
}

fn standing(chain: &Chain, member: &Identity) -> Standing {
    chain.ledger.member(&member.id()).unwrap().standing
}

#[test]
fn ledger_1_a_record_is_the_steward_s_at_its_height_on_the_head_before() {
    let mut chain = Chain::open(manifest(1));
    let record = chain.ledger.record(Body::Admit(chain.enrol(&node(0), (Role::Node, false), None)));
    let run = chain.ledger.run();
    let refusal = |by: &Identity, record: &Record| chain.ledger.clone().apply(&by.sign(run, record)).err();
    assert_eq!(refusal(&steward(), &record), None);
    assert_eq!(refusal(&organiser(), &record), Some(Reject::NotEntitled("seal records")));
    for height in [Height(0), record.height.next()] {
        let moved = Record { height, ..record.clone() };
        assert!(matches!(refusal(&steward(), &moved), Some(Reject::Stale(_))));
    }
    let forked = Record { previous: Digest([3; 32]), ..record.clone() };
    assert_eq!(refusal(&steward(), &forked), Some(Reject::Rule("a record names the head before it")));
    chain.ledger.apply(&steward().sign(run, &record)).unwrap();
    assert_eq!((chain.ledger.height(), chain.ledger.head()), (record.height.next(), record.head()));
}

#[test]
fn ledger_4_a_run_opens_once_at_step_0() {
    let empty = Chain { ledger: Ledger::new(Arc::new(manifest(1))) };
    assert!(!takes(&empty, Body::Open(roots(1))));
    assert!(takes(&empty, Body::Open(roots(0))));
    assert!(!takes(&Chain::open(manifest(1)), Body::Open(roots(0))));
}

/// A change of a commitment, and whether its node may make it.
type Change = (fn(&mut Commit), &'static str);

#[test]
fn commit_3_each_field_of_a_commitment_is_the_ledger_s() {
    let chain = Chain::begin();
    let run = chain.ledger.run();
    let good = chain.commitment(1, 2);
    assert!(chain.ledger.check_commit(&node(1).sign(run, &good)).is_ok());
    assert!(chain.ledger.check_commit(&node(2).sign(run, &good)).is_err(), "another one's slot");
    let changes: [Change; 7] = [
        (|commit| commit.round = Round(1), "round"),
        (|commit| commit.head = Digest::default(), "head"),
        (|commit| commit.state = Digest::default(), "state"),
        (|commit| commit.slot = Slot(9), "slot"),
        (|commit| commit.seats = 3, "seats"),
        (|commit| commit.leaves = 3, "more leaves than the quota"),
        (|commit| commit.profile = crate::manifest::Profile::F32, "profile"),
    ];
    for (change, what) in changes {
        let mut commit = good.clone();
        change(&mut commit);
        assert!(chain.ledger.check_commit(&node(1).sign(run, &commit)).is_err(), "{what}");
    }
    // ASSIGN-4: a prefix of 1 to quota positions; which leaves these are nobody chooses.
    assert!(chain.ledger.check_commit(&chain.commit(1, 1)).is_ok());
    assert!(chain.ledger.check_commit(&chain.commit(1, 0)).is_err());
}

#[test]
fn round_28_leaves_are_computed_on_the_state_before_the_round_before() {
    let begin = |delay| Chain::begin_with(Manifest { delay, ..manifest(4) });
    let (mut chain, mut prompt) = (begin(1), begin(0));
    let seed = |chain: &Chain| {
        let view = chain.ledger.current().unwrap();
        (view.seed() == round_seed(chain.ledger.run(), view.round(), &view.base().root()), view.is_behind())
    };
    let first = chain.ledger.state().clone();
    // A round that a Begin opens is on the newest state, which is all that some members have.
    assert_eq!(seed(&chain), (true, false));
    for chain in [&mut chain, &mut prompt] {
        chain.finish_round();
    }
    let (late, now) = (chain.ledger.current().unwrap(), prompt.ledger.current().unwrap());
    assert_eq!((seed(&chain), seed(&prompt)), ((true, true), (true, false)));
    assert!(*late.base() == first && late.state() == chain.ledger.state() && now.base() == now.state());
    // COMMIT-3: a commitment names the base, and no newer state.
    let commit = chain.commitment(1, 1);
    let newest = Commit { state: late.state().root(), ..commit.clone() };
    let check = |commit: &Commit| chain.ledger.check_commit(&node(1).sign(chain.ledger.run(), commit));
    assert!(check(&commit).is_ok() && check(&newest).is_err());
    let before = chain.ledger.state().clone();
    chain.finish_round();
    assert_eq!(*chain.ledger.current().unwrap().base(), before);
}

#[test]
fn round_29_the_next_round_is_foreseen_while_values_travel() {
    let mut chain = Chain::begin_with(Manifest { delay: 1, ..manifest(4) });
    for _ in 0..2 {
        assert!(chain.ledger.foreseen().is_none(), "nothing is frozen");
        chain.reduce_all();
        let foreseen = chain.ledger.foreseen().expect("a frozen round");
        let outcome = chain.outcome();
        chain.seal(Body::Outcome(outcome));
        let view = chain.ledger.current().expect("a round");
        assert_eq!(foreseen.round(), view.round());
        assert_eq!((foreseen.seed(), foreseen.base()), (view.seed(), view.base()));
        assert_eq!(foreseen.seats(), view.seats());
        // ASSIGN-1: who reduces what is drawn by a root that nobody knows yet.
        assert_ne!(foreseen.parts_seed(), view.parts_seed());
        let newest = view.state().root();
        assert_eq!(view.parts_seed(), round_seed(chain.ledger.run(), view.round(), &newest));
    }
    let mut prompt = Chain::begin();
    prompt.reduce_all();
    assert!(prompt.ledger.foreseen().is_none(), "a run without a delay");
}

#[test]
fn ledger_7_a_freeze_holds_good_commitments_in_order_of_slots() {
    let chain = Chain::begin();
    let commits = |nodes: &[u8]| nodes.iter().map(|number| chain.commit(*number, 2)).collect::<Vec<_>>();
    assert!(takes(&chain, chain.frozen(commits(&[0, 2, 3]))));
    // ROUND-1: the steward's duty says when it may hold none.
    assert!(takes(&chain, chain.frozen(commits(&[]))));
    for wrong in [&[2, 0][..], &[1, 1]] {
        assert!(!takes(&chain, chain.frozen(commits(wrong))), "{wrong:?}");
    }
    let Body::Freeze(freeze) = chain.frozen(commits(&[0])) else { unreachable!() };
    for (round, state) in [(Round(1), freeze.state), (freeze.round, Digest::default())] {
        let other = crate::messages::record::Freeze { round, state, ..freeze.clone() };
        assert!(!takes(&chain, Body::Freeze(other)));
    }
}

/// The round after three that are over, in which everybody has counted; nobody was audited yet.
fn in_the_fourth_round() -> Chain {
    let mut manifest = manifest(4);
    manifest.training.rounds = 12;
    let mut chain = Chain::begin_with(manifest);
    (0..3).for_each(|_| chain.finish_round());
    chain
}

/// These slots are late in the open round.
fn late(chain: &Chain, slots: Bitmap) -> Body {
    Body::Late(Late { round: chain.ledger.current().unwrap().round(), slots })
}

#[test]
fn audit_27_what_a_late_member_commits_to_counts_nowhere() {
    let mut chain = in_the_fourth_round();
    chain.seal(late(&chain, slots([2])));
    assert_eq!(chain.ledger.newly_late(), [node(2).id()]);
    assert!(!takes(&chain, late(&chain, slots([1]))), "once in a round");
    chain.freeze(0..4);
    assert!(!takes(&chain, late(&chain, slots([1]))), "before the Freeze");
    let view = chain.ledger.current().unwrap().clone();
    let weighs = |slot| view.commitment(Slot(slot)).unwrap().weight > 0;
    assert_eq!([0, 1, 2, 3].map(weighs), [true, true, false, true]);
    let parts = chain.parts().count();
    assert!(!takes(&chain, chain.inputs(0, vec![slots(0..4); parts])), "it counts in no part");
    chain.seal(chain.inputs(0, vec![slots([0, 1, 3]); parts]));
    chain.seal(Body::Outcome(chain.outcome()));
    let member = chain.ledger.member(&node(2).id()).unwrap();
    assert_eq!((member.standing, member.failures), (Standing::Active, 0), "it has not failed");
    assert!(chain.ledger.derived_seats().iter().any(|seat| seat.member == member.id), "it keeps its seat");
    chain.seal(late(&chain, slots([2])));
    assert!(chain.ledger.newly_late().is_empty(), "as in the round before");
}

#[test]
fn audit_27_only_members_for_which_an_audit_may_have_waited_are_late() {
    let chain = in_the_fourth_round();
    assert!(takes(&chain, late(&chain, slots(0..4))));
    assert!(!takes(&chain, late(&chain, slots([]))), "nobody");
    assert!(!takes(&chain, late(&chain, slots([4]))), "no such slot");
    assert!(!takes(&chain, Body::Late(Late { round: Round(2), slots: slots([2]) })), "another round");
    // Whoever was asked about the first round as soon as it was over has had two rounds to answer in the fourth one.
    let mut early = Chain::begin();
    early.finish_round();
    early.finish_round();
    assert!(!takes(&early, late(&early, slots([2]))), "too early");
    // Nothing of a newcomer is old enough to have been asked about.
    let mut young = Chain::begin();
    (0..2).for_each(|_| young.finish_round());
    young.admit_node(4, false);
    young.finish_round();
    let slot = young.ledger.current().unwrap().slot_of(&node(4).id()).unwrap();
    assert!(!takes(&young, late(&young, slots([slot.0]))), "it had no part in those rounds");
    // Nobody answers any more about what is out of the window.
    let mut narrow = manifest(4);
    narrow.retention.states = 3;
    let mut narrow = Chain::begin_with(narrow);
    (0..3).for_each(|_| narrow.finish_round());
    assert!(!takes(&narrow, late(&narrow, slots([2]))), "only two rounds are answered for");
    // What has passed is asked about no more.
    let mut passed = in_the_fourth_round();
    let credits = [0, 1].map(|round| Credit {
        verdict: Digest([round as u8; 32]),
        round: Round(round),
        member: node(2).id(),
        verifier: verifier(0).id(),
        leaves: 1,
    });
    passed.finish_round_with(credits.to_vec());
    assert!(!takes(&passed, late(&passed, slots([2]))), "both rounds have passed");
    assert!(takes(&passed, late(&passed, slots([1]))));
}

#[test]
fn stand_3_nothing_counts_of_a_member_that_is_silent_or_banned_at_the_freeze() {
    let mut chain = in_the_fourth_round();
    let commits = |chain: &Chain| (0..4).map(|node| chain.commit(node, 2)).collect();
    let body = chain.frozen(commits(&chain));
    chain.seal(Body::Silence(chain.request(0, Round(2), node(1).id())));
    let ban = Ban {
        culprit: node(3).id(),
        effective: chain.ledger.first_round_without(),
        round: Round(2),
        finding: FindingKind::SumMismatch,
        evidence: Digest([1; 32]),
        accuser: steward().id(),
        jury: Default::default(),
    };
    chain.seal(Body::Ban(ban));
    chain.seal(body);
    let view = chain.ledger.current().unwrap();
    let weighs = |slot| view.commitment(Slot(slot)).unwrap().weight > 0;
    assert_eq!([0, 1, 2, 3].map(weighs), [true, false, true, false]);
}

#[test]
fn ledger_8_inputs_hold_frozen_slots_with_weight_for_each_part() {
    let mut chain = Chain::begin();
    chain.freeze([0, 1, 3]);
    let parts = chain.parts().count();
    let of = |bitmap| chain.inputs(0, vec![bitmap; parts]);
    assert!(takes(&chain, of(slots([0, 1, 3]))));
    assert!(takes(&chain, of(slots([]))), "an empty bitmap leaves a part out");
    assert!(!takes(&chain, of(slots([0, 2]))), "slot 2 is not frozen");
    assert!(!takes(&chain, chain.inputs(0, vec![slots([0]); parts - 1])));
    assert!(!takes(&chain, chain.inputs(1, vec![slots([0]); parts])), "the first attempt is 0");
}

#[test]
fn ledger_9_a_part_moves_once_to_another_aggregator() {
    let mut chain = Chain::reducing();
    let view = chain.ledger.current().unwrap().clone();
    let (own, _) = view.aggregator(Part(1)).unwrap();
    let other = *view.aggregators().iter().find(|slot| **slot != own).unwrap();
    let moves = |parts: &[(u16, Slot)]| {
        let parts = parts.iter().map(|(part, to)| Reassigned { part: Part(*part), aggregator: *to });
        Body::Reassign(Reassign { round: view.round(), parts: List::new(parts.collect()).unwrap() })
    };
    assert!(!takes(&chain, moves(&[])));
    assert!(!takes(&chain, moves(&[(1, own)])), "its own aggregator");
    assert!(!takes(&chain, moves(&[(1, other), (1, other)])), "twice");
    assert!(!takes(&chain, moves(&[(99, other)])), "no such part");
    chain.seal(moves(&[(1, other)]));
    assert_eq!(chain.ledger.stage(), Stage::Exchanging);
    assert!(takes(&chain, chain.inputs(1, vec![slots([0])])));
    chain.seal(chain.inputs(1, vec![slots([0])]));
    assert!(!takes(&chain, moves(&[(1, other)])), "a second reassignment");
}

#[test]
fn round_6_a_result_is_over_exactly_the_sealed_inputs_by_an_aggregator_of_the_part() {
    let chain = Chain::reducing();
    let run = chain.ledger.run();
    let (result, author) = chain.part_result(Part(0));
    let check = |by: &Identity, result: PartResult| chain.ledger.check_result(&by.sign(run, &result)).is_ok();
    assert!(check(&author, result.clone()));
    assert!(!check(&author, PartResult { inputs: slots([0, 1]), ..result.clone() }), "one input less");
    assert!(!check(&author, PartResult { freeze: Digest::default(), ..result.clone() }));
    assert!(!check(&author, PartResult { attempt: 1, ..result.clone() }));
    let stranger = (0..4).map(node).find(|node| node.id() != author.id()).unwrap();
    assert!(!check(&stranger, result));
}

#[test]
fn round_15_the_steward_keeps_what_an_aggregator_sends_itself() {
    let chain = Chain::reducing();
    let view = chain.ledger.current().unwrap();
    let aggregator = view.aggregating(Part(0)).next().unwrap();
    for sender in (0..4).map(|number| node(number).id()) {
        let keeper = if sender == aggregator { steward().id() } else { aggregator };
        assert_eq!(view.keepers(Part(0), &sender), Some((vec![keeper], 0)));
        assert!(view.is_kept(Part(0), &sender, &[keeper]));
        assert!(view.is_kept(Part(0), &sender, &[steward().id()]), "ROUND-24");
        assert!(!view.is_kept(Part(0), &sender, &[sender]), "its own receipt");
    }
}

/// A run whose nodes have addresses or none, in its first round.
fn undialled(has_address: [bool; 4]) -> Chain {
    undialled_with(manifest(4), has_address)
}

fn undialled_with(manifest: Manifest, has_address: [bool; 4]) -> Chain {
    let mut chain = Chain::open(manifest);
    chain.admit_verifier(0);
    for (number, address) in (0..).zip(has_address) {
        let node = node(number);
        let newcomer = Newcomer { address: address.then_some("host:1"), ..Newcomer::node(&node) };
        let enrol = newcomer.enrol(chain.ledger.run(), &organiser());
        chain.seal(Body::Admit(enrol));
    }
    chain.seal(Body::Begin(List::new(chain.ledger.derived_seats()).unwrap()));
    chain
}

#[test]
fn round_39_where_nobody_can_be_dialled_the_steward_stands_in() {
    let view = |address: [bool; 4]| undialled(address).ledger.current().unwrap().clone();
    // One that can be dialled has all parts to itself, and everybody brings it theirs.
    let one = view([false, true, false, false]);
    assert!(!one.is_stood_in() && one.aggregators() == [one.slot_of(&node(1).id()).unwrap()]);
    assert_eq!(one.keepers(Part(0), &node(0).id()), Some((vec![node(1).id()], 0)));
    let none = view([false; 4]);
    assert!(none.is_stood_in());
    assert_eq!((none.aggregators().len(), none.parts().len()), (4, 4), "all of them reduce");
    for sender in (0..4).map(|number| node(number).id()) {
        assert_eq!(none.keepers(Part(2), &sender), Some((vec![steward().id()], 0)));
        assert!(none.takes_in(Part(2), &sender, &steward().id()));
        assert!(!none.is_kept(Part(2), &sender, &[node(3).id()]), "nobody could ask it");
    }
}

#[test]
fn ledger_11_a_present_member_is_silent_by_a_due_request_until_its_answer() {
    let mut chain = Chain::begin();
    chain.finish_round();
    let request = chain.request(0, Round(0), node(1).id());
    assert!(!takes(&chain, Body::Answered(request.digest())), "nobody was silent");
    let unasked = chain.request(0, Round(0), verifier(0).id());
    assert!(!takes(&chain, Body::Silence(unasked)), "a target without a contribution");
    let run = chain.ledger.run();
    let stranger = node(2).sign(run, &request.claimed().unwrap());
    assert!(!takes(&chain, Body::Silence(stranger)), "a request by nobody's inspector");
    let mut gone = chain.clone();
    let leave = node(1).sign(run, &Leave { height: gone.ledger.height() });
    gone.seal(Body::Leave(leave));
    assert!(!takes(&gone, Body::Silence(request.clone())), "who has left owes no answer");
    chain.seal(Body::Silence(request.clone()));
    assert_eq!(standing(&chain, &node(1)), Standing::Silent(request.digest()));
    assert!(!takes(&chain, Body::Silence(request.clone())), "silent already");
    assert!(!takes(&chain, Body::Answered(Digest::default())));
    chain.seal(Body::Answered(request.digest()));
    assert_eq!(standing(&chain, &node(1)), Standing::Active, "a first failure bars nobody (LEDGER-20)");
}

/// A hostile steward needs one request for it, and nobody's signature besides: what it seals meanwhile, everybody keeps.
#[test]
fn ledger_11_one_request_makes_no_ledger_without_end() {
    let mut chain = Chain::begin();
    chain.finish_round();
    let request = chain.request(0, Round(0), node(1).id());
    chain.seal(Body::Silence(request.clone()));
    chain.seal(Body::Answered(request.digest()));
    assert!(!takes(&chain, Body::Silence(request.clone())), "silent about it before");
    chain.finish_round();
    let silent_then = chain.request(0, Round(1), node(1).id());
    assert!(
        !takes(&chain, Body::Silence(silent_then)),
        "all that it had contributed to is taken over (AUDIT-8)"
    );
    chain.finish_round();
    let request = chain.request(0, Round(2), node(1).id());
    chain.seal(Body::Silence(request));
}

/// Every Return is public: whoever has read it could seal it again.
#[test]
fn ledger_13_a_return_from_before_the_absence_brings_nobody_back() {
    let mut chain = Chain::begin();
    let back = |chain: &Chain, address: &str| {
        let addresses = List::new(vec![Text::new(address).unwrap()]).unwrap();
        let back = Return { height: chain.ledger.height(), addresses, engagement: Default::default() };
        node(3).sign(chain.ledger.run(), &back)
    };
    let old = back(&chain, "moved:1");
    chain.seal(Body::Return(old.clone()));
    assert_eq!(standing(&chain, &node(3)), Standing::Active);
    chain.freeze(0..3);
    assert_eq!(standing(&chain, &node(3)), Standing::Away, "no commitment of it");
    assert_eq!(chain.refusal(Body::Return(old)), Some(Reject::Rule("a return is newer than the absence")));
    let new = back(&chain, "moved:1");
    assert!(takes(&chain, Body::Return(new)));
}

/// Five founders and four newcomers, in a run of 16 leaves a round.
fn with_newcomers() -> Chain {
    let mut manifest = manifest(5);
    manifest.training.leaves = 16;
    manifest.admission = Admission {
        probation: 10,
        vouchers: 2,
        newcomer_ppm: 1_000_000,
        per_round: 9,
        ..Admission::closed(5, 0, 64)
    };
    let mut chain = Chain::open(manifest);
    (0..5).for_each(|number| chain.admit_node(number, true));
    (5..9).for_each(|number| chain.admit_node(number, false));
    chain.seal(Body::Begin(List::new(chain.ledger.derived_seats()).unwrap()));
    chain
}

#[test]
fn ledger_14_founders_share_the_leaves_and_newcomers_take_turns_on_top() {
    let mut chain = with_newcomers();
    // Begin and the first Outcome both count from round 0.
    for turn in [5, 5, 6, 7] {
        let seats = chain.ledger.current().unwrap().seats().to_vec();
        let expected: Vec<_> = (0..5).chain([turn]).map(|number| node(number).id()).collect();
        assert_eq!(seats.iter().map(|seat| seat.member).collect::<Vec<_>>(), expected);
        let quotas: Vec<u32> = seats.iter().map(|seat| seat.quota).collect();
        assert_eq!(quotas, [4, 3, 3, 3, 3, 3], "16 leaves among five, and a share on top");
        if chain.ledger.next_round() < Round(3) {
            chain.finish_round();
        }
    }
    let mut chain = Chain::open(manifest(2));
    (0..2).for_each(|number| chain.admit_node(number, false));
    let mut seats = chain.ledger.derived_seats();
    assert!(takes(&chain, Body::Begin(List::new(seats.clone()).unwrap())));
    seats.swap(0, 1);
    assert!(!takes(&chain, Body::Begin(List::new(seats).unwrap())), "another order");
}

#[test]
fn ledger_15_the_pace_follows_what_was_committed() {
    let mut chain = Chain::begin();
    let pace = |chain: &Chain, number| chain.ledger.member(&node(number).id()).unwrap().pace;
    assert_eq!(pace(&chain, 0), QUOTA);
    let commits = vec![chain.commit(0, 2), chain.commit(1, 1), chain.commit(2, 2)];
    chain.seal(chain.frozen(commits));
    assert_eq!([0, 1, 2, 3].map(|number| pace(&chain, number)), [QUOTA, 1, QUOTA, QUOTA]);
    assert_eq!(standing(&chain, &node(3)), Standing::Away, "LEDGER-20");
    assert_eq!(standing(&chain, &node(1)), Standing::Active, "fewer leaves are no failure");
    chain.seal(chain.inputs(0, chain.parts().map(|_| slots([0, 1, 2])).collect()));
    chain.seal(Body::Outcome(chain.outcome()));
    chain.freeze([0, 1, 2]);
    assert_eq!(pace(&chain, 1), 2, "one more after the whole quota");
}

#[test]
fn ledger_16_a_run_closes_after_its_last_round_with_its_last_state() {
    let mut short = manifest(1);
    short.training.rounds = 1;
    let mut chain = Chain::open(short);
    chain.admit_node(0, false);
    chain.seal(Body::Begin(List::new(chain.ledger.derived_seats()).unwrap()));
    assert!(!takes(&chain, Body::Close(chain.ledger.state().root())), "amid a round");
    chain.finish_round();
    assert_eq!(chain.ledger.stage(), Stage::Auditing);
    assert!(!takes(&chain, Body::Close(roots(0).root())), "an older state");
    assert!(takes(&chain, Body::Close(chain.ledger.state().root())));
}

#[test]
fn ledger_19_updates_end_a_run_or_twice_as_many_rounds() {
    let mut settings = manifest(4);
    settings.training.rounds = 2;
    let ends = |settings: &Manifest, round| Chain::open(settings.clone()).ledger.ends_with(Round(round));
    assert_eq!([0, 1].map(|round| ends(&settings, round)), [false, true]);
    settings.rollback = Rollback { limit: crate::codec::Real::new(0.5).unwrap(), most_rounds: 1, spacing: 2 };
    // Without an update so far, only the number of rounds ends it: 2·2 − 1.
    assert_eq!([1, 2, 3].map(|round| ends(&settings, round)), [false, false, true]);
    let mut chain = Chain::begin();
    while chain.ledger.stage() != Stage::Auditing {
        assert!(!chain.ledger.in_final_audit(Round(0)));
        chain.finish_round();
    }
    assert_eq!(chain.ledger.state().step(), 4);
    assert_eq!([1, 2, 3].map(|round| chain.ledger.in_final_audit(Round(round))), [false, true, true]);
}

#[test]
fn duty_2_a_coin_is_shown_for_a_round_that_is_over_by_one_of_its_verifiers() {
    let mut chain = Chain::begin();
    chain.freeze(0..4);
    let run = chain.ledger.run();
    let check =
        |chain: &Chain, by: &Identity, duty: &Duty| chain.ledger.check_duty(&by.sign(run, duty)).is_ok();
    let early = chain.duty(0, Round(0));
    assert!(!check(&chain, &verifier(0), &early), "COIN-7: the round is not over");
    chain.seal(chain.inputs(0, chain.parts().map(|_| slots(0..4)).collect()));
    chain.seal(Body::Outcome(chain.outcome()));
    let duty = chain.duty(0, Round(0));
    assert!(check(&chain, &verifier(0), &duty));
    assert!(!check(&chain, &node(0), &duty));
    assert!(!check(&chain, &verifier(0), &Duty { freeze: Digest::default(), ..duty.clone() }));
    for (kind, round) in [(CoinKind::Leaf, Round(0)), (CoinKind::Node, Round(1))] {
        let coin = coins(0).open(kind, round, 0).unwrap();
        assert!(!check(&chain, &verifier(0), &Duty { coin, ..duty.clone() }), "another coin");
    }
}

/// A run of so many rounds that its first ones are too old to be audited.
fn long() -> Chain {
    let mut manifest = manifest(4);
    manifest.training.rounds = 20;
    Chain::begin_with(manifest)
}

#[test]
fn duty_3_nobody_answers_for_what_was_contributed_before_the_window() {
    let mut chain = long();
    chain.finish_round();
    let request = chain.request(0, Round(0), node(1).id());
    while chain.ledger.is_answerable(Round(0)) {
        assert!(chain.ledger.check_request(&request).is_ok());
        chain.finish_round();
    }
    let why = Reject::Rule("what was contributed so long ago nobody has to answer for");
    assert_eq!(chain.ledger.check_request(&request).err(), Some(why));
}

/// A verifier is banned, and with it falls what it has passed: at once, or once nobody has the state any more.
#[test]
fn duty_3_what_is_opened_again_too_late_to_be_audited_is_not_due() {
    for late in [false, true] {
        let mut chain = long();
        chain.finish_round();
        let (verifier, member) = (verifier(0).id(), node(1).id());
        let leaves = drawn_leaves(2, chain.ledger.manifest().audit.leaves);
        let verdict = Digest::default();
        chain.finish_round_with(vec![Credit { verdict, round: Round(0), verifier, member, leaves }]);
        // What it inspected goes on in time: only what it has passed is at stake.
        chain.seal(Body::Idle(Idle { verifier, round: Round(0) }));
        while late && chain.ledger.keeps_state(Round(0)) {
            chain.finish_round();
        }
        let ban = Ban {
            culprit: verifier,
            effective: chain.ledger.first_round_without(),
            round: Round(0),
            finding: FindingKind::FalseAcquittal,
            evidence: Digest([1; 32]),
            accuser: steward().id(),
            jury: Default::default(),
        };
        chain.seal(Body::Ban(ban));
        let view = chain.ledger.round(Round(0)).unwrap();
        let slot = view.slot_of(&member).unwrap();
        assert!(chain.ledger.needs_no_coin(view, slot), "it is open again");
        assert_eq!(chain.ledger.is_due(view, slot, true), !late);
    }
}

/// STAND-12
#[test]
fn stand_12_what_a_member_has_done_follows_from_the_records() {
    let mut chain = long();
    let service = |chain: &Chain, identity: &Identity| chain.ledger.member(&identity.id()).unwrap().service;
    assert_eq!(service(&chain, &node(1)), Service::default());
    chain.finish_round();
    let leaves = |chain: &Chain, round| -> u64 {
        let view = chain.ledger.round(Round(round)).unwrap();
        let own = view.slot_of(&node(1).id()).and_then(|slot| view.commitment(slot)).unwrap();
        own.commit.leaves.into()
    };
    let first = leaves(&chain, 0);
    assert_eq!(service(&chain, &node(1)), Service { leaves: first, ..Service::default() });
    let (verifier_id, member) = (verifier(0).id(), node(1).id());
    let drawn = drawn_leaves(2, chain.ledger.manifest().audit.leaves);
    let verdict = Digest::default();
    chain.finish_round_with(vec![Credit {
        verdict,
        round: Round(0),
        verifier: verifier_id,
        member,
        leaves: drawn,
    }]);
    assert_eq!(service(&chain, &node(1)).leaves, first + leaves(&chain, 1));
    chain.seal(Body::Idle(Idle { verifier: verifier_id, round: Round(0) }));
    let ban = Ban {
        culprit: node(2).id(),
        effective: chain.ledger.first_round_without(),
        round: Round(0),
        finding: FindingKind::SumMismatch,
        evidence: Digest([1; 32]),
        accuser: verifier_id,
        jury: Default::default(),
    };
    chain.seal(Body::Ban(ban));
    assert_eq!(service(&chain, &verifier(0)), Service { leaves: 0, passed: 1, convicted: 1, idle: 1 });
    let all: Service = chain.ledger.members().iter().map(|member| member.service).sum();
    assert_eq!((all.passed, all.convicted, all.idle), (1, 1, 1));
}

#[test]
fn duty_5_an_idle_verifier_is_away_and_inspects_nothing_more() {
    let mut chain = Chain::begin();
    let idle = |round| Idle { verifier: verifier(0).id(), round };
    assert!(chain.ledger.check_idle(&idle(Round(0))).is_err(), "the round is not over");
    chain.finish_round();
    let nobody = Idle { verifier: node(0).id(), round: Round(0) };
    assert!(chain.ledger.check_idle(&nobody).is_err());
    let slot = Slot(0);
    assert_eq!(chain.ledger.round(Round(0)).unwrap().inspector(slot), Some(verifier(0).id()));
    chain.seal(Body::Idle(idle(Round(0))));
    assert_eq!(standing(&chain, &verifier(0)), Standing::Away);
    assert_eq!(chain.ledger.round(Round(0)).unwrap().inspector(slot), None, "DUTY-6");
    assert!(chain.ledger.check_idle(&idle(Round(0))).is_err(), "idle once");
    chain.freeze(0..4);
    assert_eq!(chain.ledger.current().unwrap().verifiers(), 0, "no round counts it before its return");
}

#[test]
fn an_outcome_without_a_result_leaves_the_part_out() {
    let chain = Chain::reducing();
    let mut outcome: Outcome = chain.outcome();
    let mut results = outcome.results.clone().into_inner();
    results[0] = None;
    outcome.results = List::new(results).unwrap();
    outcome.seats = List::new(chain.ledger.seats_after(&outcome)).unwrap();
    let mut after = chain.clone();
    after.seal(Body::Outcome(outcome));
    let view = after.ledger.round(Round(0)).unwrap();
    assert!(view.results().unwrap()[0].is_none());
    let idle = after.identity_of(chain.ledger.current().unwrap().aggregating(Part(0)).next().unwrap());
    // LEDGER-20: its aggregator has let the round wait in vain.
    assert_eq!(standing(&after, &idle), Standing::Away);
}
