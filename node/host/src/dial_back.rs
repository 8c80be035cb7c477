//! Whether members can be dialled where they say: tried before it is sealed (CHAN-24).
//!
//! What the ledger says of a member is dialled by every other one. Without a look at it, one invitation would have the
//! whole run dial whomever its holder names, and somebody whom nobody can reach would be given parts to combine.
//!
//! The machine asks for a dial only for whoever may come or come back. Here dials are divided among those.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use muster_core::ids::MemberId;
use muster_core::limits;
use muster_core::lock::lock;
use muster_keeper::shares::{Places, Rank};
use muster_net::capacity::Capacity;
use muster_net::client::Client;
use muster_net::endpoint::{Endpoint, Timeouts};
use muster_net::punch::is_behind_router;
use muster_net::purse::{Allowance, Purse};
use muster_net::reach::Reach;
use muster_net::shares::Shares;
use muster_net::source::{Source, source};
use muster_roles::steward::{Dial, Payer};
use tokio::time;

/// How long a member has for the handshake at one of its addresses, and at all of them.
const HANDSHAKE: Duration = Duration::from_secs(5);
const ALL: Duration = Duration::from_secs(10);
/// How long a request waits for its turn.
const TURN: Duration = Duration::from_secs(10);
/// Dials to one source, of all who do not come from there themselves, and those of one payer.
const SOURCE: Allowance = Allowance { burst: 64, each: Duration::from_secs(4) };
const PAYER: Allowance = Allowance { burst: 16, each: Duration::from_secs(15) };
/// Sources and payers that are remembered.
const REMEMBERED: usize = limits::MEMBERS;

#[derive(Default)]
struct Purses {
    sources: BTreeMap<IpAddr, Purse>,
    /// Whatever newcomers there are, each member has its own.
    members: BTreeMap<MemberId, Purse>,
    newcomers: BTreeMap<MemberId, Purse>,
}

/// Tries the addresses of those who enrol and return.
pub(super) struct DialBack {
    endpoint: Endpoint,
    home: Reach,
    /// Where members come from.
    shares: Arc<Shares>,
    newcomers: Arc<Places>,
    members: Arc<Places>,
    purses: Mutex<Purses>,
}

impl DialBack {
    /// For a steward that members dial at these addresses, and that takes so many connections for it.
    pub(super) fn new(
        endpoint: &Endpoint,
        told: &[String],
        shares: Arc<Shares>,
        capacity: &Capacity,
    ) -> Self {
        let timeouts = Timeouts { handshake: HANDSHAKE, ..Timeouts::default() };
        let newcomers = capacity.looks.div_ceil(4);
        Self {
            endpoint: endpoint.clone().with_timeouts(timeouts),
            home: home(told),
            shares,
            newcomers: Places::new(newcomers, 0),
            members: Places::new((capacity.looks - newcomers).max(1), 0),
            purses: Mutex::default(),
        }
    }

    /// CHAN-24: whether somebody is at each address that it names.
    ///
    /// # Errors
    /// In a sentence for the one that is looked for: which address, and why.
    pub(super) async fn find(&self, dial: Dial) -> Result<(), String> {
        // CHAN-28: only members have a place at the relay, so that whoever is dialled there is one.
        if matches!(dial.payer, Payer::Newcomers(_)) && dial.addresses.iter().any(|at| is_behind_router(at)) {
            return Err(
                "a newcomer is not met at the relay yet: come without that address, and return with it"
                    .into(),
            );
        }
        let targets = dial.addresses.iter().filter_map(|address| self.target(address).transpose());
        let targets = targets.collect::<Result<Vec<_>, _>>()?;
        // Before its turn: what waits is bounded, too.
        let Some(rank) = self.pay(&dial, &targets, Instant::now()) else { return Err(BUSY.into()) };
        let (places, payer) = match dial.payer {
            Payer::Member(member) => (&self.members, member),
            Payer::Newcomers(key) => (&self.newcomers, key),
        };
        let turn = time::timeout(TURN, places.take(rank, payer)).await;
        let Ok(Some(_turn)) = turn else { return Err(BUSY.into()) };
        let unreachable = |what: &dyn Display| format!("this steward cannot reach you at {what}");
        // One after the other: a place is one connection, whatever a statement names.
        let dials = async {
            for address in dial.addresses.iter() {
                let dialled = Client::dial(address, &self.endpoint, Some(dial.author)).await;
                dialled.map_err(|error| unreachable(&error))?;
            }
            Ok(())
        };
        let late = |_| Err(unreachable(&format!("all of its addresses within {} s", ALL.as_secs())));
        time::timeout(ALL, dials).await.unwrap_or_else(late)
    }

    /// Where a dial leads, unless it leads to this steward's own relay, and to nobody who has not called there.
    fn target(&self, address: &str) -> Result<Option<SocketAddr>, String> {
        if is_behind_router(address) {
            return Ok(None);
        }
        // A name may lead elsewhere as soon as it was sealed.
        let target = address
            .parse::<SocketAddr>()
            .map_err(|_| format!("{address} is no IP:PORT: members are dialled at numbers, not at names"))?;
        let far = Reach::of(target.ip()).is_some_and(|reach| reach >= self.home) && target.port() != 0;
        far.then_some(Some(target)).ok_or_else(|| {
            format!("{address} means another machine elsewhere: the steward is reached from farther away")
        })
    }

    /// Pays for a dial to each target, or for none. Gives the rank of whoever asks, if it may: an address where nobody answers
    /// takes a place for as long as it can, so that whoever was not dialled for lately goes first.
    fn pay(&self, dial: &Dial, targets: &[SocketAddr], now: Instant) -> Option<Rank> {
        let mut purses = lock(&self.purses);
        // By who asks before by who is dialled: whoever asks too much uses up nothing of others.
        let own = match dial.payer {
            Payer::Member(member) => remembered(&mut purses.members, member, PAYER, now),
            Payer::Newcomers(key) => remembered(&mut purses.newcomers, key, PAYER, now),
        }?;
        let rank = if own.is_full(now) { Rank::Round } else { Rank::Member };
        let may_ask = dial.addresses.iter().all(|_| own.take(now));
        let mut may_dial = |target: &SocketAddr| {
            // Others could use up the dials to its source by naming it. It comes from there, so that nobody is called who
            // has not called.
            self.shares.comes_from(&dial.author, Source::of(target.ip()))
                || remembered(&mut purses.sources, source(target.ip()), SOURCE, now)
                    .is_some_and(|purse| purse.take(now))
        };
        (may_ask && targets.iter().all(&mut may_dial)).then_some(rank)
    }
}

const BUSY: &str = "this steward tries too many addresses now";

/// The purse of one of many; none where too many are in use.
fn remembered<K: Ord>(
    purses: &mut BTreeMap<K, Purse>,
    of: K,
    allowance: Allowance,
    now: Instant,
) -> Option<&mut Purse> {
    if purses.len() >= REMEMBERED && !purses.contains_key(&of) {
        purses.retain(|_, purse| !purse.is_full(now));
        if purses.len() >= REMEMBERED {
            return None;
        }
    }
    Some(purses.entry(of).or_insert_with(|| Purse::new(allowance, now)))
}

/// From how far away members reach the steward. One that tells people several addresses has loopback among them for its own
/// machine alone.
fn home(told: &[String]) -> Reach {
    let sockets = told.iter().filter_map(|address| address.parse::<SocketAddr>().ok());
    let reaches: Vec<Reach> = sockets.filter_map(|socket| Reach::of(socket.ip())).collect();
    let others = reaches.iter().filter(|reach| **reach > Reach::Machine).min();
    // Names are for people elsewhere.
    others.or(reaches.iter().min()).copied().unwrap_or(Reach::Internet)
}

#[cfg(test)]
mod tests {
    use muster_core::codec::{List, Text};
    use muster_core::ids::{Digest, RunId};
    use muster_core::messages::enrol::Addresses;
    use muster_core::sign::Identity;
    use muster_net::listener::Listener;
    use muster_net::seats::ConnectionLimit;
    use tokio::task::JoinSet;

    use super::*;

    const RUN: RunId = RunId(Digest([7; 32]));

    fn identity(secret: u8) -> Arc<Identity> {
        Arc::new(Identity::from_secret(&[secret; 32]))
    }

    /// With descriptors for so many connections.
    fn with_looks(told: &str, looks: usize) -> DialBack {
        let shares = Shares::new(ConnectionLimit::default());
        let capacity = Capacity { looks, ..Capacity::of(1 << 16) };
        DialBack::new(&Endpoint::new(RUN, identity(1)), &[told.to_owned()], shares, &capacity)
    }

    fn dial_back(told: &str) -> DialBack {
        with_looks(told, Capacity::of(1 << 16).looks)
    }

    /// Whether there is something left for a dial to each of these.
    fn pays(steward: &DialBack, payer: Payer, targets: &[SocketAddr], now: Instant) -> bool {
        let (Payer::Member(author) | Payer::Newcomers(author)) = payer;
        let texts = targets.iter().map(|target| Text::new(target.to_string()).unwrap()).collect();
        let dial = Dial { author, addresses: List::new(texts).unwrap(), payer };
        steward.pay(&dial, targets, now).is_some()
    }

    /// Where somebody accepts, and then says nothing.
    fn silence() -> (String, std::net::TcpListener) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        (listener.local_addr().unwrap().to_string(), listener)
    }

    fn dial(secret: u8, addresses: &[String]) -> Dial {
        let texts = addresses.iter().map(|address| Text::new(address.as_str()).unwrap()).collect();
        let addresses: Addresses = List::new(texts).unwrap();
        Dial { author: identity(secret).id(), addresses, payer: newcomers(secret) }
    }

    fn newcomers(key: u8) -> Payer {
        Payer::Newcomers(MemberId([key; 32]))
    }

    fn member(key: u8) -> Payer {
        Payer::Member(MemberId([key; 32]))
    }

    /// A member that answers handshakes, and where.
    async fn listens(secret: u8) -> (String, JoinSet<()>) {
        let listener = Listener::bind("127.0.0.1:0", ConnectionLimit::default()).await.unwrap();
        let (address, endpoint) = (listener.local_addr().to_string(), Endpoint::new(RUN, identity(secret)));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            loop {
                let _ = listener.accept().await.establish(&endpoint).await;
            }
        });
        (address, serving)
    }

    #[tokio::test]
    async fn chan_24_an_address_is_sealed_after_its_member_was_found_there() {
        let steward = dial_back("127.0.0.1:1");
        let ((own, _own), (others, _others)) = (listens(2).await, listens(3).await);
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        assert_eq!(steward.find(dial(2, std::slice::from_ref(&own))).await, Ok(()));
        for wrong in [vec![others.clone()], vec![nobody], vec![own.clone(), others]] {
            let why = steward.find(dial(4, &wrong)).await.unwrap_err();
            assert!(why.contains("cannot reach you"), "{why}");
        }
        let why = steward.find(dial(2, &["localhost:1".into()])).await.unwrap_err();
        assert!(why.contains("not at names"), "{why}");
        while pays(&steward, newcomers(2), &[own.parse().unwrap()], Instant::now()) {}
        assert_eq!(steward.find(dial(2, &[own])).await, Err(BUSY.into()), "its dials are used up");
    }

    /// Its relay serves members alone. A dial for somebody else would only wait, and remember the key.
    #[tokio::test]
    async fn chan_28_no_newcomer_is_looked_for_at_the_relay() {
        let steward = dial_back("127.0.0.1:1");
        let key = format!("iroh:{}", "07".repeat(32));
        let why = steward.find(dial(2, std::slice::from_ref(&key))).await.unwrap_err();
        assert!(why.contains("not met at the relay yet"), "{why}");
        let back = Dial { payer: member(2), ..dial(2, &[key]) };
        let why = steward.find(back).await.unwrap_err();
        assert!(why.contains("cannot reach you"), "{why}");
    }

    #[tokio::test]
    async fn chan_24_the_stewards_own_network_is_not_dialled_for_others() {
        let steward = dial_back("8.8.8.8:7777");
        let victim = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        victim.set_nonblocking(true).unwrap();
        for inner in [victim.local_addr().unwrap().to_string(), "10.0.0.1:80".into(), "[fe80::1]:80".into()] {
            let why = steward.find(dial(2, &[inner])).await.unwrap_err();
            assert!(why.contains("means another machine"), "{why}");
        }
        assert!(victim.accept().is_err());
    }

    #[test]
    fn chan_24_dials_are_bounded_by_who_asks_and_by_who_is_dialled() {
        let (steward, now) = (dial_back("127.0.0.1:1"), Instant::now());
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let dials = |payer, target: &str| {
            let target = [at(target)];
            (0..1000).filter(|_| pays(&steward, payer, &target, now)).count()
        };
        assert_eq!(dials(member(2), "127.0.0.1:1"), 16);
        assert_eq!(dials(newcomers(3), "127.0.0.1:1"), 16, "of all who come with one invitation");
        assert_eq!(
            (4..9).map(|key| dials(newcomers(key), "127.0.0.1:1")).sum::<usize>(),
            32,
            "64 to one source"
        );
        assert_eq!(dials(newcomers(9), "8.8.8.8:1"), 16, "another invitation has its own");
        assert_eq!(dials(member(9), "8.8.8.8:1"), 16, "and a member, too");
        for key in 0..=REMEMBERED as u64 {
            let mut name = [1; 32];
            name[..8].copy_from_slice(&key.to_le_bytes());
            pays(&steward, Payer::Newcomers(MemberId(name)), &[at("9.9.9.9:1")], now);
        }
        assert_eq!(dials(member(10), "7.7.7.7:1"), 16, "however many keys newcomers have");
    }

    /// Each of these asks for the same address; they wait in this order.
    fn hang(steward: &Arc<DialBack>, address: &str, payers: impl Iterator<Item = Payer>) -> JoinSet<()> {
        let mut hanging = JoinSet::new();
        for (name, payer) in (20..).zip(payers) {
            let dial = Dial { payer, ..dial(name, &[address.to_owned()]) };
            let steward = steward.clone();
            hanging.spawn(async move { drop(steward.find(dial).await) });
        }
        hanging
    }

    #[tokio::test]
    async fn chan_24_dials_that_hang_for_one_invitation_hold_up_no_other() {
        let (steward, (silent, _silent)) = (Arc::new(dial_back("127.0.0.1:1")), silence());
        // Whoever has an invitation has as many keys as it likes.
        let _hanging = hang(&steward, &silent, std::iter::repeat_n(newcomers(5), 40));
        tokio::task::yield_now().await;
        let (own, _own) = listens(2).await;
        let found = time::timeout(HANDSHAKE / 2, steward.find(dial(2, std::slice::from_ref(&own)))).await;
        assert_eq!(found, Ok(Ok(())));
    }

    #[tokio::test]
    async fn chan_24_dials_that_hang_for_many_members_hold_up_no_other() {
        let (steward, (silent, _silent)) = (Arc::new(dial_back("127.0.0.1:1")), silence());
        let _hanging = hang(&steward, &silent, (20..60).map(member));
        tokio::task::yield_now().await;
        let (own, _own) = listens(2).await;
        let back = Dial { payer: member(2), ..dial(2, &[own]) };
        assert_eq!(time::timeout(HANDSHAKE / 2, steward.find(back)).await, Ok(Ok(())));
    }

    /// Where there are fewer places than members whose addresses hang, these wait for each other.
    #[tokio::test]
    async fn chan_24_whoever_was_not_dialled_for_lately_goes_first() {
        let mut steward = with_looks("127.0.0.1:1", 2);
        let patience = Timeouts { handshake: Duration::from_millis(500), ..Timeouts::default() };
        steward.endpoint = steward.endpoint.with_timeouts(patience);
        let (steward, (silent, _silent)) = (Arc::new(steward), silence());
        // Each has been dialled for before, and asks again and again.
        let hanging: Vec<Payer> = (20..28).map(member).collect();
        let before = [silent.parse().unwrap()];
        assert!(hanging.iter().all(|payer| pays(&steward, *payer, &before, Instant::now())));
        let _hanging = hang(&steward, &silent, hanging.iter().cycle().take(24).copied());
        tokio::task::yield_now().await;
        let (own, _own) = listens(2).await;
        let back = Dial { payer: member(2), ..dial(2, &[own]) };
        assert_eq!(time::timeout(Duration::from_secs(2), steward.find(back)).await, Ok(Ok(())));
    }

    #[test]
    fn chan_24_nobody_uses_up_the_dials_to_where_a_member_comes_from() {
        let (steward, now) = (dial_back("127.0.0.1:1"), Instant::now());
        let at = "9.9.9.9:1".parse::<SocketAddr>().unwrap();
        steward.shares.expect(MemberId([2; 32]), Source::of(at.ip()));
        let named = (20..40).map(|name| (0..16).filter(|_| pays(&steward, member(name), &[at], now)).count());
        assert_eq!(named.sum::<usize>(), 64, "to one source, for all others");
        assert_eq!((0..100).filter(|_| pays(&steward, member(2), &[at], now)).count(), 16);
    }

    #[tokio::test]
    async fn chan_24_a_statement_takes_one_connection_at_a_time() {
        let (steward, (silent, listener)) = (dial_back("127.0.0.1:1"), silence());
        listener.set_nonblocking(true).unwrap();
        let all = vec![silent; limits::ADDRESSES];
        let back = Dial { payer: member(2), ..dial(2, &all) };
        let tried = time::timeout(Duration::from_millis(500), steward.find(back)).await;
        assert!(tried.is_err(), "it hangs");
        let taken = std::iter::from_fn(|| listener.accept().ok()).count();
        assert_eq!(taken, 1);
    }

    #[test]
    fn a_steward_is_as_far_away_as_it_says() {
        let of = |told: &[&str]| home(&told.iter().map(|told| (*told).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["127.0.0.1:1"]), Reach::Machine);
        assert_eq!(of(&["10.0.0.1:1", "127.0.0.1:1"]), Reach::Site);
        assert_eq!(of(&["8.8.8.8:1", "127.0.0.1:1"]), Reach::Internet);
        assert_eq!(of(&["example.org:1"]), Reach::Internet);
    }
}
