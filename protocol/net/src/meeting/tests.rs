use std::net::SocketAddr;

use muster_core::ids::{Digest, RunId, hex};
use muster_core::sign::Identity;
use tokio::task::JoinSet;

use super::*;
use crate::listener::{Listener, PunchedListener};
use crate::punch::is_behind_router;
use crate::seats::ConnectionLimit;
use crate::serve::{Unanswered, serve};
use crate::shares::Shares;

pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn endpoint(name: u8) -> Endpoint {
    Endpoint::new(RunId(Digest([7; 32])), Arc::new(Identity::from_secret(&[name; 32])))
}

/// A steward, its relay, and who has a place there; the steward's address.
pub(crate) async fn steward(members: Vec<MemberId>, tasks: &mut JoinSet<()>) -> (Endpoint, String) {
    steward_with(members, tasks, |_| ()).await
}

/// The same, and something is done at its address before the relay is opened.
async fn steward_with<T>(
    members: Vec<MemberId>,
    tasks: &mut JoinSet<()>,
    before: impl FnOnce(SocketAddr) -> T,
) -> (Endpoint, String) {
    steward_at("127.0.0.1:0", members, tasks, before).await
}

async fn steward_at<T>(
    address: &str,
    members: Vec<MemberId>,
    tasks: &mut JoinSet<()>,
    before: impl FnOnce(SocketAddr) -> T,
) -> (Endpoint, String) {
    let (steward, shares) = (endpoint(1), Shares::new(ConnectionLimit::default()));
    let listener = Listener::bind_with(address, shares.clone()).await.unwrap();
    let at = listener.local_addr();
    let _done = before(at);
    let relay = Relay::open(at, &shares, 32_000_000, |_| ()).unwrap();
    steward.meet_here(relay.clone());
    let admitting = relay.clone();
    let handler = move |peer: MemberId, request: Vec<u8>| {
        let answer = match decode(&request) {
            Ok(Request::Relay(key)) if members.contains(&peer) => {
                Response::Relay(admitting.admit(peer, key).unwrap())
            }
            _ => Response::refused("no"),
        };
        std::future::ready(Ok::<_, Unanswered>(encode(&answer)))
    };
    let serving =
        serve(listener.with_relay(relay), steward.clone(), Arc::new(handler), std::future::pending());
    tasks.spawn(serving);
    (steward, at.to_string())
}

/// A member that has reached the steward, and says back what it is told to whoever comes through its router.
pub(crate) async fn member(name: u8, steward: &str, tasks: &mut JoinSet<()>) -> Endpoint {
    let member = endpoint(name);
    Client::dial(steward, &member, Some(endpoint(1).id())).await.unwrap();
    member.meet_at(endpoint(1).id());
    let echo = |_, request: Vec<u8>| std::future::ready(Ok::<_, Unanswered>(request));
    let listener = PunchedListener::new(member.clone(), Shares::new(ConnectionLimit::default()));
    tasks.spawn(serve(listener, member.clone(), Arc::new(echo), std::future::pending()));
    member
}

#[tokio::test]
async fn chan_27_a_member_that_listens_nowhere_is_met_at_the_relay() {
    let mut tasks = JoinSet::new();
    let (steward, at) = steward([2, 3].map(|name| endpoint(name).id()).to_vec(), &mut tasks).await;
    let one = member(2, &at, &mut tasks).await;
    let other = member(3, &at, &mut tasks).await;
    let address = time::timeout(LONG, one.address_behind_router()).await.unwrap().unwrap();
    assert!(is_behind_router(&address));
    // Long enough for many windows.
    let long = vec![7; 3 << 20];
    for asker in [&other, &steward] {
        let mut client = Client::dial(&address, asker, Some(one.id())).await.unwrap();
        assert!(client.call(&long, LONG).await.unwrap() == long);
    }
    // The channel says who is there, whatever the key.
    let wrong = Client::dial(&address, &other, Some(endpoint(9).id())).await.err().unwrap();
    assert!(matches!(wrong.cause, Cause::Handshake(_)), "{wrong}");
}

/// As where only the steward's port of TCP is forwarded, or somebody else has that of UDP.
#[tokio::test]
async fn chan_28_a_member_is_met_where_nobody_says_from_where_it_is_seen() {
    let mut tasks = JoinSet::new();
    let taken = |at| std::net::UdpSocket::bind(at).unwrap();
    let (_steward, at) = steward_with(vec![endpoint(2).id()], &mut tasks, taken).await;
    let one = member(2, &at, &mut tasks).await;
    assert!(is_behind_router(&time::timeout(LONG, one.address_behind_router()).await.unwrap().unwrap()));
}

#[tokio::test]
async fn chan_28_a_relay_may_be_at_an_address_of_ipv6() {
    let mut tasks = JoinSet::new();
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return;
    }
    let (steward, at) = steward_at("[::1]:0", vec![endpoint(2).id()], &mut tasks, |_| ()).await;
    let one = member(2, &at, &mut tasks).await;
    let address = time::timeout(LONG, one.address_behind_router()).await.unwrap().unwrap();
    let mut client = Client::dial(&address, &steward, Some(one.id())).await.unwrap();
    assert_eq!(client.call(&[7], LONG).await.unwrap(), [7]);
}

#[tokio::test]
async fn chan_28_whoever_has_no_place_is_not_met() {
    let mut tasks = JoinSet::new();
    let (_steward, at) = steward(vec![endpoint(2).id()], &mut tasks).await;
    let stranger = member(3, &at, &mut tasks).await;
    let refused = stranger.address_behind_router().await.unwrap_err();
    assert!(matches!(&refused.cause, Cause::Punching(why) if why.contains("no place")), "{refused}");
    // Nor has somebody without a steward a way anywhere.
    let nobody = Client::dial(&format!("iroh:{}", hex(&[1; 32])), &endpoint(4), None).await;
    assert!(matches!(nobody.err().unwrap().cause, Cause::Punching(_)));
}
