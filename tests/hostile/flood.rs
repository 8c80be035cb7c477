//! Connections without end, peers that do not read, peers that hardly write, and a steward that does nothing for a while.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use e2e::processes::wait_for;
use e2e::settings::Settings;
use muster_core::channel::FULL;
use muster_core::codec::encode;
use muster_core::ids::{MemberId, RunId};
use muster_core::manifest::DataFile;
use muster_core::messages::wire::{DataQuery, Request};
use muster_core::sign::Identity;
use muster_net::connection::Connection;
use muster_net::endpoint::Endpoint;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::caller::{Caller, all_end_well, key_of, run};

/// A few more than a steward, and a node, have seats for one source.
const FLOODS: [usize; 2] = [140, 70];
/// What a dialler sends before its channel is there.
const HANDSHAKE: usize = 40 + 236;

/// Dials from an address that nobody else in the test has: seats are counted by source.
async fn dial_from(source: [u8; 4], to: &str) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((source, 0)))?;
    socket.connect(to.parse().expect("an address")).await
}

/// Holds as many connections as it can get, and says nothing on them or the beginning of a handshake.
async fn flood(to: String, connections: usize) {
    loop {
        let mut held = Vec::new();
        for number in 0..connections {
            let Ok(mut stream) = dial_from([127, 0, 0, 2], &to).await else { continue };
            if number % 2 == 0 {
                let _ = stream.write_all(b"muster\x01").await;
            }
            held.push(stream);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Dials from the flooding address until it is told that there is no place left for it.
async fn told_that_it_is_full(to: &str) {
    loop {
        let mut said = Vec::new();
        if let Ok(mut stream) = dial_from([127, 0, 0, 2], to).await {
            let read = stream.read_to_end(&mut said);
            let _ = tokio::time::timeout(Duration::from_millis(100), read).await;
        }
        if said == FULL {
            return;
        }
    }
}

/// A port that passes the handshake on at once, and of what the dialler then says a byte now and then.
async fn dripping(to: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    tokio::spawn(async move {
        let mut tasks = JoinSet::new();
        while let Ok((from, _)) = listener.accept().await {
            let Ok(onward) = dial_from([127, 0, 0, 3], &to).await else { continue };
            tasks.spawn(async move {
                let ((mut from_read, mut from_write), (mut to_read, mut to_write)) =
                    (from.into_split(), onward.into_split());
                let back = tokio::io::copy(&mut to_read, &mut from_write);
                let forth = async {
                    let mut handshake = vec![0; HANDSHAKE];
                    from_read.read_exact(&mut handshake[..40]).await?;
                    to_write.write_all(&handshake[..40]).await?;
                    from_read.read_exact(&mut handshake[40..]).await?;
                    to_write.write_all(&handshake[40..]).await?;
                    let mut byte = [0];
                    while from_read.read_exact(&mut byte).await.is_ok() {
                        to_write.write_all(&byte).await?;
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                    Ok::<(), std::io::Error>(())
                };
                let _ = tokio::join!(back, forth);
            });
        }
    });
    address
}

/// Asks for what is long, again and again, and reads nothing of it.
async fn slow_reader(to: String, whom: MemberId, run: RunId) {
    let endpoint = Endpoint::new(run, Arc::new(Identity::from_secret(&[88; 32])));
    let Ok(connection) = Connection::dial(&to, &endpoint, Some(whom)).await else { return };
    let (mut sender, _reader) = connection.split();
    let query = DataQuery { file: DataFile::Training, first: 0, count: u32::MAX };
    let request = encode(&Request::Data(query));
    while sender.send(&request).await.is_ok() {}
    std::future::pending().await
}

/// Sends the longest message that there is, a byte now and then.
async fn slow_writer(to: String, whom: MemberId, run: RunId) {
    let endpoint = Endpoint::new(run, Arc::new(Identity::from_secret(&[89; 32])));
    let Ok(mut connection) = Connection::dial(&to, &endpoint, Some(whom)).await else { return };
    let _ = connection.send(&vec![0; muster_core::limits::MESSAGE_BYTES]).await;
    std::future::pending().await
}

#[test]
fn floods_slow_readers_and_slow_writers_stop_neither_steward_nor_node() {
    let run = run(Settings { rounds: 60, verifiers: 1, ..Settings::default() });
    let steward = run.host();
    let nodes = run.invite("node", 2);
    let first = run.join("first", &nodes, &[]);
    wait_for("its key", || run.path("first/identity.key").exists());
    let caller = Caller::new(&run, Arc::new(Identity::from_secret(&[77; 32])));
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let _attack = runtime.block_on(async {
        let id = caller.ticket.run;
        let node = key_of(&run.path("first")).id();
        let mut attack = JoinSet::new();
        let ports = [caller.steward.clone(), caller.find_when_there(&node).await];
        for (whom, connections) in ports.iter().zip(FLOODS) {
            let address = whom.addresses[0].clone();
            attack.spawn(flood(address.clone(), connections));
            let dripping = dripping(address.clone()).await;
            for _ in 0..20 {
                attack.spawn(slow_reader(address.clone(), whom.member, id));
                attack.spawn(slow_writer(dripping.clone(), whom.member, id));
            }
        }
        // CHAN-12: the seats of that address are taken, and no others.
        for whom in &ports {
            told_that_it_is_full(&whom.addresses[0]).await;
        }
        attack
    });
    // Newcomers still get in, and the run to its end.
    let second = run.join("second", &nodes, &[]);
    let watch = run.watch("verifier", &run.invite("verifier", 1));
    all_end_well(&mut [first, second, watch, steward]);
    run.check_end(&["first", "second", "verifier"]);
}

#[test]
fn a_steward_that_does_nothing_for_a_while_costs_time_and_nobody_s_membership() {
    let run =
        run(Settings { rounds: 60, verifiers: 1, audit: (1.0, 1), coin_lead: 1, ..Settings::default() });
    let steward = run.host();
    let watch = run.watch("verifier", &run.invite("verifier", 1));
    let nodes = run.invite("node", 2);
    let first = run.join("first", &nodes, &[]);
    let second = run.join("second", &nodes, &[]);
    for round in [4, 12, 20] {
        run.wait_round(round);
        steward.suspend();
        // Longer than anybody is waited for in this run.
        std::thread::sleep(Duration::from_secs(3));
        steward.resume();
    }
    all_end_well(&mut [first, second, watch, steward]);
    run.check_end(&["first", "second", "verifier"]);
}
