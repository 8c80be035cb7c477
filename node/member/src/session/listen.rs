//! Where a member listens, and what it tells others to dial.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use muster_core::codec::{List, Text};
use muster_core::messages::enrol::Addresses;
use muster_net::address::is_loopback;
use muster_net::capacity::Capacity;
use muster_net::endpoint::Endpoint;
use muster_net::listener::Listener;
use muster_net::relay::member::MemberRelay;
use muster_net::seats::ConnectionLimit;
use muster_net::serve::serve;
use muster_net::shares::Shares;
use muster_replica::Peers;
use muster_store::journal::Journal;
use muster_store::patience;
use tokio::sync::oneshot;

use crate::server::NodeContext;
use crate::{JoinError, JoinOptions, Listen};

/// Name of the note of the last time's address.
const LISTENED: &str = "listened";

/// What serves a member, and what it takes to be dialled.
#[derive(Default)]
pub(super) struct Served {
    /// What divides its connections; none where it wants none.
    pub(super) shares: Option<Arc<Shares>>,
    /// Stops the server when this is dropped.
    _stop: Option<oneshot::Sender<()>>,
}

/// Listens if asked to, once the steward was reached, and gives the addresses that others dial, if they can. After a restart it
/// takes the same port as before, so that others still find it. A member that others could not dial does not listen, and a warning says so.
pub(super) async fn listen(
    options: &JoinOptions,
    journal: &Journal,
    endpoint: &Endpoint,
    shared: &Arc<NodeContext>,
    peers: &Peers,
) -> Result<(Addresses, Served), JoinError> {
    let dialled = peers.clone();
    // CHAN-13: from here on, also where nobody can dial this member.
    patience::relieve_by(Arc::new(move || dialled.relieve()));
    let own = endpoint.own_address(&options.ticket.steward);
    let wanted = match (&options.listen, own) {
        (Listen::At(wanted), _) => wanted.clone(),
        (Listen::TowardsSteward, Some(own)) => SocketAddr::new(own, 0).to_string(),
        (Listen::Nowhere, _) | (Listen::TowardsSteward, None) => return Ok(Default::default()),
    };
    let capacity = Capacity::of_process();
    capacity.tell();
    let limit = ConnectionLimit::default();
    let shares = Shares::new(ConnectionLimit { total: limit.total.min(capacity.channel), ..limit });
    let (strangers, dialled) = (shares.clone(), peers.clone());
    patience::relieve_by(Arc::new(move || strangers.relieve() || dialled.relieve()));
    let listener = bind(&wanted, journal, &shares).await?;
    let address = listener.local_addr();
    journal.put_note(LISTENED, address.to_string().as_bytes())?;
    let said = match &options.advertise {
        Some(said) => Some(number(said, address.is_ipv4()).await?),
        None => None,
    };
    let Some(advertised) = advertised(said.as_deref(), address, own) else {
        let said = said.as_ref().unwrap_or(&wanted);
        tracing::warn!(
            "nobody else can dial {said}, and the steward is on another machine: this member only dials out until it is met \
             behind its router; give an address that others can reach with --listen or --advertise, or say --no-listen"
        );
        return Ok((Addresses::default(), Served { shares: Some(shares), _stop: None }));
    };
    let text =
        Text::new(advertised).map_err(|misuse| JoinError::Environment(format!("--advertise: {misuse}")))?;
    let addresses = List::new(vec![text]).map_err(|misuse| JoinError::Environment(misuse.to_string()))?;
    let listener = match options.relay.then(|| MemberRelay::new(endpoint, address, shares.clone())).flatten()
    {
        Some(relay) => {
            let listener = listener.with_member_relay(&relay);
            // A membership listens once.
            let _ = shared.relay.set(relay);
            listener
        }
        None => listener,
    };
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(serve(listener, endpoint.clone(), shared.clone(), async move {
        let _ = stopped.await;
    }));
    Ok((addresses, Served { shares: Some(shares), _stop: Some(stop) }))
}

/// CHAN-24: the number of an address: what a name stands for may change as soon as others dial it. One of the family that is
/// listened on, where the name has one.
async fn number(said: &str, v4: bool) -> Result<String, JoinError> {
    let found = tokio::net::lookup_host(said).await.map(|found| found.collect::<Vec<_>>());
    let found = found.map_err(|error| JoinError::Environment(format!("--advertise {said}: {error}")))?;
    let own = found.iter().find(|address| address.is_ipv4() == v4).or(found.first());
    let own =
        own.ok_or_else(|| JoinError::Environment(format!("--advertise {said}: the name has no address")))?;
    Ok(own.to_string())
}

/// A port there; where any will do, that of the last time if it is free.
async fn bind(wanted: &str, journal: &Journal, shares: &Arc<Shares>) -> Result<Listener, JoinError> {
    let before = journal.note(LISTENED)?.and_then(|bytes| String::from_utf8(bytes).ok());
    if let Some(again) = before.filter(|before| is_of(wanted, before))
        && let Ok(listener) = Listener::bind_with(&again, shares.clone()).await
    {
        return Ok(listener);
    }
    Listener::bind_with(wanted, shares.clone()).await.map_err(|error| {
        JoinError::Environment(format!(
            "cannot listen on {wanted}: {error}; give another address with --listen"
        ))
    })
}

/// Whether `before` is on the wanted host, and any port is wanted there.
fn is_of(wanted: &str, before: &str) -> bool {
    let host = |text: &str| text.parse::<SocketAddr>().ok().map(|address| address.ip());
    // A port that was named is taken as it is named.
    wanted.ends_with(":0") && (host(wanted).is_none() || host(wanted) == host(before))
}

/// The address that others dial: the advertised one, or the one listened on. `None` for loopback, unless the steward was
/// reached over loopback, too: then everybody is on this machine.
fn advertised(said: Option<&str>, bound: SocketAddr, own: Option<IpAddr>) -> Option<String> {
    // A member that listens on every address can be dialled at the one from which it reaches the steward.
    let ip = if bound.ip().is_unspecified() { own? } else { bound.ip() };
    let address = said.map_or_else(|| SocketAddr::new(ip, bound.port()).to_string(), str::to_owned);
    let elsewhere = own.is_some_and(|own| !own.is_loopback());
    (!(elsewhere && is_loopback(&address))).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_says_what_others_can_dial() {
        let at = |said, bound: &str, own: &str| {
            advertised(said, bound.parse().unwrap(), Some(own.parse().unwrap()))
        };
        assert_eq!(at(None, "10.0.0.2:70", "10.0.0.2").as_deref(), Some("10.0.0.2:70"));
        assert_eq!(at(None, "0.0.0.0:70", "10.0.0.2").as_deref(), Some("10.0.0.2:70"));
        assert_eq!(at(None, "[::]:70", "fd00::2").as_deref(), Some("[fd00::2]:70"));
        assert_eq!(
            at(Some("my.example.org:7"), "0.0.0.0:70", "10.0.0.2").as_deref(),
            Some("my.example.org:7")
        );
        // All on one machine.
        assert_eq!(at(None, "127.0.0.1:70", "127.0.0.1").as_deref(), Some("127.0.0.1:70"));
        // The steward is elsewhere.
        assert_eq!(at(None, "127.0.0.1:70", "10.0.0.2"), None);
        assert_eq!(at(Some("localhost:70"), "0.0.0.0:70", "10.0.0.2"), None);
        assert_eq!(advertised(None, "0.0.0.0:70".parse().unwrap(), None), None);
    }

    #[test]
    fn a_port_is_taken_again_on_the_same_address_only() {
        assert!(is_of("10.0.0.2:0", "10.0.0.2:4000") && is_of("localhost:0", "127.0.0.1:4000"));
        assert!(!is_of("10.0.0.2:0", "127.0.0.1:4000") && !is_of("10.0.0.2:7", "10.0.0.2:7"));
    }
}
