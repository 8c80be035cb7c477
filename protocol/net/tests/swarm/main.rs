//! Real swarms on loopback: what is true spreads, what is not is stopped where it enters.
#![allow(clippy::unwrap_used)]

mod strangers;
mod table;

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use libp2p::futures::StreamExt;
use libp2p::gossipsub::{self, IdentTopic, MessageAuthenticity, PublishError};
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, Swarm, SwarmBuilder, noise, tcp, yamux};
use muster_core::ids::{Digest, MemberId, RunId};
use muster_core::limits::GOSSIP_BYTES;
use muster_core::sign::Identity;
use muster_net::swarm::{Gossip, Neighbourhood, Settings, Sieve, Topic, Validity};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::time::timeout;

thread_local! {
    /// The run of this test: others run beside it, and a port that one has left may be the next one's.
    static RUN: RunId = {
        static NUMBER: AtomicU8 = AtomicU8::new(9);
        RunId(Digest([NUMBER.fetch_add(1, Ordering::Relaxed); 32]))
    };
}

/// The run of this test.
fn run() -> RunId {
    RUN.with(|run| *run)
}
const PATIENCE: Duration = Duration::from_secs(60);

/// Accepts, and tells, what begins with `t`rue, ignores what begins with `o`ld, rejects everything else.
struct ByName {
    members: Vec<MemberId>,
    heard: mpsc::UnboundedSender<(Topic, Vec<u8>)>,
}

impl Sieve for ByName {
    fn judge(&self, topic: Topic, message: &[u8]) -> Validity {
        match message.first() {
            Some(b't') => {
                let _ = self.heard.send((topic, message.to_vec()));
                Validity::Accept
            }
            Some(b'o') => Validity::Ignore,
            _ => Validity::Reject,
        }
    }

    fn knows(&self, member: &MemberId) -> bool {
        self.members.contains(member)
    }

    fn is_host(&self, _: &IpAddr) -> bool {
        false
    }
}

struct Node {
    gossip: Gossip,
    heard: mpsc::UnboundedReceiver<(Topic, Vec<u8>)>,
}

fn member(secret: u8) -> Identity {
    Identity::from_secret(&[secret; 32])
}

/// A node that keeps the whereabouts of members 1 to 9.
async fn node(secret: u8, bootstrap: &[String]) -> Node {
    node_with(secret, bootstrap, (1..10).map(|secret| member(secret).id()).collect()).await
}

async fn node_with(secret: u8, bootstrap: &[String], members: Vec<MemberId>) -> Node {
    let settings =
        Settings { listen: vec!["127.0.0.1:0".into()], bootstrap: bootstrap.to_vec(), ..Settings::default() };
    let (sender, heard) = mpsc::unbounded_channel();
    let sieve = Arc::new(ByName { members, heard: sender });
    let gossip = Gossip::start(&member(secret), run(), &settings, sieve).unwrap();
    let node = Node { gossip, heard };
    node.until(|known| !known.own.is_empty()).await;
    node
}

impl Node {
    fn own(&self) -> Vec<String> {
        self.gossip.neighbourhood().borrow().own.clone()
    }

    async fn until(&self, holds: impl Fn(&Neighbourhood) -> bool) {
        let mut known = self.gossip.neighbourhood();
        soon(known.wait_for(holds)).await.unwrap();
    }

    async fn hears(&mut self, message: &[u8]) {
        let heard = soon(self.heard.recv()).await.unwrap().1;
        assert_eq!(heard, message, "{:?}", String::from_utf8_lossy(&heard));
    }
}

async fn soon<T>(waited: impl Future<Output = T>) -> T {
    timeout(PATIENCE, waited).await.expect("it takes too long")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_true_reaches_everyone_once() {
    let mut first = node(1, &[]).await;
    // Nobody is there yet: it waits.
    assert!(first.gossip.publish(Topic::Records, b"true 1".to_vec()));
    let mut others = Vec::new();
    for secret in 2..6 {
        let mut other = node(secret, &first.own()).await;
        if secret == 2 {
            other.hears(b"true 1").await;
        }
        other.until(|known| known.connected > 0).await;
        others.push(other);
    }
    first.until(|known| known.connected == 4).await;
    let last = others.pop().unwrap();
    // Subscriptions travel after connections, so that a message may miss some: each later one is heard by all at last.
    let heard = async {
        for number in 2.. {
            let message = format!("true {number}").into_bytes();
            assert!(last.gossip.publish(Topic::Commits, message.clone()));
            let mut missed = 0;
            for node in others.iter_mut().chain([&mut first]) {
                let heard = timeout(Duration::from_secs(3), node.heard.recv()).await.ok().flatten();
                missed += usize::from(heard != Some((Topic::Commits, message.clone())));
            }
            if missed == 0 {
                return;
            }
        }
    };
    soon(heard).await;
    // The same again, from another member too, is no news.
    let message = b"true and new".to_vec();
    for node in [&last, &others[0], &last] {
        assert!(node.gossip.publish(Topic::Records, message.clone()));
    }
    assert!(last.gossip.publish(Topic::Records, b"true end".to_vec()));
    let mut heard = Vec::new();
    while heard.len() < 2 {
        heard.push(soon(first.heard.recv()).await.unwrap().1);
    }
    heard.sort();
    assert_eq!(heard, [b"true and new".to_vec(), b"true end".to_vec()]);
    last.gossip.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_liar_is_shut_out_and_nobody_else() {
    let mut honest = node(1, &[]).await;
    let mut other = node(2, &honest.own()).await;
    let liar = node(3, &honest.own()).await;
    honest.until(|known| known.connected == 2).await;
    // Lies reach nobody: they are not passed on, and who brings many is shut out by each that it tells.
    let lying = async {
        for number in 0.. {
            liar.gossip.publish(Topic::Records, format!("false {number}").into_bytes());
            if number > 20 && liar.gossip.neighbourhood().borrow().connected == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon(lying).await;
    honest.until(|known| known.connected == 1).await;
    assert!(other.gossip.publish(Topic::Records, b"true".to_vec()));
    honest.hears(b"true").await;
    assert!(honest.gossip.publish(Topic::Records, b"true too".to_vec()));
    other.hears(b"true too").await;
    // It cannot come back.
    liar.gossip.dial(&honest.own()[0]);
    assert!(honest.gossip.publish(Topic::Records, b"true three".to_vec()));
    other.hears(b"true three").await;
    assert_eq!(honest.gossip.neighbourhood().borrow().connected, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_ignored_is_held_against_nobody() {
    let mut honest = node(1, &[]).await;
    let late = node(2, &honest.own()).await;
    honest.until(|known| known.connected == 1).await;
    for number in 0..64 {
        late.gossip.publish(Topic::Commits, format!("old {number}").into_bytes());
    }
    late.gossip.publish(Topic::Commits, b"true".to_vec());
    honest.hears(b"true").await;
}

/// A peer with limits of its own.
fn careless() -> Swarm<gossipsub::Behaviour> {
    let keypair = Keypair::generate_ed25519();
    let config = gossipsub::ConfigBuilder::default().max_transmit_size(1 << 20).build().unwrap();
    let mut gossip = gossipsub::Behaviour::new(MessageAuthenticity::Signed(keypair.clone()), config).unwrap();
    gossip.subscribe(&records()).unwrap();
    SwarmBuilder::with_existing_identity(keypair)
        .with_tokio()
        .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)
        .unwrap()
        .with_behaviour(|_| gossip)
        .unwrap()
        .build()
}

fn records() -> IdentTopic {
    IdentTopic::new(format!("muster/1/{:#}/records", run()))
}

/// Publishes once the other side listens, and goes on until the returned task is dropped.
async fn spread(to: &str, message: Vec<u8>) -> tokio::task::JoinSet<()> {
    let mut swarm = careless();
    swarm.dial(to.parse::<Multiaddr>().unwrap()).unwrap();
    let publishing = async {
        loop {
            match swarm.behaviour_mut().publish(records(), message.clone()) {
                Ok(_) => return,
                Err(PublishError::NoPeersSubscribedToTopic) => {}
                Err(error) => panic!("{error}"),
            }
            while !matches!(
                swarm.select_next_some().await,
                SwarmEvent::Behaviour(gossipsub::Event::Subscribed { .. })
            ) {}
        }
    };
    soon(publishing).await;
    let mut task = tokio::task::JoinSet::new();
    task.spawn(async move { while swarm.next().await.is_some() {} });
    task
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_long_a_message_stops_where_it_enters() {
    let mut honest = node(1, &[]).await;
    let other = node(2, &honest.own()).await;
    honest.until(|known| known.connected == 1).await;
    // LIMIT-2: a writer sends no more than GOSSIP_BYTES.
    assert!(!other.gossip.publish(Topic::Records, vec![b't'; GOSSIP_BYTES + 1]));
    let mut careless = Vec::new();
    // LIMIT-1: a reader refuses more. Over our limit but within what libp2p allows around a message, over that, and far over it.
    for length in [GOSSIP_BYTES + 1, GOSSIP_BYTES + 2048, 500_000] {
        careless.push(spread(&honest.own()[0], vec![b't'; length]).await);
    }
    let longest = vec![b't'; GOSSIP_BYTES];
    careless.push(spread(&honest.own()[0], longest.clone()).await);
    honest.hears(&longest).await;
    assert!(other.gossip.publish(Topic::Records, b"true".to_vec()));
    honest.hears(b"true").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_is_clean_and_garbage_is_harmless() {
    let mut first = node(1, &[]).await;
    let address: Multiaddr = first.own()[0].parse().unwrap();
    let port = address.iter().find_map(|part| match part {
        Protocol::Tcp(port) => Some(port),
        _ => None,
    });
    let socket = format!("127.0.0.1:{}", port.unwrap());
    let mut connection = tokio::net::TcpStream::connect(&socket).await.unwrap();
    let _ = connection.write_all(&[0xff; 4096]).await;
    let second = node(2, &first.own()).await;
    first.until(|known| known.connected == 1).await;
    second.gossip.publish(Topic::Records, b"true".to_vec());
    first.hears(b"true").await;
    second.until(|known| !known.met.is_empty()).await;
    second.gossip.stop().await;
    first.until(|known| known.connected == 0).await;
    first.gossip.stop().await;
    assert!(first.heard.recv().await.is_none());
    tokio::net::TcpListener::bind(&socket).await.unwrap();
}

#[tokio::test]
async fn wrong_addresses_are_named() {
    let start = |listen: &str, bootstrap: &str| {
        let settings = Settings {
            listen: vec![listen.into()],
            bootstrap: vec![bootstrap.into()],
            ..Settings::default()
        };
        let sieve = ByName { members: Vec::new(), heard: mpsc::unbounded_channel().0 };
        Gossip::start(&member(1), run(), &settings, Arc::new(sieve))
    };
    let error = start("nowhere:80", "").err().unwrap().to_string();
    assert!(error.contains("nowhere:80") && error.contains("IP:PORT"), "{error}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let error = start(&taken.local_addr().unwrap().to_string(), "").err().unwrap().to_string();
    assert!(error.contains("127.0.0.1"), "{error}");
    assert!(start("127.0.0.1:0", "no multiaddress").is_ok());
}
