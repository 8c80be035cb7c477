//! Two verifiers share the work; one that is gone is replaced.

use muster_core::audit::docket::{OpenCase, WaitsFor};
use muster_core::audit::roster::fetch_patience;
use muster_core::codec::List;
use muster_core::coins::{CoinKind, selects};
use muster_core::messages::audit::Recomputation;
use muster_core::messages::enrol::Return;
use muster_core::messages::record::Idle;

use super::silence::{gone_back, silenced};
use super::*;

#[test]
fn no_contribution_is_asked_about_twice() {
    for both in [true, false] {
        let mut world = shared([Conduct::Honest; 2], both);
        let mut all = [world.audits_of(21), world.audits_of(22)];
        world.run_all(&mut all);
        let mut asked = world.requests();
        asked.sort_by_key(|(_, target)| *target != member(11));
        assert_eq!(asked, [(world.inspector(0), member(11)), (world.inspector(1), member(12))]);
        assert_eq!(world.verdicts().len(), 2);
        world.docket.idles(0, &world.ledger);
        let counts = world.docket.counts().clone();
        let of = |number| counts[&member(number)];
        assert!([21, 22].iter().all(|number| (of(*number).rounds, of(*number).coins) == (1, 1)));
        assert_eq!((of(21).due, of(21).done, of(22).due), if both { (2, 2, 0) } else { (1, 1, 1) });
        // With recheck = 1, each passing verdict is re-executed by the other one, and stands.
        assert_eq!((of(21).rechecks, of(22).rechecks), if both { (0, 2) } else { (1, 1) });
        assert!(world.accusations.is_empty() && world.docket.idles(5000, &world.ledger).is_empty());
        assert_eq!(all[0].duty().due, of(21).due);
    }
}

#[test]
fn one_that_shows_no_coin_is_idle_and_the_other_takes_over() {
    let mut world = shared([Conduct::Honest, Conduct::FlipsLeaves], true);
    let mut all = [world.audits_of(22)];
    world.run_all(&mut all);
    assert!(world.requests().is_empty(), "nothing is the second one's to inspect");
    assert!(world.docket.idles(0, &world.ledger).is_empty());
    assert!(world.docket.idles(1999, &world.ledger).is_empty());
    // DUTY-2, DUTY-4: whoever shows no coin is idle, though nothing else is known to be due from it.
    let idles = world.docket.idles(2000, &world.ledger);
    let body = Body::Idle(Idle { verifier: member(21), round: Round(0) });
    assert_eq!(idles, std::slice::from_ref(&body));
    world.seal_to(&mut all, body.clone());
    assert_eq!(world.ledger.member(&member(21)).unwrap().standing, Standing::Away);
    world.run_all(&mut all);
    assert_eq!(world.requests(), [(member(22), member(11)), (member(22), member(12))]);
    assert_eq!(world.judged(), [(member(12), FindingKind::LeafMismatch)]);
    assert_eq!(world.docket.counts()[&member(21)].overdue, 1);
    // DUTY-5: it is away, idle once, and may not do now what was its duty.
    let again = world.ledger.record(body);
    assert!(world.ledger.clone().apply(&world.steward.sign(world.run, &again)).is_err());
    let late = [world.audits_of(21)].map(|mut audits| {
        audits.take(&world.ledger, &[]).unwrap();
        audits.next_message(&|_| true)
    });
    assert!(late[0].is_none(), "{late:?}");
}

#[test]
fn one_that_was_idle_owes_nothing_twice() {
    let mut rounds = manifest(0, 0);
    (rounds.training.rounds, rounds.retention.contributions) = (8, 1);
    let mut world = World::shared([Conduct::Honest; 2], rounds, 2);
    // No coin selects anybody: to show it is all that there is to do.
    let show = |world: &mut World, number: u8, round: u32| {
        let (round, view) = (Round(round), world.ledger.round(Round(round)).unwrap());
        let coin = coin_tree(number).open(CoinKind::Node, round, 0).unwrap();
        let duty = Duty { round, freeze: view.freeze_digest().unwrap(), coin };
        let duty = Notice::Duty(id(number).sign(world.run, &duty));
        world.docket.post(0, &world.ledger, &duty).unwrap();
    };
    show(&mut world, 22, 0);
    assert!(world.docket.idles(0, &world.ledger).is_empty());
    let idles = world.docket.idles(2000, &world.ledger);
    assert_eq!(idles, [Body::Idle(Idle { verifier: member(21), round: Round(0) })]);
    world.seal(idles[0].clone());
    assert!(world.docket.idles(2000, &world.ledger).is_empty());
    let back = Return {
        height: world.ledger.height(),
        addresses: Default::default(),
        engagement: Default::default(),
    };
    world.seal(Body::Return(id(21).sign(world.run, &back)));
    let mut exact = Exact::new(1, None).unwrap();
    // No time passes: nobody is idle but for what is forgotten.
    for round in 1..=3 {
        world.train(&mut exact);
        [21, 22].iter().for_each(|number| show(&mut world, *number, round));
        assert!(world.docket.idles(2000, &world.ledger).is_empty(), "it has done all that is its own");
    }
    assert_eq!(world.docket.counts()[&member(21)].overdue, 1);
    // What it leaves undone after its return counts.
    world.train(&mut exact);
    show(&mut world, 22, 4);
    assert!(world.docket.idles(2000, &world.ledger).is_empty());
    let idles = world.docket.idles(4000, &world.ledger);
    assert_eq!(idles, [Body::Idle(Idle { verifier: member(21), round: Round(4) })]);
    assert_eq!(world.docket.counts()[&member(21)].overdue, 2);
}

#[test]
fn one_that_stops_half_way_is_idle_and_the_member_is_not_silent() {
    let mut world = shared([Conduct::Honest; 2], true);
    let mut all = [world.audits_of(21), world.audits_of(22)];
    all.iter_mut().for_each(|audits| audits.take(&world.ledger, &[]).unwrap());
    // Coin and requests of the first one, the coin of the second one; then the first one computes no more.
    while all[0].next_message(&|_| true).is_some() {
        world.step_among(&mut all, 0).unwrap();
    }
    world.step_among(&mut all, 1).unwrap();
    assert_eq!(world.open(), 2);
    assert!(
        world.docket.silences(5000, &world.ledger).is_empty(),
        "the tables are sealed: it is nobody's silence"
    );
    let idles = world.docket.idles(2000, &world.ledger);
    assert_eq!(idles, [Body::Idle(Idle { verifier: member(21), round: Round(0) })]);
    for body in idles {
        world.seal_to(&mut all, body);
    }
    world.docket.idles(2000, &world.ledger);
    let mut open = world.docket.open_cases(&world.ledger);
    let of_the_other = |case: OpenCase| case.verifier == member(22) && case.waits_for == WaitsFor::Verifier;
    assert!(open.all(of_the_other), "its audits are void, and due from the other one");
    drop(open);
    assert!(all[0].next_work(&|_| true).is_none() && all[0].next_message(&|_| true).is_none());
    world.run_all(&mut all);
    assert_eq!(world.verdicts(), [(member(11), Finding::Pass), (member(12), Finding::Pass)]);
}

#[test]
fn what_is_not_one_s_own_is_refused() {
    let mut world = shared([Conduct::Honest; 2], true);
    let (run, view) = (world.run, world.ledger.round(Round(0)).unwrap().clone());
    let freeze = view.freeze_digest().unwrap();
    let opened = |number, kind, round| coin_tree(number).open(kind, Round(round), 0).unwrap();
    let node = |number| opened(number, CoinKind::Node, 0);
    let asked = |number: u8, coin| {
        let request = AuditRequest { round: Round(0), freeze, target: member(11), coin };
        id(number).sign(run, &request)
    };
    assert!(world.ledger.check_request(&asked(21, Some(node(21)))).is_ok());
    for (who, coin) in
        [(22, Some(node(22))), (22, Some(node(21))), (21, Some(node(22))), (11, Some(node(21))), (21, None)]
    {
        assert!(world.ledger.check_request(&asked(who, coin)).is_err(), "by {who}");
    }
    let duty = |number: u8, coin| Notice::Duty(id(number).sign(run, &Duty { round: Round(0), freeze, coin }));
    let wrong = [
        duty(21, node(22)),
        duty(11, node(21)),
        duty(21, opened(21, CoinKind::Leaf, 0)),
        duty(21, opened(21, CoinKind::Node, 1)),
        Notice::Duty(id(21).sign(run, &Duty { round: Round(0), freeze: Digest([1; 32]), coin: node(21) })),
    ];
    for notice in wrong {
        assert!(world.docket.post(0, &world.ledger, &notice).is_err(), "{notice:?}");
    }
    let mut all = [world.audits_of(21), world.audits_of(22)];
    world.run_all(&mut all);
    let again = duty(21, node(21));
    assert!(world.docket.post(0, &world.ledger, &again).is_err(), "a coin is shown once");
    let verdict = world.board.iter().find_map(|notice| match notice {
        Notice::Verdict(signed) => Some(signed.digest()),
        _ => None,
    });
    // The first one gave the verdict, the second one has rechecked it already, a node may not.
    let recheck = muster_core::messages::audit::Recheck { verdict: verdict.unwrap() };
    for number in [21, 22, 11] {
        let notice = Notice::Recheck(id(number).sign(run, &recheck));
        assert!(world.docket.post(0, &world.ledger, &notice).is_err(), "by {number}");
    }
}

/// DUTY-3: the coin of the next one does not select what an accomplice has passed; it is asked for all the same.
#[test]
fn what_a_banned_verifier_has_passed_is_audited_again() {
    let worlds = (0..=255).map(|nonce| {
        let mut manifest = manifest(ALWAYS / 2, 0);
        (manifest.nonce, manifest.audit.recheck_ppm) = ([nonce; 16], 0);
        (manifest.training.rounds, manifest.retention.states) = (3, 3);
        World::shared([Conduct::Honest, Conduct::FlipsLeaves], manifest, 2)
    });
    let selects = |world: &World, number: u8| {
        let view = world.ledger.round(Round(0)).unwrap();
        let coin = world.audits_of(number).node_coin(Round(0)).unwrap();
        let ppm = view.commitment(Slot(1)).unwrap().audit_ppm;
        selects(&coin, &view.freeze_digest().unwrap(), &member(12), ppm)
    };
    let fits = |world: &World| world.inspector(1) == member(21) && selects(world, 21) && !selects(world, 22);
    let mut world = worlds.into_iter().find(fits).expect("one of eight");
    let friend = Arc::new(super::verdicts::Says(Finding::Pass));
    let mut all = [world.audits_of(21).conducted(friend), world.audits_of(22)];
    world.run_all(&mut all);
    assert!(world.verdicts().contains(&(member(12), Finding::Pass)));
    world.train(&mut Exact::new(1, None).unwrap());
    // It may also be drawn for the member's next round.
    let asked = |world: &World| {
        world.requests().iter().filter(|request| **request == (member(22), member(12))).count()
    };
    world.run_all(&mut all);
    assert!(world.docket.has_passed(&world.ledger, Round(0), &member(12)));
    let before = asked(&world);
    let ban = ban(&world);
    world.seal_to(&mut all, ban);
    assert!(!world.docket.has_passed(&world.ledger, Round(0), &member(12)));
    world.run_all(&mut all);
    assert!(asked(&world) > before, "{:?}", world.requests());
    assert!(world.judged().contains(&(member(12), FindingKind::LeafMismatch)));
    let (freeze, slots) = {
        let view = world.ledger.round(Round(0)).unwrap();
        (view.freeze_digest().unwrap(), [view.slot_of(&member(11)), view.slot_of(&member(12))])
    };
    let view = world.ledger.round(Round(0)).unwrap();
    let open = slots.map(|slot| world.ledger.needs_no_coin(view, slot.unwrap()));
    let request = AuditRequest { round: Round(0), freeze, target: member(11), coin: None };
    let unasked = world.ledger.check_request(&id(22).sign(world.run, &request)).is_err();
    assert!(open[1] && open[0] != unasked, "no coin is needed only where a pass has lost its word");
    // Whoever looks later finds the same: a steward or a verifier that was started again.
    let due = |world: &World| {
        let view = world.ledger.round(Round(0)).unwrap();
        world.ledger.is_due(view, view.slot_of(&member(12)).unwrap(), false)
    };
    while world.ledger.keeps_state(Round(0)) {
        assert!(due(&world));
        world.train(&mut Exact::new(1, None).unwrap());
    }
    assert!(due(&world), "it was opened again while everybody had its state");
}

/// How long integers are waited for, which is longer than both timers of audits here.
fn fetched(world: &World) -> u64 {
    let patience = fetch_patience(world.ledger.layout());
    let timers = &world.manifest.timers;
    assert!(patience > u64::from(timers.audit.max(timers.final_audit)));
    patience
}

/// DUTY-4: a member that answers in time and keeps its integers back must not make its verifier idle.
#[test]
fn a_verdict_may_take_as_long_as_all_leaves() {
    let mut world = World::new([Conduct::Honest; 2], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    audits.take(&world.ledger, &[]).unwrap();
    let leaves = |audits: &Audits| {
        audits.next_work(&|_| true).is_some_and(|work| matches!(work.kind, WorkKind::Leaves(_)))
    };
    while audits.next_message(&|_| true).is_some() || leaves(&audits) {
        world.step(&mut audits).unwrap();
    }
    assert!(world.board.iter().any(|notice| matches!(notice, Notice::Opening(_))));
    assert!(world.verdicts().is_empty() && world.docket.idles(0, &world.ledger).is_empty());
    // Once by itself, and once more for a second opinion; the integers were waited for before (DUTY-14).
    let patience = fetched(&world) + 3 * u64::from(world.manifest.timers.commit);
    assert!(world.docket.idles(patience - 1, &world.ledger).is_empty());
    let idles = world.docket.idles(patience, &world.ledger);
    assert_eq!(idles, [Body::Idle(Idle { verifier: member(21), round: Round(0) })]);
}

/// DUTY-4: where everything of a round is due together, what is done takes no time from what is left.
#[test]
fn who_has_much_to_compute_has_time_for_all_of_it() {
    let mut world = World::new([Conduct::Honest; 2], manifest(ALWAYS, 1));
    assert_eq!(world.ledger.stage(), muster_core::ledger::Stage::Auditing);
    let mut audits = world.audits();
    audits.take(&world.ledger, &[]).unwrap();
    // Both have sealed their tables before anything is computed, and the first audit comes to its end.
    let tables =
        |world: &World| world.board.iter().filter(|notice| matches!(notice, Notice::Table(_))).count();
    while tables(&world) < 2 {
        let message = audits.next_message(&|_| true).unwrap();
        audits.told(&message);
        let (Message::Notice(_, notice) | Message::Say(notice)) = message else { panic!("{message:?}") };
        let events = world.post(*notice);
        audits.take(&world.ledger, &events).unwrap();
    }
    assert!(world.docket.idles(0, &world.ledger).is_empty());
    while world.verdicts().is_empty() {
        world.step(&mut audits).unwrap();
    }
    let timers = world.manifest.timers.clone();
    let patience = fetched(&world) + 4 * u64::from(timers.commit);
    assert!(world.docket.idles(patience - 1, &world.ledger).is_empty(), "one of two is done");
    assert_eq!(world.docket.idles(patience, &world.ledger).len(), 1);
}

/// AUDIT-8: while a run gathers a silent member may return without an answer, and the word stays with the verifier: its clock
/// ends the case, though it cannot recompute what it has no state of.
#[test]
fn who_returns_without_an_answer_has_no_second_turn() {
    let (mut world, audits) = gone_back();
    assert_eq!(silenced(&mut world, 1000), [(member(11), Round(0))]);
    let back =
        Return { height: world.ledger.height(), addresses: List::default(), engagement: Default::default() };
    world.seal(Body::Return(id(11).sign(world.run, &back)));
    assert_eq!(world.ledger.member(&member(11)).unwrap().standing, Standing::Active);
    assert!(world.docket.idles(1000, &world.ledger).is_empty());
    let mut open = world.docket.open_cases(&world.ledger);
    assert_eq!(open.next().unwrap().waits_for, WaitsFor::Verifier);
    drop(open);
    assert_eq!(silenced(&mut world, 1_000_000), []);
    // A verifier that was restarted since knows what it is to do, too.
    drop(audits);
    let mut audits = world.audits();
    audits.take(&world.ledger, &[]).unwrap();
    assert!(audits.works(&|_| true).any(|work| matches!(work.kind, WorkKind::Everything)));
    let patience = fetched(&world) + 3 * u64::from(world.manifest.timers.commit);
    assert!(world.docket.idles(1000 + patience - 1, &world.ledger).is_empty());
    let [Body::Idle(idle)] = &world.docket.idles(1000 + patience, &world.ledger)[..] else { panic!() };
    assert_eq!((idle.verifier, idle.round), (member(21), Round(0)));
}

/// DUTY-4: the clock is about the oldest thing that is owed, so that is done first, however long it takes.
#[test]
fn what_is_owed_is_done_in_order_of_age() {
    for (slot, first) in [(0, "everything"), (1, "leaves")] {
        let mut world = World::new([Conduct::Honest; 2], manifest(ALWAYS, 0));
        let mut audits = world.audits();
        audits.take(&world.ledger, &[]).unwrap();
        let works = |audits: &Audits| audits.works(&|_| true).count();
        while works(&audits) < 2 {
            let message = audits.next_message(&|_| true).unwrap();
            audits.told(&message);
            let (Message::Notice(_, notice) | Message::Say(notice)) = message else { panic!("{message:?}") };
            let events = world.post(*notice);
            audits.take(&world.ledger, &events).unwrap();
        }
        audits.record(&world.ledger, &world.silence(slot));
        let work = audits.next_work(&|_| true).unwrap();
        assert_eq!(work.subject.commit.slot, Slot(0));
        assert_eq!(matches!(work.kind, WorkKind::Everything), first == "everything", "{work:?}");
    }
}

/// Asks about everything.
struct Asks;

impl muster_roles::verifier::audits::Conduct for Asks {
    fn asks(&self, _: MemberId, _: bool) -> bool {
        true
    }
}

/// A request that the steward refuses because another verifier was faster is no audit that waits for ever.
#[test]
fn a_refused_request_is_made_again_once_it_is_due() {
    let mut world = shared([Conduct::Honest; 2], true);
    let mut all = [world.audits_of(21), world.audits_of(22).conducted(Arc::new(Asks))];
    // It has taken the audits over before it hears of a pass.
    all[1].take(&world.ledger, &[]).unwrap();
    let (key, _) = all[1].asked().next().unwrap();
    world.run_all(&mut all[..1]);
    let seen: Vec<Event> = world.board.iter().map(|notice| Event::Notice(Box::new(notice.clone()))).collect();
    all[1].take(&world.ledger, &seen).unwrap();
    while let Some(message) = all[1].next_message(&|_| true) {
        all[1].refused(&message);
        all[1].told(&message);
    }
    world.seal_to(&mut all, ban(&world));
    let asks_again = |audits: &Audits| {
        matches!(audits.next_message(&|_| true), Some(Message::Notice(of, notice))
            if of == key && matches!(*notice, Notice::Request(_)))
    };
    let mut some = asks_again(&all[1]);
    while let Some(message) = all[1].next_message(&|_| true) {
        some |= asks_again(&all[1]);
        all[1].told(&message);
    }
    assert!(some, "what a banned one has passed is audited again");
}

/// AUDIT-25: who was drawn once may say later, too, what is wrong; that it is right it may not.
#[test]
fn what_is_wrong_is_heard_of_one_that_was_replaced() {
    let mut world = shared([Conduct::Honest, Conduct::FlipsLeaves], true);
    world.docket.idles(0, &world.ledger);
    for body in world.docket.idles(2000, &world.ledger) {
        world.seal_to(&mut [], body);
    }
    assert_eq!(world.ledger.member(&member(21)).unwrap().standing, Standing::Away);
    let freeze = world.ledger.round(Round(0)).unwrap().freeze_digest().unwrap();
    let said = |target, finding| {
        let said = Recomputation { round: Round(0), freeze, target: member(target), finding };
        Notice::Recomputation(id(21).sign(world.run, &said))
    };
    let (right, wrong) = (said(11, Finding::Pass), said(12, Finding::Guilty(FindingKind::TotalMismatch)));
    assert!(world.docket.post(1000, &world.ledger, &right).is_err());
    world.docket.post(1000, &world.ledger, &wrong).unwrap();
    let charges = world.docket.charges(&world.ledger);
    let [(accuser, Evidence::Total(total))] = &charges[..] else { panic!("{charges:?}") };
    assert_eq!((*accuser, total.culprit), (member(21), member(12)));
}

/// AUDIT-25: what a verifier has passed stays passed, also for a steward that is restarted after that verifier went idle: the
/// others have seen it pass, do nothing, and must not be idle for that.
#[test]
fn what_an_idle_verifier_has_passed_is_owed_by_nobody_after_a_restart() {
    let mut world = shared([Conduct::Sleeps, Conduct::Honest], true);
    let mut all = [world.audits_of(21), world.audits_of(22)];
    world.run_all(&mut all);
    for body in world.docket.silences(1000, &world.ledger) {
        world.seal_to(&mut all, body);
    }
    world.run_all(&mut all);
    let inspector = world.inspector(0);
    assert!(world.docket.has_passed(&world.ledger, Round(0), &member(11)), "by all its leaves");
    world.seal_to(&mut all, Body::Idle(Idle { verifier: inspector, round: Round(0) }));
    world.docket = Docket::default();
    for notice in &world.board {
        let _ = world.docket.recall(1000, &world.ledger, notice);
    }
    assert!(world.docket.has_passed(&world.ledger, Round(0), &member(11)));
    world.run_all(&mut all);
    assert!(world.docket.idles(2000, &world.ledger).is_empty());
    assert!(world.docket.idles(1_000_000, &world.ledger).is_empty());
}

/// A steward that was restarted has no board: a credit that it has sealed closes the case still.
#[test]
fn what_the_ledger_has_credited_is_not_asked_about_again() {
    let mut world = World::new([Conduct::Honest; 2], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    world.run(&mut audits);
    world.train(&mut Exact::new(1, None).unwrap());
    (world.docket, world.board) = (Docket::default(), Vec::new());
    assert!(world.docket.has_passed(&world.ledger, Round(0), &member(11)));
    assert!(world.docket.idles(0, &world.ledger).is_empty());
    let mut open = world.docket.open_cases(&world.ledger);
    assert!(
        open.all(|case| case.round == Round(1) || case.target.is_none()),
        "only coins of the first round"
    );
}
