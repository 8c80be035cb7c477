//! Who is let into a swarm: a bounded number of connections by source, with seats that only members have (CHAN-23).

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use libp2p::core::transport::PortUse;
use libp2p::core::{ConnectedPoint, Endpoint};
use libp2p::swarm::behaviour::ConnectionEstablished;
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent,
    ToSwarm, dummy,
};
use libp2p::{Multiaddr, PeerId};

use super::accounts::{Accounts, Payer, Remote};
use super::address;
use crate::purse::{Allowance, Purse};
use crate::source::source;

/// Connections in the handshake: from others in all, from one source, and to others. Of the first a third, and of the last a sixth, of
/// the seats, where these are fewer.
const OPENING: usize = 64;
const OPENING_OF_SOURCE: usize = 16;
const DIALLING: usize = 32;
/// Connections that one source, and all together, begin: a handshake costs a signature and two key agreements.
const ARRIVALS: Allowance = Allowance::a_second(4, 64);
const ALL_ARRIVALS: Allowance = Allowance::a_second(32, 256);
/// Connections with one peer, and with the strangers of one source.
const OF_PEER: usize = 2;
const OF_SOURCE: usize = 16;
/// How long one that has brought too much of no use stays out, and how many are remembered.
const OUT: Duration = Duration::from_secs(300);
const REMEMBERED: usize = 1024;

/// Why a connection is refused.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Full(&'static str);

struct Open {
    peer: PeerId,
    address: IpAddr,
    remote: Remote,
    dialled: bool,
}

/// The connections of one swarm.
pub(super) struct Doors {
    accounts: Arc<Accounts>,
    /// Connections in all.
    seats: usize,
    opening: BTreeMap<ConnectionId, IpAddr>,
    dialling: BTreeSet<ConnectionId>,
    open: BTreeMap<ConnectionId, Open>,
    arrivals: BTreeMap<IpAddr, Purse>,
    all_arrivals: Purse,
    out: BTreeMap<Payer, Instant>,
}

impl Doors {
    pub(super) fn new(accounts: Arc<Accounts>, seats: usize) -> Self {
        Self {
            accounts,
            seats,
            opening: BTreeMap::new(),
            dialling: BTreeSet::new(),
            open: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            all_arrivals: Purse::new(ALL_ARRIVALS, Instant::now()),
            out: BTreeMap::new(),
        }
    }

    /// The other end of a peer's newest connection, and its address.
    pub(super) fn remote(&self, peer: &PeerId) -> Option<(Remote, IpAddr)> {
        let open = self.open.values().rev().find(|open| open.peer == *peer)?;
        Some((open.remote, open.address))
    }

    /// The addresses from which a peer is connected.
    pub(super) fn addresses(&self, peer: &PeerId) -> Vec<IpAddr> {
        self.open.values().filter(|open| open.peer == *peer).map(|open| open.address).collect()
    }

    /// Keeps somebody out for a while. Gives the peers that have to go.
    pub(super) fn shut_out(&mut self, payer: Payer, now: Instant) -> Vec<PeerId> {
        if self.out.len() >= REMEMBERED {
            let soonest = self.out.iter().min_by_key(|(_, until)| **until).map(|(payer, _)| *payer);
            soonest.map(|soonest| self.out.remove(&soonest));
        }
        self.out.insert(payer, now + OUT);
        let of = |open: &&Open| self.accounts.payer(&open.remote) == payer;
        self.open.values().filter(of).map(|open| open.peer).collect()
    }

    /// CHAN-23: before anything is computed for a connection that comes.
    fn arrive(&mut self, from: IpAddr, now: Instant) -> Result<(), Full> {
        let of = source(from);
        if self.opening.len() >= OPENING.min(self.seats / 3) {
            return Err(Full("too many connections are being opened"));
        }
        if self.opening.values().filter(|opening| **opening == of).count() >= OPENING_OF_SOURCE {
            return Err(Full("too many connections of one source are being opened"));
        }
        if self.arrivals.len() >= REMEMBERED {
            self.arrivals.retain(|_, purse| !purse.is_full(now));
        }
        // By source before all: one source must not use up what all have.
        let known = self.arrivals.len() < REMEMBERED || self.arrivals.contains_key(&of);
        let own = self.arrivals.entry(of).or_insert_with(|| Purse::new(ARRIVALS, now));
        let taken = known && own.take(now) && self.all_arrivals.take(now);
        if !known {
            self.arrivals.remove(&of);
        }
        taken.then_some(()).ok_or(Full("too many connections were begun"))
    }

    /// CHAN-23: strangers have a third of the seats, and of these one source has a few; the others are members'.
    fn enter(&self, peer: &PeerId, remote: &Remote, dialled: bool, now: Instant) -> Result<(), Full> {
        let payer = self.accounts.payer(remote);
        if self.out.get(&payer).is_some_and(|until| *until > now) {
            return Err(Full("it has brought too much of no use"));
        }
        if self.open.values().filter(|open| open.peer == *peer).count() >= OF_PEER {
            return Err(Full("it is connected"));
        }
        if self.open.len() >= self.seats {
            return Err(Full("all seats are taken"));
        }
        // Whom this member dials it has chosen itself.
        if dialled || matches!(payer, Payer::Member(_)) {
            return Ok(());
        }
        let strangers = self.open.values().filter(|open| !open.dialled);
        let sources: Vec<Payer> = strangers.map(|open| self.accounts.payer(&open.remote)).collect();
        let all = sources.iter().filter(|payer| matches!(payer, Payer::Source(_))).count();
        let beside = sources.iter().filter(|other| **other == payer).count();
        if all >= self.seats / 3 {
            return Err(Full("the strangers' seats are taken"));
        }
        if beside >= OF_SOURCE {
            return Err(Full("the seats of this source are taken"));
        }
        Ok(())
    }

    fn enters(&self, peer: &PeerId, address: &Multiaddr, dialled: bool) -> Result<(), ConnectionDenied> {
        let remote = Remote::new(peer, address::ip(address));
        self.enter(peer, &remote, dialled, Instant::now()).map_err(ConnectionDenied::new)
    }
}

impl NetworkBehaviour for Doors {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        id: ConnectionId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        let from = address::ip(remote);
        self.arrive(from, Instant::now()).map_err(ConnectionDenied::new)?;
        self.opening.insert(id, source(from));
        Ok(())
    }

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.opening.remove(&id);
        self.enters(&peer, remote, false)?;
        Ok(dummy::ConnectionHandler)
    }

    fn handle_pending_outbound_connection(
        &mut self,
        id: ConnectionId,
        _: Option<PeerId>,
        _: &[Multiaddr],
        _: Endpoint,
    ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
        if self.dialling.len() >= DIALLING.min(self.seats / 6) {
            return Err(ConnectionDenied::new(Full("too many peers are being dialled")));
        }
        self.dialling.insert(id);
        Ok(Vec::new())
    }

    fn handle_established_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.dialling.remove(&id);
        self.enters(&peer, address, true)?;
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ConnectionEstablished(ConnectionEstablished {
                peer_id,
                connection_id,
                endpoint,
                ..
            }) => {
                let (address, dialled) = (
                    address::ip(endpoint.get_remote_address()),
                    matches!(endpoint, ConnectedPoint::Dialer { .. }),
                );
                let remote = Remote::new(&peer_id, address);
                self.open.insert(connection_id, Open { peer: peer_id, address, remote, dialled });
            }
            FromSwarm::ConnectionClosed(closed) => drop(self.open.remove(&closed.connection_id)),
            FromSwarm::DialFailure(failed) => _ = self.dialling.remove(&failed.connection_id),
            FromSwarm::ListenFailure(failed) => drop(self.opening.remove(&failed.connection_id)),
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use libp2p::identity::Keypair;
    use muster_core::ids::MemberId;
    use muster_core::sign::Identity;

    use super::*;
    use crate::swarm::sieve::{Sieve, Topic, Validity};

    /// A run with these members.
    struct Known(Vec<MemberId>);

    impl Sieve for Known {
        fn judge(&self, _: Topic, _: &[u8]) -> Validity {
            Validity::Ignore
        }

        fn knows(&self, member: &MemberId) -> bool {
            self.0.contains(member)
        }

        fn is_host(&self, _: &IpAddr) -> bool {
            false
        }
    }

    fn member(number: u8) -> Identity {
        Identity::from_secret(&[number; 32])
    }

    fn peer(number: u8) -> PeerId {
        Keypair::ed25519_from_bytes(&mut member(number).secret()[..]).unwrap().public().to_peer_id()
    }

    /// Doors of a run with 50 members.
    fn doors(seats: usize) -> Doors {
        let members = (0..50).map(|number| member(number).id()).collect();
        Doors::new(Arc::new(Accounts::new(Arc::new(Known(members)))), seats)
    }

    fn host(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0A00_0000 + number).into()
    }

    /// Whether a peer gets a seat; it keeps it.
    fn sits(doors: &mut Doors, peer: PeerId, address: IpAddr, dialled: bool) -> bool {
        let remote = Remote::new(&peer, address);
        let enters = doors.enter(&peer, &remote, dialled, Instant::now()).is_ok();
        if enters {
            let id = ConnectionId::new_unchecked(doors.open.len());
            doors.open.insert(id, Open { peer, address, remote, dialled });
        }
        enters
    }

    #[test]
    fn chan_23_strangers_have_a_third_of_the_seats_and_one_source_a_few_of_these() {
        let mut doors = doors(60);
        let crowd = (0..100).filter(|_| sits(&mut doors, PeerId::random(), host(1), false)).count();
        assert_eq!(crowd, 16, "of one source");
        let others = (2..100).filter(|from| sits(&mut doors, PeerId::random(), host(*from), false)).count();
        assert_eq!(others, 4, "a third in all");
        assert!(sits(&mut doors, PeerId::random(), host(1), true), "whom this member dials itself");
        assert_eq!((0..9).filter(|_| sits(&mut doors, peer(0), host(1), false)).count(), 2, "of one peer");
        let members = (1..50).filter(|number| sits(&mut doors, peer(*number), host(1), false)).count();
        assert_eq!(members, 60 - 16 - 4 - 1 - 2, "all others");
        assert!(!sits(&mut doors, PeerId::random(), host(1), true), "there are no more");
    }

    #[test]
    fn chan_23_connections_that_begin_are_bounded_by_source_and_together() {
        let (mut gates, now) = (doors(300), Instant::now());
        let second = now + Duration::from_secs(1);
        let arrive = |doors: &mut Doors, from, now| doors.arrive(host(from), now).is_ok();
        assert_eq!((0..1000).filter(|_| arrive(&mut gates, 1, now)).count(), 64, "of one source");
        assert_eq!((0..1000).filter(|_| arrive(&mut gates, 1, second)).count(), 4, "a second later");
        let mut gates = doors(300);
        let now = Instant::now();
        assert_eq!((0..1000).filter(|from| arrive(&mut gates, *from, now)).count(), 256, "of all");
        // Those that have not ended their handshake.
        for (opening, of_source) in [(300, 16), (30, 10)] {
            let mut gates = doors(opening);
            let mut begun = 0;
            for number in 0..100 {
                if arrive(&mut gates, 1, now) {
                    begun += 1;
                    gates.opening.insert(ConnectionId::new_unchecked(number), source(host(1)));
                }
            }
            assert_eq!(begun, of_source, "of {opening} seats");
            assert_eq!(arrive(&mut gates, 2, now), opening == 300, "a third of the seats");
        }
        let mut gates = doors(300);
        let dials = (0..100).filter(|number| {
            let id = ConnectionId::new_unchecked(*number);
            gates.handle_pending_outbound_connection(id, None, &[], Endpoint::Dialer).is_ok()
        });
        assert_eq!(dials.count(), DIALLING);
    }

    #[test]
    fn chan_23_a_connection_that_comes_is_counted_before_its_handshake() {
        let mut gates = doors(300);
        let here: Multiaddr = "/ip4/127.0.0.1/tcp/1".parse().unwrap();
        let mut comes = |number: usize, from: &str| {
            let remote = from.parse::<Multiaddr>().unwrap();
            let id = ConnectionId::new_unchecked(number);
            gates.handle_pending_inbound_connection(id, &here, &remote).is_ok()
        };
        let begun = (0..100).filter(|number| comes(*number, "/ip4/192.0.2.1/tcp/1")).count();
        assert_eq!(begun, OPENING_OF_SOURCE);
        assert!(comes(100, "/ip4/192.0.2.2/tcp/1"), "another source");
    }

    #[test]
    fn chan_22_who_has_brought_too_much_of_no_use_stays_out_for_five_minutes() {
        let (mut doors, now) = (doors(60), Instant::now());
        let [one, other] = [1, 2].map(|from| (PeerId::random(), host(from)));
        assert!(sits(&mut doors, one.0, one.1, false) && sits(&mut doors, other.0, other.1, false));
        let remote = Remote::new(&PeerId::random(), one.1);
        assert_eq!(doors.shut_out(doors.accounts.payer(&remote), now), [one.0], "it has to go");
        let enters = |seconds| {
            let now = now + Duration::from_secs(seconds);
            doors.enter(&PeerId::random(), &remote, false, now).is_ok()
        };
        assert_eq!([0, 299, 300].map(enters), [false, false, true], "whatever its key");
        assert!(
            doors.enter(&PeerId::random(), &Remote::new(&peer(1), one.1), false, now).is_ok(),
            "a member"
        );
    }
}
