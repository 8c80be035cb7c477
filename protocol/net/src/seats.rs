//! Seats: how many connections may be open at once, by what is known of the peer.
//!
//! Three kinds of seats: before the handshake, when nobody knows who dials; of strangers; of members. Each kind has its own
//! share, so that none fills another. Where a share is full, whoever has most of it gives way: the source with the most
//! connections, the member with the most. A seat is taken away only from a connection that waits for its peer, or whose
//! peer takes too long.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use muster_core::ids::MemberId;
use muster_core::lock::lock;
use tokio::sync::Notify;

use crate::source::Source;

/// Connections of one member, at most: an honest one has three, and those that it has lost and nobody has noticed.
const PER_MEMBER: usize = 16;
/// The part of all seats that connections before the handshake have; that of strangers is as large.
const PART: usize = 8;
/// How long a connection keeps its seat whoever comes: as long as a handshake, or a next request, takes over a slow line.
const FRESH: Duration = Duration::from_secs(1);
/// How long a peer may read nothing of its answer before its seat is one that others may have.
const STUCK: Duration = Duration::from_secs(2);

/// How many connections are open at once, those in the handshake included.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimit {
    /// From everywhere.
    pub total: usize,
    /// From one IPv4 address or one IPv6 network of 64 bits, members' not counted.
    pub per_source: usize,
}

impl Default for ConnectionLimit {
    /// 512 and 64.
    fn default() -> Self {
        Self { total: 512, per_source: 64 }
    }
}

/// What is known of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// Nothing: its handshake is under way.
    Unknown,
    /// It is no member.
    Stranger,
    /// It is this one.
    Member(MemberId),
}

/// What a connection does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Activity {
    /// Waits for its peer.
    Idle,
    /// A request is being answered.
    Working,
    /// The peer is to read an answer.
    Sending,
}

struct Taken {
    source: Source,
    /// Whether members came from that source lately.
    known: bool,
    standing: Standing,
    activity: Activity,
    since: Instant,
    leave: Arc<Notify>,
}

impl Taken {
    /// Whether somebody else may have the seat.
    fn gives_way(&self, now: Instant) -> bool {
        let patience = match self.activity {
            Activity::Idle => FRESH,
            Activity::Sending => STUCK,
            Activity::Working => return false,
        };
        now.saturating_duration_since(self.since) >= patience
    }

    fn is_stranger(&self) -> bool {
        self.standing == Standing::Stranger
    }

    fn is_member(&self) -> bool {
        matches!(self.standing, Standing::Member(_))
    }

    fn is_unknown(&self) -> bool {
        self.standing == Standing::Unknown
    }
}

/// The seats of all ports that share them.
pub(crate) struct Seats {
    limit: ConnectionLimit,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    seats: BTreeMap<u64, Taken>,
    next: u64,
}

/// The right to one open connection, given back on drop.
pub(crate) struct Seat {
    seats: Arc<Seats>,
    number: u64,
    source: Source,
    leave: Arc<Notify>,
}

impl Seats {
    pub(crate) fn new(limit: ConnectionLimit) -> Arc<Self> {
        Arc::new(Self { limit, table: Mutex::default() })
    }

    /// CHAN-12, CHAN-14: the seat of a connection that begins its handshake; `None` where none is free, and nobody gives way.
    /// `known` says whether members came from its source lately.
    pub(crate) fn admit(self: &Arc<Self>, source: Source, known: bool, now: Instant) -> Option<Seat> {
        let mut table = self.lock();
        let here = |taken: &Taken| taken.source == source && !taken.is_member();
        if table.count(here) >= self.limit.per_source && !table.clear_one(now, here) {
            return None;
        }
        if table.count(Taken::is_unknown) >= self.part() && !table.make_room_for_unknown(source, known, now) {
            return None;
        }
        let (number, leave) = (table.next, Arc::new(Notify::new()));
        table.next += 1;
        let (standing, activity) = (Standing::Unknown, Activity::Idle);
        let taken = Taken { source, known, standing, activity, since: now, leave: leave.clone() };
        table.seats.insert(number, taken);
        Some(Seat { seats: self.clone(), number, source, leave })
    }

    /// Frees seats because the system has no descriptor left: strangers' first, then those of connections of which nothing
    /// is known. Whether there was one.
    pub(crate) fn relieve(&self) -> bool {
        let mut table = self.lock();
        // Whatever they do: what a member, or the disk, needs goes first.
        let number = table.oldest(Taken::is_stranger).or_else(|| table.oldest(Taken::is_unknown));
        number.is_some_and(|number| table.clear(number))
    }

    /// Frees the seat of a stranger that has read nothing of its answer for a while, if there is one.
    pub(crate) fn hurry_strangers(&self, now: Instant) -> bool {
        self.lock().clear_one(now, |taken| taken.is_stranger() && taken.activity == Activity::Sending)
    }

    fn part(&self) -> usize {
        (self.limit.total / PART).max(1)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// Makes room for a connection whose peer is known now. `number` is its own seat.
    fn make_room(&self, table: &mut Table, number: u64, source: Source, of: Standing, now: Instant) -> bool {
        let known = |taken: &Taken| !taken.is_unknown();
        let most = self.limit.total.saturating_sub(self.part()).max(1);
        match of {
            Standing::Unknown => true,
            Standing::Stranger => {
                let strangers = table.count(Taken::is_stranger);
                // CHAN-14: a stranger never takes the seat of a member.
                if strangers < self.part() && table.count(known) < most {
                    return true;
                }
                let crowded = table.crowded(Taken::is_stranger);
                let fair = |crowded: Source| {
                    let of =
                        |source: Source| move |taken: &Taken| taken.is_stranger() && taken.source == source;
                    crowded == source || table.count(of(crowded)) > table.count(of(source)) + 1
                };
                crowded.filter(|crowded| fair(*crowded)).is_some_and(|crowded| {
                    table.clear_one(now, |taken| taken.is_stranger() && taken.source == crowded)
                })
            }
            Standing::Member(member) => {
                let mine = |taken: &Taken| taken.standing == Standing::Member(member);
                // One that restarts has connections that nobody has noticed to be dead. Those that it uses are not taken
                // from it, or a member that opens ever more of them would lose the one that its round waits for.
                if table.count(mine) >= PER_MEMBER {
                    return table.clear_one(now, mine);
                }
                if table.count(known) < most {
                    return true;
                }
                // CHAN-14: a member takes the seat of a stranger, whatever that one does.
                if table.clear_any(number, Taken::is_stranger) {
                    return true;
                }
                let Some(largest) = table.largest_member() else { return false };
                let of_it = |taken: &Taken| taken.standing == Standing::Member(largest);
                table.count(of_it) > table.count(mine) + 1 && table.clear_any(number, of_it)
            }
        }
    }
}

impl Table {
    fn count(&self, of: impl Fn(&Taken) -> bool) -> usize {
        self.seats.values().filter(|taken| of(taken)).count()
    }

    fn oldest(&self, of: impl Fn(&Taken) -> bool) -> Option<u64> {
        let these = self.seats.iter().filter(|(_, taken)| of(taken));
        these.min_by_key(|(_, taken)| taken.since).map(|(number, _)| *number)
    }

    /// How many seats of this kind each source has.
    fn by_source(&self, of: impl Fn(&Taken) -> bool) -> BTreeMap<Source, usize> {
        let mut by_source: BTreeMap<Source, usize> = BTreeMap::new();
        for taken in self.seats.values().filter(|taken| of(taken)) {
            *by_source.entry(taken.source).or_default() += 1;
        }
        by_source
    }

    /// The source that has most seats of this kind.
    fn crowded(&self, of: impl Fn(&Taken) -> bool) -> Option<Source> {
        self.by_source(of).into_iter().max_by_key(|(_, count)| *count).map(|(source, _)| source)
    }

    /// The member that has most seats.
    fn largest_member(&self) -> Option<MemberId> {
        let mut by_member: BTreeMap<MemberId, usize> = BTreeMap::new();
        for taken in self.seats.values() {
            if let Standing::Member(member) = taken.standing {
                *by_member.entry(member).or_default() += 1;
            }
        }
        by_member.into_iter().max_by_key(|(_, count)| *count).map(|(member, _)| member)
    }

    /// Takes the seat of a connection in its handshake for one of this source.
    fn make_room_for_unknown(&mut self, source: Source, known: bool, now: Instant) -> bool {
        let by_source = self.by_source(Taken::is_unknown);
        let Some(most) = by_source.values().max().copied() else { return false };
        // All sources that have most: one of them would shield the others by a seat that is still fresh.
        let crowded = |taken: &Taken| taken.is_unknown() && by_source.get(&taken.source) == Some(&most);
        // The newest of a source with two more has lost least. Where a thousand sources have one each, those of members come
        // first, with one each: who dials without end from such a source keeps no newcomer out.
        let own = by_source.get(&source).copied().unwrap_or_default();
        self.clear_one(now, crowded)
            || most > own + 1 && self.clear_newest(crowded)
            || known && own == 0 && self.clear_newest(|taken| taken.is_unknown() && !taken.known)
    }

    /// Takes the seat of the one of these that came last; whether there was one.
    fn clear_newest(&mut self, of: impl Fn(&Taken) -> bool) -> bool {
        let found = self.seats.iter().rev().find(|(_, taken)| of(taken)).map(|(number, _)| *number);
        found.is_some_and(|number| self.clear(number))
    }

    /// Takes the seat of one of these that gives way, the one that has waited longest; whether there was one.
    fn clear_one(&mut self, now: Instant, of: impl Fn(&Taken) -> bool) -> bool {
        let slow = self.seats.iter().filter(|(_, taken)| of(taken) && taken.gives_way(now));
        let found = slow.min_by_key(|(_, taken)| taken.since).map(|(number, _)| *number);
        found.is_some_and(|number| self.clear(number))
    }

    /// The same whatever they do, those that wait for their peer first.
    fn clear_any(&mut self, but: u64, of: impl Fn(&Taken) -> bool) -> bool {
        let these = self.seats.iter().filter(|(number, taken)| **number != but && of(taken));
        let found = these.min_by_key(|(_, taken)| (taken.activity == Activity::Working, taken.since));
        let found = found.map(|(number, _)| *number);
        found.is_some_and(|number| self.clear(number))
    }

    fn clear(&mut self, number: u64) -> bool {
        // Counted as free at once; the connection ends as soon as its task runs.
        let taken = self.seats.remove(&number);
        taken.inspect(|taken| taken.leave.notify_one()).is_some()
    }
}

impl Seat {
    /// Where the connection comes from.
    pub(crate) fn source(&self) -> Source {
        self.source
    }

    /// Says who the peer is now; false where there is no place for it, or it had to give way.
    pub(crate) fn settle(&self, standing: Standing, now: Instant) -> bool {
        let mut table = self.seats.lock();
        let Some(before) = table.seats.get(&self.number).map(|taken| taken.standing) else { return false };
        if before == standing {
            return true;
        }
        if !self.seats.make_room(&mut table, self.number, self.source, standing, now) {
            return false;
        }
        let Some(taken) = table.seats.get_mut(&self.number) else { return false };
        (taken.standing, taken.since) = (standing, now);
        true
    }

    /// Says what the connection does from now on.
    pub(crate) fn does(&self, activity: Activity, now: Instant) {
        if let Some(taken) = self.seats.lock().seats.get_mut(&self.number) {
            (taken.activity, taken.since) = (activity, now);
        }
    }

    /// Waits until the seat is taken away.
    pub(crate) async fn taken_away(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.lock().seats.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(number: u8) -> Source {
        Source::of(std::net::Ipv4Addr::new(10, 0, 0, number).into())
    }

    fn member(name: u8) -> Standing {
        Standing::Member(MemberId([name; 32]))
    }

    /// 16 in all: 2 before the handshake, 2 strangers.
    fn seats() -> Arc<Seats> {
        Seats::new(ConnectionLimit { total: 16, per_source: 16 })
    }

    /// A connection whose peer is known.
    fn seated(seats: &Arc<Seats>, from: u8, standing: Standing, now: Instant) -> Option<Seat> {
        seats.admit(source(from), false, now).filter(|seat| seat.settle(standing, now))
    }

    #[test]
    fn chan_12_a_source_has_so_many_seats_and_leaves_no_trace() {
        let (seats, now) = (Seats::new(ConnectionLimit { total: 100, per_source: 2 }), Instant::now());
        let first = seats.admit(source(1), false, now).unwrap();
        let second = seats.admit(source(1), false, now).unwrap();
        assert!(seats.admit(source(1), false, now).is_none(), "both have only begun");
        assert!(seats.admit(source(2), false, now).is_some());
        let third = seats.admit(source(1), false, now + FRESH).unwrap();
        assert!(!first.settle(Standing::Stranger, now), "the oldest had its time");
        assert!(second.settle(Standing::Stranger, now));
        drop((first, second, third));
        assert_eq!(seats.lock().seats.len(), 0);
    }

    #[test]
    fn chan_14_whoever_says_nothing_keeps_no_member_out() {
        let (seats, now) = (seats(), Instant::now());
        let silent: Vec<_> = (1..3).map(|from| seats.admit(source(from), false, now).unwrap()).collect();
        assert!(seats.admit(source(3), false, now).is_none());
        let later = now + FRESH;
        let honest = seats.admit(source(3), false, later).expect("a silent one gives way");
        assert!(honest.settle(member(1), later));
        assert_eq!(silent.iter().filter(|seat| seat.settle(Standing::Stranger, later)).count(), 1);
    }

    #[test]
    fn chan_14_a_source_that_dials_without_end_keeps_no_other_from_its_handshake() {
        let (seats, now) = (seats(), Instant::now());
        let first = seats.admit(source(1), false, now).unwrap();
        let second = seats.admit(source(1), false, now).unwrap();
        assert!(seats.admit(source(1), false, now).is_none(), "both have only begun");
        let other = seats.admit(source(2), false, now).expect("the newest of two gives way at once");
        assert!(first.settle(Standing::Unknown, now) && !second.settle(Standing::Unknown, now));
        assert!(seats.admit(source(3), false, now).is_none(), "each has one");
        drop(other);
    }

    /// The source that came last shields none of the others, however they are ordered.
    #[test]
    fn chan_14_each_silent_connection_gives_way_after_its_second_wherever_it_comes_from() {
        let (seats, now) = (seats(), Instant::now());
        for fresh_from in [1, 3] {
            let (old, later) = (seats.admit(source(2), false, now).unwrap(), now + FRESH);
            let fresh = seats.admit(source(fresh_from), false, later - FRESH / 2).unwrap();
            let honest = seats.admit(source(9), false, later).expect("the older of two gives way");
            assert!(fresh.settle(Standing::Unknown, later) && !old.settle(Standing::Unknown, later));
            drop(honest);
        }
    }

    #[test]
    fn chan_14_sources_of_members_come_first_where_each_stranger_has_a_source_of_its_own() {
        let (seats, now) = (seats(), Instant::now());
        let strangers: Vec<_> = (1..3).map(|from| seats.admit(source(from), false, now).unwrap()).collect();
        let member = seats.admit(source(3), true, now).expect("a member came from there lately");
        assert!(seats.admit(source(3), true, now).is_none(), "one more would take a newcomer's");
        let another = seats.admit(source(4), true, now).expect("there too");
        assert!(seats.admit(source(5), true, now).is_none(), "no stranger has one any more");
        assert!(strangers.iter().all(|seat| !seat.settle(Standing::Unknown, now)));
        drop((member, another));
    }

    #[test]
    fn chan_14_strangers_fill_their_share_and_no_other() {
        let (seats, now) = (seats(), Instant::now());
        let strangers: Vec<_> =
            (1..10).filter_map(|from| seated(&seats, from, Standing::Stranger, now)).collect();
        assert_eq!(strangers.len(), 2);
        // 14 members, the last of whom take the places of both strangers.
        let members: Vec<_> = (1..=14).filter_map(|name| seated(&seats, 9, member(name), now)).collect();
        assert_eq!((members.len(), seats.lock().count(Taken::is_stranger)), (14, 0));
        assert!(
            seated(&seats, 1, Standing::Stranger, now + STUCK).is_none(),
            "a stranger never takes a member's"
        );
        assert!(seated(&seats, 1, member(20), now).is_none(), "each has one");
        drop(members);
        assert!(seated(&seats, 1, Standing::Stranger, now).is_some());
    }

    #[test]
    fn chan_14_a_member_that_takes_all_seats_gives_way_to_the_others() {
        let (seats, now) = (Seats::new(ConnectionLimit { total: 24, per_source: 1 }), Instant::now());
        let greedy: Vec<_> = (0..40).filter_map(|_| seated(&seats, 1, member(1), now)).collect();
        assert_eq!(seats.lock().count(Taken::is_member), PER_MEMBER);
        let others: Vec<_> = (2..12).filter_map(|name| seated(&seats, 2, member(name), now)).collect();
        assert_eq!(others.len(), 10);
        assert_eq!(seats.lock().count(Taken::is_member), 21, "24, without those of handshakes");
        drop(greedy);
        assert_eq!(seats.lock().count(Taken::is_member), 10);
    }

    #[test]
    fn chan_14_a_member_keeps_the_connections_that_it_uses() {
        let (seats, now) = (Seats::new(ConnectionLimit { total: 200, per_source: 100 }), Instant::now());
        let round = seated(&seats, 1, member(1), now).unwrap();
        let mut flood: Vec<_> = (1..PER_MEMBER).filter_map(|_| seated(&seats, 1, member(1), now)).collect();
        let later = now + FRESH;
        for of_them in flood.iter().chain([&round]) {
            of_them.does(Activity::Idle, later);
        }
        assert!(seated(&seats, 1, member(1), later).is_none(), "all are in use");
        // One that nobody uses, like those of a machine that lost its power, gives way.
        let dead = flood.pop().unwrap();
        for of_them in flood.iter().chain([&round]) {
            of_them.does(Activity::Idle, later + FRESH);
        }
        assert!(seated(&seats, 1, member(1), later + FRESH).is_some());
        assert!(!dead.settle(member(1), later + FRESH) && round.settle(member(1), later + FRESH));
    }

    #[test]
    fn chan_14_strangers_of_one_source_give_way_to_those_of_another() {
        let (seats, now) = (Seats::new(ConnectionLimit { total: 32, per_source: 32 }), Instant::now());
        let crowd: Vec<_> = (0..4).filter_map(|_| seated(&seats, 1, Standing::Stranger, now)).collect();
        assert_eq!(crowd.len(), 4);
        crowd[0].does(Activity::Working, now);
        assert!(seated(&seats, 2, Standing::Stranger, now).is_none(), "all have only come");
        let later = now + FRESH;
        let one = seated(&seats, 2, Standing::Stranger, later).unwrap();
        let two = seated(&seats, 3, Standing::Stranger, later).unwrap();
        let three = seated(&seats, 4, Standing::Stranger, later).unwrap();
        assert!(seated(&seats, 5, Standing::Stranger, later).is_none(), "nobody has two any more");
        let here = crowd.iter().filter(|seat| seat.settle(Standing::Stranger, later)).count();
        assert_eq!(here, 1);
        assert!(crowd[0].settle(Standing::Stranger, later), "it was being answered");
        drop((one, two, three));
    }

    #[test]
    fn chan_13_a_shortage_takes_strangers_first_and_never_a_member() {
        let (seats, now) = (seats(), Instant::now());
        let member = seated(&seats, 1, member(1), now).unwrap();
        let stranger = seated(&seats, 1, Standing::Stranger, now).unwrap();
        let unknown = seats.admit(source(1), false, now).unwrap();
        assert!(seats.relieve());
        assert!(!stranger.settle(Standing::Stranger, now) && unknown.settle(Standing::Unknown, now));
        assert!(seats.relieve() && !unknown.settle(Standing::Unknown, now));
        assert!(!seats.relieve());
        assert!(member.settle(Standing::Member(MemberId([1; 32])), now));
    }

    #[test]
    fn chan_14_whoever_does_not_read_is_hurried_after_a_while() {
        let (seats, now) = (seats(), Instant::now());
        let stranger = seated(&seats, 1, Standing::Stranger, now).unwrap();
        stranger.does(Activity::Sending, now);
        assert!(!seats.hurry_strangers(now + FRESH) && seats.hurry_strangers(now + STUCK));
    }
}
