//! Ways to members behind routers that bypass the steward's relay: over relays of members that others can dial (CHAN-29).
//!
//! A second socket under the same key, beside the one at the steward's relay, is met at one of the first relays of its own key. A
//! dial goes over the first relays of the key that is dialled. Nothing rests on any of them: a key that one of them failed is
//! dialled over the steward's relay for a while, and so is everybody for as long as no member has a relay.

mod held;
mod rest;
mod vigil;

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use iroh::endpoint::WeakConnectionHandle;
use iroh::{RelayUrl, SecretKey};
use muster_core::ids::{EndpointKey, MemberId};
use muster_core::lock::lock;
use muster_core::relays;
use tokio::sync::{Notify, SetOnce};
use tokio::task::JoinHandle;
use tokio::time;
use tracing::debug;

use crate::error::Cause;
use crate::name::{Meeting, Neighbour};
use crate::punch::{AGAIN, Arrival, Punch, RENEWAL, Way, unmet};
use crate::wire::Wire;
use held::{Failure, Held};
use vigil::keep_vigil;

/// Relays that are tried for a key, the first ones of its order.
const TRIED: usize = 2;
/// How long a member may take to give a place at its relay.
const PLACE: Duration = Duration::from_secs(3);
/// How long a relay may take to be there, and to say from where this process is seen.
const HOME: Duration = Duration::from_secs(10);
/// How often it is looked whether it is.
const LOOK: Duration = Duration::from_millis(100);
/// How long a dial over relays of members may take.
const DIAL: Duration = Duration::from_secs(6);

/// Members that may have a relay, as the ledger names them.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    all: Mutex<Arc<[Neighbour]>>,
    /// Others than before.
    changed: Notify,
}

impl Neighbours {
    pub(crate) fn set(&self, neighbours: Vec<Neighbour>) {
        let mut all = lock(&self.all);
        if **all != *neighbours {
            *all = neighbours.into();
            self.changed.notify_one();
        }
    }

    /// CHAN-29: those whose relays are tried for a key, as this member sees it, which does not use its own.
    fn firsts(&self, key: &EndpointKey, me: &MemberId) -> Vec<Neighbour> {
        let all = lock(&self.all).clone();
        let order = relays::order(key, all.iter().map(|neighbour| neighbour.member));
        // Its own counts among the first ones: others see the same order.
        let firsts = order.into_iter().take(TRIED).filter(|member| member != me);
        firsts.filter_map(|member| all.iter().find(|neighbour| neighbour.member == member).copied()).collect()
    }
}

/// The second socket of a process, and what it takes to use it.
pub(crate) struct Bypass {
    inner: Arc<Inner>,
    /// Looks after its relay for as long as this lives.
    keeping: JoinHandle<()>,
}

impl Drop for Bypass {
    fn drop(&mut self) {
        self.keeping.abort();
    }
}

/// What a process is in need of beside the socket at the steward's relay.
pub(crate) struct Setup {
    /// Who this is, and the key of both sockets.
    pub(crate) me: MemberId,
    pub(crate) secret: SecretKey,
    /// How a member is asked for a place at its relay.
    pub(crate) ask: Ask,
    pub(crate) neighbours: Arc<Neighbours>,
    /// The socket at the steward's relay, which knows from where this process is seen.
    pub(crate) straight: Way,
}

/// Asks a member for a place at its relay.
pub(crate) type Ask = Box<dyn Fn(Neighbour) -> Asked + Send + Sync>;
pub(crate) type Asked = Pin<Box<dyn Future<Output = Result<Meeting, Cause>> + Send>>;

struct Inner {
    setup: Setup,
    key: EndpointKey,
    /// The socket, once a relay of a member is there.
    punch: SetOnce<Punch>,
    held: Arc<Mutex<Held>>,
}

/// A dial over relays of members.
type Dialling = Pin<Box<dyn Future<Output = Result<(Wire, Bypassed), Cause>> + Send>>;

/// A channel that was dialled over relays of members.
#[derive(Clone)]
pub(crate) struct Bypassed {
    inner: Arc<Inner>,
    key: EndpointKey,
}

impl Bypassed {
    /// It has failed, whoever is to blame: whoever has the key is dialled over the steward's relay for a while.
    pub(crate) fn failed(&self) {
        self.inner.failed(self.key, Failure::Uncarried);
    }

    /// It was too slow. A relay is not to blame for what takes a direct way.
    pub(crate) fn disappoints(&self) {
        if self.inner.punch.get().is_some_and(|punch| punch.is_relayed(&self.key)) {
            self.failed();
        }
    }
}

impl Bypass {
    pub(crate) fn begin(setup: Setup) -> Self {
        let key = EndpointKey(*setup.secret.public().as_bytes());
        let (punch, held) = (SetOnce::new(), Arc::default());
        let inner = Arc::new(Inner { setup, key, punch, held });
        Self { keeping: tokio::spawn(keep(inner.clone())), inner }
    }

    /// Whether a dial to this key goes over relays of members now. Nobody waits for one where it was not met yet: it is looked for
    /// there, and found the next time.
    pub(crate) fn leads_to(&self, key: &EndpointKey) -> bool {
        let key = *key;
        if self.inner.relays_to(&key).is_empty() {
            return false;
        }
        let mut held = lock(&self.inner.held);
        let is_proven = held.is_proven(&key);
        if !is_proven && held.looks_for(key) {
            let (inner, looking) = (self.inner.clone(), self.dial(key));
            tokio::spawn(async move {
                let is_met = looking.await.is_ok();
                lock(&inner.held).looked_for(key, is_met);
            });
        }
        is_proven
    }

    /// A stream to whoever has this key. A key that is not met in time rests.
    pub(crate) fn dial(&self, key: EndpointKey) -> Dialling {
        let inner = self.inner.clone();
        Box::pin(async move {
            let dialled = time::timeout(DIAL, inner.dial(key)).await;
            let dialled = dialled.unwrap_or_else(|_| Err(unmet("the relays of members took too long")));
            let noted = dialled.inspect_err(|error| {
                debug!(%error, "not met at a member's relay");
                inner.failed(key, Failure::Unmet);
            });
            let (wire, connection) = noted?;
            tokio::spawn(keep_vigil(inner.held.clone(), key, connection));
            Ok((wire, Bypassed { inner, key }))
        })
    }

    /// Whoever has this key was met elsewhere sooner.
    pub(crate) fn was_late(&self, key: EndpointKey) {
        self.inner.failed(key, Failure::Unmet);
    }

    /// The next one that has dialled this socket; `None` at its end.
    pub(crate) async fn accept(&self) -> Option<Arrival> {
        let punch = self.inner.punch.wait().await;
        punch.open_door();
        punch.accept().await
    }

    pub(crate) fn is_relayed(&self, key: &EndpointKey) -> bool {
        self.inner.punch.get().is_some_and(|punch| punch.is_relayed(key))
    }
}

impl Inner {
    fn failed(&self, key: EndpointKey, failure: Failure) {
        lock(&self.held).key_failed(key, failure, Instant::now());
    }

    /// The relays over which a key may be dialled now; none before this socket has one of its own, which says from where it is seen.
    fn relays_to(&self, key: &EndpointKey) -> Vec<Neighbour> {
        let at_home = self.punch.get().is_some_and(|punch| punch.way().is_connected());
        let (now, held) = (Instant::now(), lock(&self.held));
        if !at_home || held.home.is_none() || held.key_rests(key, now) {
            return Vec::new();
        }
        let firsts = self.setup.neighbours.firsts(key, &self.setup.me).into_iter();
        firsts.filter(|neighbour| !held.relays.rests(&neighbour.member, now)).collect()
    }

    async fn dial(&self, key: EndpointKey) -> Result<(Wire, WeakConnectionHandle), Cause> {
        let relays = self.relays_to(&key);
        let mut relays = relays.iter();
        let (one, other) = tokio::join!(self.place(relays.next()), self.place(relays.next()));
        let places: Vec<RelayUrl> = one.into_iter().chain(other).collect();
        match self.punch.get() {
            Some(punch) if !places.is_empty() => punch.dial_over(key, places).await,
            _ => Err(unmet("there is no place at a member's relay")),
        }
    }

    /// A place at a relay to dial over, asked for if there is none.
    async fn place(&self, of: Option<&Neighbour>) -> Option<RelayUrl> {
        let (of, punch) = (of?, self.punch.get()?);
        if let Some(url) = lock(&self.held).place(of, Instant::now()) {
            return Some(url);
        }
        let meeting = self.ask(*of).await?;
        let url = punch.way().know(&meeting).ok()?;
        let taken = lock(&self.held).take(*of, url.clone(), Instant::now());
        taken.then_some(url)
    }

    /// Asks a member for a place at its relay. One that has none, or does not answer, rests.
    async fn ask(&self, of: Neighbour) -> Option<Meeting> {
        let asked = time::timeout(PLACE, (self.setup.ask)(of)).await;
        let asked = asked.unwrap_or_else(|_| Err(unmet("it took too long")));
        asked
            .inspect_err(|error| {
                debug!(member = %of.member, %error, "no place at a member's relay");
                lock(&self.held).relay_failed(of.member, Instant::now());
            })
            .ok()
    }

    /// Has others meet this socket at one of the first relays of its key: where it is, if it may stay; whether there is one.
    async fn find_home(&self) -> bool {
        let mut firsts = self.setup.neighbours.firsts(&self.key, &self.setup.me);
        let home = lock(&self.held).home;
        // Nobody moves because somebody has come who is before it.
        firsts.sort_by_key(|first| Some(first.member) != home);
        for first in firsts {
            let rests = lock(&self.held).relays.rests(&first.member, Instant::now());
            if !rests && self.is_met_at(first).await {
                lock(&self.held).home = Some(first.member);
                return true;
            }
        }
        lock(&self.held).home = None;
        false
    }

    /// Whether others meet this socket at a member's relay from now on. One that is of no use rests.
    async fn is_met_at(&self, relay: Neighbour) -> bool {
        let settled = match self.ask(relay).await {
            Some(meeting) => self.settle(&meeting).await,
            None => return false,
        };
        if let Err(error) = &settled {
            debug!(member = %relay.member, %error, "a member's relay is of no use");
            lock(&self.held).relay_failed(relay.member, Instant::now());
        }
        settled.is_ok()
    }

    /// Moves to a relay, if it does what it is for.
    async fn settle(&self, meeting: &Meeting) -> Result<(), Cause> {
        // Where this process does not learn from where it is seen, it finds no direct way.
        if meeting.terms.port == 0 {
            return Err(unmet("nobody says there from where members are seen"));
        }
        let punch = match self.punch.get() {
            Some(punch) => punch,
            None => {
                let way = Way::open(self.setup.secret.clone(), meeting).await?;
                let _ = self.punch.set(Punch::new(way, None));
                self.punch.get().ok_or_else(|| unmet("there is no socket"))?
            }
        };
        punch.way().moved(meeting).await?;
        let there = async {
            // A relay that keeps to itself from where a member is seen, or says something else than the steward's, would have all
            // bytes go over itself.
            while !(punch.way().is_connected() && self.setup.straight.seen().is_subset(&punch.way().seen())) {
                time::sleep(LOOK).await;
            }
        };
        let late = |_| unmet("it does not say from where this member is seen");
        time::timeout(HOME, there).await.map_err(late)
    }

    fn is_at_home(&self) -> bool {
        let home = lock(&self.held).home;
        let Some(home) = home else { return false };
        let stays =
            self.setup.neighbours.firsts(&self.key, &self.setup.me).iter().any(|first| first.member == home);
        stays && self.punch.get().is_some_and(|punch| punch.way().is_connected())
    }

    /// Renews the places that dials over this socket go over, and gives up the others.
    async fn renew_places(&self, punch: &Punch) {
        let (due, over) = lock(&self.held).due(Instant::now());
        let home = lock(&self.held).home;
        // The name of the home stays, whoever is dialled over it.
        over.iter().filter(|relay| Some(**relay) != home).for_each(|relay| punch.way().forget(relay));
        for neighbour in due {
            if let Some(meeting) = self.ask(neighbour).await
                && let Ok(url) = punch.way().know(&meeting)
            {
                lock(&self.held).take(neighbour, url, Instant::now());
            }
        }
    }
}

/// Looks after the home of a socket, and after the places that it dials over.
async fn keep(inner: Arc<Inner>) {
    let mut renewed: Option<Instant> = None;
    loop {
        if let Some(punch) = inner.punch.get() {
            inner.renew_places(punch).await;
        }
        let is_due = renewed.is_none_or(|renewed| renewed.elapsed() >= RENEWAL);
        if (is_due || !inner.is_at_home()) && inner.find_home().await {
            renewed = Some(Instant::now());
        }
        // Whoever comes or goes may be one of the first, and a place at a relay takes seconds.
        let _ = time::timeout(AGAIN, inner.setup.neighbours.changed.notified()).await;
    }
}

#[cfg(test)]
mod tests;
