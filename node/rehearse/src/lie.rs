//! Verifiers that do not do their duty, one file for each way. They enrol like everyone else, see what every verifier
//! sees, and differ in their [`Conduct`] only.
//!
//! To add one: a file with a first line `Peer that …`, a row in [`Lie`] and its functions, and one in the tables of
//! spec/model.md and spec/attacks.md.

mod accuse;
mod acquit;
mod early_coin;
mod hunt;
mod sleep;

use std::sync::Arc;

use clap::ValueEnum;
use muster_roles::verifier::audits::Conduct;

/// A way for a verifier to lie, or to leave its duty undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Lie {
    /// Passes everything.
    Acquit,
    /// Accuses everyone.
    Accuse,
    /// Does nothing.
    Sleep,
    /// Asks one member only.
    Hunt,
    /// Shows its coins too early.
    EarlyCoin,
}

impl Lie {
    /// What `--attack` calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Acquit => "acquit",
            Self::Accuse => "accuse",
            Self::Sleep => "sleep",
            Self::Hunt => "hunt",
            Self::EarlyCoin => "early-coin",
        }
    }

    /// What it does, for people.
    pub(super) fn about(self) -> &'static str {
        let source = match self {
            Self::Acquit => include_str!("lie/acquit.rs"),
            Self::Accuse => include_str!("lie/accuse.rs"),
            Self::Sleep => include_str!("lie/sleep.rs"),
            Self::Hunt => include_str!("lie/hunt.rs"),
            Self::EarlyCoin => include_str!("lie/early_coin.rs"),
        };
        let first = source.lines().next().unwrap_or_default();
        first.trim_start_matches("//! ").trim_end_matches('.')
    }

    /// Whether a cheat that it inspects gets away. One that accuses everybody accuses cheats, too.
    pub(super) fn spares(self) -> bool {
        self != Self::Accuse
    }

    /// Whether none of its verdicts is false: it leaves its duty undone, for which there is no evidence.
    pub(super) fn idles(self) -> bool {
        matches!(self, Self::Sleep | Self::Hunt | Self::EarlyCoin)
    }

    /// The conduct of such a verifier.
    pub fn conduct(self) -> Arc<dyn Conduct> {
        match self {
            Self::Acquit => Arc::new(acquit::Acquit),
            Self::Accuse => Arc::new(accuse::Accuse),
            Self::Sleep => Arc::new(sleep::Sleep),
            Self::Hunt => Arc::<hunt::Hunt>::default(),
            Self::EarlyCoin => Arc::new(early_coin::EarlyCoin),
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_core::ids::{MemberId, Round};
    use muster_core::messages::audit::{Finding, FindingKind};

    use super::*;

    #[test]
    fn each_is_listed_by_what_it_says_of_itself() {
        let tables = [include_str!("../../../spec/model.md"), include_str!("../../../spec/attacks.md")];
        for lie in Lie::value_variants() {
            assert!(lie.about().starts_with("Peer that ") && lie.about().len() < 130, "{}", lie.about());
            let parsed = Lie::from_str(lie.name(), false);
            assert_eq!(parsed, Ok(*lie));
            assert!(tables[0].contains(&format!("| {} |", lie.name())), "{} is not in model.md", lie.name());
            assert!(tables[1].contains(&format!("`{}`", lie.name())), "{} is not in attacks.md", lie.name());
        }
    }

    #[test]
    fn each_differs_in_one_thing() {
        let (guilty, nobody) = (Finding::Guilty(FindingKind::SumMismatch), MemberId([1; 32]));
        let differs = |lie: Lie| {
            let conduct = lie.conduct();
            let says = conduct.says(Finding::Pass) != Finding::Pass || conduct.says(guilty) != guilty;
            let asks = conduct.asks(nobody, false) || !conduct.asks(MemberId([2; 32]), true);
            [says, asks, conduct.hurries(), !conduct.speaks(Round(3))].map(usize::from)
        };
        for lie in Lie::value_variants() {
            assert_eq!(differs(*lie).iter().sum::<usize>(), 1, "{}", lie.name());
        }
        // It hunts whom it meets first, whether it may or not, and lets the others be.
        let hunter = Lie::Hunt.conduct();
        let (prey, other) = (MemberId([7; 32]), MemberId([8; 32]));
        assert!(hunter.asks(prey, false) && !hunter.asks(other, true) && hunter.asks(prey, true));
    }
}
