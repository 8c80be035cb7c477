//! How long cheats last: schedules beside the formula, verifiers in league with them, and a million audits.

use std::fmt::Write;
use std::thread::available_parallelism;
use std::time::Instant;

use muster_core::hash::{Domain, hash_of};
use muster_core::ids::{Digest, RunId};
use muster_core::messages::audit::ResultsSeal;
use muster_core::sign::Identity;
use muster_view::plot::{Kind, Plot, Series};

use super::cells::markdown;
use crate::detection::{Detected, Schedule, Setting, Tally, run_all};
use crate::told::Told;

/// Rounds of the long simulation.
pub const ROUNDS: u32 = 10_000;
/// Audits of each member in a table's simulation, on average.
const AUDITS: u32 = 200;

/// How many times longer a schedule is simulated that did not fit at first.
const LONGER: u32 = 4;

/// Rounds from the end of an audit to the first one without the convict.
const LATENCIES: [u32; 3] = [1, 3, 6];

const SCHEDULES: [Schedule; 6] = [
    Schedule::Drip,
    Schedule::Slow(10),
    Schedule::Burst(10),
    Schedule::Random(100_000),
    Schedule::OnceAndGone,
    Schedule::FalseSum,
];

fn table_setting(seed: u64, share_ppm: u32, drawn: u8, leaves: u32) -> Setting {
    Setting {
        seed,
        rounds: AUDITS * (1_000_000 / share_ppm),
        honest: 16,
        cheats: SCHEDULES.map(|schedule| (schedule, 20)).to_vec(),
        verifiers: 1,
        friends: 0,
        share_ppm,
        drawn,
        leaves,
        load: 0.5,
        latency: 1,
        chained: false,
    }
}

/// π in millionths, a and m of the table of schedules.
const RATES: [(u32, u8, u32); 5] =
    [(500_000, 1, 4), (500_000, 4, 4), (100_000, 1, 16), (100_000, 4, 16), (50_000, 2, 64)];

/// Bad leaves before conviction by schedule and rates.
pub fn schedules() -> String {
    schedules_at(RATES.len())
}

/// The same at the first of these rates.
pub fn schedules_at(first: usize) -> String {
    let rates = RATES.into_iter().take(first);
    let settings: Vec<Setting> =
        (11..).zip(rates).map(|(seed, (ppm, a, m))| table_setting(seed, ppm, a, m)).collect();
    let detected = run_all(&settings);
    let rows = settings.iter().zip(&detected).flat_map(|(setting, detected)| {
        let rates =
            format!("{} %, {}, {}", f64::from(setting.share_ppm) / 1e4, setting.of_each(), setting.leaves);
        cheats(setting, detected).map(move |(schedule, tally)| {
            let mut row = vec![rates.clone(), schedule.words()];
            row.extend(cells(setting, schedule, tally));
            row
        })
    });
    let head =
        ["π, a, m", "schedule", "formula", "simulated", "until it is out", "waited", "convictions", "fits"];
    markdown(&head, rows)
}

/// Verifiers in league with the cheats.
pub fn collusion() -> String {
    let settings: Vec<Setting> = [0, 1, 2, 3]
        .map(|friends| Setting {
            verifiers: 4,
            friends,
            ..table_setting(21 + u64::from(friends), 100_000, 4, 16)
        })
        .to_vec();
    let detected = run_all(&settings);
    let rows = settings.iter().zip(&detected).flat_map(|(setting, detected)| {
        let shown = cheats(setting, detected).filter(|(schedule, _)| {
            matches!(schedule, Schedule::Drip | Schedule::Burst(_) | Schedule::OnceAndGone)
        });
        shown.map(|(schedule, tally)| {
            let mut row = vec![format!("{} of {}", setting.friends, setting.verifiers), schedule.words()];
            row.extend(cells(setting, schedule, tally));
            row
        })
    });
    let head =
        ["in league", "schedule", "formula", "simulated", "until it is out", "waited", "convictions", "fits"];
    markdown(&head, rows)
}

/// The same cheats where verdict and ban take longer.
pub fn latency() -> String {
    let rates = [(500_000, 1, 4), (100_000, 4, 16)];
    let kinds = rates.into_iter().flat_map(|rates| LATENCIES.map(|latency| (rates, latency)));
    let settings: Vec<Setting> = (41..)
        .zip(kinds)
        .map(|(seed, ((ppm, a, m), latency))| Setting { latency, ..table_setting(seed, ppm, a, m) })
        .collect();
    let detected = run_all(&settings);
    let rows = settings.iter().zip(&detected).flat_map(|(setting, detected)| {
        let rates =
            format!("{} %, {}, {}", f64::from(setting.share_ppm) / 1e4, setting.of_each(), setting.leaves);
        let shown = cheats(setting, detected).filter(|(schedule, _)| {
            matches!(schedule, Schedule::Drip | Schedule::Burst(_) | Schedule::FalseSum)
        });
        shown.map(move |(schedule, tally)| {
            let [formula, simulated, until, waited, convictions, fits] = cells(setting, schedule, tally);
            let latency = setting.latency.to_string();
            vec![
                rates.clone(),
                latency,
                schedule.words(),
                formula,
                simulated,
                until,
                waited,
                convictions,
                fits,
            ]
        })
    });
    let head = [
        "π, a, m",
        "latency",
        "schedule",
        "formula",
        "simulated",
        "until it is out",
        "waited",
        "convictions",
        "fits",
    ];
    markdown(&head, rows)
}

fn cheats<'a>(
    setting: &'a Setting,
    detected: &'a Detected,
) -> impl Iterator<Item = (Schedule, &'a Tally)> + 'a {
    setting.cheats.iter().map(|(schedule, _)| *schedule).zip(&detected.tallies)
}

/// Formula, simulated with its interval, with what counts until the ban, rounds waited, convictions, whether it fits.
fn cells(setting: &Setting, schedule: Schedule, tally: &Tally) -> [String; 6] {
    let fits = if tally.fits(tally.hazard) {
        "yes".into()
    } else {
        let (chi_square, freedom) = tally.chi_square(tally.hazard);
        format!("**no**, χ² {chi_square:.1} of {freedom}")
    };
    if tally.convictions() == 0 {
        let formula = format!("{:.1}", setting.harm(schedule));
        return [formula.as_str(), "–", "–", "–", "0", &fits].map(str::to_owned);
    }
    let (harm, width) = tally.harm();
    let (waited, most) = tally.waited();
    let gone = schedule == Schedule::OnceAndGone;
    [
        format!("{:.1}", setting.harm(schedule)),
        format!("{harm:.1} ± {width:.1}"),
        if gone { "–".into() } else { format!("{:.1}", harm + tally.late_harm()) },
        if gone { "–".into() } else { format!("{waited:.1}, {most}") },
        tally.convictions().to_string(),
        format!("{fits} ({:+.1} σ)", tally.deviation(tally.hazard)),
    ]
}

/// A thousand members, in four runs of 250 because a round has 256 seats.
fn long(seed: u64, rounds: u32, chained: bool) -> Vec<Setting> {
    let last = if chained { Schedule::Teleport } else { Schedule::FalseSum };
    let schedules = SCHEDULES.map(|schedule| if schedule == Schedule::FalseSum { last } else { schedule });
    let setting = |number: u64, friends| Setting {
        seed: 1_000 * seed + number,
        rounds,
        honest: 202,
        cheats: schedules.map(|schedule| (schedule, 8)).to_vec(),
        verifiers: 4,
        friends,
        share_ppm: 120_000,
        drawn: 2,
        leaves: 16,
        load: 0.5,
        latency: 1,
        chained,
    };
    vec![setting(0, 0), setting(1, 0), setting(2, 1), setting(3, 2)]
}

/// Simulates a schedule again that did not fit: from another seed, four times as long, with all cheats of this schedule. Chance
/// refuses a true rate twice once in a million schedules. A false rate deviates further than at first, by the root of how
/// many times more often a cheat acts.
pub fn again(setting: &Setting, schedule: Schedule) -> (Setting, Tally) {
    let cheats = vec![(schedule, setting.cheats.iter().map(|(_, count)| count).sum())];
    let seed = setting.seed.wrapping_add(1 << 32);
    let setting = Setting { seed, rounds: LONGER * setting.rounds, cheats, ..setting.clone() };
    let tally = setting.run().tallies.remove(0);
    (setting, tally)
}

/// The long simulation, of leaves or of the segments of local updates, and whether it fits: text for people.
///
/// What does not fit is simulated [again], and fails if it does not fit then either.
pub fn report(seed: u64, rounds: u32, chained: bool, told: &mut Told) -> bool {
    let settings = long(seed, rounds, chained);
    let begun = Instant::now();
    let detected = run_all(&settings);
    let (seconds, cores) = (begun.elapsed().as_secs_f64(), available_parallelism().map_or(1, usize::from));
    let mut text = String::new();
    let audits: u64 = detected.iter().map(|detected| detected.audits).sum();
    let false_bans: u64 = detected.iter().map(|detected| detected.false_bans).sum();
    let members: usize = detected.iter().map(|detected| detected.members).sum();
    let _ = writeln!(
        text,
        "{}, seed {seed}: {members} members in {} runs of {} that know nothing of each other, {rounds} rounds each, four \
         verifiers a run, π = 12 %, a = 2, m = 16\n{audits} audits, {false_bans} false bans, {seconds:.0} s on {cores} cores\n\
         digest of all that was found {:#}\n",
        if chained { "segments of chains" } else { "leaves" },
        settings.len(),
        members / settings.len(),
        hash_of(Domain::LEDGER, &format!("{detected:?}"))
    );
    let mut good = false_bans == 0;
    let (mut rows, mut repeated) = (Vec::new(), Vec::new());
    let row = |setting: &Setting, schedule: Schedule, tally: &Tally| {
        let mut row = vec![format!("{} of {}", setting.friends, setting.verifiers), schedule.words()];
        row.extend(cells(setting, schedule, tally));
        row
    };
    for (setting, detected) in settings.iter().zip(&detected) {
        for (schedule, tally) in cheats(setting, detected) {
            rows.push(row(setting, schedule, tally));
            if !tally.fits(tally.hazard) {
                let (setting, tally) = again(setting, schedule);
                good &= tally.fits(tally.hazard);
                repeated.push(row(&setting, schedule, &tally));
            }
        }
    }
    let head =
        ["in league", "schedule", "formula", "simulated", "until it is out", "waited", "convictions", "fits"];
    text += &markdown(&head, rows);
    if !repeated.is_empty() {
        let rounds = LONGER * rounds;
        let _ = writeln!(text, "\nWhat did not fit, from another seed and with {rounds} rounds:\n");
        text += &markdown(&head, repeated);
    }
    let (signing, verifying) = signature_seconds();
    let _ = writeln!(
        text,
        "\nNot simulated: signatures. Here a signature takes {:.0} µs and its check {:.0} µs; the five signed steps of an \
         audit, each checked by steward and other party, {:.0} µs: {:.0} s for these audits.",
        1e6 * signing,
        1e6 * verifying,
        1e6 * (5.0 * signing + 10.0 * verifying),
        audits as f64 * (5.0 * signing + 10.0 * verifying)
    );
    told.say(&text);
    let name = if chained { "detection-of-segments" } else { "detection-of-leaves" };
    told.plot(name, ratios(&settings, &detected, chained));
    good
}

/// Bad leaves until conviction, as simulated over the formula.
fn ratios(settings: &[Setting], detected: &[Detected], chained: bool) -> Plot {
    let mut series: Vec<Series> = Vec::new();
    let mut schedules: Vec<String> = Vec::new();
    for (number, (setting, detected)) in (1..).zip(settings.iter().zip(detected)) {
        let name = format!("run {number}, {} of {} in league", setting.friends, setting.verifiers);
        let of = |(schedule, tally): (Schedule, &Tally)| tally.harm().0 / setting.harm(schedule);
        let points = (1..).map(f64::from).zip(cheats(setting, detected).map(of));
        let points = points.filter(|(_, ratio)| ratio.is_finite()).collect::<Vec<_>>();
        series.push(Series { name, points });
        schedules = cheats(setting, detected).map(|(schedule, _)| schedule.words()).collect();
    }
    let numbered = (1..).zip(&schedules).map(|(number, schedule)| format!("{number}: {schedule}"));
    Plot {
        title: format!("Bad {} until conviction", if chained { "segments" } else { "leaves" }),
        notes: vec![format!("Schedules: {}.", numbered.collect::<Vec<_>>().join("; "))],
        x: "schedule".into(),
        y: "simulated / formula".into(),
        series,
        levels: vec![("the formula".into(), 1.0)],
        kind: Kind::Points,
        ..Plot::default()
    }
}

/// Seconds that signing and checking a step of an audit take.
fn signature_seconds() -> (f64, f64) {
    const TIMES: u32 = 500;
    let (run, zero) = (RunId(Digest::default()), Digest::default());
    let (me, step) =
        (Identity::from_secret(&[7; 32]), ResultsSeal { request: zero, table: zero, seal: zero });
    let begun = Instant::now();
    let signed: Vec<_> = (0..TIMES).map(|_| me.sign(run, &step)).collect();
    let signing = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let good = signed.iter().filter(|signed| signed.verify(run).is_ok()).count();
    (signing / f64::from(TIMES), begun.elapsed().as_secs_f64() / good as f64)
}
