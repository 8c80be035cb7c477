//! `muster id` and `muster leave`: they read a member's directory without opening it, while `muster join` may hold it.

use std::path::Path;
use std::sync::Arc;

use muster_core::ids::Height;
use muster_core::ids::MemberId;
use muster_core::messages::enrol::Leave;
use muster_core::messages::wire::{Follow, Notice, Request, Response};
use muster_net::endpoint::Endpoint;
use muster_organise::{read_identity, ticket};
use muster_replica::exit::{Failure, Outcome};
use muster_replica::{Contact, PeerError, Peers};
use muster_store::home::Home;

/// The member id of a directory; makes directory and key when there are none.
///
/// # Errors
/// [`Failure`] naming the file.
pub fn id(data_dir: &Path) -> Outcome<MemberId> {
    if data_dir.join("identity.key").exists() {
        return Ok(read_identity(data_dir, "identity")?.id());
    }
    Ok(Home::open(data_dir)?.identity()?.id())
}

/// Leaves the run that a directory joined, for good. Works while `muster join` runs.
///
/// # Errors
/// [`Failure`]: it never joined, the steward cannot be reached or refuses.
pub async fn leave(data_dir: &Path) -> Outcome<()> {
    let ticket = ticket(data_dir)?;
    let ticket = ticket.ok_or_else(|| {
        Failure::environment(format!("{}: no run was joined from this directory", data_dir.display()))
    })?;
    let identity = Arc::new(read_identity(data_dir, "identity")?);
    let steward = Contact {
        member: ticket.steward,
        addresses: ticket.addresses.iter().map(|address| address.to_string()).collect(),
    };
    let peers = Peers::new(Endpoint::new(ticket.run, identity.clone()));
    let Response::News(news) =
        peers.ask(&steward, &Request::Follow(Follow { height: Height(0), board: 0, notice: 0 })).await?
    else {
        return Err(PeerError::Unexpected.into());
    };
    let leave = Leave { height: news.newest.next() };
    let notice = Notice::Leave(identity.sign(ticket.run, &leave));
    match peers.ask(&steward, &Request::Notice(notice)).await? {
        Response::Done => Ok(()),
        _ => Err(PeerError::Unexpected.into()),
    }
}
