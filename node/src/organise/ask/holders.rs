//! Whom to ask: a call goes to one holder or two, the next one is asked as well where these take long, and who stays silent
//! for the grace is asked no more.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_core::error::Reject;
use muster_core::ids::{Digest, MemberId, RunId};
use muster_core::ledger::{Ledger, Standing};
use muster_core::manifest::Manifest;
use muster_core::messages::call::{Answer, Ask, logits_digest};
use muster_core::messages::enrol::Role;
use muster_core::messages::wire::{Answered, Request, Response};
use muster_core::sign::Signed;
use muster_replica::{Contact, PeerError, Peers, contact};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How long holders have before the next one is asked as well.
const SOON: Duration = Duration::from_millis(500);
/// Answers that wait to be looked at.
const QUEUE: usize = 64;

/// A call, and how many answers it wants.
#[derive(Clone, Copy)]
pub(super) struct Race<'a> {
    pub(super) ask: &'a Ask,
    pub(super) signed: &'a Signed<Ask>,
    pub(super) wanted: usize,
    /// How long a holder may take.
    pub(super) grace: Duration,
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
    /// Every holder that answers declines: it lacks the state, or has something else to do.
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

    /// CALL-11: asks holders, the next one as soon as there is no answer for a while, until as many answers are there as are wanted, or nobody is left.
    pub(super) async fn ask(&mut self, ledger: &Ledger, manifest: &Manifest, race: &Race<'_>) -> Answering {
        let mut left = shuffled(self.candidates(ledger));
        let (mut pending, mut given, mut declined) = (0, Vec::new(), false);
        let mut due = race.wanted;
        let name = race.signed.digest();
        while given.len() < race.wanted {
            while due > 0
                && let Some(holder) = left.pop()
            {
                self.send(holder, manifest, race);
                (due, pending) = (due - 1, pending + 1);
            }
            if pending == 0 {
                break;
            }
            due = 0;
            let Ok(Some((call, holder, reply))) = timeout(SOON, self.replies.recv()).await else {
                due = 1;
                continue;
            };
            let own = call == name;
            pending -= usize::from(own);
            match reply {
                Reply::Given(answer) if own => given.push(answer),
                // A late answer to an earlier call.
                Reply::Given(_) => {}
                Reply::Declined => (declined, due) = (declined | own, usize::from(own)),
                Reply::Failed(why) => {
                    due = usize::from(own);
                    if self.out.insert(holder) {
                        self.failed.push((holder, why));
                    }
                }
            }
        }
        match (given.is_empty(), declined) {
            (false, _) => Answering::Given(given),
            (true, true) => Answering::Later,
            (true, false) => Answering::Nobody,
        }
    }

    /// Nodes at work that can be dialled.
    fn candidates(&self, ledger: &Ledger) -> Vec<Contact> {
        let nodes = ledger.members().iter().filter(|member| {
            let at_work = member.role == Role::Node && member.standing == Standing::Active;
            at_work && !member.addresses.is_empty() && member.id != self.me && !self.out.contains(&member.id)
        });
        nodes.filter_map(|member| contact(ledger, &member.id)).collect()
    }

    fn send(&self, holder: Contact, manifest: &Manifest, race: &Race<'_>) {
        let (peers, sender) = (self.peers.clone(), self.sender.clone());
        let (signed, grace, run) = (race.signed.clone(), race.grace, manifest.run());
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
