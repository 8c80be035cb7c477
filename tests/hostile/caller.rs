//! A run with impatient timers, and somebody who talks to it as a member would.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use e2e::processes::{Process, Run};
use e2e::programs;
use e2e::settings::Settings;
use muster_core::codec::List;
use muster_core::ids::{MemberId, unhex};
use muster_core::ledger::Ledger;
use muster_core::messages::enrol::{Enrol, Ticket};
use muster_core::messages::wire::{Request, Response};
use muster_core::sign::Identity;
use muster_net::endpoint::Endpoint;
use muster_replica::{Contact, Peers, contact, fetch_ledger, fetch_manifest};

/// A run whose members are waited for two seconds at most.
pub fn run(settings: Settings) -> Run {
    let timers = "[timers]\ncommit = 2.0\npart = 2.0\nresult = 2.0\naudit = 2.0\n";
    Run::waiting(programs!(), &format!("{settings}{timers}"), 1)
}

/// The key of a directory, which its process may hold open.
pub fn key_of(directory: &Path) -> Arc<Identity> {
    let text = fs::read_to_string(directory.join("identity.key")).expect("a key");
    Arc::new(Identity::from_secret(&unhex(text.trim()).expect("a key")))
}

/// Everyone ends well, and nobody has panicked on the way.
pub fn all_end_well(processes: &mut [Process]) {
    for process in processes {
        assert_eq!(process.wait(), 0, "{}", process.log());
        assert!(!process.log().contains("panicked"), "{}", process.log());
    }
}

/// Somebody who talks to a run as a member would.
pub struct Caller {
    pub identity: Arc<Identity>,
    pub ticket: Ticket,
    pub peers: Peers,
    pub steward: Contact,
}

impl Caller {
    pub fn new(run: &Run, identity: Arc<Identity>) -> Self {
        let ticket = Ticket::from_line(&run.invite("node", 1)).expect("an invitation");
        let peers = Peers::new(Endpoint::new(ticket.run, identity.clone()));
        let addresses = ticket.addresses.iter().map(|address| address.to_string()).collect();
        let steward = Contact { member: ticket.steward, addresses };
        Self { identity, ticket, peers, steward }
    }

    /// Becomes a node that nobody can dial.
    pub async fn enrol(&self) {
        let invitation = self.ticket.present(self.identity.id());
        let enrol = Enrol {
            invitation,
            addresses: List::default(),
            coins: None,
            name: Default::default(),
            engagement: Default::default(),
        };
        let enrol = Request::Enrol(self.identity.sign(self.ticket.run, &enrol));
        assert_eq!(self.peers.ask(&self.steward, &enrol).await.expect("an answer"), Response::Done);
    }

    pub async fn ledger(&self) -> Ledger {
        let manifest = fetch_manifest(&self.peers, &self.steward, self.ticket.run).await.expect("a manifest");
        fetch_ledger(&self.peers, &self.steward, &manifest).await.expect("a ledger that checks")
    }

    /// The same once it has been admitted.
    pub async fn find_when_there(&self, member: &MemberId) -> Contact {
        loop {
            if let Some(found) = contact(&self.ledger().await, member) {
                return found;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }
}
