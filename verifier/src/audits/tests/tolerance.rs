//! Audits where honest leaves differ: who is near, who leans, who is wrong, and what judges make of verifiers.

use super::*;

/// A run of profile f32 whose groups may deviate by this much.
fn tolerant(epsilon: f32, leaves: u32) -> Manifest {
    let real = |value: f32| Real::new(value).unwrap();
    let mut manifest = manifest(ALWAYS, 0);
    manifest.profile = Profile::F32;
    manifest.tolerance =
        Tolerance { groups: muster_core::codec::List::new(vec![real(epsilon)]).unwrap(), loss: real(1e-5) };
    manifest.training.leaves = leaves;
    manifest.check().unwrap();
    manifest
}

#[test]
fn leaves_that_are_near_pass() {
    let mut world = World::new([Conduct::Honest, Conduct::Adds(30)], tolerant(2e-4, 6));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(world.verdicts(), [(member(11), Finding::Pass), (member(12), Finding::Pass)]);
    assert!(world.accusations.is_empty() && !world.worked.iter().any(|work| work.starts_with("everything")));
}

#[test]
fn leaves_that_are_far_convict() {
    for conduct in [Conduct::FlipsLeaves, Conduct::Adds(400)] {
        let mut world = World::new([Conduct::Honest, conduct], tolerant(2e-4, 6));
        let mut audits = world.audits();
        world.run(&mut audits);
        assert_eq!(world.judged(), [(member(12), FindingKind::LeafMismatch)]);
    }
    let mut world = World::new([Conduct::FlipsTheSum, Conduct::Honest], tolerant(2e-4, 6));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(world.judged(), [(member(11), FindingKind::SumMismatch)]);
}

#[test]
fn a_suspect_leaf_has_all_recomputed_and_convicts_nobody() {
    let mut world = World::new([Conduct::Honest, Conduct::Adds(140)], tolerant(2e-4, 6));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(world.verdicts(), [(member(11), Finding::Pass), (member(12), Finding::Pass)]);
    assert!(world.worked.contains(&"everything of slot 1".to_owned()), "{:?}", world.worked);
    assert!(world.accusations.is_empty() && audits.unfinished_rounds().is_empty());
}

/// TOL-6: each leaf is within what convicts, their sum is not.
#[test]
fn who_leans_the_same_way_in_every_leaf_is_found_out() {
    let mut world = World::new([Conduct::Honest, Conduct::Adds(140)], tolerant(2e-4, 48));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(world.judged(), [(member(12), FindingKind::TotalMismatch)]);
}

#[test]
fn silence_is_looked_into_by_the_committed_integers() {
    for (conduct, guilty) in [(Conduct::HidesAFalseSum, true), (Conduct::Sleeps, false)] {
        let mut world = World::new([conduct, Conduct::Honest], tolerant(2e-4, 6));
        let mut audits = world.audits();
        world.run(&mut audits);
        let silences = world.docket.silences(1000, &world.ledger);
        let events: Vec<Event> = silences.into_iter().map(|body| world.seal(body)).collect();
        audits.take(&world.ledger, &events).unwrap();
        world.run(&mut audits);
        let expected = if guilty { vec![(member(11), FindingKind::TotalMismatch)] } else { Vec::new() };
        assert_eq!(world.judged(), expected);
    }
    let mut world = World::new([Conduct::HidesAFalseSum, Conduct::Honest], tolerant(2e-4, 6));
    let mut audits = world.audits();
    world.run(&mut audits);
    let events =
        world.docket.silences(1000, &world.ledger).into_iter().map(|body| world.seal(body)).collect();
    let events: Vec<Event> = events;
    world.memory.contributions.clear();
    audits.take(&world.ledger, &events).unwrap();
    world.run(&mut audits);
    assert!(world.accusations.is_empty(), "without the integers nothing follows");
    assert_eq!(audits.tally().undecided, 1);
}
