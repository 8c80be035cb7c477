//! What this verifier does now, for people and for monitoring systems.

use muster_core::ledger::Ledger;
use muster_replica::{Peers, contact};
use muster_view::status::{Peer, Pulse, Status, Traffic, Wait, Way};

use crate::session::VerifierSession;

/// What the newest records say. The ledger is with the follower while that waits for news.
#[derive(Default)]
pub(super) struct Seen {
    newest: Option<Ledger>,
    pulse: Pulse,
}

impl Seen {
    /// There is news.
    pub(super) fn see(&mut self, ledger: &Ledger) {
        self.pulse.at(ledger);
        self.newest = Some(ledger.clone());
    }

    /// What this verifier does; `work` counts what it has begun.
    pub(super) fn status(&self, session: &VerifierSession, work: usize) -> Status {
        let VerifierSession { identity, target, peers, .. } = session;
        let mut status = self.newest.as_ref().map(|ledger| of(ledger, session)).unwrap_or_default();
        (status.role, status.member) = ("verifier".to_owned(), format!("{:#}", identity.id()));
        (status.run, status.name) = (format!("{:#}", target.run), session.manifest.name.to_string());
        self.pulse.fill(&mut status);
        let steward = &target.steward;
        let way = Way::of(true, peers.line(steward), peers.may_dial(steward));
        status.peers.insert(0, Peer::steward(&steward.member, steward.addresses.clone(), way));
        let (sent, received) = Peers::traffic(peers);
        status.traffic = Traffic { sent, received, relayed: 0 };
        status.waits.extend((work > 0).then(|| Wait::new(format!("{work} of its own tasks"), [])));
        status
    }
}

fn of(ledger: &Ledger, session: &VerifierSession) -> Status {
    let peers = &session.peers;
    Status::of(ledger, "verifier", &session.identity.id(), |member| {
        let found = contact(ledger, &member.id);
        let way = found
            .map(|found| Way::of(!found.addresses.is_empty(), peers.line(&found), peers.may_dial(&found)));
        way.unwrap_or_default()
    })
}
