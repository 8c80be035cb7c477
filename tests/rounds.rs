//! Rounds in virtual time: what a member's failure costs, and whom.

use std::collections::BTreeSet;

use e2e::cases;
use e2e::sim::{Behaviour, Plan, Player, Sim, cast};
use muster_core::ids::{Part, Round};
use muster_core::ledger::{Stage, Standing};
use muster_core::manifest::Manifest;
use muster_core::messages::record::{Body, Outcome};
use muster_rehearse::attack::Campaign;

const HOUR: u64 = 3_600_000;

fn outcomes(sim: &Sim) -> Vec<Outcome> {
    sim.records()
        .filter_map(|record| if let Body::Outcome(outcome) = record.body { Some(outcome) } else { None })
        .collect()
}

fn finish(seed: u64, rounds: u32, behaviours: &[Behaviour]) -> Sim {
    let mut sim = Sim::new(Plan::behaving(seed, rounds, behaviours));
    sim.run(HOUR);
    assert_eq!(sim.ledger().stage(), Stage::Closed, "seed {seed}: the run did not end by {}", sim.now());
    assert!(sim.heads().iter().all(|head| *head == sim.ledger().head()), "seed {seed}: members disagree");
    sim
}

#[test]
fn honest_members_lose_nothing() {
    for seed in 0..5 {
        let sim = finish(seed, 6, &[Behaviour::Honest; 5]);
        for outcome in outcomes(&sim) {
            assert!(outcome.results.iter().all(Option::is_some));
            assert_eq!(outcome.results.len(), 5);
            let view = sim.ledger().round(outcome.round).expect("kept");
            assert_eq!(view.commitments().count(), 5);
            assert!(view.commitments().all(|(slot, _)| view.counted(slot)));
            assert!(view.echoed());
        }
        assert!(sim.now() < 6 * 5_000, "seed {seed}: a clean run waits for no timer, took {}", sim.now());
    }
}

#[test]
fn a_seed_has_one_trace() {
    let trace = |seed| finish(seed, 3, &[Behaviour::Honest; 4]).trace();
    assert_eq!(trace(9), trace(9));
    assert_ne!(trace(9), trace(10));
}

#[test]
fn a_mute_member_costs_one_timer_and_is_away() {
    let mut behaviours = [Behaviour::Honest; 4];
    behaviours[2] = Behaviour::Mute;
    let sim = finish(1, 4, &behaviours);
    let mute = sim.ledger().member(&sim.id(2)).expect("a member");
    assert_eq!(mute.standing, Standing::Away);
    // ROUND-1: the timer ends that round's commitments; later ones are frozen once all live seats have committed.
    assert!(sim.now() < 2 * 30_000, "only the first round waits: {}", sim.now());
    let last = sim.ledger().current().expect("a round");
    assert_eq!(last.seats().len(), 3);
    assert_eq!(last.seats().iter().map(|seat| seat.quota).sum::<u32>(), 8, "the others take its leaves");
}

#[test]
fn a_member_that_withholds_loses_its_own_contribution_only() {
    let mut behaviours = [Behaviour::Honest; 4];
    behaviours[1] = Behaviour::Withholds;
    let sim = finish(2, 2, &behaviours);
    let view = sim.ledger().round(Round(0)).expect("kept");
    let slot = view.slot_of(&sim.id(1)).expect("a seat");
    assert!(!view.counted(slot));
    assert!(view.commitments().filter(|(other, _)| *other != slot).all(|(other, _)| view.counted(other)));
}

#[test]
fn a_part_whose_aggregator_never_reduces_is_reassigned_once() {
    let mut behaviours = [Behaviour::Honest; 4];
    behaviours[3] = Behaviour::NeverReduces;
    let sim = finish(3, 3, &behaviours);
    let moves = sim.records().filter(|record| matches!(record.body, Body::Reassign(_))).count();
    assert!(moves >= 1);
    for outcome in outcomes(&sim) {
        assert!(
            outcome.results.iter().all(Option::is_some),
            "round {}: the second aggregator reduces",
            outcome.round
        );
    }
}

#[test]
fn a_death_in_any_stage_stops_nobody_else() {
    for stage in [Stage::Computing, Stage::Exchanging, Stage::Reducing] {
        let mut behaviours = [Behaviour::Honest; 5];
        behaviours[0] = Behaviour::Dies(Round(1), stage);
        let sim = finish(4, 4, &behaviours);
        let outcomes = outcomes(&sim);
        assert_eq!(outcomes.len(), 4);
        assert!(outcomes.iter().all(|outcome| outcome.results.iter().all(Option::is_some)), "{stage:?}");
        assert!(sim.now() < 120_000, "{stage:?}: a closed channel is noticed, took {}", sim.now());
    }
}

#[test]
fn when_every_aggregator_fails_the_part_is_left_out_and_the_run_goes_on() {
    let sim = finish(5, 2, &[Behaviour::NeverReduces; 3]);
    let outcomes = outcomes(&sim);
    // ROUND-8: the rounds end, without any of the parts.
    assert_eq!(outcomes.len(), 2);
    assert!(outcomes.iter().all(|outcome| outcome.results.iter().all(Option::is_none)));
}

/// Numbers of the nodes that were banned, in order of their numbers.
fn banned(sim: &Sim) -> Vec<usize> {
    let mut banned: Vec<usize> = sim.report().convictions.iter().map(|conviction| conviction.node).collect();
    banned.sort_unstable();
    banned
}

#[test]
fn round_22_a_wrong_part_is_struck_before_the_seal_and_reduced_by_another() {
    let mut behaviours = [Behaviour::Honest; 5];
    behaviours[2] = Behaviour::ReducesWrongly;
    let sim = finish(6, 3, &behaviours);
    let outcomes = outcomes(&sim);
    let report = sim.report();
    assert_eq!(report.wrong_parts, [], "no wrong part is sealed");
    assert!(outcomes.iter().all(|outcome| outcome.results.iter().all(Option::is_some)), "none is left out");
    assert!(!report.inspections.is_empty() && report.inspections.iter().all(|(_, right)| !right));
    assert_eq!(banned(&sim), [2], "reducing it again is evidence");
    assert!(sim.now() < 3 * 10_000, "no timer is waited for, took {}", sim.now());
}

#[test]
fn round_22_a_minority_that_objects_to_everything_changes_nothing() {
    let mut behaviours = [Behaviour::Honest; 5];
    (behaviours[0], behaviours[3]) = (Behaviour::Objects, Behaviour::Objects);
    let sim = finish(7, 3, &behaviours);
    assert!(sim.report().inspections.is_empty());
    assert!(outcomes(&sim).iter().all(|outcome| outcome.results.iter().all(Option::is_some)));
    assert!(sim.now() < 3 * 5_000, "took {}", sim.now());
}

#[test]
fn round_22_unfounded_objections_of_many_cost_one_reduction_a_part() {
    let mut behaviours = [Behaviour::Objects; 5];
    behaviours[1] = Behaviour::Honest;
    let sim = finish(8, 2, &behaviours);
    assert_eq!(sim.report().inspections.len(), 2 * 5);
    assert!(sim.report().inspections.iter().all(|(_, right)| *right));
    assert!(banned(&sim).is_empty());
    assert!(outcomes(&sim).iter().all(|outcome| outcome.results.iter().all(Option::is_some)));
}

#[test]
fn round_21_who_never_checks_costs_one_timer_and_is_shown() {
    let mut behaviours = [Behaviour::Honest; 4];
    behaviours[1] = Behaviour::NeverChecks;
    let sim = finish(9, 4, &behaviours);
    assert_eq!(sim.stalling(), [sim.id(1)]);
    assert!((30_000..60_000).contains(&sim.now()), "only the first round waits: {}", sim.now());
    assert!(outcomes(&sim).iter().all(|outcome| outcome.results.iter().all(Option::is_some)));
}

#[test]
fn round_21_who_checks_every_second_round_is_waited_for_ever_more_rarely() {
    let mut behaviours = [Behaviour::Honest; 4];
    behaviours[1] = Behaviour::ChecksSeldom;
    let sim = finish(9, 16, &behaviours);
    assert!((60_000..150_000).contains(&sim.now()), "four rounds wait at most, not eight: {}", sim.now());
}

/// An aggregator that signs its parts and shows their values to nobody returns whenever it may. Each time it costs one
/// timer, and itself its seat; nobody else is charged for its silence, so that what comes afterwards is objected to.
#[test]
fn round_30_a_staller_marks_nobody_and_switches_no_objection_off() {
    const FROM: Round = Round(9);
    let inflate: muster_rehearse::attack::Attack = "inflate".parse().expect("an attack");
    for seed in 90..94 {
        let mut players = vec![Player::honest(); 4];
        players.push(Player::behaving(Behaviour::HidesValues));
        let campaign = Campaign { from: FROM, ..Campaign::default() };
        players.push(Player::cheating(inflate.conduct(&campaign)));
        let mut sim = Sim::new(Plan::new(seed, 24, players));
        sim.run(HOUR);
        assert_eq!(sim.ledger().stage(), Stage::Closed, "seed {seed}");
        assert_eq!(sim.report().wrong_parts, [], "seed {seed}: no wrong part is sealed");
        assert_eq!((banned(&sim), sim.stalling()), (vec![5], vec![]), "seed {seed}");
        let staller = sim.ledger().member(&sim.id(4)).expect("a member");
        // LEDGER-25: each time it loses two classes, so that it soon has no part to hide.
        assert!(staller.failures >= 2, "seed {seed}: it stalls in {} rounds", staller.failures);
        assert!(staller.share.0 <= 4, "seed {seed}: class {}", staller.share);
        for honest in 0..4 {
            let member = sim.ledger().member(&sim.id(honest)).expect("a member");
            assert_eq!((member.standing, member.failures), (Standing::Active, 0), "seed {seed}: {honest}");
        }
        // LEDGER-20: stalls in rounds 0, 1, 3, 7 and 15 at most, each of one timer.
        assert!(sim.now() < 8 * 31_000, "seed {seed}: took {}", sim.now());
    }
}

#[test]
fn round_31_half_of_the_weight_that_never_checks_costs_time_and_not_the_run() {
    let mut behaviours = [Behaviour::NeverChecks; 4];
    (behaviours[0], behaviours[3]) = (Behaviour::Honest, Behaviour::Honest);
    let sim = finish(95, 3, &behaviours);
    // Each part of each round is reduced again: half of the weight might have objected.
    assert_eq!(sim.report().inspections.len(), 3 * 4);
    assert!(sim.report().inspections.iter().all(|(_, right)| *right));
    assert!(outcomes(&sim).iter().all(|outcome| outcome.results.iter().all(Option::is_some)));
    assert!(sim.now() < 3 * 35_000, "one timer a round: {}", sim.now());
}

#[test]
fn round_22_two_results_of_an_aggregator_have_the_part_reduced_again() {
    let mut behaviours = [Behaviour::Honest; 4];
    behaviours[3] = Behaviour::ReducesTwice;
    let sim = finish(10, 4, &behaviours);
    assert_eq!(sim.report().wrong_parts, []);
    assert!(outcomes(&sim).iter().all(|outcome| outcome.results.iter().all(Option::is_some)));
    assert!(sim.report().inspections.iter().any(|(_, right)| !right));
    assert_eq!(banned(&sim), [3]);
}

#[test]
fn round_22_aggregators_that_all_lie_leave_their_parts_out() {
    // Contributors are honest about what they see; nobody is left who reduces rightly.
    let sim = finish(11, 1, &[Behaviour::ReducesWrongly; 3]);
    assert_eq!(banned(&sim), [0, 1, 2]);
    assert!(outcomes(&sim).iter().all(|outcome| outcome.results.iter().all(Option::is_none)));
}

#[test]
fn a_part_is_reassigned_to_nobody_that_is_not_waited_for() {
    let mut behaviours = [Behaviour::Honest; 4];
    (behaviours[1], behaviours[2]) = (Behaviour::Mute, Behaviour::Dies(Round(0), Stage::Reducing));
    for seed in 0..8 {
        let sim = finish(seed, 2, &behaviours);
        assert!(
            outcomes(&sim).iter().all(|outcome| outcome.results.iter().all(Option::is_some)),
            "seed {seed}: the mute one is away, and was given a part"
        );
    }
}

/// A run in which two aggregators reduce each part.
fn twins(seed: u64, rounds: u32, behaviours: &[Behaviour]) -> Sim {
    let plan = Plan::behaving(seed, rounds, behaviours);
    let mut sim = Sim::new(Plan { change: |manifest| manifest.aggregation.replicas = 2, ..plan });
    sim.run(HOUR);
    assert_eq!(sim.ledger().stage(), Stage::Closed, "seed {seed}: the run did not end by {}", sim.now());
    assert!(sim.heads().iter().all(|head| *head == sim.ledger().head()), "seed {seed}: members disagree");
    sim
}

#[test]
fn round_25_two_aggregators_sign_each_part() {
    let sim = twins(20, 4, &[Behaviour::Honest; 5]);
    for outcome in outcomes(&sim) {
        let view = sim.ledger().round(outcome.round).expect("kept");
        for part in (0..view.parts().len() as u16).map(Part) {
            let signers: BTreeSet<_> = view.signers(part).collect();
            assert_eq!(signers, view.reducers(part, 0).collect());
            assert_eq!(signers.len(), 2);
        }
        assert!(view.commitments().all(|(slot, _)| view.counted(slot)));
    }
    assert!(sim.report().inspections.is_empty());
    assert!(sim.now() < 4 * 5_000, "nothing is waited for, took {}", sim.now());
    // The same values, whoever reduces: a run without replicas ends in the same state but for its name.
    assert_eq!(sim.relayed(), 0);
}

#[test]
fn round_25_of_two_that_differ_the_wrong_one_is_banned_and_the_right_one_counts() {
    for seed in 21..24 {
        for liar in [Behaviour::ReducesWrongly, Behaviour::ReducesTwice] {
            let mut behaviours = [Behaviour::Honest; 5];
            behaviours[2] = liar;
            let sim = twins(seed, 3, &behaviours);
            assert_eq!(banned(&sim), [2], "{liar:?}");
            assert_eq!(sim.report().wrong_parts, [], "{liar:?}");
            assert!(outcomes(&sim).iter().all(|outcome| outcome.results.iter().all(Option::is_some)));
            assert!(
                !sim.records().any(|record| matches!(record.body, Body::Reassign(_))),
                "{liar:?}: the honest one is there already"
            );
            assert!(sim.now() < 3 * 10_000, "{liar:?}: no timer is waited for, took {}", sim.now());
        }
    }
}

#[test]
fn round_25_the_word_of_one_counts_when_the_other_is_silent() {
    let mut behaviours = [Behaviour::Honest; 5];
    behaviours[1] = Behaviour::NeverReduces;
    let sim = twins(25, 4, &behaviours);
    assert!(banned(&sim).is_empty());
    assert!(outcomes(&sim).iter().all(|outcome| outcome.results.iter().all(Option::is_some)));
    assert!(!sim.records().any(|record| matches!(record.body, Body::Reassign(_))));
    // LEDGER-20: it has cost one timer, and its seat.
    assert_eq!(sim.ledger().member(&sim.id(1)).map(|member| member.standing), Some(Standing::Away));
    assert!((30_000..60_000).contains(&sim.now()), "only the first round waits: {}", sim.now());
}

#[test]
fn round_25_two_dead_aggregators_have_their_part_reassigned() {
    let mut behaviours = [Behaviour::Honest; 5];
    (behaviours[0], behaviours[1]) =
        (Behaviour::Dies(Round(1), Stage::Reducing), Behaviour::Dies(Round(1), Stage::Reducing));
    for seed in 0..8 {
        let sim = twins(seed, 3, &behaviours);
        assert!(
            outcomes(&sim).iter().all(|outcome| outcome.results.iter().all(Option::is_some)),
            "seed {seed}"
        );
        assert!(banned(&sim).is_empty());
    }
}

/// Whichever of the two comes first: what honest contributors have said of the right one still holds.
#[test]
fn round_25_striking_one_of_two_results_has_nobody_wait() {
    let mut behaviours = [Behaviour::Honest; 5];
    behaviours[2] = Behaviour::ReducesWrongly;
    for seed in 0..8 {
        let sim = twins(seed, 3, &behaviours);
        assert_eq!((banned(&sim), sim.stalling()), (vec![2], vec![]), "seed {seed}");
        assert!(sim.now() < 3 * 5_000, "seed {seed}: took {}", sim.now());
    }
}

#[test]
fn audit_23_two_that_agree_on_a_lie_are_both_banned() {
    let mut behaviours = [Behaviour::Honest; 5];
    (behaviours[1], behaviours[3]) = (Behaviour::ReducesWrongly, Behaviour::ReducesWrongly);
    let mut together = 0;
    for seed in 30..38 {
        let sim = twins(seed, 2, &behaviours);
        assert_eq!(banned(&sim), [1, 3], "seed {seed}");
        assert_eq!(sim.report().wrong_parts, [], "seed {seed}: contributors object");
        let wrong = sim.report().inspections.iter().filter(|(_, right)| !right);
        let parts: Vec<(Round, Part)> = wrong.map(|(result, _)| (result.round, result.part)).collect();
        together +=
            parts.iter().filter(|part| parts.iter().filter(|other| other == part).count() == 2).count();
    }
    assert!(together > 0, "no seed has both on one part");
}

#[test]
fn audit_23_two_that_agree_on_a_block_nobody_objects_to_are_both_banned_when_it_is_drawn() {
    let nudge: muster_rehearse::attack::Attack = "nudge".parse().expect("an attack");
    let mut together = 0;
    for seed in 40..46 {
        let players = cast(5, &[nudge, nudge], Round(1), seed);
        let plan = Plan { verifiers: 1, share_ppm: 0, ..Plan::new(seed, 8, players) };
        let change: fn(&mut Manifest) = |manifest| {
            manifest.aggregation.replicas = 2;
            manifest.audit.blocks_ppm = 1_000_000;
        };
        let report = Sim::new(Plan { change, ..plan }).finish();
        assert_eq!(
            (report.convictions.len(), report.false_bans(), report.dismissed),
            (2, 0, 0),
            "seed {seed}"
        );
        together += report.wrong_parts.len();
    }
    assert!(together > 0, "no seed has both on one part");
}

/// A verifier accuses the aggregators of twelve right parts: without a drawn block none is reduced again, and else one is.
#[test]
fn audit_28_false_accusations_of_parts_are_refused_or_cost_their_author_its_hearing() {
    let never: fn(&mut Manifest) = |manifest| manifest.audit.blocks_ppm = 0;
    let always: fn(&mut Manifest) = |manifest| manifest.audit.blocks_ppm = 1_000_000;
    for (change, examined) in [(never, 0), (always, 1)] {
        let plan = Plan { verifiers: 1, share_ppm: 0, ..Plan::behaving(80, 8, &[Behaviour::Honest; 4]) };
        let mut sim = Sim::new(Plan { change, ..plan });
        while sim.ledger().next_round() < Round(4) {
            sim.run(sim.now() + 100);
        }
        let accused: usize = (1..4).map(|round| sim.slander_parts(0, Round(round))).sum();
        assert_eq!(accused, 12);
        sim.run(HOUR);
        assert_eq!((sim.ledger().stage(), sim.report().dismissed), (Stage::Closed, examined));
        assert!(banned(&sim).is_empty());
        // Those that were dropped, or refused, do not hold up the end of the run.
        assert!(sim.now() < 8 * 5_000, "took {}", sim.now());
    }
}

#[test]
fn round_24_an_aggregator_that_omits_one_input_omits_nothing() {
    for replicas in [1, 2] {
        let mut behaviours = [Behaviour::Honest; 5];
        (behaviours[1], behaviours[4]) = (Behaviour::Refuses(0), Behaviour::Refuses(0));
        let plan = Plan::behaving(50, 3, &behaviours);
        let two: fn(&mut Manifest) = |manifest| manifest.aggregation.replicas = 2;
        let mut sim = Sim::new(if replicas == 2 { Plan { change: two, ..plan } } else { plan });
        sim.run(HOUR);
        assert_eq!(sim.ledger().stage(), Stage::Closed);
        assert!(sim.relayed() >= 3);
        for outcome in outcomes(&sim) {
            let view = sim.ledger().round(outcome.round).expect("kept");
            let slot = view.slot_of(&sim.id(0)).expect("a seat");
            assert!(view.inputs().iter().all(|inputs| inputs.contains(slot)), "it counts in every part");
            assert!(outcome.results.iter().all(Option::is_some));
        }
        assert!(banned(&sim).is_empty(), "nobody can say who lied, and nobody is blamed");
        assert!(sim.ledger().members().iter().all(|member| member.standing == Standing::Active));
        assert!(sim.now() < 3 * 5_000, "took {}", sim.now());
    }
}

/// Rounds of a run in which a member holds the others up whenever it may, and virtual milliseconds beyond a clean run.
fn held_up(behaviour: Behaviour, rounds: u32) -> u64 {
    let time = |behaviour| {
        let mut behaviours = [Behaviour::Honest; 4];
        behaviours[2] = behaviour;
        let sim = finish(60, rounds, &behaviours);
        assert!(banned(&sim).is_empty());
        for honest in [0, 1, 3] {
            let member = sim.ledger().member(&sim.id(honest)).expect("a member");
            assert_eq!(
                (member.standing, member.failures),
                (Standing::Active, 0),
                "{behaviour:?} takes a seat"
            );
        }
        sim.now()
    };
    time(behaviour).saturating_sub(time(Behaviour::Honest))
}

/// Nobody reduces anything, and everybody returns: rounds are spent for nothing, but ever more rarely.
#[test]
fn round_26_rounds_in_which_nothing_counts_are_not_burned() {
    let mut sim = Sim::new(Plan::behaving(26, 40, &[Behaviour::StallsParts; 3]));
    sim.run(HOUR);
    let barren = outcomes(&sim);
    assert!(barren.iter().all(|outcome| outcome.results.iter().all(Option::is_none)));
    // Pauses of 30 s, 60 s, 120 s and so on, where forty rounds would take less than an hour.
    assert!((4..=11).contains(&barren.len()), "{} rounds in an hour", barren.len());
    assert_ne!(sim.ledger().stage(), Stage::Closed);
}

#[test]
fn ledger_20_who_holds_rounds_up_again_and_again_does_so_ever_more_rarely() {
    for (behaviour, timers) in
        [(Behaviour::Overclaims, 1), (Behaviour::Stalls, 1), (Behaviour::StallsParts, 2)]
    {
        let lost = held_up(behaviour, 40);
        // After rounds 0, 1, 3, 7, 15, 31: six failures, where there were forty.
        let failures = 6;
        assert!(lost >= 3 * 30_000, "{behaviour:?} holds nobody up: {lost}");
        assert!(lost < (failures * timers + 1) * 30_000, "{behaviour:?} costs {lost}");
    }
}

/// ROUND-5, LEDGER-10: with three sevenths of the weight silent there are not two thirds that have echoed. Nothing of theirs
/// counts, every round is audited, and the cheats are found.
#[test]
fn ledger_10_nothing_of_a_coalition_that_hushes_counts_and_its_rounds_are_audited() {
    let hush: muster_rehearse::attack::Attack = "hush".parse().expect("an attack");
    const FROM: Round = Round(2);
    for seed in 70..73 {
        let players = cast(7, &[hush; 3], FROM, seed);
        let cheats: Vec<usize> = (0..7).filter(|number| players[*number].cheats).collect();
        let plan = Plan { verifiers: 1, share_ppm: 1_000_000, ..Plan::new(seed, 12, players) };
        let mut sim = Sim::new(plan);
        sim.run(HOUR);
        assert_eq!(sim.ledger().stage(), Stage::Closed, "seed {seed}");
        for outcome in outcomes(&sim) {
            let view = sim.ledger().round(outcome.round).expect("kept");
            assert!(view.echoed(), "seed {seed}: round {} is never audited", outcome.round);
            for number in 0..7 {
                let counts = view.slot_of(&sim.id(number)).is_some_and(|slot| view.counted(slot));
                let hushes = cheats.contains(&number) && outcome.round >= FROM;
                assert_eq!(counts, !hushes, "seed {seed}: node {number} in round {}", outcome.round);
            }
        }
        assert_eq!(banned(&sim), cheats, "seed {seed}: what they committed to is audited");
        assert_eq!(sim.report().false_bans(), 0);
        for honest in (0..7).filter(|number| !cheats.contains(number)) {
            let member = sim.ledger().member(&sim.id(honest)).expect("a member");
            assert_eq!((member.standing, member.failures), (Standing::Active, 0), "seed {seed}: {honest}");
        }
    }
}

/// The law is checked after everything that happens; `simulate cases` does the same with as many seeds as one likes.
#[test]
fn audit_26_no_case_is_lost_where_everybody_but_the_steward_fails() {
    let tally = cases::tally(0..24);
    assert_eq!(tally.faults, []);
    assert!(tally.silences > 0 && tally.idles > 0 && tally.bans > 0, "{tally:?}");
}
