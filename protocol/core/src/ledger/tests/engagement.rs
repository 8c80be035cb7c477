//! LEDGER-24: what a node wants to do.

use super::*;
use crate::limits;
use crate::manifest::Training;
use crate::messages::enrol::Engagement;
use crate::messages::record::Seat;

/// What a node says of itself, at its address.
fn engaged(chain: &Chain, number: u8, engagement: Engagement) -> Body {
    let addresses = chain.ledger.member(&node(number).id()).unwrap().addresses.clone();
    let said = Return { height: chain.ledger.height(), addresses, engagement };
    Body::Return(node(number).sign(chain.ledger.run(), &said))
}

/// The quotas of these seats, by node.
fn quotas(seats: &[Seat]) -> Vec<(u8, u32)> {
    let number = |id| (0..20).find(|number| node(*number).id() == id).unwrap();
    seats.iter().map(|seat| (number(seat.member), seat.quota)).collect()
}

#[test]
fn ledger_24_whoever_rests_has_no_seat_from_the_next_round_on_and_has_not_failed() {
    let mut chain = Chain::begin();
    chain.seal(engaged(&chain, 3, Engagement::Rests));
    // It has committed to nothing yet, and owes this round as the others do.
    assert_eq!(chain.ledger.current().unwrap().seats().len(), 4);
    assert!(!takes(&chain, engaged(&chain, 3, Engagement::Trains)), "once a round");
    chain.finish_round();
    assert_eq!(chain.ledger.current().unwrap().seats().len(), 3);
    chain.finish_round();
    let member = chain.ledger.member(&node(3).id()).unwrap();
    assert_eq!((member.standing, member.failures, member.standing_word()), (Standing::Active, 0, "resting"));
    chain.seal(engaged(&chain, 3, Engagement::Trains));
    assert_eq!(chain.ledger.current().unwrap().seats().len(), 3, "from the next round on");
    chain.finish_round();
    assert_eq!(chain.ledger.current().unwrap().seats().len(), 4);
}

/// To say so in a round is no way out of it.
#[test]
fn ledger_24_whoever_says_that_it_rests_fails_in_a_round_that_it_lets_wait() {
    let mut chain = Chain::begin();
    chain.seal(engaged(&chain, 3, Engagement::Rests));
    chain.freeze(0..3);
    let member = chain.ledger.member(&node(3).id()).unwrap();
    assert_eq!((member.standing, member.failures), (Standing::Away, 1));
}

#[test]
fn ledger_24_a_supporter_combines_parts_and_has_no_leaves() {
    let mut chain = Chain::begin();
    let before = quotas(chain.ledger.current().unwrap().seats());
    chain.seal(engaged(&chain, 1, Engagement::Supports));
    chain.finish_round();
    let view = chain.ledger.current().unwrap().clone();
    let now = quotas(view.seats());
    assert_eq!(now.last(), Some(&(1, 0)), "behind the others");
    let sum = |quotas: &[(u8, u32)]| quotas.iter().map(|(_, quota)| quota).sum::<u32>();
    assert_eq!(sum(&now), sum(&before), "the others share its leaves");
    assert!(view.aggregators().contains(&Slot(3)) && !view.trains(Slot(3)));
    let commit = chain.commit(1, 1);
    assert_eq!(
        chain.refusal(chain.frozen(vec![commit])),
        Some(Reject::Rule("a commitment sums 1 to quota leaves"))
    );
    // Nobody misses a commitment of it.
    chain.finish_round();
    let member = chain.ledger.member(&node(1).id()).unwrap();
    assert_eq!((member.standing, member.failures, member.pace), (Standing::Active, 0, QUOTA));
}

#[test]
fn ledger_24_supporters_alone_have_no_round() {
    let mut chain = Chain::begin();
    for number in 0..4 {
        chain.seal(engaged(&chain, number, Engagement::Supports));
    }
    chain.reduce_all();
    assert!(chain.ledger.seats_after(&chain.outcome()).is_empty());
}

/// No record opens a round before one of them trains again.
#[test]
fn ledger_24_where_all_rest_whoever_trains_again_begins_the_next_round() {
    let mut chain = Chain::begin();
    (0..4).for_each(|number| drop(chain.seal(engaged(&chain, number, Engagement::Rests))));
    assert!(!takes(&chain, engaged(&chain, 0, Engagement::Trains)), "once a round");
    chain.finish_round();
    assert_eq!(chain.ledger.stage(), Stage::Gathering);
    assert!(!takes(&chain, engaged(&chain, 0, Engagement::Supports)), "nobody could begin for that");
    chain.seal(engaged(&chain, 0, Engagement::Trains));
    assert!(!takes(&chain, engaged(&chain, 0, Engagement::Rests)), "once while the run gathers");
    chain.seal(Body::Begin(List::new(chain.ledger.derived_seats()).unwrap()));
    assert_eq!(chain.ledger.current().unwrap().seats().len(), 1);
}

#[test]
fn ledger_24_a_supporter_whose_results_are_sealed_is_forgiven_as_others_are() {
    let mut chain = Chain::begin_with(Manifest {
        training: Training { rounds: 2 * limits::FORGIVING, ..manifest(4).training },
        ..manifest(4)
    });
    chain.freeze([0, 2, 3]);
    let counted = chain.parts().map(|_| slots([0, 2, 3])).collect();
    chain.seal(chain.inputs(0, counted));
    chain.seal(Body::Outcome(chain.outcome()));
    chain.seal(engaged(&chain, 1, Engagement::Supports));
    let failures = |chain: &Chain| chain.ledger.member(&node(1).id()).unwrap().failures;
    // It has no seat in the round under way.
    for _ in 0..=limits::FORGIVING {
        assert_eq!(failures(&chain), 1);
        chain.finish_round();
    }
    assert_eq!(failures(&chain), 0);
}

/// Keys without an address that compute nothing must not keep the steward from standing in.
#[test]
fn round_39_supporters_bring_no_contributions() {
    let mut wide = manifest(4);
    wide.model.vocabulary = 70_000;
    wide.model.width = 4096;
    let bytes = 4 * Layout::of_run(&wide).coefficients() as u64;
    assert!((3 * bytes..4 * bytes).contains(&limits::STOOD_IN_BYTES), "{bytes}");
    let mut chain = undialled_with(wide, [false; 4]);
    assert!(!chain.ledger.current().unwrap().is_stood_in(), "four are too many");
    chain.seal(engaged(&chain, 3, Engagement::Supports));
    chain.freeze(0..4);
    chain.seal(chain.inputs(0, Vec::new()));
    chain.seal(Body::Outcome(chain.outcome()));
    assert!(chain.ledger.current().unwrap().is_stood_in());
}

/// As an aggregator it is held to its parts: otherwise a key could let rounds wait for free.
#[test]
fn ledger_24_without_weight_a_supporter_has_no_seat() {
    let mut chain = with_newcomers();
    chain.seal(engaged(&chain, 5, Engagement::Supports));
    chain.seal(engaged(&chain, 0, Engagement::Supports));
    chain.reduce_all();
    let seats = quotas(&chain.ledger.seats_after(&chain.outcome()));
    assert!(seats.iter().all(|(number, _)| *number != 5));
    assert_eq!(seats.iter().filter(|(_, quota)| *quota == 0).collect::<Vec<_>>(), [&(0, 0)]);
}

#[test]
fn ledger_24_verifiers_choose_nothing() {
    let mut chain = Chain::begin();
    chain.finish_round();
    let (run, height, addresses) = (chain.ledger.run(), chain.ledger.height(), List::default());
    let rests = Return { height, addresses, engagement: Engagement::Rests };
    assert_eq!(
        chain.refusal(Body::Return(verifier(0).sign(run, &rests))),
        Some(Reject::Rule("only a node says what it wants to do"))
    );
}
