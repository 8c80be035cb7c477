//! How long cheats last, in simulations of seconds; `simulate -- detection` runs the long ones.

use std::fs;
use std::path::Path;

use e2e::detection::{Schedule, Setting, run_all};
use e2e::harm::{detection, published};

const SCHEDULES: [Schedule; 6] = [
    Schedule::Drip,
    Schedule::Slow(3),
    Schedule::Burst(5),
    Schedule::Random(150_000),
    Schedule::OnceAndGone,
    Schedule::FalseSum,
];

fn setting(seed: u64) -> Setting {
    Setting {
        seed,
        rounds: 1_500,
        honest: 20,
        cheats: SCHEDULES.map(|schedule| (schedule, 8)).to_vec(),
        verifiers: 1,
        friends: 0,
        share_ppm: 200_000,
        drawn: 2,
        leaves: 8,
        load: 0.5,
        latency: 1,
        chained: false,
    }
}

/// The same with chains of segments.
fn of_chains(seed: u64) -> Setting {
    let mut setting = Setting { chained: true, ..setting(seed) };
    setting.cheats.push((Schedule::Teleport, 8));
    setting
}

#[test]
fn cheats_last_as_long_as_the_formula_says_and_nobody_else_is_banned() {
    let settings = [
        setting(1),
        Setting { verifiers: 3, friends: 0, ..setting(2) },
        Setting { verifiers: 3, friends: 1, ..setting(3) },
        of_chains(4),
    ];
    for (setting, detected) in settings.iter().zip(run_all(&settings)) {
        assert_eq!(detected.false_bans, 0, "{setting:?}");
        assert!(detected.audits > 15_000, "{detected:?}");
        for ((schedule, _), tally) in setting.cheats.iter().zip(&detected.tallies) {
            assert!(tally.convictions() > 100, "{schedule:?} {tally:?}");
            assert!(tally.fits(setting.hazard(*schedule)), "{setting:?} {schedule:?} {tally:?}");
            // The same counts would not pass for those of another rate: the test sees something.
            let other = setting.hazard(*schedule) * 1.5;
            assert!(!tally.fits(other), "{schedule:?} passes for {other}: {tally:?}");
            let (harm, width) = tally.harm();
            assert!((harm - setting.harm(*schedule)).abs() < 2.0 * width, "{schedule:?}: {harm} ± {width}");
        }
    }
}

#[test]
fn what_does_not_fit_is_simulated_again_and_seen_more_sharply() {
    let first = setting(1);
    for schedule in [Schedule::Drip, Schedule::Random(150_000)] {
        let (longer, tally) = detection::again(&first, schedule);
        assert!(tally.convictions() > 4_000, "{tally:?}");
        assert!(tally.fits(longer.hazard(schedule)), "{tally:?}");
        for wrong in [0.9, 1.1] {
            assert!(!tally.fits(wrong * longer.hazard(schedule)), "{wrong}: {tally:?}");
        }
    }
}

#[test]
fn expected_harm_lies_between_its_bounds() {
    for (share_ppm, drawn, leaves) in [(500_000, 1, 4), (100_000, 4, 16), (50_000, 2, 64)] {
        let setting = Setting { share_ppm, drawn, leaves, ..setting(0) };
        let pi = f64::from(share_ppm) / 1e6;
        let (least, most) = (f64::from(leaves) / (pi * f64::from(setting.of_each())), f64::from(leaves) / pi);
        for schedule in SCHEDULES.into_iter().filter(|schedule| *schedule != Schedule::FalseSum) {
            let harm = setting.harm(schedule);
            assert!((least - 1e-6..=most + 1e-6).contains(&harm), "{schedule:?}: {least} {harm} {most}");
        }
        assert!((setting.harm(Schedule::Drip) - least).abs() < 1e-9);
        assert!((setting.harm(Schedule::Burst(9)) - most).abs() < 1e-9);
    }
}

#[test]
fn a_slow_verdict_costs_what_counts_until_then_and_nothing_else() {
    let slow = |latency| Setting { latency, load: 0.01, ..setting(9) }.run();
    let (soon, late) = (slow(1), slow(6));
    let each_round = |schedule: &Schedule| !matches!(schedule, Schedule::Slow(_) | Schedule::Burst(_));
    let cheats = SCHEDULES.iter().zip(soon.tallies.iter().zip(&late.tallies));
    for (schedule, (soon, late)) in cheats.filter(|(schedule, _)| each_round(schedule)) {
        assert!(late.fits(late.hazard), "{schedule:?}");
        if *schedule == Schedule::OnceAndGone {
            continue;
        }
        assert_eq!((soon.waited(), late.waited()), ((1.0, 1), (6.0, 6)), "{schedule:?}");
        let (more, expected) = (late.late_harm() - soon.late_harm(), 5.0 * setting(9).a_round(*schedule));
        assert!((more - expected).abs() < 0.15 * expected, "{schedule:?}: {more} instead of {expected}");
    }
}

#[test]
fn a_seed_has_one_result() {
    let short = |seed| Setting { rounds: 60, ..setting(seed) }.run();
    assert_eq!(short(5), short(5));
    assert_ne!(short(5), short(6));
}

/// Rows that are cheap to make again: whatever moves them has moved the others, and all are to be written anew.
#[test]
fn the_tables_of_the_spec_are_those_of_this_code() {
    let spec = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("spec/harm-tables.md");
    let spec = fs::read_to_string(spec).expect("the tables");
    for made in [detection::schedules_at(1), published::table_to(1)] {
        for line in made.lines() {
            assert!(spec.lines().any(|recorded| recorded == line), "`simulate table --write` is due: {line}");
        }
    }
}
