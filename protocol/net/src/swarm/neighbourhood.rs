//! The peers of a swarm, as far as it knows them.

/// The peers of a swarm, as far as it knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbourhood {
    /// Multiaddresses at which this swarm can be dialled, its peer id included.
    pub own: Vec<String>,
    /// Peers connected.
    pub connected: usize,
    /// Those of them that listen to gossip.
    pub listening: usize,
    /// Multiaddresses of peers that were met, to begin with after a restart.
    pub met: Vec<String>,
}
