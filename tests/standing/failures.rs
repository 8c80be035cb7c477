//! Failures to answer, to reduce and to echo; for how long a member sits out, and how it returns.

use muster_core::codec::{List, Text};
use muster_core::ids::{Round, Slot};
use muster_core::ledger::{Stage, Standing};
use muster_core::manifest::Admission;
use muster_core::messages::enrol::{Leave, Role};
use muster_core::messages::record::{Body, Idle, Outcome};

use crate::chain::{Chain, VERIFIERS, asked, four, id, on_probation, person, refused};

#[test]
fn ledger_20_who_was_silent_until_its_round_is_forgotten_has_failed_and_may_return() {
    let mut chain = asked();
    let kept = chain.ledger.manifest().retention.contributions;
    for failures in 1..=5 {
        let round = Round(chain.ledger.next_round().0 - 1);
        let request = chain.silence(10);
        let barred = Round(round.0 + 1 + (1 << (failures - 1)));
        assert_eq!((chain.member(10).failures, chain.member(10).barred), (failures, barred));
        chain.round(Vec::new());
        while chain.ledger.next_round().0 < round.0 + kept {
            chain.round(Vec::new());
        }
        refused(chain.come_back(10), "only a member that is away");
        assert!(chain.ledger.round(round).is_some());
        chain.round(Vec::new());
        assert!(chain.ledger.round(round).is_none(), "the round is forgotten");
        assert_eq!((chain.member(10).standing, chain.member(10).failures), (Standing::Away, failures));
        refused(chain.seal(Body::Answered(request)), "an answer follows a silence");
        while chain.ledger.is_barred(barred) {
            refused(chain.come_back(10), "sits out");
            chain.round(Vec::new());
        }
        chain.come_back(10).expect("it has sat out");
        (0..2).for_each(|_| chain.round(Vec::new()));
        assert!(chain.ledger.current().expect("a round").slot_of(&id(10)).is_some(), "it has a seat again");
    }
}

#[test]
fn ledger_11_only_a_due_request_makes_silent_and_is_answered_once() {
    let mut chain = asked();
    let inspector = chain.inspector(10);
    let other = VERIFIERS.into_iter().find(|verifier| *verifier != inspector).expect("two verifiers");
    let request = chain.request(10, inspector);
    let not_due = chain.request(10, other);
    chain.seal(Body::Silence(not_due)).expect_err("another verifier inspects it");
    chain.seal(Body::Answered(request.digest())).expect_err("nobody is silent");
    chain.seal(Body::Silence(request.clone())).expect("it is due");
    chain.seal(Body::Silence(request.clone())).expect_err("it is silent already");
    chain.seal(Body::Answered(request.digest())).expect("an answer");
    chain.seal(Body::Answered(request.digest())).expect_err("it has answered");
}

#[test]
fn ledger_20_who_answers_only_after_its_silence_was_sealed_fails_each_time() {
    let mut chain = asked();
    for failures in 1..=4 {
        let request = chain.silence(10);
        chain.seal(Body::Answered(request)).expect("an answer");
        assert_eq!(chain.member(10).failures, failures);
        let mut rounds_out = 0;
        while chain.member(10).standing == Standing::Away && chain.come_back(10).is_err() {
            chain.round(Vec::new());
            rounds_out += 1;
        }
        assert_eq!(rounds_out, (1 << (failures - 1)) - 1, "from the seat on that it has already");
        (0..2).for_each(|_| chain.round(Vec::new()));
    }
}

#[test]
fn ledger_13_a_run_of_silent_members_goes_on_once_one_returns() {
    let mut chain = asked();
    for who in [10, 11] {
        chain.silence(who);
        refused(chain.come_back(who), "only a member that is away");
    }
    chain.round(Vec::new());
    assert_eq!(chain.ledger.stage(), Stage::Gathering, "nobody has a seat, and no round is ever forgotten");
    chain.come_back(10).expect("somebody must begin");
    assert_eq!((chain.member(10).standing, chain.member(10).failures), (Standing::Active, 1));
    chain.start();
    (0..9).for_each(|_| chain.round(Vec::new()));
    assert_eq!((chain.member(10).standing, chain.member(10).failures), (Standing::Active, 1), "counted once");
    assert_eq!((chain.member(11).standing, chain.member(11).failures), (Standing::Away, 1));
}

#[test]
fn ledger_13_who_is_active_moves_once_a_round_and_says_nothing_else() {
    let mut chain = Chain::new(Admission::closed(2, 0, 64));
    chain.begin();
    let new = |port: u8| List::new(vec![Text::new(format!("sim:{port}")).expect("short")]).expect("one");
    refused(chain.come_back(10), "moved to");
    chain.move_to(10, new(90)).expect("a move");
    assert_eq!(chain.member(10).addresses, new(90));
    // Each would stay on everybody's disk.
    refused(chain.move_to(10, new(91)), "once a round");
    chain.round(Vec::new());
    chain.move_to(10, new(91)).expect("a move");
    refused(chain.move_to(10, new(92)), "once a round");
}

#[test]
fn ledger_20_who_fails_at_an_outcome_has_no_seat_in_the_round_that_it_opens() {
    let mut chain = four();
    // LEDGER-25: the next time it has no part that it could leave undone.
    for failures in 1..=2 {
        assert!(chain.is_seated(13));
        let barred = Round(chain.ledger.next_round().0 + (1 << (failures - 1)));
        let before = chain.ledger.derived_seats();
        chain.freeze();
        chain.inputs(&[0, 1, 2, 3].map(Slot)).expect("inputs");
        let mut outcome = chain.ended(&[10, 11, 12, 13], Vec::new(), &[10, 11, 12]);
        let seats = std::mem::replace(&mut outcome.seats, List::new(before).expect("few"));
        refused(chain.seal(Body::Outcome(outcome.clone())), "the seats follow");
        assert_eq!(chain.member(13).failures, failures - 1, "nothing has changed");
        chain.seal(Body::Outcome(Outcome { seats, ..outcome })).expect("an outcome");
        let member = chain.member(13);
        assert_eq!((member.standing, member.failures, member.barred), (Standing::Away, failures, barred));
        assert!(!chain.is_seated(13) && chain.is_seated(12));
        while chain.come_back(13).is_err() {
            assert!(!chain.is_seated(13), "none before round {barred}");
            chain.round_reduced_by(&[10, 11, 12]);
        }
        assert!(!chain.is_seated(13), "the seats of round {} were sealed before it came back", barred);
        chain.round_reduced_by(&[10, 11, 12]);
        assert!(chain.ledger.next_round() >= barred);
    }
    let view = chain.ledger.current().expect("a round");
    let slot = view.slot_of(&id(13)).expect("a seat");
    assert_eq!((chain.member(13).share.0, view.passed_over()), (4, vec![slot]));
    chain.round_reduced_by(&[10, 11, 12]);
    assert_eq!((chain.member(13).standing, chain.member(13).failures), (Standing::Active, 2));
}

#[test]
fn ledger_20_a_good_round_is_forgiven_before_its_failure_counts() {
    let mut chain = Chain::of(200, Admission::closed(2, 0, 64));
    (10..14).for_each(|who| chain.invite(who, Role::Node, true));
    chain.start();
    chain.round_reduced_by(&[10, 11, 12]);
    chain.come_back(13).expect("it may return at once");
    chain.round_reduced_by(&[10, 11, 12]);
    (0..63).for_each(|_| chain.round_reduced_by(&[10, 11, 12, 13]));
    assert_eq!((chain.member(13).failures, chain.member(13).good_rounds), (1, 63));
    // The contribution counts, so that this is the 64th good round; the part is missing, so that it is a failure, too.
    let round = chain.ledger.next_round();
    chain.round_reduced_by(&[10, 11, 12]);
    assert_eq!((chain.member(13).failures, chain.member(13).good_rounds), (1, 0));
    assert_eq!(chain.member(13).barred, round.next(), "as after a first failure");
}

#[test]
fn ledger_20_who_keeps_a_round_without_weight_from_being_audited_by_its_silence_fails() {
    let mut chain = Chain::new(on_probation());
    chain.begin();
    (30..33).for_each(|who| chain.invite(who, Role::Node, false));
    for who in 10..12 {
        let leave = Leave { height: chain.ledger.height() };
        let leave = person(who).sign(chain.run(), &leave);
        chain.seal(Body::Leave(leave)).expect("a leave");
    }
    chain.round(Vec::new());
    chain.freeze();
    let view = chain.ledger.current().expect("a round").clone();
    assert!(!view.weighs() && view.parts().is_empty(), "newcomers alone");
    chain.outcome(&[], Vec::new()).expect("an outcome");
    assert!(!chain.last_is_echoed());
    for who in 30..33 {
        let silent = view.slot_of(&id(who)).is_some();
        assert_eq!(chain.member(who).failures, u8::from(silent), "{who}");
    }
}

#[test]
fn ledger_20_a_verifier_sits_out_no_rounds_while_no_other_one_is_active() {
    let mut chain = asked();
    let idle = |chain: &mut Chain, who: u8| {
        let round = Round(chain.ledger.next_round().0 - 1);
        chain.seal(Body::Idle(Idle { verifier: id(who), round })).expect("it had a duty");
    };
    let [one, other] = VERIFIERS;
    for _ in 0..3 {
        idle(&mut chain, one);
        while chain.come_back(one).is_err() {
            chain.round(Vec::new());
        }
        chain.round(Vec::new());
    }
    idle(&mut chain, one);
    refused(chain.come_back(one), "sits out");
    // Rounds wait for a verifier, and none would go by.
    idle(&mut chain, other);
    chain.come_back(one).expect("nobody else is there");
    assert_eq!(chain.member(one).standing, Standing::Active);
}
