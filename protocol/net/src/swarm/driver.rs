//! The one task that drives a swarm. No rules of the protocol: the sieve has them.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use libp2p::core::ConnectedPoint;
use libp2p::futures::StreamExt;
use libp2p::gossipsub::{self, MessageAcceptance, PublishError};
use libp2p::kad::store::RecordStore;
use libp2p::kad::{
    self, GetProvidersOk, GetRecordOk, InboundRequest, QueryId, QueryResult, Quorum, RecordKey,
};
use libp2p::swarm::{DialError, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm, identify};
use muster_core::ids::{MemberId, Row, RunId};
use muster_core::limits;
use muster_core::messages::gossip::Whereabouts;
use muster_core::sign::Verified;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time;
use tracing::{debug, info};

use super::accounts::{FALSE, Payer};
use super::acquaintances::Acquaintances;
use super::behaviour::{Behaviour, BehaviourEvent, table};
use super::command::SwarmCommand;
use super::neighbourhood::Neighbourhood;
use super::rules::Rules;
use super::sieve::{Topic, Validity};
use super::standing::Reputation;
use super::{address, registry, whereabouts};

/// Time between two looks at what waits.
const TICK: Duration = Duration::from_secs(1);
/// Ticks between two attempts to reach the peers to begin with: while nobody is connected, and otherwise.
const LONELY: u32 = 3;
const REACH: u32 = 30;
/// Messages that wait for somebody to tell; the oldest go first.
const WAITING: usize = 128;
/// Look-ups under way.
const SEARCHES: usize = 16;
/// Addresses taken from one peer.
const ADDRESSES: usize = 8;
/// Peers to begin with.
const BOOTSTRAP: usize = 64;

struct Search {
    member: MemberId,
    best: Option<Verified<Whereabouts>>,
    answer: oneshot::Sender<Verified<Whereabouts>>,
}

/// A swarm and what is under way in it.
pub(super) struct EventLoop {
    swarm: Swarm<Behaviour>,
    run: RunId,
    rules: Rules,
    commands: mpsc::Receiver<SwarmCommand>,
    known: watch::Sender<Neighbourhood>,
    bootstrap: Vec<(PeerId, Multiaddr)>,
    waiting: VecDeque<(Topic, Vec<u8>)>,
    standing: Reputation,
    searches: HashMap<QueryId, Search>,
    /// Look-ups of a row's holders, and who was found.
    registry: HashMap<QueryId, (BTreeSet<MemberId>, oneshot::Sender<Vec<MemberId>>)>,
    known_peers: Acquaintances,
    /// The row that this member says it holds, and whether it is to be said again.
    row: Option<Row>,
    row_due: bool,
    providing: Option<QueryId>,
    /// This member's entry, and whether it is to be put into the table again.
    entry: Option<Vec<u8>>,
    due: bool,
    putting: Option<QueryId>,
    ticks: u32,
}

impl EventLoop {
    pub(super) fn new(
        swarm: Swarm<Behaviour>,
        run: RunId,
        rules: Rules,
        commands: mpsc::Receiver<SwarmCommand>,
        known: watch::Sender<Neighbourhood>,
        bootstrap: &[String],
    ) -> Self {
        let mut driver = Self {
            swarm,
            run,
            rules,
            commands,
            known,
            bootstrap: Vec::new(),
            waiting: VecDeque::new(),
            standing: Reputation::default(),
            searches: HashMap::new(),
            registry: HashMap::new(),
            known_peers: Acquaintances::default(),
            row: None,
            row_due: false,
            providing: None,
            entry: None,
            due: false,
            putting: None,
            ticks: 0,
        };
        bootstrap.iter().for_each(|text| driver.dial(text));
        driver
    }

    /// Runs until nobody gives commands any more.
    pub(super) async fn run(mut self) {
        let mut tick = time::interval(TICK);
        // After the machine has slept one look is enough.
        tick.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = self.swarm.select_next_some() => self.event(event),
                command = self.commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => return,
                },
                _ = tick.tick() => self.tick(),
            }
        }
    }

    fn command(&mut self, command: SwarmCommand) {
        match command {
            SwarmCommand::Publish(topic, message) => {
                self.waiting.push_back((topic, message));
                if self.waiting.len() > WAITING {
                    self.waiting.pop_front();
                }
                self.publish();
            }
            SwarmCommand::Announce(entry) => {
                self.entry = Some(entry);
                self.due = true;
                self.announce();
            }
            SwarmCommand::Find(member, answer) => {
                // Whoever has given up makes room. Beyond the bound a search is dropped, which answers that
                // nobody knows.
                self.searches.retain(|_, search| !search.answer.is_closed());
                if self.searches.len() < SEARCHES {
                    let key = RecordKey::new(&whereabouts::key(self.run, &member));
                    let query = self.swarm.behaviour_mut().kad.get_record(key);
                    self.searches.insert(query, Search { member, best: None, answer });
                }
            }
            SwarmCommand::Hold(row) => {
                if let Some(before) = std::mem::replace(&mut self.row, row).filter(|_| self.row != row) {
                    let key = registry::key(self.run, before);
                    self.swarm.behaviour_mut().kad.stop_providing(&key);
                }
                self.row_due = true;
                self.provide();
            }
            SwarmCommand::Holders(row, answer) => {
                self.registry.retain(|_, (_, answer)| !answer.is_closed());
                if self.registry.len() < SEARCHES {
                    let key = registry::key(self.run, row);
                    let query = self.swarm.behaviour_mut().kad.get_providers(key);
                    self.registry.insert(query, (BTreeSet::new(), answer));
                }
            }
            SwarmCommand::Dial(text) => self.dial(&text),
        }
    }

    fn tick(&mut self) {
        self.ticks = self.ticks.wrapping_add(1);
        self.publish();
        self.announce();
        self.provide();
        self.list();
        // A swarm that was parted joins again through the peers that its members began with.
        let lonely = self.swarm.network_info().num_peers() == 0;
        if self.ticks.is_multiple_of(if lonely { LONELY } else { REACH }) {
            let absent = self.bootstrap.iter().filter(|(peer, _)| !self.swarm.is_connected(peer));
            let absent: Vec<Multiaddr> = absent.map(|(_, address)| address.clone()).collect();
            absent.into_iter().for_each(|address| self.connect(address));
        }
    }

    /// Publishes the waiting messages in order, as far as peers listen.
    fn publish(&mut self) {
        // Each waiting message once, so that those put back keep their order and end the loop.
        for _ in 0..self.waiting.len() {
            let Some((topic, message)) = self.waiting.pop_front() else { return };
            let name = topic.name(self.run);
            match self.swarm.behaviour_mut().gossipsub.publish(name, message.clone()) {
                Ok(_) | Err(PublishError::Duplicate) => {}
                Err(PublishError::NoPeersSubscribedToTopic | PublishError::AllQueuesFull(_)) => {
                    self.waiting.push_back((topic, message));
                }
                Err(error) => debug!(%error, "not published"),
            }
        }
    }

    /// Puts this member's entry into the table, one attempt at a time.
    fn announce(&mut self) {
        let Some(entry) = self.entry.clone().filter(|_| self.due && self.putting.is_none()) else { return };
        self.due = false;
        let Ok(said) = muster_core::codec::decode::<muster_core::sign::Signed<Whereabouts>>(&entry) else {
            return;
        };
        let key = RecordKey::new(&whereabouts::key(self.run, &said.claimed_signer()));
        let record = kad::Record { key, value: entry, publisher: None, expires: None };
        match self.swarm.behaviour_mut().kad.put_record(record, Quorum::One) {
            Ok(query) => self.putting = Some(query),
            Err(error) => debug!(?error, "this member's entry was not kept"),
        }
    }

    /// Says in the table which row this member holds, one attempt at a time.
    fn provide(&mut self) {
        let Some(row) = self.row.filter(|_| self.row_due && self.providing.is_none()) else { return };
        self.row_due = false;
        match self.swarm.behaviour_mut().kad.start_providing(registry::key(self.run, row)) {
            Ok(query) => self.providing = Some(query),
            Err(error) => debug!(?error, "this member's row was not announced"),
        }
    }

    fn dial(&mut self, text: &str) {
        let Some((peer, address)) = address::dialled(text) else {
            debug!(text, "not the multiaddress of a peer");
            return;
        };
        if peer == *self.swarm.local_peer_id() {
            return;
        }
        if let Some(target) = address::socket(&address) {
            self.rules.book.give(target);
        }
        let entry = (peer, address.clone());
        if self.bootstrap.len() < BOOTSTRAP && !self.bootstrap.contains(&entry) {
            self.bootstrap.push(entry);
        }
        self.connect(address);
    }

    fn connect(&mut self, address: Multiaddr) {
        if let Err(error) = self.swarm.dial(address) {
            debug!(%error, "not dialled");
        }
    }

    fn event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::Behaviour(BehaviourEvent::Gossipsub(event)) => self.gossiped(event),
            SwarmEvent::Behaviour(BehaviourEvent::Kad(event)) => self.table(event),
            SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received {
                peer_id,
                info,
                ..
            })) => {
                self.identified(peer_id, &info);
            }
            SwarmEvent::ConnectionEstablished { peer_id, endpoint, .. } => self.connected(peer_id, &endpoint),
            SwarmEvent::ConnectionClosed { peer_id, num_established, .. } => {
                if num_established == 0 {
                    self.known_peers.gone(&peer_id);
                }
                self.tell();
            }
            SwarmEvent::OutgoingConnectionError { error: DialError::WrongPeerId { address, .. }, .. } => {
                if let Some(target) = address::socket(&address) {
                    self.rules.book.mistaken(target, Instant::now());
                }
            }
            SwarmEvent::NewListenAddr { .. } | SwarmEvent::ExpiredListenAddr { .. } => self.tell(),
            event => tracing::trace!(?event, "swarm"),
        }
    }

    fn gossiped(&mut self, event: gossipsub::Event) {
        let gossipsub::Event::Message { propagation_source, message_id, message } = event else {
            self.publish();
            self.tell();
            return;
        };
        let validity = match Topic::named(self.run, &message.topic) {
            // LIMIT-1: the limit of libp2p counts its envelope, too.
            Some(topic) if message.data.len() <= limits::GOSSIP_BYTES => {
                self.rules.sieve.judge(topic, &message.data)
            }
            _ => Validity::Reject,
        };
        let acceptance = match validity {
            Validity::Accept => MessageAcceptance::Accept,
            Validity::Ignore => MessageAcceptance::Ignore,
            Validity::Reject => MessageAcceptance::Reject,
        };
        let gossipsub = &mut self.swarm.behaviour_mut().gossipsub;
        gossipsub.report_message_validation_result(&message_id, &propagation_source, acceptance);
        match validity {
            Validity::Accept => {}
            Validity::Ignore => self.charge(&propagation_source, 1),
            Validity::Reject => {
                self.charge(&propagation_source, FALSE);
                self.reject(propagation_source);
            }
        }
    }

    /// CHAN-22: a message of no use is charged to whoever brought it, and whoever has brought too many goes for a while.
    fn charge(&mut self, peer: &PeerId, weight: u32) {
        let now = Instant::now();
        let Some((remote, _)) = self.swarm.behaviour().doors.remote(peer) else { return };
        let Some(payer) = self.rules.accounts.useless(&remote, weight, now) else { return };
        match payer {
            Payer::Member(member) => {
                info!(%member, "a member gossips too much of no use, and is out for a while")
            }
            Payer::Source(source) => {
                debug!(%source, "strangers gossip too much of no use, and are out for a while")
            }
        }
        for peer in self.swarm.behaviour_mut().doors.shut_out(payer, now) {
            // One that is gone already is what is wanted.
            let _ = self.swarm.disconnect_peer_id(peer);
        }
    }

    fn reject(&mut self, peer: PeerId) {
        let Some(out) = self.standing.reject(peer) else { return };
        info!(%peer, "a peer keeps gossiping false messages and is shut out");
        let behaviour = self.swarm.behaviour_mut();
        // In each protocol: a peer that only gossip ignores would keep its connection and its place in the
        // table.
        behaviour.blocked.block_peer(peer);
        behaviour.gossipsub.blacklist_peer(&peer);
        behaviour.kad.remove_peer(&peer);
        if let Some(again) = out.again {
            behaviour.blocked.unblock_peer(again);
            behaviour.gossipsub.remove_blacklisted_peer(&again);
        }
        self.known_peers.forget(&peer);
        self.tell();
    }

    fn table(&mut self, event: kad::Event) {
        match event {
            kad::Event::InboundRequest {
                request: InboundRequest::PutRecord { record: Some(record), .. },
            } => {
                self.keep(record);
            }
            kad::Event::InboundRequest { request: InboundRequest::AddProvider { record: Some(record) } } => {
                self.keep_holder(record);
            }
            // Whoever is new may be nearest to the entry, and is then where others look for it.
            kad::Event::RoutingUpdated { is_new_peer: true, .. } => (self.due, self.row_due) = (true, true),
            kad::Event::OutboundQueryProgressed { id, result, step, .. } => {
                if let QueryResult::GetProviders(Ok(GetProvidersOk::FoundProviders { providers, .. })) =
                    &result
                    && let Some((found, _)) = self.registry.get_mut(&id)
                {
                    let room = registry::PROVIDERS.saturating_sub(found.len());
                    found.extend(providers.iter().filter_map(registry::member).take(room));
                }
                if step.last
                    && let Some((found, answer)) = self.registry.remove(&id)
                {
                    let _ = answer.send(found.into_iter().collect());
                }
                if let QueryResult::GetRecord(Ok(GetRecordOk::FoundRecord(found))) = &result {
                    self.found(id, &found.record);
                }
                if step.last {
                    self.putting.take_if(|putting| *putting == id);
                    self.providing.take_if(|providing| *providing == id);
                    let search = self.searches.remove(&id);
                    if let Some((best, answer)) =
                        search.and_then(|search| Some((search.best?, search.answer)))
                    {
                        let _ = answer.send(best);
                    }
                }
            }
            _ => {}
        }
    }

    /// Keeps another member's entry if it is true and newer than what is kept.
    fn keep(&mut self, record: kad::Record) {
        let key = record.key.to_vec();
        // Keys cost nothing: entries of strangers would fill the table.
        let known = whereabouts::member(self.run, &key).is_some_and(|member| self.rules.sieve.knows(&member));
        let Some(said) = whereabouts::read(self.run, &key, &record.value).ok().filter(|_| known) else {
            debug!("an entry of the table was refused");
            return;
        };
        let store = self.swarm.behaviour_mut().kad.store_mut();
        let held =
            store.get(&record.key).and_then(|held| whereabouts::read(self.run, &key, &held.value).ok());
        // The newer one stays: whoever repeats an old statement would lead others to where a member was.
        if held.is_none_or(|held| held.time < said.time) && store.put(record).is_err() {
            debug!("the table is full");
        }
    }

    /// STATE-13: keeps a member's word that it holds a row. libp2p takes it from that very peer alone.
    fn keep_holder(&mut self, mut record: kad::ProviderRecord) {
        // Keys cost nothing, and so do rows that there are not.
        let known = registry::member(&record.provider).is_some_and(|member| self.rules.sieve.knows(&member));
        if !known || !registry::is_row(self.run, &record.key) {
            debug!("a holder of a row was not kept");
            return;
        }
        // The ledger says where members are; others would dial whatever stands here. Who is in the routing table is passed on.
        record.addresses.clear();
        if self.swarm.behaviour_mut().kad.store_mut().add_provider(record).is_err() {
            debug!("the table of rows is full");
        }
    }

    fn found(&mut self, query: QueryId, record: &kad::Record) {
        let Some(search) = self.searches.get_mut(&query) else { return };
        let key = whereabouts::key(self.run, &search.member);
        if let Ok(said) = whereabouts::read(self.run, &key, &record.value) {
            search.best = Some(whereabouts::later(search.best.take(), said));
        }
    }

    fn connected(&mut self, peer: PeerId, point: &ConnectedPoint) {
        self.rules.book.saw(address::ip(point.get_remote_address()), Instant::now());
        // It was found there, by a dial that the book allowed.
        if let ConnectedPoint::Dialer { address, .. } = point
            && let Ok(at) = address.clone().with_p2p(peer)
        {
            self.known_peers.meet(peer, at);
        }
        self.tell();
    }

    /// Learns where a peer of this run can be dialled.
    fn identified(&mut self, peer: PeerId, info: &identify::Info) {
        // A peer of another run has nothing to say here; its addresses would push out those of members.
        if !info.protocols.contains(&table(self.run)) {
            return;
        }
        let sources = self.swarm.behaviour().doors.addresses(&peer);
        if sources.is_empty() {
            return;
        }
        // CHAN-20: the peer says these itself, as many and wherever it likes. Those count to which it has come from, and
        // those of members in the ledger.
        let own = |address: &&Multiaddr| {
            let target = address::socket(address);
            let from = |source: &IpAddr| target.is_some_and(|to| self.rules.book.is_its_own(to, *source));
            sources.iter().any(from)
        };
        let usable = info.listen_addrs.iter().filter(own).take(ADDRESSES);
        let named = usable.filter_map(|address| address.clone().with_p2p(peer).ok()).collect();
        self.known_peers.tell(peer, named);
        self.list();
    }

    /// Puts members into the table that have said where they are. A newcomer becomes a member while it is connected.
    fn list(&mut self) {
        let sieve = &self.rules.sieve;
        let known = |peer: &PeerId| registry::member(peer).is_some_and(|member| sieve.knows(&member));
        let listed = self.known_peers.take(known);
        if listed.is_empty() {
            return;
        }
        for (peer, addresses) in listed {
            if let Some(first) = addresses.first() {
                self.known_peers.meet(peer, first.clone());
            }
            for address in addresses {
                self.swarm.behaviour_mut().kad.add_address(&peer, address);
            }
        }
        self.tell();
    }

    /// Tells the caller about the neighbourhood, if it has changed.
    fn tell(&mut self) {
        let own = *self.swarm.local_peer_id();
        let named = self.swarm.listeners().filter_map(|address| address.clone().with_p2p(own).ok());
        let listening = self.swarm.behaviour().gossipsub.all_peers();
        let now = Neighbourhood {
            own: named.map(|address| address.to_string()).collect(),
            connected: self.swarm.network_info().num_peers(),
            listening: listening.filter(|(_, topics)| !topics.is_empty()).count(),
            met: self.known_peers.met().map(Multiaddr::to_string).collect(),
        };
        self.known.send_if_modified(|known| {
            let changed = *known != now;
            *known = now;
            changed
        });
    }
}
