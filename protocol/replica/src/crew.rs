//! Several arithmetics at work at once: the leaves of a round do not depend on each other.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use muster_compute::{Backend, Exact, Path, buffers};
use muster_core::assign;
use muster_core::error::Misuse;
use muster_core::ids::{Digest, Leaf, Row, RowSet, ShardId};
use muster_core::layout::Layout;
use muster_core::lock::lock;
use muster_core::manifest::Manifest;
use muster_core::messages::round::Commit;
use muster_core::messages::round::Route;
use muster_core::regime::Regime;
use muster_core::state::{LeafTask, State};
use muster_store::dataset::Dataset;
use muster_store::error::StoreError;

use crate::held::HeldState;
use crate::memory::available;

/// Computes whole contributions, as many leaves (of local updates, contributions) at once as threads and memory allow.
///
/// A leaf on n threads waits for its slowest window again and again; n leaves on a thread each do not wait.
pub struct Crew {
    manifest: Arc<Manifest>,
    dataset: Arc<Dataset>,
    workers: Vec<LeafWorker>,
}

/// What leaves are a function of.
#[derive(Clone, Copy)]
struct Source<'a> {
    manifest: &'a Manifest,
    dataset: &'a Dataset,
    state: &'a State,
}

struct LeafWorker {
    arithmetic: Box<dyn Backend>,
    leaf: Vec<i32>,
}

impl Crew {
    /// On this many threads (at least one) along `path`, or along the fastest one.
    ///
    /// # Errors
    /// [`Misuse`] when this machine cannot compute in defined bits.
    pub fn new(
        manifest: Arc<Manifest>,
        dataset: Arc<Dataset>,
        threads: usize,
        path: Option<Path>,
    ) -> Result<Self, Misuse> {
        let threads = threads.max(1);
        // Half of what is left: the state and what others fetch are in memory as well.
        let at_once = at_once(&manifest, threads, available().map(|bytes| bytes / 2));
        let worker = || Ok(LeafWorker::new(Box::new(Exact::new(threads / at_once, path)?)));
        let workers = (0..at_once).map(|_| worker()).collect::<Result<_, Misuse>>()?;
        Ok(Self { manifest, dataset, workers })
    }

    /// The same on a device alone, which has defined bits.
    pub fn with_device(self, device: Box<dyn Backend>) -> Self {
        Self { workers: vec![LeafWorker::new(device)], ..self }
    }

    /// Threads in use at most.
    pub fn threads(&self) -> usize {
        self.workers.iter().map(|worker| worker.arithmetic.threads()).sum()
    }

    /// Sum and loss of each contribution, all its leaves recomputed on its path of the state. `told` is called after each
    /// leaf, on any thread.
    ///
    /// # Errors
    /// What the disk reports, where a row lies there.
    pub fn sums(
        &mut self,
        held: &HeldState,
        commits: &[&Commit],
        told: &(dyn Fn() + Sync),
    ) -> Result<Vec<(Vec<i32>, i64)>, StoreError> {
        let layout = Layout::of_run(&self.manifest);
        let rows: BTreeSet<Row> = commits.iter().map(|commit| commit.row()).collect();
        let mut sums = vec![(Vec::new(), 0); commits.len()];
        // Row by row: no two paths are in memory at once.
        for row in rows {
            let own: Vec<usize> = (0..commits.len()).filter(|index| commits[*index].row() == row).collect();
            let chosen: Vec<&Commit> = own.iter().map(|index| commits[*index]).collect();
            let computed = if held.state.held().eq(layout.path(row)) {
                self.path_sums(&held.state, &chosen, told)?
            } else {
                let path: Vec<ShardId> = layout.path(row).collect();
                let second = Regime::of(&self.manifest).begins_with_moments();
                self.path_sums(&held.select(&path, second)?, &chosen, told)?
            };
            own.into_iter().zip(computed).for_each(|(index, sum)| sums[index] = sum);
        }
        Ok(sums)
    }

    fn path_sums(
        &mut self,
        path: &State,
        commits: &[&Commit],
        told: &(dyn Fn() + Sync),
    ) -> Result<Vec<(Vec<i32>, i64)>, StoreError> {
        let (manifest, dataset) = (&*self.manifest, &*self.dataset);
        let source = Source { manifest, dataset, state: path };
        let length = Layout::of_run(manifest).planes() * path.parameters.len();
        let sums: Vec<_> = commits.iter().map(|_| Mutex::new((vec![0i32; length], 0i64))).collect();
        // LOCAL-8: a segment begins where the one before it ends, so that one worker has them all.
        let chained = Regime::of(manifest).recomputes_chains();
        let at_once = |commit: &Commit| if chained { commit.leaves.max(1) } else { 1 };
        let jobs = commits.iter().enumerate().flat_map(|(index, commit)| {
            let firsts = (0..commit.leaves).step_by(at_once(commit) as usize);
            firsts.map(move |first| (index, *commit, first..first + at_once(commit)))
        });
        let jobs = Mutex::new(jobs);
        let unread = Mutex::new(None);
        let work = |worker: &mut LeafWorker| {
            loop {
                let job = lock(&jobs).next();
                let Some((index, commit, positions)) = job else { return };
                let computed = worker.leaves(source, commit, positions, &mut |q, loss| {
                    if let Some(sum) = sums.get(index) {
                        let mut sum = lock(sum);
                        // Integers: the order in which workers finish changes no bit of the sum.
                        sum.0.iter_mut().zip(q).for_each(|(sum, q)| *sum = sum.wrapping_add(*q));
                        sum.1 = sum.1.wrapping_add(loss);
                    }
                    told();
                });
                if let Err(error) = computed {
                    return *lock(&unread) = Some(error);
                }
            }
        };
        let work = &work;
        std::thread::scope(|scope| {
            for worker in &mut self.workers {
                scope.spawn(move || work(worker));
            }
        });
        if let Some(error) = lock(&unread).take() {
            return Err(error);
        }
        let sum = |sum: Mutex<_>| sum.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(sums.into_iter().map(sum).collect())
    }
}

impl LeafWorker {
    fn new(arithmetic: Box<dyn Backend>) -> Self {
        Self { arithmetic, leaf: Vec::new() }
    }

    /// Recomputes leaves of a contribution, and gives the integers and the loss of each.
    fn leaves(
        &mut self,
        source: Source<'_>,
        commit: &Commit,
        positions: Range<u32>,
        take: &mut dyn FnMut(&[i32], i64),
    ) -> Result<(), StoreError> {
        let Source { manifest, dataset, state } = source;
        let round_seed = assign::round_seed(manifest.run(), commit.round, &commit.state);
        let spare = Mutex::new(std::mem::take(&mut self.leaf));
        let mut unread = None;
        let mut tasks = positions.map_while(|position| {
            let leaf = assign::leaf(commit.slot, commit.seats, position);
            let windows = leaf_windows(manifest, dataset, &round_seed, leaf, commit.route.as_ref());
            let windows = windows.map_err(|error| unread = Some(error)).ok()?;
            Some(LeafTask { state, round_seed, leaf, windows, q: std::mem::take(&mut lock(&spare)) })
        });
        self.arithmetic.leaves(manifest, &mut tasks, &mut |q, loss| {
            take(&q, loss);
            *lock(&spare) = q;
        });
        self.leaf = spare.into_inner().unwrap_or_else(PoisonError::into_inner);
        unread.map_or(Ok(()), Err)
    }
}

/// The windows of a leaf (ASSIGN-3, ASSIGN-10).
///
/// # Errors
/// What the text's file reports.
pub fn leaf_windows(
    manifest: &Manifest,
    dataset: &Dataset,
    seed: &Digest,
    leaf: Leaf,
    route: Option<&Route>,
) -> Result<Vec<Vec<u32>>, StoreError> {
    let sequence = manifest.model.sequence;
    let mut unread = None;
    let row_of = &mut |window, open: RowSet| {
        // What cannot be read once is not tried for each candidate.
        let read = unread.is_none().then(|| dataset.row_of(window, sequence, |row| open.contains(row)))?;
        read.map_err(|error| unread = Some(error)).ok().flatten()
    };
    let indices = assign::leaf_windows(manifest, seed, leaf, route, row_of);
    if let Some(error) = unread {
        return Err(error);
    }
    // A route with no open row is nobody's: its windows are those of a state with one row.
    let indices = indices
        .unwrap_or_else(|| assign::windows(seed, leaf, manifest.windows_of_leaf(), manifest.windows()));
    dataset.windows(&indices, sequence)
}

/// How many leaves are computed at once: as many as there are threads, fewer where their buffers do not fit into
/// `room` bytes.
fn at_once(manifest: &Manifest, threads: usize, room: Option<u64>) -> usize {
    // Of a leaf its integers; of a chain the state after the steps, how far it has moved, and the integers of both planes, of
    // the segment and of those before it.
    let vectors = if Regime::of(manifest).recomputes_chains() { 8 } else { 1 };
    let leaf = manifest.model.parameters().saturating_mul(4 * vectors);
    let needed = |count: usize| {
        let each = buffers(&manifest.model, &manifest.training, threads / count).saturating_add(leaf);
        each.saturating_mul(count as u64)
    };
    let fits = |count: &usize| room.is_none_or(|room| needed(*count) <= room);
    // Counts that divide the threads: with others, some cores would have nothing to compute.
    (1..=threads).rev().filter(|count| threads.is_multiple_of(*count)).find(fits).unwrap_or(1)
}

/// Does independent things on several threads; the results are in order of the things.
pub(crate) fn spread<T: Send, R: Send>(
    threads: usize,
    things: Vec<T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let results: Vec<Mutex<Option<R>>> = things.iter().map(|_| Mutex::new(None)).collect();
    let things = Mutex::new(things.into_iter().zip(&results));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let next = lock(&things).next();
                    let Some((thing, slot)) = next else { return };
                    let result = work(thing);
                    *lock(slot) = Some(result);
                }
            });
        }
    });
    drop(things);
    let result = |slot: Mutex<Option<R>>| slot.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.into_iter().filter_map(result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order() {
        for threads in 1..5 {
            let doubled = spread(threads, (0..100).collect(), |value: i32| 2 * value);
            assert_eq!(doubled, (0..200).step_by(2).collect::<Vec<_>>());
        }
        assert!(spread(3, Vec::<i32>::new(), |value| value).is_empty());
    }
}
