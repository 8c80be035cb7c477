//! What the silence of a member is about, and what ends it.

use muster_core::messages::record::{Ban, Rewind};

use super::*;

/// Two rounds back nobody answers any more: A is 1.
fn brief() -> Manifest {
    let mut manifest = manifest(ALWAYS, 0);
    (manifest.training.rounds, manifest.retention.states) = (8, 2);
    manifest
}

/// Seals the silences that are due, and gives member and round of each.
pub(super) fn silenced(world: &mut World, now: u64) -> Vec<(MemberId, Round)> {
    let silences = world.docket.silences(now, &world.ledger);
    let about = |world: &mut World, body: Body| {
        let Body::Silence(signed) = &body else { panic!("{body:?}") };
        let request = signed.verify(world.run).unwrap();
        world.seal(body.clone());
        (request.target, request.round)
    };
    silences.into_iter().map(|body| about(world, body)).collect()
}

/// AUDIT-8: a case that nobody answers for any more keeps no younger one of the same member open for ever.
#[test]
fn silence_is_about_what_is_still_to_be_answered() {
    let mut world = World::new([Conduct::Sleeps; 2], brief());
    let mut audits = world.audits();
    world.run(&mut audits);
    world.train(&mut Exact::new(1, None).unwrap());
    world.run(&mut audits);
    assert_eq!(world.requests().len(), 4, "two rounds");
    assert!(!world.ledger.is_answerable(Round(0)));
    let mut silent = silenced(&mut world, 1000);
    silent.sort_unstable();
    let mut both = [11, 12].map(|number| (member(number), Round(1)));
    both.sort_unstable();
    assert_eq!(silent, both);
}

/// The state went back, member 12 is banned for it, and member 11 has yet to answer about round 0.
pub(super) fn gone_back() -> (World, Audits) {
    let mut manifest = brief();
    manifest.rollback = Rollback { limit: real(0.5), most_rounds: 4, spacing: 4 };
    let mut world = World::new([Conduct::Sleeps; 2], manifest);
    let mut audits = world.audits();
    world.run(&mut audits);
    let evidence = Digest([7; 32]);
    let effective = world.ledger.first_round_without();
    world.seal(Body::Ban(Ban {
        culprit: member(12),
        effective,
        round: Round(0),
        finding: FindingKind::TotalMismatch,
        evidence,
        accuser: member(21),
        jury: Jury::default(),
    }));
    let state = world.ledger.state_before(Round(0)).unwrap().clone();
    world.seal(Body::Rewind(Rewind { to: Round(0), state, evidence }));
    assert!(world.docket.idles(0, &world.ledger).is_empty());
    (world, audits)
}

/// AUDIT-26: a Rewind goes on one round further, and no case is out of reach by that.
#[test]
fn a_rewind_leaves_who_is_silent_to_be_sealed_so() {
    let (mut world, _) = gone_back();
    assert_eq!(world.docket.oldest_open(&world.ledger), Some(Round(0)), "it holds the next round back");
    assert_eq!(silenced(&mut world, 1000), [(member(11), Round(0))]);
}

#[test]
fn a_member_that_was_silent_to_one_that_is_gone_may_come_back() {
    let mut world = shared([Conduct::Sleeps, Conduct::Honest], true);
    let mut all = [world.audits_of(21), world.audits_of(22)];
    world.run_all(&mut all);
    world.docket.idles(1000, &world.ledger);
    let silences = world.docket.silences(1000, &world.ledger);
    assert_eq!(silences.len(), 1);
    assert!(world.docket.idles(9000, &world.ledger).is_empty(), "it is not the verifier's turn");
    for body in silences {
        world.seal_to(&mut all, body);
    }
    assert!(matches!(world.ledger.member(&member(11)).unwrap().standing, Standing::Silent(_)));
    assert!(all[1].next_work(&|_| true).is_none(), "its inspector alone recomputes everything");
    assert!(all[0].next_work(&|_| true).is_some());
    let ban = ban(&world);
    world.seal_to(&mut all, ban);
    assert_eq!(world.ledger.member(&member(11)).unwrap().standing, Standing::Away);
    assert!(all[1].next_work(&|_| true).is_some(), "what was silent is recomputed by the next one");
}

/// AUDIT-8: whose leaves were recomputed meanwhile is back with whatever it answers.
#[test]
fn an_answer_after_everything_was_recomputed_ends_the_silence() {
    let mut world = World::new([Conduct::Sleeps, Conduct::Honest], manifest(ALWAYS, 0));
    let mut all = [world.audits()];
    world.run_all(&mut all);
    for body in world.docket.silences(1000, &world.ledger) {
        world.seal_to(&mut all, body);
    }
    world.run_all(&mut all);
    assert!(world.docket.has_passed(&world.ledger, Round(0), &member(11)), "by all its leaves");
    world.nodes[0].conduct = Conduct::Honest;
    let root = world.ledger.round(Round(0)).unwrap().commitment(Slot(0)).unwrap().commit.root;
    let asked = |notice: &&Notice| match notice {
        Notice::Request(signed) => signed.verify(world.run).unwrap().target == member(11),
        _ => false,
    };
    let request = world.board.iter().find(asked).unwrap().clone();
    let table = world.nodes[0].answer(&world.manifest, root, &request).unwrap();
    let back = world.docket.post(1000, &world.ledger, &table).unwrap();
    assert!(matches!(back, Some(Body::Answered(_))), "{back:?}");
    world.seal_to(&mut all, back.unwrap());
    let standing = world.ledger.member(&member(11)).unwrap().standing;
    assert!(!matches!(standing, Standing::Silent(_)), "{standing:?}");
}

#[test]
fn ledger_11_a_silence_is_about_a_due_request_of_a_member_that_is_there() {
    let mut world = shared([Conduct::Sleeps, Conduct::Honest], true);
    let mut all = [world.audits_of(21), world.audits_of(22)];
    world.run_all(&mut all);
    let due = world.silence(0);
    let sealed = |world: &World, body: &Body| {
        let record = world.steward.sign(world.run, &world.ledger.record(body.clone()));
        world.ledger.clone().apply(&record).is_ok()
    };
    assert!(sealed(&world, &due));
    // The second verifier does not inspect this contribution, so nobody has to answer it.
    let Body::Silence(asked) = &due else { panic!("{due:?}") };
    let asked = asked.verify(world.run).unwrap().into_inner();
    let other = Body::Silence(id(22).sign(world.run, &asked));
    assert!(!sealed(&world, &other));
    world.seal(due.clone());
    assert!(!sealed(&world, &due), "who is silent already is not so once more");
}
