//! What the steward takes, refuses, promises and does again after a restart.

use muster_core::codec::List;
use muster_core::ids::{Digest, MemberId, Part, Round};
use muster_core::ledger::Stage;
use muster_core::messages::enrol::CloseTree;
use muster_core::messages::record::{Ban, Body, Record};
use muster_core::messages::round::{Commit, Echo, Receipt};
use muster_core::messages::wire::{Notice, PutBlocks, Request, Response};
use muster_core::sign::{Signed, Verified};
use muster_roles::steward::{Question, Steward, StewardEffect, StewardInput, StewardSetup};

use super::run::{LONG, Run, commit, identity, roots};

/// A node's commitment to the open round.
fn committed(run: &Run, number: usize) -> Signed<Commit> {
    let view = run.ledger.current().unwrap();
    let slot = view.slot_of(&identity(number).id()).unwrap();
    identity(number).sign(run.ledger.run(), &commit(view, slot))
}

fn echo(run: &Run, number: usize, freeze: Digest) -> Request {
    Request::Notice(Notice::Echo(identity(number).sign(run.ledger.run(), &Echo { round: Round(0), freeze })))
}

/// Another process of the steward, with the records of a run and what its disk has kept.
fn restarted(run: &Run, bans: Vec<Ban>, kept: Vec<Request>) -> Run {
    let setup = StewardSetup {
        ledger: run.ledger.clone(),
        identity: identity(101),
        roots: roots(run.ledger.state().step()),
        states: Default::default(),
        bans: bans.into_iter().map(|ban| (ban, None)).collect(),
        kept,
    };
    Run::of(Steward::new(setup), run.ledger.clone())
}

#[test]
fn chan_10_who_is_no_member_takes_part_in_nothing() {
    let mut run = Run::new();
    let stranger = identity(50).id();
    let commitment = committed(&run, 0);
    let blocks = PutBlocks { round: Round(0), attempt: 0, blocks: List::default() };
    let echo = echo(&run, 0, Digest::default());
    for request in [Request::Commit(commitment.clone()), echo, Request::PutBlocks(blocks)] {
        assert!(run.ask(stranger, request).is_none());
    }
    let member = identity(0).id();
    assert!(matches!(run.ask(member, Request::Commit(commitment)), Some(Response::Committed(_))));
    // An order counts by the organiser's signature, whoever brings it.
    let order = identity(100).sign(run.ledger.run(), &CloseTree { member });
    assert!(run.ask(stranger, Request::CloseTree(order)).is_some());
}

#[test]
fn round_1_no_freeze_is_sealed_early_or_without_a_commitment() {
    let mut run = Run::new();
    run.wait(LONG);
    assert_eq!(run.ledger.stage(), Stage::Computing, "there is nothing to freeze");
    let mut run = Run::new();
    let first = committed(&run, 0);
    run.ask(identity(0).id(), Request::Commit(first.clone()));
    run.wait(1);
    assert_eq!(run.ledger.stage(), Stage::Computing, "two of three may still commit");
    run.wait(LONG);
    assert_eq!(frozen(&run.records), [first]);
}

/// The commitments of the newest Freeze.
fn frozen(records: &[Verified<Record>]) -> Vec<Signed<Commit>> {
    let freeze = records.iter().rev().find_map(|record| match &record.body {
        Body::Freeze(freeze) => Some(freeze.commits.to_vec()),
        _ => None,
    });
    freeze.unwrap_or_default()
}

#[test]
fn round_9_what_comes_early_late_or_twice_changes_nothing() {
    let mut run = Run::new();
    let member = identity(0).id();
    let early = echo(&run, 0, Digest::default());
    assert!(run.ask(member, early).is_none(), "nothing is frozen yet");
    let commitment = committed(&run, 0);
    run.ask(member, Request::Commit(commitment.clone()));
    let kept = run.kept.len();
    let again = run.ask(member, Request::Commit(commitment.clone()));
    assert!(matches!(again, Some(Response::Committed(_))), "the receipt may have been lost");
    assert_eq!(run.kept.len(), kept, "nothing is kept twice");
    run.until(Stage::Exchanging);
    let head = run.ledger.head();
    assert!(run.ask(member, Request::Commit(commitment)).is_none(), "the round is frozen");
    assert_eq!(run.ledger.head(), head);
    let freeze = run.ledger.current().unwrap().freeze_digest().unwrap();
    let said = echo(&run, 0, freeze);
    assert!(run.ask(member, said.clone()).is_some());
    let kept = run.kept.len();
    assert!(run.ask(member, said).is_some());
    assert_eq!(run.kept.len(), kept, "nothing is kept twice");
}

#[test]
fn round_16_what_has_a_receipt_is_taken_again_after_a_restart() {
    let mut run = Run::new();
    let first = committed(&run, 0);
    let receipt = run.ask(identity(0).id(), Request::Commit(first.clone()));
    assert!(matches!(receipt, Some(Response::Committed(_))));
    let mut again = restarted(&run, Vec::new(), run.kept.clone());
    again.wait(LONG);
    assert_eq!(frozen(&again.records), [first]);
    // A steward without what it kept has nothing to freeze: the promise would be broken.
    let mut forgetful = restarted(&run, Vec::new(), Vec::new());
    forgetful.wait(LONG);
    assert!(frozen(&forgetful.records).is_empty());
}

#[test]
fn round_4_the_steward_signs_for_a_part_only_once_it_is_whole() {
    let mut run = Run::new();
    let (sender, receipt) = (identity(0).id(), |sender| Receipt {
        round: Round(0),
        part: Part(0),
        attempt: 0,
        sender,
        root: Digest([1; 32]),
    });
    for (number, whole) in [(7, false), (8, true)] {
        let stored = whole.then(|| receipt(sender));
        run.hand(StewardInput::Stored(Question(number), Ok(stored)));
        let answer = run.answers.remove(&Question(number)).unwrap();
        let signed = matches!(&answer, Response::Receipt(signed)
            if signed.verify(run.ledger.run()).is_ok_and(|said| said.author() == identity(101).id()));
        assert_eq!(signed, whole, "{answer:?}");
    }
}

/// A convict, and the run in which its last round is over.
fn convicted() -> (Run, Ban) {
    let mut run = Run::new();
    let accusation = run.equivocate(0);
    run.convict(accusation);
    let mut bans = run.records.iter().filter_map(|record| match &record.body {
        Body::Ban(ban) => Some(ban.clone()),
        _ => None,
    });
    let ban = bans.next_back().unwrap();
    run.go_on_without_the_first(ban.effective);
    (run, ban)
}

/// Members whose past a restarted steward has recomputed.
fn measured(run: &mut Run) -> Vec<MemberId> {
    let mut measured = Vec::new();
    run.wait(1);
    while let Some(effect) = run.pending.pop_front() {
        match effect {
            StewardEffect::Exhibit(owed) => run.hand(StewardInput::Exhibited(owed, Ok(()))),
            StewardEffect::Measure(member) => measured.push(member),
            _ => {}
        }
    }
    measured
}

#[test]
fn rollback_4_a_restarted_steward_looks_into_the_past_of_convicts_again() {
    let (run, ban) = convicted();
    assert_eq!(measured(&mut restarted(&run, vec![ban.clone()], Vec::new())), [ban.culprit]);
    // Whose Rewind is sealed, or whose rounds are forgotten, it is not given.
    assert!(measured(&mut restarted(&run, Vec::new(), Vec::new())).is_empty());
    // Before the first round without the convict is open it may still contribute.
    let later = Ban { effective: Round(run.ledger.next_round().0 + 1), ..ban };
    assert!(measured(&mut restarted(&run, vec![later], Vec::new())).is_empty());
}
