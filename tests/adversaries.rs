//! Every attack that there is, in simulated runs: who is banned for it, and that nobody else is.

use e2e::parallel::in_parallel;
use e2e::sim::{Plan, Player, Report, Sim, cast, mixture, places};
use muster_core::codec::{List, Real};
use muster_core::ids::Round;
use muster_core::manifest::fixture::local;
use muster_core::manifest::{Manifest, Profile, Rule, Tolerance};
use muster_core::messages::audit::FindingKind;
use muster_rehearse::attack::{ATTACKS, Attack, Wrong};

const FROM: Round = Round(4);

fn attack(name: &str) -> Attack {
    name.parse().expect("an attack")
}

/// A run in which every contribution and every block is audited in full.
fn watched(seed: u64, rounds: u32, players: Vec<Player>) -> Plan {
    let plan = Plan::new(seed, rounds, players);
    Plan { verifiers: 1, share_ppm: 1_000_000, drawn: 2, change: all_blocks, ..plan }
}

fn all_blocks(manifest: &mut Manifest) {
    manifest.audit.blocks_ppm = 1_000_000;
}

/// The same, on a model that an attack on experts suits.
fn all_blocks_of_a_mixture(manifest: &mut Manifest) {
    all_blocks(manifest);
    mixture(manifest);
}

/// The same in a run of local updates.
fn all_blocks_of_local_updates(manifest: &mut Manifest) {
    all_blocks(manifest);
    // As many segments as an audit draws, so that none is overlooked.
    local(manifest, 2);
}

fn finding(wrong: Wrong) -> Option<FindingKind> {
    match wrong {
        Wrong::Sum => Some(FindingKind::SumMismatch),
        Wrong::Rows | Wrong::HalfOfRows | Wrong::LaterRows | Wrong::Row => Some(FindingKind::LeafMismatch),
        Wrong::Silence | Wrong::Hidden => Some(FindingKind::TotalMismatch),
        Wrong::Words => Some(FindingKind::Equivocation),
        Wrong::Part | Wrong::Block => Some(FindingKind::AggregationMismatch),
        Wrong::Answers => Some(FindingKind::FalseAnswer),
        Wrong::Nothing(_) => None,
    }
}

/// All cheats are banned for what they did, and nobody else is.
fn judge(report: &Report, attacks: &[Attack], what: &str) {
    assert_eq!((report.false_bans(), report.dismissed), (0, 0), "{what}: {report:?}");
    let convictable = attacks.iter().filter(|attack| finding(attack.betrayal.wrong).is_some());
    let mut expected: Vec<FindingKind> =
        convictable.filter_map(|attack| finding(attack.betrayal.wrong)).collect();
    let mut found: Vec<FindingKind> =
        report.convictions.iter().map(|conviction| conviction.finding).collect();
    expected.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, expected, "{what}: {report:?}");
    assert!(report.convictions.iter().all(|conviction| conviction.round >= FROM), "{what}: {report:?}");
}

/// DUTY-11: where there is a tolerance, drawn verifiers re-execute what was found before anybody is banned for it.
#[test]
fn duty_11_jurors_convict_cheats_and_nobody_else_where_there_is_a_tolerance() {
    // Leaves are for jurors to judge, three of four verifiers beside the accuser; sums and parts are exact.
    let cases = [("sign", 3), ("half", 3), ("one-leaf", 3), ("flip", 0), ("nudge", 0)];
    in_parallel(&cases, |(name, jurors)| {
        let attacks = [attack(name)];
        let plan = watched(11, 14, cast(5, &attacks, FROM, 11));
        let change: fn(&mut Manifest) = |manifest| {
            manifest.audit.blocks_ppm = 1_000_000;
            let bound = Real::new(1e-3).expect("a finite constant");
            let groups = List::new(vec![bound]).expect("one");
            (manifest.profile, manifest.tolerance) = (Profile::F32, Tolerance { groups, loss: bound });
        };
        let report = Sim::new(Plan { verifiers: 4, change, ..plan }).finish();
        judge(&report, &attacks, name);
        assert_eq!(report.opinions, *jurors, "{name}: {report:?}");
    });
}

/// The attacks in troupes that play in one run each: an eighth of the nodes cheats. One that has seldom something to do is played
/// by a quarter of them, and one on experts beside its like. Attacks on calls, which nobody makes here, and those on rows and
/// local updates are played elsewhere.
fn troupes(nodes: usize) -> Vec<Vec<Attack>> {
    let size = nodes.div_ceil(8);
    let played = ATTACKS.iter().filter(|a| !a.wants_calls() && !a.wants_rows() && !a.wants_local()).copied();
    let (rare, others): (Vec<Attack>, Vec<Attack>) = played.partition(|attack| seldom(attack, nodes));
    let (experts, others): (Vec<Attack>, Vec<Attack>) = others.into_iter().partition(Attack::wants_experts);
    let together = [others, experts]
        .into_iter()
        .flat_map(|all| all.chunks(size).map(<[Attack]>::to_vec).collect::<Vec<_>>());
    together.chain(rare.into_iter().map(|attack| vec![attack; nodes / 4])).collect()
}

/// Each attack among `nodes` nodes, with a verifier for each dozen of them. `share_ppm` of the contributions are audited. Nobody
/// but cheats is banned, and each for what it did; of those of whom it is `sure`, each is.
fn each_attack(nodes: usize, rounds: u32, share_ppm: u32, sure: impl Fn(&Attack) -> bool + Sync) {
    let jobs: Vec<(u64, Vec<Attack>)> = (0..).zip(troupes(nodes)).collect();
    in_parallel(&jobs, |(seed, troupe)| {
        let plan = watched(*seed, rounds, cast(nodes, troupe, FROM, *seed));
        let verifiers = nodes.div_ceil(12) as u16;
        let experts = troupe.iter().any(Attack::wants_experts);
        let change = if experts { all_blocks_of_a_mixture } else { all_blocks };
        let report = Sim::new(Plan { verifiers, share_ppm, change, ..plan }).finish();
        let names: Vec<&str> = troupe.iter().map(|attack| attack.name).collect();
        judge_troupe(&report, troupe, nodes, &sure, &format!("{} among {nodes}", names.join(" ")));
    });
}

/// Each cheat of a troupe is banned for its own attack, and nobody else is.
fn judge_troupe(
    report: &Report,
    troupe: &[Attack],
    nodes: usize,
    sure: impl Fn(&Attack) -> bool,
    what: &str,
) {
    let escaped = report.convictions.is_empty() && !sure(&troupe[0]);
    if seldom(&troupe[0], nodes) && !escaped {
        return judge_among(nodes)(report, &troupe[0], what);
    }
    assert_eq!((report.false_bans(), report.dismissed), (0, 0), "{what}: {report:?}");
    for (attack, node) in troupe.iter().zip(places(nodes, troupe.len())) {
        let bans = report.convictions.iter().filter(|ban| ban.node == node);
        let found: Vec<FindingKind> = bans.map(|ban| ban.finding).collect();
        let escaped = found.is_empty() && !sure(attack);
        let deserved = found.iter().copied().eq(finding(attack.betrayal.wrong));
        assert!(escaped || deserved, "{} is found for {found:?}; {what}: {report:?}", attack.name);
    }
    assert!(report.convictions.iter().all(|ban| ban.round >= FROM), "{what}: {report:?}");
}

/// LOCAL-8: of chains of steps, each attack that any run or one of local updates can be played.
#[test]
fn each_attack_on_local_updates_is_blamed_on_its_author_alone() {
    let played = |attack: &&Attack| !attack.wants_calls() && !attack.wants_experts();
    let jobs: Vec<(u64, Attack)> = (0..).zip(ATTACKS.iter().filter(played).copied()).collect();
    in_parallel(&jobs, |(seed, attack)| {
        let plan = watched(*seed, 10, cast(4, &[*attack], FROM, *seed));
        let report = Sim::new(Plan { change: all_blocks_of_local_updates, ..plan }).finish();
        judge_among(4)(&report, attack, &format!("{} on local updates", attack.name));
    });
}

/// ROUND-28: each attack in a run whose updates come a round late.
#[test]
fn each_attack_is_blamed_on_its_author_alone_where_updates_come_late() {
    let played = |attack: &&Attack| !attack.wants_calls() && !attack.wants_experts() && !attack.wants_local();
    let jobs: Vec<(u64, Attack)> = (0..).zip(ATTACKS.iter().filter(played).copied()).collect();
    in_parallel(&jobs, |(seed, attack)| {
        let plan = watched(*seed, 10, cast(4, &[*attack], FROM, *seed));
        let change = |manifest: &mut Manifest| {
            all_blocks(manifest);
            manifest.delay = 1;
        };
        let report = Sim::new(Plan { change, ..plan }).finish();
        judge_among(4)(&report, attack, &format!("{} with a delay", attack.name));
    });
}

/// Whether one cheat might have nothing to reduce in a short run: a model of few blocks has fewer parts than nodes.
fn seldom(attack: &Attack, nodes: usize) -> bool {
    let reduces = matches!(attack.betrayal.wrong, Wrong::Part | Wrong::Block) || attack.name == "twice";
    reduces && nodes > 4
}

/// As [`judge`]; of those that have seldom something to reduce, some are banned.
fn judge_among(nodes: usize) -> impl Fn(&Report, &Attack, &str) + Sync {
    move |report, attack, what| {
        if !seldom(attack, nodes) {
            return judge(report, &[*attack], what);
        }
        assert_eq!((report.false_bans(), report.dismissed), (0, 0), "{what}: {report:?}");
        let deserved = |found| {
            // The first of two results may be reduced again before the second one is there.
            let sooner = attack.name == "twice" && found == FindingKind::AggregationMismatch;
            finding(attack.betrayal.wrong) == Some(found) || sooner
        };
        let bans = &report.convictions;
        assert!(!bans.is_empty() && bans.iter().all(|ban| deserved(ban.finding)), "{what}: {report:?}");
    }
}

#[test]
fn each_attack_is_blamed_on_its_author_alone() {
    each_attack(4, 10, 1_000_000, |_| true);
}

#[test]
fn each_attack_is_blamed_on_its_author_alone_among_sixteen() {
    each_attack(16, 8, 1_000_000, |_| true);
}

#[test]
fn each_attack_is_blamed_on_its_author_alone_among_forty_eight() {
    each_attack(48, 7, 1_000_000, |_| true);
}

/// The final audit is of all contributions of the last rounds: who cheats in them is found, and who stopped before may
/// get away; nobody else is blamed.
#[test]
fn each_attack_is_blamed_on_its_author_alone_where_a_third_is_audited() {
    const ROUNDS: u32 = 10;
    each_attack(16, ROUNDS, 333_333, |attack| {
        (ROUNDS - 2..ROUNDS).any(|round| attack.betrayal.rhythm.bad(round - FROM.0))
    });
}

#[test]
fn conspirators_of_a_middle_sized_run_are_all_found() {
    let attacks = ["alie", "ipm-0.6", "mimic", "flip", "one-leaf"].map(attack);
    let report = Sim::new(watched(1, 8, cast(16, &attacks, FROM, 1))).finish();
    judge(&report, &attacks, "16 nodes");
}

#[test]
fn a_large_run_finds_its_cheats() {
    let attacks = ["flip", "lazy", "equivocate"].map(attack);
    let report = Sim::new(watched(2, 6, cast(64, &attacks, FROM, 2))).finish();
    judge(&report, &attacks, "64 nodes");
}

/// C3: beside the time of verifiers and steward, two contributions for each of two steps.
#[test]
fn audit_27_what_counts_between_act_and_ban_does_not_depend_on_how_late_a_cheat_answers() {
    for (seed, name) in (0..6).zip(["late-flip", "late-fit"].into_iter().cycle()) {
        let players = cast(6, &[attack(name)], Round(3), seed);
        let plan = Plan { verifiers: 2, share_ppm: 500_000, ..Plan::new(seed, 50, players) };
        let report = Sim::new(plan).finish();
        let [ban] = &report.convictions[..] else { panic!("{name}, seed {seed}: {report:?}") };
        let after = report.left.iter().filter(|left| left.round > ban.round).count();
        assert!(ban.deserved && after <= 8, "{name}, seed {seed}: {after} count after round {}", ban.round);
        assert_eq!(report.silences, 0, "{name}, seed {seed}: it is late and not silent");
    }
}

/// The simulator checks that nothing is lacking.
#[test]
fn audit_24_what_is_forgotten_while_a_cheat_lets_its_audit_wait_is_kept_by_value() {
    let kept = (0..8).map(|seed| {
        let players = cast(6, &[attack("late-flip")], Round(2), seed);
        let plan = Plan { verifiers: 1, share_ppm: 150_000, ..Plan::new(seed, 60, players) };
        Sim::new(plan).finish().kept_by_value
    });
    assert!(kept.sum::<usize>() > 0, "no ban came so late");
}

#[test]
fn a_seed_has_one_run() {
    let run = |seed| {
        let attacks = ["flip", "random"].map(attack);
        Sim::new(watched(seed, 8, cast(6, &attacks, FROM, seed))).finish()
    };
    let (first, second) = (run(3), run(3));
    assert_eq!(first, second);
    assert_ne!(first.trace, run(4).trace);
}

#[test]
fn honest_members_learn_and_are_acquitted() {
    for rule in [Rule::CenteredClip, Rule::Mean] {
        let plan = Plan { rule, verifiers: 2, ..Plan::new(7, 40, vec![Player::honest(); 5]) };
        let report = Sim::new(plan).finish();
        assert_eq!((report.convictions.len(), report.dismissed, report.silences), (0, 0, 0));
        assert_eq!((report.idles, report.wrong_parts.len()), (0, 0));
        // Honest contributions may lie far from their aggregate by chance, and their part is looked at twice.
        assert!(
            report.inspections.iter().all(|(_, right)| *right) && report.inspections.len() <= 1,
            "{report:?}"
        );
        assert!(report.verdicts > 80 && report.rechecks > 0, "{report:?}");
        assert!(report.losses[0] > 5.0 && report.last_loss() < 3.0, "{:?}", report.losses);
    }
}

#[test]
fn verifiers_in_league_with_the_cheats_delay_their_ban_until_a_recheck_finds_them() {
    let run = |seed, friends| {
        let attacks = ["lazy"; 2].map(attack);
        let change: fn(&mut Manifest) = |manifest| manifest.audit.recheck_ppm = 1_000_000;
        let cheats = cast(6, &attacks, FROM, seed);
        Sim::new(Plan { verifiers: 3, friends, change, ..watched(seed, 12, cheats) }).finish()
    };
    let watched = |seed, friends| {
        let report = run(seed, friends);
        assert_eq!((report.convictions.len(), report.false_bans()), (2, 0), "{seed}, {friends}: {report:?}");
        report.verifiers_banned.0
    };
    assert_eq!(watched(8, 0), 0);
    // Each verdict is re-executed; where a cheat falls to the honest one first, or the recheck to another one in league,
    // nothing comes of it.
    let in_league: Vec<usize> = (8..16).map(|seed| watched(seed, 2)).collect();
    assert!(
        in_league.iter().all(|found| *found <= 2) && in_league.iter().sum::<usize>() >= 2,
        "{in_league:?}"
    );
    let report = run(8, 3);
    assert_eq!(report.convictions, [], "nobody is left to see it: spec/model.md N6");
    assert_eq!(report.verifiers_banned, (0, 0));
}

#[test]
fn a_verifier_that_finds_everyone_guilty_of_a_total_mismatch_is_banned() {
    let banned = |seed| {
        let all =
            Plan { verifiers: 2, share_ppm: 1_000_000, ..Plan::new(seed, 8, vec![Player::honest(); 5]) };
        let mut sim = Sim::new(all);
        while sim.ledger().current().is_none_or(|view| view.round() < FROM) {
            sim.run(sim.now() + 100);
        }
        assert_eq!(sim.slander(0, Round(FROM.0 - 1)), 5);
        let report = sim.finish();
        assert_eq!((report.convictions.len(), report.verifiers_banned.0), (0, 0), "{report:?}");
        report.verifiers_banned.1 == 1
    };
    // AUDIT-25: where all that it inspects has passed by then, nobody listens to it.
    assert!((6..10).any(banned), "the one that slanders is banned");
}

#[test]
fn a_coalition_of_nearly_half_and_a_verifier_in_league_are_all_found() {
    let names = ["flip", "alie", "ipm-0.6", "lazy", "sign", "stale", "one-leaf", "random", "omit"];
    let attacks = names.map(attack);
    let change: fn(&mut Manifest) = |manifest| {
        (manifest.audit.blocks_ppm, manifest.audit.recheck_ppm) = (1_000_000, 1_000_000);
    };
    let found = |seed| {
        let watched = watched(seed, 12, cast(20, &attacks, FROM, 5));
        let report = Sim::new(Plan { verifiers: 4, friends: 1, change, ..watched }).finish();
        assert_eq!((report.false_bans(), report.dismissed), (0, 0), "{report:?}");
        assert_eq!(report.verifiers_banned.1, 0, "{report:?}");
        let out: std::collections::BTreeSet<usize> = report.convictions.iter().map(|ban| ban.node).collect();
        assert_eq!(out.len(), attacks.len(), "{report:?}");
        report.verifiers_banned.0 == 1
    };
    // Where each of its cheats falls to an honest verifier first, nothing comes of what it let pass.
    assert!((5..9).any(found), "the verifier in league is found");
}
