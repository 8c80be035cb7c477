//! What strangers do to a steward and to a node: connections, requests and messages without end, from a few addresses of
//! the loopback network that nobody else has.
//!
//! Each flood is bounded in what it holds, and paced in what it sends, as by an uplink: [`BYTES`] and [`CONNECTIONS`] a second.

mod line;
mod pace;
mod quiet;
mod requests;
mod swarm;
mod target;

use std::sync::Arc;

use muster_core::error::Misuse;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use pace::Pace;
pub use target::Target;

/// Bytes a second that all strangers of a flood send, or read, together.
pub const BYTES: f64 = 20e6;
/// Connections a second that they open together.
pub const CONNECTIONS: f64 = 300.0;

/// A kind of flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    /// Connections that say nothing, or only the beginning of a handshake, on each port.
    Idle,
    /// Channels on which a message stops in its middle.
    Cut,
    /// Handshakes, of random bytes and real ones, and then the end.
    Knock,
    /// Pipelined requests for all records.
    Follow,
    /// Pipelined requests for what is new on a board that there is not.
    Board,
    /// Pipelined requests for the text.
    Data,
    /// The same by peers that read nothing.
    Deaf,
    /// Longest messages that stop before their last byte.
    Brim,
    /// Garbage, and commitments of nobody, in the swarm.
    Gossip,
    /// Requests for pages, and halves of such.
    Web,
    /// Parts for a round that never comes, brought to a node.
    Put,
    /// No flood: as many bytes to a port that throws them away. What it costs the run is the machine's load.
    Sink,
}

impl Flood {
    /// All of them, the control first.
    pub const ALL: [Self; 12] = [
        Self::Sink,
        Self::Idle,
        Self::Cut,
        Self::Knock,
        Self::Follow,
        Self::Board,
        Self::Data,
        Self::Deaf,
        Self::Brim,
        Self::Gossip,
        Self::Web,
        Self::Put,
    ];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Cut => "cut",
            Self::Knock => "knock",
            Self::Follow => "follow",
            Self::Board => "board",
            Self::Data => "data",
            Self::Deaf => "deaf",
            Self::Brim => "brim",
            Self::Gossip => "gossip",
            Self::Web => "web",
            Self::Put => "put",
            Self::Sink => "sink",
        }
    }

    /// The flood of this name.
    ///
    /// # Errors
    /// [`Misuse`] that lists the names.
    pub fn named(name: &str) -> Result<Self, Misuse> {
        let found = Self::ALL.into_iter().find(|flood| flood.name() == name);
        let names = || Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| Misuse(format!("no flood {name:?}; there are {}", names())))
    }

    /// Floods until it is dropped.
    pub async fn begin(self, target: &Target) -> JoinSet<()> {
        let (target, bytes) = (Arc::new(target.clone()), Arc::new(Pace::new(BYTES)));
        let connections = Arc::new(Pace::new(CONNECTIONS));
        match self {
            Self::Idle => quiet::idle(&target, &connections),
            Self::Knock => quiet::knock(&target, &connections),
            Self::Web => quiet::web(&target, &connections),
            Self::Cut => requests::cut(&target, &bytes),
            Self::Follow => requests::follow(&target, &bytes),
            Self::Board => requests::board(&target, &bytes),
            Self::Data => requests::data(&target, &bytes),
            Self::Deaf => requests::deaf(&target, &bytes),
            Self::Brim => requests::brim(&target, &bytes),
            Self::Put => requests::put(&target, &bytes),
            Self::Gossip => swarm::gossip(&target, &bytes),
            Self::Sink => sink(&bytes).await,
        }
    }
}

/// Sends bytes from one socket of this process to another.
async fn sink(bytes: &Arc<Pace>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let Ok(listener) = TcpListener::bind("127.0.0.1:0").await else { return tasks };
    let Ok(address) = listener.local_addr() else { return tasks };
    let bytes = bytes.clone();
    tasks.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        }
    });
    tasks.spawn(async move {
        let Ok(mut stream) = TcpStream::connect(address).await else { return };
        while pace::write(&mut stream, &vec![0; 64 << 10], &bytes).await.is_ok() {}
    });
    tasks
}
