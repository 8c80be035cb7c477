//! How fast strangers are, all together.

use std::io;
use std::sync::Mutex;
use std::time::Duration;

use muster_core::lock::lock;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep_until};

/// Bytes between two looks at the clock.
const PIECE: usize = 64 << 10;

/// So many of something a second.
pub(super) struct Pace {
    each: Duration,
    next: Mutex<Instant>,
}

impl Pace {
    pub(super) fn new(a_second: f64) -> Self {
        Self { each: Duration::from_secs_f64(1.0 / a_second), next: Mutex::new(Instant::now()) }
    }

    /// Waits until so many more are due. What was not used is lost.
    pub(super) async fn take(&self, many: usize) {
        let due = {
            let mut next = lock(&self.next);
            let due = (*next).max(Instant::now());
            *next = due + self.each.mul_f64(many as f64);
            due
        };
        sleep_until(due).await;
    }
}

/// Writes bytes at a pace.
pub(super) async fn write(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8], pace: &Pace) -> io::Result<()> {
    for piece in bytes.chunks(PIECE) {
        pace.take(piece.len()).await;
        to.write_all(piece).await?;
    }
    Ok(())
}

/// Reads at a pace until the end, and keeps nothing.
pub(super) async fn drain(mut from: impl AsyncRead + Unpin, pace: &Pace) {
    let mut piece = vec![0; PIECE];
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        pace.take(read).await;
    }
}
