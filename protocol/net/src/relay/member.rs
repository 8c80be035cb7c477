//! The relay of a member that others can dial: the steward's line carries less (CHAN-29).

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use muster_core::ids::{EndpointKey, MemberId};
use muster_core::lock::lock;
use muster_core::messages::wire::RelayTerms;
use tracing::debug;

use super::governor::Look;
use super::{OpenedRelay, Relay};
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
                let (traffic, valves) = (self.traffic.clone(), self.valves.clone());
                // What is bounded is the line, whoever uses it: the process's own channels wait for what was relayed.
                let count = move |look: Look| {
                    valves.down.passed(usize::try_from(look.brought).unwrap_or(usize::MAX));
                    valves.up.passed(usize::try_from(look.carried).unwrap_or(usize::MAX));
                    traffic.received.fetch_add(look.brought, Ordering::Relaxed);
                    traffic.sent.fetch_add(look.carried, Ordering::Relaxed);
                };
                match Relay::open_for(self.address, &self.shares, PLACES, self.line, count) {
                    Ok(relay) => drop(self.opened.set(relay)),
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
}
