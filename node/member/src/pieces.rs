//! Serving the states that this member keeps for others, beside its own work.

use std::sync::Arc;
use std::time::Duration;

use muster_core::codec::Bytes;
use muster_core::ids::MemberId;
use muster_core::ledger::Ledger;
use muster_core::messages::offer::StateQuery;
use muster_core::messages::wire::Response;
use muster_net::serve::Unanswered;
use muster_replica::{Asker, Offers};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::conduct::NodeConduct;

/// Pieces that are read at once for members, and for strangers; and how long others wait for their turn.
const READERS: [usize; 2] = [2, 1];
const TURN: Duration = Duration::from_secs(1);

/// The states that this member keeps for others.
pub(super) struct Pieces {
    offers: Arc<Offers>,
    conduct: Arc<dyn NodeConduct>,
    turns: [Arc<Semaphore>; 2],
}

impl Pieces {
    pub(super) fn new(offers: Offers, conduct: Arc<dyn NodeConduct>) -> Self {
        Self {
            offers: Arc::new(offers),
            conduct,
            turns: READERS.map(|readers| Arc::new(Semaphore::new(readers))),
        }
    }

    /// STATE-10: keeps the state that this member is at, if others may fetch it. Written beside the work.
    pub(super) fn keep(&self) {
        if !self.offers.is_due() {
            return;
        }
        let offers = self.offers.clone();
        tokio::task::spawn_blocking(move || {
            // Others can serve it: no reason to end a membership.
            if let Err(error) = offers.keep() {
                tracing::warn!("the state is not kept for others: {}", error.brief());
            }
        });
    }

    /// Drops them all.
    pub(super) fn clear(&self) {
        self.offers.clear();
    }

    /// A piece of a state, or why there is none.
    pub(super) async fn answer(
        &self,
        peer: MemberId,
        ledger: &Ledger,
        query: StateQuery,
    ) -> Result<Response, Unanswered> {
        let asker = ledger.member(&peer).map_or(Asker::Stranger, |member| Asker::Member(member.id));
        let refused = |why: &str| Unanswered::Refused(why.into());
        let turns = &self.turns[usize::from(asker == Asker::Stranger)];
        let Ok(Ok(turn)) = timeout(TURN, turns.clone().acquire_owned()).await else {
            return Err(refused("busy with other pieces; ask another holder"));
        };
        let (offers, asked) = (self.offers.clone(), query.clone());
        let read = tokio::task::spawn_blocking(move || {
            // Held until it is read, also where nobody waits for it any more.
            let _turn = turn;
            offers.piece(asker, &asked)
        });
        let mut piece = read.await.map_err(|_| refused("the state cannot be read here"))??;
        match self.conduct.piece(&query, piece.bytes.into_inner()) {
            Some(bytes) => {
                piece.bytes = Bytes::new(bytes).map_err(|misuse| refused(&misuse.to_string()))?;
                Ok(Response::Piece(piece))
            }
            None => std::future::pending().await,
        }
    }
}
