//! LEDGER-25: how much of a round a member reduces.

use super::*;
use crate::assign::passed_over;
use crate::ids::ShareClass;
use crate::limits::{SHARE_CLASS, SHARE_FIRST, SHARE_ROUNDS};
use crate::messages::enrol::Engagement;
use crate::messages::record::{ShareMove, Shares};

/// These slots have these classes from now on.
fn shares(chain: &Chain, moves: &[(u16, u8)]) -> Body {
    let moves = moves.iter().map(|(slot, class)| ShareMove { slot: Slot(*slot), class: ShareClass(*class) });
    let round = chain.ledger.current().unwrap().round();
    Body::Shares(Shares { round, moves: List::new(moves.collect()).unwrap() })
}

fn class(chain: &Chain, number: u8) -> u8 {
    chain.ledger.member(&node(number).id()).unwrap().share.0
}

fn slot(chain: &Chain, number: u8) -> Slot {
    chain.ledger.current().unwrap().slot_of(&node(number).id()).unwrap()
}

/// The parts that a node reduces at first in the open round.
fn parts_of(chain: &Chain, number: u8) -> Vec<Part> {
    let (view, slot) = (chain.ledger.current().unwrap(), slot(chain, number));
    chain.parts().filter(|part| view.aggregators_in(*part, 0).any(|of| of == slot)).collect()
}

/// A long run in its first round.
fn long() -> Chain {
    let mut manifest = manifest(4);
    manifest.training.rounds = 500;
    Chain::begin_with(manifest)
}

/// A node is said to be slow until it has no part.
fn slow(chain: &mut Chain, number: u8) {
    while !parts_of(chain, number).is_empty() {
        chain.reduce_all();
        let (slot, class) = (slot(chain, number), class(chain, number));
        chain.seal(shares(chain, &[(slot.0, class - 2)]));
        chain.seal(Body::Outcome(chain.outcome()));
    }
}

#[test]
fn ledger_25_a_class_goes_one_up_or_two_down_once_in_a_round() {
    let mut chain = Chain::reducing();
    assert_eq!(class(&chain, 0), SHARE_FIRST);
    for fine in [&[(0, 9)][..], &[(1, 7)], &[(3, 6)], &[(0, 9), (1, 7), (2, 6)]] {
        assert!(takes(&chain, shares(&chain, fine)), "{fine:?}");
    }
    for (wrong, why) in [
        (&[][..], "nobody"),
        (&[(0, 8)], "no change"),
        (&[(0, 10)], "two up"),
        (&[(0, 5)], "three down"),
        (&[(0, 255)], "beyond the highest"),
        (&[(1, 7), (0, 9)], "not in order"),
        (&[(1, 7), (1, 7)], "twice"),
        (&[(4, 7)], "no such seat"),
    ] {
        assert!(!takes(&chain, shares(&chain, wrong)), "{why}");
    }
    let Body::Shares(fine) = shares(&chain, &[(0, 7)]) else { unreachable!() };
    assert!(!takes(&chain, Body::Shares(Shares { round: Round(1), ..fine.clone() })), "another round");
    chain.seal(Body::Shares(fine));
    assert_eq!(class(&chain, 0), 7);
    assert!(!takes(&chain, shares(&chain, &[(0, 6)])), "once in a round");
    chain.seal(Body::Outcome(chain.outcome()));
    assert!(!takes(&chain, shares(&chain, &[(0, 6)])), "before its Inputs");
}

#[test]
fn ledger_25_only_whoever_had_a_part_to_show_is_named() {
    let mut chain = long();
    slow(&mut chain, 3);
    chain.reduce_all();
    let (idle, busy) = (slot(&chain, 3), slot(&chain, 0));
    assert!(!takes(&chain, shares(&chain, &[(idle.0, class(&chain, 3) + 1)])), "nothing was measured");
    assert!(takes(&chain, shares(&chain, &[(busy.0, 9)])));
    // What it had was given to another: it did not show it.
    let part = parts_of(&chain, 0)[0];
    let other = Reassigned { part, aggregator: slot(&chain, 1) };
    let round = chain.ledger.current().unwrap().round();
    chain.seal(Body::Reassign(Reassign { round, parts: List::new(vec![other]).unwrap() }));
    chain.seal(chain.inputs(1, vec![slots(0..4)]));
    assert!(!takes(&chain, shares(&chain, &[(busy.0, 9)])));
    assert!(takes(&chain, shares(&chain, &[(slot(&chain, 1).0, 9)])));
}

/// It goes on as a node like any other.
#[test]
fn assign_12_a_slow_member_has_no_part_and_has_not_failed() {
    let mut chain = long();
    assert_eq!(chain.parts().count(), 4, "one class, one part each");
    slow(&mut chain, 3);
    let view = chain.ledger.current().unwrap();
    assert!(chain.parts().count() > 6, "more parts than members");
    assert!([0, 1, 2].iter().all(|number| parts_of(&chain, *number).len() > 1));
    assert_eq!(view.passed_over(), [slot(&chain, 3)]);
    assert_eq!(view.passed_over(), passed_over(view.aggregators(), view.classes(), view.parts()));
    (0..3).for_each(|_| chain.finish_round());
    let member = chain.ledger.member(&node(3).id()).unwrap();
    assert_eq!((member.standing, member.failures), (Standing::Active, 0));
    assert!(member.service.leaves > 0, "its leaves count");
}

/// Colluders would choose by their classes who reduces a part with them.
#[test]
fn assign_12_classes_count_where_each_part_has_one_aggregator() {
    let mut manifest = manifest(4);
    manifest.training.rounds = 500;
    manifest.aggregation.replicas = 2;
    let mut chain = Chain::begin_with(manifest);
    chain.reduce_all();
    let view = chain.ledger.current().unwrap();
    assert!(!view.weighs_lines() && view.classes().is_empty());
    assert!(!takes(&chain, shares(&chain, &[(0, 7)])));
    // The same without the second aggregator.
    let mut chain = long();
    chain.reduce_all();
    assert!(chain.ledger.current().unwrap().weighs_lines());
    assert!(takes(&chain, shares(&chain, &[(0, 7)])));
}

#[test]
fn ledger_25_a_part_that_was_left_undone_costs_two_classes() {
    let mut chain = long();
    chain.reduce_all();
    let mut outcome = chain.outcome();
    let part = parts_of(&chain, 2)[0];
    let kept =
        outcome.results.iter().enumerate().map(|(of, result)| result.clone().filter(|_| of != part.index()));
    outcome.results = List::new(kept.collect()).unwrap();
    outcome.seats = List::new(chain.ledger.seats_after(&outcome)).unwrap();
    chain.seal(Body::Outcome(outcome));
    assert_eq!(standing(&chain, &node(2)), Standing::Away);
    assert_eq!([0, 1, 2, 3].map(|number| class(&chain, number)), [8, 8, 6, 8]);
}

/// Otherwise a slow member would only have to go and come back, and rounds would wait for it again.
#[test]
fn ledger_25_who_goes_and_returns_has_the_class_that_it_had() {
    let mut chain = long();
    slow(&mut chain, 3);
    let slow = class(&chain, 3);
    chain.freeze(0..3);
    assert_eq!((standing(&chain, &node(3)), class(&chain, 3)), (Standing::Away, slow));
    let parts = chain.parts().map(|_| slots(0..3)).collect();
    chain.seal(chain.inputs(0, parts));
    chain.seal(Body::Outcome(chain.outcome()));
    let left = class(&chain, 3);
    assert_eq!(left, slow, "it had no part to leave undone");
    for engagement in [Engagement::Rests, Engagement::Trains] {
        let addresses = chain.ledger.member(&node(3).id()).unwrap().addresses.clone();
        let back = Return { height: chain.ledger.height(), addresses, engagement };
        chain.seal(Body::Return(node(3).sign(chain.ledger.run(), &back)));
        assert_eq!(class(&chain, 3), left);
        chain.finish_round();
    }
    assert_eq!(class(&chain, 3), left);
}

#[test]
fn ledger_25_whoever_has_fallen_goes_up_once_in_so_many_rounds_and_no_further_than_it_began() {
    let mut chain = long();
    slow(&mut chain, 3);
    let after = |chain: &mut Chain, rounds: u32| {
        (0..rounds).for_each(|_| chain.finish_round());
        class(chain, 3)
    };
    let first = class(&chain, 3);
    assert_eq!([1, 2, 3].map(|times| first + times), [(); 3].map(|()| after(&mut chain, SHARE_ROUNDS)));
    assert_eq!(after(&mut chain, SHARE_ROUNDS * 6), SHARE_FIRST);
    assert_eq!([0, 1, 2].map(|number| class(&chain, number)), [SHARE_FIRST; 3]);
    assert_eq!(chain.parts().count(), 4, "as in the beginning");
    // Whoever has no part because others are faster goes on: nobody knows how fast it is.
    let mut chain = long();
    while class(&chain, 0) < SHARE_CLASS {
        chain.reduce_all();
        let mut faster: Vec<(u16, u8)> =
            [0, 1, 2].map(|number| (slot(&chain, number).0, class(&chain, number) + 1)).into();
        faster.sort_unstable();
        chain.seal(shares(&chain, &faster));
        chain.seal(Body::Outcome(chain.outcome()));
    }
    assert_eq!(parts_of(&chain, 3), []);
    assert!(after(&mut chain, SHARE_ROUNDS * 3) > SHARE_FIRST);
}
