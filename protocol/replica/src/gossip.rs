//! The swarm of one follower: spreads what was sealed and said, hears what contradicts it, finds a steward that moved.
//!
//! A run works without: everything here is pulled or asked for on a channel as well.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_core::codec::encode;
use muster_core::ids::{Digest, Height, MemberId, Row, RunId};
use muster_core::ledger::Ledger;
use muster_core::limits;
use muster_core::lock::lock;
use muster_core::messages::enrol::Addresses;
use muster_core::messages::evidence::{Evidence, Misconduct, Seal, TwoSeals};
use muster_core::messages::gossip::{Gossiped, Head, Whereabouts};
use muster_core::messages::record::{Body, Record};
use muster_core::messages::round::Commit;
use muster_core::sign::{Identity, Signed, Verified};
use muster_net::error::NetError;
use muster_net::swarm::{Gossip, Neighbourhood, Settings, Sieve, Topic, Validity};
use muster_store::journal::Journal;
use tokio::sync::{mpsc, watch};
use tokio::time;

use crate::hearsay::{BEHIND, Hearsay, Misbehaviour, SplitView};
use crate::peers::Contact;
use crate::process;

/// Findings that wait at most; more of them would say the same.
const FINDINGS: usize = 64;
/// Between two look-ups, while the swarm is still finding peers.
const PAUSE: Duration = Duration::from_millis(300);

/// A swarm and what was heard in it.
pub struct Gossiping {
    run: RunId,
    gossip: Gossip,
    hearsay: Arc<Mutex<Hearsay>>,
    journal: Option<Arc<Journal>>,
}

impl Gossiping {
    /// Joins the swarm of the ledger's run, beginning also with the peers that the journal has met. What gossip proves
    /// comes out of the receiver.
    ///
    /// # Errors
    /// As [`Gossip::start`].
    pub fn start(
        identity: &Identity,
        ledger: &Ledger,
        settings: &Settings,
        journal: Option<Arc<Journal>>,
    ) -> Result<(Self, mpsc::Receiver<Misbehaviour>), NetError> {
        let mut settings = settings.clone();
        settings.bootstrap.extend(journal.as_ref().map(|journal| met(journal)).unwrap_or_default());
        let hearsay = Arc::new(Mutex::new(Hearsay::new(ledger)));
        let (findings, found) = mpsc::channel(FINDINGS);
        let ear = Ear { hearsay: hearsay.clone(), findings };
        let gossip = Gossip::start(identity, ledger.run(), &settings, Arc::new(ear))?;
        Ok((Self { run: ledger.run(), gossip, hearsay, journal }, found))
    }

    /// This member's ledger has taken a record, where the steward's newest has this height: spreads it unless it was heard,
    /// and gives what it contradicts.
    pub fn sealed(
        &self,
        ledger: &Ledger,
        signed: &Signed<Record>,
        record: &Verified<Record>,
        newest: Height,
    ) -> Vec<Misbehaviour> {
        let (findings, heard) = lock(&self.hearsay).sealed(ledger, record);
        self.remember(record);
        // What came by gossip has been spread already. Who catches up has nothing to tell: of so old a record nobody keeps
        // anything, and what is of no use has a price (CHAN-22).
        if !heard && record.height.0.saturating_add(BEHIND) >= newest.0 {
            self.gossip.publish(Topic::Records, encode(&Gossiped::Record(signed.clone())));
        }
        findings
    }

    /// The steward has sealed a record: spreads it, or its head alone when it is long.
    pub fn seal(&self, steward: &Identity, ledger: &Ledger, signed: &Signed<Record>, record: &Record) {
        lock(&self.hearsay).sealed(ledger, record);
        self.remember(record);
        let mut message = encode(&Gossiped::Record(signed.clone()));
        // Whoever wants the record pulls it on a channel; the head is enough to find two ledgers.
        if message.len() > limits::GOSSIP_BYTES {
            let head = Head { height: record.height, head: record.head() };
            message = encode(&Gossiped::Head(steward.sign(self.run, &head)));
        }
        self.gossip.publish(Topic::Records, message);
    }

    /// The proof of two ledgers: both seals, as heard or as the journal has them.
    pub fn proof(&self, split: &SplitView) -> Option<Evidence> {
        let kept = |head: &Digest| {
            let heard = lock(&self.hearsay).seal(split.height, head);
            heard.or_else(|| {
                let record = self.journal.as_ref()?.records(split.height, 1).ok()?.pop()?;
                let own = record.verify(self.run).ok()?.head() == *head;
                own.then_some(Seal::Record(record))
            })
        };
        let seals = TwoSeals { first: kept(&split.known)?, second: kept(&split.other)? };
        Some(Evidence::Misconduct(Misconduct::Split(seals)))
    }

    /// Writes down once a round who was met.
    fn remember(&self, record: &Record) {
        // Once a round: neighbours change with every connection, and each note is written to the disk.
        let (Body::Outcome(_), Some(journal)) = (&record.body, &self.journal) else { return };
        let met = self.gossip.neighbourhood().borrow().met.join("\n");
        if met.is_empty() {
            return;
        }
        if let Err(error) = journal.put_note(MET, met.as_bytes()) {
            tracing::warn!("the peers met are not remembered: {}", error.brief());
        }
    }

    /// Spreads this member's commitment.
    pub fn committed(&self, commit: &Signed<Commit>) {
        self.gossip.publish(Topic::Commits, encode(&Gossiped::Commit(commit.clone())));
    }

    /// Announces where this member can be dialled from now on.
    pub fn announce(&self, identity: &Identity, addresses: Addresses) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let time = later(self.journal.as_deref(), u64::try_from(now).unwrap_or(u64::MAX));
        self.gossip.announce(&identity.sign(self.run, &Whereabouts { addresses, time }));
    }

    /// Where a member says that it can be dialled, looked up for `patience` at most.
    pub async fn find(&self, member: MemberId, patience: Duration) -> Option<Vec<String>> {
        find(&self.gossip, member, patience).await
    }

    /// Says in the table that this member holds a row, or none.
    pub fn hold(&self, row: Option<Row>) {
        self.gossip.hold(row);
    }

    /// Who is said to hold a row, as far as it is found out within `patience`. Anybody may say so.
    pub async fn holders(&self, row: Row, patience: Duration) -> BTreeSet<MemberId> {
        self.gossip.holders(row, patience).await.into_iter().collect()
    }

    /// Multiaddresses at which the swarm can be dialled, once it listens.
    pub async fn own(&self, patience: Duration) -> Vec<String> {
        let mut known = self.gossip.neighbourhood();
        let listening = known.wait_for(|known| !known.own.is_empty());
        time::timeout(patience, listening)
            .await
            .ok()
            .and_then(Result::ok)
            .map_or(Vec::new(), |known| known.own.clone())
    }

    /// Who is there, and whenever that changes.
    pub fn neighbourhood(&self) -> watch::Receiver<Neighbourhood> {
        self.gossip.neighbourhood()
    }
}

/// Note of the time of the last announcement.
const ANNOUNCED: &str = "announced";

/// CHAN-20: a time after that of the announcement before. Of two the later one stays, and whoever was once ahead of its time would
/// otherwise be found where it was then, by everybody to whom somebody shows that announcement.
fn later(journal: Option<&Journal>, now: u64) -> u64 {
    let Some(journal) = journal else { return now };
    let before = journal.note(ANNOUNCED).ok().flatten().and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
    let time = before.map_or(now, |before| now.max(u64::from_le_bytes(before).saturating_add(1)));
    if let Err(error) = journal.put_note(ANNOUNCED, &time.to_le_bytes()) {
        tracing::warn!("the time of an announcement is not remembered: {}", error.brief());
    }
    time
}

/// Note of the peers met, to begin with another time.
const MET: &str = "gossip-met";

/// Peers that this directory met another time.
fn met(journal: &Journal) -> Vec<String> {
    let note = journal.note(MET).ok().flatten().unwrap_or_default();
    String::from_utf8_lossy(&note).lines().map(str::to_owned).collect()
}

/// Where a steward went that cannot be reached any more, by peers met another time or named in its contact.
pub async fn moved(
    identity: &Identity,
    run: RunId,
    steward: &Contact,
    journal: &Journal,
    patience: Duration,
) -> Option<Contact> {
    let bootstrap: Vec<String> = met(journal).into_iter().chain(steward.swarm_addresses()).collect();
    if bootstrap.is_empty() {
        return None;
    }
    let addresses = find_member(identity, run, steward.member, bootstrap, patience).await?;
    Some(Contact { member: steward.member, addresses }).filter(|contact| contact != steward)
}

/// Looks up a member's addresses before anything else of the run is known, from these peers.
pub async fn find_member(
    identity: &Identity,
    run: RunId,
    member: MemberId,
    bootstrap: Vec<String>,
    patience: Duration,
) -> Option<Vec<String>> {
    let settings = Settings { bootstrap, ..Settings::default() };
    let gossip = Gossip::start(identity, run, &settings, Arc::new(Deaf)).ok()?;
    let found = find(&gossip, member, patience).await;
    gossip.stop().await;
    found
}

async fn find(gossip: &Gossip, member: MemberId, patience: Duration) -> Option<Vec<String>> {
    let searching = async {
        loop {
            if let Some(said) = gossip.find(member, patience).await {
                return said.addresses.iter().map(|address| address.to_string()).collect();
            }
            time::sleep(PAUSE).await;
        }
    };
    time::timeout(patience, searching).await.ok()
}

/// Hands what is heard to [`Hearsay`].
struct Ear {
    hearsay: Arc<Mutex<Hearsay>>,
    findings: mpsc::Sender<Misbehaviour>,
}

impl Sieve for Ear {
    fn begin(&self) {
        // Gossip is a hint (CHAN-11): whatever peers send, rounds come first.
        process::thread_gives_way();
    }

    fn judge(&self, topic: Topic, message: &[u8]) -> Validity {
        let (validity, found) = Hearsay::hear(&self.hearsay, topic, message);
        if let Some(found) = found {
            // Dropped where many wait: the swarm's thread must not wait for whoever reads them.
            let _ = self.findings.try_send(found);
        }
        validity
    }

    fn knows(&self, member: &MemberId) -> bool {
        lock(&self.hearsay).knows(member)
    }

    fn is_host(&self, address: &IpAddr) -> bool {
        lock(&self.hearsay).is_host(address)
    }
}

/// Hears nothing and keeps nothing.
struct Deaf;

impl Sieve for Deaf {
    fn judge(&self, _: Topic, _: &[u8]) -> Validity {
        Validity::Ignore
    }

    fn knows(&self, _: &MemberId) -> bool {
        false
    }

    fn is_host(&self, _: &IpAddr) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chan_20_whoever_was_ahead_of_its_time_is_found_where_it_went_afterwards() {
        let journal = Journal::in_memory().unwrap();
        // A clock that is right, one that is years ahead, and one that was set right again.
        let times = [1_000, 9_000, 2_000, 2_001].map(|now| later(Some(&journal), now));
        assert_eq!(times, [1_000, 9_000, 9_001, 9_002]);
        assert_eq!(later(None, 5), 5);
    }
}
