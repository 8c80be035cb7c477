//! How a process gets its way through home routers (CHAN-28): a place at the steward's relay, which is kept for as long as it is
//! asked for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use iroh::SecretKey;
use muster_core::codec::{decode, encode};
use muster_core::ids::{EndpointKey, MemberId};
use muster_core::messages::wire::{Request, Response};
use tokio::time;
use tracing::debug;

use crate::client::Client;
use crate::endpoint::{Endpoint, random};
use crate::error::{Cause, NetError};
use crate::punch::{Meeting, Punch, Way, unmet};
use crate::relay::Relay;

/// How often the relay is told that its services are still needed.
const RENEWAL: Duration = Duration::from_secs(60);
/// How soon after that failed: the steward may have started anew, and know nobody.
const AGAIN: Duration = Duration::from_secs(5);
/// How long the steward may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

impl Endpoint {
    /// From now on members behind routers are met at the relay of this steward. The first one stays.
    pub fn meet_at(&self, steward: MemberId) {
        // Without the way that this opens.
        let asking = self.without_punching();
        self.punching.open_by(move || Box::pin(as_member(asking.clone(), steward)));
    }

    /// The same in the steward's own process.
    pub fn meet_here(&self, relay: Arc<Relay>) {
        self.punching.open_by(move || Box::pin(as_steward(relay.clone())));
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
        let address = async { self.punching.way().await?.address().await };
        address.await.map_err(|cause| NetError::new("the steward's relay", cause))
    }
}

async fn as_steward(relay: Arc<Relay>) -> Result<Punch, Cause> {
    let (secret, key) = own_key()?;
    let meeting = Meeting { at: relay.address(), terms: relay.admit_steward(key) };
    Ok(Punch::new(Way::open(secret, meeting).await?, None))
}

async fn as_member(asking: Endpoint, steward: MemberId) -> Result<Punch, Cause> {
    let (secret, key) = own_key()?;
    let way = Way::open(secret, ask(&asking, steward, key).await?).await?;
    let renewal = tokio::spawn(renew(asking, steward, key, way.clone()));
    Ok(Punch::new(way, Some(renewal)))
}

/// Of this process alone, and of this start of it.
fn own_key() -> Result<(SecretKey, EndpointKey), Cause> {
    let secret = SecretKey::from_bytes(&*random()?);
    let key = EndpointKey(*secret.public().as_bytes());
    Ok((secret, key))
}

/// Asks the steward for a place at its relay.
async fn ask(endpoint: &Endpoint, steward: MemberId, key: EndpointKey) -> Result<Meeting, Cause> {
    let at = endpoint.address_of(&steward).ok_or_else(|| unmet("the steward was not reached yet"))?;
    let asked = async {
        let mut client = Client::dial(&at.to_string(), endpoint, Some(steward)).await?;
        client.call(&encode(&Request::Relay(key)), PATIENCE).await
    };
    match decode(&asked.await.map_err(|error| error.cause)?)? {
        Response::Relay(terms) => Ok(Meeting { at, terms }),
        Response::Refused(why) => Err(unmet(format!("the steward has no place at its relay: {}", &*why))),
        _ => Err(unmet("the steward answers something else than was asked")),
    }
}

/// Keeps the place at the relay.
async fn renew(endpoint: Endpoint, steward: MemberId, key: EndpointKey, way: Way) {
    let mut last = Instant::now();
    loop {
        time::sleep(AGAIN).await;
        // A steward that starts anew knows no place, and has another certificate.
        if way.is_connected() && last.elapsed() < RENEWAL {
            continue;
        }
        let renewed = async { way.moved(ask(&endpoint, steward, key).await?).await };
        match renewed.await {
            Ok(()) => last = Instant::now(),
            Err(error) => debug!(%error, "no place at the steward's relay"),
        }
    }
}

#[cfg(test)]
mod tests;
