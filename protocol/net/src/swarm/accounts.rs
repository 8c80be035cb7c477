//! What each peer of the swarm may bring, and what it has brought that was of no use (CHAN-22).
//!
//! Strangers have a purse for each source, and one together; each member has one of its own. What is read is charged as
//! it is read, whatever protocol it is for; where nothing is left, reading waits, and the peer's own system holds it back.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use libp2p::PeerId;
use muster_core::ids::MemberId;
use muster_core::lock::lock;

use super::registry;
use super::sieve::Sieve;
use crate::purse::{Allowance, Purse};
use crate::source::source;

/// Bytes of one source of strangers, of all strangers, and of one member.
const SOURCE: Allowance = Allowance::a_second(32 << 10, 256 << 10);
const STRANGERS: Allowance = Allowance::a_second(256 << 10, 2 << 20);
const MEMBER: Allowance = Allowance::a_second(256 << 10, 4 << 20);
/// Useless messages of one source of strangers, and of one member, before they are refused.
const USELESS_OF_SOURCE: Allowance = Allowance::a_second(1, 128);
const USELESS_OF_MEMBER: Allowance = Allowance::a_second(16, 2048);
/// As many useless messages weighs one that no honest peer passes on.
pub(super) const FALSE: u32 = 8;
/// Purses kept at most; full ones are forgotten first, since a new one says the same.
const PURSES: usize = 4096;

/// Who pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Payer {
    /// A member of the run.
    Member(MemberId),
    /// Whoever else comes from here.
    Source(IpAddr),
}

/// One end of a connection, as it was when it opened; whether it is a member's is asked each time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote {
    member: Option<MemberId>,
    source: IpAddr,
}

impl Remote {
    /// A peer at an address.
    pub(super) fn new(peer: &PeerId, address: IpAddr) -> Self {
        Self { member: registry::member(peer), source: source(address) }
    }
}

#[derive(Clone, Copy)]
struct Account {
    bytes: Purse,
    useless: Purse,
}

struct Purses {
    strangers: Purse,
    accounts: BTreeMap<Payer, Account>,
}

/// The accounts of one swarm.
pub(super) struct Accounts {
    sieve: Arc<dyn Sieve>,
    purses: Mutex<Purses>,
}

impl Accounts {
    pub(super) fn new(sieve: Arc<dyn Sieve>) -> Self {
        let strangers = Purse::new(STRANGERS, Instant::now());
        Self { sieve, purses: Mutex::new(Purses { strangers, accounts: BTreeMap::new() }) }
    }

    /// Who pays for a connection now: a newcomer becomes a member while it is connected.
    pub(super) fn payer(&self, remote: &Remote) -> Payer {
        let member = remote.member.filter(|member| self.sieve.knows(member));
        member.map_or(Payer::Source(remote.source), Payer::Member)
    }

    /// How long a connection has to wait before more of it is read.
    pub(super) fn wait(&self, remote: &Remote, now: Instant) -> Option<Duration> {
        let payer = self.payer(remote);
        let purses = lock(&self.purses);
        let own = purses.accounts.get(&payer).and_then(|account| account.bytes.wait(now));
        let all = match payer {
            Payer::Source(_) => purses.strangers.wait(now),
            Payer::Member(_) => None,
        };
        own.max(all)
    }

    /// Charges what was read of a connection.
    pub(super) fn read(&self, remote: &Remote, bytes: usize, now: Instant) {
        let (payer, bytes) = (self.payer(remote), u32::try_from(bytes).unwrap_or(u32::MAX));
        let mut purses = lock(&self.purses);
        purses.account(payer, now).bytes.pay(bytes, now);
        if matches!(payer, Payer::Source(_)) {
            purses.strangers.pay(bytes, now);
        }
    }

    /// Charges a message of no use. Gives who pays where it has brought too many.
    pub(super) fn useless(&self, remote: &Remote, weight: u32, now: Instant) -> Option<Payer> {
        let payer = self.payer(remote);
        let mut purses = lock(&self.purses);
        let useless = &mut purses.account(payer, now).useless;
        useless.pay(weight, now);
        useless.wait(now).map(|_| payer)
    }
}

impl Purses {
    fn account(&mut self, payer: Payer, now: Instant) -> &mut Account {
        if self.accounts.len() >= PURSES && !self.accounts.contains_key(&payer) {
            self.accounts.retain(|_, account| !(account.bytes.is_full(now) && account.useless.is_full(now)));
            // None of so many sources is idle: any of them makes room, the strangers' common purse bounds them all.
            if self.accounts.len() >= PURSES {
                self.accounts.pop_last();
            }
        }
        let (bytes, useless) = match payer {
            Payer::Member(_) => (MEMBER, USELESS_OF_MEMBER),
            Payer::Source(_) => (SOURCE, USELESS_OF_SOURCE),
        };
        let new = || Account { bytes: Purse::new(bytes, now), useless: Purse::new(useless, now) };
        self.accounts.entry(payer).or_insert_with(new)
    }
}

#[cfg(test)]
mod tests {
    use libp2p::identity::Keypair;
    use muster_core::sign::Identity;

    use super::*;
    use crate::swarm::sieve::{Topic, Validity};

    struct Known(MemberId);

    impl Sieve for Known {
        fn judge(&self, _: Topic, _: &[u8]) -> Validity {
            Validity::Ignore
        }

        fn knows(&self, member: &MemberId) -> bool {
            *member == self.0
        }

        fn is_host(&self, _: &IpAddr) -> bool {
            false
        }
    }

    fn scene() -> (Accounts, Remote) {
        let me = Identity::from_secret(&[7; 32]);
        let keypair = Keypair::ed25519_from_bytes(&mut me.secret()[..]).unwrap();
        let member = Remote::new(&keypair.public().to_peer_id(), "10.0.0.1".parse().unwrap());
        (Accounts::new(Arc::new(Known(me.id()))), member)
    }

    fn stranger(address: &str) -> Remote {
        Remote::new(&PeerId::random(), address.parse().unwrap())
    }

    /// CHAN-22: new keys, and new addresses of one network, bring no more; members do not pay for strangers.
    #[test]
    fn chan_22_strangers_pay_by_source_and_together_and_members_alone() {
        let (accounts, member) = scene();
        let now = Instant::now();
        accounts.read(&stranger("10.0.0.1"), SOURCE.burst as usize + 1, now);
        assert!(accounts.wait(&stranger("10.0.0.1"), now).is_some());
        assert!(accounts.wait(&member, now).is_none(), "a member at the strangers' address");
        accounts.read(&stranger("2001:db8::1"), SOURCE.burst as usize + 1, now);
        assert!(accounts.wait(&stranger("2001:db8::ffff:1"), now).is_some());
        assert!(accounts.wait(&stranger("2001:db8:0:1::1"), now).is_none());
        for source in 0..8 {
            accounts.read(&stranger(&format!("10.0.1.{source}")), SOURCE.burst as usize, now);
        }
        assert!(accounts.wait(&stranger("10.0.2.1"), now).is_some(), "all strangers together");
        assert!(accounts.wait(&member, now).is_none());
        let later = now + Duration::from_secs(20);
        assert!(accounts.wait(&stranger("10.0.0.1"), later).is_none());
    }

    #[test]
    fn chan_22_what_is_of_no_use_has_a_price() {
        let (accounts, member) = scene();
        let now = Instant::now();
        let source = |address: &str| Payer::Source(address.parse().unwrap());
        let brought = (0..200).find_map(|_| accounts.useless(&stranger("10.0.0.1"), 1, now));
        assert_eq!(brought, Some(source("10.0.0.1")));
        assert_eq!(accounts.useless(&stranger("10.0.0.2"), 1, now), None);
        assert_eq!(accounts.useless(&member, 200, now), None);
        let lies = (1..).find(|_| accounts.useless(&stranger("10.0.0.3"), FALSE, now).is_some());
        assert_eq!(lies, Some(16));
        assert_eq!(accounts.useless(&stranger("10.0.0.1"), 1, now + Duration::from_secs(60)), None);
    }

    #[test]
    fn accounts_are_bounded() {
        let (accounts, _) = scene();
        let now = Instant::now();
        for number in 0..2 * PURSES as u32 {
            let address = std::net::Ipv4Addr::from_bits(number).into();
            accounts.read(&Remote::new(&PeerId::random(), address), 1, now);
        }
        assert!(lock(&accounts.purses).accounts.len() <= PURSES);
    }
}
