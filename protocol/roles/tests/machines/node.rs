//! What a node says and when, and what it makes of refusals.

use std::sync::Arc;

use muster_core::ids::{Digest, Part, Round};
use muster_core::ledger::{Ledger, Stage, Standing};
use muster_core::messages::enrol::Engagement;
use muster_core::messages::round::CommitReceipt;
use muster_core::messages::wire::{Notice, Request, Response};
use muster_roles::node::{MembershipEnd, Milestone, Node, NodeEffect, NodeInput, Parcel};
use muster_roles::steward;

use super::run::{LONG, NODES, Run, addresses, commit, identity, node, node_with};

/// The parcels among effects.
fn parcels(effects: &[NodeEffect]) -> Vec<Parcel> {
    let parcel = |effect: &NodeEffect| match effect {
        NodeEffect::Bring(parcel) => Some(parcel.clone()),
        _ => None,
    };
    effects.iter().filter_map(parcel).collect()
}

/// The requests among effects.
fn said(effects: Vec<NodeEffect>) -> Vec<Request> {
    let requests = |effect| if let NodeEffect::Say(requests) = effect { requests } else { Vec::new() };
    effects.into_iter().flat_map(requests).collect()
}

/// Parts with receipts of what is said to be delivered; none where nothing is said.
fn delivered(effects: Vec<NodeEffect>, run: &Run) -> Option<Vec<Part>> {
    said(effects).into_iter().find_map(|request| match request {
        Request::Delivered(said) => {
            let said = said.verify(run.ledger.run()).ok()?;
            said.receipts.iter().map(|receipt| Some(receipt.verify(run.ledger.run()).ok()?.part)).collect()
        }
        _ => None,
    })
}

/// Has a node prepare what it was told to deliver; the parcels.
fn prepare(run: &mut Run, effects: Vec<NodeEffect>) -> Vec<Parcel> {
    for effect in effects {
        if let NodeEffect::Prepare { round, attempt, parts } = effect {
            run.tell(0, NodeInput::Prepared { round, attempt, parts });
        }
    }
    parcels(&run.effects(0))
}

/// Has the keepers of all parcels sign for them.
fn bring_all(run: &mut Run, parcels: Vec<Parcel>) {
    for parcel in parcels {
        let receipt = run.receipt(0, &parcel, &parcel.keeper);
        run.tell(0, NodeInput::Brought(parcel, receipt));
    }
}

#[test]
fn a_run_of_machines_comes_to_its_end() {
    let mut run = Run::new();
    run.until(Stage::Closed);
    for number in 0..NODES {
        run.follow(number);
        assert_eq!(run.work(number), Some(MembershipEnd::Closed));
        assert!(run.nodes[number].poll_effect().is_none(), "nothing follows the end");
    }
}

#[test]
fn round_5_a_delivery_is_said_once_the_echo_was_taken() {
    let (mut run, effects) = Run::exchanging();
    let freeze = effects.iter().find_map(|effect| match effect {
        NodeEffect::WriteEcho(round, freeze) => Some((*round, *freeze)),
        _ => None,
    });
    let (round, freeze) = freeze.unwrap();
    run.tell(0, NodeInput::EchoWritten(round, Some(freeze)));
    let echo = said(run.effects(0)).pop().unwrap();
    assert!(matches!(echo, Request::Notice(Notice::Echo(_))));
    let parcels = prepare(&mut run, effects);
    let count = parcels.len();
    assert!(count > 0);
    bring_all(&mut run, parcels);
    assert_eq!(delivered(run.effects(0), &run), None, "the echo is on its way");
    run.tell(0, NodeInput::Told(Box::new(echo), Some(Response::Done)));
    assert_eq!(delivered(run.effects(0), &run).map(|parts| parts.len()), Some(count));
}

#[test]
fn round_2_a_node_that_has_said_another_freeze_says_none_and_delivers() {
    for written in [None, Some(Digest([5; 32]))] {
        let (mut run, effects) = Run::exchanging();
        run.tell(0, NodeInput::EchoWritten(Round(0), written));
        assert!(said(run.effects(0)).is_empty());
        let parcels = prepare(&mut run, effects);
        bring_all(&mut run, parcels);
        assert!(delivered(run.effects(0), &run).is_some());
    }
}

#[test]
fn a_contribution_that_is_lost_holds_nobody_up() {
    let (mut run, effects) = Run::exchanging();
    run.tell(0, NodeInput::EchoWritten(Round(0), None));
    assert!(effects.iter().any(|effect| matches!(effect, NodeEffect::Prepare { .. })));
    run.tell(0, NodeInput::Prepared { round: Round(0), attempt: 0, parts: Vec::new() });
    assert_eq!(delivered(run.effects(0), &run), Some(Vec::new()));
}

#[test]
fn round_24_what_an_aggregator_does_not_take_goes_to_the_steward() {
    let steward = identity(101).id();
    for takes in [true, false] {
        let (mut run, effects) = Run::exchanging();
        run.tell(0, NodeInput::EchoWritten(Round(0), None));
        let mut parcels = prepare(&mut run, effects);
        let refused = parcels.iter().position(|parcel| parcel.keeper != steward).unwrap();
        let refused = parcels.remove(refused);
        // ROUND-3: what another one has signed is no receipt.
        let forged = run.receipt(0, &refused, &identity(0).id());
        assert!(refused.keeper != identity(0).id() && forged.is_some());
        run.tell(0, NodeInput::Brought(refused.clone(), forged));
        let relayed = self::parcels(&run.effects(0)).pop().unwrap();
        assert!(relayed.relayed && relayed.keeper == steward && relayed.part == refused.part);
        assert!(relayed.within < refused.within);
        bring_all(&mut run, parcels);
        assert_eq!(delivered(run.effects(0), &run), None, "a parcel is on its way");
        let receipt = run.receipt(0, &relayed, &steward).filter(|_| takes);
        run.tell(0, NodeInput::Brought(relayed, receipt));
        let parts = delivered(run.effects(0), &run).unwrap();
        assert_eq!(parts.contains(&refused.part), takes);
        assert!(!parts.is_empty());
    }
}

/// A run whose first node has committed to nothing, and is away.
fn first_is_away() -> Run {
    let mut run = Run::new();
    (1..NODES).for_each(|number| {
        run.follow(number);
        run.work(number);
    });
    run.hand(steward::StewardInput::Connected(identity(0).id(), false));
    run.wait(LONG);
    assert_eq!(run.ledger.stage(), Stage::Exchanging);
    (1..NODES).for_each(|number| {
        run.follow(number);
        run.work(number);
    });
    run
}

/// The Returns that the first node says after it has read what is new.
fn back(run: &mut Run) -> Vec<Request> {
    run.follow(0);
    let said = said(run.effects(0)).into_iter();
    said.filter(|request| matches!(request, Request::Notice(Notice::Return(_)))).collect()
}

#[test]
fn ledger_13_a_return_that_is_refused_is_said_again_with_the_next_news() {
    let mut run = first_is_away();
    let first = back(&mut run).pop().unwrap();
    assert!(back(&mut run).is_empty(), "it waits for the answer");
    run.tell(0, NodeInput::Told(Box::new(first), None));
    assert!(said(run.effects(0)).is_empty(), "it waits for news");
    let again = back(&mut run).pop().unwrap();
    run.tell(0, NodeInput::Told(Box::new(again), Some(Response::Done)));
    assert!(back(&mut run).is_empty(), "the record is on its way");
}

/// The steward may not reach it where it says that it is; without an address it still takes part.
#[test]
fn chan_24_whose_return_is_refused_three_times_comes_back_without_an_address() {
    let mut run = first_is_away();
    for refused in 0..4 {
        let said = back(&mut run).pop().unwrap();
        let Request::Notice(Notice::Return(signed)) = &said else { panic!("a Return") };
        let addresses = signed.verify(run.ledger.run()).unwrap().into_inner().addresses;
        assert_eq!(addresses.is_empty(), refused == 3, "after {refused}");
        run.tell(0, NodeInput::Told(Box::new(said), None));
    }
}

/// What kept the steward from it may have passed; that it listens, others must not take for a second machine.
#[test]
fn chan_24_whoever_came_without_an_address_says_again_where_it_listens() {
    let mut run = first_is_away();
    for _ in 0..3 {
        let said = back(&mut run).pop().unwrap();
        run.tell(0, NodeInput::Told(Box::new(said), None));
    }
    // It takes part without one.
    run.unreachable = true;
    run.until(Stage::Computing);
    run.hand(steward::StewardInput::Connected(identity(0).id(), true));
    let there = |run: &Run| run.ledger.member(&identity(0).id()).unwrap().addresses.clone();
    assert!(there(&run).is_empty());
    let tries = |run: &Run| run.dialled.iter().filter(|dial| dial.author == identity(0).id()).count();
    let waits = |run: &mut Run, seconds: u64| {
        run.wait(1_000 * seconds);
        run.follow(0);
        run.work(0);
        tries(run)
    };
    let next_round = |run: &mut Run| {
        run.until(Stage::Exchanging);
        run.until(Stage::Computing);
    };
    // It comes back, and moves in the round after that at the earliest (LEDGER-13).
    next_round(&mut run);
    let before = tries(&run);
    assert_eq!(waits(&mut run, 14), before);
    assert_eq!(waits(&mut run, 2), before + 1);
    assert_eq!(waits(&mut run, 10), before + 1, "after twice as long");
    next_round(&mut run);
    assert_eq!(waits(&mut run, 18), before + 1, "after twice as long");
    run.unreachable = false;
    assert_eq!(waits(&mut run, 4), before + 2);
    assert_eq!(there(&run), addresses(0));
    assert_eq!(waits(&mut run, 5), before + 2, "it was found");
}

/// LEDGER-24: it computes the round in which it has a seat, answers for what it has committed to, and then goes without having
/// failed; it comes back by the same word.
#[test]
fn ledger_24_a_node_that_rests_finishes_its_round_and_goes_once_it_answers_for_nothing() {
    let mut run = Run::gathered(|manifest| manifest.training.rounds = 40, None);
    let member = |run: &Run| run.ledger.member(&identity(0).id()).unwrap().clone();
    run.follow(0);
    run.tell(0, NodeInput::Engage(Engagement::Rests));
    let mut ended = None;
    while ended.is_none() && run.ledger.next_round().0 < 30 {
        for number in 0..NODES {
            run.follow(number);
            let ending = run.work(number);
            ended = ended.or(ending.filter(|_| number == 0));
            run.apply();
        }
    }
    assert_eq!((ended, member(&run).engagement), (Some(MembershipEnd::Resting), Engagement::Rests));
    let committed = |round| {
        let view = run.ledger.round(Round(round)).unwrap();
        view.slot_of(&identity(0).id()).is_some_and(|slot| view.commitment(slot).is_some())
    };
    assert!(committed(0) && !committed(1) && !run.ledger.is_answerable(Round(0)));
    assert!(run.ledger.is_answerable(Round(1)), "it has not waited for longer");
    assert_eq!((member(&run).standing, member(&run).failures), (Standing::Active, 0));
    // Another process of it.
    run.nodes[0] = node(0, &Arc::new(run.ledger.clone()));
    run.follow(0);
    run.work(0);
    assert_eq!(member(&run).engagement, Engagement::Trains);
}

#[test]
fn an_interrupted_node_finishes_its_round() {
    let mut run = Run::new();
    run.follow(0);
    run.tell(0, NodeInput::Interrupt);
    assert_eq!(run.work(0), None);
    run.until(Stage::Exchanging);
    run.follow(0);
    assert_eq!(run.work(0), None);
    run.tell(0, NodeInput::Applied(Round(0)));
    assert_eq!(run.work(0), Some(MembershipEnd::Interrupted));
    // Before its first round it ends at once.
    let mut idle = node(0, &Arc::new(Ledger::new(run.ledger.manifest().clone())));
    idle.handle(0, NodeInput::Interrupt);
    let effects: Vec<NodeEffect> = std::iter::from_fn(|| idle.poll_effect()).collect();
    assert!(matches!(
        effects[..],
        [NodeEffect::Tell(Milestone::Stopping), NodeEffect::End(MembershipEnd::Interrupted)]
    ));
}

#[test]
fn commit_4_a_commitment_with_a_receipt_that_is_not_frozen_ends_the_membership() {
    let mut run = Run::new();
    run.follow(0);
    // It has a receipt for what the steward then leaves out.
    let view = run.ledger.current().unwrap();
    let slot = view.slot_of(&identity(0).id()).unwrap();
    let signed = identity(0).sign(run.ledger.run(), &commit(view, slot));
    let receipt = CommitReceipt { commit: signed.digest(), round: view.round() };
    let receipt = identity(101).sign(run.ledger.run(), &receipt);
    (1..NODES).for_each(|number| {
        run.follow(number);
        run.work(number);
    });
    run.tell(0, NodeInput::Told(Box::new(Request::Commit(signed)), Some(Response::Committed(receipt))));
    run.effects(0);
    run.wait(LONG);
    run.follow(0);
    assert!(matches!(run.work(0), Some(MembershipEnd::Convicted(..))));
}

/// A node of an older copy of the first one's directory, which has read the run; and how many records it has read.
fn copied(run: &Run, start: &Arc<Ledger>) -> (Node, usize) {
    let mut copy = node(0, start);
    let read = read_on(&mut copy, run, start.height().0 as usize);
    (copy, read)
}

/// Has a node read what is new since; how far.
fn read_on(node: &mut Node, run: &Run, since: usize) -> usize {
    let ledger = Arc::new(run.ledger.clone());
    node.handle(run.now, NodeInput::Followed { ledger, in_step: true, complete: true });
    for record in run.records.iter().filter(|record| record.height.0 as usize >= since) {
        node.handle(run.now, NodeInput::Sealed(Box::new(record.clone().into_inner())));
    }
    run.ledger.height().0 as usize
}

/// What it would compute, and how it ends.
fn computes(node: &mut Node) -> (Option<Round>, Option<MembershipEnd>) {
    let (mut computes, mut end) = (None, None);
    while let Some(effect) = node.poll_effect() {
        match effect {
            NodeEffect::Compute { round, .. } => computes = Some(round),
            NodeEffect::End(ending) => end = Some(ending),
            _ => {}
        }
    }
    (computes, end)
}

#[test]
fn commit_8_the_second_of_two_machines_with_one_directory_stops_before_it_signs() {
    let mut run = Run::new();
    let start = Arc::new(run.ledger.clone());
    run.until(Stage::Exchanging);
    let (mut copy, read) = copied(&run, &start);
    assert_eq!(computes(&mut copy), (None, None));
    run.until(Stage::Computing);
    let read = read_on(&mut copy, &run, read);
    assert_eq!(computes(&mut copy), (None, None), "somebody else may be signing");
    run.until(Stage::Exchanging);
    read_on(&mut copy, &run, read);
    assert_eq!(computes(&mut copy), (None, Some(MembershipEnd::Twice(Round(1)))));
    // The one whose commitments are sealed goes on.
    run.follow(0);
    assert_eq!(run.work(0), None);
}

#[test]
fn commit_8_a_directory_that_was_restored_from_an_older_copy_goes_on_after_a_while() {
    let mut run = Run::new();
    let start = Arc::new(run.ledger.clone());
    run.until(Stage::Exchanging);
    let (mut restored, read) = copied(&run, &start);
    run.until(Stage::Computing);
    read_on(&mut restored, &run, read);
    assert_eq!(computes(&mut restored), (None, None));
    let due = restored.poll_timeout().unwrap();
    restored.handle(due - 1, NodeInput::Tick);
    assert_eq!(computes(&mut restored), (None, None));
    restored.handle(due, NodeInput::Tick);
    assert_eq!(computes(&mut restored), (Some(Round(1)), None));
}

#[test]
fn commit_8_what_an_earlier_process_committed_to_is_no_other_machines() {
    let mut run = Run::new();
    let start = Arc::new(run.ledger.clone());
    let view = start.current().unwrap();
    let slot = view.slot_of(&identity(0).id()).unwrap();
    let committed = vec![identity(0).sign(run.ledger.run(), &commit(view, slot))];
    run.until(Stage::Exchanging);
    let mut restarted = node_with(0, &start, committed);
    let read = read_on(&mut restarted, &run, start.height().0 as usize);
    run.until(Stage::Computing);
    read_on(&mut restarted, &run, read);
    assert_eq!(computes(&mut restarted), (Some(Round(1)), None));
}

#[test]
fn a_convict_serves_for_a_while_after_its_last_round() {
    let mut run = Run::new();
    let accusation = run.equivocate(0);
    run.convict(accusation);
    run.follow(0);
    let effects = run.effects(0);
    assert!(effects.iter().any(|effect| matches!(effect, NodeEffect::Tell(Milestone::Banned))));
    assert!(effects.iter().any(|effect| matches!(effect, NodeEffect::FetchEvidence(_))));
    let ban = effects.into_iter().find_map(|effect| match effect {
        NodeEffect::FetchEvidence(ban) => Some(ban),
        _ => None,
    });
    let effective = ban.unwrap().effective;
    run.go_on_without_the_first(effective);
    run.follow(0);
    run.tell(0, NodeInput::Tick);
    assert_eq!(run.work(0), None, "others need what it holds");
    let due = run.nodes[0].poll_timeout().unwrap();
    run.now = due;
    run.tell(0, NodeInput::Tick);
    assert!(matches!(run.work(0), Some(MembershipEnd::Banned(ban)) if ban.culprit == identity(0).id()));
}
