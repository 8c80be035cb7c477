//! What this member does now, for people and for monitoring systems.

use std::collections::BTreeSet;

use muster_core::ids::Part;
use muster_core::ledger::Stage;
use muster_replica::contact;
use muster_show::Shown;
use muster_view::status::desk::Inquiry;
use muster_view::status::window::Window;
use muster_view::status::{Paused, Peer, Pulse, Status, Traffic, Wait, Way};
use tokio::sync::mpsc;

use super::driver::NodeDriver;
use crate::{JoinError, JoinOptions};

/// Shows the run and what this program does, as far as the volunteer wants to see that.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) run: Option<Shown>,
    pub(super) pulse: Pulse,
    window: Option<Window>,
    asked: Option<mpsc::Receiver<Inquiry>>,
}

impl Seen {
    /// Begins to show what this program does. Gives where monitoring systems see it.
    pub(super) async fn open(&mut self, options: &JoinOptions) -> Result<Option<&str>, JoinError> {
        let opened = Window::open(&options.data_dir, options.show.metrics.as_deref()).await;
        let (window, asked) = opened.map_err(JoinError::Environment)?;
        self.asked = Some(asked);
        Ok(self.window.insert(window).metrics())
    }

    /// The next who wants to know; none where nobody can.
    pub(super) async fn next(&mut self) -> Option<Inquiry> {
        self.asked.as_mut()?.recv().await
    }

    /// What this member does.
    pub(super) fn status(&self, driver: &NodeDriver, paused: Option<&Paused>) -> Status {
        let (ledger, peers, me) = (driver.machine.ledger(), &driver.peers, driver.me());
        let way =
            |contact: &_, has_address| Way::of(has_address, peers.line(contact), peers.may_dial(contact));
        let mut status = Status::of(ledger, "node", &me, |member| {
            contact(ledger, &member.id)
                .map(|found| way(&found, !found.addresses.is_empty()))
                .unwrap_or_default()
        });
        let steward = &driver.steward;
        let peer = Peer::steward(&steward.member, steward.addresses.clone(), way(steward, true));
        status.peers.insert(0, peer);
        self.pulse.fill(&mut status);
        let (sent, received) = peers.traffic();
        status.traffic = Traffic { sent, received, relayed: peers.relayed() };
        status.waits.extend(waits(driver));
        status.paused = paused.cloned();
        status
    }
}

/// Whom this member waits for. What others wait for the steward knows alone.
fn waits(driver: &NodeDriver) -> Option<Wait> {
    let ledger = driver.machine.ledger();
    let view = ledger.current()?;
    let seated = view.slot_of(&driver.me()).is_some();
    match ledger.stage() {
        Stage::Computing if seated => Some(Wait::new("its own leaves, or those of others", [])),
        Stage::Computing => Some(Wait::new("the next round, in which it may have a seat", [])),
        Stage::Exchanging => {
            let keepers = driver.machine.undelivered();
            let none = keepers.is_empty();
            Some(Wait::new(if none { "the deliveries of others" } else { "receipts" }, keepers))
        }
        Stage::Reducing => {
            let parts = (0..view.parts().len() as u16).map(Part);
            let reducers: BTreeSet<_> = parts.flat_map(|part| view.aggregating(part)).collect();
            Some(Wait::new("results, and checks of them", reducers))
        }
        _ => None,
    }
}
