use std::net::SocketAddr;

use muster_core::codec::{Bytes, decode, encode};
use muster_core::messages::wire::{RelayTerms, Request, Response};
use tokio::task::{AbortHandle, JoinSet};

use super::*;
use crate::client::Client;
use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::listener::Listener;
use crate::meeting::tests::{LONG, endpoint, member, steward};
use crate::relay::member::MemberRelay;
use crate::seats::ConnectionLimit;
use crate::serve::{Unanswered, serve};
use crate::shares::Shares;

/// A member that others dial, and what it answers whoever asks for a place at its relay.
async fn neighbour(
    name: u8,
    tasks: &mut JoinSet<()>,
    relay: impl FnOnce(&Endpoint, SocketAddr, Arc<Shares>) -> MemberRelay,
    place: impl Fn(&MemberRelay, MemberId, EndpointKey) -> Option<RelayTerms> + Send + Sync + 'static,
) -> (Neighbour, AbortHandle) {
    let (own, shares) = (endpoint(name), Shares::new(ConnectionLimit::default()));
    let listener = Listener::bind_with("127.0.0.1:0", shares.clone()).await.unwrap();
    let at = listener.local_addr();
    let relay = Arc::new(relay(&own, at, shares));
    let listener = listener.with_member_relay(&relay);
    let handler = move |peer: MemberId, request: Vec<u8>| {
        let answer = match decode(&request) {
            Ok(Request::Relay(key)) => place(&relay, peer, key).map(Response::Relay),
            _ => None,
        };
        let answer = answer.unwrap_or_else(|| Response::refused("no"));
        std::future::ready(Ok::<_, Unanswered>(encode(&answer)))
    };
    let member = own.id();
    let serving = serve(listener, own, Arc::new(handler), std::future::pending());
    (Neighbour { member, at }, tasks.spawn(serving))
}

/// One with a relay.
async fn relaying(name: u8, tasks: &mut JoinSet<()>) -> (Neighbour, AbortHandle) {
    let relay = |own: &Endpoint, at, shares| MemberRelay::new(own, at, shares).unwrap();
    neighbour(name, tasks, relay, |relay, peer, key| relay.admit(peer, key)).await
}

async fn inner(endpoint: &Endpoint) -> Arc<Inner> {
    let ways = endpoint.punching.ways().await.unwrap();
    ways.bypass().unwrap().inner.clone()
}

/// Waits until somebody is met at a member's relay; whose.
async fn home(endpoint: &Endpoint, but: Option<MemberId>) -> MemberId {
    let inner = inner(endpoint).await;
    let there = async {
        loop {
            let home = lock(&inner.held).home.filter(|home| Some(*home) != but);
            if let Some(home) = home.filter(|_| inner.is_at_home()) {
                return home;
            }
            time::sleep(LOOK).await;
        }
    };
    time::timeout(LONG, there).await.expect("a relay")
}

/// The members of these names behind routers, who have heard of these neighbours, and the steward's address.
async fn behind(names: &[u8], neighbours: &[Neighbour], tasks: &mut JoinSet<()>) -> Vec<(Endpoint, String)> {
    let (_steward, at) = steward(names.iter().map(|name| endpoint(*name).id()).collect(), tasks).await;
    let mut all = Vec::new();
    for name in names {
        let one = member(*name, &at, tasks).await;
        one.meet_past_steward(neighbours.to_vec());
        let address = time::timeout(LONG, one.address_behind_router()).await.unwrap().unwrap();
        all.push((one, address));
    }
    all
}

async fn says_back(address: &str, asker: &Endpoint, who: &Endpoint) -> bool {
    let mut client = Client::dial(address, asker, Some(who.id())).await.unwrap();
    client.call(&[7; 100], LONG).await.unwrap() == [7; 100]
}

async fn goes_past_steward(address: &str, asker: &Endpoint, who: &Endpoint) -> bool {
    Connection::dial(address, asker, Some(who.id())).await.unwrap().bypassed().is_some()
}

/// Waits until it does: the first one looks for the other one, and goes over the steward's relay meanwhile.
async fn will_go_past_steward(address: &str, asker: &Endpoint, who: &Endpoint) -> bool {
    let goes = async {
        while !goes_past_steward(address, asker, who).await {
            time::sleep(LOOK).await;
        }
    };
    time::timeout(LONG, goes).await.is_ok()
}

#[tokio::test]
async fn chan_29_members_behind_routers_meet_at_a_members_relay() {
    let mut tasks = JoinSet::new();
    let (relay, _) = relaying(5, &mut tasks).await;
    let members = behind(&[2, 3], &[relay], &mut tasks).await;
    let [(one, at), (other, _)] = &members[..] else { unreachable!() };
    for (member, _) in &members {
        assert_eq!(home(member, None).await, relay.member);
    }
    assert!(!goes_past_steward(at, other, one).await, "nobody waits for it");
    assert!(will_go_past_steward(at, other, one).await);
    assert!(says_back(at, other, one).await);
    // The channel says who is there, whatever the key, and whichever way.
    let wrong = Client::dial(at, other, Some(endpoint(9).id())).await.err().unwrap();
    assert!(matches!(wrong.cause, Cause::Handshake(_)), "{wrong}");
    assert!(goes_past_steward(at, other, one).await, "that is no fault of the relay");
}

#[tokio::test]
async fn chan_29_whose_relay_dies_is_met_at_the_next_one_and_meanwhile_at_the_stewards() {
    let mut tasks = JoinSet::new();
    let (first, kill_first) = relaying(5, &mut tasks).await;
    let (second, kill_second) = relaying(6, &mut tasks).await;
    let members = behind(&[2, 3], &[first, second], &mut tasks).await;
    let [(one, at), (other, _)] = &members[..] else { unreachable!() };
    let before = home(one, None).await;
    home(other, None).await;
    assert!(will_go_past_steward(at, other, one).await);
    if before == first.member {
        kill_first.abort()
    } else {
        kill_second.abort()
    }
    // At once, however it goes.
    let said = time::timeout(Duration::from_secs(20), says_back(at, other, one)).await;
    assert_eq!(said, Ok(true));
    let after = home(one, Some(before)).await;
    assert!(after != before && [first.member, second.member].contains(&after));
}

/// A relay that wants the bytes of others to get lost, or to come late.
#[tokio::test]
async fn chan_29_a_relay_that_gives_places_and_carries_nothing_costs_seconds() {
    let mut tasks = JoinSet::new();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let relay = |own: &Endpoint, _, shares| {
        MemberRelay::new(own, SocketAddr::from(([127, 0, 0, 1], 0)), shares).unwrap()
    };
    // The terms are right, but at that port nobody greets anybody.
    let place = move |_: &MemberRelay, _, _| {
        Some(RelayTerms { certificate: Bytes::new(vec![1; 100]).unwrap(), port })
    };
    let (liar, _) = neighbour(5, &mut tasks, relay, place).await;
    let (honest, _) = relaying(6, &mut tasks).await;
    let members = behind(&[2, 3], &[liar, honest], &mut tasks).await;
    let [(one, at), (other, _)] = &members[..] else { unreachable!() };
    for (member, _) in &members {
        assert_eq!(home(member, None).await, honest.member);
    }
    let began = Instant::now();
    assert!(says_back(at, other, one).await);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    // What fails a key is left alone, and the steward's relay is there.
    let inner = inner(other).await;
    let key = crate::punch::key(at).unwrap();
    inner.failed(key, Failure::Uncarried);
    assert!(!goes_past_steward(at, other, one).await && says_back(at, other, one).await);
}

#[tokio::test]
async fn chan_29_a_relay_where_nobody_says_from_where_members_are_seen_is_none() {
    let mut tasks = JoinSet::new();
    let mute = |relay: &MemberRelay, peer, key| Some(RelayTerms { port: 0, ..relay.admit(peer, key)? });
    let relay = |own: &Endpoint, at, shares| MemberRelay::new(own, at, shares).unwrap();
    let (muted, _) = neighbour(5, &mut tasks, relay, mute).await;
    let members = behind(&[2], &[muted], &mut tasks).await;
    let inner = inner(&members[0].0).await;
    let rests = async {
        while !lock(&inner.held).relays.rests(&muted.member, Instant::now()) {
            time::sleep(LOOK).await;
        }
    };
    time::timeout(LONG, rests).await.expect("it was tried");
    assert!(lock(&inner.held).home.is_none() && inner.punch.get().is_none());
}

#[test]
fn chan_29_the_first_two_of_a_key_are_tried_and_nobody_uses_its_own_relay() {
    let all: Vec<Neighbour> = (1..=9)
        .map(|name| Neighbour { member: endpoint(name).id(), at: SocketAddr::from(([10, 0, 0, name], 7)) })
        .collect();
    let neighbours = Neighbours::default();
    let key = EndpointKey([1; 32]);
    assert_eq!(neighbours.firsts(&key, &endpoint(99).id()), []);
    neighbours.set(all.clone());
    let firsts = neighbours.firsts(&key, &endpoint(99).id());
    assert_eq!(firsts.len(), TRIED);
    let order = relays::order(&key, all.iter().map(|neighbour| neighbour.member));
    assert!(firsts.iter().map(|first| first.member).eq(order.into_iter().take(TRIED)));
    // Others see the same first ones: no third one stands in for it.
    assert_eq!(neighbours.firsts(&key, &firsts[0].member), firsts[1..]);
}
