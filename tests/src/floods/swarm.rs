//! Peers of the swarm that spread what nobody asked for.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_core::codec::encode;
use muster_core::ids::{Digest, MemberId, Round, Slot};
use muster_core::limits::GOSSIP_BYTES;
use muster_core::manifest::Profile;
use muster_core::messages::gossip::Gossiped;
use muster_core::messages::round::Commit;
use muster_core::sign::Identity;
use muster_net::swarm::{Gossip, Settings, Sieve, Topic, Validity};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::line::secret;
use super::pace::Uplink;
use super::target::Target;

/// Peers at once.
const PEERS: usize = 16;
/// Bytes a second are a tenth of what they are elsewhere: gossip is given on.
const SHARE: usize = 10;
/// Bytes of garbage in one message.
const GARBAGE: usize = GOSSIP_BYTES / 4;
/// Before a peer that was shut out comes again.
const LIFE: u32 = 2_000;
const PAUSE: Duration = Duration::from_millis(500);

/// Takes what anybody says.
struct Credulous;

impl Sieve for Credulous {
    fn judge(&self, _: Topic, _: &[u8]) -> Validity {
        Validity::Ignore
    }

    fn knows(&self, _: &MemberId) -> bool {
        false
    }

    fn is_host(&self, _: &IpAddr) -> bool {
        true
    }
}

/// Half of the peers spread garbage, and half commitments of strangers, each with a good signature.
pub(super) fn gossip(target: &Arc<Target>, uplink: &Arc<Uplink>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for number in 0..PEERS {
        let (target, uplink) = (target.clone(), uplink.clone());
        tasks.spawn(async move {
            let bootstrap: Vec<String> = target.swarm.iter().cloned().collect();
            while !bootstrap.is_empty() {
                let stranger = Identity::from_secret(&secret());
                let settings = Settings { bootstrap: bootstrap.clone(), ..Settings::default() };
                let Ok(peer) = Gossip::start(&stranger, target.run, &settings, Arc::new(Credulous)) else {
                    return;
                };
                for count in 0..LIFE {
                    let message =
                        if number % 2 == 0 { garbage() } else { commitment(&target, &stranger, count) };
                    uplink.up.take(SHARE * message.len()).await;
                    peer.publish(Topic::Commits, message);
                }
                peer.stop().await;
                sleep(PAUSE).await;
            }
        });
    }
    tasks
}

fn garbage() -> Vec<u8> {
    secret().repeat(GARBAGE / 32)
}

fn commitment(target: &Target, stranger: &Identity, count: u32) -> Vec<u8> {
    let [head, state, root] = [(); 3].map(|()| Digest(secret()));
    let (round, slot, profile) = (Round(count), Slot(0), Profile::Exact);
    let commit =
        Commit { round, head, state, slot, seats: 3, route: None, leaves: 2, profile, loss: 1, root };
    encode(&Gossiped::Commit(stranger.sign(target.run, &commit)))
}
