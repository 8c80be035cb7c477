//! Updates of rows that few train: they wait until an inspector has passed what they are made of.

use std::collections::BTreeMap;

use crate::ids::{MemberId, Round, Row, RowSet};
use crate::ledger::roster::Roster;
use crate::ledger::rounds::Rounds;
use crate::ledger::view::{FrozenRow, RoundView, RowPlan, WeightedCommit};
use crate::messages::record::RowStep;
use crate::regime::RowRules;

/// The rate of audits with certainty, in parts per million.
const ALWAYS: u32 = 1_000_000;

/// Rounds whose updates of a row were not applied yet, oldest first.
#[derive(Clone, Default)]
pub(super) struct WaitingUpdates {
    rounds: BTreeMap<Row, Vec<Round>>,
}

impl WaitingUpdates {
    /// What the commitments of the open round settle about its rows, and what they make of the rates of audits.
    pub(super) fn plan(
        &self,
        RowRules { few, held, .. }: RowRules,
        view: &RoundView,
        commits: &mut [Option<WeightedCommit>],
        roster: &Roster,
        rounds: &Rounds,
    ) -> RowPlan {
        let rows = view.state().rows();
        // A run of one row, and the rounds before the branch, have all its members on that row.
        if rows == 1 {
            return RowPlan {
                held: RowSet::default(),
                steps: vec![RowStep { row: Row(0), round: view.round() }],
            };
        }
        let row_of: Vec<Row> = view.seats().iter().map(|seat| seat.row).collect();
        let frozen = |row: Row| {
            let own = || row_of.iter().zip(&*commits).filter(|(of, _)| **of == row);
            let weighs =
                |commit: &Option<WeightedCommit>| commit.as_ref().is_some_and(|commit| commit.weight > 0);
            let waiting = self.rounds.get(&row).into_iter().flatten();
            FrozenRow {
                seated: own().next().is_some(),
                weighted: own().filter(|(_, commit)| weighs(commit)).count() as u16,
                ripe: waiting.copied().find(|round| is_ripe(roster, rounds, *round, row)),
            }
        };
        let all: Vec<(Row, FrozenRow)> = (0..rows).map(Row).map(|row| (row, frozen(row))).collect();
        let thin: RowSet =
            all.iter().filter(|(_, frozen)| frozen.is_thin(few)).map(|(row, _)| *row).collect();
        // STAND-10: each contribution to a thin row is audited with certainty. Among so few the rule's median is whoever
        // lies.
        for (_, commit) in row_of.iter().zip(commits.iter_mut()).filter(|(row, _)| thin.contains(**row)) {
            commit.iter_mut().for_each(|commit| commit.audit_ppm = ALWAYS);
        }
        let step = |(row, frozen): &(Row, FrozenRow)| {
            Some(RowStep { row: *row, round: frozen.step(view.round(), held)? })
        };
        let steps = all.iter().filter_map(step).collect();
        let held = all.iter().filter(|(_, frozen)| frozen.is_held(held)).map(|(row, _)| *row).collect();
        RowPlan { held, steps }
    }

    /// The round is over: what was applied waits no longer, what was not begins to wait, and what has waited for `lag`
    /// rounds is left out (ROW-6).
    pub(super) fn apply_outcome(&mut self, view: &RoundView, lag: u32) {
        let round = view.round();
        let steps: Vec<RowStep> = view.row_steps().to_vec();
        let waits = |row: &Row| {
            !steps.contains(&RowStep { row: *row, round }) && view.authors_in(*row).next().is_some()
        };
        let fresh: Vec<Row> = (0..view.state().rows()).map(Row).filter(waits).collect();
        for RowStep { row, round: of } in steps {
            if let Some(rounds) = self.rounds.get_mut(&row) {
                // Such a step may have moved the row's exponents, which what waits is in units of.
                rounds.retain(|waiting| of != round && *waiting != of);
            }
        }
        for row in fresh {
            self.rounds.entry(row).or_default().push(round);
        }
        self.rounds
            .values_mut()
            .for_each(|rounds| rounds.retain(|waiting| waiting.0.saturating_add(lag) > round.0));
        self.rounds.retain(|_, rounds| !rounds.is_empty());
    }

    /// Whether the update of some row of a round waits.
    pub(super) fn waits(&self, round: Round) -> bool {
        self.rounds.values().any(|rounds| rounds.contains(&round))
    }
}

/// Whether an update that waits may be applied now.
fn is_ripe(roster: &Roster, rounds: &Rounds, round: Round, row: Row) -> bool {
    // ROW-5: nobody is banned who is the author of a contribution that counts in it, or has signed a result of it; where
    // the row was held, a verifier that is not banned has been given credit for each of these contributions.
    let Some(view) = rounds.round(round) else { return false };
    let passed = |member: &MemberId| !view.is_held(row) || view.has_passed(member, |id| roster.is_banned(id));
    view.authors_in(row).all(|member| !roster.is_banned(&member) && passed(&member))
        && view.signers_in(row).all(|member| !roster.is_banned(&member))
}

#[cfg(test)]
mod tests;
