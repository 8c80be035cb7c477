//! Whom a flood is for, and from where it comes.

use std::net::{Ipv4Addr, SocketAddr};

use muster_core::ids::{Digest, MemberId, RunId, unhex};

/// Addresses of strangers.
const SOURCES: u8 = 8;

/// Whom a flood is for.
#[derive(Clone, Debug)]
pub struct Target {
    /// The run.
    pub run: RunId,
    /// The steward.
    pub steward: MemberId,
    /// Its port for channels.
    pub channel: SocketAddr,
    /// A node, and its port for channels.
    pub node: (MemberId, SocketAddr),
    /// The steward in its swarm, as a multiaddress.
    pub swarm: Option<String>,
    /// The steward's pages.
    pub web: Option<SocketAddr>,
}

impl Target {
    /// As one word of a command line.
    pub fn to_words(&self) -> String {
        let Self { run, steward, channel, node: (node, port), swarm, web } = self;
        let (swarm, web) = (swarm.as_deref().unwrap_or("-"), web.map_or("-".into(), |web| web.to_string()));
        format!("{run:#} {steward:#} {channel} {node:#} {port} {swarm} {web}")
    }

    /// What [`Self::to_words`] gave.
    pub fn from_words(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let [run, steward, channel, node, port, swarm, web] = words[..] else { return None };
        Some(Self {
            run: RunId(Digest(unhex(run)?)),
            steward: MemberId(unhex(steward)?),
            channel: channel.parse().ok()?,
            node: (MemberId(unhex(node)?), port.parse().ok()?),
            swarm: (swarm != "-").then(|| swarm.to_owned()),
            web: web.parse().ok(),
        })
    }
}

/// The address of a stranger.
pub(super) fn source(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 9, 1 + (number % usize::from(SOURCES)) as u8)
}
