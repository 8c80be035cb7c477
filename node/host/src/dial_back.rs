//! Whether members can be dialled where they say: tried before it is sealed (CHAN-24).
//!
//! What the ledger says of a member is dialled by every other one. Without a look at it, one invitation would have the
//! whole run dial whomever its holder names, and somebody whom nobody can reach would be given parts to combine.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use muster_core::ids::{MemberId, RunId};
use muster_core::limits;
use muster_core::lock::lock;
use muster_core::manifest::{Manifest, Mode};
use muster_core::messages::enrol::{Addresses, Enrol};
use muster_core::messages::wire::{Notice, Request};
use muster_net::client::Client;
use muster_net::endpoint::{Endpoint, Timeouts};
use muster_net::purse::{Allowance, Purse};
use muster_net::reach::Reach;
use muster_net::source::source;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time;

/// How long a member has for the handshake at each of its addresses, and how long a request waits for its turn.
const HANDSHAKE: Duration = Duration::from_secs(5);
const TURN: Duration = Duration::from_secs(10);
/// Requests whose addresses are tried at once: of newcomers, and of members.
const AT_ONCE: usize = 8;
/// Dials to one source, whoever asks for them; those for one member; and all for newcomers.
const SOURCE: Allowance = Allowance { burst: 64, each: Duration::from_secs(4) };
const MEMBER: Allowance = Allowance { burst: 16, each: Duration::from_secs(15) };
const NEWCOMERS: Allowance = Allowance { burst: 256, each: Duration::from_secs(1) };
/// Sources and members that are remembered.
const REMEMBERED: usize = limits::MEMBERS;

struct Tried {
    newcomers: Purse,
    sources: BTreeMap<IpAddr, Purse>,
    found_before: BTreeMap<MemberId, Purse>,
    /// Where members were found.
    found: BTreeMap<MemberId, Addresses>,
}

/// Tries the addresses of those who enrol and return.
pub(super) struct DialBack {
    run: RunId,
    manifest: Arc<Manifest>,
    endpoint: Endpoint,
    home: Reach,
    turns: [Semaphore; 2],
    tried: Mutex<Tried>,
}

impl DialBack {
    /// For a steward that members dial at these addresses.
    pub(super) fn new(manifest: Arc<Manifest>, endpoint: &Endpoint, told: &[String]) -> Self {
        let timeouts = Timeouts { handshake: HANDSHAKE, ..Timeouts::default() };
        let newcomers = Purse::new(NEWCOMERS, Instant::now());
        let (sources, found_before, found) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self {
            run: manifest.run(),
            manifest,
            endpoint: endpoint.clone().with_timeouts(timeouts),
            home: home(told),
            turns: [(); 2].map(|()| Semaphore::new(AT_ONCE)),
            tried: Mutex::new(Tried { newcomers, sources, found_before, found }),
        }
    }

    /// CHAN-24: an enrolment or a return goes on once its author was found at each address that it names.
    ///
    /// # Errors
    /// In a sentence for its author: which address, and why; or that it may not come at all.
    pub(super) async fn check(
        &self,
        request: &Request,
        is_member: impl Fn(&MemberId) -> bool,
    ) -> Result<(), String> {
        let Some((author, addresses)) = self.named(request) else { return Ok(()) };
        let before = lock(&self.tried).found.get(&author).cloned();
        if addresses.is_empty() || before.as_ref() == Some(&addresses) {
            return Ok(());
        }
        if !self.may_come(request, &author, &is_member) {
            return Err(NOBODY.into());
        }
        // A member has its own dials, also where this process has never found it.
        let returns = is_member(&author);
        let targets = addresses.iter().map(|address| self.target(address));
        let targets = targets.collect::<Result<Vec<_>, _>>()?;
        let turn = time::timeout(TURN, self.turns[usize::from(returns)].acquire()).await;
        let Ok(Ok(_turn)) = turn else { return Err(BUSY.into()) };
        // By who asks before by who is dialled: newcomers must not use up what members have.
        if !self.pay(&author, &targets, returns, Instant::now()) {
            return Err(BUSY.into());
        }
        let mut dials = JoinSet::new();
        for target in targets {
            let endpoint = self.endpoint.clone();
            dials.spawn(async move {
                let dialled = Client::dial(&target.to_string(), &endpoint, Some(author)).await;
                dialled.map(drop).map_err(|error| format!("this steward cannot reach you at {error}"))
            });
        }
        while let Some(dialled) = dials.join_next().await {
            dialled.map_err(|_| BUSY.to_owned())??;
        }
        lock(&self.tried).find(author, addresses);
        Ok(())
    }

    /// Whose addresses a request names. What is not signed is refused elsewhere.
    fn named(&self, request: &Request) -> Option<(MemberId, Addresses)> {
        match request {
            Request::Enrol(signed) => {
                let said = signed.verify(self.run).ok()?;
                Some((said.author(), said.addresses.clone()))
            }
            Request::Notice(Notice::Return(signed)) => {
                let said = signed.verify(self.run).ok()?;
                Some((said.author(), said.addresses.clone()))
            }
            _ => None,
        }
    }

    /// Whether somebody has let the author come. The ledger looks at everything; this much is known before a dial, so that nobody
    /// uses up the dials of newcomers without an invitation.
    fn may_come(&self, request: &Request, author: &MemberId, is_member: impl Fn(&MemberId) -> bool) -> bool {
        let Request::Enrol(signed) = request else { return is_member(author) };
        let Ok(enrol) = signed.verify(self.run) else { return false };
        match &self.manifest.admission.mode {
            _ if enrol.invitation.is_some() => self.is_invited(author, &enrol, is_member).unwrap_or(false),
            Mode::Invited => false,
            Mode::Listed(listed) => [&listed.founders, &listed.nodes, &listed.verifiers]
                .iter()
                .any(|known| known.contains(author)),
            Mode::Open => true,
        }
    }

    /// Whether the organiser or a member has invited the author (STAND-5, STAND-9).
    fn is_invited(
        &self,
        author: &MemberId,
        enrol: &Enrol,
        is_member: impl Fn(&MemberId) -> bool,
    ) -> Option<bool> {
        let presented = enrol.invitation.as_ref()?;
        let invitation = presented.invitation.verify(self.run).ok()?;
        let possession = presented.possession.verify(self.run).ok()?;
        let inviter = invitation.author();
        let invites = inviter == self.manifest.organiser || is_member(&inviter);
        Some(invites && possession.author() == invitation.key && possession.newcomer == *author)
    }

    fn target(&self, address: &str) -> Result<SocketAddr, String> {
        // A name may lead elsewhere as soon as it was sealed.
        let target = address
            .parse::<SocketAddr>()
            .map_err(|_| format!("{address} is no IP:PORT: members are dialled at numbers, not at names"))?;
        let far = Reach::of(target.ip()).is_some_and(|reach| reach >= self.home) && target.port() != 0;
        far.then_some(target).ok_or_else(|| {
            format!("{address} means another machine elsewhere: the steward is reached from farther away")
        })
    }

    fn pay(&self, author: &MemberId, targets: &[SocketAddr], returns: bool, now: Instant) -> bool {
        let mut tried = lock(&self.tried);
        let own = match returns {
            true => remembered(&mut tried.found_before, *author, MEMBER, now),
            false => Some(&mut tried.newcomers),
        };
        let may_ask = own.is_some_and(|own| targets.iter().all(|_| own.take(now)));
        let mut may_dial = |target: &SocketAddr| {
            let purse = remembered(&mut tried.sources, source(target.ip()), SOURCE, now);
            purse.is_some_and(|purse| purse.take(now))
        };
        may_ask && targets.iter().all(&mut may_dial)
    }
}

const NOBODY: &str = "nobody has invited you, or this invitation is for somebody else";
const BUSY: &str =
    "this steward tries too many addresses now: come again, or come without an address (--no-listen)";

impl Tried {
    fn find(&mut self, member: MemberId, addresses: Addresses) {
        if self.found.len() >= REMEMBERED && !self.found.contains_key(&member) {
            self.found.pop_first();
        }
        self.found.insert(member, addresses);
    }
}

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
    use muster_core::ledger::fixture::{Makers, Newcomer};
    use muster_core::sign::Identity;
    use muster_net::listener::Listener;
    use muster_net::seats::ConnectionLimit;

    use super::*;

    fn makers() -> Makers {
        Makers::of(7, 8)
    }

    fn manifest() -> Manifest {
        makers().tiny(1, 1)
    }

    fn identity(secret: u8) -> Arc<Identity> {
        Arc::new(Identity::from_secret(&[secret; 32]))
    }

    fn dial_back(told: &str) -> DialBack {
        let manifest = Arc::new(manifest());
        DialBack::new(manifest.clone(), &Endpoint::new(manifest.run(), identity(1)), &[told.to_owned()])
    }

    fn enrol(secret: u8, addresses: &[String]) -> Request {
        let texts = addresses.iter().map(|address| Text::new(address.as_str()).unwrap()).collect();
        let addresses = List::new(texts).unwrap();
        let (run, identity) = (manifest().run(), identity(secret));
        let enrol = Newcomer::node(&identity).enrol(run, &makers().organiser).verify(run).unwrap();
        Request::Enrol(identity.sign(run, &Enrol { addresses, ..enrol.into_inner() }))
    }

    /// Nobody is a member yet.
    fn is_none(_: &MemberId) -> bool {
        false
    }

    /// A member that answers handshakes, and where.
    async fn listens(secret: u8) -> (String, JoinSet<()>) {
        let listener = Listener::bind("127.0.0.1:0", ConnectionLimit::default()).await.unwrap();
        let (address, endpoint) =
            (listener.local_addr().to_string(), Endpoint::new(manifest().run(), identity(secret)));
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
        assert_eq!(steward.check(&enrol(2, std::slice::from_ref(&own)), is_none).await, Ok(()));
        assert_eq!(steward.check(&enrol(2, &[]), is_none).await, Ok(()));
        for wrong in [vec![others.clone()], vec![nobody], vec![own.clone(), others]] {
            let why = steward.check(&enrol(4, &wrong), is_none).await.unwrap_err();
            assert!(why.contains("cannot reach you"), "{why}");
        }
        let why = steward.check(&enrol(2, &["localhost:1".into()]), is_none).await.unwrap_err();
        assert!(why.contains("not at names"), "{why}");
    }

    #[tokio::test]
    async fn chan_24_the_stewards_own_network_is_not_dialled_for_others() {
        let steward = dial_back("8.8.8.8:7777");
        let victim = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        victim.set_nonblocking(true).unwrap();
        for inner in [victim.local_addr().unwrap().to_string(), "10.0.0.1:80".into(), "[fe80::1]:80".into()] {
            let why = steward.check(&enrol(2, &[inner]), is_none).await.unwrap_err();
            assert!(why.contains("means another machine"), "{why}");
        }
        assert!(victim.accept().is_err());
    }

    #[tokio::test]
    async fn chan_24_nobody_is_dialled_for_whom_nobody_has_invited() {
        let (steward, victim) =
            (dial_back("127.0.0.1:1"), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        victim.set_nonblocking(true).unwrap();
        let address = [victim.local_addr().unwrap().to_string()];
        let run = manifest().run();
        let Request::Enrol(invited) = enrol(2, &address) else { panic!("an enrolment") };
        let invited = invited.verify(run).unwrap().into_inner();
        // An invitation is public once somebody has used it.
        let stolen = invited.clone();
        let uninvited = Enrol { invitation: None, ..invited };
        for enrol in [uninvited, stolen] {
            let request = Request::Enrol(identity(3).sign(run, &enrol));
            assert_eq!(steward.check(&request, is_none).await, Err(NOBODY.into()));
        }
        assert!(victim.accept().is_err(), "nobody was dialled");
    }

    #[test]
    fn chan_24_dials_are_bounded_by_who_asks_and_by_who_is_dialled() {
        let (steward, now) = (dial_back("127.0.0.1:1"), Instant::now());
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let asked = (0..1000).filter(|_| steward.pay(&identity(2).id(), &[at("127.0.0.1:1")], true, now));
        assert_eq!(asked.count(), 16);
        let asked = (0..1000).filter(|_| steward.pay(&identity(3).id(), &[at("127.0.0.1:1")], false, now));
        assert_eq!(asked.count(), 48, "of one source 64 in all");
        let all = (0..1000).filter(|host| {
            let host = SocketAddr::new(std::net::Ipv4Addr::from_bits(0x0800_0000 + host).into(), 1);
            steward.pay(&identity(3).id(), &[host], false, now)
        });
        assert!(all.count() <= 256);
        assert!(
            steward.pay(&identity(4).id(), &[at("8.8.8.8:1")], true, now),
            "whoever was found has its own"
        );
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
