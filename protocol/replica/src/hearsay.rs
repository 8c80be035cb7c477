//! What gossip proves: two seals of the steward on one height, two commitments of a member in one round.
//!
//! CHAN-11: hearsay is never acted on for what it says, only for what it contradicts, and both sides of a contradiction are
//! signed. Who is silent, late or eclipsed learns nothing and loses nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;

use muster_core::codec::decode;
use muster_core::ids::{Digest, Height, MemberId, Round, RunId};
use muster_core::ledger::{Ledger, Standing};
use muster_core::lock::lock;
use muster_core::messages::evidence::{Equivocation, Evidence, Seal};
use muster_core::messages::gossip::{Gossiped, Head};
use muster_core::messages::record::{Body, Record};
use muster_core::messages::round::Commit;
use muster_core::sign::{Signed, Verified};
use muster_net::swarm::{Topic, Validity};

/// How many heights are remembered behind this member's ledger, and listened to ahead of it.
pub(crate) const BEHIND: u64 = 256;
const AHEAD: u64 = 256;
/// Seals of one height that are kept: two are a proof, and more prove nothing else.
const SEALS: usize = 2;
/// Rounds whose commitments are remembered.
const ROUNDS: usize = 3;

/// What was found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misbehaviour {
    /// The steward shows different ledgers to different members.
    SplitView(SplitView),
    /// A member committed twice.
    Equivocation(Evidence),
}

/// The steward has sealed two heads of one height.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitView {
    /// Where the ledgers part.
    pub height: Height,
    /// The head known before.
    pub known: Digest,
    /// The other one.
    pub other: Digest,
}

impl fmt::Display for SplitView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { height, known, other } = self;
        write!(f, "the steward sealed two records at height {height}, with the heads {known:#} and {other:#}")
    }
}

/// What was sealed and said, as far as this member knows.
pub struct Hearsay {
    run: RunId,
    steward: MemberId,
    next: Height,
    members: BTreeSet<MemberId>,
    /// Where the ledger says that members can be dialled.
    hosts: BTreeSet<IpAddr>,
    /// Heads after the records, taken or only heard of.
    heads: BTreeMap<Height, Digest>,
    /// What was heard of them, as signed.
    seals: BTreeMap<(Height, Digest), Seal>,
    /// Who is seated in the newest rounds.
    seats: BTreeMap<Round, BTreeSet<MemberId>>,
    commits: BTreeMap<(Round, MemberId), HeardCommit>,
}

struct HeardCommit {
    commit: Commit,
    signed: Signed<Commit>,
    /// Whether another one came.
    proved: bool,
}

/// A message whose signature is right.
enum Told {
    Record(Signed<Record>, Verified<Record>),
    Head(Signed<Head>, Verified<Head>),
    Commit(Signed<Commit>, Verified<Commit>),
}

impl Told {
    /// Checks the signature.
    fn of(said: Gossiped, run: RunId) -> Option<Self> {
        match said {
            Gossiped::Record(signed) => signed.verify(run).ok().map(|record| Self::Record(signed, record)),
            Gossiped::Head(signed) => signed.verify(run).ok().map(|head| Self::Head(signed, head)),
            Gossiped::Commit(signed) => signed.verify(run).ok().map(|commit| Self::Commit(signed, commit)),
        }
    }
}

impl Hearsay {
    /// Starts from this member's ledger.
    pub fn new(ledger: &Ledger) -> Self {
        let mut hearsay = Self {
            run: ledger.run(),
            steward: ledger.manifest().steward,
            next: Height(0),
            members: BTreeSet::new(),
            hosts: BTreeSet::new(),
            heads: BTreeMap::new(),
            seals: BTreeMap::new(),
            seats: BTreeMap::new(),
            commits: BTreeMap::new(),
        };
        hearsay.meet(ledger);
        if let Some(last) = ledger.height().0.checked_sub(1) {
            // So that a member that has just begun contradicts a split at the height that it begins with.
            hearsay.heads.insert(Height(last), ledger.head());
        }
        hearsay.advance(ledger);
        hearsay
    }

    /// Whether somebody is a member, or the steward.
    pub fn knows(&self, member: &MemberId) -> bool {
        *member == self.steward || self.members.contains(member)
    }

    /// Whether the ledger says that a member can be dialled at this address, on any port.
    pub fn is_host(&self, address: &IpAddr) -> bool {
        self.hosts.contains(address)
    }

    /// This member's ledger has taken a record. Gives what it contradicts, and whether it was heard of before.
    pub fn sealed(&mut self, ledger: &Ledger, record: &Record) -> (Vec<Misbehaviour>, bool) {
        self.advance(ledger);
        let moves = matches!(
            record.body,
            Body::Admit(_)
                | Body::Return(_)
                | Body::Leave(_)
                | Body::Ban(_)
                | Body::CloseTree(_)
                | Body::Outcome(_)
        );
        // Not with each record: there may be thousands of members.
        if moves {
            self.meet(ledger);
        }
        self.took(record)
    }

    /// Hears a message: what becomes of it, and what it proves.
    pub fn hear(shared: &Mutex<Self>, topic: Topic, message: &[u8]) -> (Validity, Option<Misbehaviour>) {
        let (screened, run) = {
            let hearsay = lock(shared);
            (hearsay.screen(topic, message), hearsay.run)
        };
        // Not under the lock: whoever seals or follows waits for it, and peers decide how much there is to check.
        match screened.map(|said| Told::of(said, run)) {
            Err(validity) => (validity, None),
            Ok(None) => (Validity::Reject, None),
            Ok(Some(told)) => lock(shared).weigh(told),
        }
    }

    /// CHAN-22: what costs nothing, before a signature is checked: strangers must not make members verify what nobody needs.
    fn screen(&self, topic: Topic, message: &[u8]) -> Result<Gossiped, Validity> {
        let said = decode(message).map_err(|_| Validity::Reject)?;
        let seated = |author| self.seats.values().any(|seated| seated.contains(&author));
        match (topic, &said) {
            (Topic::Records, Gossiped::Record(signed)) if signed.claimed_signer() == self.steward => Ok(said),
            (Topic::Records, Gossiped::Head(signed)) if signed.claimed_signer() == self.steward => Ok(said),
            (Topic::Commits, Gossiped::Commit(signed)) if seated(signed.claimed_signer()) => Ok(said),
            (Topic::Commits, Gossiped::Commit(_)) => Err(Validity::Ignore),
            _ => Err(Validity::Reject),
        }
    }

    fn weigh(&mut self, told: Told) -> (Validity, Option<Misbehaviour>) {
        match told {
            Told::Record(signed, record) => {
                // A record names the head before it, too: two ledgers part there at the latest.
                let before = record.height.0.checked_sub(1).map(|height| (Height(height), record.previous));
                let name = (record.height, record.head());
                self.seal_told(name, before, || Seal::Record(signed))
            }
            Told::Head(signed, said) => self.seal_told((said.height, said.head), None, || Seal::Head(signed)),
            Told::Commit(signed, commit) => {
                let author = commit.author();
                if !self.seats.get(&commit.round).is_some_and(|seated| seated.contains(&author)) {
                    return (Validity::Ignore, None);
                }
                self.commit(author, commit.into_inner(), &signed)
            }
        }
    }

    /// Moves on with the ledger, and forgets what is over.
    fn advance(&mut self, ledger: &Ledger) {
        self.next = ledger.height();
        if let Some(view) = ledger.current() {
            let seated = || view.seats().iter().map(|seat| seat.member).collect();
            self.seats.entry(view.round()).or_insert_with(seated);
        }
        while self.seats.len() > ROUNDS {
            self.seats.pop_first();
        }
        let first = self.seats.keys().next().copied().unwrap_or_default();
        self.commits.retain(|(round, _), _| *round >= first);
        let oldest = Height(self.next.0.saturating_sub(BEHIND));
        self.heads = self.heads.split_off(&oldest);
        self.seals = self.seals.split_off(&(oldest, Digest::default()));
    }

    /// Who is a member, and where.
    fn meet(&mut self, ledger: &Ledger) {
        let present = |standing| !matches!(standing, Standing::Left | Standing::Banned);
        let members = || ledger.members().iter().filter(|member| present(member.standing));
        self.members = members().map(|member| member.id).collect();
        let sockets = members().flat_map(|member| member.addresses.iter());
        let sockets = sockets.filter_map(|address| address.parse::<SocketAddr>().ok());
        self.hosts = sockets.map(|socket| socket.ip().to_canonical()).collect();
    }

    /// A seal is heard; kept, it proves what it contradicts.
    fn seal_told(
        &mut self,
        name: (Height, Digest),
        before: Option<(Height, Digest)>,
        seal: impl FnOnce() -> Seal,
    ) -> (Validity, Option<Misbehaviour>) {
        let (lowest, highest) = ((name.0, Digest([0; 32])), (name.0, Digest([255; 32])));
        let kept = self.seals.range(lowest..=highest).count();
        // A steward could sign heads of one height without a bound.
        if kept >= SEALS && !self.seals.contains_key(&name) {
            return (Validity::Ignore, None);
        }
        let told = self.heads_told(&[Some(name), before]);
        // Only seals of near heights are kept: a steward could sign heights without a bound.
        if told.0 == Validity::Accept {
            self.seals.entry(name).or_insert_with(seal);
        }
        told
    }

    /// A seal that was heard and gives this head: of its height, or a record of the next one.
    pub fn seal(&self, height: Height, head: &Digest) -> Option<Seal> {
        let after = (height.next(), Digest([0; 32]))..=(height.next(), Digest([255; 32]));
        let names = |seal: &Seal| match seal {
            Seal::Record(signed) => signed.verify(self.run).is_ok_and(|record| record.previous == *head),
            Seal::Head(_) => false,
        };
        let later = || self.seals.range(after).map(|(_, seal)| seal).find(|seal| names(seal));
        self.seals.get(&(height, *head)).or_else(later).cloned()
    }

    fn took(&mut self, record: &Record) -> (Vec<Misbehaviour>, bool) {
        let heard = self.heads.get(&record.height) == Some(&record.head());
        let mut found: Vec<Misbehaviour> = self.head(record.height, record.head()).into_iter().collect();
        if let Body::Freeze(freeze) = &record.body {
            let verified =
                // What was frozen contradicts a commitment that was gossiped, if its author signed both.
                freeze.commits.iter().filter_map(|signed| Some((signed.verify(self.run).ok()?, signed)));
            for (commit, signed) in verified.collect::<Vec<_>>() {
                found.extend(self.commit(commit.author(), commit.into_inner(), signed).1);
            }
        }
        (found, heard)
    }

    fn heads_told(&mut self, told: &[Option<(Height, Digest)>]) -> (Validity, Option<Misbehaviour>) {
        let near = |height: &Height| {
            height.0 + BEHIND >= self.next.0 && height.0 <= self.next.0.saturating_add(AHEAD)
        };
        // Far ahead a made-up height would take room; far behind everybody has the record.
        if !told.iter().flatten().take(1).all(|(height, _)| height.0 < u64::MAX - BEHIND && near(height)) {
            return (Validity::Ignore, None);
        }
        let found: Vec<Misbehaviour> =
            told.iter().flatten().filter_map(|(height, head)| self.head(*height, *head)).collect();
        (Validity::Accept, found.into_iter().next())
    }

    /// The first head of a height stays.
    fn head(&mut self, height: Height, head: Digest) -> Option<Misbehaviour> {
        let known = *self.heads.entry(height).or_insert(head);
        (known != head).then_some(Misbehaviour::SplitView(SplitView { height, known, other: head }))
    }

    /// Of each member in each round two are worth passing on: one, and one that contradicts it.
    fn commit(
        &mut self,
        author: MemberId,
        commit: Commit,
        signed: &Signed<Commit>,
    ) -> (Validity, Option<Misbehaviour>) {
        let Some(said) = self.commits.get_mut(&(commit.round, author)) else {
            let said = HeardCommit { signed: signed.clone(), proved: false, commit };
            self.commits.insert((said.commit.round, author), said);
            return (Validity::Accept, None);
        };
        if said.proved || said.commit == commit {
            return (Validity::Ignore, None);
        }
        said.proved = true;
        let pair = Equivocation { first: said.signed.clone(), second: signed.clone() };
        (Validity::Accept, Some(Misbehaviour::Equivocation(Evidence::Equivocation(pair))))
    }
}

#[cfg(test)]
mod tests {
    use muster_core::codec::{List, encode};
    use muster_core::ids::Slot;
    use muster_core::manifest::Profile;
    use muster_core::messages::gossip::Head;
    use muster_core::messages::record::Freeze;
    use muster_core::sign::Identity;

    use super::*;

    const RUN: RunId = RunId(Digest([5; 32]));

    fn steward() -> Identity {
        Identity::from_secret(&[1; 32])
    }

    /// [`Hearsay::hear`] on a member that nobody else has.
    fn hear(member: &mut Hearsay, topic: Topic, message: &[u8]) -> (Validity, Option<Misbehaviour>) {
        let shared = Mutex::new(std::mem::replace(member, hearsay(0)));
        let heard = Hearsay::hear(&shared, topic, message);
        *member = shared.into_inner().unwrap();
        heard
    }

    fn node() -> Identity {
        Identity::from_secret(&[2; 32])
    }

    /// A member whose ledger has `next` records, with the node seated in rounds 4 and 5.
    fn hearsay(next: u64) -> Hearsay {
        let seated = BTreeSet::from([node().id()]);
        Hearsay {
            run: RUN,
            steward: steward().id(),
            next: Height(next),
            members: seated.clone(),
            hosts: BTreeSet::new(),
            heads: BTreeMap::new(),
            seals: BTreeMap::new(),
            seats: BTreeMap::from([(Round(4), seated.clone()), (Round(5), seated)]),
            commits: BTreeMap::new(),
        }
    }

    fn record(height: u64, previous: u8, what: u8) -> Record {
        Record {
            height: Height(height),
            previous: Digest([previous; 32]),
            body: Body::Close(Digest([what; 32])),
        }
    }

    fn told(record: &Record) -> Vec<u8> {
        encode(&Gossiped::Record(steward().sign(RUN, record)))
    }

    fn commit(round: u32, what: u8) -> Commit {
        Commit {
            round: Round(round),
            head: Digest::default(),
            state: Digest::default(),
            slot: Slot(0),
            seats: 1,
            route: None,
            leaves: 1,
            profile: Profile::Exact,
            loss: 0,
            root: Digest([what; 32]),
        }
    }

    fn said(who: &Identity, round: u32, what: u8) -> Vec<u8> {
        encode(&Gossiped::Commit(who.sign(RUN, &commit(round, what))))
    }

    fn split(known: &Record, other: &Record) -> Option<Misbehaviour> {
        let (known, other) = (known.head(), other.head());
        Some(Misbehaviour::SplitView(SplitView { height: Height(7), known, other }))
    }

    #[test]
    fn another_record_of_a_height_splits_the_view() {
        let (ours, theirs) = (record(7, 1, 1), record(7, 1, 2));
        // Taken first, heard after.
        let mut member = hearsay(8);
        assert_eq!(member.took(&ours), (Vec::new(), false));
        assert_eq!(hear(&mut member, Topic::Records, &told(&ours)), (Validity::Accept, None));
        assert_eq!(
            hear(&mut member, Topic::Records, &told(&theirs)),
            (Validity::Accept, split(&ours, &theirs))
        );
        // Heard first, taken after.
        let mut member = hearsay(7);
        assert_eq!(hear(&mut member, Topic::Records, &told(&theirs)), (Validity::Accept, None));
        assert_eq!(member.took(&theirs), (Vec::new(), true));
        assert_eq!(member.took(&ours).0, Vec::from_iter(split(&theirs, &ours)));
        // Both only heard.
        let mut member = hearsay(0);
        assert_eq!(hear(&mut member, Topic::Records, &told(&theirs)), (Validity::Accept, None));
        assert_eq!(
            hear(&mut member, Topic::Records, &told(&ours)),
            (Validity::Accept, split(&theirs, &ours))
        );
    }

    #[test]
    fn damaged_messages_of_every_kind_leave_no_trace() {
        let mut member = hearsay(8);
        let ours = record(7, 1, 1);
        let head = Gossiped::Head(steward().sign(RUN, &Head { height: ours.height, head: ours.head() }));
        for (topic, whole) in [
            (Topic::Records, told(&ours)),
            (Topic::Records, encode(&head)),
            (Topic::Commits, said(&node(), 4, 1)),
        ] {
            let cut = (0..whole.len()).map(|length| whole[..length].to_vec());
            let changed = (0..8 * whole.len()).map(|bit| {
                let mut bytes = whole.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                bytes
            });
            let longer = [[&whole[..], &[0]].concat(), vec![0xff; 1 << 16]];
            for bytes in cut.chain(changed).chain(longer) {
                let (validity, finding) = hear(&mut member, topic, &bytes);
                assert!(validity != Validity::Accept && finding.is_none(), "{topic:?} {bytes:?}");
            }
            let elsewhere = [Topic::Records, Topic::Commits].into_iter().find(|other| *other != topic);
            assert_eq!(hear(&mut member, elsewhere.unwrap(), &whole), (Validity::Reject, None));
        }
        assert!(member.heads.is_empty() && member.seals.is_empty() && member.commits.is_empty());
    }

    #[test]
    fn a_head_alone_and_the_head_that_a_later_record_names_count_too() {
        let (ours, theirs) = (record(7, 1, 1), record(7, 1, 2));
        let mut member = hearsay(8);
        member.took(&ours);
        let head = |of: &Record| {
            encode(&Gossiped::Head(steward().sign(RUN, &Head { height: of.height, head: of.head() })))
        };
        assert_eq!(hear(&mut member, Topic::Records, &head(&ours)), (Validity::Accept, None));
        assert_eq!(
            hear(&mut member, Topic::Records, &head(&theirs)),
            (Validity::Accept, split(&ours, &theirs))
        );
        let next = |previous: &Record| Record { previous: previous.head(), ..record(8, 0, 3) };
        let mut member = hearsay(8);
        member.took(&ours);
        assert_eq!(
            hear(&mut member, Topic::Records, &told(&next(&theirs))),
            (Validity::Accept, split(&ours, &theirs))
        );
        let mut member = hearsay(8);
        member.took(&ours);
        assert_eq!(hear(&mut member, Topic::Records, &told(&next(&ours))), (Validity::Accept, None));
    }

    #[test]
    fn nobody_else_can_split_a_view() {
        let (ours, theirs) = (record(7, 1, 1), record(7, 1, 2));
        let mut member = hearsay(8);
        member.took(&ours);
        let forged = encode(&Gossiped::Record(node().sign(RUN, &theirs)));
        let elsewhere = encode(&Gossiped::Record(steward().sign(RunId(Digest([6; 32])), &theirs)));
        let mut damaged = told(&theirs);
        *damaged.last_mut().unwrap() ^= 1;
        let head =
            encode(&Gossiped::Head(node().sign(RUN, &Head { height: Height(7), head: theirs.head() })));
        for lie in
            [forged, elsewhere, damaged, head, Vec::new(), vec![0xff; 100], told(&theirs)[..50].to_vec()]
        {
            assert_eq!(hear(&mut member, Topic::Records, &lie), (Validity::Reject, None));
        }
        assert_eq!(hear(&mut member, Topic::Commits, &told(&theirs)), (Validity::Reject, None));
        assert_eq!(hear(&mut member, Topic::Records, &said(&node(), 4, 1)), (Validity::Reject, None));
    }

    #[test]
    fn far_away_is_of_no_use() {
        let mut member = hearsay(1000);
        for height in [0, 1000 - BEHIND - 1, 1000 + AHEAD + 1, u64::MAX - 1, u64::MAX] {
            assert_eq!(
                hear(&mut member, Topic::Records, &told(&record(height, 1, 1))),
                (Validity::Ignore, None)
            );
        }
        for height in 1000 - BEHIND..=1000 + AHEAD {
            let mut member = hearsay(1000);
            assert_eq!(
                hear(&mut member, Topic::Records, &told(&record(height, 1, 1))),
                (Validity::Accept, None)
            );
        }
        assert!(member.heads.is_empty());
    }

    #[test]
    fn two_commitments_of_one_round_are_evidence_once() {
        let mut member = hearsay(8);
        assert_eq!(hear(&mut member, Topic::Commits, &said(&node(), 4, 1)), (Validity::Accept, None));
        assert_eq!(hear(&mut member, Topic::Commits, &said(&node(), 4, 1)), (Validity::Ignore, None));
        assert_eq!(hear(&mut member, Topic::Commits, &said(&node(), 5, 2)), (Validity::Accept, None));
        let (validity, found) = hear(&mut member, Topic::Commits, &said(&node(), 4, 3));
        assert_eq!(validity, Validity::Accept);
        let Some(Misbehaviour::Equivocation(Evidence::Equivocation(pair))) = found else {
            panic!("no evidence")
        };
        assert_eq!(*pair.first.verify(RUN).unwrap(), commit(4, 1));
        assert_eq!(*pair.second.verify(RUN).unwrap(), commit(4, 3));
        assert_eq!(hear(&mut member, Topic::Commits, &said(&node(), 4, 4)), (Validity::Ignore, None));
    }

    #[test]
    fn a_freeze_with_another_commitment_than_was_gossiped_is_evidence() {
        let freeze = |what| {
            let commits = List::new(vec![node().sign(RUN, &commit(4, what))]).unwrap();
            let body = Body::Freeze(Freeze { round: Round(4), state: Digest::default(), commits });
            Record { body, ..record(7, 1, 1) }
        };
        let mut member = hearsay(8);
        hear(&mut member, Topic::Commits, &said(&node(), 4, 1));
        assert!(member.took(&freeze(1)).0.is_empty());
        let mut member = hearsay(8);
        hear(&mut member, Topic::Commits, &said(&node(), 4, 1));
        assert!(matches!(member.took(&freeze(2)).0[..], [Misbehaviour::Equivocation(_)]));
        let mut member = hearsay(8);
        member.took(&freeze(2));
        assert!(matches!(
            hear(&mut member, Topic::Commits, &said(&node(), 4, 1)),
            (Validity::Accept, Some(_))
        ));
    }

    #[test]
    fn chan_11_what_is_heard_moves_nothing_and_what_is_taken_does() {
        let mut member = hearsay(7);
        let ahead = record(7, 1, 1);
        let head = Gossiped::Head(steward().sign(RUN, &Head { height: Height(8), head: Digest([4; 32]) }));
        for (topic, message) in [
            (Topic::Records, told(&ahead)),
            (Topic::Records, encode(&head)),
            (Topic::Commits, said(&node(), 4, 1)),
        ] {
            assert_eq!(hear(&mut member, topic, &message), (Validity::Accept, None));
        }
        let before = hearsay(7);
        assert_eq!((member.next, &member.members), (before.next, &before.members));
        assert_eq!(member.seats, before.seats, "a record that was heard seats nobody");
        // Nor does it stand against the record that is pulled: that alone is told as sealed.
        assert_eq!(member.took(&ahead), (Vec::new(), true));
    }

    #[test]
    fn chan_22_seals_are_bounded_in_number_too() {
        let mut member = hearsay(8);
        let named = |what| {
            encode(&Gossiped::Head(
                steward().sign(RUN, &Head { height: Height(7), head: Digest([what; 32]) }),
            ))
        };
        assert_eq!(hear(&mut member, Topic::Records, &named(1)), (Validity::Accept, None));
        let (validity, found) = hear(&mut member, Topic::Records, &named(2));
        assert!(validity == Validity::Accept && matches!(found, Some(Misbehaviour::SplitView(_))));
        for what in 3..100 {
            assert_eq!(hear(&mut member, Topic::Records, &named(what)), (Validity::Ignore, None));
        }
        assert_eq!(member.seals.len(), 2);
        assert!([1, 2].iter().all(|what| member.seal(Height(7), &Digest([*what; 32])).is_some()));
    }

    #[test]
    fn only_the_seated_are_heard() {
        let mut member = hearsay(8);
        let stranger = Identity::from_secret(&[3; 32]);
        assert_eq!(hear(&mut member, Topic::Commits, &said(&stranger, 4, 1)), (Validity::Ignore, None));
        assert_eq!(hear(&mut member, Topic::Commits, &said(&node(), 3, 1)), (Validity::Ignore, None));
        assert_eq!(hear(&mut member, Topic::Commits, &said(&node(), 6, 1)), (Validity::Ignore, None));
        let mut forged = said(&node(), 4, 1);
        *forged.last_mut().unwrap() ^= 1;
        assert_eq!(hear(&mut member, Topic::Commits, &forged), (Validity::Reject, None));
        assert!(member.commits.is_empty());
        assert!(member.knows(&node().id()) && member.knows(&steward().id()) && !member.knows(&stranger.id()));
    }
}
