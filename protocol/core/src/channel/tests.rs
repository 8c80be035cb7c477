use proptest::prelude::*;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

use super::Suite;
use super::certificate::{CERTIFICATE_BYTES, Certificate, Credentials, holder};
use super::frames::{HEADER_BYTES, Opener, PIECE_BYTES, Sealer};
use super::handshake::{
    Answerer, Dialler, Established, FIRST_BYTES, HandshakeError, SECOND_BYTES, THIRD_BYTES,
};
use crate::codec::{decode, encode};
use crate::error::Reject;
use crate::ids::{Digest, MemberId, RunId};
use crate::limits;
use crate::sign::{Identity, Signed};

const NOW: u64 = 1_800_000_000;
const RUN: RunId = RunId(Digest([9; 32]));

fn identity(name: u8) -> Identity {
    Identity::from_secret(&[name; 32])
}

fn credentials(name: u8) -> Credentials {
    Credentials::new(RUN, &identity(name), seed(name), NOW + 60)
}

fn seed(byte: u8) -> Zeroizing<[u8; 32]> {
    Zeroizing::new([byte; 32])
}

/// What the ends of one handshake differ in, and what a middleman changes in its messages.
struct Attempt {
    suite: Suite,
    dialler: Credentials,
    answerer: Credentials,
    expected: Option<MemberId>,
    tamper: fn(usize, &mut Vec<u8>, usize),
    place: usize,
    step: usize,
}

impl Attempt {
    fn honest(suite: Suite) -> Self {
        let expected = Some(identity(2).id());
        let tamper: fn(usize, &mut Vec<u8>, usize) = |_, _, _| ();
        Self { suite, dialler: credentials(1), answerer: credentials(2), expected, tamper, place: 0, step: 0 }
    }

    /// The ends of the dialler and of the answerer, or the step at which one of them fails.
    fn run(&self) -> Result<(Established, Established), usize> {
        let altered = |step: usize, message: &[u8]| {
            let mut message = message.to_vec();
            if step == self.step {
                (self.tamper)(step, &mut message, self.place);
            }
            message
        };
        let (dialler, first) = Dialler::start(&self.dialler, self.suite, self.expected, seed(3));
        let (answerer, second) =
            Answerer::start(&self.answerer, &altered(1, &first), seed(4)).map_err(|HandshakeError| 1usize)?;
        let (ours, third) = dialler.receive(&altered(2, &second), NOW).map_err(|HandshakeError| 2usize)?;
        let theirs = answerer.receive(&altered(3, &third), NOW).map_err(|HandshakeError| 3usize)?;
        Ok((ours, theirs))
    }

    fn failure(&self) -> Option<usize> {
        self.run().err()
    }
}

fn pair() -> (Established, Established) {
    Attempt::honest(Suite::AesGcm).run().expect("an honest handshake succeeds")
}

/// A message as it goes on the stream.
fn sealed(sealer: &mut Sealer, message: &[u8]) -> Vec<u8> {
    let (mut stream, mut piece) = (Vec::new(), Vec::new());
    let mut sealing = sealer.seal(message).expect("a message within the limits");
    while sealing.next_piece(&mut piece) {
        assert!(!piece.is_empty() && piece.len() <= PIECE_BYTES);
        stream.extend_from_slice(&piece);
    }
    assert!(piece.is_empty(), "nothing is sealed twice");
    stream
}

fn frames_of(mut stream: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while let Some((header, rest)) = stream.split_first_chunk::<HEADER_BYTES>() {
        let (frame, rest) = rest.split_at(usize::from(u16::from_le_bytes(*header)));
        frames.push(frame.to_vec());
        stream = rest;
    }
    frames
}

fn open_all(opener: &mut Opener, frames: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, Reject> {
    let mut messages = Vec::new();
    for frame in frames {
        messages.extend(opener.open(frame)?);
    }
    Ok(messages)
}

#[test]
fn both_suites_carry_messages_both_ways() {
    // CHAN-1: the answerer takes either suite.
    for suite in Suite::ALL {
        let (mut dialler, mut answerer) = Attempt::honest(suite).run().expect("an honest handshake succeeds");
        assert_eq!((dialler.peer, answerer.peer), (identity(2).id(), identity(1).id()));
        for length in [0, 1, 65_515, 65_516, 131_034, 131_035, limits::MESSAGE_BYTES] {
            let message: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            let there = sealed(&mut dialler.sealer, &message);
            let back = sealed(&mut answerer.sealer, &message);
            assert_eq!(
                open_all(&mut answerer.opener, &frames_of(&there)).unwrap(),
                std::slice::from_ref(&message)
            );
            assert_eq!(
                open_all(&mut dialler.opener, &frames_of(&back)).unwrap(),
                std::slice::from_ref(&message)
            );
        }
    }
}

#[test]
fn the_handshake_is_a_function_of_its_arguments() {
    let (_, first) = Dialler::start(&credentials(1), Suite::AesGcm, None, seed(3));
    let (_, again) = Dialler::start(&credentials(1), Suite::AesGcm, None, seed(3));
    let (_, other) = Dialler::start(&credentials(1), Suite::AesGcm, None, seed(5));
    assert_eq!(first, again);
    assert_ne!(first, other);
    assert_eq!((FIRST_BYTES, SECOND_BYTES, THIRD_BYTES, CERTIFICATE_BYTES), (40, 268, 236, 172));
}

#[test]
fn whom_and_which_run_are_checked() {
    let honest = || Attempt::honest(Suite::ChaChaPoly);
    // CHAN-4: the dialler ends it at message 2, before it has shown who it is.
    assert_eq!(Attempt { expected: None, ..honest() }.failure(), None);
    assert_eq!(Attempt { expected: Some(identity(7).id()), ..honest() }.failure(), Some(2));
    // CHAN-2: another run fails at message 2.
    let elsewhere = || Credentials::new(RunId(Digest([8; 32])), &identity(5), seed(5), NOW + 60);
    assert_eq!(Attempt { dialler: elsewhere(), ..honest() }.failure(), Some(2));
    assert_eq!(Attempt { answerer: elsewhere(), expected: None, ..honest() }.failure(), Some(2));
}

#[test]
fn expired_certificates_fail() {
    let honest = || Attempt::honest(Suite::AesGcm);
    // CHAN-3
    let until = |name, expiry| Credentials::new(RUN, &identity(name), seed(name), expiry);
    assert_eq!(Attempt { dialler: until(1, NOW + 1), ..honest() }.failure(), None);
    assert_eq!(Attempt { dialler: until(1, NOW), ..honest() }.failure(), Some(3));
    assert_eq!(Attempt { answerer: until(2, NOW), ..honest() }.failure(), Some(2));
}

#[test]
fn nobody_shows_a_certificate_of_another_key() {
    let honest = || Attempt::honest(Suite::AesGcm);
    // CHAN-3: a certificate names the very key of the handshake.
    let thief = |of: u8| {
        let stolen = credentials(of).certificate;
        Credentials { certificate: stolen, ..Credentials::new(RUN, &identity(6), seed(6), NOW + 60) }
    };
    assert_eq!(Attempt { dialler: thief(1), ..honest() }.failure(), Some(3));
    assert_eq!(Attempt { answerer: thief(2), ..honest() }.failure(), Some(2));
}

#[test]
fn a_certificate_is_bound_to_run_key_time_and_author() {
    let key = PublicKey::from(&StaticSecret::from([1; 32])).to_bytes();
    let signed = identity(1).sign(RUN, &Certificate { key, expiry: NOW + 60 });
    let bytes = encode(&signed);
    assert_eq!(bytes, credentials(1).certificate);
    assert_eq!(holder(&bytes, RUN, &key, NOW), Ok((identity(1).id(), NOW + 60)));
    assert_eq!(holder(&bytes, RunId(Digest([8; 32])), &key, NOW), Err(Reject::WrongRun));
    assert!(matches!(holder(&bytes, RUN, &[0; 32], NOW), Err(Reject::Rule(_))));
    assert!(matches!(holder(&bytes, RUN, &key, NOW + 60), Err(Reject::Stale(_))));
    for place in 0..bytes.len() {
        let mut forged = bytes.clone();
        forged[place] ^= 1;
        assert!(holder(&forged, RUN, &key, NOW).is_err(), "byte {place}");
        assert!(holder(&bytes[..place], RUN, &key, NOW).is_err(), "{place} bytes");
    }
    assert!(decode::<Signed<Certificate>>(&bytes).is_ok());
}

#[test]
fn every_bit_of_the_handshake_counts() {
    let flip = |_: usize, message: &mut Vec<u8>, bit: usize| message[bit / 8] ^= 1 << (bit % 8);
    // CHAN-1: any other preamble fails, as any other byte does.
    for (step, length) in [(1, FIRST_BYTES), (2, SECOND_BYTES), (3, THIRD_BYTES)] {
        for bit in 0..length * 8 {
            let attempt = Attempt { tamper: flip, place: bit, step, ..Attempt::honest(Suite::AesGcm) };
            assert!(attempt.failure().is_some(), "message {step}, bit {bit}");
        }
    }
}

#[test]
fn a_middleman_does_not_choose_the_suite() {
    let swap = |_: usize, message: &mut Vec<u8>, _: usize| message[super::PREAMBLE_BYTES - 1] ^= 1 ^ 2;
    for suite in Suite::ALL {
        assert_eq!(Attempt { tamper: swap, step: 1, ..Attempt::honest(suite) }.failure(), Some(2));
    }
}

#[test]
fn handshake_messages_have_one_length() {
    let cut = |_: usize, message: &mut Vec<u8>, place: usize| message.resize(place, 0);
    for (step, length) in [(1, FIRST_BYTES), (2, SECOND_BYTES), (3, THIRD_BYTES)] {
        for place in (0..length).chain([length + 1, 70_000]) {
            let attempt = Attempt { tamper: cut, place, step, ..Attempt::honest(Suite::AesGcm) };
            assert_eq!(attempt.failure(), Some(step), "{place} bytes of message {step}");
        }
    }
}

#[test]
fn chan_6_a_failure_has_no_room_for_a_reason() {
    let honest = || Attempt::honest(Suite::AesGcm);
    assert_eq!(Attempt { expected: Some(identity(7).id()), ..honest() }.failure(), Some(2));
    // What each side has of it holds nothing that could be told on.
    assert_eq!(size_of::<HandshakeError>(), 0);
}

#[test]
fn keys_of_small_order_fail() {
    // CHAN-5: with them every Diffie–Hellman result is zeros.
    let zero = |_: usize, message: &mut Vec<u8>, place: usize| message[place..place + 32].fill(0);
    for (step, place) in [(1, super::PREAMBLE_BYTES), (2, 0)] {
        let attempt = Attempt { tamper: zero, place, step, ..Attempt::honest(Suite::AesGcm) };
        assert_eq!(attempt.failure(), Some(step));
    }
}

#[test]
fn changed_repeated_moved_and_lost_frames_do_not_open() {
    // CHAN-7: each frame has the next nonce of its direction, and nothing is read after an error.
    let message = vec![5; 200_000];
    let sealed = |(mut dialler, answerer): (Established, Established)| {
        let stream = sealed(&mut dialler.sealer, &message);
        (frames_of(&stream), answerer.opener, dialler.opener)
    };
    let (frames, mut opener, _) = sealed(pair());
    assert_eq!(frames.len(), 4);
    assert_eq!(open_all(&mut opener, &frames).unwrap(), std::slice::from_ref(&message));
    assert!(opener.open(&frames[3]).is_err(), "repeated");

    let (mut frames, mut opener, _) = sealed(pair());
    frames.swap(1, 2);
    assert!(open_all(&mut opener, &frames).is_err(), "moved");

    let (mut frames, mut opener, _) = sealed(pair());
    let lost = frames.remove(1);
    assert!(open_all(&mut opener, &frames).is_err(), "lost");
    assert!(opener.open(&lost).is_err(), "what failed once stays failed");

    let (frames, mut opener, _) = sealed(pair());
    assert!(open_all(&mut opener, &frames[..3]).unwrap().is_empty(), "the last frame is missing");

    let (frames, _, mut own) = sealed(pair());
    assert!(own.open(&frames[0]).is_err(), "sent back to its author");

    for place in [0, 1, 60, frames[3].len() - 1] {
        let (mut frames, mut opener, _) = sealed(pair());
        frames[3][place] ^= 1;
        assert!(open_all(&mut opener, &frames).is_err(), "changed at {place}");
    }
    for length in [0, 1, 15, 16, 17, 1000] {
        let (mut frames, mut opener, _) = sealed(pair());
        frames[0].truncate(length);
        assert!(open_all(&mut opener, &frames).is_err(), "cut to {length}");
    }
}

/// Frames that seal these texts: what a lying peer can send.
fn lying(texts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, Reject> {
    let (mut dialler, mut answerer) = pair();
    let stream: Vec<u8> = texts.iter().flat_map(|text| dialler.sealer.seal_text(text)).collect();
    open_all(&mut answerer.opener, &frames_of(&stream))
}

#[test]
fn lengths_are_checked_before_they_are_believed() {
    // CHAN-7
    let over = (limits::MESSAGE_BYTES as u32 + 1).to_le_bytes().to_vec();
    assert!(matches!(lying(&[over]), Err(Reject::TooLong { limit: 4_194_304, length: 4_194_305, .. })));
    assert!(matches!(lying(&[vec![0xff; 4]]), Err(Reject::TooLong { .. })));
    assert!(matches!(lying(&[vec![1, 0, 0]]), Err(Reject::Malformed(_))), "half a length");
    assert!(matches!(lying(&[vec![]]), Err(Reject::Malformed(_))), "no length");
    assert!(matches!(lying(&[vec![1, 0, 0, 0, 7, 7]]), Err(Reject::Rule(_))), "more than announced");
    assert!(
        matches!(lying(&[vec![2, 0, 0, 0, 7], vec![7]]), Err(Reject::Rule(_))),
        "a short frame amid a message"
    );
    assert_eq!(lying(&[vec![0; 4], vec![1, 0, 0, 0, 7]]), Ok(vec![vec![], vec![7]]));
    let (mut dialler, _) = pair();
    assert!(dialler.sealer.seal(&vec![0; limits::MESSAGE_BYTES + 1]).is_err());
    assert!(!dialler.sealer.is_spent(), "what was refused has begun nothing");
}

#[test]
fn nothing_follows_half_a_message() {
    // CHAN-7: what a sender cuts short ends the channel, and no number seals two texts.
    let message = vec![5; 2 * PIECE_BYTES];
    for calls in 0..=4 {
        let (mut dialler, mut answerer) = pair();
        let (mut sealing, mut piece) = (dialler.sealer.seal(&message).unwrap(), Vec::new());
        let mut stream = Vec::new();
        for call in 0..calls {
            assert_eq!(sealing.next_piece(&mut piece), call < 3);
            stream.extend_from_slice(&piece);
        }
        let opened = open_all(&mut answerer.opener, &frames_of(&stream)).unwrap();
        assert_eq!(opened.len(), usize::from(calls >= 3));
        // The last piece was sent only if somebody asked for one more.
        assert_eq!(dialler.sealer.is_spent(), calls < 4);
        assert_eq!(dialler.sealer.seal(b"later").is_ok(), calls == 4);
    }
}

#[test]
fn a_spent_channel_carries_nothing_more() {
    // CHAN-8
    let (mut dialler, mut answerer) = pair();
    let last = limits::CHANNEL_FRAMES - super::frames::MESSAGE_FRAMES;
    (dialler.sealer.next, answerer.opener.next) = (last, last);
    let stream = sealed(&mut dialler.sealer, &vec![1; limits::MESSAGE_BYTES]);
    assert_eq!(open_all(&mut answerer.opener, &frames_of(&stream)).unwrap().len(), 1);
    assert!(dialler.sealer.is_spent());
    assert!(dialler.sealer.seal(b"").is_err());
    let stream = dialler.sealer.seal_text(&[0; 4]);
    assert!(matches!(answerer.opener.open(&frames_of(&stream)[0]), Err(Reject::Rule(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(Answerer::start(&credentials(2), &bytes, seed(4)).is_err());
        let (dialler, first) = Dialler::start(&credentials(1), Suite::AesGcm, None, seed(3));
        prop_assert!(dialler.receive(&bytes, NOW).is_err());
        let (answerer, _) = Answerer::start(&credentials(2), &first, seed(4)).unwrap();
        prop_assert!(answerer.receive(&bytes, NOW).is_err());
        prop_assert!(pair().1.opener.open(&bytes).is_err());
        prop_assert!(holder(&bytes, RUN, &[0; 32], NOW).is_err());
    }

    #[test]
    fn arbitrary_bytes_of_the_right_length_never_panic(random in any::<[u8; 32]>()) {
        let noise = |length: usize| random.iter().copied().cycle().take(length).collect::<Vec<u8>>();
        let mut message = noise(FIRST_BYTES);
        message[..8].copy_from_slice(&Suite::ChaChaPoly.preamble());
        if let Ok((answerer, _)) = Answerer::start(&credentials(2), &message, seed(4)) {
            prop_assert!(answerer.receive(&noise(THIRD_BYTES), NOW).is_err());
        }
        let (dialler, _) = Dialler::start(&credentials(1), Suite::AesGcm, None, seed(3));
        prop_assert!(dialler.receive(&noise(SECOND_BYTES), NOW).is_err());
    }

    #[test]
    fn texts_of_a_lying_peer_never_panic(texts in proptest::collection::vec(
        proptest::collection::vec(any::<u8>(), 0..40), 1..6)) {
        if let Ok(messages) = lying(&texts) {
            let said: usize = messages.iter().map(|message| 4 + message.len()).sum();
            prop_assert!(said <= texts.iter().map(Vec::len).sum());
        }
    }

    #[test]
    fn messages_arrive_whole_and_in_order(lengths in proptest::collection::vec(0usize..200_000, 1..5)) {
        let (mut dialler, mut answerer) = pair();
        let messages: Vec<Vec<u8>> = lengths.iter().map(|length| vec![*length as u8; *length]).collect();
        let stream: Vec<u8> =
            messages.iter().flat_map(|message| sealed(&mut dialler.sealer, message)).collect();
        prop_assert_eq!(open_all(&mut answerer.opener, &frames_of(&stream)).unwrap(), messages);
    }
}
