//! Who has a connection to the steward right now, and who of them is a member.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use muster_core::ids::MemberId;
use muster_core::ledger::Ledger;
use muster_core::lock::lock;
use muster_core::messages::record::Body;
use muster_net::shares::Role;
use tokio::sync::Notify;

/// Open connections, counted by key, and the members that are not banned; the listener bounds how many connections there are.
pub(super) struct Connections {
    connections: Mutex<BTreeMap<MemberId, usize>>,
    members: Mutex<BTreeSet<MemberId>>,
    changed: Notify,
}

impl Connections {
    /// Without connections, over the members of a ledger.
    pub(super) fn new(ledger: &Ledger) -> Self {
        let members = ledger.members().iter().map(|member| member.id);
        let members = members.filter(|member| !ledger.is_banned(member)).collect();
        Self { connections: Mutex::default(), members: Mutex::new(members), changed: Notify::new() }
    }

    /// A record was sealed: it may admit a member, or ban one.
    pub(super) fn sealed(&self, body: &Body) {
        match body {
            Body::Admit(enrol) => {
                lock(&self.members).insert(enrol.claimed_signer());
            }
            Body::Ban(ban) => {
                lock(&self.members).remove(&ban.culprit);
            }
            _ => {}
        }
    }

    /// CHAN-14: what a peer is.
    pub(super) fn role(&self, peer: &MemberId) -> Role {
        if lock(&self.members).contains(peer) { Role::Member } else { Role::Stranger }
    }

    /// A connection opened.
    pub(super) fn open(&self, member: MemberId) {
        *self.lock().entry(member).or_default() += 1;
        self.tell(&member);
    }

    /// A connection ended.
    pub(super) fn close(&self, member: MemberId) {
        let mut connections = self.lock();
        if let Some(count) = connections.get_mut(&member) {
            *count -= 1;
            if *count == 0 {
                connections.remove(&member);
            }
        }
        drop(connections);
        self.tell(&member);
    }

    /// Strangers come and go as they like: nobody is told.
    fn tell(&self, member: &MemberId) {
        if self.role(member) == Role::Member {
            self.changed.notify_one();
        }
    }

    /// The members that have a connection; `None` if these are the known ones.
    pub(super) fn since(&self, known: &BTreeSet<MemberId>) -> Option<BTreeSet<MemberId>> {
        let connections = self.lock();
        let members = lock(&self.members);
        let here = || connections.keys().filter(|key| members.contains(key));
        // Mostly nothing has changed, and this is asked with every message.
        (!here().eq(known)).then(|| here().copied().collect())
    }

    /// Whether nobody has a connection.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Waits for the next change.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<MemberId, usize>> {
        lock(&self.connections)
    }
}
