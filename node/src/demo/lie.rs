//! Peer that audits as it should, and then says something else than what it has found.

use std::sync::Arc;

use clap::ValueEnum;
use muster_core::audit::Judgement;
use muster_core::ids::{MemberId, Round};
use muster_core::messages::audit::{Finding, FindingKind};
use muster_verifier::audits::Conduct;

/// A way for a verifier to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Lie {
    /// Lets everything pass.
    Acquit,
    /// Finds every leaf wrong, and accuses.
    Accuse,
}

impl Lie {
    /// What `--attack` calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Acquit => "acquit",
            Self::Accuse => "accuse",
        }
    }

    /// What it does, for people.
    pub(super) fn about(self) -> &'static str {
        match self {
            Self::Acquit => "Verifier that lets everything pass.",
            Self::Accuse => "Verifier that finds every leaf wrong, and accuses.",
        }
    }

    /// The conduct of a verifier that lies like this.
    pub fn conduct(self) -> Arc<dyn Conduct> {
        Arc::new(self)
    }
}

impl Conduct for Lie {
    fn says(&self, _: Finding) -> Finding {
        match self {
            Self::Acquit => Finding::Pass,
            Self::Accuse => Finding::Guilty(FindingKind::LeafMismatch),
        }
    }

    fn weighs(&self, _: Judgement, accused: MemberId) -> Judgement {
        let (round, detail) = (Round(0), "it is said".to_owned());
        Judgement::Guilty { culprit: accused, round, finding: FindingKind::LeafMismatch, detail }
    }
}
