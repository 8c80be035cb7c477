//! What a newcomer is told by a steward that lies, or by whoever has its key: the ledger, the state, the files.

use std::sync::Mutex;

use e2e::processes::{Process, Run, wait_for};
use e2e::settings::Settings;
use muster_core::codec::{Bytes, List, encode};
use muster_core::ids::{Digest, Height, RunId};
use muster_core::messages::offer::{StateOffer, StatePiece};
use muster_core::messages::record::Record;
use muster_core::messages::wire::{News, Request, Response};
use muster_core::sign::{Identity, Signed};
use muster_core::state::{ShardRoots, StateRoots};

use crate::between::Between;
use crate::caller::run;

/// Changes an answer.
type Lie = fn(&Identity, &Request, Response) -> Response;

/// The first answer with these records is changed.
fn records(answer: Response, change: impl FnOnce(Vec<Signed<Record>>) -> Vec<Signed<Record>>) -> Response {
    match answer {
        Response::News(news) if news.records.len() > 4 => {
            let records = List::new(change(news.records.into_inner())).expect("not more");
            Response::News(News { records, ..news })
        }
        other => other,
    }
}

/// A record with another one in its place.
fn replaced(answer: Response, place: usize, by: impl FnOnce(&Signed<Record>) -> Signed<Record>) -> Response {
    records(answer, |mut records| {
        records[place] = by(&records[place]);
        records
    })
}

fn bytes(answer: Response, change: impl FnOnce(&mut Vec<u8>)) -> Response {
    let Response::Bytes(bytes) = answer else { return answer };
    let mut bytes = bytes.into_inner();
    change(&mut bytes);
    Response::Bytes(Bytes::new(bytes).expect("not longer"))
}

fn piece(answer: Response, change: impl FnOnce(&mut Vec<u8>)) -> Response {
    let Response::Piece(StatePiece { bytes, proofs }) = answer else { return answer };
    let mut bytes = bytes.into_inner();
    change(&mut bytes);
    Response::Piece(StatePiece { bytes: Bytes::new(bytes).expect("not longer"), proofs })
}

fn opened(signed: &Signed<Record>) -> Record {
    signed.verify(run_of(signed)).expect("the steward's").into_inner()
}

fn run_of(signed: &Signed<Record>) -> RunId {
    let bytes = encode(signed);
    RunId(Digest(bytes[..32].try_into().expect("an envelope begins with its run")))
}

/// Name, lie, exit code, what is said.
const LIES: [(&str, Lie, i32, &str); 6] = [
    (
        "changed-record",
        |_, _, answer| {
            replaced(answer, 2, |signed| {
                let mut bytes = encode(signed);
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                muster_core::codec::decode(&bytes).expect("an envelope")
            })
        },
        1,
        "breaks a rule, halting: the signature does not verify",
    ),
    (
        "record-of-another-run",
        |me, _, answer| replaced(answer, 2, |signed| me.sign(RunId(Digest([9; 32])), &opened(signed))),
        1,
        "breaks a rule, halting: made for another run",
    ),
    (
        "record-of-another-round",
        |_, _, answer| {
            records(answer, |mut records| {
                records[4] = records[3].clone();
                records
            })
        },
        1,
        "breaks a rule, halting: ",
    ),
    (
        "record-by-another",
        |_, _, answer| {
            let other = Identity::from_secret(&[5; 32]);
            replaced(answer, 2, |signed| other.sign(run_of(signed), &opened(signed)))
        },
        1,
        "breaks a rule, halting: ",
    ),
    (
        "record-left-out",
        |_, _, answer| {
            records(answer, |mut records| {
                records.remove(1);
                records
            })
        },
        1,
        "breaks a rule, halting: ",
    ),
    (
        "changed-text",
        |_, request, answer| match request {
            Request::Data(_) => bytes(answer, |bytes| bytes[123] ^= 1),
            _ => answer,
        },
        3,
        "the bytes that were sent are not those of the run",
    ),
];

/// What a steward makes of a piece of the state.
const FALSE_PIECES: [(&str, Lie); 3] = [
    ("changed-state", |_, _, answer| piece(answer, |bytes| bytes[5] ^= 1)),
    ("short-state", |_, _, answer| piece(answer, |bytes| bytes.truncate(bytes.len() - 2))),
    ("no-state", |_, request, answer| match request {
        Request::State(_) => Response::Done,
        _ => answer,
    }),
];

/// A run that is long under way, so that a newcomer needs its state.
fn under_way() -> (Run, Vec<Process>) {
    let run = run(Settings { rounds: 5000, contributions: 3, ..Settings::default() });
    let steward = run.host();
    let nodes = run.invite("node", 2);
    let members = vec![run.join("first", &nodes, &[]), run.join("second", &nodes, &[]), steward];
    run.wait_round(20);
    (run, members)
}

/// A newcomer of this name whose steward lies.
fn joiner(run: &Run, name: &str, lie: Lie) -> (Process, Between) {
    let between = Between::new(run, name, move |me, request, answer| encode(&lie(me, request, answer)));
    (run.join(name, &between.invitation(run, "node"), &["--no-gossip"]), between)
}

#[test]
fn a_newcomer_believes_no_ledger_state_or_text_that_was_changed() {
    let (run, _members) = under_way();
    let joiners = LIES.map(|(name, lie, ..)| joiner(&run, name, lie));
    for ((mut joiner, _between), (name, _, code, words)) in joiners.into_iter().zip(LIES) {
        assert_eq!(joiner.wait(), code, "{name}: {}", joiner.log());
        assert!(joiner.log().contains(words), "{name}: {}", joiner.log());
        assert!(!joiner.log().contains("panicked"), "{name}: {}", joiner.log());
    }
    assert!(run.events("ban").is_empty());
}

/// STATE-11: the state is taken from members, whatever the steward sends; from nobody where there is only the steward.
#[test]
fn a_newcomer_takes_the_state_of_members_and_nothing_false_of_the_steward() {
    let (run, mut members) = under_way();
    let (mut served, _between) = joiner(&run, "served", FALSE_PIECES[0].1);
    wait_for("a leaf that counts", || served.log().contains(" 2 of your leaves counted"));
    assert!(served.log().contains(" MB of the model from 2 holders"), "{}", served.log());
    served.interrupt();
    assert_eq!(served.wait(), 130, "{}", served.log());
    members[..2].iter_mut().for_each(Process::kill);
    wait_for("their absence", || run.events("is not connected any more").len() >= 2);
    let joiners = FALSE_PIECES.map(|(name, lie)| joiner(&run, name, lie));
    for ((mut misled, _between), (name, _)) in joiners.into_iter().zip(FALSE_PIECES) {
        assert_eq!(misled.wait(), 4, "{name}: {}", misled.log());
        assert!(!misled.log().contains("panicked"), "{name}: {}", misled.log());
    }
    assert!(run.events("ban").is_empty());
}

/// STATE-4: roots that no record has sealed are not believed, and the next offer is.
#[test]
fn a_newcomer_takes_no_state_that_was_not_sealed_and_goes_on_with_one_that_was() {
    let (run, _members) = under_way();
    let lies = Mutex::new(3u32);
    let between = Between::new(&run, "patient", move |_, _, answer| {
        let mut left = lies.lock().expect("a count");
        let answer = match answer {
            Response::State(offer) if *left > 0 => {
                *left -= 1;
                let shard = ShardRoots { parameters: Digest([1; 32]), ..offer.roots.shards[0] };
                let roots = StateRoots::from([shard]);
                Response::State(StateOffer { roots, ..offer })
            }
            other => other,
        };
        encode(&answer)
    });
    let mut joiner = run.join("patient", &between.invitation(&run, "node"), &["--no-gossip"]);
    joiner.wait_for_log("fetching the state before round");
    wait_for("a leaf that counts", || joiner.log().contains(" 2 of your leaves counted"));
    joiner.interrupt();
    assert_eq!(joiner.wait(), 130, "{}", joiner.log());
}

#[test]
fn a_truncated_ledger_holds_a_newcomer_up_and_no_more() {
    let (run, _members) = under_way();
    // As if the run had stopped after its fifth record, again and again.
    let lies = Mutex::new(4u32);
    let between = Between::new(&run, "held-up", move |_, _, answer| {
        let mut left = lies.lock().expect("a count");
        let answer = match answer {
            Response::News(news) if *left > 0 => {
                *left -= 1;
                let records = news.records.into_inner().into_iter().take(5).collect();
                let (records, newest) = (List::new(records).expect("few"), Height(4));
                Response::News(News { records, newest, ..news })
            }
            other => other,
        };
        encode(&answer)
    });
    let mut joiner = run.join("held-up", &between.invitation(&run, "node"), &["--no-gossip"]);
    wait_for("a leaf that counts", || joiner.log().contains(" 2 of your leaves counted"));
    joiner.interrupt();
    assert_eq!(joiner.wait(), 130, "{}", joiner.log());
}
