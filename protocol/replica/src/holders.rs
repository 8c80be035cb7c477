//! Who holds what of a state, as the ledger has it.

use muster_core::ids::Row;
use muster_core::ledger::{Ledger, Member, Standing};
use muster_core::messages::enrol::{Engagement, Role};

/// Nodes at work that can be dialled and hold a row of a state with so many rows (CALL-13): each of them while there is one
/// row or none were dealt; later those that are ready with it. Without a row all of them, since each holds the trunk.
pub fn holders(ledger: &Ledger, rows: u16, row: Option<Row>) -> impl Iterator<Item = &Member> {
    let all = rows == 1 || !ledger.has_dealt_rows();
    ledger.members().iter().filter(move |member| {
        let at_work = member.role == Role::Node
            && member.standing == Standing::Active
            && member.engagement != Engagement::Rests;
        let holds = |row| member.holding.is_some_and(|holding| holding.ready && holding.row == row);
        at_work && !member.addresses.is_empty() && (all || row.is_none_or(holds))
    })
}
