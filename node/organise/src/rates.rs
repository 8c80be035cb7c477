//! What audits at the rates of a run do to a cheat, before anybody tries: spec/model.md C3.

use muster_core::coins::drawn_leaves;

/// What is wrong with a contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The table does not add up to what was committed.
    Sum,
    /// Every row of the table.
    Rows,
    /// The second half of its rows.
    HalfOfRows,
    /// Its rows from the middle on, each because of what was done between two of them.
    LaterRows,
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
    /// Answers to calls; whoever asks two holders sees it.
    Answers,
    /// Nothing that anybody could be banned for; why that does no harm.
    Nothing(&'static str),
}

/// How one member's contributions are audited.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// π: probability that a contribution is audited.
    pub share: f64,
    /// m: its leaves.
    pub leaves: u32,
    /// a: how many of them an audit draws.
    pub drawn: u32,
    /// Whether a leaf begins where the one before it ends (LOCAL-8).
    pub chained: bool,
}

impl Wrong {
    /// Wrong rows of m; none where no row is.
    pub fn rows(self, m: u32) -> u32 {
        match self {
            Self::Rows | Self::Silence => m,
            Self::HalfOfRows => m / 2,
            Self::LaterRows => m - m / 2,
            Self::Row => m.min(1),
            Self::Sum
            | Self::Hidden
            | Self::Words
            | Self::Part
            | Self::Block
            | Self::Answers
            | Self::Nothing(_) => 0,
        }
    }

    /// Probability that an audit of `drawn` leaves of m convicts; none where no audit is needed, or would help.
    // C2: one of a drawn leaves is wrong with probability 1 − C(m−b, a)/C(m, a).
    pub fn found(self, m: u32, drawn: u32) -> Option<f64> {
        match self {
            Self::Sum | Self::Hidden | Self::Rows | Self::Silence => Some(1.0),
            Self::HalfOfRows | Self::LaterRows | Self::Row => {
                let wrong = self.rows(m);
                let missed = (0..drawn.min(m))
                    .map(|taken| f64::from((m - wrong).saturating_sub(taken)) / f64::from(m - taken));
                Some(1.0 - missed.product::<f64>())
            }
            Self::Words | Self::Part | Self::Block | Self::Answers | Self::Nothing(_) => None,
        }
    }
}

impl Rates {
    /// The rates for contributions of `leaves` leaves (at least one), in a run whose `audit.leaves` is `least`.
    pub fn new(share: f64, leaves: u32, least: u8) -> Self {
        let leaves = leaves.max(1);
        Self { share: share.clamp(0.0, 1.0), leaves, drawn: drawn_leaves(leaves, least), chained: false }
    }

    /// Probability that a contribution of which this is wrong convicts its author; 0 where no audit does.
    pub fn convicts(&self, wrong: Wrong) -> f64 {
        self.share * wrong.found(self.leaves, self.drawn).unwrap_or(0.0)
    }

    /// The same where a leaf begins where the one before it ends, if it is so.
    #[must_use]
    pub fn chained(self, chained: bool) -> Self {
        Self { chained, ..self }
    }

    /// ρ: share of all leaves that are recomputed. Of a chain these are all up to the last one drawn, whose place is
    /// a·(m + 1)/(a + 1) on average, counted from 1.
    pub fn recomputed(&self) -> f64 {
        let [drawn, leaves] = [self.drawn, self.leaves].map(f64::from);
        let computed = if self.chained { drawn * (leaves + 1.0) / (drawn + 1.0) } else { drawn };
        self.share * computed / leaves
    }
}

/// A probability with the digits that matter.
pub fn percent(probability: f64) -> String {
    match 100.0 * probability {
        0.0 => "0 %".into(),
        small if small < 0.05 => "<0.1 %".into(),
        some if some < 9.95 => format!("{some:.1} %"),
        most => format!("{most:.0} %"),
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
