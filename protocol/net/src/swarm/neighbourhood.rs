//! Who is around.

/// Who is there, as far as the swarm knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbourhood {
    /// Multiaddresses at which this swarm can be dialled, its peer id included.
    pub own: Vec<String>,
    /// Peers connected.
    pub connected: usize,
    /// Those of them that listen to gossip.
    pub listening: usize,
    /// Multiaddresses of peers that were met, to begin with another time.
    pub met: Vec<String>,
}
