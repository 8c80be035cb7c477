//! Every type of message, malformed and oversized, on every port that takes messages, and as every kind of answer.
//!
//! Types are counted by the decoder itself, and matched without a wildcard: one that is added is sent here too, or this
//! does not compile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use borsh::{BorshDeserialize, BorshSerialize};
use e2e::processes::wait_for;
use e2e::settings::Settings;
use muster_core::codec::{decode, encode};
use muster_core::ids::{MemberId, RunId};
use muster_core::limits::{MESSAGE_BYTES, STRANGER_BYTES};
use muster_core::messages::wire::{Notice, Request, Response};
use muster_core::sign::{Identity, Message, Signed};
use muster_net::client::Client;
use muster_net::endpoint::Endpoint;
use muster_net::error::Cause;
use muster_replica::Contact;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use tokio::task::JoinSet;

use crate::between::Between;
use crate::caller::{Caller, key_of, run};

/// Values of each type of message.
const EACH: usize = 6;
/// A request may wait for what the asker claims to have seen; whoever asks need not.
const SHORT: Duration = Duration::from_millis(100);

/// First bytes of the messages that there are.
fn tags<T: BorshDeserialize>() -> BTreeSet<u8> {
    let unknown =
        |tag: &u8| decode::<T>(&[*tag]).is_err_and(|reject| reject.to_string().contains("has no variant"));
    (0..=u8::MAX).filter(|tag| !unknown(tag)).collect()
}

/// Some messages of each type.
fn samples<T>(random: &mut ChaCha8Rng) -> Vec<T>
where
    T: for<'a> Arbitrary<'a> + BorshSerialize + BorshDeserialize,
{
    let mut counts: BTreeMap<u8, usize> = tags::<T>().into_iter().map(|tag| (tag, 0)).collect();
    let mut values = Vec::new();
    let mut source = vec![0; 2048];
    for _ in 0..100_000 {
        random.fill_bytes(&mut source);
        let Ok(value) = T::arbitrary(&mut Unstructured::new(&source)) else { continue };
        let count = counts.get_mut(&encode(&value)[0]).expect("a tag that decodes");
        if *count < EACH {
            *count += 1;
            values.push(value);
        }
        if counts.values().all(|count| *count == EACH) {
            return values;
        }
    }
    panic!("not every type can be made: {counts:?}");
}

fn made<M: for<'a> Arbitrary<'a>>(random: &mut ChaCha8Rng) -> M {
    let mut source = vec![0; 2048];
    loop {
        random.fill_bytes(&mut source);
        if let Ok(value) = M::arbitrary(&mut Unstructured::new(&source)) {
            return value;
        }
    }
}

/// An envelope whose content the caller has signed itself.
fn signed<M>(me: &Identity, run: RunId, random: &mut ChaCha8Rng) -> Signed<M>
where
    M: Message + for<'a> Arbitrary<'a>,
{
    me.sign(run, &made::<M>(random))
}

/// The same message with good signatures on it, so that what it says is looked at.
fn with_signatures(request: &Request, me: &Identity, run: RunId, random: &mut ChaCha8Rng) -> Request {
    match request {
        Request::Enrol(_) => Request::Enrol(signed(me, run, random)),
        Request::Commit(_) => Request::Commit(signed(me, run, random)),
        Request::Delivered(_) => Request::Delivered(signed(me, run, random)),
        Request::Checked(_) => Request::Checked(signed(me, run, random)),
        Request::CloseTree(_) => Request::CloseTree(signed(me, run, random)),
        Request::Ask(_) => Request::Ask(signed(me, run, random)),
        Request::Notice(notice) => Request::Notice(match notice {
            Notice::Echo(_) => Notice::Echo(signed(me, run, random)),
            Notice::Result(_) => Notice::Result(signed(me, run, random)),
            Notice::Request(_) => Notice::Request(signed(me, run, random)),
            Notice::Table(_) => Notice::Table(signed(me, run, random)),
            Notice::Results(_) => Notice::Results(signed(me, run, random)),
            Notice::Opening(_) => Notice::Opening(signed(me, run, random)),
            Notice::Verdict(_) => Notice::Verdict(signed(me, run, random)),
            Notice::Return(_) => Notice::Return(signed(me, run, random)),
            Notice::Ready(_) => Notice::Ready(signed(me, run, random)),
            Notice::Leave(_) => Notice::Leave(signed(me, run, random)),
            Notice::Duty(_) => Notice::Duty(signed(me, run, random)),
            Notice::Recheck(_) => Notice::Recheck(signed(me, run, random)),
            Notice::Opinion(_) => Notice::Opinion(signed(me, run, random)),
            Notice::Withheld(_) => Notice::Withheld(signed(me, run, random)),
            Notice::Recomputation(_) => Notice::Recomputation(signed(me, run, random)),
            Notice::Charge(_) | Notice::Obtained(_) => notice.clone(),
        }),
        Request::Manifest
        | Request::Follow(_)
        | Request::Accuse(_)
        | Request::PutBlocks(_)
        | Request::ResultBlocks(_)
        | Request::InputBlocks(_)
        | Request::StateOffer
        | Request::State(_)
        | Request::Data(_)
        | Request::Outline(_)
        | Request::Relay(_)
        | Request::Evidence(_) => request.clone(),
    }
}

/// A message cut, with something behind it, with changed bits, and with lengths that promise too much.
fn damaged(bytes: &[u8], random: &mut ChaCha8Rng) -> Vec<Vec<u8>> {
    let mut place = |end: usize| random.next_u32() as usize % end.max(1);
    let cut = bytes[..place(bytes.len())].to_vec();
    let trailing = [bytes, &[0]].concat();
    let mut bit = bytes.to_vec();
    bit[place(bytes.len())] ^= 1 << place(8);
    let mut all = vec![cut, trailing, bit];
    for at in [1, place(bytes.len()), place(bytes.len())] {
        let mut long = bytes.to_vec();
        long[at.min(bytes.len() - 1)..].iter_mut().take(4).for_each(|byte| *byte = 0xff);
        all.push(long);
    }
    all
}

/// Connections that messages are spread over: some are waited for in vain.
const CONNECTIONS: usize = 4;

/// Somebody who sends these bytes to one port, whatever comes back.
struct Sender {
    address: String,
    endpoint: Endpoint,
    whom: MemberId,
    client: Option<Client>,
}

impl Sender {
    async fn send(&mut self, bytes: &[u8], patience: Duration) {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => Client::dial(&self.address, &self.endpoint, Some(self.whom)).await.expect("it listens"),
        };
        match client.call(bytes, patience).await.map_err(|error| error.cause) {
            Ok(_) => self.client = Some(client),
            Err(Cause::Timeout(_)) => {}
            // CHAN-16: so long a request of a stranger ends its channel.
            Err(Cause::Closed) if bytes.len() > STRANGER_BYTES => {}
            Err(cause) => panic!("{}: {cause:?} after {:?}", self.address, &bytes[..bytes.len().min(40)]),
        }
    }
}

/// Every type of request, in every state of repair; how long an answer is waited for.
fn everything(me: &Identity, run: RunId) -> Vec<(Vec<u8>, Duration)> {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let mut all = Vec::new();
    let requests = samples::<Request>(&mut random).into_iter();
    let notices = samples::<Notice>(&mut random).into_iter().map(Request::Notice);
    for request in requests.chain(notices) {
        let genuine = with_signatures(&request, me, run, &mut random);
        for request in [request, genuine] {
            let bytes = encode(&request);
            let damaged = damaged(&bytes, &mut random);
            all.extend([bytes].into_iter().chain(damaged).map(|bytes| (bytes, SHORT)));
        }
    }
    for tag in tags::<Request>() {
        for filler in [0, 0xff] {
            let mut bytes = vec![filler; MESSAGE_BYTES];
            bytes[0] = tag;
            all.push((bytes, Duration::from_secs(20)));
        }
    }
    all
}

// LIMIT-1: "A reader MUST refuse more".
#[test]
fn every_type_of_request_malformed_and_oversized_harms_neither_steward_nor_node() {
    // More rounds than there is time for, so that the ports are there to the last byte.
    let run = run(Settings { rounds: 5000, verifiers: 0, ..Settings::default() });
    let mut steward = run.host();
    let nodes = run.invite("node", 2);
    let mut first = run.join("first", &nodes, &[]);
    let mut second = run.join("second", &nodes, &[]);
    run.wait_round(1);
    let me = Arc::new(Identity::from_secret(&[77; 32]));
    let caller = Caller::new(&run, me.clone());
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    runtime.block_on(async {
        let id = caller.ticket.run;
        let first = caller.find_when_there(&key_of(&run.path("first")).id()).await;
        let messages = Arc::new(everything(&me, id));
        let send_everything = |contact: &Contact, to: &mut JoinSet<()>| {
            for connection in 0..CONNECTIONS {
                let mut sender = Sender {
                    address: contact.addresses[0].clone(),
                    endpoint: Endpoint::new(id, me.clone()),
                    whom: contact.member,
                    client: None,
                };
                let messages = messages.clone();
                to.spawn(async move {
                    for (bytes, patience) in messages.iter().skip(connection).step_by(CONNECTIONS) {
                        sender.send(bytes, *patience).await;
                    }
                });
            }
        };
        let mut sending = JoinSet::new();
        send_everything(&caller.steward, &mut sending);
        std::mem::take(&mut sending).join_all().await;
        // Some things are asked of members only.
        caller.enrol().await;
        for whom in [&caller.steward, &first] {
            send_everything(whom, &mut sending);
        }
        sending.join_all().await;
    });
    let rounds = run.events("round").len() as u64;
    run.wait_round(rounds + 8);
    // A node that held another state than the sealed one, or fell over, would have ended.
    for node in [&mut first, &mut second] {
        assert_eq!(node.wait_at_most(Duration::from_millis(200)), None, "{}", node.log());
    }
    steward.interrupt();
    assert_eq!(steward.wait(), 130, "{}", steward.log());
    for process in [first, second, steward] {
        assert!(!process.log().contains("panicked"), "{}", process.log());
    }
}

/// An answer to any request: of every type, in every state of repair.
struct Nonsense {
    /// With the type that each was made of; none for bytes that were never a message.
    answers: Vec<(Option<u8>, Vec<u8>)>,
    next: AtomicU32,
    given: Mutex<BTreeSet<u8>>,
}

impl Nonsense {
    fn new() -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(9);
        let whole: Vec<Vec<u8>> = samples::<Response>(&mut random).iter().map(encode).collect();
        let mut answers = vec![(None, Vec::new()), (None, vec![0xff; MESSAGE_BYTES / 2])];
        for bytes in whole {
            let kinds = damaged(&bytes, &mut random).into_iter().chain([bytes.clone()]);
            answers.extend(kinds.map(|answer| (Some(bytes[0]), answer)));
        }
        Self { answers, next: AtomicU32::new(0), given: Mutex::default() }
    }

    /// Another type each time.
    fn next(&self) -> Vec<u8> {
        const STRIDE: usize = 7 * EACH + 1;
        let number = self.next.fetch_add(1, Ordering::Relaxed) as usize;
        let (tag, answer) = &self.answers[number * STRIDE % self.answers.len()];
        self.given.lock().expect("a set").extend(tag);
        answer.clone()
    }
}

#[test]
fn every_type_of_answer_malformed_and_oversized_harms_neither_member_nor_observer() {
    let run = run(Settings { rounds: 5000, ..Settings::default() });
    let _steward = run.host();
    let nodes = run.invite("node", 2);
    let _members = [run.join("first", &nodes, &[]), run.join("second", &nodes, &[])];
    run.wait_round(3);
    // One answer in `spared + 1` is nonsense: at once, while the files come, while the run is followed.
    let nonsense = Arc::new(Nonsense::new());
    let (mut betweens, mut hearers) = (Vec::new(), Vec::new());
    for (number, spared) in [0u32, 3, 7, 12, 20, 40].into_iter().enumerate() {
        let name = |who: &str| format!("{who}-{number}");
        let (nonsense, asked) = (nonsense.clone(), Mutex::new(0u32));
        let between = Between::new(&run, &name("joiner"), move |_, _, answer| {
            let mut asked = asked.lock().expect("a count");
            *asked += 1;
            if asked.is_multiple_of(spared + 1) { nonsense.next() } else { encode(&answer) }
        });
        let joiner = run.join(&name("joiner"), &between.invitation(&run, "node"), &["--no-gossip"]);
        let observer = run.observe(&name("observer"), &between.target);
        hearers.extend([joiner, observer]);
        betweens.push(between);
    }
    wait_for("an answer of every type", || *nonsense.given.lock().expect("a set") == tags::<Response>());
    std::thread::sleep(Duration::from_secs(4));
    for process in &mut hearers {
        // It halts and says why, or asks again; it is not killed by it.
        let code = process.wait_at_most(Duration::from_millis(100));
        assert!(matches!(code, None | Some(1 | 3 | 4)), "{code:?}: {}", process.log());
        assert!(!process.log().contains("panicked"), "{}", process.log());
    }
    assert!(run.events("ban").is_empty());
}
