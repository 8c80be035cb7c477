//! What the open phase waits for, and on whom, for people.

use super::Conductor;
use super::results::parts;
use crate::ids::{MemberId, Slot};
use crate::ledger::Stage;

/// What connected members have yet to do before the phase is over without its timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owed {
    /// To connect: they have a seat in the next round.
    Connection,
    /// To commit.
    Commitment,
    /// To deliver their contributions.
    Delivery,
    /// To reduce their parts.
    Result,
    /// To compare the results with their contributions.
    Check,
}

impl Conductor {
    /// Who has yet to do what in the open phase.
    pub fn owed(&self) -> Option<(Owed, Vec<MemberId>)> {
        let ledger = &self.ledger;
        let Some(view) = ledger.current().filter(|_| ledger.stage() != Stage::Gathering) else {
            let seats =
                ledger.derived_seats().into_iter().filter(|seat| seat.quota > 0).map(|seat| seat.member);
            return Some((Owed::Connection, seats.filter(|member| !self.is_live(member)).collect()));
        };
        let without = |done: &dyn Fn(Slot) -> bool| {
            let seats = view.seats().iter().enumerate();
            let open =
                seats.filter(|(slot, seat)| self.is_awaited(&seat.member) && !done(Slot(*slot as u16)));
            open.map(|(_, seat)| seat.member).collect::<Vec<_>>()
        };
        match ledger.stage() {
            Stage::Computing => {
                let done = |slot| !view.trains(slot) || self.gathered.commits.contains_key(&slot);
                Some((Owed::Commitment, without(&done)))
            }
            Stage::Exchanging => {
                let counts = |slot| view.commitment(slot).is_some_and(|commitment| commitment.weight > 0);
                let done = |slot| !counts(slot) || self.gathered.delivered.contains(&slot);
                Some((Owed::Delivery, without(&done)))
            }
            Stage::Reducing if self.results.checking().is_some() => {
                let counts = |slot| view.inputs().iter().any(|inputs| inputs.contains(slot));
                let done = |slot| !counts(slot) || self.results.has_checked_all(view, slot);
                Some((Owed::Check, without(&done)))
            }
            Stage::Reducing => {
                let owing = parts(view).flat_map(|part| {
                    let owes = move |member: &MemberId| {
                        !self.results.is_settled(part, *member) && self.is_awaited(member)
                    };
                    view.aggregating(part).filter(owes)
                });
                let mut owing: Vec<MemberId> = owing.collect();
                owing.sort_unstable();
                owing.dedup();
                Some((Owed::Result, owing))
            }
            Stage::Empty | Stage::Gathering | Stage::Auditing | Stage::Closed => None,
        }
    }
}
