//! Coins before their time and out of their place, and a verifier that hunts one member and looks away from the rest.

use muster_core::coins::{CoinKind, CoinOpening};
use muster_core::messages::audit::Verdict;
use muster_core::messages::record::Idle;
use muster_core::sign::Signed;

use super::*;

fn opened(kind: CoinKind, round: u32, k: u16) -> CoinOpening {
    coin_tree(21).open(kind, Round(round), k).unwrap()
}

fn freeze(world: &World) -> Digest {
    world.ledger.round(Round(0)).unwrap().freeze_digest().unwrap()
}

/// A request by the first verifier about the node of this number.
fn request(world: &World, target: u8, coin: CoinOpening) -> Signed<AuditRequest> {
    let freeze = freeze(world);
    id(21)
        .sign(world.run, &AuditRequest { round: Round(0), freeze, target: member(target), coin: Some(coin) })
}

fn duty(world: &World, freeze: Digest, coin: CoinOpening) -> Signed<Duty> {
    id(21).sign(world.run, &Duty { round: Round(0), freeze, coin })
}

// COIN-7: "A coin MUST NOT be shown before the Outcome of its round is sealed and the round is echoed (AUDIT-1)."
#[test]
fn coin_7_no_coin_is_taken_before_its_round_is_over_and_echoed() {
    let world = World::new([Conduct::Honest; 2], manifest(ALWAYS, 0));
    let coin = || opened(CoinKind::Node, 0, 0);
    let (asked, shown) = (request(&world, 11, coin()), duty(&world, freeze(&world), coin()));
    assert!(world.ledger.check_request(&asked).is_ok() && world.ledger.check_duty(&shown).is_ok());
    // A round that counts nobody, of which one node has heard.
    let mut half_echoed = world.past[world.past.len() - 2].clone();
    let inputs = half_echoed.record(world.inputs(&half_echoed, &[]));
    half_echoed.apply(&world.steward.sign(world.run, &inputs)).unwrap();
    let outcome = half_echoed.record(Body::Outcome(world.outcome(&half_echoed, 1)));
    half_echoed.apply(&world.steward.sign(world.run, &outcome)).unwrap();
    for ledger in world.past.iter().chain([&half_echoed]) {
        let notices = [Notice::Request(asked.clone()), Notice::Duty(shown.clone())];
        for notice in notices {
            assert!(Docket::default().post(0, ledger, &notice).is_err(), "{:?}", ledger.stage());
        }
    }
}

// COIN-7: "It MUST NOT be used under a second R_t".
#[test]
fn coin_7_a_coin_is_not_used_under_another_freeze() {
    let world = World::new([Conduct::Honest; 2], manifest(ALWAYS, 0));
    let other = Digest([3; 32]);
    assert!(world.ledger.check_duty(&duty(&world, other, opened(CoinKind::Node, 0, 0))).is_err());
    let asked = AuditRequest {
        freeze: other,
        ..(*request(&world, 11, opened(CoinKind::Node, 0, 0)).verify(world.run).unwrap()).clone()
    };
    assert!(world.ledger.check_request(&id(21).sign(world.run, &asked)).is_err());
    // Its owner writes down under which one it was shown: also a restarted process shows it under no other.
    let coins = || {
        let home = Home::open(&world.home.path().join("coins")).unwrap();
        Coins::new(coin_tree(21), Arc::new(Journaled::new(Arc::new(Journal::open(&home).unwrap()))))
    };
    std::fs::create_dir_all(world.home.path().join("coins")).unwrap();
    assert!(coins().show_node(Round(0), &freeze(&world)).unwrap().is_some());
    assert!(coins().show_node(Round(0), &other).unwrap().is_none());
    assert!(coins().show_node(Round(0), &freeze(&world)).unwrap().is_some());
}

// COIN-8: "The leaf coin of an audit is number k = slot of the audited member."
#[test]
fn coin_8_a_verdict_shows_the_coin_of_its_own_audit_and_no_other() {
    let mut world = World::new([Conduct::Honest; 2], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    audits.take(&world.ledger, &[]).unwrap();
    let honest = loop {
        let message = audits.next_message(&|_| true);
        let verdict = message.and_then(|message| match message {
            Message::Notice((_, slot), notice) => match *notice {
                Notice::Verdict(signed) => Some((slot, signed)),
                _ => None,
            },
            _ => None,
        });
        match verdict {
            Some(found) => break found,
            None => assert!(world.step(&mut audits).unwrap(), "a verdict is given"),
        }
    };
    let (slot, signed) = honest;
    let verdict = signed.verify(world.run).unwrap();
    let others = [
        opened(CoinKind::Leaf, 0, 1 - slot.0),
        opened(CoinKind::Leaf, 1, slot.0),
        opened(CoinKind::Node, 0, 0),
        coin_tree(22).open(CoinKind::Leaf, Round(0), slot.0).unwrap(),
    ];
    for coin in others {
        let other = id(21).sign(world.run, &Verdict { coin, ..(*verdict).clone() });
        assert!(world.docket.post(0, &world.ledger, &Notice::Verdict(other)).is_err());
    }
    assert!(world.docket.post(0, &world.ledger, &Notice::Verdict(signed)).is_ok());
}

#[test]
fn whoever_the_coin_does_not_select_is_not_to_be_asked() {
    // A coin that selects the first node and not the second one.
    let selected = |world: &World| {
        let asks = |target| world.ledger.check_request(&request(world, target, opened(CoinKind::Node, 0, 0)));
        (asks(11).is_ok(), asks(12).map_err(|reject| reject.to_string()))
    };
    let worlds = (0..64).map(|nonce| {
        World::new([Conduct::Honest; 2], Manifest { nonce: [nonce; 16], ..manifest(ALWAYS / 2, 0) })
    });
    let hunted = worlds.map(|world| selected(&world)).find(|(first, second)| *first && second.is_err());
    let (_, why) = hunted.expect("some nonce of 64 selects one of two");
    assert!(why.unwrap_err().contains("the coin does not select this member"));
}

#[test]
fn one_that_hunts_a_member_and_leaves_the_others_out_is_idle() {
    let mut world = shared([Conduct::Honest, Conduct::FlipsLeaves], true);
    let mut all = [world.audits_of(21), world.audits_of(22)];
    all.iter_mut().for_each(|audits| audits.take(&world.ledger, &[]).unwrap());
    // The first one keeps for itself what it owes about the second node.
    loop {
        match all[0].next_message(&|_| true) {
            Some(message @ Message::Notice((_, Slot(1)), _)) => all[0].told(&message),
            _ if !world.step_among(&mut all, 0).unwrap() => break,
            _ => {}
        }
    }
    assert_eq!(world.verdicts(), [(member(11), Finding::Pass)]);
    // Nor may it ask its prey again.
    let again = request(&world, 11, opened(CoinKind::Node, 0, 0));
    assert!(world.docket.post(0, &world.ledger, &Notice::Request(again)).is_err());
    world.run_all(&mut all[1..]);
    assert!(world.docket.idles(0, &world.ledger).is_empty());
    let idles = world.docket.idles(2000, &world.ledger);
    assert_eq!(idles, [Body::Idle(Idle { verifier: member(21), round: Round(0) })]);
    idles.into_iter().for_each(|body| world.seal_to(&mut all, body));
    world.run_all(&mut all[1..]);
    assert_eq!(world.judged(), [(member(12), FindingKind::LeafMismatch)], "the other one took over");
}
