//! Audits of one verifier, with leaves that are really computed: what it asks, finds and says.
#![allow(clippy::unwrap_used)] // the helpers, too, are tests

use std::sync::Arc;

use muster_compute::{Exact, Path};
use muster_core::audit::docket::Docket;
use muster_core::audit::{Judgement, judge};
use muster_core::codec::Real;
use muster_core::coins::CoinTree;
use muster_core::contribution::PackedContribution;
use muster_core::ids::{Digest, MemberId, Round, Slot};
use muster_core::layout::Layout;
use muster_core::ledger::{Event, Ledger, Standing};
use muster_core::manifest::{Manifest, Profile, Rollback, Tolerance};
use muster_core::messages::audit::{
    AuditRequest, Duty, Finding, FindingKind, Jury, Results, Rows, TableOpening, TableSeal, table_seal,
};
use muster_core::messages::enrol::{Enrol, Invitation, InvitationSecret, Leave, Role};
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::Body;
use muster_core::messages::wire::Notice;
use muster_roles::verifier::audits::{Audits, Done, Message, Stop, Tally, WorkKind};
use muster_roles::verifier::coins::Coins;
use muster_store::home::Home;
use muster_store::journal::Journal;
use muster_verifier::Journaled;

mod coins;
mod duty;
mod late;
mod node;
mod silence;
mod tolerance;
mod verdicts;
mod world;

use node::{Conduct, Node};
use world::{ALWAYS, World, ban, coin_tree, id, manifest, member, real, shared};

#[test]
fn honest_nodes_pass() {
    let mut world = World::new([Conduct::Honest; 2], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(world.verdicts(), [(member(11), Finding::Pass), (member(12), Finding::Pass)]);
    assert_eq!(audits.tally(), Tally { passed: 2, guilty: 0, undecided: 0 });
    assert!(world.accusations.is_empty());
    assert!(world.docket.has_passed(&world.ledger, Round(0), &member(11)) && world.open() == 0);
    assert!(audits.unfinished_rounds().is_empty());
}

#[test]
fn a_false_leaf_convicts_its_author_alone() {
    let mut world = World::new([Conduct::Honest, Conduct::FlipsLeaves], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    world.run(&mut audits);
    let guilty = Finding::Guilty(FindingKind::LeafMismatch);
    assert_eq!(world.verdicts(), [(member(11), Finding::Pass), (member(12), guilty)]);
    assert_eq!(world.judged(), [(member(12), FindingKind::LeafMismatch)]);
    assert_eq!(audits.tally(), Tally { passed: 1, guilty: 1, undecided: 0 });
}

#[test]
fn a_false_sum_convicts_its_author_alone() {
    let mut world = World::new([Conduct::FlipsTheSum, Conduct::Honest], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(world.judged(), [(member(11), FindingKind::SumMismatch)]);
    assert_eq!(audits.tally().passed, 1);
}

#[test]
fn a_sum_that_is_not_to_be_had_is_recomputed() {
    let mut world = World::new([Conduct::FlipsTheSum, Conduct::Honest], manifest(ALWAYS, 0));
    world.memory.contributions.clear();
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(world.judged(), [(member(11), FindingKind::TotalMismatch)]);
    let guilty = Finding::Guilty(FindingKind::TotalMismatch);
    assert_eq!(world.verdicts(), [(member(11), guilty), (member(12), Finding::Pass)]);
}

/// AUDIT-7: integers that add up with the table, and have not the frozen root, are nobody's F(Q).
#[test]
fn audit_7_a_sum_that_was_not_committed_to_is_not_believed() {
    let mut world = World::new([Conduct::FlipsTheSum, Conduct::Honest], manifest(ALWAYS, 0));
    // What it shows now is the true sum of its leaves; what it committed to is not.
    let layout = Layout::of_run(&world.manifest);
    let shown = world.memory.contributions.get_mut(&(Round(0), member(11))).unwrap();
    let q: Vec<i32> = shown.whole(&layout).unwrap().iter().map(|q| -q).collect();
    *shown = Arc::new(PackedContribution::new(&layout, &q));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(world.judged(), [(member(11), FindingKind::TotalMismatch)]);
    assert!(world.verdicts().contains(&(member(12), Finding::Pass)), "the committed sum is believed");
}

#[test]
fn silence_has_every_leaf_recomputed() {
    let mut world = World::new([Conduct::HidesAFalseSum, Conduct::Sleeps], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert!(world.accusations.is_empty() && world.worked.is_empty());
    let silences = world.docket.silences(1000, &world.ledger);
    assert_eq!(silences.len(), 2);
    let events: Vec<Event> = silences.into_iter().map(|body| world.seal(body)).collect();
    audits.take(&world.ledger, &events).unwrap();
    world.run(&mut audits);
    assert_eq!(world.worked, ["everything of slot 0", "second opinion of slot 0", "everything of slot 1"]);
    assert_eq!(world.judged(), [(member(11), FindingKind::TotalMismatch)]);
    assert_eq!(audits.tally(), Tally { passed: 1, guilty: 1, undecided: 0 });
    // AUDIT-25: both are said, so that the one case is closed by its credit, and the other one by what is found.
    assert_eq!(world.docket.credits().len(), 1);
    let charges = world.docket.charges(&world.ledger);
    assert!(
        matches!(&charges[..], [(accuser, Evidence::Total(total))] if *accuser == member(21) && total.culprit == member(11))
    );
    assert_eq!(world.open(), 1, "the one that is charged");
    world.docket.dismiss(Round(0), &member(11), &member(21));
    assert_eq!(world.open(), 0);
}

#[test]
fn audit_8_silence_to_one_request_has_all_that_was_asked_recomputed() {
    let mut world = World::new([Conduct::HidesAFalseSum, Conduct::Sleeps], manifest(ALWAYS, 0));
    world.train(&mut Exact::new(1, None).unwrap());
    let mut audits = world.audits();
    world.run(&mut audits);
    let target = |world: &World, body: &Body| match body {
        Body::Silence(request) => request.verify(world.run).unwrap().target,
        other => panic!("{other:?}"),
    };
    let silences = world.docket.silences(1000, &world.ledger);
    let [first, second] = silences.try_into().expect("one of each member, of two rounds");
    let (silent, other) = (target(&world, &first), target(&world, &second));
    assert_ne!(silent, other, "a second one of the same member would be refused");
    let event = world.seal(first);
    audits.take(&world.ledger, &[event]).unwrap();
    world.run(&mut audits);
    let slot = world.nodes.iter().position(|node| node.identity.id() == silent).unwrap();
    let everything = format!("everything of slot {slot}");
    assert_eq!(world.worked.iter().filter(|work| **work == everything).count(), 2, "{:?}", world.worked);
    // The other one's was not sealed: its second audit brings another one, after as long.
    assert!(world.docket.silences(1999, &world.ledger).is_empty());
    let again = world.docket.silences(2000, &world.ledger);
    assert_eq!(again.iter().map(|body| target(&world, body)).collect::<Vec<_>>(), [other]);
    world.seal(second);
    assert!(world.docket.silences(9000, &world.ledger).is_empty(), "no second silence is sealed");
}

#[test]
fn leaving_answers_no_audit() {
    let mut world = World::new([Conduct::HidesAFalseSum, Conduct::Sleeps], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert!(world.worked.is_empty());
    for secret in [11, 12] {
        let leave = Leave { height: world.ledger.height() };
        let event = world.seal(Body::Leave(id(secret).sign(world.run, &leave)));
        audits.take(&world.ledger, &[event]).unwrap();
    }
    assert!(world.docket.silences(1000, &world.ledger).is_empty());
    world.run(&mut audits);
    assert_eq!(world.worked, ["everything of slot 0", "second opinion of slot 0", "everything of slot 1"]);
    assert_eq!(world.judged(), [(member(11), FindingKind::TotalMismatch)]);
}

#[test]
fn the_final_audit_asks_everyone() {
    let mut world = World::new([Conduct::Honest, Conduct::FlipsLeaves], manifest(0, 1));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(world.verdicts().len(), 2);
    assert_eq!(world.judged(), [(member(12), FindingKind::LeafMismatch)]);
    let mut world = World::new([Conduct::Honest, Conduct::FlipsLeaves], manifest(0, 0));
    let mut audits = world.audits();
    world.run(&mut audits);
    // DUTY-2: it is shown whomever it selects.
    assert!(world.requests().is_empty() && world.board.len() == 1, "the coin is shown, and selects nobody");
}

#[test]
fn a_machine_that_computes_wrongly_accuses_nobody() {
    let mut world = World::new([Conduct::Honest; 2], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    audits.take(&world.ledger, &[]).unwrap();
    while audits.next_message(&|_| true).is_some() {
        world.step(&mut audits).unwrap();
    }
    let work = audits.next_work(&|_| true).unwrap();
    let Done::Leaves(results) = world.worker.perform(&work, &mut world.memory) else { panic!() };
    let mut wrong = results.into_inner();
    wrong[0].row.loss ^= 1;
    audits.worked(&work, Done::Leaves(Results::new(wrong).unwrap())).unwrap();
    let stop = loop {
        match world.step(&mut audits) {
            Ok(more) => assert!(more),
            Err(stop) => break stop,
        }
    };
    assert!(matches!(stop, Stop::Faulty(_)), "{stop:?}");
    assert!(world.accusations.is_empty() && world.verdicts().is_empty());
}

#[test]
fn an_accusation_lasts_until_the_ban() {
    let mut world = World::new([Conduct::Honest, Conduct::FlipsLeaves], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert!(audits.next_message(&|_| true).is_none());
    audits.remind();
    assert!(matches!(audits.next_message(&|_| true), Some(Message::Accuse(_))));
    let ban = muster_core::messages::record::Ban {
        culprit: member(12),
        effective: world.ledger.first_round_without(),
        round: Round(0),
        finding: FindingKind::LeafMismatch,
        evidence: world.accusations[0].digest(),
        accuser: member(21),
        jury: Jury::default(),
    };
    let events = [world.seal(Body::Ban(ban))];
    audits.take(&world.ledger, &events).unwrap();
    audits.remind();
    assert!(audits.next_message(&|_| true).is_none());
    // Neither does a restart bring it back.
    let evidence = Box::new(world.accusations[0].clone());
    audits.accuse(&world.ledger, evidence);
    assert!(audits.next_message(&|_| true).is_none());
}

#[test]
fn killed_at_any_step_it_goes_on_with_the_same_words() {
    let whole = {
        let mut world = World::new([Conduct::Honest, Conduct::FlipsLeaves], manifest(ALWAYS, 0));
        let mut audits = world.audits();
        world.run(&mut audits);
        world.board.len()
    };
    for steps in 0..14 {
        let mut world = World::new([Conduct::Honest, Conduct::FlipsLeaves], manifest(ALWAYS, 0));
        let mut audits = world.audits();
        audits.take(&world.ledger, &[]).unwrap();
        for _ in 0..steps {
            world.step(&mut audits).unwrap();
        }
        drop(audits);
        let mut audits = world.audits();
        let seen: Vec<Event> =
            world.board.iter().map(|notice| Event::Notice(Box::new(notice.clone()))).collect();
        audits.take(&world.ledger, &seen).unwrap();
        world.accusations.clear();
        // The docket would refuse, and `post` panic, if a step were said twice; a guilty verdict may be.
        let judged = world.board.iter().filter(|notice| matches!(notice, Notice::Verdict(_))).count();
        if judged < 2 {
            world.run(&mut audits);
            assert_eq!(world.board.len(), whole, "killed after {steps} steps");
            assert_eq!(world.judged(), [(member(12), FindingKind::LeafMismatch)]);
        }
    }
}

#[test]
fn a_shown_leaf_coin_is_not_used_for_another_table() {
    let mut world = World::new([Conduct::FlipsLeaves, Conduct::Honest], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(world.verdicts().len(), 2);
    // The steward lost its board, the verifier its memory; both nodes seal other tables than those that were drawn from.
    drop(audits);
    (world.docket, world.board) = (Docket::default(), Vec::new());
    world.nodes.iter_mut().for_each(|node| node.salt += 100);
    world.accusations.clear();
    world.worked.clear();
    let mut audits = world.audits();
    world.run(&mut audits);
    assert!(
        world.worked.contains(&"everything of slot 0".to_owned())
            && world.worked.contains(&"everything of slot 1".to_owned())
    );
    assert_eq!(
        world.judged(),
        [(member(11), FindingKind::TotalMismatch)],
        "the one who lies is found out all the same"
    );
    // The other one passes by all its leaves: nothing is left that would make an honest verifier idle.
    assert!(world.verdicts().contains(&(member(12), Finding::Pass)), "{:?}", world.verdicts());
}

#[test]
fn a_new_board_hears_everything_again() {
    let mut world = World::new([Conduct::Honest, Conduct::Sleeps], manifest(0, 1));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(audits.tally().passed, 1);
    (world.docket, world.board) = (Docket::default(), Vec::new());
    world.nodes[1].conduct = Conduct::Honest;
    audits.board_changed(&world.ledger);
    world.run(&mut audits);
    assert_eq!(world.verdicts(), [(member(11), Finding::Pass), (member(12), Finding::Pass)]);
    assert_eq!(world.open(), 0);
}

#[test]
fn nobody_is_asked_what_cannot_be_followed_up() {
    let world = World::new([Conduct::Honest; 2], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    audits.take(&world.ledger, &[]).unwrap();
    let coin = audits.next_message(&|_| false).unwrap();
    assert!(matches!(coin, Message::Say(_)), "{coin:?}");
    audits.told(&coin);
    assert!(audits.next_message(&|_| false).is_none());
    assert!(audits.next_message(&|_| true).is_some());
}

#[test]
fn forged_steps_are_ignored() {
    let mut world = World::new([Conduct::Honest; 2], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    audits.take(&world.ledger, &[]).unwrap();
    world.step(&mut audits).unwrap();
    let Some(Message::Notice(_, notice)) = audits.next_message(&|_| true) else { panic!() };
    let Notice::Request(request) = *notice else { panic!() };
    let view = world.ledger.round(Round(0)).unwrap();
    let root = view.commitment(Slot(0)).unwrap().commit.root;
    let table = TableSeal {
        request: request.digest(),
        round: Round(0),
        freeze: view.freeze_digest().unwrap(),
        root,
        seal: Digest([9; 32]),
    };
    let run = world.run;
    let posted =
        |signer: u8, table: &TableSeal| Event::Notice(Box::new(Notice::Table(id(signer).sign(run, table))));
    let wrong = [
        posted(12, &table),
        posted(11, &TableSeal { root: Digest([1; 32]), ..table.clone() }),
        posted(11, &TableSeal { round: Round(1), ..table.clone() }),
        posted(11, &TableSeal { request: Digest([1; 32]), ..table.clone() }),
    ];
    audits.take(&world.ledger, &wrong).unwrap();
    assert!(audits.next_work(&|_| true).is_none());
    let events = [posted(11, &table)];
    audits.take(&world.ledger, &events).unwrap();
    assert!(audits.next_work(&|_| true).is_some());
    world.worked.clear();
}
