//! What strangers do to a steward and to a node: connections, requests and messages without end, from a few addresses of
//! the loopback network that nobody else has.
//!
//! Each flood is bounded in what it holds, and paced in what it sends, as by an uplink: [`SENT`], [`READ`] and
//! [`CONNECTIONS`] a second.

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
pub use pace::Uplink;
pub use target::Target;

/// Bytes a second that all strangers of a flood send together.
pub const SENT: f64 = 20e6;
/// Bytes a second that they read together.
pub const READ: f64 = 100e6;
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

    /// Floods until the tasks are dropped.
    pub async fn begin(self, target: &Target) -> (JoinSet<()>, Arc<Uplink>) {
        let (target, uplink) = (Arc::new(target.clone()), Arc::new(uplink()));
        let tasks = match self {
            Self::Idle => quiet::idle(&target, &uplink),
            Self::Knock => quiet::knock(&target, &uplink),
            Self::Web => quiet::web(&target, &uplink),
            Self::Cut => requests::cut(&target, &uplink),
            Self::Follow => requests::follow(&target, &uplink),
            Self::Board => requests::board(&target, &uplink),
            Self::Data => requests::data(&target, &uplink),
            Self::Deaf => requests::deaf(&target, &uplink),
            Self::Brim => requests::brim(&target, &uplink),
            Self::Put => requests::put(&target, &uplink),
            Self::Gossip => swarm::gossip(&target, &uplink),
            Self::Sink => sink(&uplink).await,
        };
        (tasks, uplink)
    }
}

fn uplink() -> Uplink {
    Uplink { up: Pace::new(SENT), down: Pace::new(READ), connections: Pace::new(CONNECTIONS) }
}

/// Sends bytes from one socket of this process to another.
async fn sink(uplink: &Arc<Uplink>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let Ok(listener) = TcpListener::bind("127.0.0.1:0").await else { return tasks };
    let Ok(address) = listener.local_addr() else { return tasks };
    let uplink = uplink.clone();
    tasks.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        }
    });
    tasks.spawn(async move {
        let Ok(mut stream) = TcpStream::connect(address).await else { return };
        while pace::write(&mut stream, &vec![0; 64 << 10], &uplink).await.is_ok() {}
    });
    tasks
}
