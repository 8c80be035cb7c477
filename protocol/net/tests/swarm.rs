//! Real swarms on loopback: what is true spreads, what is not is stopped where it enters.
#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use libp2p::futures::StreamExt;
use libp2p::gossipsub::{self, IdentTopic, MessageAuthenticity, PublishError};
use libp2p::identity::Keypair;
use libp2p::kad::store::MemoryStore;
use libp2p::kad::{self, GetRecordOk, QueryId, QueryResult, Quorum, Record, RecordKey};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, PeerId, StreamProtocol, Swarm, SwarmBuilder, identify, noise, tcp, yamux};
use muster_core::codec::{List, Text, encode};
use muster_core::ids::{Digest, MemberId, Row, RunId};
use muster_core::limits::GOSSIP_BYTES;
use muster_core::messages::gossip::Whereabouts;
use muster_core::sign::{Identity, Signed};
use muster_net::swarm::{Gossip, Neighbourhood, Settings, Sieve, Topic, Validity};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::time::timeout;

const RUN: RunId = RunId(Digest([9; 32]));
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
    let gossip = Gossip::start(&member(secret), RUN, &settings, sieve).unwrap();
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
    IdentTopic::new(format!("muster/1/{RUN:#}/records"))
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

fn whereabouts(identity: &Identity, address: &str, time: u64) -> Signed<Whereabouts> {
    let addresses = List::new(vec![Text::new(address).unwrap()]).unwrap();
    identity.sign(RUN, &Whereabouts { addresses, time })
}

/// Asks until the answer is that of `time`.
async fn found(node: &Node, whom: &Identity, time: u64) -> String {
    let asking = async {
        loop {
            let answer = node.gossip.find(whom.id(), PATIENCE).await;
            if let Some(answer) = answer.filter(|answer| answer.time == time) {
                return answer.addresses[0].to_string();
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    soon(asking).await
}

/// A peer that puts whatever it likes into one other's table, and reads it.
struct Table {
    swarm: Swarm<kad::Behaviour<MemoryStore>>,
    other: PeerId,
}

impl Table {
    fn of(node: &Node) -> Self {
        let name = StreamProtocol::try_from_owned(format!("/muster/1/kad/{RUN:#}")).unwrap();
        let mut swarm = SwarmBuilder::with_new_identity()
            .with_tokio()
            .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)
            .unwrap()
            .with_behaviour(|key| {
                let peer = key.public().to_peer_id();
                kad::Behaviour::with_config(peer, MemoryStore::new(peer), kad::Config::new(name))
            })
            .unwrap()
            .build();
        let address: Multiaddr = node.own()[0].parse().unwrap();
        let Some(Protocol::P2p(other)) = address.iter().last() else { panic!("{address}") };
        swarm.behaviour_mut().add_address(&other, address);
        Self { swarm, other }
    }

    /// The other's values, once a query is over; it may go on to others.
    async fn answers(&mut self, query: QueryId) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        let asking = async {
            loop {
                let event = self.swarm.select_next_some().await;
                let SwarmEvent::Behaviour(kad::Event::OutboundQueryProgressed { id, result, step, .. }) =
                    event
                else {
                    continue;
                };
                if let QueryResult::GetRecord(Ok(GetRecordOk::FoundRecord(record))) = result
                    && record.peer == Some(self.other)
                {
                    found.push(record.record.value);
                }
                if id == query && step.last {
                    return;
                }
            }
        };
        soon(asking).await;
        found
    }

    async fn put(&mut self, key: &[u8], value: Vec<u8>) {
        let record = Record { key: RecordKey::new(&key), value, publisher: None, expires: None };
        let query = self.swarm.behaviour_mut().put_record_to(record, [self.other].into_iter(), Quorum::One);
        self.answers(query).await;
    }

    async fn holds(&mut self, key: &[u8]) -> bool {
        let query = self.swarm.behaviour_mut().get_record(RecordKey::new(&key));
        !self.answers(query).await.is_empty()
    }
}

fn key(member: &Identity) -> Vec<u8> {
    [RUN.0.0, member.id().0].concat()
}

/// Asks until those who say that they hold a row are these.
async fn held(node: &Node, row: u16, by: &[u8]) {
    let mut wanted: Vec<MemberId> = by.iter().map(|secret| member(*secret).id()).collect();
    wanted.sort();
    let asking = async {
        while node.gossip.holders(Row(row), PATIENCE).await != wanted {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    soon(asking).await;
}

/// STATE-13: members that say they hold a row are found under it, as long as they say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_holds_a_row_is_found_by_its_row() {
    let hub = node(2, &[]).await;
    let (one, moving) = (node(1, &hub.own()).await, node(4, &hub.own()).await);
    let asking = node(3, &hub.own()).await;
    assert!(one.gossip.hold(Some(Row(3))) && moving.gossip.hold(Some(Row(3))));
    held(&asking, 3, &[1, 4]).await;
    held(&asking, 4, &[]).await;
    assert!(moving.gossip.hold(Some(Row(5))));
    held(&asking, 5, &[4]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_steward_that_moved_is_found() {
    let steward = member(1);
    let at_first = node(1, &[]).await;
    let hub = node(2, &at_first.own()).await;
    let asking = node(3, &hub.own()).await;
    assert!(asking.gossip.find(member(7).id(), Duration::from_millis(200)).await.is_none());
    assert!(at_first.gossip.announce(&whereabouts(&steward, "old.example:1", 10)));
    assert_eq!(found(&asking, &steward, 10).await, "old.example:1");
    let mut table = Table::of(&hub);
    while !soon(table.holds(&key(&steward))).await {}
    at_first.gossip.stop().await;
    // Others still know, and take the later statement when it comes from elsewhere.
    assert_eq!(found(&asking, &steward, 10).await, "old.example:1");
    let moved = node(1, &hub.own()).await;
    assert!(moved.gossip.announce(&whereabouts(&steward, "new.example:2", 11)));
    assert_eq!(found(&asking, &steward, 11).await, "new.example:2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_keeps_what_is_true_and_newest() {
    let (known, stranger) = (member(1), member(77));
    let hub = node_with(2, &[], vec![known.id()]).await;
    let mut table = Table::of(&hub);
    let entry = |identity: &Identity, address: &str, time| encode(&whereabouts(identity, address, time));
    let lies = [
        (key(&stranger), entry(&stranger, "stranger.example:1", 1)),
        (key(&known), entry(&stranger, "stranger.example:1", 1)),
        (key(&known), b"garbage".to_vec()),
        (b"short".to_vec(), entry(&known, "known.example:1", 1)),
        ([[1; 32], known.id().0].concat(), entry(&known, "known.example:1", 1)),
    ];
    for (key, lie) in lies {
        table.put(&key, lie).await;
        assert!(!table.holds(&key).await);
    }
    table.put(&key(&known), entry(&known, "known.example:2", 2)).await;
    assert!(table.holds(&key(&known)).await);
    let asking = node(3, &hub.own()).await;
    assert_eq!(found(&asking, &known, 2).await, "known.example:2");
    // An earlier statement does not come back, whoever puts it in.
    table.put(&key(&known), entry(&known, "known.example:1", 1)).await;
    assert_eq!(found(&asking, &known, 2).await, "known.example:2");
    table.put(&key(&known), entry(&known, "known.example:3", 3)).await;
    assert_eq!(found(&asking, &known, 3).await, "known.example:3");
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
        Gossip::start(&member(1), RUN, &settings, Arc::new(sieve))
    };
    let error = start("nowhere:80", "").err().unwrap().to_string();
    assert!(error.contains("nowhere:80") && error.contains("IP:PORT"), "{error}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let error = start(&taken.local_addr().unwrap().to_string(), "").err().unwrap().to_string();
    assert!(error.contains("127.0.0.1"), "{error}");
    assert!(start("127.0.0.1:0", "no multiaddress").is_ok());
}

/// A peer of the run with a key of its own, which serves the table and says of itself what it is told to.
#[derive(libp2p::swarm::NetworkBehaviour)]
struct Talker {
    identify: identify::Behaviour,
    kad: kad::Behaviour<MemoryStore>,
}

/// A stranger's swarm that names an address for itself, connected to a node.
fn talker(keypair: Keypair, named: &[String], to: &Node) -> tokio::task::JoinHandle<()> {
    let table = StreamProtocol::try_from_owned(format!("/muster/1/kad/{RUN:#}")).unwrap();
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
        Gossip::start(&member(1), RUN, &settings, Arc::new(Holds(std::sync::Mutex::new(held)))).unwrap();
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
