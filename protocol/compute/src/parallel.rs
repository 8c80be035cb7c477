//! Independent tasks over a few threads.

use std::sync::Mutex;

use muster_core::ieee::require_ieee;
use muster_core::lock::lock;

/// Runs every task once, each with the buffers of the thread that takes it; one worker runs them in place.
///
/// Which thread takes which task is left to chance: tasks must not depend on each other or on what a worker's
/// buffers held before.
///
/// # Panics
/// When a task does, or when a thread's floating-point mode is not the IEEE default.
pub(crate) fn each<W: Send, T: Send>(
    workers: &mut [W],
    tasks: impl Iterator<Item = T> + Send,
    run: impl Fn(&mut W, T) + Sync,
) {
    let Some((mine, others)) = workers.split_first_mut() else { return };
    if others.is_empty() {
        return tasks.for_each(|task| run(mine, task));
    }
    let tasks = Mutex::new(tasks);
    let work = |worker: &mut W| {
        // ARITH-1: each thread has a mode of its own, and another one's bits would be signed all the same.
        require_ieee();
        loop {
            // A statement of its own: within the loop's head the lock would be held while the task runs.
            let next = lock(&tasks).next();
            let Some(task) = next else { return };
            run(worker, task);
        }
    };
    std::thread::scope(|scope| {
        for other in others {
            scope.spawn(|| work(other));
        }
        work(mine);
    });
}

/// Cuts a slice into consecutive parts of these lengths.
pub(crate) fn parts<T>(
    mut rest: &mut [T],
    lengths: impl Iterator<Item = usize>,
) -> impl Iterator<Item = &mut [T]> {
    lengths.map(move |length| {
        let (part, tail) = std::mem::take(&mut rest).split_at_mut(length);
        rest = tail;
        part
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in 1..5 {
            let mut values = vec![0; 1000];
            let mut workers = vec![0; threads];
            let tasks = parts(&mut values, [300, 0, 699, 1].into_iter());
            each(&mut workers, tasks, |count, part| {
                *count += 1;
                part.iter_mut().for_each(|value| *value += 1);
            });
            assert!(values.iter().all(|value| *value == 1));
            assert_eq!(workers.iter().sum::<i32>(), 4);
        }
    }
}
