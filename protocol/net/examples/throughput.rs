//! Prints GiB/s of plain TCP, of sealing alone, of the channel and of a libp2p stream (Noise over Yamux), by turns, and
//! exits with 1 where the channel misses a goal: `cargo run --release -p muster-net --example throughput`.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::future::{Future, poll_fn};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel as queue};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use libp2p::core::muxing::{StreamMuxerBox, StreamMuxerExt};
use libp2p::core::transport::{Boxed, DialOpts, ListenerId, PortUse, TransportEvent};
use libp2p::core::{Endpoint as Side, upgrade};
use libp2p::futures::{AsyncReadExt as _, AsyncWriteExt as _, StreamExt};
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, PeerId, Transport, noise, tcp, yamux};
use muster_core::ids::{Digest, RunId};
use muster_core::limits;
use muster_core::sign::Identity;
use muster_net::connection::Connection;
use muster_net::endpoint::Endpoint;
use muster_net::listener::Listener;
use muster_net::seats::ConnectionLimit;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

const TURNS: usize = 9;
/// Messages of a turn.
const MESSAGES: usize = 128;
/// Text and tag of a full frame.
const TEXT_BYTES: usize = limits::FRAME_BYTES - TAG_BYTES;
const TAG_BYTES: usize = 16;
/// Goals: a share of the bound, and a multiple of libp2p's stream.
const SHARE: f64 = 0.9;
const MULTIPLE: f64 = 2.5;

/// GiB/s.
struct Turn {
    plain: f64,
    aes: f64,
    chacha: f64,
    channel: f64,
    libp2p: f64,
}

impl Turn {
    /// One thread a side both seals, or opens, and copies.
    fn bound(&self) -> f64 {
        1.0 / (1.0 / self.plain + 1.0 / self.aes.max(self.chacha))
    }
}

fn main() -> ExitCode {
    println!("GiB/s of {MESSAGES} messages of {} MiB one way over loopback", limits::MESSAGE_BYTES >> 20);
    println!("plain TCP  AES-256-GCM  ChaCha20-Poly1305   bound  channel  libp2p");
    let mut turns = Vec::new();
    for _ in 0..TURNS {
        let plain = plain();
        let (aes, chacha) = (aead(&aead::AES_256_GCM), aead(&aead::CHACHA20_POLY1305));
        let turn = Turn { plain, aes, chacha, channel: channel(), libp2p: libp2p_stream() };
        print(&turn, "");
        turns.push(turn);
    }
    let median = |of: fn(&Turn) -> f64| {
        let mut values: Vec<f64> = turns.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[TURNS / 2]
    };
    print(
        &Turn {
            plain: median(|turn| turn.plain),
            aes: median(|turn| turn.aes),
            chacha: median(|turn| turn.chacha),
            channel: median(|turn| turn.channel),
            libp2p: median(|turn| turn.libp2p),
        },
        "   medians",
    );
    println!("of plain TCP {:.2}", median(|turn| turn.channel / turn.plain));
    let share = median(|turn| turn.channel / turn.bound());
    let multiple = median(|turn| turn.channel / turn.libp2p);
    let met = [
        verdict("of the bound 1/(1/TCP + 1/AEAD)", share, SHARE),
        verdict("times a libp2p stream", multiple, MULTIPLE),
    ];
    if met == [true, true] { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print(turn: &Turn, note: &str) {
    let Turn { plain, aes, chacha, channel, libp2p } = turn;
    let bound = turn.bound();
    println!("{plain:9.2}  {aes:11.2}  {chacha:17.2}  {bound:6.2}  {channel:7.2}  {libp2p:6.2}{note}");
}

/// Of the medians of ratios within a turn: the machine's speed drifts between turns.
fn verdict(what: &str, ratio: f64, goal: f64) -> bool {
    let met = ratio >= goal;
    println!("verdict: channel {ratio:.2} {what}, goal {goal}: {}", if met { "met" } else { "missed" });
    met
}

/// The rate between two ends, each on a thread of its own, as they would be on two machines. The receiver says its address;
/// the sender returns when it began to send.
fn between<A, R, S>(receive: impl FnOnce(Sender<A>) -> R, send: impl FnOnce(A) -> S) -> f64
where
    R: Future<Output = ()> + Send + 'static,
    S: Future<Output = Instant> + Send + 'static,
{
    let (tell, told) = queue();
    let receiver = on_a_thread(receive(tell));
    let start = on_a_thread(send(told.recv().unwrap())).join().unwrap();
    receiver.join().unwrap();
    rate(start.elapsed())
}

fn on_a_thread<T: Send + 'static>(end: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    thread::spawn(|| Builder::new_current_thread().enable_all().build().unwrap().block_on(end))
}

fn plain() -> f64 {
    between(
        |tell| async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut message = vec![0; limits::MESSAGE_BYTES];
            for _ in 0..MESSAGES {
                stream.read_exact(&mut message).await.unwrap();
            }
        },
        |address| async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let message = vec![1; limits::MESSAGE_BYTES];
            let start = Instant::now();
            for _ in 0..MESSAGES {
                stream.write_all(&message).await.unwrap();
            }
            start
        },
    )
}

/// The slower of sealing and opening a frame that lies in the processor's cache.
fn aead(algorithm: &'static aead::Algorithm) -> f64 {
    let key = LessSafeKey::new(UnboundKey::new(algorithm, &[7; 32]).unwrap());
    let nonce = || Nonce::assume_unique_for_key([0; 12]);
    let (mut text, mut body, mut tag) = (vec![1; TEXT_BYTES], vec![0; TEXT_BYTES], [0; TAG_BYTES]);
    let frames = MESSAGES * limits::MESSAGE_BYTES / TEXT_BYTES;
    let mut seal = || {
        key.seal_out_of_place_scatter(nonce(), Aad::empty(), &text, &mut body, &[], &mut tag).unwrap();
    };
    let sealing = timed(frames, &mut seal);
    let opening = timed(frames, &mut || {
        key.open_separate_gather(nonce(), Aad::empty(), &body, &tag, &mut text).unwrap();
    });
    rate(sealing.max(opening))
}

fn timed(times: usize, work: &mut dyn FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..times {
        work();
    }
    start.elapsed()
}

fn channel() -> f64 {
    let endpoint =
        |name: u8| Endpoint::new(RunId(Digest([1; 32])), Arc::new(Identity::from_secret(&[name; 32])));
    between(
        |tell: Sender<String>| async move {
            let listener = Listener::bind("127.0.0.1:0", ConnectionLimit::default()).await.unwrap();
            tell.send(listener.local_addr().to_string()).unwrap();
            let mut connection = listener.accept().await.establish(&endpoint(2)).await.unwrap();
            for _ in 0..MESSAGES {
                connection.receive().await.unwrap();
            }
        },
        |address| async move {
            let mut connection = Connection::dial(&address, &endpoint(1), None).await.unwrap();
            let message = vec![1; limits::MESSAGE_BYTES];
            let start = Instant::now();
            for _ in 0..MESSAGES {
                connection.send(&message).await.unwrap();
            }
            start
        },
    )
}

/// As the swarm sets it up, without the protocols that the swarm negotiates on top.
fn libp2p_stream() -> f64 {
    between(
        |tell: Sender<Multiaddr>| async move {
            let mut listener = transport();
            listener.listen_on(ListenerId::next(), "/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
            let mut muxer = loop {
                match listener.next().await.unwrap() {
                    TransportEvent::NewAddress { listen_addr, .. } => tell.send(listen_addr).unwrap(),
                    TransportEvent::Incoming { upgrade, .. } => break upgrade.await.unwrap().1,
                    _ => {}
                }
            };
            let mut stream = poll_fn(|context| {
                let inbound = muxer.poll_inbound_unpin(context);
                let _driven = muxer.poll_unpin(context);
                inbound
            })
            .await
            .unwrap();
            tokio::spawn(drive(muxer));
            let mut message = vec![0; limits::MESSAGE_BYTES];
            for _ in 0..MESSAGES {
                stream.read_exact(&mut message).await.unwrap();
            }
            // So that the other end knows that everything has arrived.
            stream.close().await.unwrap();
        },
        |address| async move {
            let options = DialOpts { role: Side::Dialer, port_use: PortUse::Reuse };
            let (_, mut muxer) = transport().dial(address, options).unwrap().await.unwrap();
            let mut stream = poll_fn(|context| muxer.poll_outbound_unpin(context)).await.unwrap();
            tokio::spawn(drive(muxer));
            let message = vec![1; limits::MESSAGE_BYTES];
            let start = Instant::now();
            for _ in 0..MESSAGES {
                stream.write_all(&message).await.unwrap();
            }
            stream.flush().await.unwrap();
            // The task that moves the bytes ends with this thread.
            let _end = stream.read(&mut [0]).await;
            start
        },
    )
}

fn transport() -> Boxed<(PeerId, StreamMuxerBox)> {
    let keypair = Keypair::generate_ed25519();
    tcp::tokio::Transport::new(tcp::Config::default().nodelay(true))
        .upgrade(upgrade::Version::V1)
        .authenticate(noise::Config::new(&keypair).unwrap())
        .multiplex(yamux::Config::default())
        .boxed()
}

/// Moves the bytes of all streams until the connection ends.
async fn drive(mut muxer: StreamMuxerBox) {
    while poll_fn(|context| muxer.poll_unpin(context)).await.is_ok() {}
}

fn rate(elapsed: Duration) -> f64 {
    (MESSAGES * limits::MESSAGE_BYTES) as f64 / f64::from(1 << 30) / elapsed.as_secs_f64()
}
