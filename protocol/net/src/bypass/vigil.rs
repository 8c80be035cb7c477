//! Watches a connection that goes over a relay of a member, for as long as it does: a relay that drops or delays what it should
//! carry is left within seconds.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use iroh::TransportAddr;
use iroh::endpoint::{Connection, VarInt, WeakConnectionHandle};
use muster_core::ids::EndpointKey;
use muster_core::lock::lock;
use tokio::time;
use tracing::debug;

use super::held::{Failure, Held};

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(1);
/// How long nothing may come back while something is sent.
const SILENCE: Duration = Duration::from_secs(4);
/// How long what is sent may take there and back, and for how long it may take longer.
const SLOWEST: Duration = Duration::from_secs(2);
const SLOW: Duration = Duration::from_secs(10);

/// Until the connection to this key is over.
pub(super) async fn keep_vigil(held: Arc<Mutex<Held>>, key: EndpointKey, connection: WeakConnectionHandle) {
    let mut vigil = Vigil::new(Instant::now());
    loop {
        time::sleep(LOOK).await;
        let there = connection.upgrade().filter(|there| there.close_reason().is_none());
        let Some(connection) = there else { break };
        match over_relay(&held, &connection) {
            Some(seen) if vigil.fails(seen, Instant::now()) => {
                debug!("a member's relay carries nothing, or too slowly");
                lock(&held).key_failed(key, Failure::Uncarried, Instant::now());
                // Whoever waits for it dials again.
                connection.close(VarInt::from_u32(0), b"the relay carries nothing");
                break;
            }
            Some(_) => {}
            // A direct way may be lost again.
            None => vigil = Vigil::new(Instant::now()),
        }
    }
}

/// What a relay has carried of a connection, if it carries it.
fn over_relay(held: &Mutex<Held>, connection: &Connection) -> Option<Carried> {
    let paths = connection.paths();
    let path = paths.iter().find(|path| path.is_selected() && path.is_relay())?;
    if let TransportAddr::Relay(url) = path.remote_addr() {
        lock(held).touch(url, Instant::now());
    }
    let stats = path.stats();
    Some(Carried { sent: stats.udp_tx.bytes, received: stats.udp_rx.bytes, round_trip: stats.rtt })
}

/// Bytes both ways, and how long the last ones took.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    sent: u64,
    received: u64,
    round_trip: Duration,
}

/// What was seen of a connection.
struct Vigil {
    before: Carried,
    /// Since when something is sent and nothing comes back.
    silent: Option<Instant>,
    /// When it was last fast enough.
    prompt: Instant,
}

impl Vigil {
    fn new(now: Instant) -> Self {
        Self { before: Carried::default(), silent: None, prompt: now }
    }

    /// Whether this is to go another way.
    fn fails(&mut self, seen: Carried, now: Instant) -> bool {
        if seen.received != self.before.received {
            self.silent = None;
        } else if seen.sent != self.before.sent {
            self.silent.get_or_insert(now);
        }
        if seen.round_trip <= SLOWEST {
            self.prompt = now;
        }
        self.before = seen;
        let silent = self.silent.is_some_and(|since| now.saturating_duration_since(since) >= SILENCE);
        silent || now.saturating_duration_since(self.prompt) >= SLOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many seconds it goes another way, of sixty.
    fn leaves(of: impl Fn(u64) -> Carried) -> Option<u64> {
        let began = Instant::now();
        let mut vigil = Vigil::new(began);
        (1..=60).find(|second| vigil.fails(of(*second), began + Duration::from_secs(*second)))
    }

    fn fast(sent: u64, received: u64) -> Carried {
        Carried { sent, received, round_trip: Duration::from_millis(50) }
    }

    #[test]
    fn chan_29_a_relay_that_drops_or_delays_is_left_within_seconds() {
        // It carries, and then nothing any more, while this end says it again and again.
        let dropping = |second: u64| fast(100 * second, 100 * second.min(3));
        assert_eq!(leaves(dropping), Some(8));
        let delaying = |second| Carried { round_trip: 2 * SLOWEST, ..fast(second, second) };
        assert_eq!(leaves(delaying), Some(SLOW.as_secs()));
        let late_once = |second| if second % 8 == 0 { fast(second, second) } else { delaying(second) };
        assert_eq!(leaves(late_once), None);
        assert_eq!(leaves(|second| fast(100 * second, 90 * second)), None, "it carries");
        assert_eq!(leaves(|_| fast(7, 7)), None, "nobody says anything");
        // One side sends now and then, and the other one answers.
        assert_eq!(leaves(|second| fast(second / 5, second.saturating_sub(2) / 5)), None);
    }
}
