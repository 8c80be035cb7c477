//! Asks the program what it does, for all who want to know: once at a time, and not again while the answer is fresh.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_store::room;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::timeout;

use super::{Disk, Status};

/// How long an answer is given again.
const FRESH: Duration = Duration::from_millis(500);
/// How long the folder's size is: looking through it takes as long as it has files.
const MEASURED: Duration = Duration::from_secs(10);
/// How long the program has to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Somebody wants to know what the program does.
pub struct Inquiry(oneshot::Sender<Status>);

impl Inquiry {
    /// Answers it. Traffic, times and waits are the program's to fill in, the disk is not.
    pub fn answer(self, status: Status) {
        // Whoever asked may have gone.
        let _ = self.0.send(status);
    }
}

/// Where the program is asked.
pub struct Desk {
    folder: PathBuf,
    inquiries: mpsc::Sender<Inquiry>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    newest: Option<(Instant, Arc<Status>)>,
    disk: Option<(Instant, Disk)>,
}

impl Desk {
    /// For a program with this folder, and what it has to answer: one inquiry at a time.
    pub fn open(folder: impl Into<PathBuf>) -> (Arc<Self>, mpsc::Receiver<Inquiry>) {
        let (inquiries, asked) = mpsc::channel(1);
        (Arc::new(Self { folder: folder.into(), inquiries, kept: Mutex::default() }), asked)
    }

    /// What the program does; none where it does not answer in time.
    pub async fn status(&self) -> Option<Arc<Status>> {
        // Held while the program is asked: others wait for the same answer.
        let mut kept = self.kept.lock().await;
        if let Some((_, newest)) = kept.newest.as_ref().filter(|(since, _)| since.elapsed() < FRESH) {
            return Some(newest.clone());
        }
        let (inquiry, answer) = oneshot::channel();
        let asked = async {
            self.inquiries.send(Inquiry(inquiry)).await.ok()?;
            answer.await.ok()
        };
        let mut status = timeout(PATIENCE, asked).await.ok().flatten()?;
        status.disk = self.disk(&mut kept).await;
        let status = Arc::new(status);
        kept.newest = Some((Instant::now(), status.clone()));
        Some(status)
    }

    async fn disk(&self, kept: &mut Kept) -> Disk {
        if let Some((_, disk)) = kept.disk.filter(|(since, _)| since.elapsed() < MEASURED) {
            return disk;
        }
        let folder = self.folder.clone();
        let measured = tokio::task::spawn_blocking(move || Disk {
            used: room::used(&folder),
            free: room::free(&folder).ok(),
        });
        let disk = measured.await.unwrap_or_default();
        kept.disk = Some((Instant::now(), disk));
        disk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn many_who_ask_at_once_cost_the_program_one_answer() {
        let (desk, mut asked) = Desk::open(std::env::temp_dir().join("a folder that is not there"));
        let answering = tokio::spawn(async move {
            let mut answers = 0;
            while let Some(inquiry) = asked.recv().await {
                answers += 1;
                inquiry.answer(Status { round: answers, ..Status::default() });
            }
            answers
        });
        let asking = (0..64).map(|_| {
            let desk = desk.clone();
            tokio::spawn(async move { desk.status().await.unwrap().round })
        });
        for answer in asking.collect::<Vec<_>>() {
            assert_eq!(answer.await.unwrap(), 1);
        }
        drop(desk);
        assert_eq!(answering.await.unwrap(), 1);
    }

    #[tokio::test]
    async fn a_program_that_does_not_answer_is_not_waited_for() {
        let (desk, _asked) = Desk::open(std::env::temp_dir());
        assert_eq!(desk.status().await, None);
    }
}
