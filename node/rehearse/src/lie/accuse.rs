//! Peer that inspects as it should, finds every leaf wrong, and accuses.

use muster_core::audit::Judgement;
use muster_core::ids::{MemberId, Round};
use muster_core::messages::audit::{Finding, FindingKind};
use muster_roles::verifier::audits::Conduct;

pub(super) struct Accuse;

impl Conduct for Accuse {
    fn says(&self, _: Finding) -> Finding {
        Finding::Guilty(FindingKind::LeafMismatch)
    }

    fn weighs(&self, _: Judgement, accused: MemberId) -> Judgement {
        let (round, detail) = (Round(0), "it is said".to_owned());
        Judgement::Guilty { culprit: accused, round, finding: FindingKind::LeafMismatch, detail }
    }
}
