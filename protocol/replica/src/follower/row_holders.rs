//! Who says in the swarm's table that it holds the row of this member.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use muster_core::ids::{MemberId, Row};
use muster_core::lock::lock;

use crate::gossip::Gossiping;

/// How long the swarm is asked, and how long its answer stands before it is asked again.
const LOOK: Duration = Duration::from_secs(2);
const STANDS: Duration = Duration::from_secs(30);

/// What the swarm has answered. It is asked beside the work: a state is offered for a few rounds only, and in a fast run these
/// are over before the swarm has answered.
#[derive(Clone, Default)]
pub(super) struct RowHolders(Arc<Mutex<Option<Look>>>);

/// One look into the table.
struct Look {
    row: Row,
    begun: Instant,
    found: BTreeSet<MemberId>,
}

impl RowHolders {
    /// Has the swarm asked about a row, unless it was asked shortly before.
    pub(super) fn look(&self, gossip: &Arc<Gossiping>, row: Row) {
        if self.begin(row, Instant::now()) {
            let (all, gossip) = (self.clone(), gossip.clone());
            tokio::spawn(async move { all.found(row, gossip.holders(row, LOOK).await) });
        }
    }

    /// Who is said to hold a row, as far as it was found out. These are hints.
    pub(super) fn of(&self, row: Row) -> BTreeSet<MemberId> {
        let look = lock(&self.0);
        look.as_ref().filter(|look| look.row == row).map(|look| look.found.clone()).unwrap_or_default()
    }

    fn begin(&self, row: Row, now: Instant) -> bool {
        let mut look = lock(&self.0);
        let stands = |look: &Look| look.row == row && now.duration_since(look.begun) < STANDS;
        if look.as_ref().is_some_and(stands) {
            return false;
        }
        // What was found before is better than nothing until the answer is here.
        let before = look.take().filter(|look| look.row == row);
        let found = before.map(|look| look.found).unwrap_or_default();
        *look = Some(Look { row, begun: now, found });
        true
    }

    fn found(&self, row: Row, found: BTreeSet<MemberId>) {
        // Another row may have been drawn meanwhile.
        if let Some(look) = lock(&self.0).as_mut().filter(|look| look.row == row) {
            look.found = found;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_13_the_swarm_is_asked_once_in_a_while_about_the_row_of_now() {
        let (all, now) = (RowHolders::default(), Instant::now());
        let members = BTreeSet::from([MemberId([1; 32])]);
        assert!(all.begin(Row(3), now) && !all.begin(Row(3), now));
        assert!(all.of(Row(3)).is_empty(), "nobody has answered");
        all.found(Row(3), members.clone());
        assert_eq!(all.of(Row(3)), members);
        assert!(all.begin(Row(3), now + STANDS));
        assert_eq!(all.of(Row(3)), members, "until there is a newer answer");
        assert!(all.begin(Row(4), now + STANDS));
        all.found(Row(3), members);
        assert!(all.of(Row(3)).is_empty() && all.of(Row(4)).is_empty(), "an answer about another row");
    }
}
