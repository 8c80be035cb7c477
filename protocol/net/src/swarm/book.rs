//! Whom this swarm dials, and how often (CHAN-20, CHAN-21).
//!
//! Peers name addresses for themselves and for others, in every protocol that libp2p speaks, and each name costs nothing.
//! Every dial of a swarm therefore passes here, whichever protocol wants it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use muster_core::lock::lock;

use super::sieve::Sieve;
use crate::purse::{Allowance, Purse};
use crate::reach::Reach;
use crate::source::source;

/// Dials to one source, and those of them that came to nothing, whoever named the addresses.
const DIALS: Allowance = Allowance { burst: 64, each: Duration::from_secs(4) };
const VAIN: Allowance = Allowance { burst: 32, each: Duration::from_secs(30) };
/// Pauses after the first dial to an address that came to nothing, doubled each time up to the second: addresses that
/// this member was given, and all others.
const GIVEN_PAUSE: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(60)];
const PAUSE: [Duration; 2] = [Duration::from_secs(15), Duration::from_secs(3600)];
/// Sources whose dials are remembered; addresses that rest, for each of them.
const SOURCES: usize = 1024;
const RESTING: usize = 64;
/// Addresses from which peers have come, in all and of one source.
const SEEN: usize = 512;
const SEEN_OF_SOURCE: usize = 4;

/// Why an address is not dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Nobody but a stranger names it.
    Unknown,
    /// It, or its source, was dialled too often.
    Resting,
}

struct Rest {
    until: Instant,
    pause: Duration,
}

struct Dials {
    all: Purse,
    vain: Purse,
    resting: BTreeMap<SocketAddr, Rest>,
}

struct Pages {
    given: BTreeSet<SocketAddr>,
    seen: BTreeMap<IpAddr, Instant>,
    dials: BTreeMap<IpAddr, Dials>,
    home: Option<Reach>,
}

/// The addresses that one swarm knows.
pub(super) struct Book {
    sieve: Arc<dyn Sieve>,
    pages: Mutex<Pages>,
}

impl Book {
    /// An empty one. `home` is how far the addresses reach at which this swarm listens, where it says so.
    pub(super) fn new(sieve: Arc<dyn Sieve>, home: Option<Reach>) -> Self {
        let pages = Pages { given: BTreeSet::new(), seen: BTreeMap::new(), dials: BTreeMap::new(), home };
        Self { sieve, pages: Mutex::new(pages) }
    }

    /// This member's own user, or its disk, names an address.
    pub(super) fn give(&self, target: SocketAddr) {
        lock(&self.pages).given.insert(canonical(target));
    }

    /// A peer has come from an address.
    pub(super) fn saw(&self, address: IpAddr, now: Instant) {
        lock(&self.pages).saw(address.to_canonical(), now);
    }

    /// Whether a peer at `from` may be dialled at `target`, which it names for itself.
    pub(super) fn is_its_own(&self, target: SocketAddr, from: IpAddr) -> bool {
        let (target, from) = (canonical(target), from.to_canonical());
        target.ip() == from || self.is_at_member(&lock(&self.pages), target.ip())
    }

    /// Asks to dial an address, and counts the dial.
    pub(super) fn dial(&self, target: SocketAddr, now: Instant) -> Result<(), Refused> {
        let target = canonical(target);
        let mut pages = lock(&self.pages);
        let given = pages.given.contains(&target);
        // CHAN-20: what this member was given, where a peer has come from, or where the ledger has a member.
        let known = given || pages.seen.contains_key(&target.ip()) || self.is_at_member(&pages, target.ip());
        if !known || target.port() == 0 {
            return Err(Refused::Unknown);
        }
        // CHAN-21: by address and source, whoever names them.
        pages.dials(target.ip(), now).count(target, given, now).ok_or(Refused::Resting)
    }

    /// The dial has reached a peer of a swarm.
    pub(super) fn reached(&self, target: SocketAddr, now: Instant) {
        let target = canonical(target);
        let mut pages = lock(&self.pages);
        let dials = pages.dials(target.ip(), now);
        if dials.resting.remove(&target).is_some() {
            dials.vain.give_back();
        }
        pages.saw(target.ip(), now);
        if pages.given.contains(&target) {
            let reach = Reach::of(target.ip());
            pages.home = pages.home.map_or(reach, |home| reach.map(|reach| reach.min(home)));
        }
    }

    /// The dial has reached another peer than was said to be there.
    pub(super) fn mistaken(&self, target: SocketAddr, now: Instant) {
        let target = canonical(target);
        let mut pages = lock(&self.pages);
        let given = pages.given.contains(&target);
        // As one that came to nothing; what it says of being allowed is not asked.
        let _ = pages.dials(target.ip(), now).count(target, given, now);
    }

    fn is_at_member(&self, pages: &Pages, address: IpAddr) -> bool {
        // An address that reaches less far than the way to the others means another machine here than it does there.
        let far = Reach::of(address).is_some_and(|reach| reach >= pages.home.unwrap_or(Reach::Internet));
        far && self.sieve.is_host(&address)
    }
}

impl Pages {
    fn saw(&mut self, address: IpAddr, now: Instant) {
        self.seen.insert(address, now);
        let of = source(address);
        let beside = self.seen.iter().filter(|(seen, _)| source(**seen) == of);
        let crowded = beside.clone().count() > SEEN_OF_SOURCE;
        let oldest = |seen: &mut dyn Iterator<Item = (&IpAddr, &Instant)>| {
            seen.min_by_key(|(_, at)| **at).map(|(address, _)| *address)
        };
        let gone = match crowded {
            true => oldest(&mut beside.into_iter()),
            false if self.seen.len() > SEEN => oldest(&mut self.seen.iter()),
            false => None,
        };
        gone.map(|gone| self.seen.remove(&gone));
    }

    fn dials(&mut self, address: IpAddr, now: Instant) -> &mut Dials {
        let source = source(address);
        if self.dials.len() >= SOURCES && !self.dials.contains_key(&source) {
            self.dials.retain(|_, dials| !dials.is_idle(now));
            // Whoever comes from so many sources gains a dial by it, to a source of its own.
            if self.dials.len() >= SOURCES {
                self.dials.pop_first();
            }
        }
        self.dials.entry(source).or_insert_with(|| Dials {
            all: Purse::new(DIALS, now),
            vain: Purse::new(VAIN, now),
            resting: BTreeMap::new(),
        })
    }
}

impl Dials {
    /// Counts a dial as one that comes to nothing, until it has reached somebody: one that is given up says nothing more.
    fn count(&mut self, target: SocketAddr, given: bool, now: Instant) -> Option<()> {
        let rest = self.resting.get(&target);
        let resting = rest.is_some_and(|rest| rest.until > now);
        // What this member was given is few, and it must find back to it however many others are there.
        let spent = !given && (self.all.wait(now).is_some() || self.vain.wait(now).is_some());
        if resting || spent {
            return None;
        }
        let [first, longest] = if given { GIVEN_PAUSE } else { PAUSE };
        let pause = rest.map_or(first, |rest| (2 * rest.pause).min(longest));
        if self.resting.len() >= RESTING && rest.is_none() {
            let soonest = self.resting.iter().min_by_key(|(_, rest)| rest.until).map(|(target, _)| *target);
            soonest.map(|soonest| self.resting.remove(&soonest));
        }
        self.resting.insert(target, Rest { until: now + pause, pause });
        self.all.pay(1, now);
        self.vain.pay(1, now);
        Some(())
    }

    fn is_idle(&self, now: Instant) -> bool {
        self.all.is_full(now) && self.vain.is_full(now) && self.resting.values().all(|rest| rest.until <= now)
    }
}

/// One address has one name, in IPv4 and in IPv6 dress.
fn canonical(target: SocketAddr) -> SocketAddr {
    SocketAddr::new(target.ip().to_canonical(), target.port())
}

#[cfg(test)]
mod tests {
    use muster_core::ids::MemberId;

    use super::*;
    use crate::swarm::sieve::{Topic, Validity};

    /// The ledger has members at these addresses.
    struct Hosts(&'static [&'static str]);

    impl Sieve for Hosts {
        fn judge(&self, _: Topic, _: &[u8]) -> Validity {
            Validity::Ignore
        }

        fn knows(&self, _: &MemberId) -> bool {
            false
        }

        fn is_host(&self, address: &IpAddr) -> bool {
            self.0.iter().any(|host| *host == address.to_string())
        }
    }

    fn book(hosts: &'static [&'static str], home: Option<Reach>) -> Book {
        Book::new(Arc::new(Hosts(hosts)), home)
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn chan_20_only_known_addresses_are_dialled() {
        let now = Instant::now();
        let book = book(&["8.8.8.8", "10.0.0.8", "127.0.0.2"], None);
        for stranger in ["1.2.3.4:80", "127.0.0.1:22", "10.0.0.8:22", "[::ffff:127.0.0.2]:22", "0.0.0.0:1"] {
            assert_eq!(book.dial(at(stranger), now), Err(Refused::Unknown), "{stranger}");
        }
        assert_eq!(book.dial(at("8.8.8.8:1"), now), Ok(()), "the ledger has it");
        book.saw("1.2.3.4".parse().unwrap(), now);
        assert_eq!(book.dial(at("[::ffff:1.2.3.4]:80"), now), Ok(()), "a peer has come from there");
        book.give(at("10.0.0.1:7"));
        assert_eq!(book.dial(at("10.0.0.1:8"), now), Err(Refused::Unknown), "another port was given");
        assert_eq!(book.dial(at("10.0.0.1:7"), now), Ok(()));
        // Reached at a private address, the run is on this site: so are its members.
        assert_eq!(book.dial(at("10.0.0.8:22"), now), Err(Refused::Unknown));
        book.reached(at("10.0.0.1:7"), now);
        assert_eq!(book.dial(at("10.0.0.8:22"), now), Ok(()));
        assert_eq!(book.dial(at("127.0.0.2:22"), now), Err(Refused::Unknown));
    }

    #[test]
    fn chan_20_a_peer_names_its_own_source() {
        let book = book(&["8.8.8.8"], None);
        let from = "1.2.3.4".parse().unwrap();
        assert!(book.is_its_own(at("1.2.3.4:5"), from) && book.is_its_own(at("8.8.8.8:5"), from));
        assert!(!book.is_its_own(at("1.2.3.5:5"), from) && !book.is_its_own(at("127.0.0.1:5"), from));
    }

    #[test]
    fn chan_21_dials_to_an_address_and_to_a_source_are_bounded_whoever_names_them() {
        let began = Instant::now();
        let book = book(&[], None);
        book.saw("1.2.3.4".parse().unwrap(), began);
        // An hour of names, one address, ten times a second.
        let dialled = |target: SocketAddr, book: &Book| {
            let asked = (0..36_000).map(|tenth| began + Duration::from_millis(100 * tenth));
            asked.filter(|now| book.dial(target, *now).is_ok()).count()
        };
        assert_eq!(dialled(at("1.2.3.4:1"), &book), 8, "after 0, 15, 45, 105, … seconds");
        let ports = (2..1000).map(|port| SocketAddr::new("1.2.3.4".parse().unwrap(), port));
        let hour = began + Duration::from_secs(3600);
        let many = ports.filter(|target| book.dial(*target, hour).is_ok()).count();
        assert!((16..=32).contains(&many), "{many} ports of one source");
        book.give(at("5.6.7.8:1"));
        assert!((60..80).contains(&dialled(at("5.6.7.8:1"), &book)), "once a minute");
        // One that is there may be dialled again at once.
        let now = began + Duration::from_secs(7200);
        assert!(book.dial(at("1.2.3.4:9"), now).is_ok() && book.dial(at("1.2.3.4:9"), now).is_err());
        book.reached(at("1.2.3.4:9"), now);
        assert!(book.dial(at("1.2.3.4:9"), now).is_ok());
    }

    #[test]
    fn the_book_is_bounded() {
        let now = Instant::now();
        let book = book(&[], None);
        for number in 0..4096 {
            let address = IpAddr::from(std::net::Ipv4Addr::from_bits(0x0800_0000 + number));
            book.saw(address, now + Duration::from_millis(number.into()));
            let _ = book.dial(SocketAddr::new(address, 1), now);
            let beside = IpAddr::from(std::net::Ipv6Addr::from_bits(0x2001 << 112 | u128::from(number)));
            book.saw(beside, now);
        }
        let pages = lock(&book.pages);
        assert!(pages.seen.len() <= SEEN && pages.dials.len() <= SOURCES);
        assert!(pages.seen.keys().filter(|seen| seen.is_ipv6()).count() <= SEEN_OF_SOURCE);
    }
}
