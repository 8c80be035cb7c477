//! Several devices of one member, which take leaves by turns: as fast as that many of the slowest.
//!
//! Each proves itself, draws leaves that it computes twice and leaves its turns to the processor where it fails, as if it were
//! alone. What is one after the other anyway (a chain of local steps, an evaluation) the first one computes.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Condvar, Mutex, PoisonError};

use muster_core::error::Misuse;
use muster_core::lock::lock;
use muster_core::manifest::Manifest;
use muster_core::state::{Arithmetic, LeafJob, LeafTask, State, Update};

use super::Gpu;
use crate::backend::Backend;
use crate::leaf::LeafTimes;

/// Some devices, at least one.
pub struct Fleet {
    first: Gpu,
    others: Vec<Gpu>,
}

/// What is left to compute, and whose turn it is.
struct Turns<'t, 'a> {
    tasks: &'t mut (dyn Iterator<Item = LeafTask<'a>> + Send),
    /// Leaves that were given out: the next one is for the device of this number, modulo how many there are.
    given: usize,
    /// Whether there are no more, or a device is gone.
    ended: bool,
}

/// The leaves of one device, while it computes.
struct OwnTurns<'t, 's, 'a> {
    turns: &'s Mutex<Turns<'t, 'a>>,
    passed: &'s Condvar,
    own: usize,
    devices: usize,
}

impl<'a> Iterator for OwnTurns<'_, '_, 'a> {
    type Item = LeafTask<'a>;

    fn next(&mut self) -> Option<LeafTask<'a>> {
        let mut turns = lock(self.turns);
        while !turns.ended && turns.given % self.devices != self.own {
            turns = self.passed.wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
        let next = if turns.ended { None } else { turns.tasks.next() };
        turns.given += 1;
        turns.ended |= next.is_none();
        self.passed.notify_all();
        next
    }
}

impl Drop for OwnTurns<'_, '_, '_> {
    /// Nobody waits for the turn of a device that is gone, be it by a panic.
    fn drop(&mut self) {
        lock(self.turns).ended = true;
        self.passed.notify_all();
    }
}

impl Fleet {
    /// These devices.
    pub(crate) fn new(first: Gpu, others: Vec<Gpu>) -> Self {
        Self { first, others }
    }

    fn all(&self) -> impl Iterator<Item = &Gpu> {
        std::iter::once(&self.first).chain(&self.others)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Gpu> {
        std::iter::once(&mut self.first).chain(&mut self.others)
    }
}

/// The leaves of all devices in order: one of each by turns, until the first has no more.
fn gather(found: &[Receiver<(Vec<i32>, i64)>], take: &mut dyn FnMut(Vec<i32>, i64)) {
    let leaves = found.iter().cycle().map_while(|device| device.recv().ok());
    leaves.for_each(|(q, loss)| take(q, loss));
}

impl Arithmetic for Fleet {
    fn initial(&mut self, manifest: &Manifest, calibration: &[Vec<u32>]) -> State {
        self.first.initial(manifest, calibration)
    }

    fn leaf(&mut self, manifest: &Manifest, job: &LeafJob<'_>, q: &mut [i32]) -> i64 {
        self.first.leaf(manifest, job, q)
    }

    fn leaves<'a>(
        &mut self,
        manifest: &Manifest,
        tasks: &mut (dyn Iterator<Item = LeafTask<'a>> + Send),
        take: &mut dyn FnMut(Vec<i32>, i64),
    ) {
        if manifest.local().is_some() {
            return self.first.leaves(manifest, tasks, take);
        }
        let devices = 1 + self.others.len();
        let (turns, passed) = (Mutex::new(Turns { tasks, given: 0, ended: false }), Condvar::new());
        std::thread::scope(|scope| {
            let mut found = Vec::new();
            for (own, gpu) in self.all_mut().enumerate() {
                // A device that is ahead waits: who waits for a turn or for room has given everything before.
                let (done, device): (SyncSender<(Vec<i32>, i64)>, _) = sync_channel(1);
                found.push(device);
                let mut own = OwnTurns { turns: &turns, passed: &passed, own, devices };
                // Where nobody gathers them any more, they are lost with the rest.
                let mut give = move |q, loss| drop(done.send((q, loss)));
                scope.spawn(move || gpu.leaves(manifest, &mut own, &mut give));
            }
            gather(&found, take);
        });
    }

    fn apply(&mut self, manifest: &Manifest, state: &mut State, update: &Update) {
        self.first.apply(manifest, state, update);
    }

    fn evaluate(&mut self, manifest: &Manifest, state: &State, windows: &[Vec<u32>]) -> f64 {
        self.first.evaluate(manifest, state, windows)
    }

    fn logits(
        &mut self,
        manifest: &Manifest,
        state: &State,
        tokens: &[u32],
        positions: usize,
    ) -> Option<Vec<f32>> {
        self.first.logits(manifest, state, tokens, positions)
    }

    fn threads(&self) -> usize {
        self.first.threads()
    }
}

impl Backend for Fleet {
    fn gradient(&mut self, manifest: &Manifest, job: &LeafJob<'_>) -> &[f32] {
        self.first.gradient(manifest, job)
    }

    /// Of all devices together, which compute at the same time.
    fn spent(&self) -> LeafTimes {
        let sum = |sum: LeafTimes, next: LeafTimes| LeafTimes {
            gradient: sum.gradient + next.gradient,
            grid: sum.grid + next.grid,
        };
        self.all().map(Backend::spent).fold(LeafTimes::default(), sum)
    }

    fn self_test(&mut self) -> Result<(), Misuse> {
        self.all_mut().try_for_each(Gpu::self_test)
    }

    fn describe(&self) -> String {
        self.all().map(Backend::describe).collect::<Vec<_>>().join(" and ")
    }

    fn doubt(&self) -> Option<&str> {
        self.all().find_map(Backend::doubt)
    }
}
