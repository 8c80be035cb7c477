//! What the steward does about answers to calls.

use muster_core::audit::Judgement;
use muster_core::codec::List;
use muster_core::ids::{Digest, MemberId, Round, Row};
use muster_core::messages::audit::FindingKind;
use muster_core::messages::call::{Answer, Ask, logits_digest};
use muster_core::messages::evidence::{Evidence, FalseAnswer};
use muster_core::messages::record::{Ban, Body};
use muster_core::messages::wire::Request;
use muster_roles::steward::StewardInput;
use muster_roles::steward::hearing::Ruling;

use super::run::{Run, identity};

/// What the first node answers to the second one, which asks one of many questions.
fn answer(run: &Run, number: u32, logit: i32) -> FalseAnswer {
    let (id, tokens) = (run.ledger.run(), List::new(vec![number / 16, number % 16]).unwrap());
    let root = run.ledger.state().root();
    let ask = identity(1).sign(id, &Ask { round: Round(0), root, row: Row(0), tokens, positions: 1 });
    let answer = Answer { ask: ask.digest(), logits: logits_digest(&[logit]) };
    FalseAnswer { answer: identity(0).sign(id, &answer), ask }
}

/// What the first node answers to a question of the second one about a round.
fn call(run: &Run, round: u32) -> FalseAnswer {
    let (id, tokens) = (run.ledger.run(), List::new(vec![1, 2]).unwrap());
    let root = run.ledger.state().root();
    let ask = Ask { round: Round(round), root, row: Row(0), tokens, positions: 1 };
    let ask = identity(1).sign(id, &ask);
    let answer = Answer { ask: ask.digest(), logits: logits_digest(&[7]) };
    FalseAnswer { answer: identity(0).sign(id, &answer), ask }
}

fn accuse(run: &mut Run, from: MemberId, call: FalseAnswer) -> bool {
    run.ask(from, Request::Accuse(Evidence::Answer(call))).is_some()
}

/// The examination ends like this; the bans that are sealed then.
fn heard(run: &mut Run, judge: impl Fn(MemberId, Round) -> Judgement) -> Vec<Ban> {
    let accusation = run.hearing.take().expect("it is examined");
    let judgement = judge(accusation.claim.culprit, accusation.claim.round);
    let ruling = Box::new(Ruling::plain(accusation.evidence.clone(), judgement));
    run.hand(StewardInput::Heard(accusation, ruling));
    let bans = run.records.iter().filter_map(|record| match &record.body {
        Body::Ban(ban) => Some(ban.clone()),
        _ => None,
    });
    bans.collect()
}

#[test]
fn call_7_a_false_answer_ends_in_a_ban_whoever_brings_it() {
    // A member, and whoever calls with the steward's key.
    for from in [identity(1).id(), identity(101).id()] {
        let mut run = Run::new();
        let evidence = call(&run, 0);
        assert!(accuse(&mut run, from, evidence.clone()));
        let finding = FindingKind::FalseAnswer;
        let bans = heard(&mut run, |culprit, round| Judgement::Guilty {
            culprit,
            round,
            finding,
            detail: String::new(),
        });
        let [ban] = &bans[..] else { panic!("{bans:?}") };
        assert_eq!((ban.culprit, ban.finding, ban.accuser), (identity(0).id(), finding, from));
        assert_eq!(ban.evidence, Evidence::Answer(evidence).digest());
    }
}

#[test]
fn call_7_a_true_answer_ends_in_nothing() {
    let judgements = [
        Judgement::NotGuilty("the logits have the signed digest".into()),
        Judgement::Undecided("the state is unavailable".into()),
    ];
    for judgement in judgements {
        let mut run = Run::new();
        let evidence = call(&run, 0);
        assert!(accuse(&mut run, identity(1).id(), evidence));
        assert!(heard(&mut run, |_, _| judgement.clone()).is_empty());
    }
}

#[test]
fn call_7_strangers_bring_nothing_and_call_6_nothing_is_examined_that_does_not_fit() {
    let mut run = Run::new();
    let good = call(&run, 0);
    assert!(!accuse(&mut run, identity(50).id(), good.clone()));
    // An answer beside another question; a round that is still to come.
    let framed = FalseAnswer { ask: call(&run, 3).ask, ..good };
    assert!(!accuse(&mut run, identity(1).id(), framed));
    let early = call(&run, 50);
    assert!(!accuse(&mut run, identity(1).id(), early));
    // A state that was never sealed: nobody could ever decide it.
    let (id, tokens) = (run.ledger.run(), List::new(vec![1]).unwrap());
    let invented = Ask { round: Round(0), root: Digest([5; 32]), row: Row(0), tokens, positions: 1 };
    let ask = identity(1).sign(id, &invented);
    let answer = Answer { ask: ask.digest(), logits: logits_digest(&[7]) };
    let invented = FalseAnswer { answer: identity(0).sign(id, &answer), ask };
    assert!(!accuse(&mut run, identity(1).id(), invented));
    assert!(run.hearing.is_none());
    // Under the steward's key nothing else is brought than answers.
    assert!(run.ask(identity(101).id(), Request::StateOffer).is_none());
}

/// Whoever has no state brings both answers to a call, and cannot know which of them is true: it is heard whichever the
/// steward examines first, and it is not barred.
#[test]
fn audit_28_the_true_one_of_two_answers_neither_shields_the_false_one_nor_bars_their_accuser() {
    for first_is_true in [true, false] {
        let mut run = Run::new();
        let (id, truth) = (run.ledger.run(), call(&run, 0));
        let other = Answer { ask: truth.ask.digest(), logits: logits_digest(&[8]) };
        let lie = FalseAnswer { answer: identity(2).sign(id, &other), ask: truth.ask.clone() };
        let order = if first_is_true { [truth, lie] } else { [lie, truth] };
        // Both are brought before either is examined, as a caller does.
        for evidence in order {
            assert!(accuse(&mut run, identity(1).id(), evidence));
        }
        let mut bans = Vec::new();
        for _ in 0..2 {
            bans = heard(&mut run, |culprit, round| match culprit == identity(2).id() {
                true => Judgement::Guilty {
                    culprit,
                    round,
                    finding: FindingKind::FalseAnswer,
                    detail: String::new(),
                },
                false => Judgement::NotGuilty("the logits have the signed digest".into()),
            });
        }
        let [ban] = &bans[..] else { panic!("{bans:?}") };
        assert_eq!(ban.culprit, identity(2).id());
        // Another call of the same member is examined at once. A true answer alone costs it its hearing.
        let taken = [9, 10].map(|number| {
            let evidence = answer(&run, number, 7);
            let taken = accuse(&mut run, identity(1).id(), evidence);
            if taken {
                assert_eq!(heard(&mut run, |_, _| Judgement::NotGuilty("it is true".into())).len(), 1);
            }
            taken
        });
        assert_eq!(taken, [true, false], "the true one first: {first_is_true}");
    }
}

/// Answers that are right, brought as evidence by the hundred: each would cost the steward a forward pass.
#[test]
fn audit_28_true_answers_cost_their_accuser_its_hearing() {
    let mut run = Run::new();
    let mut examined = 0;
    for number in 0..100 {
        let evidence = answer(&run, number, number as i32);
        let taken = accuse(&mut run, identity(1).id(), evidence);
        assert_eq!(taken, number == 0, "{number}");
        if run.hearing.is_some() {
            examined += 1;
            let bans =
                heard(&mut run, |_, _| Judgement::NotGuilty("the logits have the signed digest".into()));
            assert!(bans.is_empty());
        }
    }
    assert_eq!(examined, 1);
    // Others are heard as before.
    let evidence = call(&run, 0);
    assert!(accuse(&mut run, identity(2).id(), evidence) && run.hearing.is_some());
}
