//! A steward that answers as the real one does, and changes what it likes: it has the steward's own key.

use std::sync::Arc;
use std::time::Duration;

use e2e::processes::Run;
use muster_core::codec::decode;
use muster_core::ids::MemberId;
use muster_core::messages::wire::{Request, Response};
use muster_core::sign::Identity;
use muster_net::endpoint::Endpoint;
use muster_net::listener::Listener;
use muster_net::seats::ConnectionLimit;
use muster_net::serve::{Unanswered, serve};
use muster_replica::{Contact, PeerError, Peers};
use muster_store::home::Home;
use tokio::runtime::Runtime;

use crate::caller::{Caller, key_of};

/// Longer than the steward waits for news.
const PATIENCE: Duration = Duration::from_secs(30);

/// Stands between one member and its steward.
pub struct Between {
    address: String,
    /// For `muster-verifier observe`.
    pub target: String,
    _runtime: Runtime,
}

impl Between {
    /// For the member with this directory, which need not exist yet. `change` gives the bytes of an answer.
    pub fn new<F>(run: &Run, name: &str, change: F) -> Self
    where
        F: Fn(&Identity, &Request, Response) -> Vec<u8> + Send + Sync + 'static,
    {
        let member = Home::open(&run.path(name)).and_then(|home| home.identity()).expect("a new key");
        let caller = Arc::new(Caller::new(run, Arc::new(member)));
        let steward = key_of(&run.path("run"));
        let runtime = Runtime::new().expect("threads");
        let listener =
            runtime.block_on(Listener::bind("127.0.0.1:0", ConnectionLimit::default())).expect("a port");
        let address = listener.local_addr().to_string();
        let id = caller.ticket.run;
        let target = format!("{id:#}@{:#}@{address}", steward.id());
        let endpoint = Endpoint::new(id, steward.clone());
        let change = Arc::new(change);
        let handler = Arc::new(move |_: MemberId, bytes: Vec<u8>| {
            let (caller, steward, change) = (caller.clone(), steward.clone(), change.clone());
            async move {
                let request = decode(&bytes)?;
                let answer = ask(&caller.peers, &caller.steward, &request).await?;
                Ok(change(&steward, &request, answer))
            }
        });
        runtime.spawn(serve(listener, endpoint, handler, std::future::pending()));
        Self { address, target, _runtime: runtime }
    }

    /// An invitation that leads here.
    pub fn invitation(&self, run: &Run, role: &str) -> String {
        run.good(&["invite", &run.at("run"), "--role", role, "--address", &self.address]).trim().to_owned()
    }
}

async fn ask(peers: &Peers, steward: &Contact, request: &Request) -> Result<Response, Unanswered> {
    let answer = match request {
        Request::Follow(_) => peers.poll(steward, request, PATIENCE).await,
        _ => peers.ask(steward, request).await,
    };
    answer.map_err(|error| match error {
        PeerError::Refused(why) => Unanswered::Refused(why),
        error => Unanswered::Refused(error.to_string()),
    })
}
