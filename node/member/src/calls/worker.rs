//! The thread that computes calls, one after the other.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_compute::{Exact, Path, Reader};
use muster_core::codec::List;
use muster_core::ids::{Digest, Row, ShardId};
use muster_core::lock::lock;
use muster_core::manifest::Manifest;
use muster_core::messages::call::{Answer, Ask, fixed, logits_digest};
use muster_core::messages::wire::Answered;
use muster_core::sign::Identity;
use muster_core::state::State;
use muster_replica::{Replica, process};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::conduct::{AskedCall, NodeConduct};

/// How long the thread waits for the next call before it ends.
const IDLE: Duration = Duration::from_secs(10);

/// Where the states are that a member keeps.
pub(crate) trait States: Send + Sync + 'static {
    /// The path of this row in the state with this root.
    fn at(&self, root: &Digest, row: Row) -> Option<Arc<State>>;
    /// The oldest one.
    fn oldest(&self) -> Option<Arc<State>>;
}

impl States for Mutex<Replica> {
    fn at(&self, root: &Digest, row: Row) -> Option<Arc<State>> {
        let (kept, path) = {
            let replica = lock(self);
            (replica.state_at(root)?, replica.layout().path(row).collect::<Vec<ShardId>>())
        };
        kept.shards(&path)
    }

    fn oldest(&self) -> Option<Arc<State>> {
        let kept = {
            let replica = lock(self);
            let root = replica.states_at_hand().next()?;
            replica.state_at(&root)?
        };
        kept.near()
    }
}

/// What answers are made with.
pub(crate) struct Holder {
    pub(crate) identity: Arc<Identity>,
    pub(crate) conduct: Arc<dyn NodeConduct>,
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) states: Arc<dyn States>,
    /// How the kernels compute.
    pub(crate) path: Option<Path>,
}

/// A call on its way to the thread. It holds the turn until it is answered.
pub(super) struct Job {
    pub(super) ask: Ask,
    /// Of the signed question.
    pub(super) digest: Digest,
    pub(super) answer: oneshot::Sender<Outcome>,
    pub(super) turn: OwnedSemaphorePermit,
}

/// What becomes of a call.
pub(super) enum Outcome {
    Answered(Box<Answered>),
    Refused(&'static str),
    /// Nothing is said: only an attack of the rehearsal does that.
    Silence,
}

/// Starts the thread. It ends once nobody has called for a while, and gives its memory back.
pub(super) fn start(holder: Arc<Holder>) -> io::Result<SyncSender<Job>> {
    let (sender, jobs) = sync_channel(2);
    std::thread::Builder::new().name("calls".into()).spawn(move || {
        process::thread_gives_way();
        work(&holder, &jobs);
    })?;
    Ok(sender)
}

fn work(holder: &Holder, jobs: &Receiver<Job>) {
    // Of one thread: calls take nothing that the leaves wait for.
    let Ok(mut exact) = Exact::new(1, holder.path) else { return };
    let mut next = jobs.recv().ok();
    while let Some(first) = next.take() {
        let root = first.ask.root;
        let row = first.ask.row;
        let Some(state) = holder.states.at(&root, row) else {
            end(first, Outcome::Refused("this state is not held here"));
            next = jobs.recv_timeout(IDLE).ok();
            continue;
        };
        // Packed once for all calls of one root.
        let mut reader = exact.reader(&holder.manifest, &state.parameters);
        let mut job = Some(first);
        while let Some(call) = job.take_if(|job| job.ask.root == root && job.ask.row == row) {
            let outcome = holder.outcome(&mut reader, &call);
            end(call, outcome);
            job = jobs.recv_timeout(IDLE).ok();
        }
        next = job;
    }
}

/// The turn first: whoever reads the answer may call again at once.
fn end(job: Job, outcome: Outcome) {
    let Job { answer, turn, .. } = job;
    drop(turn);
    let _ = answer.send(outcome);
}

impl Holder {
    fn outcome(&self, reader: &mut Reader<'_>, job: &Job) -> Outcome {
        let Job { ask, digest, .. } = job;
        let logits = integers(reader, ask);
        let older = || {
            let state = self.states.oldest()?;
            let mut exact = Exact::new(1, self.path).ok()?;
            Some(integers(&mut exact.reader(&self.manifest, &state.parameters), ask))
        };
        let call = AskedCall { ask, older: &older };
        let Some(logits) = self.conduct.answer(&call, logits) else { return Outcome::Silence };
        let answer = Answer { ask: *digest, logits: logits_digest(&logits) };
        let answer = self.identity.sign(self.manifest.run(), &answer);
        match List::new(logits) {
            Ok(logits) => Outcome::Answered(Box::new(Answered { answer, logits })),
            Err(_) => Outcome::Refused("the logits do not fit into one answer"),
        }
    }
}

/// CALL-2 of what CALL-4 gives.
fn integers(reader: &mut Reader<'_>, ask: &Ask) -> Vec<i32> {
    reader.last(&ask.tokens, ask.positions.into()).into_iter().map(fixed).collect()
}
