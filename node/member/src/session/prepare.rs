//! What must hold before a member takes part: the steward is found, and the arithmetic is sound.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_compute::{Backend, Machine};
use muster_core::ids::Height;
use muster_core::manifest::Manifest;
use muster_core::messages::enrol::{Addresses, Ticket};
use muster_core::sign::Identity;
use muster_net::endpoint::Endpoint;
use muster_replica::{
    BootstrapError, Contact, FollowError, Follower, PeerError, Peers, Replica, before_next_try,
    fetch_manifest, memory, moved,
};
use muster_store::dataset::Dataset;
use muster_store::journal::Journal;
use muster_store::rows::RowFiles;

use crate::{JoinError, JoinOptions, Listen};

/// How long the swarm is asked where a steward went.
const MOVED: Duration = Duration::from_secs(15);

/// The steward's contact, and the manifest of a run that fits into this machine's memory. If nobody answers at the
/// ticket's addresses, the swarm may know others.
pub(super) async fn reach(
    options: &JoinOptions,
    identity: &Identity,
    peers: &Peers,
    journal: &Journal,
) -> Result<(Contact, Arc<Manifest>), JoinError> {
    let found = find(options, identity, peers, steward_of(&options.ticket), journal).await?;
    // Before the text is fetched: a process that the system kills in a round keeps everybody waiting.
    memory::check(memory::contributing(&found.1, &options.machine), options.bounds.memory)
        .map_err(|misuse| JoinError::Environment(misuse.to_string()))?;
    Ok(found)
}

/// The steward, where the invitation says it is.
fn steward_of(ticket: &Ticket) -> Contact {
    let addresses = ticket.addresses.iter().map(|address| address.to_string()).collect();
    Contact { member: ticket.steward, addresses }
}

/// The steward's contact and the manifest. Who has followed the run before waits for a steward that is away, as running members
/// do; a newcomer is told at once, since its invitation may be wrong.
async fn find(
    options: &JoinOptions,
    identity: &Identity,
    peers: &Peers,
    steward: Contact,
    journal: &Journal,
) -> Result<(Contact, Arc<Manifest>), JoinError> {
    let known = journal.height()? > Height(0);
    let begun = Instant::now();
    loop {
        let error = match fetch_manifest(peers, &steward, options.ticket.run).await {
            Ok(manifest) => return Ok((steward, manifest)),
            Err(error) => error,
        };
        // Only where nobody answered: a refusal is an answer, and gossip would lead to the same steward.
        if !matches!(error, BootstrapError::Follow(FollowError::Steward(PeerError::Net(_)))) {
            return Err(error.into());
        }
        if let Some(found) = find_elsewhere(options, identity, peers, &steward, journal).await {
            return Ok(found);
        }
        let Some(pause) = before_next_try(begun.elapsed()).filter(|_| known) else {
            return Err(error.into());
        };
        tracing::warn!("the steward does not answer ({error}); trying again");
        tokio::time::sleep(pause).await;
    }
}

/// The same where the swarm knows other addresses of the steward.
async fn find_elsewhere(
    options: &JoinOptions,
    identity: &Identity,
    peers: &Peers,
    steward: &Contact,
    journal: &Journal,
) -> Option<(Contact, Arc<Manifest>)> {
    options.gossip.as_ref()?;
    let steward = moved(identity, options.ticket.run, steward, journal, MOVED).await?;
    let manifest = fetch_manifest(peers, &steward, options.ticket.run).await.ok()?;
    Some((steward, manifest))
}

/// Joins the swarm, and announces this member's addresses there. Without an address of its own the swarm listens on the
/// one at which members dial this machine, on a free port. If this fails, the membership goes on without gossip.
pub(super) fn join_swarm(
    options: &JoinOptions,
    endpoint: &Endpoint,
    identity: &Identity,
    follower: &mut Follower,
    addresses: &Addresses,
) {
    let Some(mut settings) = options.gossip.clone() else { return };
    if settings.listen.is_empty() && options.listen == Listen::TowardsSteward {
        let own = endpoint.own_address(&options.ticket.steward);
        settings.listen.extend(own.map(|own| SocketAddr::new(own, 0).to_string()));
    }
    if let Err(error) = follower.join_swarm(identity, settings) {
        tracing::warn!("going on without gossip: {error}");
    }
    if let Some(gossip) = follower.gossip().filter(|_| !addresses.is_empty()) {
        gossip.announce(identity, addresses.clone());
    }
}

/// The backend for leaves, checked against its known answers, and the initial state. Large ones go to `files`.
pub(super) async fn prepare(
    options: &JoinOptions,
    manifest: &Arc<Manifest>,
    dataset: &Arc<Dataset>,
    files: RowFiles,
) -> Result<(Box<dyn Backend>, Replica), JoinError> {
    let (manifest, dataset, machine) = (manifest.clone(), dataset.clone(), options.machine);
    let made = tokio::task::spawn_blocking(move || {
        let mut arithmetic = machine.leaves(manifest.profile)?;
        // Before it joins: a kernel with wrong bits would convict its owner.
        arithmetic.self_test()?;
        arithmetic.has_room(&manifest)?;
        tracing::info!("leaves are computed by {}{}", arithmetic.describe(), machine.reason(&manifest));
        if let Some(closeness) = arithmetic.closeness() {
            tracing::info!("self-test: {closeness}");
        }
        let Machine { threads, path, .. } = machine;
        let replica = Replica::genesis(manifest, dataset, threads, path)?;
        Ok((arithmetic, replica.with_state_files(files, memory::ROOM)))
    });
    let made =
        made.await.map_err(|error| JoinError::Environment(format!("the arithmetic failed: {error}")))?;
    made.map_err(|misuse: muster_core::error::Misuse| JoinError::Environment(misuse.to_string()))
}
