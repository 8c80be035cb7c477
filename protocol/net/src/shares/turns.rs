//! Turns at work that takes longer than a network thread has: reads of the disk, and whatever is made of them.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::role::Role;

/// Work that is done at once for strangers.
const STRANGERS: usize = 1;

/// Places at slow work: some of members, and one of strangers, which no member ever waits for.
#[derive(Clone)]
pub struct Turns {
    members: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
}

impl Turns {
    /// So many places of members.
    pub fn new(members: usize) -> Self {
        Self { members: Arc::new(Semaphore::new(members)), strangers: Arc::new(Semaphore::new(STRANGERS)) }
    }

    /// CHAN-17: does slow work beside the threads of the network once it is its turn; `None` where the work panics.
    pub async fn work<T: Send + 'static>(
        &self,
        role: Role,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let places = match role {
            Role::Member => &self.members,
            Role::Stranger => &self.strangers,
        };
        let turn = places.clone().acquire_owned().await.ok()?;
        let done = spawn_blocking(move || {
            // Until it is done, also where nobody waits for it any more.
            let _turn = turn;
            work()
        });
        done.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn chan_17_strangers_who_keep_the_disk_busy_take_no_turn_of_a_member() {
        let turns = Turns::new(1);
        let (release, released) = mpsc::channel::<()>();
        let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
        let released = Arc::new(std::sync::Mutex::new(released));
        let strangers: Vec<_> = (0..5)
            .map(|_| {
                let (turns, begun, released) = (turns.clone(), begun.clone(), released.clone());
                let hangs = move || {
                    let _ = begun.send(());
                    let _ = released.lock().unwrap().recv();
                };
                tokio::spawn(async move { turns.work(Role::Stranger, hangs).await })
            })
            .collect();
        begins.recv().await.unwrap();
        assert_eq!(turns.work(Role::Member, || 7).await, Some(7));
        assert!(begins.try_recv().is_err(), "one stranger at a time");
        drop(release);
        for stranger in strangers {
            assert_eq!(stranger.await.unwrap(), Some(()));
        }
    }
}
