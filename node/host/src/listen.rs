//! Where the steward listens, the same after a restart, and what it tells people to dial.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use muster_net::address::reachable;
use muster_net::capacity::{self, Capacity};
use muster_net::error::{Cause, NetError};
use muster_net::listener::Listener;
use muster_net::relay::{Look, Relay};
use muster_net::seats::ConnectionLimit;
use muster_net::shares::Shares;
use muster_organise::ADDRESSES;
use muster_organise::invite::bounded;
use muster_replica::exit::{Failure, Outcome};
use muster_store::home::Home;
use muster_store::patience;

use super::options::HostOptions;

/// Where it listened the last time, one socket address a line.
const LISTENED: &str = "listen";
/// Connections at once, on all ports together: a steward speaks with everyone.
pub const CONNECTIONS: usize = capacity::CHANNEL;

/// Interfaces whose addresses are written down for one port: two ports and their loopbacks fit into a ticket.
const MOST_OWN: usize = muster_core::limits::ADDRESSES / 2 - 1;

/// Bound sockets and the addresses to dial.
pub(super) struct Listening {
    pub(super) listeners: Vec<Listener>,
    /// Of all of them.
    pub(super) shares: Arc<Shares>,
    /// On their ports.
    pub(super) relay: Arc<Relay>,
    pub(super) addresses: Vec<String>,
}

impl Listening {
    /// Binds, and writes the addresses down for the next start.
    ///
    /// # Errors
    /// [`Failure`] naming the address that is malformed, foreign or busy.
    pub(super) async fn bind(home: &Home, options: &HostOptions) -> Outcome<Self> {
        let before =
            home.read_file(LISTENED).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        let before: Vec<SocketAddr> = before.lines().filter_map(|line| line.parse().ok()).collect();
        let capacity = Capacity::of_process();
        let total = capacity.channel.min(CONNECTIONS);
        let shares = Shares::new(ConnectionLimit { total, per_source: options.per_address });
        carry(capacity, &shares);
        let mut listeners = Vec::new();
        for (index, wanted) in options.listen.iter().enumerate() {
            listeners.push(bind(wanted, before.get(index), &shares).await?);
        }
        let bound: Vec<SocketAddr> = listeners.iter().map(Listener::local_addr).collect();
        let first = *bound.first().ok_or_else(|| Failure::usage("--listen names no address"))?;
        let relay = Relay::open(first, &shares, options.relay_rate, full(options.relay_rate))?;
        let listeners = listeners.into_iter().map(|listener| listener.with_relay(relay.clone())).collect();
        let addresses = if options.advertise.is_empty() {
            bound.iter().flat_map(dialled).collect()
        } else {
            options.advertise.clone()
        };
        bounded(&addresses)?;
        home.write_file(LISTENED, lines(bound.iter().map(SocketAddr::to_string)).as_bytes())?;
        Ok(Self { listeners, shares, relay, addresses })
    }

    /// Writes down for `muster invite` where to dial, the swarm's multiaddresses last, as many as a ticket holds.
    ///
    /// # Errors
    /// [`Failure`] of the disk.
    pub(super) fn tell(&self, home: &Home, swarm: &[String]) -> Outcome<()> {
        let told = self.addresses.iter().chain(swarm).take(muster_core::limits::ADDRESSES);
        Ok(home.write_file(ADDRESSES, lines(told.cloned()).as_bytes())?)
    }
}

/// Says once that the relay carries as much as it may.
fn full(rate: u64) -> impl FnMut(Look) {
    let mut told = false;
    move |look| {
        if look.is_full && !told {
            told = true;
            tracing::warn!(
                "members behind routers bring the relay more than {} Mbit/s, and wait for it: rounds take longer; if the line carries \
                 more, say --relay-rate",
                rate as f64 / 125_000.0
            );
        }
    }
}

/// CHAN-13: says what this process can carry; where the system is short of descriptors from now on, strangers give theirs.
fn carry(capacity: &Capacity, shares: &Arc<Shares>) {
    capacity.tell();
    let shares = shares.clone();
    patience::relieve_by(Arc::new(move || shares.relieve()));
}

async fn bind(wanted: &str, before: Option<&SocketAddr>, shares: &Arc<Shares>) -> Outcome<Listener> {
    let Some((host, port)) = wanted.rsplit_once(':') else {
        return Err(Failure::usage(format!(
            "{wanted:?} is not an address to listen on, use HOST:PORT like 0.0.0.0:7777"
        )));
    };
    // Invitations and members know the port of the last time.
    if let Some(before) = before.filter(|_| port == "0")
        && let Ok(listener) = Listener::bind_with(&format!("{host}:{}", before.port()), shares.clone()).await
    {
        return Ok(listener);
    }
    Listener::bind_with(wanted, shares.clone()).await.map_err(|error| explain(wanted, error))
}

fn explain(wanted: &str, error: NetError) -> Failure {
    match &error.cause {
        Cause::System(system) if system.kind() == std::io::ErrorKind::InvalidInput => Failure::usage(
            format!("{wanted:?} is not an address to listen on, use HOST:PORT like 0.0.0.0:7777"),
        ),
        _ => error.into(),
    }
}

/// The addresses to dial for a bound one: itself; or, if it stands for every address, those at which others reach this
/// machine, and loopback.
fn dialled(bound: &SocketAddr) -> Vec<String> {
    if !bound.ip().is_unspecified() {
        return vec![bound.to_string()];
    }
    let loopback: IpAddr =
        if bound.is_ipv4() { [127, 0, 0, 1].into() } else { [0, 0, 0, 0, 0, 0, 0, 1].into() };
    let mut own = reachable(bound.is_ipv4());
    if own.is_empty() {
        tracing::warn!(
            "this machine has no address but loopback: nobody else can dial {bound}; if that is wrong, say --advertise HOST:PORT"
        );
    }
    // A ticket has a bound, and a machine may have an interface for each container.
    own.truncate(MOST_OWN);
    own.into_iter().chain([loopback]).map(|ip| SocketAddr::new(ip, bound.port()).to_string()).collect()
}

fn lines(items: impl Iterator<Item = String>) -> String {
    items.map(|item| item + "\n").collect()
}
