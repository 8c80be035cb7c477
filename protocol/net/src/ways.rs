//! How an endpoint reaches members behind routers: over relays of members, and over the steward's, which is always there.

use std::pin::Pin;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use muster_core::ids::EndpointKey;
use muster_core::lock::lock;
use tokio::sync::OnceCell;
use tokio::time;

use crate::bypass::{Bypass, Bypassed, Neighbours};
use crate::error::Cause;
use crate::punch::{Arrival, Punch, key, unmet};
use crate::relay::OpenedRelay;
use crate::wire::Wire;

/// How long no way is opened after that failed.
const REST: Duration = Duration::from_secs(4);
/// How long the relays of members have for a dial before the steward's is tried beside them.
const HEAD_START: Duration = Duration::from_secs(2);

/// Ways that are being opened.
pub(crate) type Opening = Pin<Box<dyn Future<Output = Result<Ways, Cause>> + Send>>;

/// The ways of an endpoint, which are opened when they are first needed.
#[derive(Default)]
pub(crate) struct Punching {
    opener: OnceLock<Box<dyn Fn() -> Opening + Send + Sync>>,
    ways: OnceCell<Ways>,
    /// When they could not be opened last, and why.
    failed: Mutex<Option<(Instant, String)>>,
    /// Who has a relay beside the steward, by the ledger.
    pub(crate) neighbours: Arc<Neighbours>,
    /// The relay of this process, if it has one.
    pub(crate) own: OnceLock<OpenedRelay>,
}

impl Punching {
    /// How the ways are opened. The first one stays.
    pub(crate) fn open_by(&self, opener: impl Fn() -> Opening + Send + Sync + 'static) {
        let _ = self.opener.set(Box::new(opener));
    }

    /// Whether there can be a way.
    pub(crate) fn can_open(&self) -> bool {
        self.opener.get().is_some()
    }

    /// The ways.
    pub(crate) async fn ways(&self) -> Result<&Ways, Cause> {
        let opener = self.opener.get().ok_or_else(|| unmet("no steward is known yet"))?;
        let open = || async {
            // Whoever has no place would ask the steward again with each address of this kind.
            if let Some((_, why)) = lock(&self.failed).as_ref().filter(|(at, _)| at.elapsed() < REST) {
                return Err(unmet(why));
            }
            let opened = opener().await;
            *lock(&self.failed) = opened.as_ref().err().map(|why| (Instant::now(), why.to_string()));
            opened
        };
        self.ways.get_or_try_init(open).await
    }

    /// CHAN-29: whether a channel to whoever is at this address, which goes over the steward's relay, may go past it now.
    pub(crate) fn may_go_past_steward(&self, address: &str) -> bool {
        key(address).zip(self.ways.get()).is_some_and(|(key, ways)| {
            let bypass = ways.bypass.as_ref();
            ways.straight.is_relayed(&key) && bypass.is_some_and(|bypass| bypass.leads_to(&key))
        })
    }

    /// Whether what goes to whoever is dialled at this address goes through a relay, because no direct way was found so far.
    pub(crate) fn is_relayed(&self, address: &str) -> bool {
        key(address).zip(self.ways.get()).is_some_and(|(key, ways)| ways.is_relayed(&key))
    }
}

/// Two sockets under one key: one that meets others at the steward's relay, and, in a member, one that meets them at relays of
/// members. What the second one does or suffers changes nothing for the first.
pub(crate) struct Ways {
    straight: Punch,
    bypass: Option<Bypass>,
}

impl Ways {
    pub(crate) fn new(straight: Punch, bypass: Option<Bypass>) -> Self {
        Self { straight, bypass }
    }

    /// CHAN-29: a stream to whoever has this key: over relays of members where these may lead there, and over the steward's
    /// where they take long or fail.
    pub(crate) async fn dial(&self, key: EndpointKey) -> Result<(Wire, Option<Bypassed>), Cause> {
        let Some(bypass) = self.bypass.as_ref().filter(|bypass| bypass.leads_to(&key)) else {
            return Ok((self.straight.dial(key).await?, None));
        };
        let mut around = pin!(bypass.dial(key));
        let mut straight = pin!(async {
            time::sleep(HEAD_START).await;
            self.straight.dial(key).await
        });
        tokio::select! {
            past = &mut around => match past {
                Ok((wire, bypassed)) => Ok((wire, Some(bypassed))),
                Err(_) => Ok((self.straight.dial(key).await?, None)),
            },
            met = &mut straight => match met {
                Ok(wire) => {
                    bypass.was_late(key);
                    Ok((wire, None))
                }
                Err(error) => around.await.map(|(wire, past)| (wire, Some(past))).map_err(|_| error),
            },
        }
    }

    /// The same over the steward's relay alone.
    pub(crate) async fn dial_straight(&self, key: EndpointKey) -> Result<Wire, Cause> {
        self.straight.dial(key).await
    }

    /// The next one that has dialled this process; `None` at the end. Whoever dials is sent away before this is called first.
    pub(crate) async fn accept(&self) -> Option<Arrival> {
        self.straight.open_door();
        let past = async {
            match &self.bypass {
                Some(bypass) => bypass.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            arrival = self.straight.accept() => arrival,
            arrival = past => arrival,
        }
    }

    /// This process's address, once the steward's relay is there.
    pub(crate) async fn address(&self) -> Result<String, Cause> {
        self.straight.address().await
    }

    #[cfg(test)]
    pub(crate) fn bypass(&self) -> Option<&Bypass> {
        self.bypass.as_ref()
    }

    fn is_relayed(&self, key: &EndpointKey) -> bool {
        self.straight.is_relayed(key) || self.bypass.as_ref().is_some_and(|bypass| bypass.is_relayed(key))
    }
}
