//! What followers read: the sealed records and the public notices.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use muster_core::codec::{List, encode};
use muster_core::ids::Height;
use muster_core::limits;
use muster_core::lock::lock;
use muster_core::messages::record::Record;
use muster_core::messages::wire::{Follow, News, Notice};
use muster_core::sign::Signed;
use muster_net::shares::Role;
use muster_store::error::StoreError;
use muster_store::journal::Journal;
use tokio::sync::watch;

/// How long a request for news waits when there is none.
const PATIENCE: Duration = Duration::from_secs(2);
/// Newest records held in memory; older ones come from the journal.
const RECENT: usize = 512;
/// Bytes of records, and of notices, in one answer: both fit a message, whatever one of them takes.
const ANSWER_BYTES: usize = 1 << 20;
/// The same of one answer to a stranger, and how many records and notices each.
const STRANGERS_BYTES: usize = 256 << 10;
const STRANGERS_ITEMS: usize = 64;
/// What is cloned and encoded in less than a millisecond.
const QUICK_BYTES: usize = 64 << 10;

/// Shared by the driver, which alone writes, and the server.
pub(super) struct Board {
    journal: Arc<Journal>,
    /// Tells followers that numbers of notices began anew.
    name: u64,
    pages: Mutex<Pages>,
    news: watch::Sender<()>,
}

/// Something that is shown, and how many bytes it takes.
struct Shown<T> {
    item: T,
    bytes: usize,
}

impl<T: borsh::BorshSerialize> Shown<T> {
    fn new(item: T) -> Arc<Self> {
        let bytes = encode(&item).len();
        Arc::new(Self { item, bytes })
    }
}

struct Pages {
    /// Height of the next record.
    next: Height,
    recent: VecDeque<Arc<Shown<Signed<Record>>>>,
    first_notice: u64,
    notices: VecDeque<Arc<Shown<Notice>>>,
    /// Bytes that the notices take.
    bytes: usize,
}

/// How much of the board one answer has, of records and of notices each.
#[derive(Clone, Copy)]
struct Most {
    items: usize,
    bytes: usize,
}

impl Most {
    /// CHAN-17: a stranger has less at a time than a member: each answer to it costs the steward the same.
    fn of(role: Role) -> Self {
        match role {
            Role::Member => {
                Self { items: limits::PULL_RECORDS.min(limits::PULL_NOTICES), bytes: ANSWER_BYTES }
            }
            Role::Stranger => Self { items: STRANGERS_ITEMS, bytes: STRANGERS_BYTES },
        }
    }
}

/// What an asker lacks, as far as it is in memory.
pub(super) struct Page {
    /// None where they come from the journal.
    recent: Option<Vec<Arc<Shown<Signed<Record>>>>>,
    height: Height,
    next: Height,
    first_notice: u64,
    notices: Vec<Arc<Shown<Notice>>>,
    most: Most,
}

impl Page {
    /// Whether an answer is made of it in less than a millisecond.
    pub(super) fn is_quick(&self) -> bool {
        let bytes = |recent: &Vec<Arc<Shown<_>>>| recent.iter().map(|shown| shown.bytes).sum::<usize>();
        let notices: usize = self.notices.iter().map(|shown| shown.bytes).sum();
        self.recent.as_ref().is_some_and(|recent| bytes(recent) + notices <= QUICK_BYTES)
    }
}

impl Board {
    /// A board without notices over a journal of this height. `name` is drawn anew for each process.
    pub(super) fn new(journal: Arc<Journal>, next: Height, name: u64) -> Self {
        let pages =
            Pages { next, recent: VecDeque::new(), first_notice: 0, notices: VecDeque::new(), bytes: 0 };
        Self { journal, name, pages: Mutex::new(pages), news: watch::Sender::new(()) }
    }

    /// Shows a record that is in the journal.
    pub(super) fn seal(&self, record: Signed<Record>) {
        let record = Shown::new(record);
        let mut pages = self.pages();
        pages.next = pages.next.next();
        pages.recent.push_back(record);
        if pages.recent.len() > RECENT {
            pages.recent.pop_front();
        }
        drop(pages);
        self.news.send_replace(());
    }

    /// Shows a notice; the oldest ones go when there are too many.
    pub(super) fn post(&self, notice: Notice) {
        // ROUND-27: whoever saw the others' echoes could sign its own until O_t draws an accomplice.
        if let Notice::Echo(_) = notice {
            return;
        }
        let notice = Shown::new(notice);
        let mut pages = self.pages();
        pages.bytes += notice.bytes;
        pages.notices.push_back(notice);
        while pages.notices.len() > limits::BOARD_NOTICES || pages.bytes > limits::BOARD_BYTES {
            let Some(oldest) = pages.notices.pop_front() else { break };
            pages.bytes -= oldest.bytes;
            pages.first_notice += 1;
        }
        drop(pages);
        self.news.send_replace(());
    }

    /// Waits a while where an asker has everything.
    pub(super) async fn wait(&self, follow: &Follow) {
        // Before looking: a record that is sealed in between is not missed.
        let mut changed = self.news.subscribe();
        if self.pages().waits(self.name, follow) {
            let _ = tokio::time::timeout(PATIENCE, changed.changed()).await;
        }
    }

    /// What the asker lacks. No more is taken than an answer holds, so that nobody else waits long for the lock.
    pub(super) fn page(&self, follow: &Follow, role: Role) -> Page {
        let most = Most::of(role);
        let pages = self.pages();
        let (height, next) = (follow.height, pages.next);
        let oldest = next.0 - pages.recent.len() as u64;
        let recent = height.0.checked_sub(oldest).map(|lacking| fitting(&pages.recent, lacking, most));
        // Notices are in memory alone: after a restart their numbers begin anew, and the asker has none of
        // them.
        let read = if follow.board == self.name { follow.notice } else { 0 };
        let first_notice = read.max(pages.first_notice);
        let notices = fitting(&pages.notices, first_notice - pages.first_notice, most);
        Page { recent, height, next, first_notice, notices, most }
    }

    /// The answer that a page makes. May read the journal, after the lock is released: the driver must not wait while a
    /// stranger's request reads the disk.
    ///
    /// # Errors
    /// What the journal reports.
    pub(super) fn news(&self, page: Page) -> Result<News, StoreError> {
        let Page { recent, height, next, first_notice, notices, most } = page;
        let records = match recent {
            Some(recent) => recent.iter().map(|shown| shown.item.clone()).collect(),
            None => {
                // No more than was shown by then: the journal may be ahead.
                let shown = usize::try_from(next.0.saturating_sub(height.0)).unwrap_or(usize::MAX);
                self.journal.records_within(height, shown.min(most.items), most.bytes)?
            }
        };
        let notices = notices.iter().map(|shown| shown.item.clone()).collect();
        Ok(News {
            records: List::new(records).expect("no more than an answer holds are taken"),
            newest: Height(next.0.saturating_sub(1)),
            board: self.name,
            first_notice,
            notices: List::new(notices).expect("no more than an answer holds are taken"),
        })
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        lock(&self.pages)
    }
}

impl Pages {
    /// Whether an asker has everything.
    fn waits(&self, name: u64, follow: &Follow) -> bool {
        let all_notices = follow.notice >= self.first_notice + self.notices.len() as u64;
        follow.height >= self.next && follow.board == name && all_notices
    }
}

/// As many items after the first ones as one answer holds, at least one.
fn fitting<T>(items: &VecDeque<Arc<Shown<T>>>, skipped: u64, most: Most) -> Vec<Arc<Shown<T>>> {
    let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
    let mut room = most.bytes;
    let mut kept = Vec::new();
    for item in items.iter().skip(skipped).take(most.items) {
        if item.bytes > room && !kept.is_empty() {
            break;
        }
        room = room.saturating_sub(item.bytes);
        kept.push(item.clone());
    }
    kept
}

#[cfg(test)]
mod tests {
    use muster_core::ids::{Digest, RunId};
    use muster_core::messages::enrol::Return;
    use muster_core::messages::record::Body;
    use muster_core::sign::Identity;

    use super::*;

    fn record(height: u64) -> Signed<Record> {
        let steward = Identity::from_secret(&[2; 32]);
        let (previous, body) = (Digest::default(), Body::Close(Digest::default()));
        steward.sign(RunId(previous), &Record { height: Height(height), previous, body })
    }

    #[test]
    fn old_records_are_read_while_the_actor_goes_on() {
        let journal = Arc::new(Journal::in_memory().unwrap());
        let board = Board::new(journal.clone(), Height(2), 7);
        let records: Vec<_> = (0..4).map(record).collect();
        journal.append_all(Height(0), &records).unwrap();
        board.seal(records[2].clone());
        let page = board.page(&Follow { height: Height(0), board: 0, notice: 0 }, Role::Member);
        assert!(!page.is_quick(), "it reads the journal");
        board.seal(records[3].clone());
        let news = board.news(page).unwrap();
        assert_eq!((news.records.to_vec(), news.newest), (records[..3].to_vec(), Height(2)), "what is shown");
        let page = board.page(&Follow { height: Height(2), board: 7, notice: 0 }, Role::Member);
        assert!(page.is_quick(), "what is in memory is not read");
        assert_eq!(board.news(page).unwrap().records.to_vec(), records[2..4]);
    }

    #[test]
    fn chan_17_an_answer_is_bounded_before_it_is_made_and_a_stranger_s_is_small() {
        let journal = Arc::new(Journal::in_memory().unwrap());
        let board = Board::new(journal, Height(0), 7);
        (0..300).for_each(|height| board.seal(record(height)));
        let member = Identity::from_secret(&[3; 32]);
        for height in 0..300 {
            let back =
                Return { height: Height(height), addresses: List::default(), engagement: Default::default() };
            board.post(Notice::Return(member.sign(RunId(Digest::default()), &back)));
        }
        // The number of another board asks for all notices anew, as often as it is sent.
        let follow = Follow { height: Height(0), board: 8, notice: 299 };
        for (role, most) in [(Role::Member, 256), (Role::Stranger, STRANGERS_ITEMS)] {
            let page = board.page(&follow, role);
            let held = page.notices.iter().filter(|shown| Arc::strong_count(shown) == 2).count();
            assert_eq!(held, most, "nothing is copied under the lock");
            let news = board.news(page).unwrap();
            assert_eq!((news.records.len(), news.notices.len(), news.first_notice), (most, most, 0));
        }
    }
}
