//! The libp2p protocols of a swarm and their settings.

use std::collections::HashSet;
use std::time::Duration;

use libp2p::allow_block_list::{self, BlockedPeers};
use libp2p::gossipsub::{
    self, IdentTopic, IdentityTransform, MessageAuthenticity, MessageId, ValidationMode,
    WhitelistSubscriptionFilter,
};
use libp2p::identity::Keypair;
use libp2p::kad::store::{MemoryStore, MemoryStoreConfig};
use libp2p::swarm::{Config, NetworkBehaviour};
use libp2p::{StreamProtocol, Swarm, identify, kad};
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::RunId;
use muster_core::limits;
use muster_core::sign::Identity;

use super::doors::Doors;
use super::guarded;
use super::registry::PROVIDERS;
use super::rules::Rules;
use super::sieve::Topic;
use super::whereabouts::ENTRY_BYTES;
use crate::error::NetError;

/// What libp2p puts around a message: author, number, topic, signature.
const ENVELOPE: usize = 1024;
/// How long a message that was seen is not taken again: far longer than one travels. What is remembered takes room, so that its
/// number has a bound: that of the bytes that peers may bring in this time.
const SEEN: Duration = Duration::from_secs(60);
/// Messages that wait to be sent to one peer, which may not read; more of them are dropped.
const OUTBOX: usize = 256;
/// How long a connection without use stays open.
const IDLE: Duration = Duration::from_secs(120);
/// How long a look-up may take.
const QUERY: Duration = Duration::from_secs(10);
/// How long an entry stays in the table, and how often it is renewed.
const ENTRY_LIFE: Duration = Duration::from_secs(2 * 3600);
const ENTRY_RENEWAL: Duration = Duration::from_secs(20 * 60);

/// All protocols of one swarm.
#[derive(NetworkBehaviour)]
pub(super) struct Behaviour {
    pub(super) blocked: allow_block_list::Behaviour<BlockedPeers>,
    pub(super) doors: Doors,
    pub(super) identify: identify::Behaviour,
    pub(super) kad: kad::Behaviour<MemoryStore>,
    pub(super) gossipsub: gossipsub::Behaviour<IdentityTransform, WhitelistSubscriptionFilter>,
}

impl Topic {
    /// All topics.
    pub(super) const ALL: [Self; 2] = [Self::Records, Self::Commits];

    /// Its name in a run.
    pub(super) fn name(self, run: RunId) -> IdentTopic {
        let what = match self {
            Self::Records => "records",
            Self::Commits => "commits",
        };
        IdentTopic::new(format!("muster/1/{run:#}/{what}"))
    }

    /// The topic with this name in a run.
    pub(super) fn named(run: RunId, hash: &gossipsub::TopicHash) -> Option<Self> {
        Self::ALL.into_iter().find(|topic| topic.name(run).hash() == *hash)
    }
}

/// Name of the table's protocol: each run has one of its own, so that every peer in it is of the run.
pub(super) fn table(run: RunId) -> StreamProtocol {
    StreamProtocol::try_from_owned(format!("/muster/1/kad/{run:#}")).expect("it begins with a slash")
}

/// A member's own key, as libp2p has it.
///
/// # Errors
/// [`NetError`] when it is no key, which a member's is.
pub(super) fn keypair(identity: &Identity) -> Result<Keypair, NetError> {
    let failed = |error| NetError::new("gossip", std::io::Error::other(error));
    Keypair::ed25519_from_bytes(&mut identity.secret()[..]).map_err(failed)
}

/// A swarm that has joined both topics; it serves the table if others can dial it. Within a runtime.
///
/// # Errors
/// [`NetError`] when a protocol cannot be set up.
pub(super) fn swarm(
    keypair: &Keypair,
    run: RunId,
    seats: usize,
    dialable: bool,
    rules: &Rules,
) -> Result<Swarm<Behaviour>, NetError> {
    let failed = |what: String| NetError::new("gossip", std::io::Error::other(what));
    let doors = Doors::new(rules.accounts.clone(), seats);
    let mut behaviour = Behaviour::new(keypair, run, doors).map_err(failed)?;
    // Without an address that somebody confirmed, Kademlia would only ask and never answer.
    behaviour.kad.set_mode(Some(if dialable { kad::Mode::Server } else { kad::Mode::Client }));
    let transport = guarded::transport(keypair, rules).map_err(|error| failed(error.to_string()))?;
    let config = Config::with_tokio_executor().with_idle_connection_timeout(IDLE);
    Ok(Swarm::new(transport, behaviour, keypair.public().to_peer_id(), config))
}

impl Behaviour {
    fn new(keypair: &Keypair, run: RunId, doors: Doors) -> Result<Self, String> {
        let peer = keypair.public().to_peer_id();
        let store = MemoryStoreConfig {
            // An entry for each member: `EventLoop::keep` takes none of anybody else.
            max_records: limits::MEMBERS,
            max_value_bytes: ENTRY_BYTES,
            // `EventLoop::keep_holder` takes none but members, for rows of the run.
            max_providers_per_key: PROVIDERS,
            max_provided_keys: limits::ROWS.into(),
        };
        let identify = identify::Config::new("/muster/1".into(), keypair.public())
            .with_agent_version("muster".into())
            // CHAN-20: addresses that peers name for themselves are not dialled unseen.
            .with_cache_size(0);
        // Of a run alone: whoever subscribes to other topics makes each peer remember them.
        let topics: HashSet<_> = Topic::ALL.into_iter().map(|topic| topic.name(run).hash()).collect();
        let mut gossipsub = gossipsub::Behaviour::new_with_subscription_filter(
            MessageAuthenticity::Signed(keypair.clone()),
            gossip()?,
            WhitelistSubscriptionFilter(topics),
        )?;
        for topic in Topic::ALL {
            gossipsub.subscribe(&topic.name(run)).map_err(|error| error.to_string())?;
        }
        Ok(Self {
            blocked: allow_block_list::Behaviour::default(),
            doors,
            identify: identify::Behaviour::new(identify),
            kad: kad::Behaviour::with_config(peer, MemoryStore::with_config(peer, store), kademlia(run)),
            gossipsub,
        })
    }
}

fn gossip() -> Result<gossipsub::Config, String> {
    gossipsub::ConfigBuilder::default()
        .max_transmit_size(limits::GOSSIP_BYTES + ENVELOPE)
        // Signed by its author, and passed on only when the sieve has said so: an honest peer that relays
        // what it has not checked would be shut out for it.
        .validation_mode(ValidationMode::Strict)
        .validate_messages()
        .duplicate_cache_time(SEEN)
        .connection_handler_queue_len(OUTBOX)
        // By content: libp2p names a message by author and number, so that the same record from two members,
        // or under new numbers, would be spread again and again.
        .message_id_fn(|message| {
            let name =
                Hasher::new(Domain::GOSSIP).part(message.topic.as_str().as_bytes()).part(&message.data);
            MessageId::from(name.finish().0.to_vec())
        })
        .build()
        .map_err(|error| error.to_string())
}

/// Entries are kept only after they were checked.
fn kademlia(run: RunId) -> kad::Config {
    let mut config = kad::Config::new(table(run));
    config
        .set_record_filtering(kad::StoreInserts::FilterBoth)
        .set_query_timeout(QUERY)
        .set_record_ttl(Some(ENTRY_LIFE))
        .set_publication_interval(Some(ENTRY_RENEWAL))
        .set_provider_record_ttl(Some(2 * ENTRY_RENEWAL))
        .set_provider_publication_interval(Some(ENTRY_RENEWAL))
        .set_caching(kad::Caching::Disabled);
    config
}
