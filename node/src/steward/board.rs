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
use muster_store::error::StoreError;
use muster_store::journal::Journal;
use tokio::sync::watch;

/// How long a request for news waits when there is none.
const PATIENCE: Duration = Duration::from_secs(2);
/// Newest records held in memory; older ones come from the journal.
const RECENT: usize = 512;
/// Bytes of records, and of notices, in one answer: both fit a message, whatever one of them takes.
const ANSWER_BYTES: usize = 1 << 20;

/// Shared by the driver, which alone writes, and the server.
pub(super) struct Board {
    journal: Arc<Journal>,
    /// Tells followers that numbers of notices began anew.
    name: u64,
    pages: Mutex<Pages>,
    news: watch::Sender<()>,
}

struct Pages {
    /// Height of the next record.
    next: Height,
    recent: VecDeque<Signed<Record>>,
    first_notice: u64,
    notices: VecDeque<Notice>,
    /// Bytes that the notices take.
    bytes: usize,
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
        let mut pages = self.pages();
        pages.bytes += encode(&notice).len();
        pages.notices.push_back(notice);
        while pages.notices.len() > limits::BOARD_NOTICES || pages.bytes > limits::BOARD_BYTES {
            let Some(oldest) = pages.notices.pop_front() else { break };
            pages.bytes -= encode(&oldest).len();
            pages.first_notice += 1;
        }
        drop(pages);
        self.news.send_replace(());
    }

    /// What the asker lacks; waits a while for the first news.
    ///
    /// # Errors
    /// What the journal reports.
    pub(super) async fn follow(&self, follow: &Follow) -> Result<News, StoreError> {
        // Before looking: a record that is sealed in between is not missed.
        let mut changed = self.news.subscribe();
        if self.pages().waits(self.name, follow) {
            let _ = tokio::time::timeout(PATIENCE, changed.changed()).await;
        }
        self.news(follow, |from, most| self.journal.records(from, most))
    }

    /// What is new to the asker. `old` reads records from the journal after the lock is released: the driver must not wait
    /// while a stranger's request reads the disk.
    fn news(
        &self,
        follow: &Follow,
        old: impl FnOnce(Height, usize) -> Result<Vec<Signed<Record>>, StoreError>,
    ) -> Result<News, StoreError> {
        let pages = self.pages();
        let (next, oldest) = (pages.next, pages.next.0 - pages.recent.len() as u64);
        let recent = follow.height.0.checked_sub(oldest).map(|lacking| {
            let lacking = usize::try_from(lacking).unwrap_or(usize::MAX);
            pages.recent.iter().skip(lacking).take(limits::PULL_RECORDS).cloned().collect()
        });
        // Notices are in memory alone: after a restart their numbers begin anew, and the asker has none of
        // them.
        let read = if follow.board == self.name { follow.notice } else { 0 };
        let first_notice = read.max(pages.first_notice);
        let lacking = usize::try_from(first_notice - pages.first_notice).unwrap_or(usize::MAX);
        let notices = pages.notices.iter().skip(lacking).take(limits::PULL_NOTICES).cloned().collect();
        drop(pages);
        let records = match recent {
            Some(records) => records,
            None => {
                // No more than was shown by then: the journal may be ahead.
                let shown = usize::try_from(next.0.saturating_sub(follow.height.0)).unwrap_or(usize::MAX);
                old(follow.height, shown.min(limits::PULL_RECORDS))?
            }
        };
        Ok(News {
            records: fitting(records),
            newest: Height(next.0.saturating_sub(1)),
            board: self.name,
            first_notice,
            notices: fitting(notices),
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

/// As many of the first items as one answer holds, at least one.
fn fitting<T: borsh::BorshSerialize, const MAX: usize>(items: Vec<T>) -> List<T, MAX> {
    let mut room = ANSWER_BYTES;
    let mut kept = Vec::new();
    for item in items {
        let bytes = encode(&item).len();
        if bytes > room && !kept.is_empty() || kept.len() == MAX {
            break;
        }
        room = room.saturating_sub(bytes);
        kept.push(item);
    }
    List::new(kept).expect("no more than MAX are kept")
}

#[cfg(test)]
mod tests {
    use muster_core::ids::{Digest, RunId};
    use muster_core::messages::record::Body;
    use muster_core::sign::Identity;

    use super::*;

    #[test]
    fn old_records_are_read_while_the_actor_goes_on() {
        let steward = Identity::from_secret(&[2; 32]);
        let record = |height| {
            let (previous, body) = (Digest::default(), Body::Close(Digest::default()));
            steward.sign(RunId(previous), &Record { height: Height(height), previous, body })
        };
        let journal = Arc::new(Journal::in_memory().unwrap());
        let board = Board::new(journal.clone(), Height(2), 7);
        let records: Vec<_> = (0..4).map(record).collect();
        journal.append_all(Height(0), &records).unwrap();
        board.seal(records[2].clone());
        let news = board.news(&Follow { height: Height(0), board: 0, notice: 0 }, |from, most| {
            assert!(board.pages.try_lock().is_ok(), "the actor seals meanwhile");
            journal.records(from, most)
        });
        let news = news.unwrap();
        assert_eq!((news.records.to_vec(), news.newest), (records[..3].to_vec(), Height(2)), "what is shown");
        let recent = |_, _| -> Result<_, StoreError> { panic!("what is in memory is not read") };
        let news = board.news(&Follow { height: Height(2), board: 7, notice: 0 }, recent).unwrap();
        assert_eq!(news.records.to_vec(), records[2..3]);
    }
}
