//! Who has a connection to the steward right now.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use muster_core::ids::MemberId;
use muster_core::lock::lock;
use tokio::sync::Notify;

/// Open connections, counted by member; the listener bounds how many there are.
#[derive(Default)]
pub(super) struct Connections {
    connections: Mutex<BTreeMap<MemberId, usize>>,
    changed: Notify,
}

impl Connections {
    /// A connection opened.
    pub(super) fn open(&self, member: MemberId) {
        *self.lock().entry(member).or_default() += 1;
        self.changed.notify_one();
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
        self.changed.notify_one();
    }

    /// The members that have a connection; `None` if these are the known ones.
    pub(super) fn since(&self, known: &BTreeSet<MemberId>) -> Option<BTreeSet<MemberId>> {
        let connections = self.lock();
        // Mostly nothing has changed, and this is asked with every message.
        (!connections.keys().eq(known)).then(|| connections.keys().copied().collect())
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
