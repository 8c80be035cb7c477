//! A channel comes about exactly when both sides are who they should be and no byte was changed on the way; on it,
//! messages arrive as they were sent, in order, or the channel is dead.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_core::channel::Suite;
use muster_core::channel::certificate::Credentials;
use muster_core::channel::frames::{HEADER_BYTES, Opener, Sealer};
use muster_core::channel::handshake::{Answerer, Dialler, Established};
use muster_core::ids::{Digest, RunId};
use muster_core::sign::Identity;
use zeroize::Zeroizing;

const NOW: u64 = 1000;

#[derive(arbitrary::Arbitrary, Debug)]
struct Case<'a> {
    suite: bool,
    dialler: Side,
    answerer: Side,
    expected: Expected,
    edits: [Option<Edit<'a>>; 3],
    deliveries: Vec<Delivery<'a>>,
}

#[derive(arbitrary::Arbitrary, Clone, Copy, Debug, PartialEq)]
enum Side {
    Honest,
    OtherRun,
    Expired,
}

#[derive(arbitrary::Arbitrary, Debug, PartialEq)]
enum Expected {
    Anyone,
    TheAnswerer,
    SomeoneElse,
}

/// What happens to a message on the way.
#[derive(arbitrary::Arbitrary, Debug)]
enum Edit<'a> {
    Flip(u16, u8),
    Cut(u16),
    Push(u8),
    Replace(&'a [u8]),
}

#[derive(arbitrary::Arbitrary, Debug)]
enum Delivery<'a> {
    /// A message of this length, all its frames.
    Whole(u32),
    /// A frame of a message is changed.
    Edited(u32, u8, Edit<'a>),
    /// A frame of a message comes twice.
    Twice(u32, u8),
    /// A frame of a message is lost.
    Lost(u32, u8),
}

impl Edit<'_> {
    fn apply(&self, message: &[u8]) -> Vec<u8> {
        let mut bytes = message.to_vec();
        match self {
            Self::Flip(at, bits) => {
                let at = usize::from(*at) % bytes.len();
                bytes[at] ^= bits;
            }
            Self::Cut(at) => bytes.truncate(usize::from(*at) % bytes.len()),
            Self::Push(byte) => bytes.push(*byte),
            Self::Replace(other) => bytes = other.to_vec(),
        }
        bytes
    }
}

/// A message as it arrives, and whether it is as it was sent.
fn on_the_way(message: &[u8], edit: &Option<Edit<'_>>) -> (bool, Vec<u8>) {
    let arriving = edit.as_ref().map_or_else(|| message.to_vec(), |edit| edit.apply(message));
    (arriving == message, arriving)
}

fn run(number: u8) -> RunId {
    RunId(Digest([number; 32]))
}

fn identity(secret: u8) -> Identity {
    Identity::from_secret(&[secret; 32])
}

fn credentials(secret: u8, side: Side) -> Credentials {
    let run = run(if side == Side::OtherRun { 8 } else { 9 });
    let expiry = if side == Side::Expired { NOW } else { NOW + 1 };
    Credentials::new(run, &identity(secret), Zeroizing::new([secret + 1; 32]), expiry)
}

fn frames(sealer: &mut Sealer, message: &[u8]) -> Vec<Vec<u8>> {
    let (mut bytes, mut piece) = (Vec::new(), Vec::new());
    let mut sealing = sealer.seal(message).expect("a message within the limits");
    while sealing.next_piece(&mut piece) {
        bytes.extend_from_slice(&piece);
    }
    let mut frames = Vec::new();
    let mut rest = bytes.as_slice();
    while let Some((length, after)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let (frame, after) = after.split_at(usize::from(u16::from_le_bytes(*length)));
        frames.push(frame.to_vec());
        rest = after;
    }
    frames
}

/// Delivers a message in some way; whether the channel lives on.
fn deliver(sealer: &mut Sealer, opener: &mut Opener, delivery: &Delivery<'_>) -> bool {
    let (Delivery::Whole(n) | Delivery::Edited(n, ..) | Delivery::Twice(n, _) | Delivery::Lost(n, _)) =
        delivery;
    // Up to three frames.
    let message = vec![*n as u8; (n % 140_000) as usize];
    let honest = frames(sealer, &message);
    let mut sent = honest.clone();
    let at = |place: &u8| usize::from(*place) % honest.len();
    match delivery {
        Delivery::Whole(_) => {}
        Delivery::Edited(_, place, edit) => sent[at(place)] = edit.apply(&honest[at(place)]),
        Delivery::Twice(_, place) => sent.insert(at(place), honest[at(place)].clone()),
        Delivery::Lost(_, place) => drop(sent.remove(at(place))),
    }
    // CHAN-7: a frame that was changed, repeated or lost opens nothing, and neither does any after it.
    let opened: Result<Vec<_>, _> = sent.iter().map(|frame| opener.open(frame)).collect();
    let arrived: Option<Vec<u8>> =
        opened.as_ref().ok().and_then(|opened| opened.iter().flatten().next().cloned());
    if sent == honest {
        assert_eq!(arrived, Some(message));
        return true;
    }
    assert_eq!(arrived, None);
    // The last frame may be the one that is missing: nothing was refused yet, and the next message is.
    if opened.is_err() {
        assert!(opener.open(&honest[0]).is_err(), "a dead channel stays dead");
    }
    false
}

fuzz_target!(|case: Case<'_>| {
    let (one, two) = (credentials(1, case.dialler), credentials(3, case.answerer));
    let suite = Suite::ALL[usize::from(case.suite)];
    let expected = match case.expected {
        Expected::Anyone => None,
        Expected::TheAnswerer => Some(identity(3).id()),
        Expected::SomeoneElse => Some(identity(7).id()),
    };
    let (dialler, first) = Dialler::start(&one, suite, expected, Zeroizing::new([5; 32]));
    let [in_first, in_second, in_third] = &case.edits;
    let (mut whole, arriving) = on_the_way(&first, in_first);
    let Ok((answerer, second)) = Answerer::start(&two, &arriving, Zeroizing::new([6; 32])) else {
        assert!(!whole, "an honest first message is taken");
        return;
    };
    let (same, arriving) = on_the_way(&second, in_second);
    whole &= same;
    let good = case.dialler == case.answerer && case.answerer != Side::Expired;
    let dialled = dialler.receive(&arriving, NOW);
    let same_run = (case.dialler == Side::OtherRun) == (case.answerer == Side::OtherRun);
    let fits = same_run && case.answerer != Side::Expired && case.expected != Expected::SomeoneElse;
    // CHAN-2 (another run), CHAN-3 (an expired certificate), CHAN-4 (another member than expected) end it here.
    assert_eq!(dialled.is_ok(), whole && fits);
    let Ok((Established { peer, mut sealer, .. }, third)) = dialled else {
        return;
    };
    assert_eq!(peer, identity(3).id());
    let (same, arriving) = on_the_way(&third, in_third);
    whole &= same;
    let answered = answerer.receive(&arriving, NOW);
    // Whom the dialler expected no longer matters: it would not have sent the third message.
    assert_eq!(answered.is_ok(), whole && good);
    let Ok(Established { peer, mut opener, .. }) = answered else {
        return;
    };
    assert_eq!(peer, identity(1).id());
    let mut alive = true;
    for delivery in case.deliveries.iter().take(6) {
        if alive {
            alive = deliver(&mut sealer, &mut opener, delivery);
        } else {
            let message = frames(&mut sealer, b"afterwards");
            assert!(opener.open(&message[0]).is_err(), "nothing arrives after a gap");
        }
    }
});
