//! A population to be audited.

use muster_core::coins::drawn_leaves;
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Digest, Round};

use super::schedule::Schedule;

/// A population to be audited.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Of everything that is drawn.
    pub seed: u64,
    /// Rounds.
    pub rounds: u32,
    /// Honest members, at most 256 with the cheats.
    pub honest: usize,
    /// Cheats: how, and how many of them. One that is banned or leaves comes back under another name.
    pub cheats: Vec<(Schedule, usize)>,
    /// Verifiers, which share the contributions: V.
    pub verifiers: u16,
    /// How many of them pass every cheat.
    pub friends: u16,
    /// Probability, in millionths, that a contribution is audited: π.
    pub share_ppm: u32,
    /// Leaves drawn in an audit at least.
    pub drawn: u8,
    /// Leaves of a contribution: m.
    pub leaves: u32,
    /// Share of its time that a verifier spends on audits, below 1: the rest keeps its queue short.
    pub load: f64,
    /// Rounds from the one in which an audit is done to the first one without the convict, at least 1: verdict, second
    /// opinion, the steward's own execution, ban.
    pub latency: u32,
    /// Whether leaves are segments of a chain, each of which begins where the one before it ends (LOCAL-8).
    pub chained: bool,
}

impl Setting {
    /// Share of the verifiers that are not in league with the cheats: 1 − δ.
    pub fn upright(&self) -> f64 {
        f64::from(self.verifiers.saturating_sub(self.friends)) / f64::from(self.verifiers.max(1))
    }

    /// Leaves drawn in an audit of one of its contributions: a, or an eighth of them.
    pub fn of_each(&self) -> u32 {
        drawn_leaves(self.leaves, self.drawn)
    }

    /// Probability that a round of this schedule in which it may cheat convicts.
    pub fn hazard(&self, schedule: Schedule) -> f64 {
        let pi = f64::from(self.share_ppm) / 1e6 * self.upright();
        let caught = |bad: u32| pi * schedule.seen(bad, self.leaves, self.of_each());
        schedule.distribution(self.leaves).into_iter().map(|(bad, share)| share * caught(bad)).sum()
    }

    /// Expected bad leaves until the audit that convicts, that round's own included.
    pub fn harm(&self, schedule: Schedule) -> f64 {
        self.a_round(schedule) / self.hazard(schedule)
    }

    /// Expected bad leaves of a round in which a cheat of this schedule acts.
    pub fn a_round(&self, schedule: Schedule) -> f64 {
        schedule.distribution(self.leaves).iter().map(|(bad, share)| f64::from(*bad) * share).sum()
    }
}

pub(super) fn digest(setting: &Setting, round: Round, what: &str) -> Digest {
    Hasher::new(Domain::LEDGER).value(&setting.seed).value(&round).value(what).finish()
}
