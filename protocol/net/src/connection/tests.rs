use std::sync::Arc;

use muster_core::ids::{Digest, RunId};
use muster_core::sign::Identity;

use super::*;
use crate::listener::Listener;
use crate::rate::Rates;
use crate::seats::ConnectionLimit;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(150);
const PATIENT: Timeouts = Timeouts { handshake: LONG, idle: LONG, message: LONG };

fn endpoint(name: u8, timeouts: Timeouts) -> Endpoint {
    Endpoint::new(RunId(Digest([1; 32])), Arc::new(Identity::from_secret(&[name; 32])))
        .with_timeouts(timeouts)
}

/// A patient peer, and a side with these timeouts.
async fn pair(timeouts: Timeouts) -> (Connection, Connection) {
    let listener = Listener::bind("127.0.0.1:0", ConnectionLimit::default()).await.unwrap();
    let address = listener.local_addr().to_string();
    let (one, two) = (endpoint(1, PATIENT), endpoint(2, timeouts));
    let dialling = Connection::dial(&address, &one, Some(two.id()));
    let answering = async { listener.accept().await.establish(&two).await };
    let (peer, side) = tokio::join!(dialling, answering);
    (peer.unwrap(), side.unwrap())
}

fn cause<T>(result: Result<T, NetError>) -> Cause {
    result.err().expect("a failure").cause
}

#[tokio::test]
async fn silent_peers_are_timed_out() {
    let (_peer, mut side) = pair(Timeouts { idle: SHORT, ..PATIENT }).await;
    assert!(matches!(cause(side.receive().await), Cause::Timeout("waiting for a message")));
}

#[tokio::test]
async fn peers_that_stop_amid_a_message_are_timed_out() {
    let (mut peer, mut side) = pair(Timeouts { message: SHORT, ..PATIENT }).await;
    peer.sender.stream.write_all(&[255, 255, 1, 2, 3]).await.unwrap();
    assert!(matches!(cause(side.receive().await), Cause::Timeout("receiving a message")));
}

#[tokio::test]
async fn peers_that_drip_are_timed_out() {
    let (mut peer, mut side) = pair(Timeouts { message: SHORT, ..PATIENT }).await;
    let drip = async {
        peer.sender.stream.write_all(&[255, 255]).await.unwrap();
        while peer.sender.stream.write_all(&[0]).await.is_ok() {
            time::sleep(SHORT / 10).await;
        }
    };
    let dripped = tokio::select! {
        result = side.receive() => result,
        () = drip => panic!("the side closed without an error"),
    };
    assert!(matches!(cause(dripped), Cause::Timeout("receiving a message")));
}

#[tokio::test]
async fn peers_that_do_not_read_are_timed_out() {
    let (_peer, mut side) = pair(Timeouts { message: SHORT, ..PATIENT }).await;
    let message = vec![0; limits::MESSAGE_BYTES];
    let stuck = async {
        loop {
            side.send(&message).await?;
        }
    };
    assert!(matches!(cause::<()>(stuck.await), Cause::Timeout("sending a message")));
}

#[tokio::test]
async fn frames_that_do_not_open_end_the_channel() {
    let (mut peer, mut side) = pair(PATIENT).await;
    peer.sender.stream.write_all(&[20, 0]).await.unwrap();
    peer.sender.stream.write_all(&[7; 20]).await.unwrap();
    // CHAN-7: a frame that does not open is refused, and so is anything after it, though it is genuine.
    assert!(matches!(cause(side.receive().await), Cause::Peer(_)));
    peer.send(b"later").await.unwrap();
    assert!(matches!(cause(side.receive().await), Cause::Peer(_)));
}

#[tokio::test]
async fn a_stream_cut_amid_a_message_gives_none() {
    let (mut peer, mut side) = pair(PATIENT).await;
    peer.send(b"whole").await.unwrap();
    assert!(peer.sender.sealer.seal(&[1; 100_000]).unwrap().next_piece(&mut peer.sender.piece));
    peer.sender.stream.write_all(&peer.sender.piece[..90_000]).await.unwrap();
    drop(peer);
    assert_eq!(side.receive().await.unwrap(), b"whole");
    assert!(matches!(cause(side.receive().await), Cause::Closed));
}

#[tokio::test]
async fn messages_over_the_limit_are_not_sent() {
    let (mut peer, mut side) = pair(PATIENT).await;
    // CHAN-7, LIMIT-2: nothing of it reaches the stream, so that the channel goes on.
    assert!(matches!(cause(peer.send(&vec![0; limits::MESSAGE_BYTES + 1]).await), Cause::Own(_)));
    peer.send(b"after").await.unwrap();
    assert_eq!(side.receive().await.unwrap(), b"after");
}

#[tokio::test]
async fn a_send_that_was_cancelled_ends_the_channel() {
    let (mut peer, side) = pair(PATIENT).await;
    let message = vec![1; limits::MESSAGE_BYTES];
    // Nobody reads: sooner or later a message waits, half of it sent.
    while time::timeout(SHORT, peer.send(&message)).await.is_ok() {}
    // CHAN-7: what follows would not open.
    assert!(matches!(cause(peer.send(b"later").await), Cause::Closed));
    drop(side);
}

#[tokio::test]
async fn a_receive_that_was_cancelled_goes_on() {
    let (mut peer, mut side) = pair(PATIENT).await;
    let message: Vec<u8> = (0..100_000).map(|i| (i % 251) as u8).collect();
    assert!(peer.sender.sealer.seal(&message).unwrap().next_piece(&mut peer.sender.piece));
    for part in peer.sender.piece.chunks(30_000) {
        assert!(time::timeout(SHORT / 10, side.receive()).await.is_err());
        peer.sender.stream.write_all(part).await.unwrap();
    }
    assert_eq!(side.receive().await.unwrap(), message);
}

#[tokio::test]
async fn an_idle_connection_keeps_little() {
    let (mut peer, mut side) = pair(PATIENT).await;
    let message = vec![1; limits::MESSAGE_BYTES];
    let (sent, received) = tokio::join!(peer.send(&message), side.receive());
    sent.unwrap();
    assert_eq!(received.unwrap(), message);
    assert!(peer.sender.piece.capacity() <= KEPT_BYTES && side.receiver.frames.kept() <= KEPT_BYTES + 4);
}

#[tokio::test]
async fn both_ways_at_once() {
    let (peer, side) = pair(PATIENT).await;
    let pump = |connection: Connection, byte: u8| async move {
        let (mut sender, mut receiver) = connection.split();
        let message = vec![byte; limits::MESSAGE_BYTES];
        let sending = async {
            for _ in 0..8 {
                sender.send(&message).await.unwrap();
            }
        };
        let receiving = async {
            for _ in 0..8 {
                let message = receiver.receive().await.unwrap();
                assert!(message.len() == limits::MESSAGE_BYTES && message.iter().all(|b| *b == 3 - byte));
            }
        };
        tokio::join!(sending, receiving);
    };
    tokio::join!(pump(peer, 1), pump(side, 2));
}

/// Of two that are connected, only one is paced: what it sends takes its time, and what is sent to it.
#[tokio::test]
async fn a_paced_side_sends_and_takes_no_more_than_its_rate() {
    let listener = Listener::bind("127.0.0.1:0", ConnectionLimit::default()).await.unwrap();
    let address = listener.local_addr().to_string();
    let rates = Rates { up: Some(2_000_000), down: Some(4_000_000) };
    let (one, two) = (endpoint(1, PATIENT), endpoint(2, PATIENT).with_rates(rates));
    let mut took = Vec::new();
    for paced_sends in [true, false] {
        let dialling = Connection::dial(&address, &one, Some(two.id()));
        let answering = async { listener.accept().await.establish(&two).await };
        let (peer, side) = tokio::join!(dialling, answering);
        let (mut from, mut to) =
            if paced_sends { (side.unwrap(), peer.unwrap()) } else { (peer.unwrap(), side.unwrap()) };
        let (message, began) = (vec![7; 1_000_000], std::time::Instant::now());
        let (sent, received) = tokio::join!(from.send(&message), to.receive());
        sent.unwrap();
        assert_eq!(received.unwrap(), message);
        took.push(began.elapsed());
    }
    // A moment's bytes pass at once.
    assert!(took[0] > Duration::from_millis(420) && took[1] > Duration::from_millis(180), "{took:?}");
}
