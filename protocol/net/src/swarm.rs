//! Gossip and discovery over libp2p: hints, which nobody waits for (CHAN-11).
//!
//! A run has a swarm of its own: two gossiped topics, and a Kademlia table in which members say where their Muster
//! channel can be dialled, and which row of experts they hold. Peers are strangers, also those with a member's key; what they send is given on only when
//! the caller's [`Sieve`] accepts it, and a peer that keeps sending what it rejects is shut out. Everything here may be
//! late, lost or withheld; nothing here can be forged.

mod address;
mod behaviour;
mod command;
mod driver;
mod neighbourhood;
mod registry;
mod sieve;
mod standing;
mod whereabouts;

use std::time::Duration;

use libp2p::PeerId;
use muster_core::codec::encode;
use muster_core::error::Misuse;
use muster_core::ids::{MemberId, Row, RunId};
use muster_core::limits;
use muster_core::messages::gossip::Whereabouts;
use muster_core::sign::{Identity, Signed, Verified};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time;
use tracing::debug;

pub use neighbourhood::Neighbourhood;
pub use sieve::{Sieve, Topic, Validity};

use crate::error::{Cause, NetError};
use command::SwarmCommand;
use driver::EventLoop;

/// Commands that wait for the swarm at most; more are dropped.
const COMMANDS: usize = 256;
/// How long the swarm may take to end.
const GRACE: Duration = Duration::from_secs(2);

/// Where a swarm listens, and whom it begins with.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Where to listen, as `IP:PORT` or multiaddress; nowhere for a member that only dials.
    pub listen: Vec<String>,
    /// Multiaddresses of peers to begin with. What cannot be read is left out.
    pub bootstrap: Vec<String>,
}

/// Whether a text is where a swarm can listen: `IP:PORT` or a multiaddress.
///
/// # Errors
/// [`Misuse`] saying what is expected.
pub fn check_listen(text: &str) -> Result<(), Misuse> {
    address::listened(text).map(drop)
}

/// A running swarm. Dropping it ends the swarm.
pub struct Gossip {
    peer: PeerId,
    commands: mpsc::Sender<SwarmCommand>,
    neighbourhood: watch::Receiver<Neighbourhood>,
    task: JoinHandle<()>,
}

impl Gossip {
    /// Starts a swarm under the member's own key. Needs a Tokio runtime.
    ///
    /// # Errors
    /// [`Cause::Own`] for an address that cannot be read, [`Cause::System`] for one that cannot be listened on.
    pub fn start(
        identity: &Identity,
        run: RunId,
        settings: &Settings,
        sieve: Box<dyn Sieve>,
    ) -> Result<Self, NetError> {
        let mut swarm = behaviour::swarm(identity, run, !settings.listen.is_empty())?;
        for text in &settings.listen {
            let wanted = address::listened(text).map_err(|misuse| NetError::new(text, misuse))?;
            swarm.listen_on(wanted).map_err(|error| NetError::new(text, error))?;
        }
        let peer = *swarm.local_peer_id();
        let (commands, queue) = mpsc::channel(COMMANDS);
        let (known, neighbourhood) = watch::channel(Neighbourhood::default());
        let driver = EventLoop::new(swarm, run, sieve, queue, known, &settings.bootstrap);
        let task = tokio::spawn(driver.run());
        Ok(Self { peer, commands, neighbourhood, task })
    }

    /// The name among libp2p peers: that of the member's key.
    pub fn peer(&self) -> String {
        self.peer.to_string()
    }

    /// Spreads a message as soon as peers listen. Returns whether it was taken: it is not if it is too long, or if too much
    /// waits already.
    pub fn publish(&self, topic: Topic, message: Vec<u8>) -> bool {
        // LIMIT-2; and nothing waits: gossip is a hint (CHAN-11), for which no round may be held up.
        message.len() <= limits::GOSSIP_BYTES
            && self.commands.try_send(SwarmCommand::Publish(topic, message)).is_ok()
    }

    /// Puts the member's own whereabouts into the table, now and whenever somebody new is met.
    pub fn announce(&self, whereabouts: &Signed<Whereabouts>) -> bool {
        self.commands.try_send(SwarmCommand::Announce(encode(whereabouts))).is_ok()
    }

    /// Looks up the latest whereabouts that a member signed. `None` if no peer that is asked within `patience` knows any.
    pub async fn find(&self, member: MemberId, patience: Duration) -> Option<Verified<Whereabouts>> {
        let (answer, answered) = oneshot::channel();
        self.commands.try_send(SwarmCommand::Find(member, answer)).ok()?;
        time::timeout(patience, answered).await.ok()?.ok()
    }

    /// Says in the table that this member holds a row, or none, from now on and whenever somebody new is met.
    pub fn hold(&self, row: Option<Row>) -> bool {
        self.commands.try_send(SwarmCommand::Hold(row)).is_ok()
    }

    /// The peers that say they hold a row, as far as they are asked within `patience`. Anybody in the table may name others.
    pub async fn holders(&self, row: Row, patience: Duration) -> Vec<MemberId> {
        let (answer, answered) = oneshot::channel();
        if self.commands.try_send(SwarmCommand::Holders(row, answer)).is_err() {
            return Vec::new();
        }
        time::timeout(patience, answered).await.ok().and_then(Result::ok).unwrap_or_default()
    }

    /// Connects to one more peer; a multiaddress that cannot be read is left out.
    pub fn dial(&self, multiaddress: &str) -> bool {
        self.commands.try_send(SwarmCommand::Dial(multiaddress.to_owned())).is_ok()
    }

    /// The neighbourhood, and every change of it.
    pub fn neighbourhood(&self) -> watch::Receiver<Neighbourhood> {
        self.neighbourhood.clone()
    }

    /// Closes all connections and waits for the end.
    pub async fn stop(self) {
        let Self { commands, mut task, .. } = self;
        // The driver ends when nobody can command it any more.
        drop(commands);
        if time::timeout(GRACE, &mut task).await.is_err() {
            task.abort();
            debug!("the swarm did not end in time");
        }
    }
}

impl From<libp2p::TransportError<std::io::Error>> for Cause {
    fn from(error: libp2p::TransportError<std::io::Error>) -> Self {
        match error {
            libp2p::TransportError::Other(error) => Self::System(error),
            other => Self::System(std::io::Error::other(other)),
        }
    }
}
