//! Gossip and discovery over libp2p: hints, which nobody waits for (CHAN-11).
//!
//! A run has a swarm of its own: two gossiped topics, and a Kademlia table in which members say where their Muster
//! channel can be dialled, and which row of experts they hold. Peers are strangers, also those with a member's key; what
//! they send is given on only when the caller's [`Sieve`] accepts it, and a peer that keeps sending what it rejects is
//! shut out. Everything here may be late, lost or withheld; nothing here can be forged.
//!
//! Low to high: a `purse` says what is left of an allowance; `accounts` know who pays; a `throttle` reads a connection no
//! faster than that; `doors` let connections in; the `book` knows whom to dial; the `guarded` transport asks both. The
//! `driver` runs on a thread of its own, so that peers cannot take the caller's.

mod accounts;
mod acquaintances;
mod address;
mod behaviour;
mod book;
mod command;
mod doors;
mod driver;
mod guarded;
mod neighbourhood;
mod registry;
mod rules;
mod sieve;
mod standing;
mod throttle;
mod whereabouts;

use std::sync::Arc;
use std::sync::mpsc as blocking;
use std::thread;
use std::time::Duration;

use libp2p::identity::Keypair;
use libp2p::{PeerId, Swarm};
use muster_core::codec::encode;
use muster_core::error::Misuse;
use muster_core::ids::{MemberId, Row, RunId};
use muster_core::limits;
use muster_core::messages::gossip::Whereabouts;
use muster_core::sign::{Identity, Signed, Verified};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time;
use tracing::debug;

pub use neighbourhood::Neighbourhood;
pub use sieve::{Sieve, Topic, Validity};

use crate::capacity::Capacity;
use crate::error::{Cause, NetError};
use crate::reach::Reach;
use behaviour::Behaviour;
use command::SwarmCommand;
use driver::EventLoop;
use rules::Rules;

/// Commands that wait for the swarm at most; more are dropped.
const COMMANDS: usize = 256;
/// How long the swarm may take to end.
const GRACE: Duration = Duration::from_secs(2);

/// Connections of a swarm, unless the caller has a better number.
const SEATS: usize = 192;

/// Where a swarm listens, whom it begins with, and what it may use.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to listen, as `IP:PORT` or multiaddress; nowhere for a member that only dials.
    pub listen: Vec<String>,
    /// Multiaddresses of peers to begin with. What cannot be read is left out.
    pub bootstrap: Vec<String>,
    /// Connections at once, in all: two thirds of them for members and for whom this member dials itself.
    pub seats: usize,
}

impl Default for Settings {
    /// Dials nobody and listens nowhere; 192 connections.
    fn default() -> Self {
        Self { listen: Vec::new(), bootstrap: Vec::new(), seats: SEATS }
    }
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
    /// Closed by the end of the swarm's thread.
    ended: oneshot::Receiver<()>,
}

impl Gossip {
    /// Starts a swarm under the member's own key, on a thread of its own.
    ///
    /// # Errors
    /// [`Cause::Own`] for an address that cannot be read, [`Cause::System`] for one that cannot be listened on.
    pub fn start(
        identity: &Identity,
        run: RunId,
        settings: &Settings,
        sieve: Arc<dyn Sieve>,
    ) -> Result<Self, NetError> {
        let failed = |error: std::io::Error| NetError::new("gossip", error);
        let (commands, queue) = mpsc::channel(COMMANDS);
        let (known, neighbourhood) = watch::channel(Neighbourhood::default());
        let (end, ended) = oneshot::channel::<()>();
        let (tell, told) = blocking::sync_channel(1);
        let (keypair, settings) = (behaviour::keypair(identity)?, settings.clone());
        // CHAN-22: peers decide how much there is to read, decode and check here. None of it is done on the threads that
        // rounds and channels are driven by.
        let swarm = move || {
            let begun =
                Builder::new_current_thread().enable_all().build().map_err(failed).and_then(|runtime| {
                    let swarm = begin(&runtime, &keypair, run, &settings, sieve.clone())?;
                    Ok((runtime, swarm))
                });
            match begun {
                Ok((runtime, (swarm, rules))) => {
                    let peer = *swarm.local_peer_id();
                    if tell.send(Ok(peer)).is_ok() {
                        sieve.begin();
                        // Within the runtime, since it dials at once.
                        runtime.block_on(async {
                            EventLoop::new(swarm, run, rules, queue, known, &settings.bootstrap).run().await
                        });
                    }
                }
                Err(error) => drop(tell.send(Err(error))),
            }
            // Not before the sockets are closed.
            drop(end);
        };
        thread::Builder::new().name("gossip".into()).spawn(swarm).map_err(failed)?;
        let ended_early = |_| failed(std::io::Error::other("the swarm's thread ended"));
        let peer = told.recv().map_err(ended_early)??;
        Ok(Self { peer, commands, neighbourhood, ended })
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
        let Self { commands, ended, .. } = self;
        // The driver ends when nobody can command it any more.
        drop(commands);
        // An error is the end that is waited for: nothing is ever sent.
        if time::timeout(GRACE, ended).await.is_err() {
            debug!("the swarm did not end in time");
        }
    }
}

/// A swarm that listens, within the runtime of its thread.
fn begin(
    runtime: &Runtime,
    keypair: &Keypair,
    run: RunId,
    settings: &Settings,
    sieve: Arc<dyn Sieve>,
) -> Result<(Swarm<Behaviour>, Rules), NetError> {
    let _within = runtime.enter();
    let wanted = settings.listen.iter().map(|text| {
        address::listened(text).map(|address| (text, address)).map_err(|misuse| NetError::new(text, misuse))
    });
    let wanted = wanted.collect::<Result<Vec<_>, _>>()?;
    // Who begins with nobody, as the steward does, is reached where it listens itself.
    let alone = settings.bootstrap.is_empty();
    let own = wanted.iter().filter(|_| alone).filter_map(|(_, address)| Reach::of(address::ip(address)));
    let rules = Rules::new(sieve, own.min());
    // CHAN-13: the files of the run come before gossip. Half as many connections again may be about to open.
    let seats = settings.seats.min(Capacity::of_process().gossip * 2 / 3);
    let mut swarm = behaviour::swarm(keypair, run, seats, !wanted.is_empty(), &rules)?;
    for (text, address) in wanted {
        swarm.listen_on(address).map_err(|error| NetError::new(text, error))?;
    }
    Ok((swarm, rules))
}

impl From<libp2p::TransportError<std::io::Error>> for Cause {
    fn from(error: libp2p::TransportError<std::io::Error>) -> Self {
        match error {
            libp2p::TransportError::Other(error) => Self::System(error),
            other => Self::System(std::io::Error::other(other)),
        }
    }
}
