//! What gives an attack away, and how soon.

/// What an attack does that somebody could find, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Betrayal {
    /// What is wrong with a bad contribution.
    pub wrong: Wrong,
    /// How often one is bad.
    pub rhythm: Rhythm,
}

/// What is wrong with a contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The table does not add up to what was committed.
    Sum,
    /// Every row of the table.
    Rows,
    /// The second half of its rows.
    HalfOfRows,
    /// One row.
    Row,
    /// The sum, and at least the steward cannot have it: it recomputes all leaves.
    Hidden,
    /// The sum or every row, and it does not answer: whoever asked recomputes all leaves.
    Silence,
    /// Two signed words contradict each other.
    Words,
    /// A part that it reduces, so far off that contributors have it reduced again before it is sealed.
    Part,
    /// Blocks of a part that it reduces, so little that nobody objects; a drawn block convicts.
    Block,
    /// Nothing that anybody could be banned for; why that does no harm.
    Nothing(&'static str),
}

/// How often a contribution is bad, from the attack's first round on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rhythm {
    /// In every round.
    Always,
    /// In one of so many rounds.
    Every(u32),
    /// In one round; then the member leaves, or has no seat for a while.
    Once,
}

impl Wrong {
    /// Wrong rows of m; none where no row is.
    pub fn rows(self, m: u32) -> u32 {
        match self {
            Self::Rows | Self::Silence => m,
            Self::HalfOfRows => m / 2,
            Self::Row => m.min(1),
            Self::Sum | Self::Hidden | Self::Words | Self::Part | Self::Block | Self::Nothing(_) => 0,
        }
    }

    /// Probability that an audit of `drawn` leaves of m convicts; none where no audit is needed, or would help.
    // C2: one of a drawn leaves is wrong with probability 1 − C(m−b, a)/C(m, a).
    pub fn found(self, m: u32, drawn: u32) -> Option<f64> {
        match self {
            Self::Sum | Self::Hidden | Self::Rows | Self::Silence => Some(1.0),
            Self::HalfOfRows | Self::Row => {
                let wrong = self.rows(m);
                let missed = (0..drawn.min(m))
                    .map(|taken| f64::from((m - wrong).saturating_sub(taken)) / f64::from(m - taken));
                Some(1.0 - missed.product::<f64>())
            }
            Self::Words | Self::Part | Self::Block | Self::Nothing(_) => None,
        }
    }
}

impl Rhythm {
    /// Whether a round is bad, counted from the attack's first one.
    pub fn bad(self, since: u32) -> bool {
        match self {
            Self::Always => true,
            Self::Every(rounds) => since.is_multiple_of(rounds.max(1)),
            Self::Once => since == 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_leaf_of_m_is_drawn_as_often_as_it_should_be() {
        for (m, drawn) in [(1, 1), (4, 1), (4, 3), (16, 5), (3, 9)] {
            let share = f64::from(drawn.min(m)) / f64::from(m);
            assert!((Wrong::Row.found(m, drawn).unwrap() - share).abs() < 1e-12, "{m} {drawn}");
            assert_eq!(Wrong::Rows.found(m, drawn), Some(1.0));
        }
        // Two of four wrong, two drawn: missed with 2/4 · 1/3.
        assert!((Wrong::HalfOfRows.found(4, 2).unwrap() - 5.0 / 6.0).abs() < 1e-12);
        assert_eq!(Wrong::Words.found(4, 4), None);
    }
}
