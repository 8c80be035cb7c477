//! What the steward takes, refuses, promises and does again after a restart.

use muster_core::codec::{List, decode, encode};
use muster_core::ids::{Block, Digest, MemberId, Part, Round};
use muster_core::ledger::Stage;
use muster_core::manifest::Profile;
use muster_core::messages::enrol::{CloseTree, InvitationSecret, Return};
use muster_core::messages::record::{Ban, Body, Record};
use muster_core::messages::round::{Commit, Delivered, Echo, PartResult, Receipt};
use muster_core::messages::wire::{InputQuery, Notice, PutBlocks, Request, Response};
use muster_core::sign::{Signed, Verified};
use muster_roles::node::{MembershipEnd, NodeEffect, NodeInput};
use muster_roles::steward::{Payer, Question, Steward, StewardEffect, StewardInput, StewardSetup};

use super::run::{LONG, NODES, Run, addresses, commit, identity, roots};

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

/// Dials are for whoever may come: a stranger would have the steward call anybody, and newcomers wait for it.
#[test]
fn chan_24_nobody_is_dialled_before_the_ledger_says_that_its_author_may_come() {
    let mut run = Run::new();
    assert_eq!(run.dialled.len(), NODES);
    let used_up = InvitationSecret::new([9; 32]);
    assert!(run.enrol(50, &used_up).is_none());
    let back =
        Return { height: run.ledger.height(), addresses: addresses(50), engagement: Default::default() };
    let stranger = Request::Notice(Notice::Return(identity(50).sign(run.ledger.run(), &back)));
    assert!(run.ask(identity(50).id(), stranger).is_none());
    assert_eq!(run.dialled.len(), NODES, "nobody was dialled");
    // Those who come with one invitation have one share, and nobody is admitted where it is not.
    let other = InvitationSecret::new([8; 32]);
    run.unreachable = true;
    assert!(run.enrol(50, &other).is_none() && run.enrol(51, &other).is_none());
    let payers: Vec<Payer> = run.dialled[NODES..].iter().map(|dial| dial.payer).collect();
    assert_eq!(payers, [Payer::Newcomers(other.key()); 2]);
    assert!(run.ledger.member(&identity(50).id()).is_none());
    run.unreachable = false;
    assert!(run.enrol(50, &other).is_some());
    assert_eq!(run.ledger.member(&identity(50).id()).unwrap().addresses, addresses(50));
}

/// A member has as many dials as it may move: one a round.
#[test]
fn chan_24_nobody_is_dialled_for_a_return_that_the_ledger_refuses() {
    let mut run = Run::new();
    let mut move_to = |number: usize| {
        let back = Return {
            height: run.ledger.height(),
            addresses: addresses(number),
            engagement: Default::default(),
        };
        let back = Notice::Return(identity(0).sign(run.ledger.run(), &back));
        let taken = run.ask(identity(0).id(), Request::Notice(back)).is_some();
        (taken, run.dialled.len() - NODES)
    };
    assert_eq!(move_to(50), (true, 1));
    assert_eq!(move_to(51), (false, 1), "it has moved in this round");
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

/// The first node's delivery of all its parts, as its keepers have signed them.
fn delivery(run: &mut Run) -> Request {
    run.follow(0);
    for _ in 0..9 {
        for effect in run.effects(0) {
            if let Some(said) = pass_on(run, effect) {
                return said;
            }
        }
    }
    panic!("nothing is delivered")
}

/// Does what the first node says, and gives back what it says of its delivery.
fn pass_on(run: &mut Run, effect: NodeEffect) -> Option<Request> {
    let NodeEffect::Say(requests) = effect else {
        let done = run.perform(0, effect);
        done.into_iter().for_each(|input| run.tell(0, input));
        return None;
    };
    for said in requests {
        if let Request::Delivered(_) = said {
            return Some(said);
        }
        let taken = run.ask(identity(0).id(), said.clone());
        run.tell(0, NodeInput::Told(Box::new(said), taken));
    }
    None
}

/// A delivery came in time, and the steward is still looking at it when the timer is over.
#[test]
fn round_36_a_delivery_that_is_being_checked_is_counted() {
    let mut run = Run::new();
    run.until(Stage::Exchanging);
    let said = delivery(&mut run);
    run.busy = true;
    let timer = u64::from(run.ledger.manifest().timers.part);
    run.wait(timer - 1);
    assert!(run.ask(identity(0).id(), said.clone()).is_none(), "not yet");
    assert_eq!(run.checks.len(), 1);
    run.wait(2);
    assert_eq!(run.ledger.stage(), Stage::Exchanging);
    run.catch_up();
    run.wait(timer);
    let view = run.ledger.current().unwrap();
    let slot = view.slot_of(&identity(0).id()).unwrap();
    assert!(view.inputs().iter().any(|inputs| inputs.contains(slot)));
    assert_eq!(run.ledger.member(&identity(0).id()).unwrap().failures, 0);
}

#[test]
fn round_35_a_delivery_that_brings_nothing_new_is_not_checked() {
    let mut run = Run::new();
    run.until(Stage::Exchanging);
    let said = delivery(&mut run);
    let (member, kept) = (identity(0).id(), run.kept.len());
    run.busy = true;
    run.ask(member, said.clone());
    run.catch_up();
    assert_eq!(run.kept.len(), kept + 1);
    // The answer may have been lost.
    assert!(matches!(run.ask(member, said.clone()), Some(Response::Delivered(_))));
    let Request::Delivered(signed) = said else { panic!("a delivery") };
    let whole = signed.verify(run.ledger.run()).unwrap().into_inner();
    let fewer = Delivered { receipts: List::new(whole.receipts[1..].to_vec()).unwrap(), ..whole };
    let fewer = identity(0).sign(run.ledger.run(), &fewer);
    assert!(run.ask(member, Request::Delivered(fewer)).is_none());
    assert!(run.checks.is_empty());
    assert_eq!(run.kept.len(), kept + 1);
}

/// ROUND-36: an aggregator that asked for what it lacks, and is not served before the timer, has not failed.
#[test]
fn round_36_an_aggregator_does_not_fail_for_what_the_steward_did_not_serve() {
    let mut run = Run::new();
    run.until(Stage::Reducing);
    (0..NODES).for_each(|number| run.follow(number));
    let (first, timer) = (identity(0).id(), u64::from(run.ledger.manifest().timers.result));
    let view = run.ledger.current().unwrap().clone();
    let part = (0..view.parts().len() as u16)
        .map(Part)
        .find(|part| view.aggregating(*part).any(|member| member == first));
    let blocks = view.parts()[part.unwrap().index()].blocks.clone();
    let query = |blocks: Vec<Block>| {
        let (round, member) = (Round(0), identity(1).id());
        Request::InputBlocks(InputQuery { round, member, blocks: List::new(blocks).unwrap() })
    };
    run.busy = true;
    run.wait(timer - 1);
    let question = Question(run.questions + 1);
    run.ask(first, query(blocks.clone()));
    assert_eq!(run.reads, [question]);
    (1..NODES).for_each(|number| assert_eq!(run.work(number), None));
    run.wait(timer / 2);
    assert_eq!(run.ledger.stage(), Stage::Reducing);
    assert!(!run.records.iter().any(|record| matches!(record.body, Body::Reassign(_))));
    // Served late, it has as long as it would have had.
    run.catch_up();
    assert_eq!(run.work(0), None);
    run.busy = false;
    run.until(Stage::Computing);
    assert_eq!(run.ledger.member(&first).unwrap().failures, 0);
    // ROUND-35: nothing is read for what nobody can mean.
    run.busy = true;
    run.ask(first, query(vec![blocks[0], blocks[0]]));
    run.ask(first, query(vec![Block(u32::MAX)]));
    run.ask(identity(50).id(), query(blocks.clone()));
    assert!(run.reads.is_empty());
    run.ask(first, query(blocks));
    assert_eq!(run.reads.len(), 1, "of a round that is over");
}

/// Nobody objects: those who check see the word that is held, and not the other one.
#[test]
fn round_22_what_an_aggregator_signs_twice_is_reduced_again_before_it_is_applied() {
    for twice in [false, true] {
        let mut run = Run::new();
        run.until(Stage::Reducing);
        (0..NODES).for_each(|number| run.follow(number));
        assert_eq!(run.work(0), None);
        let mut said = run.kept.iter().rev().filter_map(|request| match request {
            Request::Notice(Notice::Result(signed)) => Some(signed.verify(run.ledger.run()).unwrap()),
            _ => None,
        });
        let said = said.next().expect("a result").into_inner();
        let other = PartResult { digest: Digest([99; 32]), ..said };
        let other = Request::Notice(Notice::Result(identity(0).sign(run.ledger.run(), &other)));
        if twice {
            assert!(run.ask(identity(0).id(), other).is_none(), "the first one is held");
        }
        run.until(Stage::Computing);
        let expected = if twice { vec![identity(0).id()] } else { Vec::new() };
        assert_eq!(run.inspected, expected);
    }
}

/// Each costs up to a thousand signatures, whatever comes of it.
#[test]
fn round_35_eight_deliveries_of_a_member_are_checked_in_a_round() {
    let mut run = Run::new();
    run.until(Stage::Exchanging);
    let Request::Delivered(signed) = delivery(&mut run) else { panic!("a delivery") };
    let said = signed.verify(run.ledger.run()).unwrap().into_inner();
    run.busy = true;
    for number in 1..20 {
        // Of the same keepers, who have not signed them.
        let forged = said.receipts.iter().map(|receipt| {
            let mut bytes = encode(receipt);
            // Run and signer come first, then the signature.
            bytes[80] ^= number;
            decode::<Signed<Receipt>>(&bytes).unwrap()
        });
        let forged = Delivered { receipts: List::new(forged.collect()).unwrap(), ..said.clone() };
        run.ask(identity(0).id(), Request::Delivered(identity(0).sign(run.ledger.run(), &forged)));
    }
    assert_eq!(run.checks.len(), 8);
}

/// Blocks that an aggregator need not lack, and those that it has had four times: it is served, and others do not wait for it.
#[test]
fn round_36_no_phase_waits_for_whoever_asks_for_ever_or_for_what_it_does_not_reduce() {
    for own in [true, false] {
        let mut run = Run::new();
        run.until(Stage::Reducing);
        (0..NODES).for_each(|number| run.follow(number));
        (1..NODES).for_each(|number| assert_eq!(run.work(number), None));
        let (first, timer) = (identity(0).id(), u64::from(run.ledger.manifest().timers.result));
        let view = run.ledger.current().unwrap().clone();
        let parts = (0..view.parts().len() as u16).map(Part);
        let parts = parts.filter(|part| view.aggregating(*part).any(|member| member == first) == own);
        let blocks = parts.flat_map(|part| view.parts()[part.index()].blocks.clone()).collect::<Vec<_>>();
        assert!(!blocks.is_empty());
        let query =
            InputQuery { round: Round(0), member: identity(1).id(), blocks: List::new(blocks).unwrap() };
        for _ in 0..4 * usize::from(own) {
            run.ask(first, Request::InputBlocks(query.clone()));
        }
        run.busy = true;
        run.ask(first, Request::InputBlocks(query));
        assert_eq!(run.reads.len(), 1);
        run.wait(timer);
        let ended = run.records.iter().any(|record| matches!(record.body, Body::Reassign(_)));
        assert!(ended, "its own blocks: {own}");
    }
}

#[test]
fn round_35_a_banned_member_has_nothing_read() {
    let (mut run, ban) = convicted();
    let query =
        InputQuery { round: Round(0), member: identity(1).id(), blocks: List::new(vec![Block(0)]).unwrap() };
    run.busy = true;
    run.ask(ban.culprit, Request::InputBlocks(query.clone()));
    assert!(run.reads.is_empty());
    run.ask(identity(1).id(), Request::InputBlocks(query));
    assert_eq!(run.reads.len(), 1);
}

/// A copied data directory on a slower machine: it has not had time for as many leaves.
#[test]
fn commit_8_a_slower_machine_with_the_same_key_is_refused_and_not_accused() {
    let mut run = Run::new();
    let (member, run_id) = (identity(0).id(), run.ledger.run());
    let first = committed(&run, 0);
    let said = first.verify(run_id).unwrap().into_inner();
    run.ask(member, Request::Commit(first));
    let slower =
        Commit { leaves: said.leaves + 1, loss: said.loss + 1, root: Digest([99; 32]), ..said.clone() };
    run.ask(member, Request::Commit(identity(0).sign(run_id, &slower)));
    assert!(run.hearing.is_none());
    // The same work cannot have two outcomes.
    let false_one = Commit { root: Digest([99; 32]), ..said };
    run.ask(member, Request::Commit(identity(0).sign(run_id, &false_one)));
    assert!(run.hearing.is_some());
}

/// Other processors have other sums of as many leaves.
#[test]
fn commit_8_with_a_tolerance_another_sum_of_the_same_leaves_is_refused_and_no_lie() {
    let mut run = Run::with(Profile::F32);
    let (member, run_id) = (identity(0).id(), run.ledger.run());
    let said = committed(&run, 0).verify(run_id).unwrap().into_inner();
    let said = Commit { profile: Profile::F32, ..said };
    let first = run.ask(member, Request::Commit(identity(0).sign(run_id, &said)));
    assert!(matches!(first, Some(Response::Committed(_))));
    let other = Commit { root: Digest([99; 32]), loss: said.loss + 1, ..said };
    let second = run.ask(member, Request::Commit(identity(0).sign(run_id, &other)));
    assert!(second.is_none() && run.hearing.is_none());
}

#[test]
fn commit_8_of_two_machines_with_one_key_the_first_stops_and_says_where_the_other_is() {
    let mut run = Run::new();
    run.follow(0);
    assert_eq!(run.work(0), None);
    run.until(Stage::Exchanging);
    let there = addresses(9);
    let back =
        Return { height: run.ledger.height(), addresses: there.clone(), engagement: Default::default() };
    let back = identity(0).sign(run.ledger.run(), &back);
    assert!(run.ask(identity(0).id(), Request::Notice(Notice::Return(back))).is_some());
    run.follow(0);
    assert_eq!(run.work(0), Some(MembershipEnd::Elsewhere(there)));
}

/// A process that was stopped for a minute: its members' connections are gone, and they come back.
#[test]
fn round_38_a_steward_that_did_not_run_begins_the_phase_anew() {
    for resumes in [true, false] {
        let mut run = Run::new();
        run.ask(identity(0).id(), Request::Commit(committed(&run, 0)));
        run.wait(u64::from(run.ledger.manifest().timers.commit) - 1);
        (0..NODES).for_each(|number| {
            let gone = StewardInput::Connected(identity(number).id(), false);
            run.steward.handle(run.now, gone);
        });
        if resumes {
            run.hand(StewardInput::Resumed);
        }
        run.wait(14_000);
        assert_eq!(run.ledger.stage() == Stage::Computing, resumes, "all have 15 s to come back");
        let failures = |run: &Run| run.ledger.members().iter().map(|member| member.failures).sum::<u8>();
        assert_eq!(failures(&run) == 0, resumes);
        if resumes {
            (0..NODES).for_each(|number| run.hand(StewardInput::Connected(identity(number).id(), true)));
            run.wait(10_000);
            run.until(Stage::Exchanging);
            assert_eq!(failures(&run), 0);
        }
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
