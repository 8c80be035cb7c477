//! Where the peers of a swarm are, as far as that is more than a stranger's word (CHAN-20).

use std::collections::BTreeMap;
use std::net::IpAddr;

use libp2p::{Multiaddr, PeerId};

use super::address;
use crate::source::source;

/// Peers remembered for another time, and those told to the caller; of one source.
const MET: usize = 64;
const MET_OF_SOURCE: usize = 8;

/// What a connected peer says of itself.
struct Told {
    addresses: Vec<Multiaddr>,
    /// Whether it is in the table already.
    listed: bool,
}

/// The peers of one swarm: what they have said while they are connected, and where some of them were found.
#[derive(Default)]
pub(super) struct Acquaintances {
    told: BTreeMap<PeerId, Told>,
    met: BTreeMap<PeerId, Multiaddr>,
}

impl Acquaintances {
    /// A connected peer names addresses at which it may be dialled, its peer id included. There are as many entries as
    /// connected peers, so that whoever calls takes them out again.
    pub(super) fn tell(&mut self, peer: PeerId, addresses: Vec<Multiaddr>) {
        self.told.insert(peer, Told { addresses, listed: false });
    }

    /// A peer has no connection any more.
    pub(super) fn gone(&mut self, peer: &PeerId) {
        self.told.remove(peer);
    }

    /// Takes the peers that have said where they are and that `listed` says the table may hold, once each.
    pub(super) fn take(&mut self, listed: impl Fn(&PeerId) -> bool) -> Vec<(PeerId, Vec<Multiaddr>)> {
        let new = self.told.iter_mut().filter(|(peer, told)| !told.listed && listed(peer));
        new.map(|(peer, told)| {
            told.listed = true;
            (*peer, told.addresses.clone())
        })
        .collect()
    }

    /// A peer was found at an address, its peer id included.
    pub(super) fn meet(&mut self, peer: PeerId, at: Multiaddr) {
        let from = |address: &Multiaddr| -> IpAddr { source(address::ip(address)) };
        let of = from(&at);
        let beside = self.met.iter().filter(|(other, met)| **other != peer && from(met) == of).count();
        // Names of peers cost nothing: one source must not take the places of all others.
        let room = self.met.len() < MET || self.met.contains_key(&peer);
        if room && beside < MET_OF_SOURCE {
            self.met.insert(peer, at);
        }
    }

    /// Forgets a peer.
    pub(super) fn forget(&mut self, peer: &PeerId) {
        self.told.remove(peer);
        self.met.remove(peer);
    }

    /// Where peers were found.
    pub(super) fn met(&self) -> impl Iterator<Item = &Multiaddr> {
        self.met.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chan_20_the_places_of_one_source_are_few() {
        let mut known = Acquaintances::default();
        let at = |text: &str| text.parse::<Multiaddr>().unwrap();
        for port in 1..200 {
            known.meet(PeerId::random(), at(&format!("/ip4/10.0.0.1/tcp/{port}")));
        }
        assert_eq!(known.met().count(), MET_OF_SOURCE);
        for host in 2..200 {
            known.meet(PeerId::random(), at(&format!("/ip4/10.0.0.{host}/tcp/1")));
        }
        assert_eq!(known.met().count(), MET);
    }

    #[test]
    fn a_peer_is_listed_once_it_may_be() {
        let mut known = Acquaintances::default();
        let (peer, at) = (PeerId::random(), "/ip4/10.0.0.1/tcp/1".parse::<Multiaddr>().unwrap());
        known.tell(peer, vec![at.clone()]);
        assert!(known.take(|_| false).is_empty());
        assert_eq!(known.take(|_| true), [(peer, vec![at])]);
        assert!(known.take(|_| true).is_empty());
        known.gone(&peer);
        assert!(known.told.is_empty());
    }
}
