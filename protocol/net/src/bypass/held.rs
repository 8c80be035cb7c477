//! The relays at which a process has places, and what has failed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use iroh::RelayUrl;
use muster_core::ids::{EndpointKey, MemberId};
use muster_core::limits;

use super::rest::Rests;
use crate::name::Neighbour;
use crate::punch::RENEWAL;

/// Places to dial over, beside the one at which this process is met.
const PLACES: usize = 16;
/// How long a place is kept that nobody is dialled over.
const IDLE: Duration = Duration::from_secs(150);
/// Keys that are looked for at one time.
const LOOKED_FOR: usize = 8;
/// How long a place lasts here: less than at its relay, where the clock began later.
const LASTS: Duration = Duration::from_secs(170);

/// What a process has.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Where it is met.
    pub(super) home: Option<MemberId>,
    /// Where it dials.
    places: BTreeMap<MemberId, Place>,
    /// Members whose relays have failed.
    pub(super) relays: Rests<MemberId>,
    /// Keys that were not met at any, or that one carried nothing for.
    keys: Rests<EndpointKey>,
    /// Keys that were met since they failed last, and those that are looked for.
    proven: BTreeSet<EndpointKey>,
    looked_for: BTreeSet<EndpointKey>,
}

/// Why a key rests.
#[derive(Clone, Copy, Debug)]
pub(super) enum Failure {
    /// It was not met: it may be on its way to the same relay.
    Unmet,
    /// What was sent to it did not arrive, or too slowly.
    Uncarried,
}

impl Failure {
    fn rest(self) -> Duration {
        Duration::from_secs(match self {
            Self::Unmet => 15,
            Self::Uncarried => 120,
        })
    }
}

#[derive(Debug)]
struct Place {
    of: Neighbour,
    url: RelayUrl,
    /// When it was asked for last, and when somebody was dialled over it.
    asked: Instant,
    used: Instant,
}

impl Held {
    /// Somebody's relay has failed.
    pub(super) fn relay_failed(&mut self, member: MemberId, now: Instant) {
        self.relays.note(member, Failure::Uncarried.rest(), now);
    }

    /// Whoever has this key is not dialled over relays of members for a while.
    pub(super) fn key_failed(&mut self, key: EndpointKey, failure: Failure, now: Instant) {
        self.proven.remove(&key);
        self.keys.note(key, failure.rest(), now);
    }

    /// Whether a key is left alone.
    pub(super) fn key_rests(&self, key: &EndpointKey, now: Instant) -> bool {
        self.keys.rests(key, now)
    }

    /// Whether a key was met.
    pub(super) fn is_proven(&self, key: &EndpointKey) -> bool {
        self.proven.contains(key)
    }

    /// Whether a key is to be looked for: once at a time, and few of them.
    pub(super) fn looks_for(&mut self, key: EndpointKey) -> bool {
        self.looked_for.len() < LOOKED_FOR && self.looked_for.insert(key)
    }

    /// A key was looked for, and met or not.
    pub(super) fn looked_for(&mut self, key: EndpointKey, is_met: bool) {
        self.looked_for.remove(&key);
        if is_met {
            if self.proven.len() >= limits::MEMBERS {
                self.proven.pop_first();
            }
            self.proven.insert(key);
        }
    }

    /// The place at somebody's relay, if there is one, which is used now.
    pub(super) fn place(&mut self, of: &Neighbour, now: Instant) -> Option<RelayUrl> {
        let place = self.places.get_mut(&of.member)?;
        if place.of != *of || now.saturating_duration_since(place.asked) >= LASTS {
            return None;
        }
        place.used = now;
        Some(place.url.clone())
    }

    /// A place was given; whether there is room for it.
    pub(super) fn take(&mut self, of: Neighbour, url: RelayUrl, now: Instant) -> bool {
        let used = self.places.get(&of.member).map_or(now, |place| place.used);
        if self.places.len() >= PLACES && !self.places.contains_key(&of.member) {
            return false;
        }
        self.places.insert(of.member, Place { of, url, asked: now, used });
        true
    }

    /// Somebody goes on using the relay with this address.
    pub(super) fn touch(&mut self, url: &RelayUrl, now: Instant) {
        if let Some(place) = self.places.values_mut().find(|place| place.url == *url) {
            place.used = now;
        }
    }

    /// The places to renew now, and those that are given up.
    pub(super) fn due(&mut self, now: Instant) -> (Vec<Neighbour>, Vec<MemberId>) {
        let over = |place: &mut Place| now.saturating_duration_since(place.used) >= IDLE;
        let over = self.places.extract_if(.., |_, place| over(place)).map(|(member, _)| member).collect();
        let due = self.places.values().filter(|place| now.saturating_duration_since(place.asked) >= RENEWAL);
        (due.map(|place| place.of).collect(), over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbour(name: u8) -> Neighbour {
        let at = std::net::SocketAddr::from(([10, 0, 0, name], 7));
        Neighbour { member: MemberId([name; 32]), at }
    }

    fn url(name: u8) -> RelayUrl {
        format!("https://{name}.relay.invalid:7/").parse().unwrap()
    }

    #[test]
    fn chan_29_nobody_is_dialled_over_a_relay_before_it_was_met_there_or_after_that_failed() {
        let (now, mut held, key) = (Instant::now(), Held::default(), EndpointKey([1; 32]));
        assert!(!held.is_proven(&key) && held.looks_for(key) && !held.looks_for(key), "one look at a time");
        held.looked_for(key, true);
        assert!(held.is_proven(&key));
        held.key_failed(key, Failure::Uncarried, now);
        assert!(!held.is_proven(&key) && held.key_rests(&key, now + Duration::from_secs(119)));
        assert!(!held.key_rests(&key, now + Duration::from_secs(120)));
        let others = (2..).map(|name| EndpointKey([name; 32]));
        assert_eq!(others.take(99).filter(|key| held.looks_for(*key)).count(), LOOKED_FOR);
    }

    #[test]
    fn chan_29_places_are_few_are_renewed_while_they_are_used_and_given_up_afterwards() {
        let (began, mut held) = (Instant::now(), Held::default());
        let names = 0..PLACES as u8;
        assert!(names.clone().all(|name| held.take(neighbour(name), url(name), began)));
        assert!(!held.take(neighbour(99), url(99), began), "there are enough");
        assert_eq!(held.place(&neighbour(3), began), Some(url(3)));
        let elsewhere = Neighbour { at: neighbour(4).at, ..neighbour(3) };
        assert_eq!(held.place(&elsewhere, began), None, "it has come back elsewhere");
        let (due, over) = held.due(began + RENEWAL);
        assert!(due.len() == names.len() && over.is_empty());
        // One of them carries something, and another one is dialled over.
        held.touch(&url(1), began + RENEWAL);
        assert!(held.place(&neighbour(2), began + RENEWAL).is_some());
        let (due, over) = held.due(began + IDLE);
        assert_eq!(due, [neighbour(1), neighbour(2)]);
        assert_eq!(over.len(), PLACES - 2);
        assert_eq!(held.place(&neighbour(2), began + LASTS), None, "nobody has renewed it");
    }
}
