//! `muster plan`: how long a step of training takes by the way in which members share their work, before anybody takes part.
//!
//! Pure functions of a [`Job`]: what members compute, and what their lines carry. [`exchange`] has the ways that wait for
//! everybody, [`gossip`] those that wait for neighbours. What is left out: audits, members that come and go, and what a way does
//! to the loss.

pub mod exchange;
pub mod gossip;
pub mod lines;
pub mod moved;

use std::fmt::Write;

use muster_core::manifest::Manifest;
use muster_core::regime::Regime;

use self::exchange::{Cost, Exchange};
use self::gossip::{Draws, Topology, period};
use crate::config::Local;

/// Local steps between two exchanges that are looked at; 1 is an exchange after each step.
pub const LOCAL: [u32; 4] = [1, 8, 32, 128];
/// How many times as long as its computing a step may take before more local steps are recommended: those cost quality.
const WORTH: f64 = 1.25;
/// Bytes a parameter of the second moments of local updates, of a contribution and of the results alike, about.
const MOMENTS: f64 = 0.8;
/// The seed of all draws: who asks twice has the same answer.
const SEED: u64 = 1;
/// Lines that are looked at for where a recommendation flips, as parts of those given: two to the power of halves up to this.
const POWERS: i32 = 20;

/// What is planned.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Seconds in which each member computes a step, on average.
    pub computing: Vec<f64>,
    /// The coefficient of variation of these.
    pub variation: f64,
    /// The part of computing beneath which an exchange hides: 0 in this program, about 2/3 where gradients leave during the
    /// backward pass.
    pub hidden: f64,
    /// Seconds that members compute beside their steps: hashing, packing, combining, the update of the state.
    pub rest: f64,
    /// Seconds of the round's records, each of which makes a way to everybody.
    pub records: f64,
    /// The members' exchange after each step.
    pub exchange: Exchange,
    /// Bytes of a contribution, and of the results of all parts, after several local steps.
    pub local: (f64, f64),
    /// Tokens of a step of all members together.
    pub tokens: f64,
}

/// A way to share the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Each member combines an equal part.
    AllReduce,
    /// Each combines as many parts as its share class gives it.
    Filled,
    /// Each combines as much as its line carries, however small the pieces.
    Best,
    /// One server combines everything.
    Server,
    /// Parts go round a ring.
    Ring,
    /// Parts as lines carry them, while the next step is computed already.
    Delayed,
    /// The same after so many local steps.
    Local(u32),
    /// With neighbours alone.
    Gossip(Topology),
}

impl Way {
    /// All that are compared, in the order in which they are shown.
    pub fn all() -> Vec<Self> {
        let local = LOCAL.iter().filter(|steps| **steps > 1).map(|steps| Self::Local(*steps));
        let gossip = [Topology::Ring, Topology::Exponential, Topology::Alternating { cluster: 1 }];
        let first = [Self::AllReduce, Self::Filled, Self::Best, Self::Server, Self::Ring, Self::Delayed];
        first.into_iter().chain(local).chain(gossip.map(Self::Gossip)).collect()
    }

    /// In words.
    pub fn words(self) -> String {
        match self {
            Self::AllReduce => "all-reduce, equal parts".into(),
            Self::Filled => "parts as lines carry".into(),
            Self::Best => "parts of the best sizes".into(),
            Self::Server => "one server".into(),
            Self::Ring => "ring".into(),
            Self::Delayed => "delayed update".into(),
            Self::Local(steps) => format!("{steps} local steps"),
            Self::Gossip(Topology::Ring) => "gossip, ring".into(),
            Self::Gossip(Topology::Exponential) => "gossip, exponential".into(),
            Self::Gossip(Topology::Alternating { .. }) => "gossip, alternating".into(),
        }
    }

    /// What a run has to set for it; none where this program does not have it.
    pub fn setting(self) -> Option<&'static str> {
        match self {
            Self::AllReduce => Some("host --equal-parts"),
            Self::Server => Some("join --no-listen"),
            Self::Filled => Some("the default"),
            Self::Delayed => Some("training.overlap"),
            Self::Local(_) => Some("[local]"),
            Self::Best | Self::Ring | Self::Gossip(_) => None,
        }
    }
}

/// What a step comes to, in seconds and bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// In all.
    pub seconds: f64,
    /// Of these: an average member computes.
    pub computing: f64,
    /// Members wait for one that computes for longer.
    pub slowest: f64,
    /// They wait for bytes, records and the rest.
    pub exchange: f64,
    /// Bytes that a member sends on average.
    pub sent: f64,
}

impl Job {
    /// A step, one of an exchange of each member's contribution.
    pub fn step(&self, way: Way) -> Step {
        match way {
            Way::AllReduce => self.together(self.exchange.equal_parts(), 1, self.hidden),
            Way::Filled => self.together(self.exchange.filled_parts(), 1, self.hidden),
            Way::Best => self.together(self.exchange.best_parts(), 1, self.hidden),
            Way::Server => self.together(self.exchange.server(), 1, self.hidden),
            Way::Ring => self.together(self.exchange.ring(), 1, self.hidden),
            Way::Delayed => self.together(self.exchange.filled_parts(), 1, 1.0),
            Way::Local(steps) => self.together(self.after(steps).filled_parts(), steps, self.hidden),
            Way::Gossip(topology) => self.apart(topology),
        }
    }

    /// The exchange after so many steps.
    fn after(&self, steps: u32) -> Exchange {
        let mut exchange = self.exchange.clone();
        if steps > 1 {
            (exchange.contribution, exchange.results) = self.local;
        }
        exchange
    }

    /// Everybody waits for everybody, once in so many steps; a part of the computing hides the exchange.
    fn together(&self, cost: Cost, steps: u32, hidden: f64) -> Step {
        let steps = f64::from(steps.max(1));
        // Of several steps together, chance evens out.
        let mut draws = Draws::new(SEED, self.variation / steps.sqrt());
        let slowest = steps * draws.slowest(&self.computing);
        let least = (1.0 - hidden) * slowest + (hidden * slowest).max(cost.seconds);
        let seconds = (least + self.rest + self.records) / steps;
        let computing = self.mean();
        let slowest = (slowest / steps - computing).max(0.0);
        Step { seconds, computing, slowest, exchange: seconds - computing - slowest, sent: cost.sent / steps }
    }

    /// Nobody waits for everybody.
    fn apart(&self, topology: Topology) -> Step {
        let edges = |from: usize, to: usize, turn: usize| {
            // Its line carries one contribution to each that hears it in this turn.
            let others = topology.neighbours(to, turn, self.computing.len()).len().max(1) as f64;
            self.exchange.edge(from, to) * others
        };
        let run = |edges: &dyn Fn(usize, usize, usize) -> f64| {
            period(&self.computing, topology, &mut Draws::new(SEED, self.variation), edges)
        };
        let (seconds, without) = (run(&edges), run(&|_, _, _| 0.0));
        let (seconds, computing) = (seconds + self.rest, self.mean());
        let slowest = (without - computing).max(0.0);
        let sent = topology.edges() * self.exchange.contribution;
        Step { seconds, computing, slowest, exchange: seconds - computing - slowest, sent }
    }

    fn mean(&self) -> f64 {
        self.computing.iter().sum::<f64>() / self.computing.len() as f64
    }

    /// The local steps to begin with, of those that this program has: the fewest by which a step does not take much longer than
    /// its computing.
    pub fn advice(&self) -> u32 {
        let fits = |steps: &&u32| {
            let Step { seconds, computing, slowest, .. } = self.step(Way::Local(**steps));
            seconds <= WORTH * (computing + slowest)
        };
        *LOCAL.iter().find(fits).unwrap_or(&LOCAL[LOCAL.len() - 1])
    }

    /// From which times the given lines on which number of local steps is the advice, the fastest lines first.
    pub fn flips(&self) -> Vec<(f64, u32)> {
        let mut flips: Vec<(f64, u32)> = Vec::new();
        for power in (-POWERS..=POWERS).rev() {
            let times = 2.0_f64.powf(f64::from(power) / 2.0);
            let advice = self.with_lines(times).advice();
            match flips.last_mut() {
                Some((least, last)) if *last == advice => *least = times,
                _ => flips.push((times, advice)),
            }
        }
        flips
    }

    /// The same over lines so many times as fast.
    fn with_lines(&self, times: f64) -> Self {
        let mut job = self.clone();
        for link in job.exchange.links.iter_mut().chain([&mut job.exchange.server]) {
            (link.up, link.down) = (link.up * times, link.down * times);
        }
        job
    }

    /// The slowest of the given rates, in Mbit/s.
    fn slowest_line(&self) -> f64 {
        let rates = self.exchange.links.iter().map(|link| link.up.min(link.down));
        rates.fold(f64::INFINITY, f64::min) / 125e3
    }

    /// All ways side by side, for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        let heads = ["s a step", "µs a token", "MB sent", "computing", "slowest", "exchange"];
        let [step, token, sent, computing, slowest, exchange] = heads;
        writeln!(
            text,
            "{:<24} {step:>9} {token:>11} {sent:>9}   of it: {computing:>9} {slowest:>8} {exchange:>9}",
            ""
        )?;
        for way in Way::all() {
            let Step { seconds, computing, slowest, exchange, sent } = self.step(way);
            let token = 1e6 * seconds / self.tokens;
            let share = |part: f64| 100.0 * part / seconds;
            let setting = way.setting().unwrap_or("not in this program");
            writeln!(
                text,
                "{:<24} {seconds:>9.3} {token:>11.1} {:>9.2}          {:>8.0}% {:>7.0}% {:>8.0}%   {setting}",
                way.words(),
                sent / 1e6,
                share(computing),
                share(slowest),
                share(exchange)
            )?;
        }
        writeln!(text, "\n{}", self.recommendation())
    }

    /// What to choose, and where that flips, in a sentence or two.
    pub fn recommendation(&self) -> String {
        let advice = self.advice();
        let chosen = if advice == 1 { Way::Filled } else { Way::Local(advice) };
        let rate = |times: f64| {
            let rate = times * self.slowest_line();
            if rate < 9.95 { format!("{rate:.1}") } else { format!("{rate:.0}") }
        };
        let name =
            |steps: u32| if steps == 1 { "all-reduce".to_owned() } else { format!("{steps} local steps") };
        let flips = self.flips();
        let (last, before) =
            flips.split_last().map_or((&(1.0, 1), &flips[..]), |(last, before)| (last, before));
        let from: Vec<String> = before
            .iter()
            .map(|(times, steps)| format!("{} from {} Mbit/s on", name(*steps), rate(*times)))
            .chain([format!("{} below", name(last.1))])
            .collect();
        let where_ = if flips.len() > 1 {
            format!("By the slowest line, others alike: {}.", from.join(", "))
        } else {
            "That stays so over lines a thousand times slower and faster.".to_owned()
        };
        let Step { seconds, computing, slowest, .. } = self.step(chosen);
        format!(
            "Choose {}: a step takes {seconds:.3} s, {:.2} times its computing. {where_}",
            name(advice),
            seconds / (computing + slowest)
        )
    }
}

/// Bytes a parameter of what a round with so many nodes moves of a contribution, and of the results, about (tests/bench/README.md,
/// Bytes).
///
/// A grid has 2^`grid_bits` steps to the usual size of an aggregate (GRID-5), the mean of n leaves. These are mostly noise, so that
/// the sum of m of them is √(m·n) times as large. Of local updates the aggregate is a whole contribution's move (LOCAL-6).
fn packed(manifest: &Manifest, nodes: u32) -> (f64, f64) {
    packed_after(manifest, manifest.local().map(|local| local.moments_every), nodes)
}

/// The same after local steps whose second moments are renewed in every so many-th round; none for an exchange after each step.
fn packed_after(manifest: &Manifest, moments_every: Option<u32>, nodes: u32) -> (f64, f64) {
    let grids = [manifest.training.grid_bits, manifest.aggregation.result_bits].map(f64::from);
    // LOCAL-9: a second plane travels in some rounds.
    let moments = moments_every.map_or(0.0, |rounds| MOMENTS / f64::from(rounds.max(1)));
    let m = if moments_every.is_some() { 1.0 } else { leaves_of_step(manifest, nodes) };
    let larger = f64::log2(m * m * f64::from(nodes)) / 2.0;
    (0.295 + 0.125 * (grids[0] + larger) + moments, 0.37 + 0.123 * grids[1] + moments)
}

/// Leaves of a member's step. A step of local updates is one of a chain; of others it is the whole round.
fn leaves_of_step(manifest: &Manifest, nodes: u32) -> f64 {
    if Regime::of(manifest).recomputes_chains() { 1.0 } else { f64::from(manifest.leaves_of_seat(nodes)) }
}

/// The job of a run whose members take so many seconds for a leaf and for the rest of a round, over these lines.
pub fn job(manifest: &Manifest, leaf: f64, rest: f64, mut exchange: Exchange) -> Job {
    let nodes = exchange.links.len() as u32;
    let leaves = leaves_of_step(manifest, nodes);
    let parameters = manifest.model.parameters() as f64;
    let bytes = |moments_every| {
        let (contribution, results) = packed_after(manifest, moments_every, nodes);
        (contribution * parameters, results * parameters)
    };
    (exchange.contribution, exchange.results) = bytes(None);
    let usual = Local::default().moments_every;
    let local = bytes(Some(manifest.local().map_or(usual, |local| local.moments_every)));
    let tokens = f64::from(manifest.training.leaf_windows) * f64::from(manifest.model.sequence);
    Job {
        computing: vec![leaf * leaves; exchange.links.len()],
        variation: 0.1,
        hidden: 0.0,
        rest,
        // Begin or the Outcome before, Freeze, Inputs and Outcome; each is asked for and told.
        records: 3.0 * 2.0 * exchange.latency,
        tokens: tokens * leaves * f64::from(nodes),
        exchange,
        local,
    }
}

#[cfg(test)]
mod tests;
