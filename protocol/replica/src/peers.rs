//! Typed calls to other members. Every answer is checked against something sealed before it is given on.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use muster_core::codec::{Bytes, List, decode, encode};
use muster_core::contribution::{PartDigest, open_block};
use muster_core::error::Reject;
use muster_core::ids::{Block, Digest, MemberId, Round};
use muster_core::layout::Layout;
use muster_core::ledger::Ledger;
use muster_core::limits;
use muster_core::lock::lock;
use muster_core::messages::wire::{BULK_BYTES, BlockData, BlockQuery, InputQuery, Notice, Request, Response};
use muster_core::rounding::{BlockValues, ResultGrid};
use muster_net::endpoint::{Endpoint, Line};
use muster_net::error::{Cause, NetError};
use muster_net::pool::Pool;
use tokio::time::{sleep, timeout};

use crate::dialling::Dialling;

/// Patience with one answer that needs no long computation.
const ANSWER: Duration = Duration::from_secs(30);
/// The same with a piece of a state: four of 2 MiB come at once, over 1.2 Mbit/s in this time.
const PIECE_ANSWER: Duration = Duration::from_secs(60);
/// How long a contact has for blocks before the next one is asked as well, and how many bytes more a second.
const SOON: Duration = Duration::from_millis(limits::SOON);
const SLOWEST: u64 = limits::SLOWEST;
/// How many times as long it has until it is given up.
const AT_LAST: u32 = 10;
/// How long whoever has failed is left alone while another one is late; whoever takes longer to fail is late itself.
const AGAIN: Duration = Duration::from_millis(500);
/// How long whoever took longer is asked after the others, the first time and at most: each further time twice as long. A good
/// answer meanwhile ends it no sooner: who stalls may choose what it stalls over.
const LAST: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(3600);
/// Connections kept open at most.
const CONNECTIONS: usize = 512;

/// A member and where it can be dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    /// Whom to expect.
    pub member: MemberId,
    /// Where, as `host:port`, or as the multiaddress of its swarm.
    pub addresses: Vec<String>,
}

impl Contact {
    /// Where its swarm is: addresses that are multiaddresses. Channels are dialled at all others.
    pub fn swarm_addresses(&self) -> impl Iterator<Item = String> + '_ {
        self.addresses.iter().filter(|address| address.starts_with('/')).cloned()
    }
}

/// Where the ledger says that a member can be dialled.
pub fn contact(ledger: &Ledger, member: &MemberId) -> Option<Contact> {
    let found = ledger.member(member)?;
    Some(Contact {
        member: *member,
        addresses: found.addresses.iter().map(|address| address.to_string()).collect(),
    })
}

/// What a contribution is called, and what proves its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommittedContribution {
    /// The round.
    pub round: Round,
    /// The author.
    pub member: MemberId,
    /// The committed root.
    pub root: Digest,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The network.
    #[error(transparent)]
    Net(NetError),
    /// The peer said no, in its words.
    #[error("refused: {0}")]
    Refused(String),
    /// The peer sent something that is not true.
    #[error("sent something untrue: {0}")]
    Reject(#[from] Reject),
    /// The peer answered something that was not asked.
    #[error("answered something that was not asked")]
    Unexpected,
    /// The peer took longer than it may.
    #[error("took too long")]
    Late,
    /// It has no address that may be dialled now, or nobody was asked.
    #[error("no address to reach it, or none where somebody answered lately")]
    Unreachable,
}

impl PeerError {
    /// Whether the peer sent something that is not true, or not what was asked for.
    pub(crate) fn is_untrue(&self) -> bool {
        matches!(self, Self::Reject(_) | Self::Unexpected)
    }
}

/// How long somebody counts as late.
struct Lateness {
    until: Instant,
    span: Duration,
}

impl Lateness {
    /// A member is late once more: for twice as long, if that is so soon after the time before as that lasted.
    fn note(all: &mut BTreeMap<MemberId, Self>, member: MemberId, now: Instant) {
        let span = match all.get(&member) {
            // What it was asked for meanwhile is the same lateness.
            Some(late) if now < late.until => late.span,
            Some(late) if now < late.until + late.span => (2 * late.span).min(LONGEST),
            _ => LAST,
        };
        all.insert(member, Self { until: now + span, span });
    }
}

/// Channels to other members, dialled when needed.
#[derive(Clone)]
pub struct Peers {
    pool: Arc<Pool>,
    /// Long polls hold up everything else on their channel, so they have channels of their own.
    polls: Arc<Pool>,
    /// Contributions have channels of their own: a reluctant author must not delay other requests, and uploads are long.
    contributions: Arc<Pool>,
    /// A steward that moved is where it says, whichever contact of it a task still has.
    moved: Arc<Mutex<Option<Contact>>>,
    /// Who has not answered in time: others are asked before it for a while.
    late: Arc<Mutex<BTreeMap<MemberId, Lateness>>>,
    /// Who did not take what was brought last.
    failing: Arc<Mutex<BTreeSet<MemberId>>>,
    /// Where nobody answered lately.
    dialling: Arc<Dialling>,
}

impl Peers {
    /// With this identity and run.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            dialling: Arc::new(Dialling::new(endpoint.clone())),
            pool: Arc::new(Pool::new(endpoint.clone(), CONNECTIONS)),
            // One: only the steward is polled.
            polls: Arc::new(Pool::new(endpoint.clone(), 1)),
            contributions: Arc::new(Pool::new(endpoint, CONNECTIONS)),
            moved: Arc::default(),
            late: Arc::default(),
            failing: Arc::default(),
        }
    }

    /// From now on the addresses of everybody but this member come from the ledger, so that others chose them (CHAN-25).
    pub fn behind(&self, steward: MemberId) {
        self.dialling.behind(steward);
        self.dialling.endpoint().meet_at(steward);
    }

    /// A member was found at its addresses by somebody else: they are dialled at once, also where nobody answered lately.
    pub fn returned(&self, contact: &Contact) {
        self.dialling.found(contact.addresses.iter().map(String::as_str));
    }

    /// CHAN-29: members behind routers are dialled over relays of members that the ledger names, where these have one.
    pub fn know_relays(&self, ledger: &Ledger) {
        self.dialling.know_relays(ledger);
    }

    /// Dials the steward here from now on, instead of where its contacts say.
    pub fn moved(&self, steward: Contact) {
        *lock(&self.moved) = Some(steward);
    }

    /// CHAN-13: frees the descriptor of a connection that nobody uses now; whether there was one.
    pub fn relieve(&self) -> bool {
        self.contributions.relieve() || self.pool.relieve()
    }

    /// The way of the channels to a member that were dialled from here; none where there is none.
    pub fn line(&self, contact: &Contact) -> Option<Line> {
        let contact = self.current(contact);
        let pools = [&self.pool, &self.contributions, &self.polls];
        let connected =
            |address: &&String| pools.iter().any(|pool| pool.is_connected(address, contact.member));
        let address = channels(&contact).find(connected)?;
        Some(self.dialling.endpoint().line(address))
    }

    /// CHAN-25: whether some address of a member may be dialled now.
    pub fn may_dial(&self, contact: &Contact) -> bool {
        let contact = self.current(contact);
        let now = Instant::now();
        channels(&contact).any(|address| self.dialling.may(&contact.member, address, now))
    }

    /// A member takes what is brought to it, or fails to: whether that is news, so that people are told of it once.
    pub fn fails(&self, member: MemberId, fails: bool) -> bool {
        let mut failing = lock(&self.failing);
        if fails { failing.insert(member) } else { failing.remove(&member) }
    }

    /// Bytes sent and received over all channels of this process, those that others dialled included.
    pub fn traffic(&self) -> (u64, u64) {
        let endpoint = self.dialling.endpoint();
        (endpoint.bytes_sent(), endpoint.bytes_received())
    }

    /// Bytes of others that the relay of this process has carried.
    pub fn relayed(&self) -> u64 {
        self.dialling.endpoint().bytes_relayed()
    }

    fn current(&self, contact: &Contact) -> Contact {
        let moved = lock(&self.moved).clone();
        // Of this very member: another one's contact is left as it is.
        moved.filter(|moved| moved.member == contact.member).unwrap_or_else(|| contact.clone())
    }

    /// Asks one member, at each of its addresses in turn, with the usual patience.
    ///
    /// # Errors
    /// [`PeerError`] of the last address.
    pub async fn ask(&self, contact: &Contact, request: &Request) -> Result<Response, PeerError> {
        let contact = self.current(contact);
        if matches!(request, Request::Notice(Notice::Return(_))) {
            // CHAN-24: it is answered once its author was dialled, which may take as long as a phase. A commitment does not wait
            // behind it.
            let apart = Pool::new(self.dialling.endpoint().clone(), 1);
            return call(&apart, &self.dialling, &contact, request, ANSWER).await;
        }
        let patience = if matches!(request, Request::State(_)) { PIECE_ANSWER } else { ANSWER };
        call(&self.pool, &self.dialling, &contact, request, patience).await
    }

    /// Asks something that the other side may answer late, on a channel of its own.
    ///
    /// # Errors
    /// [`PeerError`] of the last address.
    pub async fn poll(
        &self,
        contact: &Contact,
        request: &Request,
        patience: Duration,
    ) -> Result<Response, PeerError> {
        call(&self.polls, &self.dialling, &self.current(contact), request, patience).await
    }

    /// Brings one member a contribution: requests by number, from 0, up to the first that is none, the next one before the answer
    /// to the one before has come. The answers are taken in their order, until one is not. Whoever calls sets a bound for all.
    ///
    /// # Errors
    /// [`PeerError`] of the last address, or what `take` gave.
    pub async fn bring(
        &self,
        contact: &Contact,
        request: &(impl Fn(usize) -> Option<Request> + Sync),
        take: &mut (impl FnMut(Response) -> Result<bool, PeerError> + Send),
    ) -> Result<(), PeerError> {
        call_each(&self.contributions, &self.dialling, &self.current(contact), request, take).await
    }

    /// Values of a part, in order of its blocks, from the first contact whose values have the digest. They are asked in
    /// turn, the next one as soon as one has not answered in [`patience`], and until then as well.
    ///
    /// # Errors
    /// [`PeerError`] of the last contact.
    pub async fn values(
        &self,
        contacts: &[Contact],
        layout: &Layout,
        round: Round,
        blocks: &[Block],
        digest: &Digest,
    ) -> Result<Vec<BlockValues>, PeerError> {
        let ask = |contact: &Contact| {
            let contact = contact.clone();
            async move {
                let (values, of_them) = self.values_from(&contact, layout, round, blocks).await?;
                // The digest was signed: whoever sends other values is passed over, and the next one asked (ROUND-7).
                let right = of_them == *digest;
                right.then_some(values).ok_or(PeerError::Reject(Reject::BadProof("the values of a part")))
            }
        };
        self.in_turn(contacts, patience(layout, blocks), &ask).await
    }

    async fn values_from(
        &self,
        contact: &Contact,
        layout: &Layout,
        round: Round,
        blocks: &[Block],
    ) -> Result<(Vec<BlockValues>, Digest), PeerError> {
        let groups = groups(layout, blocks);
        let request = |number: usize| {
            let blocks = bounded(groups.get(number)?).ok()?;
            Some(Request::ResultBlocks(BlockQuery { round, blocks }))
        };
        let (mut values, mut whole) = (Vec::with_capacity(blocks.len()), PartDigest::default());
        let mut asked = groups.iter();
        let mut take = |response| {
            let (Response::Bytes(bytes), Some(group)) = (response, asked.next()) else {
                return Err(PeerError::Unexpected);
            };
            let mut rest: &[u8] = &bytes;
            for block in group {
                // AGG-24. From the layout: the sender says nothing of how many values there are.
                let length = layout.block(*block).map_or(0, |range| range.range.len());
                let (packed, reals, after) = BlockValues::read(ResultGrid::of(layout, *block), rest, length)?;
                whole = std::mem::take(&mut whole).block(&reals);
                values.push(packed);
                rest = after;
            }
            Ok(true)
        };
        call_each(&self.pool, &self.dialling, &self.current(contact), &request, &mut take).await?;
        Ok((values, whole.finish()))
    }

    /// Blocks of a member's contribution, each proved against its committed root, from the first contact that has
    /// them all. They are asked as in [`Peers::values`].
    ///
    /// # Errors
    /// [`PeerError`] of the last contact.
    pub async fn contribution(
        &self,
        contacts: &[Contact],
        layout: &Layout,
        name: &CommittedContribution,
        blocks: &[Block],
    ) -> Result<Vec<BlockData>, PeerError> {
        let ask = |contact: &Contact| {
            let contact = contact.clone();
            async move { self.contribution_from(&contact, layout, name, blocks).await }
        };
        self.in_turn(contacts, patience(layout, blocks), &ask).await
    }

    /// The first good answer. Who was late shortly before is asked last.
    pub(crate) async fn in_turn<T, F>(
        &self,
        contacts: &[Contact],
        patience: Duration,
        ask: &(impl Fn(&Contact) -> F + Sync),
    ) -> Result<T, PeerError>
    where
        T: Send,
        F: Future<Output = Result<T, PeerError>> + Send,
    {
        let now = Instant::now();
        let is_late =
            |contact: &&Contact| lock(&self.late).get(&contact.member).is_some_and(|late| now < late.until);
        // Late ones last, and still asked: they may be the only ones that have it.
        let (late, prompt): (Vec<&Contact>, Vec<&Contact>) = contacts.iter().partition(is_late);
        let told = |contact: &Contact| Lateness::note(&mut lock(&self.late), contact.member, Instant::now());
        // Whoever sends something untrue is not asked again: it would send that again and again.
        let failed = Mutex::new(BTreeSet::new());
        let once = |contact: &Contact| {
            let (member, asked, failed) = (contact.member, ask(contact), &failed);
            async move {
                if lock(failed).contains(&member) {
                    return Err(PeerError::Unreachable);
                }
                let answer = asked.await;
                if answer.as_ref().is_err_and(PeerError::is_untrue) {
                    lock(failed).insert(member);
                }
                answer
            }
        };
        // Whoever was late before makes nobody wait as long for it again.
        let turn = |soon: Duration| move |contact| Turn { contact, soon };
        let late = late.into_iter().map(turn(patience.min(AGAIN)));
        let turns: Vec<Turn<'_>> = prompt.into_iter().map(turn(patience)).chain(late).collect();
        // Those that are late one after the other do not make it longer.
        let most = (AT_LAST + turns.len() as u32) * patience;
        timeout(most, in_turn(turns, patience, &once, &told)).await.unwrap_or(Err(PeerError::Late))
    }

    async fn contribution_from(
        &self,
        contact: &Contact,
        layout: &Layout,
        name: &CommittedContribution,
        blocks: &[Block],
    ) -> Result<Vec<BlockData>, PeerError> {
        let CommittedContribution { round, member, root } = *name;
        let groups = groups(layout, blocks);
        let request = |number: usize| {
            let blocks = bounded(groups.get(number)?).ok()?;
            Some(Request::InputBlocks(InputQuery { round, member, blocks }))
        };
        let mut found = Vec::with_capacity(blocks.len());
        let mut asked = groups.iter();
        let mut take = |response| {
            let (Response::Blocks(answer), Some(group)) = (response, asked.next()) else {
                return Err(PeerError::Unexpected);
            };
            // Proved blocks of other numbers would be taken for those that were asked for.
            if !answer.iter().map(|data| data.block).eq(group.iter().copied()) {
                return Err(PeerError::Unexpected);
            }
            for data in answer.into_inner() {
                // Proved against the frozen root: no holder can put other integers in an author's mouth (COMMIT-5).
                open_block(layout, &root, &data)?;
                found.push(data);
            }
            Ok(true)
        };
        call_each(&self.contributions, &self.dialling, &self.current(contact), &request, &mut take).await?;
        Ok(found)
    }
}

/// How long a contact may take for these blocks before the next one is asked as well: whoever holds them may only want to
/// delay, and the others have them, too.
pub fn patience(layout: &Layout, blocks: &[Block]) -> Duration {
    let values = blocks.iter().filter_map(|block| layout.block(*block)).map(|block| block.range.len());
    patience_for(4 * values.sum::<usize>() as u64)
}

/// The same for so many bytes.
pub(crate) fn patience_for(bytes: u64) -> Duration {
    SOON + Duration::from_micros(bytes.saturating_mul(1_000_000) / SLOWEST)
}

/// One that is asked.
#[derive(Clone, Copy)]
struct Turn<'a> {
    contact: &'a Contact,
    /// After so long the next one is asked as well.
    soon: Duration,
}

/// The first good answer. Each contact is asked as soon as the one before has failed, or has not answered soon; it is given up
/// after [`AT_LAST`] times `patience`. While one is late, those that have failed are asked again every [`AGAIN`]: they may
/// only now have what it keeps back. `told` hears who is late, or takes long to fail.
fn in_turn<'a, T, F>(
    turns: Vec<Turn<'a>>,
    patience: Duration,
    ask: &'a (impl Fn(&Contact) -> F + Sync),
    told: &'a (impl Fn(&Contact) + Sync),
) -> Pin<Box<dyn Future<Output = Result<T, PeerError>> + Send + 'a>>
where
    T: Send + 'a,
    F: Future<Output = Result<T, PeerError>> + Send + 'a,
{
    Box::pin(async move {
        let mut failure = PeerError::Unreachable;
        for (place, Turn { contact, soon }) in turns.iter().enumerate() {
            let begun = tokio::time::Instant::now();
            let asked = timeout(AT_LAST * patience, ask(contact));
            let mut asked = pin!(async { asked.await.unwrap_or(Err(PeerError::Late)) });
            match timeout(*soon, &mut asked).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => {
                    // Otherwise it would refuse just before it is late, each time. By time alone: of two aggregators, an honest one
                    // has other values than what the other one lies about.
                    if begun.elapsed() > AGAIN {
                        told(contact);
                    }
                    failure = error;
                }
                Err(_) => {
                    told(contact);
                    let (failed, others) = (&turns[..place], &turns[place + 1..]);
                    if turns.len() == 1 {
                        return asked.await;
                    }
                    // Overlapping turns: a holder that delays costs seconds, while asking all at once would send everything twice.
                    let waits = AtomicBool::new(true);
                    let mut rest = pin!(async {
                        loop {
                            let asked = in_turn([failed, others].concat(), patience, ask, told).await;
                            if asked.is_ok() || !waits.load(Ordering::Relaxed) {
                                return asked;
                            }
                            sleep(AGAIN).await;
                        }
                    });
                    let late = tokio::select! {
                        answer = &mut asked => answer,
                        answer = &mut rest => return answer,
                    };
                    if late.is_ok() {
                        return late;
                    }
                    waits.store(false, Ordering::Relaxed);
                    return rest.await;
                }
            }
        }
        Err(failure)
    })
}

async fn call(
    pool: &Pool,
    dialling: &Dialling,
    contact: &Contact,
    request: &Request,
    patience: Duration,
) -> Result<Response, PeerError> {
    let bytes = encode(request);
    let mut last = PeerError::Unreachable;
    for address in channels(contact).filter(|address| dialling.may(&contact.member, address, Instant::now()))
    {
        let answer = pool.call(address, contact.member, &bytes, patience).await;
        dialling.asked(address, answer.as_ref().map(|_| ()), Instant::now());
        match answer {
            Ok(answer) => return response(&answer),
            // It is there: no other address says more.
            Err(error) if matches!(error.cause, Cause::Clock(_)) => return Err(PeerError::Net(error)),
            Err(error) => last = PeerError::Net(error),
        }
    }
    Err(last)
}

/// A series, which goes on at the next address where one fails. Each answer has a bound, all together have none.
async fn call_each(
    pool: &Pool,
    dialling: &Dialling,
    contact: &Contact,
    request: &(impl Fn(usize) -> Option<Request> + Sync),
    take: &mut (impl FnMut(Response) -> Result<bool, PeerError> + Send),
) -> Result<(), PeerError> {
    let mut last = PeerError::Unreachable;
    let mut taken = 0;
    for address in channels(contact).filter(|address| dialling.may(&contact.member, address, Instant::now()))
    {
        let begun = taken;
        let from_there = |number| request(begun + number).map(|request| encode(&request));
        let mut refused = None;
        let mut take = |answer: Vec<u8>| {
            taken += 1;
            let more = response(&answer).and_then(&mut *take);
            more.unwrap_or_else(|error| {
                refused = Some(error);
                false
            })
        };
        let asked = pool.call_each(address, contact.member, &from_there, ANSWER, &mut take).await;
        dialling.asked(address, asked.as_ref().map(|_| ()), Instant::now());
        match (refused, asked) {
            (Some(error), _) => return Err(error),
            (None, Ok(())) => return Ok(()),
            (None, Err(error)) => last = PeerError::Net(error),
        }
    }
    Err(last)
}

/// Where channels are dialled.
fn channels(contact: &Contact) -> impl Iterator<Item = &String> {
    contact.addresses.iter().filter(|address| !address.starts_with('/'))
}

fn response(answer: &[u8]) -> Result<Response, PeerError> {
    match decode(answer)? {
        Response::Refused(why) => Err(PeerError::Refused(why.to_string())),
        response => Ok(response),
    }
}

/// Cuts blocks into groups whose values fit one answer.
pub fn groups(layout: &Layout, blocks: &[Block]) -> Vec<Vec<Block>> {
    let mut groups: Vec<Vec<Block>> = Vec::new();
    let mut room = 0;
    for block in blocks {
        let bytes = layout.block(*block).map_or(0, |range| range.range.len() * 4);
        match groups.last_mut() {
            // Half of what an answer and a query may hold: blocks of contributions bring their proofs.
            Some(group) if bytes <= room && group.len() < 512 => {
                group.push(*block);
                room -= bytes;
            }
            _ => {
                groups.push(vec![*block]);
                room = (BULK_BYTES / 2).saturating_sub(bytes);
            }
        }
    }
    groups
}

fn bounded<T: Clone, const MAX: usize>(items: &[T]) -> Result<List<T, MAX>, PeerError> {
    List::new(items.to_vec()).map_err(|_| PeerError::Unexpected)
}

/// Bulk bytes as an answer; refused when they are more than one answer holds.
pub(crate) fn bulk(bytes: Vec<u8>) -> Option<Response> {
    Bytes::new(bytes).ok().map(Response::Bytes)
}

#[cfg(test)]
mod tests {
    use muster_core::ids::RunId;
    use muster_core::sign::Identity;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(20);

    #[test]
    fn a_member_that_fails_again_and_again_is_told_of_once() {
        let identity = Arc::new(Identity::from_secret(&[1; 32]));
        let peers = Peers::new(Endpoint::new(RunId(Digest::default()), identity));
        let told = [true, true, true, false, false, true].map(|fails| peers.fails(MemberId([2; 32]), fails));
        assert_eq!(told, [true, false, false, true, false, true]);
    }

    /// A holder that never answers costs one wait, and not one for each thing that it holds.
    #[tokio::test]
    async fn who_did_not_answer_in_time_is_asked_after_the_others() {
        let identity = Arc::new(Identity::from_secret(&[1; 32]));
        let peers = Peers::new(Endpoint::new(RunId(Digest::default()), identity));
        let contacts = [1, 2].map(|number| Contact { member: MemberId([number; 32]), addresses: Vec::new() });
        let [mute, prompt] = [contacts[0].member, contacts[1].member];
        let asked = Mutex::new(Vec::new());
        let ask = |contact: &Contact| {
            lock(&asked).push(contact.member);
            let member = contact.member;
            async move {
                if member == mute {
                    std::future::pending::<()>().await;
                }
                Ok(member)
            }
        };
        for _ in 0..3 {
            assert_eq!(peers.in_turn(&contacts, PATIENCE, &ask).await.unwrap(), prompt);
        }
        assert_eq!(*lock(&asked), [mute, prompt, prompt, prompt]);
    }

    /// An aggregator may show its values to the steward alone. Whoever asks the steward too early asks it again.
    #[tokio::test(start_paused = true)]
    async fn who_does_not_have_it_yet_is_asked_again_while_another_one_is_late() {
        let identity = Arc::new(Identity::from_secret(&[1; 32]));
        let peers = Peers::new(Endpoint::new(RunId(Digest::default()), identity));
        let contacts = [1, 2].map(|number| Contact { member: MemberId([number; 32]), addresses: Vec::new() });
        let [early, mute] = [contacts[0].member, contacts[1].member];
        let begun = tokio::time::Instant::now();
        let ask = |contact: &Contact| {
            let member = contact.member;
            async move {
                if member == mute {
                    std::future::pending::<()>().await;
                }
                let has_it = begun.elapsed() > SOON + Duration::from_millis(700);
                has_it.then_some(member).ok_or(PeerError::Refused("not held here".into()))
            }
        };
        assert_eq!(peers.in_turn(&contacts, SOON, &ask).await.unwrap(), early);
        assert!(begun.elapsed() <= SOON + 2 * AGAIN, "{:?}", begun.elapsed());
        // The mute one is known now.
        let begun = tokio::time::Instant::now();
        let ask = |contact: &Contact| {
            let member = contact.member;
            async move {
                if member == mute {
                    std::future::pending::<()>().await;
                }
                let has_it = begun.elapsed() > Duration::from_millis(100);
                has_it.then_some(member).ok_or(PeerError::Refused("not held here".into()))
            }
        };
        assert_eq!(peers.in_turn(&contacts, SOON, &ask).await.unwrap(), early);
        assert!(begun.elapsed() <= 2 * AGAIN, "{:?}", begun.elapsed());
        // It never has it: both are given up.
        let ask = |contact: &Contact| {
            let member = contact.member;
            async move {
                if member == mute {
                    std::future::pending::<()>().await;
                }
                Err::<(), _>(PeerError::Refused("not held here".into()))
            }
        };
        let begun = tokio::time::Instant::now();
        let refused = peers.in_turn(&contacts, SOON, &ask).await.unwrap_err();
        assert!(matches!(refused, PeerError::Refused(_)), "{refused}");
        assert!(begun.elapsed() <= AT_LAST * SOON + 2 * AGAIN, "{:?}", begun.elapsed());
    }

    #[test]
    fn who_is_late_again_and_again_is_asked_last_for_longer() {
        let (mut all, member, begun) = (BTreeMap::new(), MemberId([1; 32]), Instant::now());
        let mut spans = Vec::new();
        let mut at = begun;
        for _ in 0..8 {
            Lateness::note(&mut all, member, at);
            let late = &all[&member];
            spans.push(late.span.as_secs());
            at = late.until + Duration::from_secs(1);
        }
        assert_eq!(spans, [60, 120, 240, 480, 960, 1920, 3600, 3600]);
        // Within it, it goes on; long after it, all is forgotten.
        Lateness::note(&mut all, member, at - Duration::from_secs(10));
        assert_eq!(all[&member].span, LONGEST);
        Lateness::note(&mut all, member, at + 3 * LONGEST);
        assert_eq!(all[&member].span, LAST);
    }

    /// Otherwise it would cost everybody nearly the whole patience, in each round. Who is prompt and wrong costs nothing.
    #[tokio::test(start_paused = true)]
    async fn who_takes_long_to_refuse_is_late() {
        let identity = Arc::new(Identity::from_secret(&[1; 32]));
        let peers = Peers::new(Endpoint::new(RunId(Digest::default()), identity));
        let contacts =
            [1, 2, 3].map(|number| Contact { member: MemberId([number; 32]), addresses: Vec::new() });
        let [slow, wrong, good] = contacts.each_ref().map(|contact| contact.member);
        let asked = Mutex::new(Vec::new());
        let ask = |contact: &Contact| {
            lock(&asked).push(contact.member);
            let member = contact.member;
            async move {
                match member {
                    _ if member == slow => {
                        sleep(SOON * 9 / 10).await;
                        Err(PeerError::Refused("not held here".into()))
                    }
                    _ if member == wrong => Err(PeerError::Unexpected),
                    _ => Ok(member),
                }
            }
        };
        for _ in 0..2 {
            assert_eq!(peers.in_turn(&contacts, SOON, &ask).await.unwrap(), good);
        }
        assert_eq!(*lock(&asked), [slow, wrong, good, wrong, good]);
    }
}
