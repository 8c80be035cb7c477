//! Answering calls: what follows a text, computed beside the member's own work.
//!
//! A member's duties come first. One call is computed at a time, on one thread of its own, with a priority below that of
//! every other thread of this machine, so that calls take the time that training leaves; there is none of it in the
//! session's loop. The thread packs the parameters once for all calls of one root. It ends when nobody has called for
//! a while, and gives its memory back.

mod worker;

use std::collections::BTreeMap;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_core::ids::{MemberId, Round};
use muster_core::ledger::Ledger;
use muster_core::limits;
use muster_core::lock::lock;
use muster_core::messages::call::Ask;
use muster_core::messages::wire::Response;
use muster_core::sign::Signed;
use muster_net::serve::Unanswered;
use tokio::sync::{Semaphore, oneshot};

pub(super) use self::worker::Holder;
#[cfg(test)]
pub(super) use self::worker::States;
use self::worker::{Job, Outcome, start};

/// How long a call waits for its turn.
const TURN: Duration = Duration::from_secs(1);

/// The holder's side of calls.
pub(super) struct Calls {
    holder: Arc<Holder>,
    quotas: Mutex<Quotas>,
    /// Of members, and of strangers: a member waits for one call of theirs at most.
    turns: [Arc<Semaphore>; 2],
    worker: Mutex<Option<SyncSender<Job>>>,
}

/// Calls of this round, by asker; all strangers count as one, since keys cost nothing.
#[derive(Default)]
struct Quotas {
    round: Round,
    spent: BTreeMap<Option<MemberId>, u32>,
}

impl Quotas {
    /// CALL-8: whether this asker has a call left in this round. There are no more entries than members, and one.
    fn spend(&mut self, round: Round, asker: Option<MemberId>) -> bool {
        if round != self.round {
            *self = Self { round, spent: BTreeMap::new() };
        }
        let spent = self.spent.entry(asker).or_default();
        let left = *spent < limits::CALLS;
        *spent += u32::from(left);
        left
    }
}

impl Calls {
    pub(super) fn new(holder: Holder) -> Self {
        let (quotas, worker) = Default::default();
        let turns = [(); 2].map(|()| Arc::new(Semaphore::new(1)));
        Self { holder: Arc::new(holder), quotas, turns, worker }
    }

    /// Answers a call, or says why not.
    pub(super) async fn answer(
        &self,
        peer: MemberId,
        ledger: &Ledger,
        signed: &Signed<Ask>,
    ) -> Result<Response, Unanswered> {
        let refused = |why: &str| Err(Unanswered::Refused(why.into()));
        let ask = signed.verify(ledger.run())?;
        // CALL-8: otherwise whoever was asked once could use up the asker's quota elsewhere.
        if ask.author() != peer {
            return refused("a call is brought by whoever has signed it");
        }
        ask.check(ledger.manifest())?;
        // CALL-8: a false answer to any other question could not be brought to the steward.
        if !ledger.is_state_before(ask.round, &ask.root) {
            return refused("this is not the state before that round");
        }
        let asker = ledger.member(&peer).map(|member| member.id);
        // Before it waits: whoever has none left takes nobody's turn.
        if !lock(&self.quotas).spend(ledger.next_round(), asker) {
            return refused("no more calls in this round; try another holder");
        }
        let turns = self.turns[usize::from(asker.is_none())].clone();
        let Ok(Ok(turn)) = tokio::time::timeout(TURN, turns.acquire_owned()).await else {
            return refused("busy with other calls; try again");
        };
        let (answer, answered) = oneshot::channel();
        self.send(Job { ask: ask.into_inner(), digest: signed.digest(), answer, turn })?;
        match answered.await {
            Ok(Outcome::Answered(answered)) => Ok(Response::Answer(*answered)),
            Ok(Outcome::Refused(why)) => refused(why),
            Ok(Outcome::Silence) => std::future::pending().await,
            Err(_) => refused("the computation failed"),
        }
    }

    /// Hands a call to the thread, which is started where there is none.
    fn send(&self, job: Job) -> Result<(), Unanswered> {
        let mut worker = lock(&self.worker);
        let unsent = match worker.take() {
            Some(sender) => match sender.send(job) {
                Ok(()) => {
                    *worker = Some(sender);
                    return Ok(());
                }
                // It has ended, because nobody called for a while.
                Err(unsent) => unsent.0,
            },
            None => job,
        };
        let failed = || Unanswered::Refused("this holder has no thread for calls".into());
        let sender = start(self.holder.clone()).map_err(|_| failed())?;
        sender.send(unsent).map_err(|_| failed())?;
        *worker = Some(sender);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
