//! A member that nobody can dial, as behind a home router: it is met at the steward's relay (CHAN-27), and at that of a member
//! (CHAN-29).

use std::sync::Arc;
use std::time::Duration;

use muster_core::codec::{List, Text};
use muster_core::messages::enrol::Addresses;
use muster_net::endpoint::Endpoint;
use muster_net::listener::PunchedListener;
use muster_net::serve::serve;
use muster_net::shares::Shares;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::listen::Served;
use crate::server::NodeContext;

/// Pauses after an attempt in vain, at first and at most; each is twice the one before.
const FIRST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(600);

/// The server behind the router.
pub(super) struct Behind {
    endpoint: Endpoint,
    /// None where the volunteer wants to be dialled by nobody.
    shares: Option<Arc<Shares>>,
    /// Ends with the membership.
    serving: JoinSet<()>,
}

impl Behind {
    pub(super) fn new(endpoint: Endpoint, served: &Served) -> Self {
        Self { endpoint, shares: served.shares.clone(), serving: JoinSet::new() }
    }

    /// Opens the way, once; where this member is met then, as soon as it is.
    pub(super) fn open(&mut self, context: &Arc<NodeContext>) -> Option<oneshot::Receiver<Addresses>> {
        let shares = self.shares.take()?;
        let (endpoint, context, (sender, address)) =
            (self.endpoint.clone(), context.clone(), oneshot::channel());
        self.serving.spawn(async move {
            // The membership is over where nobody takes it.
            let _ = sender.send(met(&endpoint).await);
            let listener = PunchedListener::new(endpoint.clone(), shares);
            serve(listener, endpoint, context, std::future::pending()).await;
        });
        Some(address)
    }
}

/// Where this member is met, as soon as it is.
async fn met(endpoint: &Endpoint) -> Addresses {
    let mut pause = FIRST;
    loop {
        match endpoint.address_behind_router().await {
            Ok(address) => match Text::new(address).and_then(|address| List::new(vec![address])) {
                Ok(addresses) => return addresses,
                Err(misuse) => tracing::warn!("no address behind the router: {misuse}"),
            },
            // Said once: nothing of it needs the volunteer.
            Err(error) if pause == FIRST => tracing::warn!(
                "no way through the router yet: {error}; until there is one, what others need of this member goes through the \
                 steward; it is tried again from time to time"
            ),
            Err(error) => tracing::debug!(%error, "no way through the router"),
        }
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(LONGEST);
    }
}
