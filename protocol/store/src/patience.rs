//! Opening files where the system has no descriptor left: somebody else has them for now, which is no reason to lose a byte.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use muster_core::lock::lock;

/// How long a file waits for a descriptor.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it waits between two tries.
const PAUSE: Duration = Duration::from_millis(20);
/// A file that is always there to be read, and costs nothing.
const SPARE: &str = "/dev/null";

/// Frees a descriptor that is worth less than a file; whether there was one.
pub type Relief = Arc<dyn Fn() -> bool + Send + Sync>;

struct Reserve {
    relief: Option<Relief>,
    /// Held for whoever finds that there is no other.
    spare: Option<File>,
}

static RESERVE: Mutex<Reserve> = Mutex::new(Reserve { relief: None, spare: None });

/// CHAN-13: from now on this process frees descriptors in this way where a file finds none, and keeps a spare one.
pub fn relieve_by(relief: Relief) {
    *lock(&RESERVE) = Reserve { relief: Some(relief), spare: File::open(SPARE).ok() };
}

/// CHAN-13: opens something, waiting for a descriptor where there is none. Blocks for 30 s at most.
///
/// # Errors
/// Those of opening; at the end also that there is no descriptor.
pub fn patiently<T>(mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let deadline = Instant::now() + PATIENCE;
    let mut short = false;
    loop {
        match open() {
            Err(error) if is_shortage(&error) && Instant::now() < deadline => {
                short = true;
                let relief = {
                    let mut reserve = lock(&RESERVE);
                    // Its place is taken by the file that is opened next.
                    reserve.spare = None;
                    reserve.relief.clone()
                };
                if let Some(relief) = relief {
                    relief();
                }
                sleep(PAUSE);
            }
            opened => {
                if short {
                    let mut reserve = lock(&RESERVE);
                    reserve.spare = reserve.relief.as_ref().and_then(|_| File::open(SPARE).ok());
                }
                return opened;
            }
        }
    }
}

/// EMFILE of this process, ENFILE of the machine: the same numbers on every Unix.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    cfg!(unix) && matches!(error.raw_os_error(), Some(23 | 24))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn chan_13_a_file_waits_for_a_descriptor_and_has_a_stranger_give_way() {
        let tries = Arc::new(Mutex::new(0));
        let relieved = tries.clone();
        relieve_by(Arc::new(move || {
            *lock(&relieved) += 1;
            true
        }));
        let mut left = 3;
        let opened = patiently(|| {
            left -= 1;
            if left > 0 { Err(io::Error::from_raw_os_error(24)) } else { Ok(left) }
        });
        assert_eq!((opened.unwrap(), *lock(&tries)), (0, 2));
        let missing = patiently(|| File::open("/nonexistent"));
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(lock(&RESERVE).spare.is_some(), "there is one for the next time");
    }
}
