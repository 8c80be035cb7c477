//! Connections of an attacker's own to the steward, on each of which it asks without end.
//!
//! Whoever floods wants its own work to come in time: a member that is late fails, and loses its seat. So all of this runs on a thread
//! that gets what the rest of its program leaves.

use std::time::Duration;

use muster_core::codec::decode;
use muster_core::messages::wire::Response;
use muster_member::Outside;
use muster_net::client::Client;
use muster_net::endpoint::Endpoint;
use tokio::runtime::Builder;
use tokio::time::sleep;

/// Connections of one attacker: fewer than a steward takes from one address.
const CONNECTIONS: u32 = 100;
/// How long it waits for an answer.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long it waits after a refusal, and where there is nothing to ask.
const PAUSE: Duration = Duration::from_millis(30);
/// The least priority of a thread.
const LEAST: i32 = 19;
/// How long it waits before it dials again.
const REDIAL: Duration = Duration::from_secs(1);

/// Asks from now on: `next` makes the request of a connection, given its number and how often it has asked.
pub(super) fn flood<F>(outside: &Outside, next: F)
where
    F: Fn(u32, u32) -> Option<Vec<u8>> + Clone + Send + Sync + 'static,
{
    let outside = outside.clone();
    behind(move || {
        if let Ok(runtime) = Builder::new_current_thread().enable_all().build() {
            runtime.block_on(connections(&outside, &next));
        }
    });
}

/// Runs this on a thread of its own, behind the other threads of the program.
pub(super) fn behind(work: impl FnOnce() + Send + 'static) {
    std::thread::spawn(|| {
        // Where it may not, it runs beside them.
        rustix::process::setpriority_process(None, LEAST).ok();
        work();
    });
}

/// Keeps all connections busy until the program ends.
async fn connections<F>(outside: &Outside, next: &F)
where
    F: Fn(u32, u32) -> Option<Vec<u8>> + Clone + Send + Sync + 'static,
{
    for connection in 0..CONNECTIONS {
        let (outside, next) = (outside.clone(), next.clone());
        tokio::spawn(async move {
            let run = outside.ledger.borrow().run();
            let endpoint = Endpoint::new(run, outside.identity.clone());
            let mut count = 0;
            loop {
                let mut addresses = outside.steward.addresses.iter().filter(|to| !to.starts_with('/'));
                let Some(address) = addresses.next() else { return };
                if let Ok(mut client) = Client::dial(address, &endpoint, None).await {
                    let requests = || {
                        count += 1;
                        next(connection, count)
                    };
                    ask(&mut client, requests).await;
                }
                sleep(REDIAL).await;
            }
        });
    }
    std::future::pending().await
}

/// Asks until the connection breaks.
async fn ask(client: &mut Client, mut next: impl FnMut() -> Option<Vec<u8>>) {
    loop {
        let Some(request) = next() else {
            sleep(PAUSE).await;
            continue;
        };
        let Ok(answer) = client.call(&request, PATIENCE).await else { return };
        if let Ok(Response::Refused(_)) = decode(&answer) {
            sleep(PAUSE).await;
        }
    }
}
