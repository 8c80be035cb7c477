//! Members and strangers at one server: what each may take of it.
#![allow(clippy::unwrap_used)] // the helpers, too, are tests

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use muster_core::ids::{Digest, MemberId, RunId};
use muster_core::limits;
use muster_core::sign::Identity;
use muster_net::client::Client;
use muster_net::connection::Connection;
use muster_net::endpoint::Endpoint;
use muster_net::error::Cause;
use muster_net::listener::Listener;
use muster_net::seats::ConnectionLimit;
use muster_net::serve::{Handler, Unanswered, serve};
use muster_net::shares::Role;

const LONG: Duration = Duration::from_secs(60);

fn endpoint(name: u8) -> Endpoint {
    Endpoint::new(RunId(Digest([1; 32])), Arc::new(Identity::from_secret(&[name; 32])))
}

/// Knows its members, and gives back what it is sent.
struct Echo(Arc<Mutex<BTreeSet<MemberId>>>);

impl Handler for Echo {
    fn role(&self, peer: &MemberId) -> Role {
        if self.0.lock().unwrap().contains(peer) { Role::Member } else { Role::Stranger }
    }

    async fn handle(&self, _: MemberId, request: Vec<u8>) -> Result<Vec<u8>, Unanswered> {
        Ok(request)
    }
}

/// A server with these members; where it listens, and its roll.
async fn serving(limit: ConnectionLimit, members: &[u8]) -> (SocketAddr, Arc<Mutex<BTreeSet<MemberId>>>) {
    let listener = Listener::bind("127.0.0.1:0", limit).await.unwrap();
    let address = listener.local_addr();
    let members = members.iter().map(|name| endpoint(*name).id()).collect();
    let members = Arc::new(Mutex::new(members));
    let handler = Arc::new(Echo(members.clone()));
    tokio::spawn(serve(listener, endpoint(99), handler, std::future::pending()));
    (address, members)
}

#[tokio::test]
async fn chan_14_members_get_in_where_strangers_hold_all_their_seats() {
    // Four seats of strangers, four of handshakes, all others of members.
    let (address, _) = serving(ConnectionLimit { total: 32, per_source: 32 }, &[1, 2]).await;
    let address = address.to_string();
    let mut strangers = Vec::new();
    for name in 10..20 {
        let dialled = Client::dial(&address, &endpoint(name), None).await;
        strangers.extend(dialled);
    }
    let mut seated = 0;
    for stranger in &mut strangers {
        seated += usize::from(stranger.call(b"here", LONG).await.is_ok());
    }
    assert!((1..=4).contains(&seated), "{seated}");
    let mut members = Vec::new();
    for _ in 0..12 {
        for name in [1, 2] {
            members.push(Client::dial(&address, &endpoint(name), None).await.unwrap());
        }
    }
    for member in &mut members {
        assert_eq!(member.call(b"here", LONG).await.unwrap(), b"here");
    }
}

#[tokio::test]
async fn chan_16_a_request_of_a_stranger_is_short_and_a_banned_member_is_a_stranger() {
    let (address, members) = serving(ConnectionLimit::default(), &[1]).await;
    let address = address.to_string();
    let long = vec![7; limits::MESSAGE_BYTES];
    let mut member = Client::dial(&address, &endpoint(1), None).await.unwrap();
    assert_eq!(member.call(&long, LONG).await.unwrap(), long);
    let mut stranger = Client::dial(&address, &endpoint(2), None).await.unwrap();
    let short = &long[..limits::STRANGER_BYTES];
    assert_eq!(stranger.call(short, LONG).await.unwrap(), short);
    let refused = stranger.call(&long[..limits::STRANGER_BYTES + 1], LONG).await.unwrap_err();
    assert!(matches!(refused.cause, Cause::Closed), "{refused}");
    members.lock().unwrap().clear();
    assert_eq!(member.call(b"still here", LONG).await.unwrap(), b"still here");
    let banned = member.call(&long, LONG).await.unwrap_err();
    assert!(matches!(banned.cause, Cause::Closed), "{banned}");
}

#[tokio::test]
async fn chan_17_a_stranger_that_asks_ahead_is_answered_at_its_pace_and_a_member_at_once() {
    let (address, _) = serving(ConnectionLimit::default(), &[1]).await;
    let address = address.to_string();
    let (burst, rate, answered) = (1024, 64.0, 1100);
    let began = Instant::now();
    let stranger = Connection::dial(&address, &endpoint(2), None).await.unwrap();
    let (mut sender, mut receiver) = stranger.split();
    tokio::spawn(async move { while sender.send(b"again").await.is_ok() {} });
    for _ in 0..burst {
        receiver.receive().await.unwrap();
    }
    let mut member = Client::dial(&address, &endpoint(1), None).await.unwrap();
    for _ in 0..2 * burst {
        member.call(b"mine", LONG).await.unwrap();
    }
    for _ in burst..answered {
        receiver.receive().await.unwrap();
    }
    // What one costs is known once it is answered: one may be answered ahead of its time.
    let least = f64::from(answered - burst - 1) / rate;
    assert!(began.elapsed().as_secs_f64() >= least, "{:?}", began.elapsed());
}
