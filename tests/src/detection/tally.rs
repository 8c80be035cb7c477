//! What a simulation counted, and whether that fits the formula.

use std::collections::BTreeMap;

/// Parts of a lifetime that are counted apart: tenths of the expected distribution.
const PARTS: usize = 10;

/// The outcome of a setting.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Detected {
    /// Members at any one time.
    pub members: usize,
    /// Audits.
    pub audits: u64,
    /// Contributions without a bad leaf that an audit found wrong.
    pub false_bans: u64,
    /// Audits that found something, by what they found.
    pub findings: BTreeMap<&'static str, u64>,
    /// For each of the setting's cheats.
    pub tallies: Vec<Tally>,
}

/// The outcome for the cheats of one schedule.
///
/// Each round in which such a cheat acts is a trial of its own that convicts with one probability, so that counts do
/// not depend on who was still there when the simulation ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Tally {
    /// The probability that the formula gives.
    pub hazard: f64,
    /// Rounds in which a cheat acted and was not known yet, by tenth of its expected lifetime.
    rounds: [u64; PARTS],
    /// Those that convicted it.
    hits: [u64; PARTS],
    /// Bad leaves until the audit that convicts, its round included.
    bad: u64,
    /// Bad leaves after that round, until the ban was effective.
    late: u64,
    /// Rounds between offence and ban in which the cheat still took part, with their number.
    latencies: BTreeMap<u32, u64>,
}

impl Tally {
    pub(super) fn new(hazard: f64) -> Self {
        let (rounds, hits) = ([0; PARTS], [0; PARTS]);
        Self { hazard, rounds, hits, bad: 0, late: 0, latencies: BTreeMap::new() }
    }

    pub(super) fn acted(&mut self, acted: u64, bad: u64, hit: bool) {
        // The share of cheats that the formula expects to be caught in fewer rounds.
        let caught = 1.0 - (1.0 - self.hazard).powf(acted as f64);
        let part = ((caught * PARTS as f64) as usize).min(PARTS - 1);
        self.rounds[part] += 1;
        self.hits[part] += u64::from(hit);
        self.bad += bad;
    }

    pub(super) fn late(&mut self, bad: u64) {
        self.late += bad;
    }

    pub(super) fn latency(&mut self, rounds: u32) {
        *self.latencies.entry(rounds).or_default() += 1;
    }

    /// Convictions.
    pub fn convictions(&self) -> u64 {
        self.hits.iter().sum()
    }

    /// Rounds in which a cheat acted and was not known yet.
    pub fn trials(&self) -> u64 {
        self.rounds.iter().sum()
    }

    /// Bad leaves until the audit that convicts, on average, with half the width of its 95 % interval.
    pub fn harm(&self) -> (f64, f64) {
        let hits = self.convictions() as f64;
        let mean = self.bad as f64 / hits;
        let rate = hits / self.trials() as f64;
        (mean, 1.96 * mean * ((1.0 - rate) / hits).sqrt())
    }

    /// Bad leaves between that audit and the ban, on average.
    pub fn late_harm(&self) -> f64 {
        self.late as f64 / self.convictions() as f64
    }

    /// Mean and 99th percentile of the rounds between offence and ban in which the cheat still took part.
    pub fn waited(&self) -> (f64, u32) {
        let all: u64 = self.latencies.values().sum();
        let sum: u64 = self.latencies.iter().map(|(rounds, count)| u64::from(*rounds) * count).sum();
        let mut seen = 0;
        let percentile = self.latencies.iter().find(|(_, count)| {
            seen += **count;
            seen * 100 >= all * 99
        });
        (sum as f64 / all as f64, percentile.map_or(0, |(rounds, _)| *rounds))
    }

    /// Distance between the counted convictions and those that this probability gives, in standard deviations.
    pub fn deviation(&self, hazard: f64) -> f64 {
        let trials = self.trials() as f64;
        (self.convictions() as f64 - trials * hazard) / (trials * hazard * (1.0 - hazard)).sqrt()
    }

    /// χ² of the convictions in each tenth of the lifetimes against this probability, and its degrees of freedom.
    pub fn chi_square(&self, hazard: f64) -> (f64, usize) {
        let parts = self.rounds.iter().zip(&self.hits).filter(|(rounds, _)| **rounds as f64 * hazard >= 5.0);
        let squares = parts.map(|(rounds, hits)| {
            let expected = *rounds as f64 * hazard;
            (*hits as f64 - expected).powi(2) / (expected * (1.0 - hazard))
        });
        squares.fold((0.0, 0), |(sum, count), square| (sum + square, count + 1))
    }

    /// Whether counts and distribution fit this probability: one in some thousand true ones is refused.
    pub fn fits(&self, hazard: f64) -> bool {
        if hazard >= 1.0 {
            return self.convictions() == self.trials();
        }
        let (chi_square, freedom) = self.chi_square(hazard);
        self.deviation(hazard).abs() < 3.5 && chi_square < bound(freedom)
    }
}

/// The 99.95th percentile of χ², by Wilson and Hilferty.
fn bound(freedom: usize) -> f64 {
    const NORMAL: f64 = 3.29;
    let k = freedom.max(1) as f64;
    let spread = 2.0 / (9.0 * k);
    k * (1.0 - spread + NORMAL * spread.sqrt()).powi(3)
}
