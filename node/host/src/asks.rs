//! Requests that wait for the driver: divided by member, and those that the open round waits for first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use muster_core::ids::MemberId;
use muster_core::ledger::{Ledger, RoundView, Standing};
use muster_core::lock::lock;
use muster_core::messages::wire::{Notice, Request, Response};
use muster_keeper::shares::{Rank, Turns};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

/// Requests of one member that wait at most; more of them wait at their connections.
const OF_MEMBER: usize = 8;
/// Requests of all strangers together that do.
const OF_STRANGERS: usize = 64;

/// A request, and where its answer goes.
pub(super) struct Ask {
    /// Who asks, by the handshake.
    pub(super) peer: MemberId,
    /// What.
    pub(super) request: Box<Request>,
    /// Where the answer goes.
    pub(super) answer: oneshot::Sender<Response>,
    /// Given back when the driver takes it.
    _place: OwnedSemaphorePermit,
}

/// Requests that wait.
pub(super) struct Asks {
    state: Mutex<State>,
    come: Notify,
}

struct State {
    turns: Turns<Ask>,
    waiting: usize,
    members: BTreeMap<MemberId, Known>,
    strangers: Arc<Semaphore>,
}

/// What the ledger says of a member.
struct Known {
    rank: Rank,
    seated: bool,
    places: Arc<Semaphore>,
}

impl Asks {
    /// Nothing waits, and this ledger says who is who.
    pub(super) fn new(ledger: &Ledger) -> Arc<Self> {
        let strangers = Arc::new(Semaphore::new(OF_STRANGERS));
        let state = State { turns: Turns::default(), waiting: 0, members: BTreeMap::new(), strangers };
        let asks = Self { state: Mutex::new(state), come: Notify::new() };
        asks.learn(ledger);
        Arc::new(asks)
    }

    /// Takes note of who is a member, and who has a seat, by a ledger that has changed.
    pub(super) fn learn(&self, ledger: &Ledger) {
        let seats = ledger.current().map(RoundView::seats).unwrap_or_default();
        let mut state = self.state();
        for member in ledger.members() {
            let out = matches!(member.standing, Standing::Banned | Standing::Left);
            let rank = if out { Rank::Stranger } else { Rank::Member };
            let new = || Arc::new(Semaphore::new(OF_MEMBER));
            let known = state.members.entry(member.id);
            let known = known.or_insert_with(|| Known { rank, seated: false, places: new() });
            (known.rank, known.seated) = (rank, false);
        }
        for seat in seats {
            if let Some(known) = state.members.get_mut(&seat.member) {
                known.seated = known.rank == Rank::Member;
            }
        }
    }

    /// Has a request wait for the driver. It waits for its place first, so that nobody fills the memory. Gives what the
    /// answer comes by; `None` if there will be none.
    pub(super) async fn put(&self, peer: MemberId, request: Request) -> Option<oneshot::Receiver<Response>> {
        let places = {
            let state = self.state();
            let known = state.members.get(&peer).filter(|known| known.rank < Rank::Stranger);
            known.map_or(&state.strangers, |known| &known.places).clone()
        };
        let place = places.acquire_owned().await.ok()?;
        let (answer, answered) = oneshot::channel();
        let mut state = self.state();
        // Only now: it may have become a member, or been banned, while it waited.
        let rank = state.rank(&peer, &request);
        state.turns.push(rank, peer, Ask { peer, request: Box::new(request), answer, _place: place });
        state.waiting += 1;
        drop(state);
        self.come.notify_one();
        Some(answered)
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.state().waiting
    }

    /// The one whose turn it is.
    pub(super) fn take(&self) -> Option<Ask> {
        let mut state = self.state();
        let (_, ask) = state.turns.pop(|_, _| true)?;
        state.waiting = state.waiting.saturating_sub(1);
        Some(ask)
    }

    /// Waits until another one comes.
    pub(super) async fn come(&self) {
        self.come.notified().await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn rank(&self, peer: &MemberId, request: &Request) -> Rank {
        let Some(known) = self.members.get(peer) else { return Rank::Stranger };
        let of_round = matches!(
            request,
            Request::Commit(_)
                | Request::PutBlocks(_)
                | Request::InputBlocks(_)
                | Request::Delivered(_)
                | Request::Checked(_)
                | Request::Notice(Notice::Echo(_) | Notice::Result(_))
        );
        if known.seated && of_round { Rank::Round } else { known.rank }
    }
}

#[cfg(test)]
mod tests {
    use muster_core::ids::{Digest, Round};
    use muster_core::ledger::fixture::{Makers, Newcomer};
    use muster_core::manifest::fixture::tiny;
    use muster_core::messages::audit::FindingKind;
    use muster_core::messages::record::{Ban, Body};
    use muster_core::sign::Identity;

    use super::*;

    /// ROUND-37: whoever floods waits at its connections, and others are served in between.
    #[tokio::test]
    async fn round_37_a_flood_of_requests_waits_at_its_own_connections() {
        let [organiser, steward] = [1, 2].map(|name| MemberId([name; 32]));
        let asks = Asks::new(&Ledger::new(Arc::new(tiny(organiser, steward, 1, 1))));
        let [flood, seat] = [3, 4].map(|name| MemberId([name; 32]));
        for (member, seated) in [(flood, false), (seat, true)] {
            let places = Arc::new(Semaphore::new(OF_MEMBER));
            asks.state().members.insert(member, Known { rank: Rank::Member, seated, places });
        }
        let ask = |peer, request: Request| {
            let asks = asks.clone();
            tokio::spawn(async move { asks.put(peer, request).await.is_some() })
        };
        let floods: Vec<_> = (0..1000).map(|_| ask(flood, Request::StateOffer)).collect();
        let strangers: Vec<_> =
            (10..=250).map(|name| ask(MemberId([name; 32]), Request::StateOffer)).collect();
        while asks.waiting() < OF_MEMBER + OF_STRANGERS {
            tokio::task::yield_now().await;
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(asks.waiting(), OF_MEMBER + OF_STRANGERS);
        let query = muster_core::messages::wire::InputQuery {
            round: muster_core::ids::Round(0),
            member: seat,
            blocks: Default::default(),
        };
        assert!(ask(seat, Request::InputBlocks(query)).await.unwrap());
        assert_eq!(asks.take().unwrap().peer, seat, "what the round waits for is first");
        let order: Vec<MemberId> = (0..18).filter_map(|_| Some(asks.take()?.peer)).collect();
        let strange = order.iter().filter(|peer| **peer != flood).count();
        assert!((1..17).contains(&strange), "strangers get through, behind members: {strange}");
        floods.into_iter().chain(strangers).for_each(|task| task.abort());
    }

    /// How many requests of a member wait, of a thousand.
    async fn waiting_of(ledger: &Ledger, member: MemberId) -> usize {
        let asks = Asks::new(ledger);
        let tasks: Vec<_> = (0..1000)
            .map(|_| {
                let asks = asks.clone();
                tokio::spawn(async move { asks.put(member, Request::StateOffer).await.is_some() })
            })
            .collect();
        for _ in 0..2000 {
            tokio::task::yield_now().await;
        }
        tasks.into_iter().for_each(|task| task.abort());
        asks.waiting()
    }

    #[tokio::test]
    async fn round_37_the_ledger_says_whose_places_a_request_takes() {
        let makers = Makers::of(1, 2);
        let members = [3, 4].map(|secret| Identity::from_secret(&[secret; 32]));
        let mut ledger = makers.begin(makers.tiny(4, 2), members.iter().map(Newcomer::node));
        let [member, convict] = members.map(|member| member.id());
        assert_eq!(waiting_of(&ledger, convict).await, OF_MEMBER);
        let ban = Ban {
            culprit: convict,
            effective: ledger.first_round_without(),
            round: Round(0),
            finding: FindingKind::SumMismatch,
            evidence: Digest([1; 32]),
            accuser: makers.steward.id(),
            jury: Default::default(),
        };
        makers.seal(&mut ledger, Body::Ban(ban));
        assert_eq!(waiting_of(&ledger, convict).await, OF_STRANGERS, "it shares the places of strangers");
        assert_eq!(waiting_of(&ledger, member).await, OF_MEMBER);
    }
}
