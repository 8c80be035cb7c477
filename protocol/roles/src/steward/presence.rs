//! Presence: a member whose last connection broke may only be dialling again.

use std::collections::{BTreeMap, BTreeSet};

use muster_core::ids::MemberId;

/// How long a member whose last connection broke still counts as present.
const ABSENCE: u64 = 3_000;
/// How long members have to find a steward that was restarted.
const RESTART: u64 = 15_000;

/// Connections, and members that may come back.
#[derive(Default)]
pub(super) struct Presence {
    connected: BTreeSet<MemberId>,
    /// Members whose connections are gone, and when they count as absent.
    absent: BTreeMap<MemberId, u64>,
}

/// What changes for a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// It is present from now on.
    Came,
    /// It is absent from now on.
    Went,
}

impl Presence {
    /// A member has a connection now, or none any more.
    pub(super) fn connected(&mut self, member: MemberId, is: bool) {
        if is {
            self.connected.insert(member);
        } else {
            self.connected.remove(&member);
        }
    }

    /// Whether a member has a connection.
    pub(super) fn is_connected(&self, member: &MemberId) -> bool {
        self.connected.contains(member)
    }

    /// After a restart: gives a member, which counts as present, time to find the steward again.
    pub(super) fn expect(&mut self, now: u64, member: MemberId) {
        self.absent.insert(member, now.saturating_add(RESTART));
    }

    /// Looks whether a member is there that counted as `present` so far.
    pub(super) fn look(&mut self, now: u64, member: MemberId, present: bool) -> Option<Move> {
        if self.connected.contains(&member) {
            self.absent.remove(&member);
            return (!present).then_some(Move::Came);
        }
        if !present || *self.absent.entry(member).or_insert(now + ABSENCE) > now {
            return None;
        }
        self.absent.remove(&member);
        Some(Move::Went)
    }

    /// When a member counts as absent.
    pub(super) fn timeout(&self) -> impl Iterator<Item = u64> {
        self.absent.values().copied()
    }
}
