//! Gossip: nobody waits for everybody. Member i begins turn t once it has computed turn t − 1, and has what its neighbours
//! had then: f_i(t) = max(f_i(t − 1) + C_i(t), max over neighbours j of f_j(t − 1) + g_ji), with times C of computing that are drawn
//! and times g of a contribution over an edge. The recursion is played a number of turns, by a seed.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// Turns that are played.
const TURNS: usize = 400;
/// The least that a draw of a time may be, of its mean.
const LEAST: f64 = 0.1;

/// Who has whom for a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// The two beside a member, in every turn.
    Ring,
    /// One, twice as far away in each turn: 1, 2, 4, … members further.
    Exponential,
    /// Alternating exchange on a ring: in one turn within a cluster, in the next with the cluster on one side, then the other.
    Alternating {
        /// Members of a cluster, who reach each other at once; 1 where each is alone.
        cluster: usize,
    },
}

impl Topology {
    /// The members that a member hears in a turn.
    pub fn neighbours(self, member: usize, turn: usize, members: usize) -> Vec<usize> {
        match self {
            Self::Ring => vec![(member + members - 1) % members, (member + 1) % members],
            Self::Exponential => {
                let powers = members.next_power_of_two().trailing_zeros().max(1) as usize;
                vec![(member + (1 << (turn % powers))) % members]
            }
            Self::Alternating { cluster } => {
                let (own, place, clusters) = (member / cluster, member % cluster, members / cluster);
                if turn.is_multiple_of(2) {
                    return if cluster > 1 {
                        vec![own * cluster + (place + 1) % cluster]
                    } else {
                        Vec::new()
                    };
                }
                let pairs_begin = (turn / 2) % 2;
                let ahead = own % 2 == pairs_begin;
                let other = if ahead { own + 1 } else { own + clusters - 1 } % clusters.max(1);
                vec![other * cluster + place]
            }
        }
    }

    /// Contributions that a member sends in a turn, on average.
    pub fn edges(self) -> f64 {
        match self {
            Self::Ring => 2.0,
            Self::Exponential => 1.0,
            Self::Alternating { .. } => 0.5,
        }
    }
}

/// Draws of how long computing takes beside its mean.
pub struct Draws {
    random: ChaCha8Rng,
    variation: f64,
}

impl Draws {
    /// By a seed, with a coefficient of variation.
    pub fn new(seed: u64, variation: f64) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed), variation }
    }

    /// One of a mean of 1, about normal.
    fn next(&mut self) -> f64 {
        let mut uniform = || (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let sum: f64 = (0..12).map(|_| uniform()).sum();
        (1.0 + self.variation * (sum - 6.0)).max(LEAST)
    }

    /// The mean of the slowest of members that take these times on average.
    pub fn slowest(&mut self, means: &[f64]) -> f64 {
        let mut slowest = || means.iter().map(|mean| mean * self.next()).fold(0.0, f64::max);
        (0..TURNS).map(|_| slowest()).sum::<f64>() / TURNS as f64
    }
}

/// Seconds of a turn in the long run, of members that compute for so long. `edge` says how long a contribution takes from one to
/// another in a turn.
pub fn period(
    means: &[f64],
    topology: Topology,
    draws: &mut Draws,
    edge: impl Fn(usize, usize, usize) -> f64,
) -> f64 {
    let mut ready = vec![0.0_f64; means.len()];
    for turn in 0..TURNS {
        let next = means.iter().enumerate().map(|(member, mean)| {
            let own = ready[member] + mean * draws.next();
            let heard = topology.neighbours(member, turn, means.len()).into_iter();
            heard.map(|other| ready[other] + edge(other, member, turn)).fold(own, f64::max)
        });
        ready = next.collect();
    }
    ready.iter().copied().fold(0.0, f64::max) / TURNS as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_figures_and_nobody_waits_where_nothing_varies() {
        let play = |seed, topology| period(&[1.0; 16], topology, &mut Draws::new(seed, 0.2), |_, _, _| 0.5);
        let all = [Topology::Ring, Topology::Exponential, Topology::Alternating { cluster: 1 }];
        for topology in all {
            assert_eq!(play(7, topology).to_bits(), play(7, topology).to_bits());
            let (slow, fast) =
                (play(8, topology), period(&[1.0; 16], topology, &mut Draws::new(8, 0.0), |_, _, _| 0.5));
            assert!(slow > 1.0 && slow < 1.5 && (fast - 1.0).abs() < 1e-9, "{topology:?}: {slow} {fast}");
        }
        // Fewer edges, less waiting; and all of them less than for the slowest of everybody.
        let [ring, exponential, alternating] = all.map(|topology| play(9, topology));
        let everybody = Draws::new(9, 0.2).slowest(&[1.0; 16]);
        assert!(alternating < exponential && exponential < everybody && ring < everybody);
    }

    #[test]
    fn neighbours_are_members_and_pairs_are_mutual() {
        for members in [2, 4, 8, 16] {
            for (turn, cluster) in (0..12).flat_map(|turn| [(turn, 1), (turn, 2)]) {
                let topology = Topology::Alternating { cluster };
                for member in 0..members {
                    let heard = topology.neighbours(member, turn, members);
                    assert!(heard.iter().all(|other| *other < members));
                    if turn % 2 == 1 && members / cluster > 1 {
                        assert_eq!(
                            topology.neighbours(heard[0], turn, members),
                            [member],
                            "{members} {turn}"
                        );
                    }
                }
            }
        }
    }
}
