//! Whom to ask: a call goes to one holder or two, the next one is asked as well where these take long, and who stays silent
//! for the grace is asked no more.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_core::error::Reject;
use muster_core::ids::{Digest, MemberId, Row, RunId};
use muster_core::ledger::Ledger;
use muster_core::manifest::Manifest;
use muster_core::messages::call::{Answer, Ask, logits_digest};
use muster_core::messages::wire::{Answered, Request, Response};
use muster_core::sign::Signed;
use muster_replica::{Contact, PeerError, Peers, contact, holders};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use super::rows::newest;

/// How long holders have before the next one is asked as well.
const SOON: Duration = Duration::from_millis(500);
/// Answers that wait to be looked at.
const QUEUE: usize = 64;

/// A call, and how many answers it wants.
pub(super) struct Race {
    pub(super) ask: Ask,
    pub(super) signed: Signed<Ask>,
    pub(super) wanted: usize,
}

/// An answer that binds its author, with the logits that it has signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) holder: MemberId,
    pub(super) answer: Signed<Answer>,
    pub(super) logits: Vec<i32>,
}

/// What a call came to.
pub(super) enum Answering {
    /// One answer at least, and no more than were wanted.
    Given(Vec<Given>),
    /// Every holder that answers declines, since it lacks the state or has something else to do; or others have answered,
    /// and the time for this call is over.
    Later,
    /// Nobody is left to be asked.
    Nobody,
}

/// What a holder has made of a call.
enum Reply {
    Given(Given),
    Declined,
    /// In words.
    Failed(String),
}

impl Reply {
    /// Whether the next holder is to be asked at once.
    fn is_none(&self) -> bool {
        !matches!(self, Self::Given(_))
    }
}

/// A call under way.
struct Running<'a> {
    race: &'a Race,
    /// Digest of the signed question.
    name: Digest,
    /// Who is left to be asked.
    left: Vec<Contact>,
    pending: usize,
    /// When the next one of them is asked as well.
    next: Instant,
    given: Vec<Given>,
    declined: bool,
}

impl Running<'_> {
    fn is_over(&self) -> bool {
        self.given.len() >= self.race.wanted || (self.pending == 0 && self.left.is_empty())
    }

    /// When something is to be done if no holder says anything.
    fn due(&self) -> Option<Instant> {
        (!self.is_over() && !self.left.is_empty()).then_some(self.next)
    }

    fn outcome(self) -> Answering {
        match (self.given.is_empty(), self.declined || self.pending > 0) {
            (false, _) => Answering::Given(self.given),
            (true, true) => Answering::Later,
            (true, false) => Answering::Nobody,
        }
    }
}

/// The members that hold the model, as the ledger and their answers show them.
pub(super) struct Holders {
    peers: Peers,
    me: MemberId,
    /// Who is asked no more.
    out: BTreeSet<MemberId>,
    /// Those of them that nobody was told about.
    failed: Vec<(MemberId, String)>,
    sender: mpsc::Sender<(Digest, MemberId, Reply)>,
    replies: mpsc::Receiver<(Digest, MemberId, Reply)>,
}

impl Holders {
    pub(super) fn new(peers: Peers, me: MemberId) -> Self {
        let (sender, replies) = mpsc::channel(QUEUE);
        Self { peers, me, out: BTreeSet::new(), failed: Vec::new(), sender, replies }
    }

    /// Asks this member no more.
    pub(super) fn leave_out(&mut self, member: MemberId) {
        self.out.insert(member);
    }

    /// Who is left out since the last time, and why.
    pub(super) fn failed(&mut self) -> Vec<(MemberId, String)> {
        std::mem::take(&mut self.failed)
    }

    /// Makes these calls, all at once, until each has as many answers as it wants or nobody left who could answer. Once a
    /// call has them, the others have the grace; none of them goes on beyond `until`.
    pub(super) async fn ask(
        &mut self,
        ledger: &Ledger,
        manifest: &Manifest,
        races: &[Race],
        grace: Duration,
        mut until: Option<Instant>,
    ) -> Vec<Answering> {
        let mut calls: Vec<Running<'_>> = races.iter().map(|race| self.begin(ledger, race)).collect();
        for call in &mut calls {
            self.start(call, call.race.wanted, manifest, grace);
        }
        while !calls.iter().all(Running::is_over) {
            // CALL-14: one row is enough, and the others are not waited for without end.
            if calls.iter().any(|call| call.is_over() && !call.given.is_empty()) {
                until.get_or_insert_with(|| Instant::now() + grace);
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                break;
            }
            let wake = calls.iter().filter_map(Running::due).chain(until).min();
            let reply = match wake {
                Some(wake) => timeout_at(wake, self.replies.recv()).await.ok().flatten(),
                // Every request that is under way ends within the grace.
                None => self.replies.recv().await,
            };
            if let Some((name, holder, reply)) = reply {
                self.take(calls.iter_mut().find(|call| call.name == name), holder, reply);
            }
            // CALL-11: where no answer has come after half a second, the next holder is asked as well.
            let now = Instant::now();
            for call in calls.iter_mut().filter(|call| call.due().is_some_and(|due| due <= now)) {
                self.start(call, 1, manifest, grace);
            }
        }
        calls.into_iter().map(Running::outcome).collect()
    }

    /// What a holder has made of a call: of one under way, or of one that went on without it.
    fn take(&mut self, call: Option<&mut Running<'_>>, holder: MemberId, reply: Reply) {
        if let Some(call) = call {
            call.pending -= 1;
            call.declined |= matches!(reply, Reply::Declined);
            if reply.is_none() {
                call.next = Instant::now();
            }
            if let Reply::Given(given) = reply {
                return call.given.push(given);
            }
        }
        if let Reply::Failed(why) = reply
            && self.out.insert(holder)
        {
            self.failed.push((holder, why));
        }
    }

    /// Whoever can be asked about a row: nodes at work that can be dialled, and hold it.
    pub(super) fn of(&self, ledger: &Ledger, row: Row) -> Vec<Contact> {
        // CALL-13: of the newest state.
        let all = holders(ledger, newest(ledger).rows, Some(row));
        let asked = all.filter(|member| member.id != self.me && !self.out.contains(&member.id));
        asked.filter_map(|member| contact(ledger, &member.id)).collect()
    }

    /// A call that nobody was asked yet.
    fn begin<'a>(&self, ledger: &Ledger, race: &'a Race) -> Running<'a> {
        let (left, name) = (shuffled(self.of(ledger, race.ask.row)), race.signed.digest());
        Running { race, name, left, pending: 0, next: Instant::now(), given: Vec::new(), declined: false }
    }

    /// Asks so many more holders.
    fn start(&self, call: &mut Running<'_>, count: usize, manifest: &Manifest, grace: Duration) {
        for _ in 0..count {
            let Some(holder) = call.left.pop() else { break };
            self.send(holder, manifest, call.race, grace);
            call.pending += 1;
        }
        call.next = Instant::now() + SOON;
    }

    fn send(&self, holder: Contact, manifest: &Manifest, race: &Race, grace: Duration) {
        let (peers, sender) = (self.peers.clone(), self.sender.clone());
        let (signed, run) = (race.signed.clone(), manifest.run());
        let count = race.ask.logits(manifest);
        tokio::spawn(async move {
            let call = signed.digest();
            let request = Request::Ask(signed);
            let reply = match timeout(grace, peers.ask(&holder, &request)).await {
                Err(_) => Reply::Failed(format!("has not answered in {} s", grace.as_secs_f32())),
                Ok(Err(PeerError::Refused(_))) => Reply::Declined,
                Ok(Err(error)) => Reply::Failed(format!("cannot be asked ({error})")),
                Ok(Ok(Response::Answer(answered))) => {
                    let checked = check(run, &holder.member, &call, count, answered);
                    let nothing = |reject| Reply::Failed(format!("gives no answer ({reject})"));
                    checked.map_or_else(nothing, Reply::Given)
                }
                Ok(Ok(_)) => Reply::Failed("answers something else".into()),
            };
            let _ = sender.send((call, holder.member, reply)).await;
        });
    }
}

/// CALL-9: only an answer that the holder itself has signed, to this very question, over these very logits, counts: nothing
/// else could convict it.
fn check(
    run: RunId,
    holder: &MemberId,
    call: &Digest,
    count: usize,
    answered: Answered,
) -> Result<Given, Reject> {
    let answer = answered.answer.verify(run)?;
    if answer.author() != *holder {
        return Err(Reject::NotEntitled("answer for another holder"));
    }
    if answer.ask != *call {
        return Err(Reject::Rule("an answer names its question"));
    }
    if answered.logits.len() != count || logits_digest(&answered.logits) != answer.logits {
        return Err(Reject::Rule("the logits are those that the answer has signed"));
    }
    Ok(Given { holder: *holder, answer: answered.answer, logits: answered.logits.into_inner() })
}

/// In an order that no holder can foresee, as far as the system gives randomness.
fn shuffled(holders: Vec<Contact>) -> Vec<Contact> {
    let place = |holder: Contact| {
        let mut word = [0; 8];
        // Without randomness the order is that of the ledger: it costs fairness, and no safety.
        let _ = getrandom::fill(&mut word);
        (u64::from_le_bytes(word), holder)
    };
    let mut placed: Vec<(u64, Contact)> = holders.into_iter().map(place).collect();
    placed.sort_by_key(|(place, _)| *place);
    placed.into_iter().map(|(_, holder)| holder).collect()
}

#[cfg(test)]
mod tests {
    use muster_core::codec::List;
    use muster_core::ids::{Round, Row};
    use muster_core::sign::Identity;

    use super::*;

    #[test]
    fn call_9_only_what_would_convict_its_author_counts() {
        let run = RunId(Digest([1; 32]));
        let (holder, other) = (Identity::from_secret(&[7; 32]), Identity::from_secret(&[8; 32]));
        let tokens = List::new(vec![1]).unwrap();
        let ask = Ask { round: Round(0), root: Digest::default(), row: Row(0), tokens, positions: 1 };
        let call = other.sign(run, &ask).digest();
        let answered = |author: &Identity, ask, logits: &[i32], sent: &[i32]| Answered {
            answer: author.sign(run, &Answer { ask, logits: logits_digest(logits) }),
            logits: List::new(sent.to_vec()).unwrap(),
        };
        let check = |answered| check(run, &holder.id(), &call, 2, answered);
        let good = [1, 2];
        assert_eq!(check(answered(&holder, call, &good, &good)).unwrap().logits, good);
        // Others' words, an answer to another question, other logits than were signed, too few of them, another run's.
        for bad in [
            answered(&other, call, &good, &good),
            answered(&holder, Digest::default(), &good, &good),
            answered(&holder, call, &good, &[2, 1]),
            answered(&holder, call, &[1], &[1]),
        ] {
            assert!(check(bad).is_err());
        }
        let answer = holder.sign(RunId(Digest([2; 32])), &Answer { ask: call, logits: logits_digest(&good) });
        assert!(check(Answered { answer, logits: List::new(good.to_vec()).unwrap() }).is_err());
    }
}
