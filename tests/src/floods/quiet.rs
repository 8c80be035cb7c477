//! Connections that never become a channel.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::line::{dial, handshake, secret};
use super::pace::Uplink;
use super::target::{Target, source};

/// Idle connections to the port for channels, and to each of the others.
const HELD: (usize, usize) = (400, 100);
/// Strangers that knock at once.
const KNOCKING: usize = 32;
/// Browsers at once.
const BROWSERS: usize = 64;
/// How long anything is waited for, and an idle connection lasts.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(300);

/// Holds connections; every second one says the beginning of a handshake.
pub(super) fn idle(target: &Arc<Target>, uplink: &Arc<Uplink>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let (held, elsewhere) = HELD;
    let swarm = target.swarm.as_deref().and_then(socket);
    let ports = [(Some(target.channel), held), (swarm, elsewhere), (target.web, elsewhere)];
    let all = ports.into_iter().flat_map(|(port, many)| std::iter::repeat_n(port, many)).flatten();
    for (number, port) in all.enumerate() {
        let uplink = uplink.clone();
        tasks.spawn(async move {
            loop {
                uplink.connections.take(1).await;
                if let Ok(mut stream) = dial(port, source(number)).await {
                    if number % 2 == 0 {
                        let _ = stream.write_all(b"muster\x01").await;
                    }
                    let _ = timeout(PATIENCE, stream.read(&mut [0; 64])).await;
                }
                sleep(PAUSE).await;
            }
        });
    }
    tasks
}

/// Shakes hands with random bytes, or as far as message 2, and closes.
pub(super) fn knock(target: &Arc<Target>, uplink: &Arc<Uplink>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for number in 0..KNOCKING {
        let (target, uplink) = (target.clone(), uplink.clone());
        tasks.spawn(async move {
            for turn in number.. {
                uplink.connections.take(1).await;
                let Ok(mut stream) = dial(target.channel, source(turn)).await else {
                    sleep(PAUSE).await;
                    continue;
                };
                if turn % 2 == 0 {
                    // A good preamble, and then a point that nobody has the secret of.
                    let _ = stream.write_all(&[b"muster\x01\x01".as_slice(), &secret()].concat()).await;
                } else {
                    let _ = stream.write_all(&handshake(target.run).1).await;
                    let _ = timeout(PATIENCE, stream.read(&mut [0; 64])).await;
                }
            }
        });
    }
    tasks
}

/// Asks for pages without end; every second browser never finishes its request.
pub(super) fn web(target: &Arc<Target>, uplink: &Arc<Uplink>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let Some(port) = target.web else { return tasks };
    for number in 0..BROWSERS {
        let uplink = uplink.clone();
        tasks.spawn(async move {
            loop {
                uplink.connections.take(1).await;
                if let Ok(mut stream) = dial(port, source(number)).await {
                    let end = if number % 2 == 0 { "\r\n" } else { "" };
                    let request = format!("GET / HTTP/1.1\r\nHost: {port}\r\nConnection: close\r\n{end}");
                    let _ = stream.write_all(request.as_bytes()).await;
                    let _ = timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
                }
                sleep(PAUSE).await;
            }
        });
    }
    tasks
}

/// The TCP port of a multiaddress.
fn socket(multiaddress: &str) -> Option<std::net::SocketAddr> {
    let mut words = multiaddress.split('/').skip(2);
    let (ip, _, port) = (words.next()?, words.next()?, words.next()?);
    format!("{ip}:{port}").parse().ok()
}
