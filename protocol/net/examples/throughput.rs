//! Prints MiB/s of the channel beside plain TCP on this machine, in turn: `cargo run --release --example throughput`.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Instant;

use muster_core::ids::{Digest, RunId};
use muster_core::limits;
use muster_core::sign::Identity;
use muster_net::connection::Connection;
use muster_net::endpoint::Endpoint;
use muster_net::listener::Listener;
use muster_net::seats::ConnectionLimit;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const MESSAGES: usize = 128;

#[tokio::main(worker_threads = 2)]
async fn main() {
    println!("{MESSAGES} messages of {} MiB one way over loopback", limits::MESSAGE_BYTES >> 20);
    for _ in 0..3 {
        let (plain, channel) = (plain().await, channel().await);
        println!("plain TCP {plain:6.0} MiB/s   channel {channel:6.0} MiB/s   ratio {:.2}", channel / plain);
    }
}

async fn plain() -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let receiving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut message = vec![0; limits::MESSAGE_BYTES];
        for _ in 0..MESSAGES {
            stream.read_exact(&mut message).await.unwrap();
        }
    });
    let mut stream = TcpStream::connect(address).await.unwrap();
    let message = vec![1; limits::MESSAGE_BYTES];
    let start = Instant::now();
    for _ in 0..MESSAGES {
        stream.write_all(&message).await.unwrap();
    }
    receiving.await.unwrap();
    rate(start)
}

async fn channel() -> f64 {
    let endpoint =
        |name: u8| Endpoint::new(RunId(Digest([1; 32])), Arc::new(Identity::from_secret(&[name; 32])));
    let listener = Listener::bind("127.0.0.1:0", ConnectionLimit::default()).await.unwrap();
    let address = listener.local_addr().to_string();
    let receiving = tokio::spawn(async move {
        let mut connection = listener.accept().await.establish(&endpoint(2)).await.unwrap();
        for _ in 0..MESSAGES {
            connection.receive().await.unwrap();
        }
    });
    let mut connection = Connection::dial(&address, &endpoint(1), None).await.unwrap();
    let message = vec![1; limits::MESSAGE_BYTES];
    let start = Instant::now();
    for _ in 0..MESSAGES {
        connection.send(&message).await.unwrap();
    }
    receiving.await.unwrap();
    rate(start)
}

fn rate(start: Instant) -> f64 {
    (MESSAGES * limits::MESSAGE_BYTES) as f64 / f64::from(1 << 20) / start.elapsed().as_secs_f64()
}
