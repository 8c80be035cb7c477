//! How fast strangers are, all together.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_core::lock::lock;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep_until};

/// Bytes between two looks at the clock.
const PIECE: usize = 64 << 10;

/// What all strangers of a flood share.
pub struct Uplink {
    /// Bytes sent.
    pub up: Pace,
    /// Bytes read.
    pub down: Pace,
    /// Connections opened.
    pub connections: Pace,
}

/// So many of something a second.
pub struct Pace {
    each: Duration,
    next: Mutex<Instant>,
    taken: AtomicU64,
}

impl Pace {
    pub(super) fn new(a_second: f64) -> Self {
        let each = Duration::from_secs_f64(1.0 / a_second);
        Self { each, next: Mutex::new(Instant::now()), taken: AtomicU64::new(0) }
    }

    /// How many there were so far.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
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
        self.taken.fetch_add(many as u64, Ordering::Relaxed);
    }
}

/// Writes bytes at a pace.
pub(super) async fn write(
    to: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    uplink: &Uplink,
) -> io::Result<()> {
    for piece in bytes.chunks(PIECE) {
        uplink.up.take(piece.len()).await;
        to.write_all(piece).await?;
    }
    Ok(())
}

/// Reads at a pace until the end, and keeps nothing.
pub(super) async fn drain(mut from: impl AsyncRead + Unpin, uplink: &Uplink) {
    let mut piece = vec![0; PIECE];
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        uplink.down.take(read).await;
    }
}
