//! Somebody who is no member: reads a run's ledger from outside, and finds the ports of its processes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_core::ids::{MemberId, Round};
use muster_core::ledger::Ledger;
use muster_core::messages::enrol::Ticket;
use muster_core::sign::Identity;
use muster_net::endpoint::Endpoint;
use muster_replica::{Contact, Peers, contact, fetch_ledger, fetch_manifest};

use crate::floods::Target;
use crate::processes::{Process, Run};

/// What a steward says before the address of its pages.
const PAGE: &str = "web pages: http://";

/// A stranger with a run's invitation.
pub struct Onlooker {
    ticket: Ticket,
    peers: Peers,
    steward: Contact,
}

impl Onlooker {
    /// Of a run whose steward listens.
    ///
    /// # Panics
    /// Where the run makes no invitation.
    pub fn of(run: &Run) -> Self {
        let ticket = Ticket::from_line(&run.invite("node", 1)).expect("an invitation");
        let peers = Peers::new(Endpoint::new(ticket.run, Arc::new(Identity::from_secret(&[66; 32]))));
        let addresses = ticket.addresses.iter().map(|address| address.to_string()).collect();
        let steward = Contact { member: ticket.steward, addresses };
        Self { ticket, peers, steward }
    }

    /// The ledger as it is now.
    ///
    /// # Panics
    /// Where the steward does not answer.
    pub async fn ledger(&self) -> Ledger {
        let manifest = fetch_manifest(&self.peers, &self.steward, self.ticket.run).await.expect("a manifest");
        fetch_ledger(&self.peers, &self.steward, &manifest).await.expect("a ledger that checks")
    }

    /// The ports of a run whose steward serves pages, once this node is a member.
    ///
    /// # Panics
    /// Where the steward or the node says no address.
    pub async fn target(&self, steward: &Process, node: &MemberId) -> Target {
        let found = loop {
            if let Some(found) = contact(&self.ledger().await, node) {
                break found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let log = steward.log();
        let page = log.split_once(PAGE).and_then(|(_, page)| page.split(['/', '\n', ' ']).next());
        Target {
            run: self.ticket.run,
            steward: self.steward.member,
            channel: port(&self.steward),
            node: (*node, port(&found)),
            swarm: self.steward.swarm_addresses().next(),
            web: page.and_then(|page| page.parse().ok()),
        }
    }
}

fn port(contact: &Contact) -> SocketAddr {
    let mut addresses = contact.addresses.iter().filter_map(|address| address.parse().ok());
    addresses.next().expect("an address to dial")
}

/// Members of these that have failed in this round or later (LEDGER-20), or are banned.
pub fn failed_since(ledger: &Ledger, honest: &[MemberId], round: Round) -> usize {
    let failed = |id: &&MemberId| ledger.member(id).is_none_or(|member| member.barred > round);
    honest.iter().filter(failed).count()
}
