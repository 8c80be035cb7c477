//! When and how much a cheat lies.

/// When a member cheats, and how much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    /// One bad leaf in every round.
    Drip,
    /// One bad leaf every `n` rounds: a slow poison. However small the lie, a comparison for equality sees it.
    Slow(u32),
    /// All leaves, every `n` rounds.
    Burst(u32),
    /// Each leaf is bad with this probability, in millionths.
    Random(u32),
    /// All leaves of its first round; then it leaves for good.
    OnceAndGone,
    /// True leaves and a false sum, in every round.
    FalseSum,
    /// Of a chain one false segment in every round, after which it goes on truly: none of the later ones is right.
    Teleport,
}

impl Schedule {
    /// What it is called.
    pub fn words(self) -> String {
        match self {
            Self::Drip => "one bad leaf each round".into(),
            Self::Slow(every) => format!("one bad leaf each {every} rounds"),
            Self::Burst(every) => format!("all leaves each {every} rounds"),
            Self::Random(ppm) => format!("each leaf with probability {}", f64::from(ppm) / 1e6),
            Self::OnceAndGone => "all leaves once, then gone".into(),
            Self::FalseSum => "true leaves, false sum".into(),
            Self::Teleport => "one false segment each round, gone on from".into(),
        }
    }

    /// Numbers of bad leaves of a round in which it acts, with their probabilities.
    pub(super) fn distribution(self, leaves: u32) -> Vec<(u32, f64)> {
        match self {
            Self::Drip | Self::Slow(_) => vec![(1, 1.0)],
            Self::Teleport => (1..=leaves).map(|bad| (bad, 1.0 / f64::from(leaves))).collect(),
            Self::Burst(_) | Self::OnceAndGone | Self::FalseSum => vec![(leaves, 1.0)],
            Self::Random(ppm) => {
                let q = f64::from(ppm) / 1e6;
                let binomial = |bad: u32| {
                    let ways = (0..bad).fold(1.0, |w, i| w * f64::from(leaves - i) / f64::from(i + 1));
                    ways * q.powi(bad as i32) * (1.0 - q).powi((leaves - bad) as i32)
                };
                (0..=leaves).map(|bad| (bad, binomial(bad))).collect()
            }
        }
    }

    /// Probability that an audit with `drawn` of `leaves` sees one of `bad`: 1 − C(m−b, a)/C(m, a).
    pub(super) fn seen(self, bad: u32, leaves: u32, drawn: u32) -> f64 {
        if self == Self::FalseSum {
            return 1.0;
        }
        let unseen = |i: u32| f64::from(leaves.saturating_sub(bad + i)) / f64::from(leaves - i);
        1.0 - (0..drawn.min(leaves)).map(unseen).product::<f64>()
    }

    /// Whether it acts in this round of its life.
    pub(super) fn acts(self, age: u32) -> bool {
        match self {
            Self::Drip | Self::Random(_) | Self::FalseSum | Self::Teleport => true,
            Self::Slow(every) | Self::Burst(every) => age.is_multiple_of(every),
            Self::OnceAndGone => age == 0,
        }
    }
}
