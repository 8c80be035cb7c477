//! What the steward does now, for people and for monitoring systems.

use std::collections::BTreeSet;

use muster_core::ids::MemberId;
use muster_replica::exit::{Failure, Outcome};
use muster_replica::{Peers, contact};
use muster_roles::steward::{Awaited, Owed, Steward};
use muster_view::status::desk::Inquiry;
use muster_view::status::window::Window;
use muster_view::status::{Pulse, Status, Traffic, Wait, Way};
use tokio::sync::mpsc;

use super::options::HostOptions;

/// Begins to show it.
///
/// # Errors
/// [`Failure`]: the address cannot be listened on.
pub(super) async fn open(options: &HostOptions) -> Outcome<(Window, mpsc::Receiver<Inquiry>)> {
    Window::open(&options.folder, options.show.metrics.as_deref()).await.map_err(Failure::environment)
}

/// What the driver needs for that.
#[derive(Default)]
pub(super) struct Watched {
    pub(super) asked: Option<mpsc::Receiver<Inquiry>>,
    pub(super) pulse: Pulse,
}

impl Watched {
    /// The next who wants to know; none where nobody can.
    pub(super) async fn next(&mut self) -> Option<Inquiry> {
        self.asked.as_mut()?.recv().await
    }
}

/// What this steward does, whose members dial in or are dialled.
pub(super) fn status(
    machine: &Steward,
    own: &MemberId,
    peers: &Peers,
    connected: &BTreeSet<MemberId>,
    pulse: &Pulse,
) -> Status {
    let ledger = machine.ledger();
    let mut status = Status::of(ledger, "steward", own, |member| {
        let found = contact(ledger, &member.id);
        let way = found
            .map(|found| Way::of(!found.addresses.is_empty(), peers.line(&found), peers.may_dial(&found)));
        match way.unwrap_or_default() {
            dialled @ (Way::Dialled | Way::Relayed) => dialled,
            _ if connected.contains(&member.id) => Way::DialsIn,
            other => other,
        }
    });
    pulse.fill(&mut status);
    let (sent, received) = peers.traffic();
    status.traffic = Traffic { sent, received, relayed: peers.relayed() };
    status.waits.extend(machine.awaits().map(waits_before_freeze));
    let owed = machine.owed().filter(|(_, members)| !members.is_empty());
    status.waits.extend(owed.map(|(owed, members)| Wait::new(words(owed), members)));
    status
}

fn waits_before_freeze(awaited: Awaited) -> Wait {
    match awaited {
        Awaited::Past(convict) => Wait::new("the past of a convict, which is computed again", [convict]),
        Awaited::Verifier => Wait::new("a verifier that takes part", []),
        Awaited::Weight => Wait::new("a node that has weight", []),
    }
}

fn words(owed: Owed) -> &'static str {
    match owed {
        Owed::Connection => "the connections",
        Owed::Commitment => "the commitments",
        Owed::Delivery => "the deliveries",
        Owed::Result => "the results",
        Owed::Check => "the checks of results",
    }
}
