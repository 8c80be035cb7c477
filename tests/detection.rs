//! How long cheats last, in simulations of seconds; `simulate -- detection` runs the long ones.

use e2e::detection::{Schedule, Setting, run_all};

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
        node_ppm: 200_000,
        drawn: 2,
        leaves: 8,
        load: 0.5,
    }
}

#[test]
fn cheats_last_as_long_as_the_formula_says_and_nobody_else_is_banned() {
    let settings = [
        setting(1),
        Setting { verifiers: 3, friends: 0, ..setting(2) },
        Setting { verifiers: 3, friends: 1, ..setting(3) },
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
fn expected_harm_lies_between_its_bounds() {
    for (node_ppm, drawn, leaves) in [(500_000, 1, 4), (100_000, 4, 16), (50_000, 2, 64)] {
        let setting = Setting { node_ppm, drawn, leaves, ..setting(0) };
        let pi = f64::from(node_ppm) / 1e6;
        let (least, most) = (f64::from(leaves) / (pi * f64::from(drawn)), f64::from(leaves) / pi);
        for schedule in SCHEDULES.into_iter().filter(|schedule| *schedule != Schedule::FalseSum) {
            let harm = setting.harm(schedule);
            assert!((least - 1e-6..=most + 1e-6).contains(&harm), "{schedule:?}: {least} {harm} {most}");
        }
        assert!((setting.harm(Schedule::Drip) - least).abs() < 1e-9);
        assert!((setting.harm(Schedule::Burst(9)) - most).abs() < 1e-9);
    }
}

#[test]
fn a_seed_has_one_result() {
    let short = |seed| Setting { rounds: 60, ..setting(seed) }.run();
    assert_eq!(short(5), short(5));
    assert_ne!(short(5), short(6));
}
