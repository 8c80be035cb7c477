//! Inviters answer for those below them: trees that a ban or the organiser closes.

use e2e::processes::{Run, wait_for};
use e2e::programs;
use e2e::settings::Settings;
use e2e::sim::{Behaviour, Plan, Sim};
use muster_core::codec::{decode, encode};
use muster_core::ids::{Digest, RunId};
use muster_core::ledger::{Closed, Stage, Standing};
use muster_core::messages::enrol::{CloseTree, Leave, Role, Ticket};
use muster_core::messages::record::Body;

use crate::chain::{ORGANISER, STEWARD, family, id, invitation, person, refused};

#[test]
fn an_inviter_answers_for_those_below_it() {
    let mut chain = family();
    chain.bring(43, 41).expect("41 may");
    // 42 is convicted: nobody comes by it, nor by 40, who brought it in; 10 and 41 are not touched.
    chain.ban(42);
    assert!(chain.ledger.is_closed(chain.member(40)) && chain.ledger.is_closed(chain.member(42)));
    refused(chain.bring(50, 40), "brought in a convict");
    refused(chain.bring(50, 42), "while it takes part");
    chain.bring(50, 41).expect("another branch");
    // 41 is convicted, whom 10 brought in: everyone below 10 is closed, the honest 40 included.
    let mut chain = family();
    chain.ban(41);
    refused(chain.bring(50, 40), "brought in a convict");
    refused(chain.bring(50, 10), "brought in a convict");
    assert_eq!(chain.member(40).standing, Standing::Active, "who was there stays");
    chain.invite(51, Role::Node, false);
}

#[test]
fn ledger_21_the_organiser_closes_a_tree_and_who_is_there_stays() {
    let mut chain = family();
    let shown_early = chain.presented(50, &invitation(40, Role::Node, false, 7), 40);
    let seats = chain.ledger.derived_seats();
    let before: Vec<_> = [40, 42].map(|who| (chain.member(who).standing, chain.member(who).since)).to_vec();
    chain.close_tree(40, ORGANISER).expect("the organiser may");
    // STAND-6: neither weight nor seat nor standing is lost by it.
    assert_eq!(chain.ledger.derived_seats(), seats);
    let after: Vec<_> = [40, 42].map(|who| (chain.member(who).standing, chain.member(who).since)).to_vec();
    assert_eq!(before, after);
    assert!([40, 42].iter().all(|who| chain.ledger.weighs(chain.member(*who))));
    // An invitation from before, brought now and brought later, is worth nothing.
    let late = chain.enrol(50, Some(shown_early));
    refused(chain.seal(Body::Admit(late.clone())), "closed their tree");
    chain.round(Vec::new());
    refused(chain.seal(Body::Admit(late)), "closed their tree");
    // Other branches, and the organiser, go on.
    chain.bring(51, 41).expect("another branch");
    chain.invite(52, Role::Node, false);
    // From the root of it, everybody below is closed; for good, and once.
    let mut chain = family();
    chain.close_tree(10, ORGANISER).expect("the organiser may");
    refused(chain.bring(50, 40), "closed their tree");
    refused(chain.bring(50, 41), "closed their tree");
    refused(chain.close_tree(10, ORGANISER), "closed already");
    refused(chain.close_tree(42, ORGANISER), "closed already");
    chain.round(Vec::new());
}

#[test]
fn ledger_21_nobody_else_closes_a_tree() {
    let mut chain = family();
    // The steward that seals it, the member itself, its inviter, one below it, a stranger.
    for by in [STEWARD, 40, 10, 42, 99] {
        refused(chain.close_tree(40, by), "only the organiser does");
    }
    refused(chain.close_tree(99, ORGANISER), "only a member's tree");
    let order = CloseTree { member: id(40) };
    let elsewhere = person(ORGANISER).sign(RunId(Digest([3; 32])), &order);
    refused(chain.seal(Body::CloseTree(elsewhere)), "another run");
    // What the organiser has signed for another purpose is no order.
    let other = person(ORGANISER).sign(chain.run(), &Leave { height: chain.ledger.height() });
    let dressed = decode(&encode(&other)).expect("an envelope");
    refused(chain.seal(Body::CloseTree(dressed)), "signature");
    assert!(chain.member(40).closed.is_none());
    chain.bring(50, 40).expect("nothing has changed");
    while chain.ledger.stage() == Stage::Computing {
        chain.round(Vec::new());
    }
    refused(chain.close_tree(40, ORGANISER), "nobody comes");
}

#[test]
fn trees_that_are_closed_amid_rounds_cost_no_round_and_no_seat() {
    let run = |closing: bool| {
        let mut sim = Sim::new(Plan::behaving(11, 8, &[Behaviour::Honest; 5]));
        for number in [1, 3] {
            sim.run(sim.now() + 300);
            assert!(sim.ledger().stage() != Stage::Closed, "it is still on its way");
            if closing {
                sim.close_tree(number);
            }
        }
        sim.run(3_600_000);
        assert_eq!(sim.ledger().stage(), Stage::Closed);
        assert!(sim.heads().iter().all(|head| *head == sim.ledger().head()), "everybody follows");
        let closed = sim.ledger().members().iter().filter(|member| member.closed == Some(Closed::Ordered));
        let seats = sim.records().filter_map(|record| match record.body {
            Body::Outcome(outcome) => Some(outcome.seats),
            _ => None,
        });
        (closed.count(), seats.collect::<Vec<_>>(), sim.ledger().state().step())
    };
    // The bits of the state are others: results are rounded by R_t, which follows from all records (AGG-23).
    let ((none, seats, step), (both, same_seats, same_step)) = (run(false), run(true));
    assert_eq!((none, both), (0, 2));
    assert_eq!((seats, step), (same_seats, same_step));
}

#[test]
fn an_organiser_closes_a_tree_by_hand_and_the_run_goes_on() {
    let settings = Settings { rounds: 150, nodes: 2, ..Settings::default() };
    let settings = settings.to_string().replace("[admission]", "[admission]\nmember_invites = 4");
    let run = Run::packed(programs!(), &settings, None);
    let mut steward = run.host();
    let line = run.invite("node", 2);
    let mut nodes = ["first", "second"].map(|name| run.join(name, &line, &[]));
    let ticket = Ticket::from_line(&line).expect("an invitation");
    let address = format!("{:#}@{:#}@{}", ticket.run, ticket.steward, &*ticket.addresses[0]);
    let mut observer = run.observe("observer", &address);
    run.wait_round(1);
    let first = run.good(&["id", "--data-dir", &run.at("first")]).trim().to_owned();
    let line = run.good(&["invite", &run.at("first"), "--role", "node", "--uses", "3"]);
    let mut third = run.join("third", line.trim(), &[]);
    wait_for("the third node", || run.events("admit").len() == 3);
    let close = |member: &str| run.muster(&["close-tree", &run.at("run"), member]);
    let (code, output) = close(&first[..12]);
    assert!(code == 0 && output.contains("closed by the organiser"), "{code}: {output}");
    assert!(output.contains("may bring in nobody any more"), "the third node is below: {output}");
    let mut fourth = run.join("fourth", line.trim(), &[]);
    assert!(fourth.wait() == 1 && fourth.log().contains("closed their tree"), "{}", fourth.log());
    let (code, output) = close(&first);
    assert!(code == 1 && output.contains("closed already"), "{code}: {output}");
    let (code, output) = close("no-such-member");
    assert!(code == 2 && output.contains("`muster members` lists them"), "{code}: {output}");
    let (code, output) = run.muster(&["close-tree", &run.at("first"), &first]);
    assert!(code == 3, "a member has no such power: {code}: {output}");
    assert_ne!(
        steward.wait_at_most(std::time::Duration::from_millis(30)),
        Some(0),
        "the run was too short for this test"
    );
    nodes.iter_mut().chain([&mut third, &mut observer, &mut steward]).for_each(|process| {
        assert_eq!(process.wait(), 0, "{}", process.log());
    });
    run.check_end(&["first", "second", "third"]);
    assert_eq!(run.events("close-tree").len(), 1);
    assert!(observer.log().contains(&format!("closed the tree of {}", &first[..16])), "{}", observer.log());
    let shown = run.good(&["members", &run.at("run")]);
    assert!(shown.contains("brought in 1, closed by the organiser"), "{shown}");
    let (code, output) = close(&first);
    assert!(code == 1 && output.contains("the run is over"), "{code}: {output}");
}
