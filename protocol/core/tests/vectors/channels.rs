//! Handshakes and frames of channels, and the line of a ticket.

use serde_json::{Value, json};
use zeroize::Zeroizing;

use muster_core::channel::Suite;
use muster_core::channel::certificate::Credentials;
use muster_core::channel::frames::{HEADER_BYTES, Sealer};
use muster_core::channel::handshake::{Answerer, Dialler, Established};
use muster_core::codec::encode;
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{MemberId, RunId, hex};
use muster_core::messages::enrol::Ticket;
use muster_core::sign::Identity;
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};

use super::cases::{bytes, counted, digest, full, list, number, read_as, text, unhexed};

pub(super) fn ticket(op: &str, inputs: &Value) -> Value {
    match op {
        "line" => {
            let ticket: Ticket = read_as(inputs, "ticket_bytes");
            let line = ticket.to_line();
            assert_eq!(Ticket::from_line(&line).as_ref(), Ok(&ticket));
            json!({ "line": line.as_str() })
        }
        "read_line" => {
            let ticket = Ticket::from_line(text(inputs, "line")).ok();
            json!({ "ticket": ticket.map(|ticket| hex(&encode(&ticket))) })
        }
        _ => panic!("no operation {op:?}"),
    }
}

pub(super) fn channel(op: &str, inputs: &Value) -> Value {
    match op {
        "handshake" => handshake(inputs),
        "long_message" => long_message(inputs),
        "answer_first" => {
            let good = answerer(inputs, &bytes(inputs, "first")).is_some();
            json!({ "good": good })
        }
        "dial" => {
            let expected = inputs["expected"].as_str().map(|_| MemberId(digest(inputs, "expected").0));
            let (dialler, _) = Dialler::start(
                &credentials(inputs, "dialler"),
                suite(inputs),
                expected,
                seed(inputs, "dialler"),
            );
            let found = dialler.receive(&bytes(inputs, "second"), number(inputs, "now"));
            json!({ "peer": found.ok().map(|(channel, _)| hex(&channel.peer.0)) })
        }
        "accept" => {
            let (answerer, _) = answerer(inputs, &bytes(inputs, "first")).expect("a good first message");
            let found = answerer.receive(&bytes(inputs, "third"), number(inputs, "now"));
            json!({ "peer": found.ok().map(|channel| hex(&channel.peer.0)) })
        }
        "open_frames" => {
            let (_, mut answerer, _) = agreed(inputs);
            let read =
                list(inputs, "frames").iter().map(|frame| match answerer.opener.open(&unhexed(frame)) {
                    Ok(message) => json!(message.map(|message| hex(&message))),
                    Err(_) => json!(false),
                });
            json!({ "read": read.collect::<Vec<_>>() })
        }
        _ => panic!("no operation {op:?}"),
    }
}

fn suite(inputs: &Value) -> Suite {
    // CHAN-1: suite 1 is the first.
    Suite::ALL[number(inputs, "suite") as usize - 1]
}

fn credentials(inputs: &Value, end: &str) -> Credentials {
    let (run, end) = (RunId(digest(inputs, "run")), &inputs[end]);
    let identity = Identity::from_secret(&digest(end, "identity").0);
    Credentials::new(run, &identity, Zeroizing::new(digest(end, "static").0), number(end, "expiry"))
}

fn seed(inputs: &Value, end: &str) -> Zeroizing<[u8; 32]> {
    Zeroizing::new(digest(&inputs[end], "seed").0)
}

fn answerer(inputs: &Value, first: &[u8]) -> Option<(Answerer, Vec<u8>)> {
    let started = Answerer::start(&credentials(inputs, "answerer"), first, seed(inputs, "answerer"));
    started.ok().map(|(answerer, second)| (answerer, second.to_vec()))
}

/// Both ends of a channel, and the messages of its handshake.
fn agreed(inputs: &Value) -> (Established, Established, [Vec<u8>; 3]) {
    let dialler = credentials(inputs, "dialler");
    let (dialler, first) = Dialler::start(&dialler, suite(inputs), None, seed(inputs, "dialler"));
    let (answerer, second) = answerer(inputs, &first).expect("the answerer takes either suite");
    let (dialler, third) = dialler.receive(&second, 0).expect("a good answer");
    let answerer = answerer.receive(&third, 0).expect("a good end");
    (dialler, answerer, [first.to_vec(), second, third.to_vec()])
}

/// A message as it goes on the stream.
fn sealed(sealer: &mut Sealer, message: &[u8]) -> Vec<u8> {
    let (mut piece, mut stream) = (Vec::new(), Vec::new());
    let mut sealing = sealer.seal(message).expect("a message within the limit");
    while sealing.next_piece(&mut piece) {
        stream.extend_from_slice(&piece);
    }
    stream
}

fn handshake(inputs: &Value) -> Value {
    let (mut dialler, mut answerer, messages) = agreed(inputs);
    let streams = list(inputs, "says").iter().map(|said| {
        let end = if said[0] == 0 { &mut dialler } else { &mut answerer };
        hex(&sealed(&mut end.sealer, &unhexed(&said[1])))
    });
    let ephemeral = |end| {
        let mut secret = [0; 32];
        ChaCha20Rng::from_seed(*seed(inputs, end)).fill_bytes(&mut secret);
        hex(&secret)
    };
    json!({
        "ephemerals": [ephemeral("dialler"), ephemeral("answerer")],
        "messages": messages.map(|message| hex(&message)),
        "streams": streams.collect::<Vec<_>>(),
    })
}

fn long_message(inputs: &Value) -> Value {
    let (mut dialler, mut answerer, _) = agreed(inputs);
    let message = counted(inputs);
    let stream = sealed(&mut dialler.sealer, &message);
    let (mut rest, mut frames, mut read) = (&stream[..], Vec::new(), None);
    while let Some((header, after)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let (frame, after) = after.split_at(u16::from_le_bytes(*header).into());
        assert_eq!(read, None);
        read = answerer.opener.open(frame).expect("the frames of the other end");
        frames.push(frame);
        rest = after;
    }
    assert_eq!(read.as_ref(), Some(&message));
    let digest = Hasher::new(Domain::FILE).part(&frames.concat()).finish();
    let lengths: Vec<usize> = frames.iter().map(|frame| frame.len()).collect();
    json!({ "lengths": lengths, "digest": full(&digest) })
}
