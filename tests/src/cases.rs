//! Conservation of cases under random failures of everybody but the steward (AUDIT-26): each seed is a run in which members
//! and verifiers are silent, late, slow or killed, keep integers back, cheat and lie as the seed has it, the steward is killed
//! and started again, and states go back. The simulator checks the law after everything that happens.

use muster_core::codec::Real;
use muster_core::ids::Round;
use muster_core::ledger::Stage;
use muster_core::manifest::{Manifest, Rollback};
use muster_rehearse::attack::Attack;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::parallel::in_parallel;
use crate::sim::{Behaviour, Experts, Longest, Plan, Player, Sim, Temper, cast};

/// Rounds of a run.
const ROUNDS: u32 = 24;
/// Attacks that are drawn from.
const ATTACKS: [&str; 14] = [
    "flip",
    "sign",
    "fit",
    "one-leaf",
    "refuse",
    "swap",
    "conceal",
    "burst",
    "half",
    "random",
    "loss",
    "slow",
    "late-flip",
    "late-fit",
];

/// What a number of runs had in total.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Runs.
    pub runs: usize,
    /// Silences, idle verifiers, bans of nodes and of verifiers in all.
    pub silences: usize,
    /// See `silences`.
    pub idles: usize,
    /// See `silences`.
    pub bans: usize,
    /// Times that stewards and nodes were killed and started again, and that states went back.
    pub restarts: usize,
    /// See `restarts`.
    pub node_restarts: usize,
    /// See `restarts`.
    pub rewinds: usize,
    /// Rows that nodes took up after they came to be, and steps of rows that had waited.
    pub ready: usize,
    /// See `ready`.
    pub late_steps: usize,
    /// The longest case of all.
    pub longest: Longest,
    /// The seed with the case that was open for the longest time.
    pub worst: u64,
    /// What must not be, by seed.
    pub faults: Vec<(u64, String)>,
}

/// Simulates these seeds.
pub fn tally(seeds: std::ops::Range<u64>) -> Tally {
    let seeds: Vec<u64> = seeds.collect();
    let mut tally = Tally { runs: seeds.len(), ..Tally::default() };
    for (seed, report) in seeds.iter().zip(in_parallel(&seeds, |seed| Sim::new(plan(*seed)).finish())) {
        tally.silences += report.silences;
        tally.idles += report.idles;
        tally.bans += report.convictions.len();
        tally.restarts += report.restarts;
        tally.node_restarts += report.node_restarts;
        tally.rewinds += report.rewinds;
        tally.ready += report.ready;
        tally.late_steps += report.late_steps;
        if report.longest.time > tally.longest.time {
            tally.worst = *seed;
        }
        tally.longest = tally.longest.or(report.longest);
        if report.false_bans() > 0 {
            tally.faults.push((*seed, format!("{} members banned that did nothing", report.false_bans())));
        }
        if !report.idled.is_empty() {
            tally.faults.push((*seed, format!("honest verifiers {:?} sealed as idle", report.idled)));
        }
    }
    tally
}

/// The run of a seed: three to seven nodes, one to three verifiers; the state goes back in a quarter of the runs.
pub fn plan(seed: u64) -> Plan {
    let mut random = ChaCha8Rng::seed_from_u64(seed ^ 0x6361_7365_7300_0000);
    let nodes = 3 + pick(&mut random, 5) as usize;
    let cheats = pick(&mut random, nodes as u64 / 2 + 1) as usize;
    let attacks: Vec<Attack> = (0..cheats)
        .map(|_| ATTACKS[pick(&mut random, ATTACKS.len() as u64) as usize].parse().expect("an attack"))
        .collect();
    let from = Round(pick(&mut random, u64::from(ROUNDS)) as u32);
    let mut players: Vec<Player> = cast(nodes, &attacks, from, seed);
    for player in &mut players {
        player.temper = temper(&mut random);
        if !player.cheats && pick(&mut random, 12) == 0 {
            player.behaviour = Behaviour::Withholds;
        }
    }
    let verifiers = 1 + pick(&mut random, 3) as u16;
    let friends = pick(&mut random, 6) / 5 * u64::from(verifiers > 1);
    let tempers = (0..verifiers).map(|_| temper(&mut random)).collect();
    let share_ppm = [250_000, 500_000, 1_000_000][pick(&mut random, 3) as usize];
    let steward_crashes = if pick(&mut random, 4) == 0 { 500 } else { 0 };
    let change = if pick(&mut random, 4) == 0 { goes_back } else { small };
    let experts = (pick(&mut random, 4) == 0).then(|| experts(&mut random, &mut players));
    let plan = Plan::new(seed, ROUNDS, players);
    let friends = friends as u16;
    Plan { verifiers, friends, tempers, steward_crashes, share_ppm, change, experts, final_rounds: 3, ..plan }
}

/// Two to four rows, most of them held; nodes that come late, and some that die.
fn experts(random: &mut ChaCha8Rng, players: &mut Vec<Player>) -> Experts {
    let from_branch = |random: &mut ChaCha8Rng| Round(pick(random, u64::from(ROUNDS)) as u32);
    // Two stay, whoever else dies, leaves or is banned: a run that everybody has left waits.
    for player in players.iter_mut().filter(|player| !player.cheats).skip(2) {
        if pick(random, 6) == 0 {
            player.behaviour = Behaviour::Dies(from_branch(random), Stage::Computing);
        }
    }
    for _ in 0..pick(random, 4) {
        let mut latecomer = Player { temper: temper(random), ..Player::honest() };
        latecomer.joins = Some(from_branch(random));
        players.push(latecomer);
    }
    let (branch, held) = (1 + pick(random, 6) as u32, pick(random, 4) as u16);
    Experts { branch, held, few: held.max(5), ..Experts::new(2 + pick(random, 3) as u16) }
}

/// A smaller model, and rounds that are forgotten long before the run's patience is over.
fn small(manifest: &mut Manifest) {
    (manifest.model.width, manifest.model.hidden, manifest.model.sequence) = (8, 12, 8);
    (manifest.retention.contributions, manifest.retention.states) = (8, 8);
}

/// The same, and the state goes back for every convict whose contribution counted.
fn goes_back(manifest: &mut Manifest) {
    small(manifest);
    manifest.rollback = Rollback { limit: Real::new(0.5).expect("a number"), most_rounds: 6, spacing: 7 };
}

/// Half of all are reliable; the others fail in one way or in several.
fn temper(random: &mut ChaCha8Rng) -> Temper {
    let mut temper = Temper::default();
    if pick(random, 2) == 0 {
        return temper;
    }
    match pick(random, 6) {
        0 => temper.loses = 300_000,
        1 => temper.dawdles = 1 + pick(random, 60_000),
        2 => temper.slow = 1 + pick(random, 200),
        3 => temper.mute_from = Some(Round(pick(random, u64::from(ROUNDS)) as u32)),
        4 => temper.crashes = 50_000,
        _ => (temper.loses, temper.dawdles) = (100_000, 5_000),
    }
    temper
}

fn pick(random: &mut ChaCha8Rng, below: u64) -> u64 {
    random.next_u64() % below
}
