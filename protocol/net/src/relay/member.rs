//! The relay of a member that others can dial: the steward's line carries less (CHAN-29).

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use muster_core::ids::{EndpointKey, MemberId};
use muster_core::lock::lock;
use muster_core::messages::wire::RelayTerms;
use tokio::time;
use tracing::debug;

use super::{OpenedRelay, RATE, Relay};
use crate::endpoint::{Endpoint, Traffic};
use crate::rate::Valves;
use crate::shares::Shares;

/// Members that have a place at one time.
const PLACES: usize = 16;
/// Bytes a second that a relay carries, in all: what its volunteer has not bounded.
const LINE: u64 = 4_000_000;
/// What part of a bounded line it carries, and the least of it that is of use to anybody.
const PART: u64 = 4;
const LEAST: u64 = 250_000;
/// How often it is looked how much it carries.
const LOOK: Duration = Duration::from_millis(500);
/// The least that one connection may bring in a second, whatever others bring.
const SLOWEST: u64 = 32 << 10;

/// A relay that is opened when the first member asks for a place: most runs need none.
pub struct MemberRelay {
    /// What its process sends and receives, of which this is a part.
    traffic: Arc<Traffic>,
    valves: Valves,
    shares: Arc<Shares>,
    address: SocketAddr,
    /// Bytes a second.
    line: u64,
    opened: OpenedRelay,
    /// One opens it.
    opening: Mutex<()>,
}

impl MemberRelay {
    /// On the port of these channels. None where the line that this endpoint may use leaves too little for others.
    pub fn new(endpoint: &Endpoint, address: SocketAddr, shares: Arc<Shares>) -> Option<Self> {
        let line = line(endpoint.valves.up.per_second(), endpoint.valves.down.per_second())?;
        let (traffic, valves) = (endpoint.traffic.clone(), endpoint.valves.clone());
        let (opened, opening) = (OpenedRelay::default(), Mutex::default());
        let _ = endpoint.punching.own.set(opened.clone());
        Some(Self { traffic, valves, shares, address, line, opened, opening })
    }

    /// CHAN-29: as [`Relay::admit`].
    pub fn admit(&self, member: MemberId, key: EndpointKey) -> Option<RelayTerms> {
        self.relay()?.admit(member, key)
    }

    /// The relay, once it is opened.
    pub(crate) fn opened(&self) -> OpenedRelay {
        self.opened.clone()
    }

    /// The relay, if it is of use: members that do not learn here from where they are seen find no direct ways.
    fn relay(&self) -> Option<&Arc<Relay>> {
        if self.opened.get().is_none() {
            let _one = lock(&self.opening);
            if self.opened.get().is_none() {
                match Relay::open_for(self.address, &self.shares, PLACES) {
                    Ok(relay) => {
                        relay.limit_each(u64::from(RATE).min(self.line));
                        tokio::spawn(govern(
                            Arc::downgrade(&relay),
                            self.traffic.clone(),
                            self.valves.clone(),
                            self.line,
                        ));
                        let _ = self.opened.set(relay);
                    }
                    Err(error) => debug!(%error, "no relay"),
                }
            }
        }
        self.opened.get().filter(|relay| relay.observes())
    }
}

/// Of a line that may carry so much up and down, what a relay may carry each way.
fn line(up: Option<u64>, down: Option<u64>) -> Option<u64> {
    let bounded = up.into_iter().chain(down).map(|bound| bound / PART);
    let line = bounded.min().unwrap_or(LINE).min(LINE);
    (line >= LEAST).then_some(line)
}

/// Keeps what a relay carries within its line, and counts it as what its process sends and receives.
async fn govern(relay: Weak<Relay>, traffic: Arc<Traffic>, valves: Valves, line: u64) {
    let (mut taken, mut given, mut limit) = (0, 0, u64::from(RATE).min(line));
    loop {
        time::sleep(LOOK).await;
        let Some(relay) = relay.upgrade() else { break };
        let (received, sent) = (relay.metrics.bytes_recv.get(), relay.metrics.bytes_sent.get());
        let (brought, carried) = (received - taken, sent - given);
        (taken, given) = (received, sent);
        // What is bounded is the line, whoever uses it: the process's own channels wait for what was relayed.
        valves.down.passed(usize::try_from(brought).unwrap_or(usize::MAX));
        valves.up.passed(usize::try_from(carried).unwrap_or(usize::MAX));
        traffic.received.fetch_add(brought, Ordering::Relaxed);
        traffic.sent.fetch_add(carried, Ordering::Relaxed);
        let each = governed(limit, brought, line / LOOKS);
        if each != limit {
            limit = each;
            relay.limit_each(each);
        }
    }
}

/// Looks in a second.
const LOOKS: u64 = 1000 / LOOK.as_millis() as u64;

/// How much each connection may bring in a second from now on, where all have brought so much since the last look, and may bring
/// `most` between two.
fn governed(limit: u64, brought: u64, most: u64) -> u64 {
    let next = if brought > most {
        limit.saturating_mul(most) / brought
    } else if brought < most / 4 * 3 {
        limit + limit / 4
    } else {
        limit
    };
    next.clamp(SLOWEST, u64::from(RATE).min(most * LOOKS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chan_29_a_relay_takes_a_part_of_a_bounded_line_or_none() {
        assert_eq!(line(None, None), Some(LINE));
        assert_eq!(line(Some(8 << 20), None), Some(2 << 20));
        assert_eq!(line(Some(8 << 20), Some(4 << 20)), Some(1 << 20));
        assert_eq!(line(Some(1 << 30), Some(1 << 30)), Some(LINE));
        assert_eq!((line(Some(1_000_000), None), line(Some(999_999), None)), (Some(LEAST), None));
        assert_eq!(line(None, Some(125_000)), None, "1 Mbit/s leaves nothing that is of use");
    }

    /// However many bring what they may.
    #[test]
    fn chan_29_what_a_relay_carries_stays_within_its_line() {
        for connections in [1, 3, 64] {
            let (most, mut limit) = (LINE / LOOKS, u64::from(RATE));
            let (mut all, looks) = (0, 200);
            for _ in 0..looks {
                let brought = connections * limit / LOOKS;
                all += brought;
                limit = governed(limit, brought, most);
            }
            let mean = all / looks;
            // Those of the first half second count as well.
            let first = connections * u64::from(RATE) / LOOKS / looks;
            assert!(mean <= most + most / 8 + first, "{connections}: {mean} of {most}");
            assert!(mean >= most / 2, "{connections}: {mean} of {most}");
        }
        // A quiet moment gives it back.
        let after = (0..40).fold(SLOWEST, |limit, _| governed(limit, 0, LINE / LOOKS));
        assert_eq!(after, LINE);
    }
}
