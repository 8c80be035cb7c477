//! How a process gets its way through home routers (CHAN-28): a place at a relay, which is kept for as long as it is asked for.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use iroh::SecretKey;
use muster_core::codec::{decode, encode};
use muster_core::ids::{EndpointKey, MemberId};
use muster_core::messages::wire::{Request, Response};
use tokio::time;
use tracing::debug;

use crate::bypass::{Ask, Asked, Bypass, Neighbours, Setup};
use crate::client::Client;
use crate::endpoint::{Endpoint, random};
use crate::error::{Cause, NetError};
use crate::name::{Meeting, Neighbour};
use crate::punch::{AGAIN, Punch, RENEWAL, Way, unmet};
use crate::relay::Relay;
use crate::ways::Ways;

/// How long whoever has the relay may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

impl Endpoint {
    /// From now on members behind routers are met at the relay of this steward. The first one stays.
    pub fn meet_at(&self, steward: MemberId) {
        // Without the way that this opens.
        let (asking, neighbours) = (self.without_punching(), self.punching.neighbours.clone());
        self.punching.open_by(move || Box::pin(as_member(asking.clone(), steward, neighbours.clone())));
    }

    /// The same in the steward's own process.
    pub fn meet_here(&self, relay: Arc<Relay>) {
        let steward = self.id();
        let _ = self.punching.own.set(Arc::new(OnceLock::from(relay.clone())));
        self.punching.open_by(move || Box::pin(as_steward(steward, relay.clone())));
    }

    /// CHAN-29: from now on these members, of those that the ledger names, may have a relay beside the steward's.
    pub fn meet_past_steward(&self, neighbours: Vec<Neighbour>) {
        self.punching.neighbours.set(neighbours);
    }

    /// Whether members behind routers can be dialled at all.
    pub fn can_punch(&self) -> bool {
        self.punching.can_open()
    }

    /// The address at which this process is met behind its router, once the relay knows it.
    ///
    /// # Errors
    /// As [`crate::connection::Connection::dial`] of the steward; [`Cause::Punching`].
    pub async fn address_behind_router(&self) -> Result<String, NetError> {
        let address = async { self.punching.ways().await?.address().await };
        address.await.map_err(|cause| NetError::new("the steward's relay", cause))
    }
}

async fn as_steward(steward: MemberId, relay: Arc<Relay>) -> Result<Ways, Cause> {
    let (secret, key) = own_key()?;
    let meeting = Meeting { relay: steward, at: relay.address(), terms: relay.admit_own(key) };
    Ok(Ways::new(Punch::new(Way::open(secret, &meeting).await?, None), None))
}

async fn as_member(asking: Endpoint, steward: MemberId, neighbours: Arc<Neighbours>) -> Result<Ways, Cause> {
    let (secret, key) = own_key()?;
    let way = Way::open(secret.clone(), &ask_steward(&asking, steward, key).await?).await?;
    let renewal = tokio::spawn(renew(asking.clone(), steward, key, way.clone()));
    let (me, straight) = (asking.id(), way.clone());
    let ask: Ask = Box::new(move |of| -> Asked {
        let asking = asking.clone();
        Box::pin(async move { ask(&asking, of, key).await })
    });
    let bypass = Bypass::begin(Setup { me, secret, ask, neighbours, straight });
    Ok(Ways::new(Punch::new(way, Some(renewal)), Some(bypass)))
}

/// Of this process alone, and of this start of it.
fn own_key() -> Result<(SecretKey, EndpointKey), Cause> {
    let secret = SecretKey::from_bytes(&*random()?);
    let key = EndpointKey(*secret.public().as_bytes());
    Ok((secret, key))
}

/// Asks for a place at somebody's relay.
async fn ask(endpoint: &Endpoint, of: Neighbour, key: EndpointKey) -> Result<Meeting, Cause> {
    let Neighbour { member, at } = of;
    let asked = async {
        let mut client = Client::dial(&at.to_string(), endpoint, Some(member)).await?;
        client.call(&encode(&Request::Relay(key)), PATIENCE).await
    };
    match decode(&asked.await.map_err(|error| error.cause)?)? {
        Response::Relay(terms) => Ok(Meeting { relay: member, at, terms }),
        Response::Refused(why) => Err(unmet(format!("there is no place at the relay: {}", &*why))),
        _ => Err(unmet("something else is answered than was asked")),
    }
}

async fn ask_steward(endpoint: &Endpoint, steward: MemberId, key: EndpointKey) -> Result<Meeting, Cause> {
    let at = endpoint.address_of(&steward).ok_or_else(|| unmet("the steward was not reached yet"))?;
    ask(endpoint, Neighbour { member: steward, at }, key).await
}

/// Keeps the place at the steward's relay.
async fn renew(endpoint: Endpoint, steward: MemberId, key: EndpointKey, way: Way) {
    let mut last = Instant::now();
    loop {
        time::sleep(AGAIN).await;
        // A steward that starts anew knows no place, and has another certificate.
        if way.is_connected() && last.elapsed() < RENEWAL {
            continue;
        }
        let renewed = async { way.moved(&ask_steward(&endpoint, steward, key).await?).await };
        match renewed.await {
            Ok(()) => last = Instant::now(),
            Err(error) => debug!(%error, "no place at the steward's relay"),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
