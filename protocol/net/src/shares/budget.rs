//! Bytes of messages that are held at once, taken before they are buffered or made.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use muster_core::ids::MemberId;
use muster_core::limits;
use muster_core::lock::lock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::role::Role;
use crate::source::Source;

/// Bytes of one permit.
const UNIT: usize = 1024;
/// Bytes of requests that strangers send at once, all together.
const STRANGERS_IN: usize = 8 << 20;
/// Bytes of answers to strangers at once, all together.
const STRANGERS_OUT: usize = 24 << 20;
/// The part of these that one source may have.
const SOURCE_PART: usize = 3;
/// Bytes of requests of one member at once; of answers to it likewise: of each, four of the longest, with what sealing takes.
const MEMBER: usize = 4 * limits::MESSAGE_BYTES + (5 << 20);
/// What an answer to a member takes of them, whatever its length.
pub(super) const ANSWER: usize = MEMBER / 4;

/// Bytes one way: one's own share, within what all of one's kind have.
#[derive(Clone)]
pub(crate) struct Way {
    own: Arc<Semaphore>,
    all: Option<Arc<Semaphore>>,
}

/// Bytes that are taken, given back on drop.
#[derive(Default)]
pub(crate) struct Held {
    own: Option<OwnedSemaphorePermit>,
    all: Option<OwnedSemaphorePermit>,
}

impl Way {
    fn new(bytes: usize, all: Option<&Arc<Semaphore>>) -> Self {
        Self { own: Arc::new(Semaphore::new(bytes / UNIT)), all: all.cloned() }
    }

    /// Takes so many bytes; waits for them.
    pub(crate) async fn take(&self, bytes: usize) -> Held {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        // One's own first: whoever waits for itself holds nothing of the others'.
        let own = self.own.clone().acquire_many_owned(units).await.ok();
        let all = match &self.all {
            Some(all) => all.clone().acquire_many_owned(units).await.ok(),
            None => None,
        };
        Held { own, all }
    }
}

impl Held {
    /// Holds more.
    pub(crate) fn add(&mut self, more: Self) {
        for (held, more) in [(&mut self.own, more.own), (&mut self.all, more.all)] {
            *held = match (held.take(), more) {
                (Some(mut held), Some(more)) => {
                    held.merge(more);
                    Some(held)
                }
                (held, more) => held.or(more),
            };
        }
    }

    /// Gives back all but so many bytes.
    pub(crate) fn keep(&mut self, bytes: usize) {
        let units = bytes.div_ceil(UNIT);
        for held in [&mut self.own, &mut self.all].into_iter().flatten() {
            drop(held.split(held.num_permits().saturating_sub(units)));
        }
    }
}

/// Bytes both ways, and the longest request.
#[derive(Clone)]
pub(crate) struct Allowance {
    pub(crate) role: Role,
    pub(crate) incoming: Way,
    pub(crate) outgoing: Way,
}

impl Allowance {
    /// CHAN-16: the longest request.
    pub(crate) fn longest(&self) -> usize {
        match self.role {
            Role::Member => limits::MESSAGE_BYTES,
            Role::Stranger => limits::STRANGER_BYTES,
        }
    }
}

/// The allowances in use. What nobody uses is forgotten, so that there are no more than connections.
pub(crate) struct Budget {
    strangers: [Arc<Semaphore>; 2],
    members: Mutex<BTreeMap<MemberId, [Weak<Semaphore>; 2]>>,
    sources: Mutex<BTreeMap<Source, [Weak<Semaphore>; 2]>>,
}

impl Budget {
    pub(crate) fn new() -> Self {
        let strangers = [STRANGERS_IN, STRANGERS_OUT].map(|bytes| Arc::new(Semaphore::new(bytes / UNIT)));
        Self { strangers, members: Mutex::default(), sources: Mutex::default() }
    }

    /// Of a member: its own, whoever else is there.
    pub(crate) fn of_member(&self, member: MemberId) -> Allowance {
        let [incoming, outgoing] =
            shared(&mut lock(&self.members), member, || [Way::new(MEMBER, None), Way::new(MEMBER, None)]);
        Allowance { role: Role::Member, incoming, outgoing }
    }

    /// Of a stranger: its source's part of what all strangers have.
    pub(crate) fn of_stranger(&self, source: Source) -> Allowance {
        let [all_in, all_out] = &self.strangers;
        let make = || {
            [
                Way::new(STRANGERS_IN / SOURCE_PART, Some(all_in)),
                Way::new(STRANGERS_OUT / SOURCE_PART, Some(all_out)),
            ]
        };
        let [mut incoming, mut outgoing] = shared(&mut lock(&self.sources), source, make);
        (incoming.all, outgoing.all) = (Some(all_in.clone()), Some(all_out.clone()));
        Allowance { role: Role::Stranger, incoming, outgoing }
    }
}

/// The ways of one name, the same for all that use them at once.
fn shared<K: Ord>(
    known: &mut BTreeMap<K, [Weak<Semaphore>; 2]>,
    name: K,
    make: impl FnOnce() -> [Way; 2],
) -> [Way; 2] {
    if let Some([incoming, outgoing]) = known.get(&name)
        && let (Some(incoming), Some(outgoing)) = (incoming.upgrade(), outgoing.upgrade())
    {
        return [Way { own: incoming, all: None }, Way { own: outgoing, all: None }];
    }
    known.retain(|_, [one, _]| one.strong_count() > 0);
    let made = make();
    known.insert(name, [0, 1].map(|way: usize| Arc::downgrade(&made[way].own)));
    made
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn source(number: u8) -> Source {
        Source::of(Ipv4Addr::new(10, 0, 0, number).into())
    }

    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::pin!(future).poll(&mut context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn chan_16_strangers_share_what_all_strangers_have_and_members_have_their_own() {
        let budget = Budget::new();
        let longest = limits::MESSAGE_BYTES + (1 << 20) + UNIT;
        let take = |source| now(budget.of_stranger(source).outgoing.take(longest));
        let held: Vec<_> = (1..20).flat_map(|number| [take(source(number)), take(source(number))]).collect();
        let bytes = held.iter().flatten().count() * longest;
        assert!(bytes <= STRANGERS_OUT && bytes > STRANGERS_OUT - longest, "{bytes}");
        let member = budget.of_member(MemberId([1; 32]));
        let mine: Vec<_> = (0..4).filter_map(|_| now(member.outgoing.take(longest))).collect();
        assert_eq!(mine.len(), 4);
        assert!(
            now(budget.of_member(MemberId([1; 32])).outgoing.take(longest)).is_none(),
            "one member, one share"
        );
        assert!(now(budget.of_member(MemberId([2; 32])).outgoing.take(longest)).is_some());
        drop(held);
        assert!(take(source(1)).is_some());
    }

    #[test]
    fn one_source_never_has_what_all_strangers_have() {
        let budget = Budget::new();
        let one = budget.of_stranger(source(1));
        let held: Vec<_> = (0..100).filter_map(|_| now(one.outgoing.take(1 << 20))).collect();
        assert_eq!(held.len(), (STRANGERS_OUT / SOURCE_PART) >> 20);
        assert!(now(budget.of_stranger(source(2)).outgoing.take(limits::MESSAGE_BYTES)).is_some());
    }

    #[test]
    fn an_answer_that_was_short_gives_the_rest_back() {
        let budget = Budget::new();
        let member = budget.of_member(MemberId([1; 32]));
        let mut held = now(member.outgoing.take(MEMBER)).unwrap();
        assert!(now(member.outgoing.take(1)).is_none());
        held.keep(100);
        let mut rest = now(member.outgoing.take(MEMBER - UNIT)).unwrap();
        drop(held);
        rest.add(now(member.outgoing.take(1)).unwrap());
        drop(rest);
        assert!(now(member.outgoing.take(MEMBER)).is_some());
        drop(member);
        budget.of_member(MemberId([2; 32]));
        assert_eq!(lock(&budget.members).len(), 1, "what nobody uses is forgotten");
    }
}
