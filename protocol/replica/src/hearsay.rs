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
mod tests;
