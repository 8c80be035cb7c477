//! How long cheats last: thousands of members, ten thousand rounds, a million audits, beside the formulas of `spec/harm.md`.
//!
//! Who inspects whom, who is audited, which leaves are drawn, and what an audit finds is decided by the product's
//! functions: inspectors, coins out of registered trees, selection, leaf draws, fingerprints, sums of tables, seals. Three
//! things are surrogates, because no rule looks inside them: a leaf is sixteen integers (its first dither words, in a chain
//! mixed with where it begins) and costs no gradient, messages are not signed, and a verifier's work is a queue. A lie is the smallest one: one coefficient off
//! by one. Verdicts are not rechecked: a verifier in league with the cheats always passes them.
//!
//! Everything follows from the seed of the [`Setting`].

mod audit;
mod members;
mod schedule;
mod setting;
mod tally;

use muster_core::coins::{Coin, CoinKind, CoinTree, inspector, selects};
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{MemberId, Round, Slot};
use muster_core::messages::audit::FindingKind;

use audit::{Audit, RoundFacts};
use members::Member;
pub use schedule::Schedule;
pub use setting::Setting;
use setting::digest;
pub use tally::{Detected, Tally};

use crate::parallel::in_parallel;

/// Rounds that one tree of coins serves.
const EPOCH: u32 = 500;

impl Setting {
    /// Runs it.
    pub fn run(&self) -> Detected {
        World::new(self).run()
    }
}

/// Runs several settings and gives what they came to in their order.
pub fn run_all(settings: &[Setting]) -> Vec<Detected> {
    in_parallel(settings, Setting::run)
}

struct Verifier {
    id: MemberId,
    tree: CoinTree,
    friend: bool,
    /// When it will be done with what it has begun, in rounds.
    free: f64,
}

struct World<'a> {
    setting: &'a Setting,
    members: Vec<Member>,
    verifiers: Vec<Verifier>,
    detected: Detected,
}

impl<'a> World<'a> {
    fn new(setting: &'a Setting) -> Self {
        let honest = (0..setting.honest).map(|_| None);
        let cheats = setting.cheats.iter().enumerate();
        let cheats = cheats.flat_map(|(kind, (_, count))| (0..*count).map(move |_| Some(kind)));
        let members = honest.chain(cheats).enumerate();
        let tallies = setting.cheats.iter().map(|(schedule, _)| Tally::new(setting.hazard(*schedule)));
        Self {
            members: members.map(|(slot, kind)| Member::new(setting, slot, kind)).collect(),
            verifiers: Vec::new(),
            detected: Detected { tallies: tallies.collect(), ..Detected::default() },
            setting,
        }
    }

    fn run(mut self) -> Detected {
        for t in 0..self.setting.rounds {
            if t % EPOCH == 0 {
                self.new_coins(t);
            }
            self.round(Round(t));
        }
        self.detected.members = self.members.len();
        self.detected
    }

    fn new_coins(&mut self, first: u32) {
        let free: Vec<f64> = self.verifiers.iter().map(|verifier| verifier.free).collect();
        let verifiers = (0..self.setting.verifiers).map(|number| {
            let name = Hasher::new(Domain::COIN).value(&self.setting.seed).value(&number);
            let secret = name.clone().value(&first);
            let rounds = EPOCH.min(self.setting.rounds - first);
            let tree = CoinTree::new(secret.finish().0, Round(first), rounds, self.members.len() as u16);
            Verifier {
                id: MemberId(name.finish().0),
                tree: tree.expect("within the bound of coins"),
                friend: number < self.setting.friends,
                free: free.get(usize::from(number)).copied().unwrap_or(0.0),
            }
        });
        self.verifiers = verifiers.collect();
    }

    fn round(&mut self, round: Round) {
        self.members.iter_mut().for_each(|member| member.begin(self.setting, round));
        let facts = RoundFacts::new(self.setting, round, self.members.len());
        // DUTY-1: only the inspector's node coin selects a contribution.
        let outcome = digest(self.setting, round, "outcome");
        let verifiers: Vec<MemberId> = self.verifiers.iter().map(|verifier| verifier.id).collect();
        let coin = |verifier: &Verifier| verifier.coin(CoinKind::Node, round, 0);
        let coins: Vec<Coin> = self.verifiers.iter().map(coin).collect();
        for slot in 0..self.members.len() {
            let drawn = inspector(&outcome, Slot(slot as u16), &verifiers);
            let number = verifiers.iter().position(|id| Some(*id) == drawn).expect("one of them");
            let member = &self.members[slot];
            if member.present() && selects(&coins[number], &facts.freeze, &member.id, self.setting.share_ppm)
            {
                self.audit(&facts, number, slot);
            }
        }
        for member in &mut self.members {
            if let Some(kind) = member.kind {
                member.end(round, &mut self.detected.tallies[kind]);
            }
        }
    }

    fn audit(&mut self, facts: &RoundFacts, number: usize, slot: usize) {
        let service = self.setting.load / self.mean_audits();
        let (verifier, member) = (&self.verifiers[number], &self.members[slot]);
        if verifier.friend && member.kind.is_some() {
            return;
        }
        let round = facts.round;
        self.detected.audits += 1;
        let coin = verifier.coin(CoinKind::Leaf, round, slot as u16);
        let audit = Audit { facts, slot, bad: member.bad(), schedule: member.schedule() };
        let finding = audit.finding(self.setting, &coin);
        // An audit is done after those that were drawn before it; its round is over first.
        let done = verifier.free.max(f64::from(round.0) + 1.0) + service;
        self.verifiers[number].free = done;
        self.note(round, slot, finding, done);
    }

    /// Audits that a verifier draws in a round, on average.
    fn mean_audits(&self) -> f64 {
        let all = self.members.len() as f64 * f64::from(self.setting.share_ppm) / 1e6;
        (all / f64::from(self.setting.verifiers)).max(1e-3)
    }

    fn note(&mut self, round: Round, slot: usize, finding: Option<FindingKind>, done: f64) {
        let Some(finding) = finding else { return };
        let effective = Round(done as u32 + self.setting.latency.max(1));
        *self.detected.findings.entry(finding.words()).or_default() += 1;
        if self.members[slot].kind.is_none() || self.members[slot].bad().is_empty() {
            self.detected.false_bans += 1;
        }
        self.members[slot].convicted(round, effective);
    }
}

impl Verifier {
    fn coin(&self, kind: CoinKind, round: Round, k: u16) -> Coin {
        let opening = self.tree.open(kind, round, k).expect("registered");
        opening.verify(&self.tree.terms()).expect("its own coin")
    }
}
