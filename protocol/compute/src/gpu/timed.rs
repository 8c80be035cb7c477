//! A device that waits after each kernel and says how long it took: for measuring.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use muster_core::lock::lock;

use super::driver::{Argument, Description, Driver, Memory, Outcome, Place, Slot};

/// Launches of each kernel and copies of each kind, and the time they took.
pub type Times = Arc<Mutex<BTreeMap<&'static str, (u64, Duration)>>>;

pub(super) struct Timed {
    pub driver: Box<dyn Driver>,
    pub times: Times,
}

impl Timed {
    fn time<T>(&mut self, what: &'static str, run: impl FnOnce(&mut dyn Driver) -> Outcome<T>) -> Outcome<T> {
        self.driver.finish()?;
        let begun = Instant::now();
        let done = run(&mut *self.driver)?;
        self.driver.finish()?;
        let passed = begun.elapsed();
        let mut times = lock(&self.times);
        let (count, sum) = times.entry(what).or_default();
        (*count, *sum) = (*count + 1, *sum + passed);
        Ok(done)
    }
}

impl Driver for Timed {
    fn description(&self) -> &Description {
        self.driver.description()
    }

    fn allocate(&mut self, bytes: usize) -> Outcome<Memory> {
        self.driver.allocate(bytes)
    }

    fn release(&mut self, memory: Memory) {
        self.driver.release(memory);
    }

    fn upload(&mut self, to: Place, bytes: &[u8]) -> Outcome<()> {
        self.time("upload", |driver| driver.upload(to, bytes))
    }

    fn download(&mut self, from: Place, bytes: &mut [u8]) -> Outcome<()> {
        self.time("download", |driver| driver.download(from, bytes))
    }

    fn stage(&mut self, slot: Slot, from: Place, bytes: usize) -> Outcome<()> {
        self.time("stage", |driver| driver.stage(slot, from, bytes))
    }

    fn staged(&mut self, slot: Slot) -> Outcome<&[u8]> {
        self.driver.staged(slot)
    }

    fn clear(&mut self, at: Place, values: usize) -> Outcome<()> {
        self.time("clear", |driver| driver.clear(at, values))
    }

    fn launch(&mut self, kernel: &'static str, groups: u64, arguments: &[Argument]) -> Outcome<()> {
        self.time(kernel, |driver| driver.launch(kernel, groups, arguments))
    }

    fn finish(&mut self) -> Outcome<()> {
        self.driver.finish()
    }
}
