//! Places: work that takes long is done a little at a time, and the places for it are divided by member.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use muster_core::ids::MemberId;
use muster_core::lock::lock;
use tokio::sync::oneshot;

use super::turns::{Rank, Turns};

/// A number of places, at most one of them for each member at a time.
pub struct Places {
    state: Mutex<State>,
}

struct State {
    free: usize,
    /// Places that only what the round waits for may take.
    reserved: usize,
    busy: BTreeSet<MemberId>,
    turns: Turns<oneshot::Sender<Place>>,
}

/// A place, until it is dropped.
pub struct Place {
    /// None once it was given back.
    of: Option<Arc<Places>>,
    member: MemberId,
}

impl Places {
    /// So many places, of which so many only the round has.
    pub fn new(places: usize, reserved: usize) -> Arc<Self> {
        let state = State { free: places, reserved, busy: BTreeSet::new(), turns: Turns::default() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Waits for a place; `None` if it will never have one.
    pub async fn take(self: &Arc<Self>, rank: Rank, member: MemberId) -> Option<Place> {
        let (sender, receiver) = oneshot::channel();
        self.state().turns.push(rank, member, sender);
        self.give();
        receiver.await.ok()
    }

    /// Does work that takes long beside the threads of the network, once a member has a place for it; `None` if it never has one,
    /// or if the work panics.
    pub async fn work<T: Send + 'static>(
        self: &Arc<Self>,
        rank: Rank,
        member: MemberId,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        // Before the thread is taken: what waits for its turn must not take all threads that block.
        let place = self.take(rank, member).await?;
        let work = tokio::task::spawn_blocking(move || {
            // Until it is done, also where nobody waits for it any more.
            let _place = place;
            work()
        });
        work.await.ok()
    }

    /// Gives free places to those whose turn it is.
    fn give(self: &Arc<Self>) {
        loop {
            let mut guard = self.state();
            let State { free, reserved, busy, turns } = &mut *guard;
            let enough = |rank| *free > if rank == Rank::Round { 0 } else { *reserved };
            let next = turns.pop(|rank, member| enough(rank) && !busy.contains(member));
            let Some((member, sender)) = next else { return };
            *free -= 1;
            busy.insert(member);
            drop(guard);
            // Whoever waited may have gone: then its place is given back at once, and to the next one in this loop.
            if let Err(mut place) = sender.send(Place { of: Some(self.clone()), member }) {
                place.of = None;
                self.free(&member);
            }
        }
    }

    fn free(&self, member: &MemberId) {
        let mut state = self.state();
        state.free += 1;
        state.busy.remove(member);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Places that nobody has.
    #[cfg(test)]
    pub(crate) fn there(&self) -> usize {
        self.state().free
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(places) = self.of.take() {
            places.free(&self.member);
            places.give();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_member_has_one_place_and_the_round_always_finds_one() {
        let places = Places::new(3, 1);
        let [one, two, three] = [1, 2, 3].map(|name| MemberId([name; 32]));
        let first = places.take(Rank::Member, one).await.unwrap();
        let second = places.take(Rank::Member, two).await.unwrap();
        let waits = |rank, member| {
            let places = places.clone();
            tokio::spawn(async move { places.take(rank, member).await })
        };
        let (again, other) = (waits(Rank::Member, one), waits(Rank::Member, three));
        let gone = waits(Rank::Round, one);
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        assert!(!again.is_finished() && !other.is_finished() && !gone.is_finished());
        let urgent = places.take(Rank::Round, three).await.unwrap();
        assert_eq!(places.there(), 0);
        gone.abort();
        assert!(gone.await.is_err_and(|error| error.is_cancelled()));
        // Two are free again: one for the member whose turn comes after the last one's, and one that only the round has.
        drop((first, urgent));
        let other = other.await.unwrap().unwrap();
        assert!(!again.is_finished());
        drop(second);
        drop((other, again.await.unwrap()));
        assert_eq!(places.there(), 3, "also the place of whoever went");
    }
}
