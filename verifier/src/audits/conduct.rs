//! From what a verifier has found to what it says.

use muster_core::audit::Judgement;
use muster_core::ids::MemberId;
use muster_core::messages::audit::Finding;

/// What a verifier says, given what it has found. [`Honest`] is the product's; the rehearsal has liars.
pub trait Conduct: Send + Sync {
    /// The finding that it signs.
    fn says(&self, found: Finding) -> Finding;

    /// What it makes of the second opinion about somebody whom it is about to accuse.
    fn weighs(&self, opinion: Judgement, accused: MemberId) -> Judgement;
}

/// It says what it found, and accuses nobody whom its second opinion acquits.
pub struct Honest;

impl Conduct for Honest {
    fn says(&self, found: Finding) -> Finding {
        found
    }

    fn weighs(&self, opinion: Judgement, _: MemberId) -> Judgement {
        opinion
    }
}
