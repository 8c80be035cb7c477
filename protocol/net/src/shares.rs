//! Shares: what each peer may take of this process, by its role, its name and its source, before anything is served.
//!
//! Whoever listens makes one [`Shares`] for all its ports. It divides connections ([`crate::seats`]), handshakes and
//! strangers' requests in a time (`pace`), and bytes of messages (`budget`); [`Turns`] divide slow work. A member never
//! waits for a stranger, and never for what another member has taken beyond its part.

mod budget;
mod origins;
mod pace;
mod role;
mod turns;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use muster_core::ids::MemberId;
use muster_core::lock::lock;
use tokio::time;

use budget::Budget;
pub(crate) use budget::{Allowance, Held};
use origins::Origins;
use pace::{Pace, Rate};
pub use role::Role;
pub use turns::Turns;

use crate::seats::{Activity, ConnectionLimit, Seat, Seats, Standing};
use crate::source::Source;

/// Handshakes that one source may begin without becoming a member: a second, and at once.
const HANDSHAKES: Rate = Rate { per_second: 128, burst: 1024 };
/// The same for all sources together from which no member has come lately.
const ALL_HANDSHAKES: Rate = Rate { per_second: 512, burst: 4096 };
/// What strangers of one source may have answered, in KiB: 16 MiB a second, and 256 MiB at once.
const ANSWERS: Rate = Rate { per_second: 16 << 10, burst: 256 << 10 };
/// The same for all strangers together.
const ALL_ANSWERS: Rate = Rate { per_second: 32 << 10, burst: 512 << 10 };
/// What any request costs beside its answer, in KiB.
const REQUEST: u32 = 256;
/// Answers of so few bytes, sealed, are counted with their connection.
const FEW_BYTES: usize = 4 << 10;
/// How long strangers wait for room for an answer before the slowest reader among them loses its connection.
const HURRY: Duration = Duration::from_secs(1);

/// What all connections to this process share.
pub struct Shares {
    seats: Arc<Seats>,
    handshakes: Pace,
    answers: Pace,
    budget: Budget,
    /// Where members come from.
    origins: Mutex<Origins>,
}

impl Shares {
    /// Shares with so many connections.
    pub fn new(limit: ConnectionLimit) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            seats: Seats::new(limit),
            handshakes: Pace::new(HANDSHAKES, ALL_HANDSHAKES, now),
            answers: Pace::new(ANSWERS, ALL_ANSWERS, now),
            budget: Budget::new(),
            origins: Mutex::default(),
        })
    }

    /// Frees the descriptor of a stranger, because the system has none left; whether there was one (CHAN-13).
    pub fn relieve(&self) -> bool {
        self.seats.relieve()
    }

    /// CHAN-12, CHAN-15: a place for a connection that was dialled from here.
    pub(crate) fn admit(self: &Arc<Self>, source: Source) -> Option<Place> {
        let now = Instant::now();
        // The pace first: it costs less than a look at the seats.
        let known = self.knows(source, now);
        if !self.handshakes.take(source, known, now) {
            return None;
        }
        let seat = Arc::new(self.seats.admit(source, known, now)?);
        Some(Place { shares: self.clone(), seat })
    }

    /// CHAN-15: the handshake of a member is no part of what its source may begin.
    fn welcome(&self, member: MemberId, source: Source) {
        let now = Instant::now();
        self.handshakes.give_back(source, self.knows(source, now));
        lock(&self.origins).came(member, source, now);
    }

    /// CHAN-15: a member may come from there, as it did before this process began.
    pub fn expect(&self, member: MemberId, from: Source) {
        lock(&self.origins).came(member, from, Instant::now());
    }

    /// The newest source of each member that has come, or is expected.
    pub fn origins(&self) -> Vec<(MemberId, Source)> {
        lock(&self.origins).newest().collect()
    }

    /// Whether this member has come from there, or is expected to.
    pub fn comes_from(&self, member: &MemberId, source: Source) -> bool {
        lock(&self.origins).has(member, source)
    }

    /// Whether members came from there lately.
    pub(crate) fn knows_source(&self, source: Source) -> bool {
        self.knows(source, Instant::now())
    }

    /// Whether members came from there lately, so that it does not wait for what strangers elsewhere do.
    fn knows(&self, source: Source, now: Instant) -> bool {
        lock(&self.origins).knows(source, now)
    }
}

/// The place of one connection among all, free once all of its clones are dropped.
#[derive(Clone)]
pub(crate) struct Place {
    shares: Arc<Shares>,
    seat: Arc<Seat>,
}

impl Place {
    /// What the peer may take, now that it is known; `None` where there is no room for its kind.
    pub(crate) fn settle(&self, peer: MemberId, role: Role) -> Option<Allowance> {
        let standing = match role {
            Role::Member => Standing::Member(peer),
            Role::Stranger => Standing::Stranger,
        };
        self.seat.settle(standing, Instant::now()).then(|| match role {
            Role::Member => self.shares.budget.of_member(peer),
            Role::Stranger => self.shares.budget.of_stranger(self.seat.source()),
        })
    }

    /// The handshake with this peer is over.
    pub(crate) fn greeted(&self, peer: MemberId, role: Role) {
        if role == Role::Member {
            self.shares.welcome(peer, self.seat.source());
        }
    }

    /// What the connection does from now on.
    pub(crate) fn does(&self, activity: Activity) {
        self.seat.does(activity, Instant::now());
    }

    /// Waits until somebody else has the place.
    pub(crate) async fn taken_away(&self) {
        self.seat.taken_away().await;
    }

    /// CHAN-17: waits until the next request may be answered. A member never waits.
    pub(crate) async fn wait_for_pace(&self, role: Role) {
        if role != Role::Stranger {
            return;
        }
        loop {
            let wait = self.shares.answers.wait(self.seat.source(), false, Instant::now());
            if wait.is_zero() {
                return;
            }
            time::sleep(wait).await;
        }
    }

    /// Counts an answer.
    pub(crate) fn count_answer(&self, role: Role, bytes: usize) {
        if role == Role::Stranger {
            let cost = REQUEST.saturating_add(u32::try_from(bytes >> 10).unwrap_or(u32::MAX));
            self.shares.answers.spend(self.seat.source(), cost, false, Instant::now());
        }
    }

    /// CHAN-16: room for an answer of at most so many bytes, before it is made.
    pub(crate) async fn room(&self, allowance: &Allowance, bytes: usize) -> Held {
        // A few words need no leave: as many as each connection has memory for anyway.
        if bytes <= FEW_BYTES {
            return Held::default();
        }
        // A line is divided among the connections that send. Of the answers to a member four are under way, however
        // many connections it has.
        let bytes = match allowance.role {
            Role::Member => budget::ANSWER,
            Role::Stranger => bytes,
        };
        let taken = allowance.outgoing.take(bytes);
        tokio::pin!(taken);
        loop {
            match time::timeout(HURRY, &mut taken).await {
                Ok(held) => return held,
                // Else a few that read nothing would hold what all strangers share.
                Err(_) if allowance.role == Role::Stranger => {
                    self.shares.seats.hurry_strangers(Instant::now());
                }
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use muster_core::ids::{Digest, RunId};
    use muster_core::limits;
    use muster_core::sign::Identity;

    use super::*;
    use crate::connection::Connection;
    use crate::endpoint::Endpoint;
    use crate::listener::Listener;

    /// What one source may have of all bytes to strangers, and of all bytes from them.
    const OUT: usize = 8 << 20;
    const IN: usize = 2730 << 10;
    const LONG: Duration = Duration::from_secs(60);
    /// Long enough for what is there already to be read.
    const MOMENT: Duration = Duration::from_millis(200);

    fn source(number: u8) -> Source {
        Source::of(Ipv4Addr::new(10, 0, 0, number).into())
    }

    /// Shares with more connections than any test opens.
    fn shares() -> Arc<Shares> {
        Shares::new(ConnectionLimit { total: 1 << 16, per_source: 1 << 16 })
    }

    #[test]
    fn chan_15_handshakes_that_end_without_a_member_are_bounded_by_source_and_together() {
        let (shares, began) = (shares(), Instant::now());
        let many = 2 * HANDSHAKES.burst;
        let begin = |source| (0..many).filter(|_| shares.admit(source).is_some()).count();
        // Beside what is paid for by the time that this takes.
        let most =
            |rate: Rate| (rate.burst + rate.per_second * (1 + began.elapsed().as_secs() as u32)) as usize;
        let home = source(1);
        shares.admit(home).unwrap().greeted(MemberId([1; 32]), Role::Member);
        let first = begin(source(2));
        assert!(first <= most(HANDSHAKES) && first >= HANDSHAKES.burst as usize, "{first} of one source");
        let all = first + (3..11).map(|number| begin(source(number))).sum::<usize>();
        assert!(all <= most(ALL_HANDSHAKES), "{all} of all sources");
        // Where members come from nobody waits for strangers elsewhere, and their own handshakes count for nothing.
        for _ in 0..many {
            shares.admit(home).expect("a member comes from there").greeted(MemberId([1; 32]), Role::Member);
        }
        let now = Instant::now();
        assert!(shares.knows(home, now) && !shares.knows(home, now + origins::REMEMBERED), "for an hour");
    }

    #[tokio::test]
    async fn chan_17_strangers_pay_for_the_bytes_of_their_answers_by_source_and_together() {
        let shares = shares();
        let [one, other, third] = [1, 2, 3].map(|number| shares.admit(source(number)).unwrap());
        let waits = async |place: &Place, role| {
            time::timeout(Duration::ZERO, place.wait_for_pace(role)).await.is_err()
        };
        let much = (ANSWERS.burst as usize) << 10;
        third.count_answer(Role::Member, 64 * much);
        assert!(!waits(&third, Role::Stranger).await, "a member's answers cost nothing");
        one.count_answer(Role::Stranger, much + much / 2);
        assert!(waits(&one, Role::Stranger).await && !waits(&other, Role::Stranger).await);
        assert!(!waits(&one, Role::Member).await);
        other.count_answer(Role::Stranger, much + much / 2);
        assert!(waits(&third, Role::Stranger).await, "all of them have had what all may have");
    }

    #[tokio::test]
    async fn chan_16_a_stranger_that_reads_nothing_loses_its_connection_to_one_that_waits_for_room() {
        let shares = shares();
        let stranger = |number| {
            let place = shares.admit(source(number)).unwrap();
            let allowance = place.settle(MemberId([number; 32]), Role::Stranger).unwrap();
            (place, allowance)
        };
        let (mut held, readers) = (Vec::new(), [1, 2, 3].map(stranger));
        for (place, allowance) in &readers {
            held.push(place.room(allowance, OUT).await);
            place.does(Activity::Sending);
        }
        let (waiting, allowance) = stranger(4);
        let gives_way = async {
            tokio::select! {
                () = readers[0].0.taken_away() => {}
                _ = waiting.room(&allowance, OUT) => panic!("there is no room for it"),
            }
        };
        time::timeout(LONG, gives_way).await.expect("the one that has read nothing for longest");
        held.clear();
        time::timeout(LONG, waiting.room(&allowance, OUT)).await.expect("its share is free again");
    }

    #[tokio::test]
    async fn chan_16_a_member_with_many_connections_is_sent_four_answers_at_once() {
        let shares = shares();
        let place = shares.admit(source(1)).unwrap();
        let [one, other] = [1, 2].map(|number| place.settle(MemberId([number; 32]), Role::Member).unwrap());
        let piece = FEW_BYTES + 1;
        let mut sent = Vec::new();
        while let Ok(room) = time::timeout(MOMENT, place.room(&one, piece)).await {
            sent.push(room);
        }
        assert_eq!(sent.len(), 4, "however short they are");
        assert!(time::timeout(MOMENT, place.room(&other, piece)).await.is_ok(), "of another member");
        assert!(time::timeout(MOMENT, place.room(&one, FEW_BYTES)).await.is_ok(), "a few words");
        sent.pop();
        assert!(time::timeout(MOMENT, place.room(&one, piece)).await.is_ok());
    }

    #[tokio::test]
    async fn chan_16_a_request_is_read_once_the_share_of_its_peer_has_room_for_it() {
        let endpoint = |name| {
            let identity = Arc::new(Identity::from_secret(&[name; 32]));
            Endpoint::new(RunId(Digest([1; 32])), identity)
        };
        // One frame, for which nothing is left; several, of which one fits.
        for (bytes, left) in [(48 << 10, 0), (limits::STRANGER_BYTES, 128 << 10)] {
            let listener = Listener::bind("127.0.0.1:0", ConnectionLimit::default()).await.unwrap();
            let address = listener.local_addr().to_string();
            let dialler = tokio::spawn(async move {
                let mut connection = Connection::dial(&address, &endpoint(1), None).await.unwrap();
                connection.send(&vec![7; bytes]).await.unwrap();
                connection
            });
            let incoming = listener.accept().await;
            let place = incoming.place();
            let mut connection = incoming.establish(&endpoint(2)).await.unwrap();
            let allowance = place.settle(connection.peer(), Role::Stranger).unwrap();
            let held = allowance.incoming.take(IN - left).await;
            connection.begins().await.unwrap();
            let taken = connection.take(&allowance);
            tokio::pin!(taken);
            assert!(time::timeout(MOMENT, &mut taken).await.is_err(), "{bytes} bytes without room");
            drop(held);
            assert_eq!(taken.await.unwrap().0.len(), bytes);
            drop(dialler.await);
        }
    }
}
