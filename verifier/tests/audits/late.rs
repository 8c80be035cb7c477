//! Who is late with an audit, and until when.

use super::*;

/// One that audits everything, and forgets nothing in this test.
fn long() -> Manifest {
    let mut manifest = manifest(ALWAYS, 0);
    (manifest.training.rounds, manifest.retention.contributions, manifest.retention.states) = (12, 8, 8);
    manifest
}

fn late(world: &World) -> Vec<MemberId> {
    world.docket.late(&world.ledger).into_iter().collect()
}

/// The first node answers what it was asked about a round.
fn answer(world: &mut World, round: Round) {
    let about = |notice: &&Notice| match notice {
        Notice::Request(signed) => {
            let request = signed.verify(world.run).unwrap();
            (request.target, request.round) == (member(11), round)
        }
        _ => false,
    };
    let request = world.board.iter().find(about).unwrap().clone();
    let root = world.ledger.round(round).unwrap().commitment(Slot(0)).unwrap().commit.root;
    world.nodes[0].conduct = Conduct::Honest;
    let table = world.nodes[0].answer(&world.manifest, root, &request).unwrap();
    world.docket.post(0, &world.ledger, &table).unwrap();
}

#[test]
fn audit_27_a_member_is_late_until_each_audit_has_gone_on_that_waited_for_two_rounds() {
    let mut world = World::new([Conduct::Sleeps, Conduct::Honest], long());
    let (mut audits, mut exact) = (world.audits(), Exact::new(1, None).unwrap());
    world.run(&mut audits);
    world.train(&mut exact);
    world.run(&mut audits);
    assert_eq!(late(&world), [], "one round has begun since it was asked about the first one");
    world.train(&mut exact);
    assert_eq!(late(&world), [member(11)]);
    // Each audit has its own clock: to answer the newest one helps nothing.
    answer(&mut world, Round(1));
    assert_eq!(late(&world), [member(11)]);
    answer(&mut world, Round(0));
    assert_eq!(late(&world), []);
    (0..3).for_each(|_| world.train(&mut exact));
    assert_eq!(late(&world), [], "it is the verifier's turn");
}

#[test]
fn audit_27_who_was_silent_is_late_until_its_leaves_are_recomputed() {
    let mut world = World::new([Conduct::Sleeps, Conduct::Honest], long());
    let mut all = [world.audits()];
    world.run_all(&mut all);
    (0..2).for_each(|_| world.train(&mut Exact::new(1, None).unwrap()));
    let silences = world.docket.silences(1000, &world.ledger);
    assert_eq!(silences.len(), 1);
    silences.into_iter().for_each(|body| world.seal_to(&mut all, body));
    assert_eq!(late(&world), [member(11)]);
    while !world.docket.has_passed(&world.ledger, Round(0), &member(11)) {
        assert!(world.step_among(&mut all, 0).unwrap(), "all its leaves are recomputed");
    }
    assert_eq!(late(&world), []);
}
