//! The libp2p protocols of a swarm and their settings.

use std::time::Duration;

use libp2p::allow_block_list::{self, BlockedPeers};
use libp2p::connection_limits::{self, ConnectionLimits};
use libp2p::gossipsub::{self, IdentTopic, MessageAuthenticity, MessageId, ValidationMode};
use libp2p::identity::Keypair;
use libp2p::kad::store::{MemoryStore, MemoryStoreConfig};
use libp2p::swarm::NetworkBehaviour;
use libp2p::{StreamProtocol, Swarm, SwarmBuilder, identify, kad, noise, tcp, yamux};
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::RunId;
use muster_core::limits;
use muster_core::sign::Identity;

use super::registry::PROVIDERS;
use super::sieve::Topic;
use super::whereabouts::ENTRY_BYTES;
use crate::error::NetError;

/// What libp2p puts around a message: author, number, topic, signature.
const ENVELOPE: usize = 1024;
/// How long a message that was seen is not taken again.
const SEEN: Duration = Duration::from_secs(600);
/// How long a connection without use stays open.
const IDLE: Duration = Duration::from_secs(120);
/// How long a look-up may take.
const QUERY: Duration = Duration::from_secs(10);
/// How long an entry stays in the table, and how often it is renewed.
const ENTRY_LIFE: Duration = Duration::from_secs(2 * 3600);
const ENTRY_RENEWAL: Duration = Duration::from_secs(20 * 60);
/// Connections in the handshake, open from others, open to others, and open with one peer.
const CONNECTIONS: [u32; 4] = [32, 128, 64, 2];

/// All protocols of one swarm.
#[derive(NetworkBehaviour)]
pub(super) struct Behaviour {
    pub(super) blocked: allow_block_list::Behaviour<BlockedPeers>,
    limits: connection_limits::Behaviour,
    pub(super) identify: identify::Behaviour,
    pub(super) kad: kad::Behaviour<MemoryStore>,
    pub(super) gossipsub: gossipsub::Behaviour,
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

/// A swarm that has joined both topics; it serves the table if others can dial it.
///
/// # Errors
/// [`NetError`] when a protocol cannot be set up.
pub(super) fn swarm(identity: &Identity, run: RunId, dialable: bool) -> Result<Swarm<Behaviour>, NetError> {
    let failed = |what: String| NetError::new("gossip", std::io::Error::other(what));
    let keypair =
        Keypair::ed25519_from_bytes(&mut identity.secret()[..]).map_err(|error| failed(error.to_string()))?;
    let mut behaviour = Behaviour::new(&keypair, run).map_err(failed)?;
    // Without an address that somebody confirmed, Kademlia would only ask and never answer.
    behaviour.kad.set_mode(Some(if dialable { kad::Mode::Server } else { kad::Mode::Client }));
    let swarm = SwarmBuilder::with_existing_identity(keypair)
        .with_tokio()
        .with_tcp(tcp::Config::default().nodelay(true), noise::Config::new, yamux::Config::default)
        .map_err(|error| failed(error.to_string()))?
        .with_behaviour(|_| behaviour)
        .map_err(|error| failed(error.to_string()))?
        .with_swarm_config(|config| config.with_idle_connection_timeout(IDLE))
        .build();
    Ok(swarm)
}

impl Behaviour {
    fn new(keypair: &Keypair, run: RunId) -> Result<Self, String> {
        let peer = keypair.public().to_peer_id();
        let [pending, incoming, outgoing, each] = CONNECTIONS;
        let limits = ConnectionLimits::default()
            .with_max_pending_incoming(Some(pending))
            .with_max_pending_outgoing(Some(pending))
            .with_max_established_incoming(Some(incoming))
            .with_max_established_outgoing(Some(outgoing))
            .with_max_established_per_peer(Some(each));
        let store = MemoryStoreConfig {
            // An entry for each member: `EventLoop::keep` takes none of anybody else.
            max_records: limits::MEMBERS,
            max_value_bytes: ENTRY_BYTES,
            // `EventLoop::keep_holder` takes none but members, for rows of the run.
            max_providers_per_key: PROVIDERS,
            max_provided_keys: limits::ROWS.into(),
        };
        let identify =
            identify::Config::new("/muster/1".into(), keypair.public()).with_agent_version("muster".into());
        let mut gossipsub =
            gossipsub::Behaviour::new(MessageAuthenticity::Signed(keypair.clone()), gossip()?)?;
        for topic in Topic::ALL {
            gossipsub.subscribe(&topic.name(run)).map_err(|error| error.to_string())?;
        }
        Ok(Self {
            blocked: allow_block_list::Behaviour::default(),
            limits: connection_limits::Behaviour::new(limits),
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
