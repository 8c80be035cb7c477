//! Updates of rows that few train: they wait until an inspector has passed what they are made of.

use std::collections::BTreeMap;

use super::view::RowPlan;
use super::{FrozenRow, Ledger, RoundView, WeightedCommit};
use crate::bug::OrBug;
use crate::ids::{MemberId, Round, Row, RowSet};
use crate::manifest::{Family, Mixture};
use crate::messages::record::RowStep;

/// The rate of audits with certainty, in parts per million.
const ALWAYS: u32 = 1_000_000;

/// Rounds whose updates of a row were not applied yet, oldest first.
pub(super) type WaitingUpdates = BTreeMap<Row, Vec<Round>>;

impl Ledger {
    /// What the commitments of the open round settle about its rows, and what they make of the rates of audits.
    pub(super) fn plan_rows(&self, view: &RoundView, commits: &mut [Option<WeightedCommit>]) -> RowPlan {
        let Family::Mixture(Mixture { few, held, .. }) = self.manifest().model.family else {
            return RowPlan::default();
        };
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
            let waiting = self.waiting.get(&row).into_iter().flatten();
            FrozenRow {
                seated: own().next().is_some(),
                weighted: own().filter(|(_, commit)| weighs(commit)).count() as u16,
                ripe: waiting.copied().find(|round| self.is_ripe(*round, row)),
            }
        };
        let rows: Vec<(Row, FrozenRow)> = (0..rows).map(Row).map(|row| (row, frozen(row))).collect();
        let thin: RowSet =
            rows.iter().filter(|(_, frozen)| frozen.is_thin(few)).map(|(row, _)| *row).collect();
        // STAND-10: each contribution to a thin row is audited with certainty. Among so few the rule's median is whoever
        // lies.
        for (_, commit) in row_of.iter().zip(commits.iter_mut()).filter(|(row, _)| thin.contains(**row)) {
            commit.iter_mut().for_each(|commit| commit.audit_ppm = ALWAYS);
        }
        let step = |(row, frozen): &(Row, FrozenRow)| {
            Some(RowStep { row: *row, round: frozen.step(view.round(), held)? })
        };
        let steps = rows.iter().filter_map(step).collect();
        let held = rows.iter().filter(|(_, frozen)| frozen.is_held(held)).map(|(row, _)| *row).collect();
        RowPlan { held, steps }
    }

    /// Whether an update that waits may be applied now.
    fn is_ripe(&self, round: Round, row: Row) -> bool {
        // ROW-5: nobody is banned who is the author of a contribution that counts in it, or has signed a result of it; where
        // the row was held, a verifier that is not banned has been given credit for each of these contributions.
        let Some(view) = self.round(round) else { return false };
        let passed = |member: &MemberId| !view.is_held(row) || self.is_credited(round, member);
        view.authors_in(row).all(|member| !self.is_banned(&member) && passed(&member))
            && view.signers_in(row).all(|member| !self.is_banned(&member))
    }

    /// The round is over: what was applied waits no longer, what was not begins to wait, and what has waited for `lag`
    /// rounds is left out (ROW-6).
    pub(super) fn wait_on(&mut self, round: Round) {
        let lag = self.manifest().model.lag();
        let Some(view) = self.round(round).or_bug("the round that is over") else { return };
        let steps: Vec<RowStep> = view.row_steps().to_vec();
        let waits = |row: &Row| {
            !steps.contains(&RowStep { row: *row, round }) && view.authors_in(*row).next().is_some()
        };
        let fresh: Vec<Row> = (0..view.state().rows()).map(Row).filter(waits).collect();
        for RowStep { row, round: of } in steps {
            if let Some(rounds) = self.waiting.get_mut(&row) {
                // Such a step may have moved the row's exponents, which what waits is in units of.
                rounds.retain(|waiting| of != round && *waiting != of);
            }
        }
        for row in fresh {
            self.waiting.entry(row).or_default().push(round);
        }
        self.waiting
            .values_mut()
            .for_each(|rounds| rounds.retain(|waiting| waiting.0.saturating_add(lag) > round.0));
        self.waiting.retain(|_, rounds| !rounds.is_empty());
    }

    /// Whether the update of some row of a round waits.
    pub fn waits(&self, round: Round) -> bool {
        self.waiting.values().any(|rounds| rounds.contains(&round))
    }
}

#[cfg(test)]
mod tests;
