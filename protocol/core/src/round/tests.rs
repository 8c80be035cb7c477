use super::*;
use crate::codec::List;
use crate::error::Reject;
use crate::ids::{Block, Digest, MemberId, Part, Round};
use crate::ledger::Stage;
use crate::ledger::fixture::chain::{Chain, manifest, node, roots, slots, steward};
use crate::manifest::Manifest;
use crate::messages::enrol::{Engagement, Return};
use crate::messages::record::Body;
use crate::messages::round::{Checked, Delivered, PartResult, Receipt};
use crate::sign::Signed;

/// A steward that has taken over this ledger, with every node connected.
fn conductor(chain: &Chain) -> Conductor {
    let mut conductor = Conductor::new(chain.ledger.clone(), 0);
    (0..4).for_each(|number| conductor.live(0, node(number).id(), true));
    conductor.cases(0, None);
    conductor
}

/// The bodies that are to be sealed next.
fn proposed(conductor: &mut Conductor) -> Option<Body> {
    match conductor.poll_output() {
        Some(Output::Seal(body)) => Some(body),
        _ => None,
    }
}

#[test]
fn round_1_a_freeze_waits_for_every_live_seat_or_the_timer_and_for_a_commitment() {
    let chain = Chain::begin();
    let timer = u64::from(chain.ledger.manifest().timers.commit);
    let mut waiting = conductor(&chain);
    waiting.start();
    waiting.tick(10 * timer);
    assert_eq!(proposed(&mut waiting), None, "no commitment, however late");

    let mut waiting = conductor(&chain);
    waiting.start();
    for number in 0..3 {
        waiting.commit(1, chain.commit(number, 2)).unwrap();
    }
    assert_eq!(proposed(&mut waiting), None, "node 3 may still commit");
    let mut whole = conductor(&chain);
    whole.start();
    for number in 0..4 {
        whole.commit(1, chain.commit(number, 2)).unwrap();
    }
    let Some(Body::Freeze(freeze)) = proposed(&mut whole) else { panic!("a Freeze") };
    assert_eq!(freeze.commits.len(), 4);
    waiting.tick(timer - 1);
    assert_eq!(proposed(&mut waiting), None);
    waiting.tick(timer);
    let Some(Body::Freeze(freeze)) = proposed(&mut waiting) else { panic!("a Freeze") };
    assert_eq!(freeze.commits.len(), 3);
}

/// Whoever alone has seats, and says nothing, stops nobody who has come since.
#[test]
fn round_1_a_round_without_a_commitment_ends_where_others_could_go_on() {
    let mut chain = Chain::begin();
    let timer = u64::from(chain.ledger.manifest().timers.commit);
    chain.admit_node(4, false);
    let mut conductor = conductor(&chain);
    conductor.start();
    conductor.tick(timer);
    assert_eq!(proposed(&mut conductor), None, "the fifth node is not there");
    conductor.live(timer, node(4).id(), true);
    let Some(body @ Body::Freeze(_)) = proposed(&mut conductor) else { panic!("a Freeze") };
    let Body::Freeze(freeze) = &body else { panic!("a Freeze") };
    assert!(freeze.commits.is_empty());
    conductor.sealed(timer, &chain.seal(body)).unwrap();
    let Some(body @ Body::Inputs(_)) = proposed(&mut conductor) else { panic!("Inputs") };
    conductor.sealed(timer, &chain.seal(body)).unwrap();
    let Some(Output::Apply(results)) = conductor.poll_output() else { panic!("nothing to reduce") };
    assert!(results.iter().all(Option::is_none));
    assert!(!conductor.ledger().derived_seats().is_empty());
    let seated: Vec<_> = conductor.ledger().derived_seats().iter().map(|seat| seat.member).collect();
    assert_eq!(seated, [node(4).id()], "the others have failed");
}

/// It has a seat, and computes nothing in it.
#[test]
fn round_1_a_supporter_that_trains_from_now_on_could_go_on() {
    let mut chain = Chain::begin();
    let timer = u64::from(chain.ledger.manifest().timers.commit);
    let say = |chain: &mut Chain, engagement| {
        let (height, addresses) = (chain.ledger.height(), chain.ledger.members()[1].addresses.clone());
        let who = node(0);
        chain.seal(Body::Return(who.sign(chain.ledger.run(), &Return { height, addresses, engagement })));
    };
    assert_eq!(chain.ledger.members()[1].id, node(0).id());
    say(&mut chain, Engagement::Supports);
    chain.finish_round();
    let mut waiting = conductor(&chain);
    waiting.start();
    waiting.tick(timer);
    assert_eq!(proposed(&mut waiting), None, "the others alone have leaves");
    say(&mut chain, Engagement::Trains);
    let mut waiting = conductor(&chain);
    waiting.start();
    waiting.tick(timer);
    let Some(Body::Freeze(freeze)) = proposed(&mut waiting) else { panic!("a Freeze") };
    assert!(freeze.commits.is_empty());
}

/// ROUND-28: where all have fetched the newest state, nobody has the older one that a round is computed on. It ends all the same,
/// and the next one begins on the state that they have.
#[test]
fn round_1_a_delayed_round_ends_where_nobody_has_its_state() {
    let mut chain = Chain::begin_with(Manifest { delay: 1, ..manifest(4) });
    let timer = u64::from(chain.ledger.manifest().timers.commit);
    let mut first = conductor(&chain);
    first.start();
    first.tick(timer);
    assert_eq!(proposed(&mut first), None, "everybody has the state of the first round");
    chain.finish_round();
    let mut behind = conductor(&chain);
    behind.start();
    behind.tick(timer - 1);
    assert_eq!(proposed(&mut behind), None, "somebody may still commit");
    behind.tick(timer);
    let Some(body @ Body::Freeze(_)) = proposed(&mut behind) else { panic!("a Freeze") };
    behind.sealed(timer, &chain.seal(body)).unwrap();
    let Some(body @ Body::Inputs(_)) = proposed(&mut behind) else { panic!("Inputs") };
    behind.sealed(timer, &chain.seal(body)).unwrap();
    assert!(behind.ledger().derived_seats().is_empty(), "all have failed, so that the run gathers");
}

#[test]
fn round_1_nobody_waits_for_a_seat_without_a_channel() {
    let chain = Chain::begin();
    let mut conductor = conductor(&chain);
    conductor.start();
    for number in 0..3 {
        conductor.commit(1, chain.commit(number, 2)).unwrap();
    }
    assert_eq!(proposed(&mut conductor), None);
    conductor.live(2, node(3).id(), false);
    assert!(matches!(proposed(&mut conductor), Some(Body::Freeze(_))));
}

/// LEDGER-24: it has nothing to commit to, and may combine parts.
#[test]
fn round_1_nobody_waits_for_a_commitment_of_a_supporter() {
    let mut chain = Chain::begin();
    let addresses = chain.ledger.member(&node(3).id()).unwrap().addresses.clone();
    let supports = Return { height: chain.ledger.height(), addresses, engagement: Engagement::Supports };
    chain.seal(Body::Return(node(3).sign(chain.ledger.run(), &supports)));
    chain.finish_round();
    let mut conductor = conductor(&chain);
    conductor.start();
    for number in 0..3 {
        assert_eq!(proposed(&mut conductor), None);
        conductor.commit(1, chain.commit(number, 1)).unwrap();
    }
    assert!(matches!(proposed(&mut conductor), Some(Body::Freeze(_))));
    assert_eq!(conductor.owed(), Some((Owed::Commitment, Vec::new())));
    let duties = |number| Duties::new(node(number).id()).due(&chain.ledger);
    assert!(duties(3).is_empty() && duties(0).len() == 1);
}

#[test]
fn round_16_no_phase_ends_before_what_was_promised_is_taken_again() {
    let chain = Chain::begin();
    let mut conductor = conductor(&chain);
    conductor.commit(1, chain.commit(0, 2)).unwrap();
    conductor.tick(u64::from(u32::MAX));
    assert_eq!(proposed(&mut conductor), None, "others may have a receipt, too");
    for number in 1..4 {
        conductor.commit(2, chain.commit(number, 2)).unwrap();
    }
    conductor.start();
    let Some(Body::Freeze(freeze)) = proposed(&mut conductor) else { panic!("a Freeze") };
    assert_eq!(freeze.commits.len(), 4);
}

#[test]
fn round_9_what_is_late_or_comes_twice_changes_nothing() {
    let chain = Chain::begin();
    let mut conductor = conductor(&chain);
    let first = chain.commit(0, 2);
    conductor.commit(1, first.clone()).unwrap();
    conductor.commit(2, chain.commit(0, 1)).unwrap();
    let slot = chain.commitment(0, 2).slot;
    // COMMIT-4: the first one of a slot counts.
    assert_eq!(conductor.held_commit(slot), Some(&first));

    let mut late = self::conductor(&Chain::reducing());
    assert!(matches!(late.commit(3, first), Err(Reject::Stale(_))));
    assert_eq!(late.held_commit(slot), None);
    let chain = Chain::reducing();
    assert!(late.result(3, chain.result(Part(0))).unwrap());
    assert!(!late.result(4, chain.result(Part(0))).unwrap(), "said before");
}

/// A steward that reduces the first round, with every result said, and what node 0 says of them.
fn checking() -> (Chain, Conductor, Checked) {
    let chain = Chain::reducing();
    let mut conductor = conductor(&chain);
    chain.parts().for_each(|part| {
        let signed = chain.result(part);
        let result = signed.verify(chain.ledger.run()).unwrap().into_inner();
        assert!(conductor.result(1, signed).unwrap());
        conductor.obtained(1, &result, true);
    });
    let checked = Checked {
        round: Round(0),
        attempt: 0,
        parts: List::new(chain.parts().collect()).unwrap(),
        objections: List::default(),
    };
    (chain, conductor, checked)
}

#[test]
fn round_20_a_contributor_says_of_each_part_once_what_it_thinks() {
    let (chain, mut conductor, checked) = checking();
    let run = chain.ledger.run();
    let blocks = |part: usize| chain.ledger.current().unwrap().parts()[part].blocks.clone();
    let some = |parts: &[u16]| List::new(parts.iter().map(|part| Part(*part)).collect()).unwrap();
    let objecting = |parts: &[u16], objections: Vec<Block>| Checked {
        parts: some(parts),
        objections: List::new(objections).unwrap(),
        ..checked.clone()
    };
    let mut say = |number: u8, word: &Checked| conductor.checked(2, &node(number).sign(run, word)).is_ok();
    assert!(!say(9, &checked), "nothing of a stranger counts");
    assert!(!say(0, &Checked { round: Round(1), ..checked.clone() }));
    assert!(!say(0, &Checked { attempt: 1, ..checked.clone() }));
    assert!(!say(0, &objecting(&[1, 0], Vec::new())), "parts out of order");
    assert!(!say(0, &objecting(&[0, 99], Vec::new())), "no such part");
    assert!(!say(0, &objecting(&[0], blocks(1))), "a block of another part");
    let mut backwards = [blocks(0), blocks(1)].concat();
    backwards.sort_unstable_by(|one, other| other.cmp(one));
    assert!(!say(0, &objecting(&[0, 1], backwards)), "objections out of order");
    assert!(say(0, &objecting(&[0], blocks(0))));
    assert!(!say(0, &objecting(&[0], Vec::new())), "without a new part");
    assert!(say(0, &checked), "the other parts are new");
    assert!(!say(0, &checked));
}

#[test]
fn round_20_the_results_are_applied_once_every_contributor_has_checked_them() {
    let (chain, mut conductor, checked) = checking();
    let run = chain.ledger.run();
    conductor.start();
    for number in 0..4 {
        assert_eq!(conductor.poll_output(), None, "{number} have checked");
        conductor.checked(2, &node(number).sign(run, &checked)).unwrap();
    }
    assert!(matches!(conductor.poll_output(), Some(Output::Apply(_))));
}

/// A steward that reduces the first round, to which everything was said but what is thought of it, and which has the values of
/// these parts.
fn reduced(is_here: impl Fn(Part) -> bool) -> (Chain, Conductor) {
    let chain = Chain::reducing();
    let mut conductor = conductor(&chain);
    conductor.start();
    hear_results(&chain, &mut conductor, 1, is_here);
    (chain, conductor)
}

/// Every result of the open round is said, and the steward has the values of these parts.
fn hear_results(chain: &Chain, conductor: &mut Conductor, now: u64, is_here: impl Fn(Part) -> bool) {
    for part in chain.parts() {
        let signed = chain.result(part);
        let result = signed.verify(chain.ledger.run()).unwrap().into_inner();
        conductor.result(now, signed).unwrap();
        if is_here(part) {
            conductor.obtained(now, &result, true);
        }
    }
}

fn say(chain: &Chain, conductor: &mut Conductor, now: u64, number: u8, parts: &[Part]) {
    let parts = List::new(parts.to_vec()).unwrap();
    let round = chain.ledger.current().unwrap().round();
    let word = Checked { round, attempt: 0, parts, objections: List::default() };
    conductor.checked(now, &node(number).sign(chain.ledger.run(), &word)).unwrap();
}

/// One aggregator from whom nobody can fetch keeps nobody from being heard, and nobody else is charged for it.
#[test]
fn round_30_nobody_is_charged_for_values_that_the_steward_lacks() {
    const HIDDEN: Part = Part(1);
    let (chain, mut conductor) = reduced(|part| part != HIDDEN);
    let timer = u64::from(chain.ledger.manifest().timers.result);
    let others: Vec<Part> = chain.parts().filter(|part| *part != HIDDEN).collect();
    (0..4).for_each(|number| say(&chain, &mut conductor, 2, number, &others));
    conductor.tick(10 * timer);
    assert_eq!(conductor.poll_output(), None, "the values are on their way, however slow");
    assert_eq!(conductor.stalling().count(), 0);
    let hidden = chain.result(HIDDEN).verify(chain.ledger.run()).unwrap().into_inner();
    conductor.obtained(10 * timer, &hidden, false);
    let Some(Body::Reassign(moved)) = proposed(&mut conductor) else { panic!("the part is missing at once") };
    assert_eq!(moved.parts.iter().map(|moved| moved.part).collect::<Vec<_>>(), [HIDDEN]);
    assert_eq!(conductor.stalling().count(), 0);
}

#[test]
fn round_21_the_time_for_a_word_begins_when_the_steward_has_all_values() {
    let (chain, mut conductor) = reduced(|part| part != Part(0));
    let timer = u64::from(chain.ledger.manifest().timers.result);
    let parts: Vec<Part> = chain.parts().collect();
    (1..4).for_each(|number| say(&chain, &mut conductor, 2, number, &parts));
    let late = chain.result(Part(0)).verify(chain.ledger.run()).unwrap().into_inner();
    conductor.obtained(timer, &late, true);
    conductor.tick(2 * timer - 1);
    assert_eq!((conductor.poll_output(), conductor.stalling().count()), (None, 0), "node 0 may still say it");
    conductor.tick(2 * timer);
    assert_eq!(conductor.stalling().collect::<Vec<_>>(), [&node(0).id()]);
    assert!(matches!(conductor.poll_output(), Some(Output::Apply(_))), "the others are the majority");
}

/// Every result of the first round is said at once, and the values of each node's part come after so many milliseconds.
fn shown_after(times: [u64; 4]) -> (Chain, Conductor) {
    let (chain, mut conductor) = reduced(|_| false);
    let view = chain.ledger.current().unwrap();
    let mut come: Vec<(u64, Part)> = chain
        .parts()
        .map(|part| {
            let author = view.aggregating(part).next().unwrap();
            (times[view.slot_of(&author).unwrap().index()], part)
        })
        .collect();
    come.sort_unstable();
    for (time, part) in come {
        let result = chain.result(part).verify(chain.ledger.run()).unwrap().into_inner();
        conductor.obtained(1 + time, &result, true);
    }
    (chain, conductor)
}

/// All check the results, which are applied.
fn applied(chain: &Chain, conductor: &mut Conductor, now: u64) {
    let parts: Vec<Part> = chain.parts().collect();
    (0..4).for_each(|number| say(chain, conductor, now, number, &parts));
    assert!(matches!(conductor.poll_output(), Some(Output::Apply(_))));
    conductor.applied(now, Ok(chain.next_state()));
}

#[test]
fn round_40_a_slow_line_is_sealed_before_the_outcome() {
    let (mut chain, mut conductor) = shown_after([1_100, 9_000, 1_200, 1_000]);
    applied(&chain, &mut conductor, 9_002);
    let Some(body @ Body::Shares(_)) = proposed(&mut conductor) else { panic!("one is slow") };
    let Body::Shares(shares) = &body else { unreachable!() };
    let moves: Vec<(u16, u8)> = shares.moves.iter().map(|moved| (moved.slot.0, moved.class.0)).collect();
    assert_eq!(moves, [(1, 6)]);
    conductor.sealed(9_003, &chain.seal(body)).unwrap();
    conductor.cases(9_003, None);
    assert!(matches!(proposed(&mut conductor), Some(Body::Outcome(_))), "once");
}

#[test]
fn round_40_lines_that_are_alike_seal_nothing() {
    for times in [[1, 2, 3, 900], [5_000, 6_000, 5_500, 7_000], [0; 4]] {
        let (chain, mut conductor) = shown_after(times);
        applied(&chain, &mut conductor, 9_002);
        assert!(matches!(proposed(&mut conductor), Some(Body::Outcome(_))), "{times:?}");
    }
}

#[test]
fn round_40_a_steward_may_keep_all_parts_equal() {
    let (chain, mut conductor) = shown_after([1_100, 9_000, 1_200, 1_000]);
    conductor.keep_parts_equal();
    applied(&chain, &mut conductor, 9_002);
    assert!(matches!(proposed(&mut conductor), Some(Body::Outcome(_))));
}

/// An aggregator may wait for inputs that others bring late: its own time begins with its result.
#[test]
fn round_40_what_others_deliver_late_makes_nobody_slow() {
    let chain = Chain::reducing();
    let mut conductor = conductor(&chain);
    conductor.start();
    for (part, time) in chain.parts().zip([1, 9_000, 2, 3]) {
        let signed = chain.result(part);
        let result = signed.verify(chain.ledger.run()).unwrap().into_inner();
        conductor.result(time, signed).unwrap();
        conductor.obtained(time + 500, &result, true);
    }
    applied(&chain, &mut conductor, 9_600);
    assert!(matches!(proposed(&mut conductor), Some(Body::Outcome(_))));
}

/// A steward that did not run would take its own pause for somebody's line.
#[test]
fn round_40_what_the_steward_slept_through_tells_nothing() {
    let (chain, mut conductor) = reduced(|part| part != Part(0));
    conductor.resume(60_000);
    let late = chain.result(Part(0)).verify(chain.ledger.run()).unwrap().into_inner();
    conductor.obtained(60_001, &late, true);
    applied(&chain, &mut conductor, 60_002);
    assert!(matches!(proposed(&mut conductor), Some(Body::Outcome(_))));
}

/// The first values may have come long before, and the machine have been off since.
#[test]
fn round_40_what_was_said_before_a_restart_tells_nothing() {
    let chain = Chain::reducing();
    let mut conductor = conductor(&chain);
    let results: Vec<_> = chain.parts().map(|part| chain.result(part)).collect();
    for signed in &results {
        conductor.result(1, signed.clone()).unwrap();
    }
    conductor.start();
    for (time, signed) in (0..).zip(&results) {
        let result = signed.verify(chain.ledger.run()).unwrap().into_inner();
        conductor.obtained(10 + 9_000 * time, &result, true);
    }
    applied(&chain, &mut conductor, 30_000);
    assert!(matches!(proposed(&mut conductor), Some(Body::Outcome(_))));
}

/// Otherwise whoever repeats its result could take every measurement away.
#[test]
fn round_40_a_result_that_is_said_twice_changes_no_time() {
    let (chain, mut conductor) = reduced(|_| false);
    let results: Vec<_> = chain.parts().map(|part| chain.result(part)).collect();
    for (time, signed) in [9_000, 1_000, 1_000, 1_000].into_iter().zip(&results) {
        conductor.result(time - 1, signed.clone()).unwrap();
        let result = signed.verify(chain.ledger.run()).unwrap().into_inner();
        conductor.obtained(time, &result, true);
    }
    applied(&chain, &mut conductor, 9_002);
    let Some(Body::Shares(shares)) = proposed(&mut conductor) else { panic!("one is slow") };
    assert_eq!(shares.moves.len(), 1);
}

/// Marks never switch objections off: without the word of who has one nobody could tell whether a result is right.
#[test]
fn round_21_who_has_a_mark_is_waited_for_where_the_others_are_no_majority() {
    let (mut chain, mut conductor) = reduced(|_| true);
    let now = u64::from(chain.ledger.manifest().timers.result) + 1;
    let parts: Vec<Part> = chain.parts().collect();
    (1..4).for_each(|number| say(&chain, &mut conductor, 2, number, &parts));
    conductor.tick(now);
    assert_eq!(conductor.stalling().collect::<Vec<_>>(), [&node(0).id()]);
    assert!(matches!(conductor.poll_output(), Some(Output::Apply(_))));
    conductor.applied(now, Ok(chain.next_state()));
    assert!(proposed(&mut conductor).is_some());
    // With echoes, which the conductor has not heard here.
    let outcome = Body::Outcome(chain.outcome());
    conductor.sealed(now, &chain.seal(outcome)).unwrap();
    conductor.sealed(now, &chain.freeze(0..4)).unwrap();
    let inputs = chain.inputs(0, chain.parts().map(|_| slots(0..4)).collect());
    conductor.sealed(now, &chain.seal(inputs)).unwrap();
    hear_results(&chain, &mut conductor, now, |_| true);
    (1..3).for_each(|number| say(&chain, &mut conductor, now, number, &parts));
    conductor.live(now, node(3).id(), false);
    assert_eq!(conductor.poll_output(), None, "two of four are heard, and one is gone");
    say(&chain, &mut conductor, now, 0, &parts);
    assert!(matches!(conductor.poll_output(), Some(Output::Apply(_))));
}

#[test]
fn round_31_what_no_majority_has_checked_is_reduced_again_or_left_out() {
    for reducible in [true, false] {
        let (chain, mut conductor) = reduced(|_| true);
        let timer = u64::from(chain.ledger.manifest().timers.result);
        let parts: Vec<Part> = chain.parts().collect();
        (0..2).for_each(|number| say(&chain, &mut conductor, 2, number, &parts));
        conductor.tick(timer - 1);
        assert_eq!(conductor.poll_output(), None, "nodes 2 and 3 have half of the weight");
        conductor.tick(timer + 1);
        let mut seen = Vec::new();
        let last = loop {
            match conductor.poll_output() {
                Some(Output::Inspect(signed)) => {
                    let result = signed.verify(chain.ledger.run()).unwrap();
                    seen.push(result.part);
                    conductor.inspected(timer + 1, result.part, &result.author(), reducible);
                }
                other => break other,
            }
        };
        let expected = if reducible { &parts[..] } else { &parts[..1] };
        assert_eq!(seen, expected, "each of them once, until one is missing");
        let applied = matches!(last, Some(Output::Apply(_)));
        let moved = matches!(last, Some(Output::Seal(Body::Reassign(_))));
        assert_eq!((applied, moved), (reducible, !reducible));
    }
}

/// Half of the weight that stays silent costs time, and not the run.
#[test]
fn round_31_reducing_again_has_an_end() {
    let (chain, mut conductor) = reduced(|_| true);
    let timer = u64::from(chain.ledger.manifest().timers.result);
    conductor.tick(timer + 1);
    let Some(Output::Inspect(signed)) = conductor.poll_output() else {
        panic!("nobody has checked anything")
    };
    let result = signed.verify(chain.ledger.run()).unwrap();
    conductor.inspected(2 * timer + 1, result.part, &result.author(), true);
    let Some(Body::Reassign(moved)) = proposed(&mut conductor) else { panic!("the time is over") };
    assert_eq!(moved.parts.len(), chain.parts().count() - 1, "all but the one that was found right");
}

/// Objections of less than half of the weight are enough where those who do not object are no majority either.
#[test]
fn round_31_silence_is_no_consent() {
    let (chain, mut conductor) = reduced(|_| true);
    let timer = u64::from(chain.ledger.manifest().timers.result);
    let parts: Vec<Part> = chain.parts().collect();
    let block = chain.ledger.current().unwrap().parts()[2].blocks[0];
    let objections = List::new(vec![block]).unwrap();
    let word = Checked { round: Round(0), attempt: 0, parts: List::new(parts.clone()).unwrap(), objections };
    conductor.checked(2, &node(0).sign(chain.ledger.run(), &word)).unwrap();
    (1..3).for_each(|number| say(&chain, &mut conductor, 2, number, &parts));
    conductor.tick(timer + 1);
    let Some(Output::Inspect(signed)) = conductor.poll_output() else { panic!("two of four approve") };
    assert_eq!(signed.verify(chain.ledger.run()).unwrap().part, Part(2));
}

/// One of its two words is false, and those who check see only one of them.
#[test]
fn round_22_what_was_signed_twice_is_reduced_again_though_nobody_objects() {
    let (chain, mut conductor) = reduced(|_| true);
    let (parts, part): (Vec<Part>, Part) = (chain.parts().collect(), Part(1));
    let author = chain.part_result(part).1.id();
    conductor.contest(part, &author);
    (0..4).for_each(|number| say(&chain, &mut conductor, 2, number, &parts));
    let Some(Output::Inspect(signed)) = conductor.poll_output() else { panic!("it is contested") };
    let result = signed.verify(chain.ledger.run()).unwrap();
    assert_eq!((result.part, result.author()), (part, author));
    conductor.inspected(3, part, &author, false);
    assert!(conductor.result(3, chain.result(part)).is_err(), "it was struck, and is not taken again");
    assert!(matches!(proposed(&mut conductor), Some(Body::Reassign(_))));
}

#[test]
fn round_5_a_delivery_brings_the_keepers_receipts_after_its_echo() {
    let mut chain = Chain::begin();
    chain.freeze(0..4);
    let mut conductor = conductor(&chain);
    let run = chain.ledger.run();
    let view = chain.ledger.current().unwrap().clone();
    let sender = node(1);
    let root = chain.commitment(1, 2).root;
    let receipt = |part: Part, root: Digest| {
        let (keepers, attempt) = view.keepers(part, &sender.id()).unwrap();
        let receipt = Receipt { round: Round(0), part, attempt, sender: sender.id(), root };
        chain.identity_of(keepers[0]).sign(run, &receipt)
    };
    let delivered = |receipts| {
        sender.sign(run, &Delivered { round: Round(0), attempt: 0, receipts: List::new(receipts).unwrap() })
    };
    let good = delivered(vec![receipt(Part(0), root)]);
    assert!(conductor.delivered(1, &good).is_err(), "no echo yet");
    conductor.echo(1, chain.echo(&sender)).unwrap();
    assert!(conductor.delivered(1, &delivered(vec![receipt(Part(0), Digest::default())])).is_err());
    conductor.delivered(1, &good).unwrap();
    conductor.start();
    conductor.tick(u64::from(chain.ledger.manifest().timers.part));
    let Some(Body::Inputs(inputs)) = proposed(&mut conductor) else { panic!("the inputs") };
    let slot = chain.commitment(1, 2).slot.0;
    assert_eq!(inputs.parts[0], slots([slot]), "counted where it has delivered");
    assert!(inputs.parts[1..].iter().all(|inputs| inputs.is_empty()), "and nowhere else");
}

#[test]
fn round_35_a_delivery_is_bounded_before_a_signature_is_checked() {
    let mut chain = Chain::begin();
    chain.freeze(0..4);
    let mut conductor = conductor(&chain);
    let (run, sender) = (chain.ledger.run(), node(1));
    let view = chain.ledger.current().unwrap().clone();
    let root = chain.commitment(1, 2).root;
    conductor.echo(1, chain.echo(&sender)).unwrap();
    // Of the keeper with this signature, if any: nobody has looked at it yet.
    let receipt = |part: Part, keeper: Option<MemberId>, signature: Option<[u8; 64]>| {
        let (keepers, attempt) = view.keepers(part, &sender.id()).unwrap();
        let receipt = Receipt { round: Round(0), part, attempt, sender: sender.id(), root };
        let keeper = keeper.unwrap_or(keepers[0]);
        match signature {
            Some(signature) => Signed::claim(run, keeper, signature, &receipt),
            None => chain.identity_of(keeper).sign(run, &receipt),
        }
    };
    let claim = |conductor: &Conductor, receipts: Vec<Signed<Receipt>>| {
        let receipts = List::new(receipts).unwrap();
        conductor.claim_delivery(&sender.sign(run, &Delivered { round: Round(0), attempt: 0, receipts }))
    };
    let garbage = |part| receipt(part, None, Some([7; 64]));
    let parts: Vec<Part> = chain.parts().collect();
    assert!(claim(&conductor, vec![garbage(parts[0]), garbage(parts[0])]).is_err(), "one keeper twice");
    let twice = vec![receipt(parts[0], None, None), receipt(parts[0], None, None)];
    assert!(claim(&conductor, twice).is_err(), "also where the signature is good");
    let crowd =
        parts.iter().flat_map(|part| [garbage(*part), receipt(*part, Some(steward().id()), Some([7; 64]))]);
    let crowd = claim(&conductor, crowd.collect()).unwrap_err();
    assert_eq!(crowd, Reject::Rule("a delivery brings no more receipts than its parts have keepers"));
    let stranger = (0..4)
        .map(|number| node(number).id())
        .find(|id| !view.keepers(parts[0], &sender.id()).unwrap().0.contains(id));
    assert!(claim(&conductor, vec![receipt(parts[0], stranger, None)]).is_err(), "of no keeper");
    // What may be true is checked, and fails there.
    let all: Vec<_> = parts.iter().map(|part| garbage(*part)).collect();
    let claimed = claim(&conductor, all).unwrap();
    assert_eq!((claimed.unchecked(), claimed.is_new()), (parts.len(), true));
    assert_eq!(claimed.check().unwrap_err(), Reject::BadSignature);
    // What was shown once needs no second look, whoever signs it again.
    let shown = claim(&conductor, vec![receipt(parts[0], None, None)]).unwrap().check().unwrap();
    conductor.deliver(2, &shown).unwrap();
    let again = claim(&conductor, vec![garbage(parts[0])]).unwrap();
    assert_eq!((again.unchecked(), again.is_new()), (0, false));
    let more = claim(&conductor, vec![garbage(parts[0]), garbage(parts[1])]).unwrap();
    assert_eq!((more.unchecked(), more.is_new()), (1, true));
}

/// One of the two lies in a way that nobody who checks can see.
#[test]
fn round_25_a_part_of_which_two_say_different_things_is_reduced_again_though_nobody_objects() {
    let mut two = manifest(4);
    two.aggregation.replicas = 2;
    let mut chain = Chain::begin_with(two);
    chain.freeze(0..4);
    chain.seal(chain.inputs(0, chain.parts().map(|_| slots(0..4)).collect()));
    let mut conductor = conductor(&chain);
    conductor.start();
    let (run, view) = (chain.ledger.run(), chain.ledger.current().unwrap());
    for part in chain.parts() {
        let (result, _) = chain.part_result(part);
        for (index, member) in view.aggregating(part).enumerate() {
            let lies = (part, index) == (Part(1), 1);
            let digest = if lies { Digest([8; 32]) } else { result.digest };
            let signed = chain.identity_of(member).sign(run, &PartResult { digest, ..result.clone() });
            assert!(conductor.result(1, signed).unwrap());
            // Whichever stands, its values are shown.
            conductor.obtained(1, &PartResult { digest, ..result.clone() }, true);
        }
    }
    let parts: Vec<Part> = chain.parts().collect();
    (0..4).for_each(|number| say(&chain, &mut conductor, 2, number, &parts));
    let Some(Output::Inspect(signed)) = conductor.poll_output() else { panic!("one of them is wrong") };
    assert_eq!(signed.verify(run).unwrap().part, Part(1));
}

/// The receipt of a delivery binds the steward to count it, whatever the other aggregator lacks.
#[test]
fn round_5_both_aggregators_of_a_part_have_signed_for_what_a_delivery_names() {
    let mut two = manifest(4);
    two.aggregation.replicas = 2;
    let mut chain = Chain::begin_with(two);
    chain.freeze(0..4);
    let mut conductor = conductor(&chain);
    let (run, sender) = (chain.ledger.run(), node(1));
    let view = chain.ledger.current().unwrap();
    conductor.echo(1, chain.echo(&sender)).unwrap();
    let keepers = |part: Part| view.keepers(part, &sender.id()).unwrap().0;
    let part = chain.parts().find(|part| !keepers(*part).contains(&steward().id())).unwrap();
    let root = chain.commitment(1, 2).root;
    let taken = |by: &[MemberId]| {
        let receipt = Receipt { round: Round(0), part, attempt: 0, sender: sender.id(), root };
        let receipts = by.iter().map(|keeper| chain.identity_of(*keeper).sign(run, &receipt));
        let receipts = List::new(receipts.collect()).unwrap();
        conductor
            .claim_delivery(&sender.sign(run, &Delivered { round: Round(0), attempt: 0, receipts }))
            .is_ok()
    };
    let both = keepers(part);
    assert_eq!(both.len(), 2);
    assert!(!taken(&both[..1]) && !taken(&both[1..]));
    assert!(taken(&both) && taken(&[steward().id()]));
}

#[test]
fn round_36_a_phase_is_longer_by_what_the_steward_owed_and_by_once_its_timer_at_most() {
    let chain = Chain::reducing();
    let timer = u64::from(chain.ledger.manifest().timers.result);
    let reducing = || {
        let mut conductor = conductor(&chain);
        conductor.start();
        conductor
    };
    let mut prompt = reducing();
    prompt.tick(timer);
    assert!(prompt.poll_output().is_some(), "nothing was owed");
    let mut slow = reducing();
    slow.owes(10, 1);
    slow.owes(20, 2);
    slow.paid(1_000, 1);
    slow.paid(5_010, 2);
    slow.tick(timer + 4_999);
    assert_eq!((slow.poll_output(), slow.poll_timeout()), (None, Some(timer + 5_000)));
    slow.tick(timer + 5_000);
    assert!(slow.poll_output().is_some(), "owed for five seconds");
    let mut stuck = reducing();
    stuck.owes(0, 1);
    assert_eq!(stuck.poll_timeout(), Some(2 * timer));
    stuck.tick(2 * timer - 1);
    assert_eq!(stuck.poll_output(), None);
    stuck.tick(2 * timer);
    assert!(stuck.poll_output().is_some(), "no debt lengthens a phase without end");
}

/// Everybody else has delivered, so that nobody who is there is waited for.
#[test]
fn round_36_what_is_being_checked_is_counted_where_its_author_has_gone_since() {
    let mut chain = Chain::begin();
    chain.freeze(0..4);
    let mut conductor = conductor(&chain);
    conductor.start();
    for number in 0..4 {
        conductor.echo(1, chain.echo(&node(number))).unwrap();
    }
    conductor.owes(1, 1);
    conductor.live(1, node(0).id(), false);
    for number in 1..4 {
        let nothing = Delivered { round: Round(0), attempt: 0, receipts: List::default() };
        conductor.delivered(1, &node(number).sign(chain.ledger.run(), &nothing)).unwrap();
    }
    assert_eq!(proposed(&mut conductor), None, "the delivery came in time");
    conductor.paid(2, 1);
    assert!(matches!(proposed(&mut conductor), Some(Body::Inputs(_))));
}

/// Nobody heard what contributors said while the steward did not run.
#[test]
fn round_38_the_time_for_a_word_begins_anew() {
    let (chain, mut conductor) = reduced(|_| true);
    let timer = u64::from(chain.ledger.manifest().timers.result);
    let parts: Vec<Part> = chain.parts().collect();
    (1..4).for_each(|number| say(&chain, &mut conductor, 2, number, &parts));
    conductor.resume(timer - 1);
    conductor.tick(2 * timer - 2);
    assert_eq!((conductor.poll_output(), conductor.stalling().count()), (None, 0), "node 0 may still say it");
    conductor.tick(2 * timer - 1);
    assert_eq!(conductor.stalling().count(), 1);
}

#[test]
fn a_run_that_waits_for_members_seals_nothing() {
    let chain = Chain::open(manifest(4));
    let mut conductor = conductor(&chain);
    conductor.start();
    conductor.tick(u64::from(u32::MAX));
    assert_eq!((chain.ledger.stage(), proposed(&mut conductor)), (Stage::Gathering, None));
}

/// A round in which everybody commits and nobody delivers; gives the pause before its Freeze.
fn barren_round(chain: &mut Chain, conductor: &mut Conductor, now: &mut u64) -> u64 {
    for number in 0..4 {
        conductor.commit(*now, chain.commit(number, 2)).unwrap();
    }
    let pause = conductor.paused_until().map_or(0, |until| until - *now);
    *now += pause;
    conductor.tick(*now);
    loop {
        match conductor.poll_output() {
            Some(Output::Seal(body)) => {
                let over = matches!(body, Body::Outcome(_));
                conductor.sealed(*now, &chain.seal(body)).unwrap();
                conductor.cases(*now, None);
                if over {
                    return pause;
                }
            }
            Some(Output::Apply(_)) => {
                conductor.applied(*now, Ok(roots(chain.ledger.state().step() + 1)));
            }
            Some(output) => panic!("{output:?}"),
            None => {
                *now += u64::from(chain.ledger.manifest().timers.part);
                conductor.tick(*now);
            }
        }
    }
}

/// One line that breaks and works again, by chance or on purpose, would end every pause: the rounds of a run are numbered, and used
/// up within hours.
#[test]
fn round_26_who_comes_and_goes_ends_one_pause_and_spends_no_rounds() {
    let mut manifest = manifest(4);
    manifest.training.rounds = 20;
    let mut chain = Chain::begin_with(manifest);
    let (mut conductor, mut now) = (conductor(&chain), 0);
    conductor.start();
    let part = u64::from(chain.ledger.manifest().timers.part);
    let flap = |conductor: &mut Conductor, now: u64, number: u8| {
        conductor.live(now, node(number).id(), false);
        conductor.live(now, node(number).id(), true);
    };
    let mut round = |conductor: &mut Conductor| barren_round(&mut chain, conductor, &mut now);
    assert_eq!([(); 5].map(|()| round(&mut conductor)), [0, 0, 0, part, 2 * part]);
    flap(&mut conductor, 0, 1);
    assert_eq!([(); 4].map(|()| round(&mut conductor)), [0, 0, 0, part], "it may have been what was lacking");
    let pauses = [(); 4].map(|()| {
        flap(&mut conductor, 0, 1);
        round(&mut conductor)
    });
    assert_eq!(pauses, [2 * part, 4 * part, 8 * part, 16 * part], "it was not");
    flap(&mut conductor, 0, 2);
    assert_eq!(round(&mut conductor), 0, "another one may be");
}
