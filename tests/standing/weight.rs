//! What a newcomer weighs before and after its probation, and how a run goes on in which nothing weighs.

use e2e::processes::Run;
use e2e::settings::Settings;
use e2e::sim::{Behaviour, Plan, Sim};
use e2e::{oracle, programs};
use muster_core::ids::{Round, Slot};
use muster_core::ledger::{Ledger, Stage};
use muster_core::manifest::Admission;
use muster_core::messages::audit::FindingKind;
use muster_core::messages::enrol::Role;
use muster_core::messages::record::Body;
use muster_replica::archive::Archive;

use crate::chain::{Chain, VERIFIERS, id, on_probation, refused};

#[test]
fn a_newcomer_weighs_nothing_however_much_it_commits() {
    let mut chain = Chain::new(on_probation());
    chain.begin();
    chain.invite(30, Role::Node, false);
    chain.round(Vec::new());
    chain.freeze();
    let view = chain.ledger.current().expect("a round").clone();
    let slot = view.slot_of(&id(30)).expect("a seat");
    let commitment = view.commitment(slot).expect("a commitment");
    assert_eq!((commitment.commit.leaves, commitment.weight), (16, 0));
    let founder = view.commitment(Slot(0)).expect("a commitment");
    assert_eq!((founder.commit.leaves, founder.weight), (16, 16));
    // STAND-3: it counts in no part, and nobody sends it one.
    assert_eq!(view.aggregators(), [Slot(0), Slot(1)]);
    refused(chain.inputs(&[Slot(0), slot]), "with weight");
    chain.inputs(&[Slot(0), Slot(1)]).expect("inputs");
    // Neither does its echo stand in for that of one that counts.
    refused(chain.outcome(&[10, 30], Vec::new()), "the echo of every slot");
    chain.outcome(&[10, 11], Vec::new()).expect("an outcome");
}

#[test]
fn two_verifiers_end_a_probation_and_one_alone_does_not() {
    let mut chain = Chain::new(on_probation());
    chain.begin();
    chain.invite(30, Role::Node, false);
    chain.round(Vec::new());
    // A friend among the verifiers passes it whenever it is drawn.
    chain.round(Vec::new());
    for _ in 0..9 {
        let credit = chain.drawn(30, VERIFIERS[0]);
        chain.round(vec![credit]);
    }
    // STAND-2: one verifier counts for half of the probation at most, however often it vouches.
    assert_eq!(chain.ledger.credit(chain.member(30)), 18);
    assert!(!chain.ledger.weighs(chain.member(30)));
    for _ in 0..2 {
        let credit = chain.drawn(30, VERIFIERS[1]);
        chain.round(vec![credit]);
    }
    assert!(chain.ledger.weighs(chain.member(30)));
    chain.freeze();
    let view = chain.ledger.current().expect("a round").clone();
    let slot = view.slot_of(&id(30)).expect("a seat");
    assert_eq!(view.commitment(slot).map(|c| (c.commit.leaves, c.weight)), Some((16, 16)));
    chain.inputs(&[Slot(0), Slot(1), slot]).expect("it counts");
    chain.outcome(&[10, 11, 30], Vec::new()).expect("an outcome");
    assert!(chain.ledger.current().expect("a round").aggregators().contains(&slot));
}

/// A newcomer past its probation, whom two verifiers passed in turn for a while; one of them is convicted of this.
fn earned_through(finding: FindingKind) -> (Chain, u64) {
    let mut chain = Chain::new(Admission { newcomer_ppm: 500_000, halving: 4, ..on_probation() });
    chain.begin();
    chain.invite(30, Role::Node, false);
    chain.round(Vec::new());
    chain.earn(30, 8);
    assert!(chain.ledger.weighs(chain.member(30)));
    let before = chain.ledger.credit(chain.member(30));
    chain.convict(VERIFIERS[1], finding);
    (chain, before)
}

#[test]
fn stand_1_a_hostile_verifier_s_ban_takes_no_weight_from_those_that_it_has_passed() {
    let (mut chain, before) = earned_through(FindingKind::FalseAccusation);
    let after = chain.ledger.credit(chain.member(30));
    // Two of each contribution are drawn, and the state of four rounds is kept: only these are open again.
    assert!(before - after <= 8 && after < before, "{before} before, {after} after");
    assert!(chain.ledger.weighs(chain.member(30)), "what it earned earlier is not taken from it");
    assert_eq!(chain.ledger.audit_ppm(chain.member(30)), 1_000_000, "and the rest is examined again");
    // The other verifier passes what is open again, or later contributions, until as much is recomputed.
    while chain.member(30).doubt > 0 {
        let doubt = chain.member(30).doubt;
        let credit = chain.drawn(30, VERIFIERS[0]);
        chain.round(vec![credit]);
        assert_eq!(chain.member(30).doubt, doubt.saturating_sub(2));
    }
    assert_eq!(chain.ledger.audit_ppm(chain.member(30)), 100_000);
    // Founders have their weight from the organiser.
    assert!(chain.ledger.weighs(chain.member(10)) && chain.member(10).doubt == 0);
}

#[test]
fn stand_11_what_a_false_acquittal_leaves_unproved_is_recomputed_by_others() {
    let (mut chain, before) = earned_through(FindingKind::FalseAcquittal);
    assert!(chain.ledger.credit(chain.member(30)) < before);
    assert!(chain.ledger.weighs(chain.member(30)));
    // All that the convict passed is in doubt, up to a whole probation: 16 leaves of 8.
    assert_eq!((chain.member(30).doubt, chain.ledger.audit_ppm(chain.member(30))), (8, 1_000_000));
    for left in [6, 4, 2, 0] {
        let credit = chain.drawn(30, VERIFIERS[0]);
        chain.round(vec![credit]);
        assert_eq!(chain.member(30).doubt, left);
    }
    assert_ne!(chain.ledger.audit_ppm(chain.member(30)), 1_000_000);
}

#[test]
fn stand_11_a_founder_is_not_in_doubt_by_what_a_convict_has_passed_of_it() {
    let mut chain = Chain::new(on_probation());
    chain.begin();
    chain.round(Vec::new());
    chain.earn(10, 2);
    chain.convict(VERIFIERS[1], FindingKind::FalseAcquittal);
    assert_eq!((chain.member(10).doubt, chain.ledger.audit_ppm(chain.member(10))), (0, 100_000));
}

#[test]
fn weight_grows_with_credit_and_the_rate_of_audits_falls_with_it() {
    let mut chain = Chain::new(Admission { newcomer_ppm: 500_000, halving: 4, ..on_probation() });
    chain.begin();
    chain.invite(30, Role::Node, false);
    chain.round(Vec::new());
    let mut seen = Vec::new();
    for _ in 0..4 {
        chain.freeze();
        let view = chain.ledger.current().expect("a round").clone();
        let commitment = view.commitment(view.slot_of(&id(30)).expect("a seat")).expect("a commitment");
        seen.push((commitment.weight, commitment.audit_ppm));
        chain.inputs(&[]).expect("inputs");
        chain.outcome(&[10, 11], Vec::new()).expect("an outcome");
        chain.earn(30, 1);
    }
    // At last it has more credit than leaves: a third of 32.
    assert_eq!(seen, [(0, 500_000), (0, 250_000), (8, 125_000), (10, 100_000)]);
}

#[test]
fn parts_in_which_nothing_weighs_are_left_out_and_the_round_goes_on() {
    let mut behaviours = [Behaviour::Honest; 5];
    behaviours[0] = Behaviour::Withholds;
    behaviours[1] = Behaviour::Withholds;
    let mut sim = Sim::new(Plan {
        founders: 2,
        change: |manifest| manifest.admission = Admission { start_nodes: 2, ..on_probation() },
        ..Plan::behaving(7, 4, &behaviours)
    });
    sim.run(3_600_000);
    assert_eq!(sim.ledger().stage(), Stage::Closed);
    assert!(sim.heads().iter().all(|head| *head == sim.ledger().head()));
    let (mut outcomes, mut reassigned) = (0, 0);
    for record in sim.records() {
        match record.body {
            Body::Outcome(outcome) => {
                assert!(outcome.results.iter().all(Option::is_none), "a newcomer counted");
                assert_eq!(outcome.results.len(), 2, "founders reduce, newcomers do not");
                outcomes += 1;
            }
            Body::Reassign(_) => reassigned += 1,
            _ => {}
        }
    }
    assert_eq!((outcomes, sim.ledger().state().step()), (4, 4));
    assert!(reassigned <= 4);
}

#[test]
fn round_32_a_run_in_which_nobody_has_weight_or_can_earn_any_spends_no_round() {
    let behaviours = [Behaviour::Dies(Round(1), Stage::Computing), Behaviour::Honest, Behaviour::Honest];
    let mut sim = Sim::new(Plan {
        founders: 1,
        change: |manifest| manifest.admission = Admission { start_nodes: 1, ..on_probation() },
        ..Plan::behaving(8, 4, &behaviours)
    });
    sim.run(24 * 3_600_000);
    // No verifier is there either: newcomers alone would take steps in which nothing moves, and use the run up.
    assert_eq!((sim.ledger().stage(), sim.ledger().next_round()), (Stage::Computing, Round(1)));
}

#[test]
fn newcomers_alone_end_their_probation_where_verifiers_are() {
    let behaviours = [Behaviour::Dies(Round(1), Stage::Computing), Behaviour::Honest, Behaviour::Honest];
    let mut sim = Sim::new(Plan {
        founders: 1,
        verifiers: 2,
        share_ppm: 1_000_000,
        change: |manifest| {
            manifest.admission = Admission { start_nodes: 1, start_verifiers: 2, ..on_probation() };
        },
        ..Plan::behaving(8, 40, &behaviours)
    });
    sim.run(3_600_000);
    assert_eq!(sim.ledger().stage(), Stage::Closed, "it ends by {}", sim.now());
    let last = sim.ledger().current().expect("a round");
    assert!(last.weighs(), "somebody has earned weight");
}

#[test]
fn a_stranger_in_an_open_run_counts_once_two_verifiers_have_recomputed_enough() {
    let settings = Settings { rounds: 60, nodes: 2, verifiers: 2, audit: (1.0, 2), ..Settings::default() };
    let admission = "[admission]\nmode = \"open\"\nprobation = 6\nvouchers = 2";
    let settings = settings.to_string().replace("[admission]", admission);
    let run = Run::packed(programs!(), &settings, None);
    let mut steward = run.host();
    let founders = run.good(&["invite", &run.at("run"), "--role", "node", "--founder", "--uses", "2"]);
    let verifiers = run.invite("verifier", 2);
    let mut watches = ["left", "right"].map(|name| run.watch(name, &verifiers));
    // It comes first, without an invitation, and the run does not begin with it.
    let line = run.good(&["invite", &run.at("run")]);
    let mut newcomer = run.join("newcomer", line.trim(), &[]);
    let mut nodes = ["first", "second"].map(|name| run.join(name, founders.trim(), &[]));
    run.wait_round(20);
    let shown = run.good(&["members", &run.at("run")]);
    assert_eq!(shown.matches("founder").count(), 2, "{shown}");
    assert_eq!(newcomer.wait(), 0, "{}", newcomer.log());
    nodes
        .iter_mut()
        .chain(&mut watches)
        .for_each(|process| assert_eq!(process.wait(), 0, "{}", process.log()));
    assert_eq!(steward.wait(), 0, "{}", steward.log());
    run.check_end(&["first", "second", "newcomer"]);
    assert_eq!(format!("{:#}", oracle::train(&run.path("run"))), run.root());
    let id = run.good(&["id", "--data-dir", &run.at("newcomer")]).trim().to_owned();
    let history = history(&run, &id);
    let ended = history.iter().position(|(_, weight, _)| *weight > 0).expect("its probation ends");
    assert!(ended >= 2, "two leaves a verifier and round, three of each are needed: {history:?}");
    assert!(history[..ended].iter().all(|(_, weight, counted)| *weight == 0 && !counted), "{history:?}");
    assert!(
        history[ended..].iter().all(|(leaves, weight, counted)| *weight == *leaves && *counted),
        "{history:?}"
    );
    let shown = run.good(&["members", &run.at("run")]);
    assert!(shown.contains("node      active, counts,"), "{shown}");
}

/// Rounds in which a member committed: the number of its leaves, m_eff, and whether it counted in the aggregate.
fn history(run: &Run, member: &str) -> Vec<(u32, u32, bool)> {
    let archive = Archive::open(&run.path("run")).expect("an archive");
    let mut ledger = Ledger::new(archive.manifest.clone());
    let mut history = Vec::new();
    for signed in &archive.records {
        let record = ledger.apply(signed).expect("an honest ledger");
        let Body::Outcome(outcome) = &record.body else { continue };
        let view = ledger.round(outcome.round).expect("a round just ended");
        let mut own = view.commitments().filter(|(_, c)| format!("{:#}", c.author) == member);
        history.extend(own.next().map(|(slot, c)| (c.commit.leaves, c.weight, view.counted(slot))));
    }
    history
}
