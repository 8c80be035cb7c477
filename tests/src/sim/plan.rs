//! What is to be simulated.

use std::sync::Arc;

use muster_core::codec::Real;
use muster_core::ids::Round;
use muster_core::ledger::Stage;
use muster_core::manifest::fixture::tiny;
use muster_core::manifest::{Data, Manifest, Rule};
use muster_core::sign::Identity;
use muster_member::{HonestNode, NodeConduct};
use muster_rehearse::attack::{self, Attack, Coalition};
use muster_store::dataset::Dataset;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use super::experts::{Experts, routing};

/// What happens to a member that means no harm, or how it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Nothing.
    Honest,
    /// Its process dies when it first sees this stage of this round.
    Dies(Round, Stage),
    /// Commits, never delivers.
    Withholds,
    /// Takes parts in, never reduces them.
    NeverReduces,
    /// Never commits, but stays connected.
    Mute,
    /// Signs parts that are a hundred times what the rule gives.
    ReducesWrongly,
    /// Signs such a part, and then the right one.
    ReducesTwice,
    /// Objects to every block.
    Objects,
    /// Never says what it thinks of the results.
    NeverChecks,
    /// Says what it thinks of the results of every second round.
    ChecksSeldom,
    /// Takes no part of this node in.
    Refuses(usize),
    /// Commits to a leaf more than it may, and returns whenever it is away.
    Overclaims,
    /// Commits, never says what it delivered, and returns whenever it is away.
    Stalls,
    /// As [`Self::NeverReduces`], and returns whenever it is away.
    StallsParts,
    /// Signs what it reduces, shows the values to nobody, and returns whenever it is away.
    HidesValues,
}

/// How reliably somebody says what it has to say in audits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Temper {
    /// Of a million things that it has to say, so many it never does.
    pub loses: u32,
    /// Milliseconds that it lets each of the others wait, at most.
    pub dawdles: u64,
    /// How many times as long it takes to compute; 0 is 1.
    pub slow: u64,
    /// The round from which on it says nothing at all.
    pub mute_from: Option<Round>,
    /// Of a million times that it has news, so many its process is killed, and starts again at once.
    pub crashes: u32,
}

/// A node.
#[derive(Clone)]
pub struct Player {
    /// How it fails.
    pub behaviour: Behaviour,
    /// What it does and says of its own work.
    pub conduct: Arc<dyn NodeConduct>,
    /// Whether it is out to cheat; nobody else may be banned.
    pub cheats: bool,
    /// How it answers audits.
    pub temper: Temper,
    /// The round before which it comes; from the beginning on where there is none.
    pub joins: Option<Round>,
}

impl Player {
    /// One that does all that it should.
    pub fn honest() -> Self {
        Self::behaving(Behaviour::Honest)
    }

    /// One that computes honestly and fails like this.
    pub fn behaving(behaviour: Behaviour) -> Self {
        let (attack, cheats) = match behaviour {
            Behaviour::ReducesWrongly => ("inflate", true),
            Behaviour::ReducesTwice => ("twice", true),
            Behaviour::NeverReduces | Behaviour::StallsParts => ("idle", false),
            _ => {
                let (conduct, temper) = (Arc::new(HonestNode), Temper::default());
                return Self { behaviour, conduct, cheats: false, temper, joins: None };
            }
        };
        let attack: Attack = attack.parse().expect("an attack");
        let conduct = attack.conduct(&attack::Campaign::default());
        Self { behaviour, conduct, cheats, temper: Temper::default(), joins: None }
    }

    /// One that conducts itself like this.
    pub fn cheating(conduct: Arc<dyn NodeConduct>) -> Self {
        let (behaviour, temper) = (Behaviour::Honest, Temper::default());
        Self { behaviour, conduct, cheats: true, temper, joins: None }
    }
}

/// Where [`cast`] puts so many cheats among the nodes: spread evenly.
pub fn places(nodes: usize, cheats: usize) -> Vec<usize> {
    (0..cheats).map(|cheat| (2 * cheat + 1) * nodes / (2 * cheats)).collect()
}

/// Honest nodes, and cheats of one coalition spread evenly among them, one for each of these attacks, from this round on.
pub fn cast(nodes: usize, attacks: &[Attack], from: Round, seed: u64) -> Vec<Player> {
    let slots = places(nodes, attacks.len());
    let coalition = Coalition::of(slots.iter().map(|slot| node_identity(*slot).id()));
    let player = |number: usize| match slots.iter().position(|slot| *slot == number) {
        Some(cheat) => {
            let plan = attack::Campaign { from, coalition: coalition.clone(), seed };
            Player::cheating(attacks[cheat].conduct(&plan))
        }
        None => Player::honest(),
    };
    (0..nodes).map(player).collect()
}

/// The identity of a node, the same in all runs.
pub(super) fn node_identity(number: usize) -> Identity {
    let mut secret = [10u8.wrapping_add(number as u8); 32];
    secret[31] = secret[31].wrapping_add((number >> 8) as u8);
    Identity::from_secret(&secret)
}

/// A run to be simulated.
#[derive(Clone)]
pub struct Plan {
    /// Virtual milliseconds that the steward takes to compute a convict's past again.
    pub measures: u64,
    /// Of a million things that happen, before so many the steward's process is killed, and starts again at once.
    pub steward_crashes: u32,
    /// Of all delays, coins and salts.
    pub seed: u64,
    /// Rounds to train.
    pub rounds: u32,
    /// Leaves of a round for each node.
    pub leaves: u32,
    /// How contributions are combined.
    pub rule: Rule,
    /// Verifiers.
    pub verifiers: u16,
    /// How many of them pass everything and accuse nobody.
    pub friends: u16,
    /// How reliable the verifiers are, those that are no friends first; those without an entry are.
    pub tempers: Vec<Temper>,
    /// Probability, in millionths, that a contribution is audited.
    pub share_ppm: u32,
    /// Leaves drawn in an audit.
    pub drawn: u8,
    /// Last rounds in which everything is audited.
    pub final_rounds: u32,
    /// Learning rate.
    pub rate: f32,
    /// The nodes.
    pub players: Vec<Player>,
    /// How many of them, the first ones, are founders.
    pub founders: usize,
    /// The rows of experts, where the model has several.
    pub experts: Option<Experts>,
    /// What else is different in the manifest.
    pub change: fn(&mut Manifest),
}

impl Plan {
    /// Nodes without verifiers, two leaves each, by the run's usual rule.
    pub fn new(seed: u64, rounds: u32, players: Vec<Player>) -> Self {
        Self {
            seed,
            rounds,
            leaves: 2,
            rule: Rule::CenteredClip,
            verifiers: 0,
            friends: 0,
            tempers: Vec::new(),
            measures: 20,
            steward_crashes: 0,
            share_ppm: 500_000,
            drawn: 1,
            final_rounds: 2,
            rate: 0.02,
            founders: players.len(),
            experts: None,
            change: |_| (),
            players,
        }
    }

    /// Nodes that compute honestly and behave like these.
    pub fn behaving(seed: u64, rounds: u32, behaviours: &[Behaviour]) -> Self {
        Self::new(seed, rounds, behaviours.iter().map(|behaviour| Player::behaving(*behaviour)).collect())
    }

    /// Numbers of the nodes that cheat.
    pub fn cheats(&self) -> impl Iterator<Item = usize> + '_ {
        self.players.iter().enumerate().filter(|(_, player)| player.cheats).map(|(number, _)| number)
    }

    /// Probability that a block of the aggregate is reduced again, as the manifest has it.
    pub fn block_share(&self) -> f64 {
        let nobody = Identity::from_secret(&[0; 32]);
        f64::from(self.manifest(&nobody, &nobody, self.dataset().data()).audit.blocks_ppm) / 1e6
    }

    /// Secret bytes of a member: another one for each kind and number.
    pub(super) fn secret(&self, kind: u8, number: usize) -> [u8; 32] {
        let mut secret = [kind; 32];
        secret[..8].copy_from_slice(&(number as u64).to_le_bytes());
        secret[8..16].copy_from_slice(&self.seed.to_le_bytes());
        secret
    }

    /// The text: words that follow each other by a rule which a small model finds.
    pub(super) fn dataset(&self) -> Dataset {
        let dataset = Dataset::of_bytes(text(1, 24_000), text(2, 1_200));
        match self.experts {
            Some(experts) => dataset.with_router(routing(experts.rows)),
            None => dataset,
        }
    }

    /// About six thousand parameters, on bytes.
    pub(super) fn manifest(&self, organiser: &Identity, steward: &Identity, data: Data) -> Manifest {
        let nodes = self.players.iter().filter(|player| player.joins.is_none()).count() as u16;
        let mut manifest = tiny(organiser.id(), steward.id(), self.rounds, nodes);
        let real = |value| Real::new(value).expect("a finite constant");
        manifest.nonce[..8].copy_from_slice(&self.seed.to_le_bytes());
        manifest.data = data;
        manifest.model.width = 16;
        manifest.model.hidden = 24;
        manifest.model.sequence = 32;
        manifest.training.leaves = u32::from(nodes) * self.leaves;
        manifest.optimiser.rate = real(self.rate);
        manifest.optimiser.minimum_rate = real(self.rate / 10.0);
        manifest.aggregation.rule = self.rule;
        manifest.audit.share_ppm = self.share_ppm;
        manifest.audit.leaves = self.drawn;
        manifest.audit.final_rounds = self.final_rounds;
        manifest.admission.start_verifiers = self.verifiers;
        manifest.retention.contributions = 16;
        manifest.retention.states = 16;
        (self.change)(&mut manifest);
        self.experts.into_iter().for_each(|experts| experts.enter(&mut manifest));
        manifest.check().expect("a manifest that keeps its rules");
        manifest
    }
}

const WORDS: [&str; 24] = [
    "the", "node", "adds", "its", "leaves", "and", "signs", "them", "a", "verifier", "draws", "one", "leaf",
    "computes", "it", "again", "then", "steward", "seals", "round", "so", "that", "nobody", "lies",
];

/// Each word has three successors, the first one the likeliest.
fn text(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut text = Vec::with_capacity(bytes);
    let mut word = 0usize;
    while text.len() < bytes {
        text.extend(WORDS[word].bytes());
        text.push(b' ');
        let turn = random.next_u32() % 8;
        let step = if turn < 5 {
            1
        } else if turn < 7 {
            5
        } else {
            11
        };
        word = (word + step) % WORDS.len();
    }
    text.truncate(bytes);
    text
}
