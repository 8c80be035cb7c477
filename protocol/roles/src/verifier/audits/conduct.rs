//! What a verifier asks, shows and says, given what is its duty and what it has found.

use muster_core::audit::Judgement;
use muster_core::ids::{MemberId, Round};
use muster_core::messages::audit::Finding;

/// How a verifier conducts itself. All that is not said otherwise is as it should be: [`Honest`] is the product's, and the
/// rehearsal has liars.
pub trait Conduct: Send + Sync {
    /// The finding that it signs.
    fn says(&self, found: Finding) -> Finding {
        found
    }

    /// What it makes of the second opinion about somebody whom it is about to accuse.
    fn weighs(&self, opinion: Judgement, _accused: MemberId) -> Judgement {
        opinion
    }

    /// Whether it asks the author of a contribution, which is due from it (DUTY-3) or not.
    fn asks(&self, _author: MemberId, due: bool) -> bool {
        due
    }

    /// Whether it shows a round's node coin before the round is over and echoed.
    fn hurries(&self) -> bool {
        false
    }

    /// Whether it says what it has to say about a round.
    fn speaks(&self, _round: Round) -> bool {
        true
    }
}

/// It does all that is its duty, says what it found, and accuses nobody whom its second opinion acquits.
pub struct Honest;

impl Conduct for Honest {}
