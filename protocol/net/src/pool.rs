//! Clients kept for the next request: different peers in parallel, one request or series at a time to each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use muster_core::ids::MemberId;
use muster_core::lock::lock;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time;

use crate::capacity::Capacity;
use crate::client::Client;
use crate::endpoint::Endpoint;
use crate::error::{Cause, NetError};

type Key = (String, MemberId);
type SharedClient = Arc<AsyncMutex<Option<Client>>>;

/// Clients by address and member, dialled on demand.
///
/// At most `keep` requests or series are under way and at most `keep` idle clients stay; the least recently used go first. A request
/// that waits long at the peer holds up the others to the same peer: long polls belong on a [`Client`] of their own.
pub struct Pool {
    endpoint: Endpoint,
    keep: usize,
    active: Semaphore,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    slots: BTreeMap<Key, Slot>,
    clock: u64,
}

struct Slot {
    client: SharedClient,
    used: u64,
}

impl Pool {
    /// An empty pool that keeps at most `keep` clients, at least one, and no more than this process can carry (CHAN-13): a
    /// process has two large ones.
    pub fn new(endpoint: Endpoint, keep: usize) -> Self {
        let keep = keep.min(Capacity::of_process().dialled / 2).max(1);
        Self { endpoint, keep, active: Semaphore::new(keep), slots: Mutex::default() }
    }

    /// Asks `expected` at `host:port`, for `patience` in all: turn, connection and answer.
    ///
    /// A client that broke since its last use is replaced and the request sent once more, so that a request may reach the
    /// peer twice: it must not matter.
    ///
    /// # Errors
    /// As [`Client::dial`] and [`Client::call`].
    pub async fn call(
        &self,
        address: &str,
        expected: MemberId,
        request: &[u8],
        patience: Duration,
    ) -> Result<Vec<u8>, NetError> {
        let mut answer = Vec::new();
        let mut take = |given| {
            answer = given;
            true
        };
        let request = |number| (number == 0).then_some(request);
        let asked = time::timeout(patience, self.call_each(address, expected, &request, patience, &mut take));
        let asked = asked.await;
        // Where it took too long, nobody has trimmed.
        self.slots().trim(self.keep);
        asked.unwrap_or_else(|_| Err(NetError::new(address, Cause::Timeout("an answer"))))?;
        Ok(answer)
    }

    /// The same for a series, as [`Client::call_each`]: requests by number, from 0, up to the first that is none. `patience` is
    /// for each answer, once it is the series' turn.
    ///
    /// # Errors
    /// As [`Pool::call`].
    pub async fn call_each<R: AsRef<[u8]> + Send>(
        &self,
        address: &str,
        expected: MemberId,
        request: &(impl Fn(usize) -> Option<R> + Sync),
        patience: Duration,
        take: &mut (impl FnMut(Vec<u8>) -> bool + Send),
    ) -> Result<(), NetError> {
        let client = self.slots().take((address.to_owned(), expected));
        let asking = async {
            // The client before the turn: whoever waits for a slow peer takes no turn from requests to others.
            let mut client = client.lock().await;
            let _turn = self.active.acquire().await.expect("the semaphore is never closed");
            let mut taken = 0;
            // A channel that was dialled before a member's relay was there would stay on the steward's line.
            client.take_if(|kept| kept.may_go_past_steward(&self.endpoint));
            if let Some(kept) = client.as_mut() {
                let count_and_take = |answer| {
                    taken += 1;
                    take(answer)
                };
                let asked = kept.call_each((0..).map_while(request), patience, count_and_take).await;
                // Only a channel that broke is worth a second try: an idle one breaks whenever its peer restarts.
                // What was refused or took too long would be so again.
                if !asked.as_ref().is_err_and(NetError::is_closed) {
                    client.take_if(|kept| !kept.is_usable());
                    return asked;
                }
            }
            // Before dialling, so that a dial which fails or is cancelled leaves no broken client behind.
            *client = None;
            let mut fresh = Client::dial(address, &self.endpoint, Some(expected)).await?;
            let asked = fresh.call_each((taken..).map_while(request), patience, take).await;
            *client = Some(fresh).filter(Client::is_usable);
            asked
        };
        let asked = asking.await;
        // Before trimming, which takes a client for idle where only its slot holds it.
        drop(client);
        self.slots().trim(self.keep);
        asked
    }

    /// Whether there is a connection to a member there now, or it is being dialled.
    pub fn is_connected(&self, address: &str, member: MemberId) -> bool {
        let slots = self.slots();
        let slot = slots.slots.get(&(address.to_owned(), member));
        // Whoever holds a client dials, or waits for an answer.
        slot.is_some_and(|slot| slot.client.try_lock().map_or(true, |client| client.is_some()))
    }

    /// CHAN-13: closes the connection that is idle for longest, because the system has no descriptor left; whether there was
    /// one. It is dialled again when it is needed.
    pub fn relieve(&self) -> bool {
        let mut slots = self.slots();
        // Whoever holds a client dials, or waits for an answer.
        let connected = |slot: &Slot| slot.client.try_lock().is_ok_and(|client| client.is_some());
        let oldest = slots.idle().filter(|(_, slot)| connected(slot)).min_by_key(|(_, slot)| slot.used);
        let oldest = oldest.map(|(key, _)| key.clone());
        oldest.is_some_and(|oldest| slots.slots.remove(&oldest).is_some())
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        lock(&self.slots)
    }
}

impl Slots {
    fn take(&mut self, key: Key) -> SharedClient {
        self.clock += 1;
        let slot = self.slots.entry(key).or_insert_with(|| Slot { client: SharedClient::default(), used: 0 });
        slot.used = self.clock;
        slot.client.clone()
    }

    /// Drops idle slots, the least recently used first, until `keep` are left or none is idle.
    fn trim(&mut self, keep: usize) {
        let oldest =
            |slots: &Self| slots.idle().min_by_key(|(_, slot)| slot.used).map(|(key, _)| key.clone());
        while self.slots.len() > keep
            && let Some(oldest) = oldest(self)
        {
            self.slots.remove(&oldest);
        }
    }

    /// Those that nobody uses now.
    fn idle(&self) -> impl Iterator<Item = (&Key, &Slot)> {
        self.slots.iter().filter(|(_, slot)| Arc::strong_count(&slot.client) == 1)
    }
}
