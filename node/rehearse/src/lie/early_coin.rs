//! Peer that shows its coin as soon as a round is frozen, so that members know before it is over whom it selects.
//!
//! The board takes no such coin (COIN-7), and nobody is shown it; as one that was not shown in time it makes its owner
//! idle. Told to a member in private it could not be seen: N6.

use muster_roles::verifier::audits::Conduct;

pub(super) struct EarlyCoin;

impl Conduct for EarlyCoin {
    fn hurries(&self) -> bool {
        true
    }
}
