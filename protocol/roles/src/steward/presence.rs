//! Who is there: a member whose last connection broke may only be dialling again.

use std::collections::{BTreeMap, BTreeSet};

use muster_core::ids::MemberId;

use super::{Bulletin, Steward};

/// How long a member whose last connection broke still counts as present.
const ABSENCE: u64 = 3_000;
/// How long members have to find a steward that was restarted.
const RESTART: u64 = 15_000;

/// Connections, and members that may come back.
#[derive(Default)]
pub(super) struct Attendance {
    connected: BTreeSet<MemberId>,
    /// Members whose connections are gone, and when they count as absent.
    absent: BTreeMap<MemberId, u64>,
}

impl Attendance {
    /// Somebody has a connection now, or none any more.
    pub(super) fn connected(&mut self, member: MemberId, is: bool) {
        if is {
            self.connected.insert(member);
        } else {
            self.connected.remove(&member);
        }
    }

    /// Whether somebody has a connection.
    pub(super) fn is_connected(&self, member: &MemberId) -> bool {
        self.connected.contains(member)
    }

    /// When somebody counts as absent.
    pub(super) fn timeout(&self) -> impl Iterator<Item = u64> {
        self.absent.values().copied()
    }
}

impl Steward {
    /// Members have not found the way back yet: without this, a restart would cost them the round.
    pub(super) fn expect_members(&mut self) {
        let members: Vec<MemberId> = self.ledger().members().iter().map(|member| member.id).collect();
        for member in members {
            self.conductor.live(self.now, member, true);
            // Counted as live at once and given time: a restart must not make everybody fail the round (LEDGER-20).
            self.presence.absent.insert(member, self.now.saturating_add(RESTART));
        }
    }

    /// ROUND-38: as after a restart, with everything still in memory. Connections may be gone, and no phase may end for what
    /// nobody could hear.
    pub(super) fn resume(&mut self) {
        self.conductor.resume(self.now);
        self.docket.resume(self.now);
        self.expect_members();
        self.tell(Bulletin::Resumed);
    }

    /// Tells the conductor who is there.
    pub(super) fn attend(&mut self) {
        let members: Vec<MemberId> = self.ledger().members().iter().map(|member| member.id).collect();
        for member in members {
            let live = self.conductor.is_live(&member);
            if self.presence.connected.contains(&member) {
                self.presence.absent.remove(&member);
                if !live {
                    self.conductor.live(self.now, member, true);
                }
            } else if live && *self.presence.absent.entry(member).or_insert(self.now + ABSENCE) <= self.now {
                self.presence.absent.remove(&member);
                self.conductor.live(self.now, member, false);
                self.tell(Bulletin::Moved(member, "is not connected any more"));
            }
        }
    }
}
