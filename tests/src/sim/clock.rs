//! Virtual time: what happens next, and when.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use muster_core::hash::below;
use muster_core::ids::MemberId;
use muster_core::messages::round::PartResult;
use muster_core::messages::wire::{Notice, Request};
use muster_roles::steward::accusation::Allegation;
use muster_roles::steward::exhibits::OwedContribution;
use muster_roles::steward::hearing::Matter;
use muster_roles::verifier::audits::{Done, Work};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use super::experts::Wanted;

/// Something that arrives.
pub(super) enum Event {
    /// New records, at a node.
    Records(usize),
    /// A node that was not there from the beginning comes.
    Join(usize),
    /// A node has fetched the row that was drawn for it.
    Fetched(usize, Wanted),
    /// A request, at the steward.
    Ask(MemberId, Box<Request>),
    /// News on the board, at a node.
    Shown(usize),
    /// The steward has examined an accusation.
    Hear(Box<Allegation>, Box<Matter>),
    /// The steward has reduced a part again.
    Inspect(Box<Allegation>, Box<Matter>),
    /// The steward has fetched a contribution.
    Exhibit(OwedContribution),
    /// The steward has looked into a convict's past.
    Measure(MemberId),
    /// Nobody has shown the steward the values of a result.
    Unavailable(Box<PartResult>),
    /// The steward has applied a round's results.
    Applied,
    /// The steward notices that a channel is closed.
    Gone(MemberId),
    /// A member has found the steward again.
    Back(MemberId),
    /// A timer of the steward.
    Tick,
    /// A step of an audit, at the audited node.
    Asked(usize, Box<Notice>),
    /// News, at a verifier.
    Watch(usize),
    /// A process of a verifier has computed something.
    Worked(usize, u32, Box<Work>, Box<Done>),
    /// A timer of a verifier.
    Alarm(usize),
}

impl Event {
    /// Whether a process of the steward's has it under way, which is gone when that is killed.
    fn is_work(&self) -> bool {
        matches!(
            self,
            Self::Applied
                | Self::Unavailable(_)
                | Self::Hear(..)
                | Self::Inspect(..)
                | Self::Exhibit(_)
                | Self::Measure(_)
        )
    }

    /// Something that a member says for the board.
    pub(super) fn notice(from: MemberId, notice: Notice) -> Self {
        Self::Ask(from, Box::new(Request::Notice(notice)))
    }
}

/// Events in order of their times, and of their making where times are equal.
pub(super) struct Clock {
    events: BTreeMap<u64, Event>,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    next: u64,
    now: u64,
    random: ChaCha8Rng,
    tick: Option<u64>,
}

impl Clock {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            events: BTreeMap::new(),
            queue: BinaryHeap::new(),
            next: 0,
            now: 0,
            random: ChaCha8Rng::seed_from_u64(seed),
            tick: None,
        }
    }

    /// Milliseconds that have passed.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// Lets an event happen `least` milliseconds from now, or up to `spread` later.
    pub(super) fn after(&mut self, least: u64, spread: u64, event: Event) {
        let delay = least + below(self.random.next_u64(), spread);
        self.at(self.now + delay, event);
    }

    /// A uniform number below this.
    pub(super) fn draw(&mut self, below_this: u64) -> u64 {
        below(self.random.next_u64(), below_this)
    }

    /// Lets events happen one after the other, the first of them like [`Self::after`].
    pub(super) fn after_all(&mut self, least: u64, spread: u64, events: Vec<Event>) {
        let first = self.now + least + below(self.random.next_u64(), spread);
        (first..).zip(events).for_each(|(time, event)| self.at(time, event));
    }

    /// Sees to it that the steward looks at its timers at this time, or before.
    pub(super) fn tick_at(&mut self, time: u64) {
        if time > self.now && self.tick.is_none_or(|tick| time < tick) {
            self.tick = Some(time);
            self.at(time, Event::Tick);
        }
    }

    /// Drops what the steward has under way.
    pub(super) fn drop_work(&mut self) {
        self.events.retain(|_, event| !event.is_work());
    }

    /// The next event; time moves on to it.
    pub(super) fn next(&mut self) -> Option<Event> {
        loop {
            let Reverse((time, number)) = self.queue.pop()?;
            // What was dropped takes no time.
            let Some(event) = self.events.remove(&number) else { continue };
            self.now = time;
            if self.tick.is_some_and(|tick| tick <= time) {
                self.tick = None;
            }
            return Some(event);
        }
    }

    /// Lets an event happen at this time.
    pub(super) fn at(&mut self, time: u64, event: Event) {
        self.events.insert(self.next, event);
        self.queue.push(Reverse((time, self.next)));
        self.next += 1;
    }
}
