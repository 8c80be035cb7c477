//! Peers that bring messages which no honest peer would have passed on.

use std::collections::{BTreeMap, VecDeque};

use libp2p::PeerId;

/// Rejected messages after which a peer is shut out.
pub(super) const REJECTED: u32 = 16;
/// Peers with rejected messages remembered, and peers shut out: names cost nothing, so that more would not help.
const PEERS: usize = 4096;

/// Rejected messages of each peer, and who is shut out.
#[derive(Default)]
pub(super) struct Reputation {
    rejected: BTreeMap<PeerId, u32>,
    shut_out: VecDeque<PeerId>,
}

/// A peer to shut out, and one to let in again to stay within the bound.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ShutOut {
    pub(super) peer: PeerId,
    pub(super) again: Option<PeerId>,
}

impl Reputation {
    /// Counts a rejected message.
    pub(super) fn reject(&mut self, peer: PeerId) -> Option<ShutOut> {
        let count = self.rejected.get(&peer).copied().unwrap_or(0) + 1;
        if count < REJECTED {
            self.remember(peer, count);
            return None;
        }
        self.rejected.remove(&peer);
        if self.shut_out.contains(&peer) {
            return None;
        }
        self.shut_out.push_back(peer);
        let again = (self.shut_out.len() > PEERS).then(|| self.shut_out.pop_front()).flatten();
        Some(ShutOut { peer, again })
    }

    fn remember(&mut self, peer: PeerId, count: u32) {
        if self.rejected.len() >= PEERS && !self.rejected.contains_key(&peer) {
            // The one with the fewest: a flood of new names must not wash off what a peer has brought so far.
            let least = self.rejected.iter().min_by_key(|(_, count)| **count).map(|(peer, _)| *peer);
            least.map(|least| self.rejected.remove(&least));
        }
        self.rejected.insert(peer, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_shut_out_once_and_alone() {
        let (liar, other) = (PeerId::random(), PeerId::random());
        let mut standing = Reputation::default();
        for _ in 1..REJECTED {
            assert_eq!(standing.reject(liar), None);
        }
        assert_eq!(standing.reject(other), None);
        assert_eq!(standing.reject(liar), Some(ShutOut { peer: liar, again: None }));
        assert!((0..2 * REJECTED).all(|_| standing.reject(liar).is_none()));
    }

    #[test]
    fn memory_is_bounded() {
        let mut standing = Reputation::default();
        let mut forgiven = 0;
        for _ in 0..PEERS + 10 {
            let peer = PeerId::random();
            for _ in 0..REJECTED {
                forgiven += u32::from(standing.reject(peer).is_some_and(|out| out.again.is_some()));
            }
            standing.reject(PeerId::random());
        }
        assert_eq!(forgiven, 10);
        assert!(standing.shut_out.len() <= PEERS && standing.rejected.len() <= PEERS);
    }
}
