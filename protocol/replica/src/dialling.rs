//! Which addresses of members are dialled, and when again (CHAN-25).
//!
//! Every member dials what the ledger says of every other one. An address where nobody answers rests, whichever member
//! names it, so that a run is no means to have a thousand machines call somebody.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use muster_core::ids::MemberId;
use muster_core::ledger::{Ledger, Member, Standing};
use muster_core::limits;
use muster_core::lock::lock;
use muster_core::messages::enrol::Role;
use muster_net::endpoint::Endpoint;
use muster_net::error::NetError;
use muster_net::name::Neighbour;
use muster_net::punch::is_behind_router;
use muster_net::reach::Reach;

/// Pauses after the first dial in vain to an address, and at most; each is twice the one before.
const PAUSE: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(30);
/// Addresses that are remembered: as many as members may have.
const REMEMBERED: usize = limits::MEMBERS * limits::ADDRESSES;

struct Rest {
    until: Instant,
    pause: Duration,
}

/// What one member knows of the addresses that it dials.
pub(crate) struct Dialling {
    endpoint: Endpoint,
    steward: OnceLock<MemberId>,
    resting: Mutex<BTreeMap<String, Rest>>,
}

impl Dialling {
    /// Dials whatever it is told, until it knows the steward.
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, steward: OnceLock::new(), resting: Mutex::default() }
    }

    /// What it dials with.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// From now on the addresses of everybody but the steward come from the ledger.
    pub(crate) fn behind(&self, steward: MemberId) {
        // The first one stays: a run has one.
        let _ = self.steward.set(steward);
    }

    /// CHAN-25: whether a member is dialled here now.
    pub(crate) fn may(&self, member: &MemberId, address: &str, now: Instant) -> bool {
        let own = self.steward.get().and_then(|steward| self.endpoint.own_address(steward));
        self.may_from(own, member, address, now)
    }

    /// The same on a machine that has reached the steward from this address.
    fn may_from(&self, own: Option<IpAddr>, member: &MemberId, address: &str, now: Instant) -> bool {
        // The steward is where the invitation says, for whose addresses a person answers.
        if self.steward.get().is_none_or(|steward| steward == member) {
            return true;
        }
        let leads_there = if is_behind_router(address) {
            // CHAN-27: whoever is called there is at a relay, and has called it.
            self.endpoint.can_punch()
        } else {
            target(own, address).is_some()
        };
        leads_there && lock(&self.resting).get(address).is_none_or(|rest| rest.until <= now)
    }

    /// CHAN-29: tells the endpoint who may have a relay.
    pub(crate) fn know_relays(&self, ledger: &Ledger) {
        let own = self.steward.get().and_then(|steward| self.endpoint.own_address(steward));
        self.endpoint.meet_past_steward(neighbours(own, ledger));
    }

    /// The outcome of asking somebody at an address.
    pub(crate) fn asked(&self, address: &str, outcome: Result<(), &NetError>, now: Instant) {
        let mut resting = lock(&self.resting);
        match outcome {
            Ok(()) => drop(resting.remove(address)),
            Err(error) if error.is_unreachable() && self.steward.get().is_some() => {
                let before = resting.get(address).map(|rest| rest.pause);
                let pause = before.map_or(PAUSE, |pause| (2 * pause).min(LONGEST));
                if resting.len() >= REMEMBERED && before.is_none() {
                    resting.retain(|_, rest| rest.until + LONGEST > now);
                }
                if resting.len() < REMEMBERED || before.is_some() {
                    resting.insert(address.to_owned(), Rest { until: now + pause, pause });
                }
            }
            // It was there: what it did then is of no concern here.
            Err(_) => {}
        }
    }

    /// A member was found at these addresses: they rest no longer.
    pub(crate) fn found<'a>(&self, addresses: impl Iterator<Item = &'a str>) {
        let mut resting = lock(&self.resting);
        addresses.for_each(|address| _ = resting.remove(address));
    }
}

/// CHAN-25: where an address of a member leads, for a machine that has reached the steward from its own.
fn target(own: Option<IpAddr>, address: &str) -> Option<SocketAddr> {
    // Names lead wherever their owner wants from one moment to the next.
    let target: SocketAddr = address.parse().ok()?;
    let reach = Reach::of(target.ip())?;
    // What reaches less far than the way to the steward is another machine here than it was for the steward.
    own.and_then(Reach::of).is_none_or(|own| reach >= own).then_some(target)
}

/// CHAN-29: nodes that take part, and that others can dial, may have a relay.
fn neighbours(own: Option<IpAddr>, ledger: &Ledger) -> Vec<Neighbour> {
    let nodes = ledger.members().iter().filter(|member| member.role == Role::Node);
    let here = nodes.filter(|member| member.standing == Standing::Active);
    let neighbour = |member: &Member| {
        let at = member.addresses.iter().find_map(|address| target(own, address))?;
        Some(Neighbour { member: member.id, at })
    };
    here.filter_map(neighbour).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_core::ids::{Digest, Round, RunId};
    use muster_core::ledger::fixture::{Makers, Newcomer};
    use muster_core::messages::audit::FindingKind;
    use muster_core::messages::record::{Ban, Body};
    use muster_core::sign::Identity;
    use muster_net::error::Cause;

    use super::*;

    fn scene() -> (Dialling, [MemberId; 3]) {
        let endpoint = Endpoint::new(RunId(Digest::default()), Arc::new(Identity::from_secret(&[1; 32])));
        (Dialling::new(endpoint), [2, 3, 4].map(|number| MemberId([number; 32])))
    }

    fn refused(address: &str) -> NetError {
        NetError { address: address.to_owned(), cause: Cause::Refused }
    }

    #[test]
    fn chan_25_an_address_where_nobody_answers_rests_whoever_names_it() {
        let (dialling, [steward, one, other]) = scene();
        let (began, address) = (Instant::now(), "8.8.8.8:1");
        dialling.behind(steward);
        let mut dials = 0;
        // Ten minutes, twenty times a second, by turns for two members that name it.
        for (tick, member) in [one, other].iter().cycle().take(12_000).enumerate() {
            let now = began + Duration::from_millis(50 * tick as u64);
            if dialling.may(member, address, now) {
                dials += 1;
                dialling.asked(address, Err(&refused(address)), now);
            }
        }
        assert!((20..40).contains(&dials), "{dials} dials");
        let now = began + Duration::from_secs(600);
        assert!(dialling.may(&steward, address, now), "the steward is waited for");
        dialling.asked("9.9.9.9:1", Err(&refused("9.9.9.9:1")), now);
        assert!(!dialling.may(&one, "9.9.9.9:1", now));
        dialling.found(["9.9.9.9:1"].into_iter());
        assert!(dialling.may(&one, "9.9.9.9:1", now), "it has come back");
        // A member that took its time was there.
        dialling.asked(
            "9.9.9.9:1",
            Err(&NetError { address: String::new(), cause: Cause::Timeout("an answer") }),
            now,
        );
        assert!(dialling.may(&one, "9.9.9.9:1", now));
    }

    #[test]
    fn chan_25_members_are_dialled_at_numbers_of_machines() {
        let (dialling, [steward, one, _]) = scene();
        let now = Instant::now();
        assert!(dialling.may(&one, "example.org:1", now), "before anything is known of the run");
        dialling.behind(steward);
        for wrong in ["example.org:1", "0.0.0.0:1", "224.0.0.1:1", "8.8.8.8"] {
            assert!(!dialling.may(&one, wrong, now), "{wrong}");
        }
        assert!(dialling.may(&one, "8.8.8.8:1", now) && dialling.may(&steward, "example.org:1", now));
    }

    /// Else the ledger would have each member dial whatever is at that address on its own machine, or on its own network.
    #[test]
    fn chan_25_no_member_is_dialled_nearer_than_the_steward_was_reached_from() {
        let (dialling, [steward, one, _]) = scene();
        dialling.behind(steward);
        let near = ["127.0.0.1:1", "[fe80::1]:1", "10.0.0.1:1", "8.8.8.8:1"];
        let dialled = |own: &str| {
            let own = Some(own.parse().unwrap());
            near.map(|address| dialling.may_from(own, &one, address, Instant::now()))
        };
        assert_eq!(dialled("127.0.0.1"), [true; 4]);
        assert_eq!(dialled("192.168.1.2"), [false, false, true, true]);
        assert_eq!(dialled("9.9.9.9"), [false, false, false, true]);
        assert!(dialling.may_from(Some([9, 9, 9, 9].into()), &steward, near[0], Instant::now()));
    }

    #[test]
    fn chan_29_relays_are_of_nodes_that_take_part_and_that_may_be_dialled() {
        let (makers, key) = (Makers::of(21, 22), format!("iroh:{}", "07".repeat(32)));
        let nodes = [1, 2, 3, 4, 5].map(|name| Identity::from_secret(&[name; 32]));
        let addresses = ["8.8.8.8:1", "10.0.0.1:1", &key, "8.8.4.4:1"];
        let newcomers = nodes.iter().zip(addresses).map(|(node, address)| Newcomer::node(node).at(address));
        let mut ledger = makers.begin(makers.tiny(4, 2), newcomers.chain([Newcomer::node(&nodes[4])]));
        let of = |own: &str, ledger: &Ledger| -> Vec<String> {
            neighbours(Some(own.parse().unwrap()), ledger).iter().map(|one| one.at.to_string()).collect()
        };
        assert_eq!(of("192.168.1.2", &ledger), ["8.8.8.8:1", "10.0.0.1:1", "8.8.4.4:1"]);
        assert_eq!(of("9.9.9.9", &ledger), ["8.8.8.8:1", "8.8.4.4:1"], "none that is nearer here than there");
        let ban = Ban {
            culprit: nodes[0].id(),
            effective: ledger.first_round_without(),
            round: Round(0),
            finding: FindingKind::SumMismatch,
            evidence: Digest([1; 32]),
            accuser: makers.steward.id(),
            jury: Default::default(),
        };
        makers.seal(&mut ledger, Body::Ban(ban));
        assert_eq!(of("9.9.9.9", &ledger), ["8.8.4.4:1"]);
    }
}
