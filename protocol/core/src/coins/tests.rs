use proptest::prelude::*;

use super::*;

fn tree() -> CoinTree {
    CoinTree::new([9; 32], Round(5), 7, 3).unwrap()
}

fn coin(kind: CoinKind, byte: u8) -> Coin {
    Coin { kind, round: Round(1), k: 0, value: Digest([byte; 32]) }
}

#[test]
fn every_coin_opens_and_no_other() {
    let tree = tree();
    let terms = tree.terms();
    assert_eq!(terms.root, tree.root());
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..20 {
        for k in 0..6 {
            for kind in [CoinKind::Node, CoinKind::Leaf] {
                let exists = (5..12).contains(&round) && k < if kind == CoinKind::Node { 1 } else { 3 };
                let opening = tree.open(kind, Round(round), k);
                assert_eq!(opening.is_some(), exists);
                let Some(opening) = opening else { continue };
                let coin = opening.verify(&terms).unwrap();
                assert_eq!((coin.kind(), coin.round(), coin.k()), (kind, Round(round), k));
                assert!(seen.insert(coin.value()));
            }
        }
    }
    assert_eq!(seen.len(), 7 * 4);
}

#[test]
fn a_coin_serves_only_its_place_and_tree() {
    let tree = tree();
    let good = tree.open(CoinKind::Leaf, Round(6), 1).unwrap();
    let rejected = |change: &dyn Fn(&mut CoinOpening, &mut CoinTerms)| {
        let (mut opening, mut terms) = (good.clone(), tree.terms());
        change(&mut opening, &mut terms);
        opening.verify(&terms).is_err()
    };
    assert!(!rejected(&|_, _| ()));
    assert!(rejected(&|opening, _| opening.kind = CoinKind::Node));
    assert!(rejected(&|opening, _| (opening.kind, opening.k) = (CoinKind::Node, 0)));
    assert!(rejected(&|opening, _| opening.round = Round(7)));
    assert!(rejected(&|opening, _| opening.round = Round(4)));
    assert!(rejected(&|opening, _| opening.round = Round(12)));
    assert!(rejected(&|opening, _| opening.k = 2));
    assert!(rejected(&|opening, _| opening.k = 3));
    assert!(rejected(&|opening, _| opening.coin.0[0] ^= 1));
    assert!(rejected(&|_, terms| terms.root.0[0] ^= 1));
    assert!(rejected(&|_, terms| terms.first_round = Round(4)));
    assert!(rejected(&|_, terms| terms.rounds = 8));
    assert!(rejected(&|_, terms| terms.leaf_coins = 4));
    assert!(rejected(&|_, terms| terms.rounds = 0));
    assert!(rejected(&|_, terms| terms.rounds = 1 << 22));
}

#[test]
fn terms_are_bounded() {
    let terms = |first, rounds, leaf_coins| CoinTerms {
        root: Digest::default(),
        first_round: Round(first),
        rounds,
        leaf_coins,
    };
    assert!(terms(0, 1 << 20, 3).check().is_ok());
    assert!(terms(0, (1 << 20) + 1, 3).check().is_err());
    assert!(terms(0, u32::MAX, u16::MAX).check().is_err());
    assert!(terms(0, 0, 3).check().is_err());
    assert!(terms(u32::MAX, 1, 0).check().is_ok());
    assert!(terms(u32::MAX, 2, 0).check().is_err());
    assert!(CoinTree::new([0; 32], Round(0), u32::MAX, 0).is_err());
    let last = CoinTree::new([0; 32], Round(u32::MAX), 1, 0).unwrap();
    assert!(last.open(CoinKind::Node, Round(u32::MAX), 0).unwrap().verify(&last.terms()).is_ok());
}

#[test]
fn selection_keeps_its_rate() {
    let freeze = Digest([3; 32]);
    let node = coin(CoinKind::Node, 4);
    let members: Vec<MemberId> =
        (0..2000u32).map(|n| MemberId(Hasher::new(Domain::RUN).value(&n).finish().0)).collect();
    let hits = |coin: &Coin, ppm| members.iter().filter(|member| selects(coin, &freeze, member, ppm)).count();
    assert_eq!(hits(&node, 1_000_000), 2000);
    assert_eq!(hits(&node, u32::MAX), 2000);
    assert_eq!(hits(&node, 0), 0);
    assert!((500..700).contains(&hits(&node, 300_000)));
    assert_eq!(hits(&coin(CoinKind::Leaf, 4), 1_000_000), 0);
}

#[test]
fn draws_are_even_and_depend_on_everything() {
    let [freeze, table] = [1, 2].map(|byte| Digest([byte; 32]));
    let leaf = |byte| coin(CoinKind::Leaf, byte);
    let mut counts = [0; 10];
    for n in 0..2000u32 {
        let table = Hasher::new(Domain::RUN).value(&n).finish();
        for position in draw(&leaf(1), &freeze, &table, 10, 3) {
            counts[position as usize] += 1;
        }
    }
    assert!(counts.iter().all(|count| (500..700).contains(count)), "{counts:?}");
    let first = draw(&leaf(1), &freeze, &table, 1 << 30, 5);
    assert_ne!(first, draw(&leaf(2), &freeze, &table, 1 << 30, 5));
    assert_ne!(first, draw(&leaf(1), &table, &table, 1 << 30, 5));
    assert_ne!(first, draw(&leaf(1), &freeze, &freeze, 1 << 30, 5));
    assert_eq!(draw(&coin(CoinKind::Node, 1), &freeze, &table, 6, 2), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn coin_5_an_eighth_of_the_leaves_is_drawn_at_least() {
    let drawn = |m, least| drawn_leaves(m, least);
    assert_eq!([1, 7, 8, 9, 16, 17, 64, 255, 256].map(|m| drawn(m, 1)), [1, 1, 1, 2, 2, 3, 8, 32, 32]);
    assert_eq!([1, 4, 32, 40, 256].map(|m| drawn(m, 5)), [1, 4, 5, 5, 32]);
    assert_eq!(drawn(u32::MAX, 1), 32, "whatever a record claims");
}

#[test]
fn inspectors_share_evenly_and_only_what_is_left_moves() {
    let verifiers: Vec<MemberId> = (0..5).map(|byte| MemberId([byte; 32])).collect();
    let mut counts = [0; 5];
    for n in 0..2000u32 {
        let outcome = Hasher::new(Domain::RUN).value(&n).finish();
        for slot in [Slot(0), Slot(200)] {
            let drawn = inspector(&outcome, slot, &verifiers).unwrap();
            let place = usize::from(drawn.0[0]);
            counts[place] += 1;
            let rest: Vec<MemberId> = verifiers.iter().copied().filter(|id| *id != drawn).collect();
            assert_ne!(inspector(&outcome, slot, &rest), Some(drawn));
            let without: Vec<MemberId> =
                verifiers.iter().copied().filter(|id| *id != verifiers[(place + 1) % 5]).collect();
            assert_eq!(inspector(&outcome, slot, &without), Some(drawn), "nobody else's work moves");
        }
    }
    assert!(counts.iter().all(|count| (720..880).contains(count)), "{counts:?}");
    assert_eq!(inspector(&Digest([1; 32]), Slot(0), &[]), None);
}

#[test]
fn rechecks_keep_their_rate_and_share_it() {
    let verdicts: Vec<Digest> = (0..4000u32).map(|n| Hasher::new(Domain::RUN).value(&n).finish()).collect();
    let drawn = |coin: &Coin, ppm, others| verdicts.iter().filter(|v| rechecks(coin, v, ppm, others)).count();
    let node = coin(CoinKind::Node, 4);
    assert_eq!(drawn(&node, 1_000_000, 1), 4000);
    assert_eq!(drawn(&node, 0, 1), 0);
    assert!((330..470).contains(&drawn(&node, 100_000, 1)));
    assert!((330..470).contains(&drawn(&node, 400_000, 4)));
    assert_eq!(drawn(&coin(CoinKind::Leaf, 4), 1_000_000, 1), 0);
    assert_eq!(drawn(&node, 1_000_000, 0), 4000);
}

#[test]
fn known_answers() {
    let tree = tree();
    assert_eq!(
        format!("{:#}", tree.root()),
        "ef55e845d87838253eb0d079c6d958f77f177b62c8d7fff3108c3799cde258ad"
    );
    let opening = tree.open(CoinKind::Leaf, Round(6), 1).unwrap();
    assert_eq!(
        format!("{:#}", opening.coin),
        "7aeddfd2d0c34568d44e99a1d934b52430093fca5de397a05951273cd53e9476"
    );
    let drawn = draw(&opening.verify(&tree.terms()).unwrap(), &Digest([3; 32]), &Digest([4; 32]), 100, 8);
    assert_eq!(drawn, [6, 10, 14, 17, 34, 45, 59, 68, 72, 77, 80, 81, 92]);
    let node = tree.open(CoinKind::Node, Round(6), 0).unwrap().verify(&tree.terms()).unwrap();
    let selected: Vec<u8> =
        (0..16).filter(|byte| selects(&node, &Digest([3; 32]), &MemberId([*byte; 32]), 500_000)).collect();
    assert_eq!(selected, [1, 2, 4, 5, 6, 9, 10, 12, 14, 15]);
}

proptest! {
    #[test]
    fn draws_are_distinct_and_in_range(bytes in any::<[u8; 3]>(), m in any::<u32>(), small in 0u32..300, a in any::<u8>()) {
        let [value, freeze, table] = bytes.map(|byte| Digest([byte; 32]));
        let coin = Coin { kind: CoinKind::Leaf, round: Round(0), k: 0, value };
        for m in [m.max(256), small] {
            let drawn = draw(&coin, &freeze, &table, m, a);
            prop_assert_eq!(drawn.len() as u32, drawn_leaves(m, a));
            prop_assert!(drawn.is_sorted_by(|x, y| x < y));
            prop_assert!(drawn.iter().all(|position| *position < m));
        }
    }
}
