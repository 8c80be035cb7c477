use std::sync::atomic::{AtomicBool, Ordering};

use iroh::{Endpoint as Socket, EndpointAddr, SecretKey};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;
use crate::name::{Meeting, RelayNames};
use crate::punch::{PROTOCOL, builder, url};
use crate::seats::ConnectionLimit;

const SOON: Duration = Duration::from_secs(1);

fn key(name: u8) -> EndpointKey {
    EndpointKey([name; 32])
}

fn member(name: u8) -> MemberId {
    MemberId([name; 32])
}

#[test]
fn chan_28_a_member_has_one_key_at_the_relay_and_two_connections() {
    let (places, now) = (Places::<u8>::new(2), Instant::now());
    let take = |name, of| places.take(member(name), key(of), now);
    let (had, refused) = ((true, Vec::new()), (false, Vec::new()));
    assert!(!places.enter(key(1), 9, now), "nobody has named it");
    assert_eq!(take(1, 1), had);
    assert!(places.enter(key(1), 1, now) && places.enter(key(1), 2, now));
    assert!(!places.enter(key(1), 3, now), "a third one");
    places.leave(1);
    assert_eq!(take(1, 1), had);
    assert!(places.enter(key(1), 4, now), "renewed, it keeps them");
    // Another's key is not to be had by naming it.
    assert_eq!((take(2, 1), take(2, 2)), (refused.clone(), had));
    assert!(!places.enter(key(1), 9, now));
    assert_eq!(take(3, 3), refused, "both places are taken");
    // After a restart.
    assert_eq!(take(1, 4), (true, vec![key(1)]));
    assert!(!places.enter(key(1), 9, now) && places.enter(key(4), 9, now));
}

#[test]
fn chan_28_a_place_that_is_not_renewed_ends() {
    let (places, now) = (Places::<u8>::new(2), Instant::now());
    places.take(member(1), key(1), now);
    assert!(places.enter(key(1), 9, now + LEASE - SOON));
    assert!(!places.enter(key(1), 9, now + LEASE));
    assert_eq!(places.clear(now + LEASE - SOON), []);
    assert_eq!(places.clear(now + LEASE), [key(1)], "also where nobody else asks");
    places.take(member(1), key(1), now);
    assert_eq!(places.take(member(2), key(2), now + LEASE), (true, vec![key(1)]));
}

/// A socket of a member that has a place at the relay there, and no other way to anybody.
async fn relayed(relay: &Relay, name: u8, at: SocketAddr) -> (Socket, EndpointAddr) {
    let secret = SecretKey::from_bytes(&[name; 32]);
    let terms = relay.admit(member(name), EndpointKey(*secret.public().as_bytes())).unwrap();
    let meeting = Meeting { relay: member(0), at, terms };
    let address = EndpointAddr::new(secret.public()).with_relay_url(url(&meeting).unwrap());
    let builder = builder(secret, &meeting, &RelayNames::default()).unwrap();
    (builder.clear_ip_transports().bind().await.unwrap(), address)
}

/// Two members, of which one sends the other as much as it can.
async fn flood(relay: &Relay, names: [u8; 2], at: SocketAddr, tasks: &mut JoinSet<()>) {
    let (one, _) = relayed(relay, names[0], at).await;
    let (other, to) = relayed(relay, names[1], at).await;
    tasks.spawn(async move {
        let connection = other.accept().await.unwrap().await.unwrap();
        let (_, mut receiving) = connection.accept_bi().await.unwrap();
        while receiving.read_chunk(1 << 20).await.is_ok_and(|chunk| chunk.is_some()) {}
    });
    let connection = one.connect(to, PROTOCOL).await.unwrap();
    tasks.spawn(async move {
        let (mut sending, _receiving) = connection.open_bi().await.unwrap();
        while sending.write_all(&[7; 64 << 10]).await.is_ok() {}
        drop(one);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn chan_28_members_that_bring_without_end_have_the_line_together() {
    const LINE: u64 = 1_000_000;
    const SECONDS: u64 = 4;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (at, full) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
    let seen = full.clone();
    let tell = move |look: Look| {
        seen.fetch_or(look.is_full, Ordering::Relaxed);
    };
    let relay = Relay::open(at, &Shares::new(ConnectionLimit::default()), LINE, tell).unwrap();
    let mut tasks = JoinSet::new();
    let greeting = relay.clone();
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let relay = greeting.clone();
            tokio::spawn(async move { relay.greet(stream).await });
        }
    });
    for names in [[1, 2], [3, 4], [5, 6]] {
        flood(&relay, names, at, &mut tasks).await;
    }
    // Until the bounds have found their places.
    time::sleep(Duration::from_secs(3)).await;
    let before = relay.carried();
    time::sleep(Duration::from_secs(SECONDS)).await;
    let carried = relay.carried() - before;
    assert!((LINE * SECONDS / 4..LINE * SECONDS * 3 / 2).contains(&carried), "{carried} in {SECONDS} s");
    assert!(full.load(Ordering::Relaxed), "whoever has the relay hears of it");
}
