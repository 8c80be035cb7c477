//! How fast an endpoint sends and receives, where its owner has bounded that.
//!
//! Nothing is buffered for it: a sender waits before it gives the next bytes to the socket, and a receiver before it takes the next
//! ones, so that the peer is held up by TCP itself.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_core::lock::lock;
use tokio::time::{Instant, sleep_until};

/// Bytes that pass at a time: at 1 Mbit/s a short message waits for an eighth of a second behind those of each long one.
pub(crate) const PIECE: usize = 16 << 10;
/// The time whose bytes may pass at once after a quiet moment.
const AHEAD: Duration = Duration::from_millis(50);

/// Most bytes a second over all channels of an endpoint, in each direction; `None` for as many as the line takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Sent.
    pub up: Option<u64>,
    /// Received.
    pub down: Option<u64>,
}

impl Rates {
    /// The least that may be asked for, in bytes a second: 1 Mbit/s. The longest message passes in a third of its time then.
    pub const LEAST: u64 = 125_000;
}

/// Both directions of an endpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct Valves {
    pub(crate) up: Valve,
    pub(crate) down: Valve,
}

impl Valves {
    pub(crate) fn new(rates: Rates) -> Self {
        Self { up: Valve::new(rates.up), down: Valve::new(rates.down) }
    }
}

/// One direction: shared by all channels that are paced together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Valve(Option<Arc<Paced>>);

#[derive(Debug)]
struct Paced {
    per_second: u64,
    /// Up to when the line is taken by what has passed.
    taken: Mutex<Instant>,
}

impl Valve {
    fn new(per_second: Option<u64>) -> Self {
        let paced = |per_second: u64| Paced {
            per_second: per_second.max(Rates::LEAST),
            taken: Mutex::new(Instant::now()),
        };
        Self(per_second.map(|per_second| Arc::new(paced(per_second))))
    }

    /// Most bytes a second; none where there is no bound.
    pub(crate) fn per_second(&self) -> Option<u64> {
        self.0.as_ref().map(|paced| paced.per_second)
    }

    /// How many bytes may pass at a time, of so many.
    pub(crate) fn at_a_time(&self, most: usize) -> usize {
        if self.0.is_some() { most.min(PIECE) } else { most }
    }

    /// Waits for the turn of so many bytes, which is taken at once: channels that wait have their turns in order.
    pub(crate) async fn pass(&self, bytes: usize) {
        let turn = self.0.as_ref().and_then(|paced| paced.turn(bytes, Instant::now()));
        if let Some(turn) = turn {
            sleep_until(turn).await;
        }
    }

    /// Waits until something may pass.
    pub(crate) async fn ready(&self) {
        self.pass(0).await;
    }

    /// So many bytes have passed.
    pub(crate) fn passed(&self, bytes: usize) {
        self.0.as_ref().and_then(|paced| paced.turn(bytes, Instant::now()));
    }
}

impl Paced {
    /// Takes the line for so many bytes; until when they wait, if they do.
    fn turn(&self, bytes: usize, now: Instant) -> Option<Instant> {
        let mut taken = lock(&self.taken);
        let turn = (*taken).max(now);
        let nanoseconds = u128::from(bytes as u64) * 1_000_000_000 / u128::from(self.per_second);
        *taken = turn + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        turn.checked_sub(AHEAD).filter(|turn| *turn > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paced(now: Instant) -> Paced {
        Paced { per_second: 1_000_000, taken: Mutex::new(now) }
    }

    #[test]
    fn bytes_pass_at_the_rate_in_the_order_in_which_they_came() {
        let began = Instant::now();
        let paced = paced(began);
        let turns: Vec<_> = (0..10).map(|_| paced.turn(20_000, began)).collect();
        let after = |millis: u64| Some(began + Duration::from_millis(millis));
        // A moment's bytes pass at once.
        assert_eq!(turns[..5], [None, None, None, after(10), after(30)]);
        assert_eq!(turns[9], after(130));
        // Whoever only looks takes nothing.
        assert_eq!([0; 2].map(|bytes| paced.turn(bytes, began)), [after(150); 2]);
        // A quiet hour gives no more than a moment's bytes.
        let later = began + Duration::from_secs(3600);
        assert_eq!([50_000; 3].map(|bytes| paced.turn(bytes, later).is_some()), [false, false, true]);
    }

    #[tokio::test]
    async fn nobody_waits_where_there_is_no_bound() {
        let valve = Valve::default();
        valve.pass(usize::MAX).await;
        valve.passed(usize::MAX);
        valve.ready().await;
        assert_eq!(valve.at_a_time(1 << 30), 1 << 30);
    }
}
