//! Shares: what each peer may take of this process, by its role, its name and its source, before anything is served.
//!
//! Whoever listens makes one [`Shares`] for all its ports. It divides connections ([`crate::seats`]), handshakes and
//! strangers' requests in a time (`pace`), and bytes of messages (`budget`); [`Turns`] divide slow work. A member never
//! waits for a stranger, and never for what another member has taken beyond its part.

mod budget;
mod pace;
mod role;
mod turns;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use muster_core::ids::MemberId;
use muster_core::lock::lock;
use tokio::time;

use budget::Budget;
pub(crate) use budget::{Allowance, Held};
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
/// Sources of members that are remembered, and for how long.
const MEMBERS_FROM: usize = 4096;
const REMEMBERED: Duration = Duration::from_secs(3600);
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
    /// Sources from which members came, and when.
    members_from: Mutex<BTreeMap<Source, Instant>>,
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
            members_from: Mutex::default(),
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
    fn welcome(&self, source: Source) {
        let now = Instant::now();
        self.handshakes.give_back(source, self.knows(source, now));
        let mut from = lock(&self.members_from);
        if from.len() >= MEMBERS_FROM && !from.contains_key(&source) {
            let oldest = from.iter().min_by_key(|(_, seen)| **seen).map(|(source, _)| *source);
            oldest.and_then(|oldest| from.remove(&oldest));
        }
        from.insert(source, now);
    }

    /// Whether members came from there lately, so that it does not wait for what strangers elsewhere do.
    fn knows(&self, source: Source, now: Instant) -> bool {
        lock(&self.members_from)
            .get(&source)
            .is_some_and(|seen| now.saturating_duration_since(*seen) < REMEMBERED)
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

    /// The handshake is over.
    pub(crate) fn greeted(&self, role: Role) {
        if role == Role::Member {
            self.shares.welcome(self.seat.source());
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

    /// CHAN-16: room for an answer, before it is made.
    pub(crate) async fn room(&self, allowance: &Allowance, bytes: usize) -> Held {
        // A few words need no leave: as many as each connection has memory for anyway.
        if bytes <= FEW_BYTES {
            return Held::default();
        }
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
