//! Strangers: what they name is not dialled, and what they send takes what is theirs.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use libp2p::futures::StreamExt;
use libp2p::gossipsub::PublishError;
use libp2p::identity::Keypair;
use libp2p::kad::store::MemoryStore;
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, PeerId, StreamProtocol, SwarmBuilder, identify, kad, noise, tcp, yamux};
use muster_core::ids::MemberId;
use muster_net::swarm::{Gossip, Settings, Sieve, Topic, Validity};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{Node, careless, member, node, records, run, soon};

/// A peer of the run with a key of its own, which serves the table and says of itself what it is told to.
#[derive(libp2p::swarm::NetworkBehaviour)]
struct Talker {
    identify: identify::Behaviour,
    kad: kad::Behaviour<MemoryStore>,
}

/// A stranger's swarm that names an address for itself, connected to a node.
fn talker(keypair: Keypair, named: &[String], to: &Node) -> tokio::task::JoinHandle<()> {
    let table = StreamProtocol::try_from_owned(format!("/muster/1/kad/{:#}", run())).unwrap();
    let mut swarm = SwarmBuilder::with_existing_identity(keypair)
        .with_tokio()
        .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)
        .unwrap()
        .with_behaviour(|key| {
            let peer = key.public().to_peer_id();
            let mut kad = kad::Behaviour::with_config(peer, MemoryStore::new(peer), kad::Config::new(table));
            kad.set_mode(Some(kad::Mode::Server));
            let identify = identify::Behaviour::new(identify::Config::new("/muster/1".into(), key.public()));
            Talker { identify, kad }
        })
        .unwrap()
        .build();
    named.iter().for_each(|address| swarm.add_external_address(address.parse().unwrap()));
    swarm.dial(to.own()[0].parse::<Multiaddr>().unwrap()).unwrap();
    tokio::spawn(async move {
        loop {
            let event = swarm.select_next_some().await;
            // It shows the same address for others, too, to whoever asks for peers nearby.
            if let SwarmEvent::Behaviour(TalkerEvent::Identify(identify::Event::Received { .. })) = event {
                let others = swarm.external_addresses().cloned().collect::<Vec<_>>();
                for address in others {
                    swarm.behaviour_mut().kad.add_address(&PeerId::random(), address);
                }
            }
        }
    })
}

/// A socket where nobody of the run is, and how often it was dialled.
fn victim(address: &str) -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    let socket = std::net::TcpListener::bind(address).unwrap();
    let (at, dialled) = (socket.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = dialled.clone();
    std::thread::spawn(move || socket.incoming().for_each(|_| _ = count.fetch_add(1, Ordering::SeqCst)));
    (at, dialled)
}

fn multiaddress(socket: std::net::SocketAddr) -> String {
    format!("/ip4/{}/tcp/{}", socket.ip(), socket.port())
}

/// Makes a node use its table, and with it dial everybody whom it would dial.
async fn looks_around(node: &Node) {
    for secret in 50..54 {
        node.gossip.find(member(secret).id(), Duration::from_secs(5)).await;
    }
}

/// CHAN-20: strangers, and a member, name addresses that are not theirs; nobody dials them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chan_20_no_address_is_dialled_on_a_strangers_word() {
    let (elsewhere, dialled) = victim("127.0.0.2:0");
    let hub = node(1, &[]).await;
    let other = node(2, &hub.own()).await;
    let named = [multiaddress(elsewhere)];
    let mut talkers: Vec<_> = (0..8).map(|_| talker(Keypair::generate_ed25519(), &named, &hub)).collect();
    let known = Keypair::ed25519_from_bytes(&mut member(3).secret()[..]).unwrap();
    talkers.push(talker(known, &named, &hub));
    // Connected, which is when they have said it.
    hub.until(|known| known.connected >= 9).await;
    looks_around(&hub).await;
    looks_around(&other).await;
    assert_eq!(dialled.load(Ordering::SeqCst), 0);
    for node in [&hub, &other] {
        let met = node.gossip.neighbourhood().borrow().met.clone();
        assert!(met.iter().all(|address| !address.contains("127.0.0.2")), "{met:?}");
    }
    talkers.iter().for_each(tokio::task::JoinHandle::abort);
}

/// CHAN-21: a member names a socket of its own source where nobody is; it is dialled a few times, whatever names it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chan_21_dials_to_an_address_are_few_whoever_names_it() {
    let (beside, dialled) = victim("127.0.0.1:0");
    let hub = node(1, &[]).await;
    let named = [multiaddress(beside)];
    let keys = (2..10).map(|secret| Keypair::ed25519_from_bytes(&mut member(secret).secret()[..]).unwrap());
    let talkers: Vec<_> = keys.map(|key| talker(key, &named, &hub)).collect();
    hub.until(|known| known.met.len() == 8).await;
    // Gone, so that whoever is looked for is dialled where it said it was.
    talkers.iter().for_each(tokio::task::JoinHandle::abort);
    hub.until(|known| known.connected == 0).await;
    looks_around(&hub).await;
    assert!((1..=3).contains(&dialled.load(Ordering::SeqCst)), "{dialled:?}");
}

/// Listens as [`ByName`], and does not come back from what begins with `h`old until it is let go.
struct Holds(std::sync::Mutex<std::sync::mpsc::Receiver<()>>);

impl Sieve for Holds {
    fn judge(&self, _: Topic, message: &[u8]) -> Validity {
        if message.starts_with(b"h") {
            let _ = self.0.lock().unwrap().recv();
        }
        Validity::Ignore
    }

    fn knows(&self, _: &MemberId) -> bool {
        true
    }

    fn is_host(&self, _: &IpAddr) -> bool {
        false
    }
}

/// CHAN-22: on one thread, with one worker, everything would wait for what is judged.
#[tokio::test]
async fn chan_22_what_gossip_computes_takes_no_thread_of_the_caller() {
    let (release, held) = std::sync::mpsc::channel();
    let settings = Settings { listen: vec!["127.0.0.1:0".into()], ..Settings::default() };
    let busy =
        Gossip::start(&member(1), run(), &settings, Arc::new(Holds(std::sync::Mutex::new(held)))).unwrap();
    let mut known = busy.neighbourhood();
    let own = soon(known.wait_for(|known| !known.own.is_empty())).await.unwrap().own.clone();
    let other = node(2, &own).await;
    other.until(|known| known.listening == 1).await;
    other.gossip.publish(Topic::Commits, b"hold".to_vec());
    // The swarm is stuck where it judges: it takes no command any more. This task goes on.
    let stuck = async { while busy.find(member(3).id(), Duration::from_millis(200)).await.is_some() {} };
    soon(stuck).await;
    let mut apart = node(4, &other.own()).await;
    assert!(other.gossip.publish(Topic::Records, b"true".to_vec()));
    apart.until(|known| known.listening > 0).await;
    let told = async {
        for number in 0.. {
            other.gossip.publish(Topic::Records, format!("true {number}").into_bytes());
            if timeout(Duration::from_millis(200), apart.heard.recv()).await.is_ok() {
                return;
            }
        }
    };
    soon(told).await;
    release.send(()).unwrap();
}

/// Gossips messages of one byte and a number until nobody listens any more, from an address of its own. Gives how many were
/// taken before.
async fn floods(first: u8, to: &str) -> usize {
    let mut swarm = careless();
    swarm.dial(to.parse::<Multiaddr>().unwrap()).unwrap();
    let mut sent = 0;
    let flooding = async {
        loop {
            let message = [&[first][..], &usize::to_le_bytes(sent)].concat();
            match swarm.behaviour_mut().publish(records(), message) {
                Ok(_) => sent += 1,
                Err(PublishError::AllQueuesFull(_)) => {}
                Err(PublishError::NoPeersSubscribedToTopic) if sent > 0 => return,
                Err(PublishError::NoPeersSubscribedToTopic) => {}
                Err(error) => panic!("{error}"),
            }
            let moved = timeout(Duration::from_millis(5), swarm.select_next_some()).await;
            if let Ok(SwarmEvent::ConnectionClosed { .. }) = moved {
                return;
            }
        }
    };
    soon(flooding).await;
    sent
}

/// CHAN-22: a stranger's messages are right and of no use; it is out after some of them, and its source stays out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chan_22_a_stranger_that_brings_nothing_of_use_is_out_for_a_while() {
    let mut honest = node(1, &[]).await;
    let other = node(2, &honest.own()).await;
    honest.until(|known| known.connected == 1).await;
    floods(b'o', &honest.own()[0]).await;
    honest.until(|known| known.connected == 1).await;
    // Under a new key it is the same source, which is told at its handshake.
    let mut again = careless();
    again.dial(honest.own()[0].parse::<Multiaddr>().unwrap()).unwrap();
    let gone = async {
        loop {
            if let SwarmEvent::ConnectionClosed { .. } | SwarmEvent::OutgoingConnectionError { .. } =
                again.select_next_some().await
            {
                return;
            }
        }
    };
    soon(gone).await;
    // Members at the same address have a share of their own.
    assert!(other.gossip.publish(Topic::Records, b"true".to_vec()));
    honest.hears(b"true").await;
    let third = node(3, &honest.own()).await;
    honest.until(|known| known.connected == 2).await;
    drop(third);
}

/// CHAN-23: strangers of one source have a few seats; a member gets one beside them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chan_23_strangers_of_one_source_leave_seats_for_members() {
    let mut honest = node(1, &[]).await;
    let mut crowd = tokio::task::JoinSet::new();
    let (tell, mut refused) = mpsc::unbounded_channel();
    for _ in 0..24 {
        let (mut swarm, tell) = (careless(), tell.clone());
        swarm.dial(honest.own()[0].parse::<Multiaddr>().unwrap()).unwrap();
        crowd.spawn(async move {
            loop {
                if let SwarmEvent::ConnectionClosed { .. } | SwarmEvent::OutgoingConnectionError { .. } =
                    swarm.select_next_some().await
                {
                    let _ = tell.send(());
                }
            }
        });
    }
    for _ in 0..8 {
        soon(refused.recv()).await.unwrap();
    }
    honest.until(|known| known.connected <= 16).await;
    let other = node(2, &honest.own()).await;
    other.until(|known| known.listening == 1).await;
    let told = async {
        for number in 0.. {
            other.gossip.publish(Topic::Records, format!("true {number}").into_bytes());
            if timeout(Duration::from_millis(200), honest.heard.recv()).await.is_ok() {
                return;
            }
        }
    };
    soon(told).await;
}
