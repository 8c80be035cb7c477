//! Which records take a round from one phase to the next, up to its outcome.

use super::Rounds;
use crate::error::{Reject, require};
use crate::ids::{Digest, MemberId, Part, Slot};
use crate::ledger::chain::{ChainTip, Stage};
use crate::ledger::member::{Member, Standing};
use crate::ledger::roster::Roster;
use crate::ledger::view::{RoundView, RowPlan, WeightedCommit};
use crate::messages::record::{Freeze, Inputs, Late, Reassign, Record};
use crate::messages::round::{Bitmap, Commit};
use crate::sign::{Signed, Verified};

/// What a Freeze holds, checked.
pub(in crate::ledger) struct FrozenCommits {
    /// By slot, with their weights.
    pub(in crate::ledger) by_slot: Vec<Option<WeightedCommit>>,
    /// As they were signed.
    pub(in crate::ledger) verified: Vec<Verified<Commit>>,
}

impl Rounds {
    /// COMMIT-3: checks a commitment for the round being computed, field by field.
    pub(in crate::ledger) fn check_commit(
        &self,
        chain: &ChainTip,
        signed: &Signed<Commit>,
    ) -> Result<Verified<Commit>, Reject> {
        let commit = signed.verify(self.terms.run())?;
        let view = self.current().ok_or(Reject::Stale("no round is open"))?;
        // A late commitment is nobody's fault: it is stale, not against a rule.
        if commit.round != view.round() || chain.stage() != Stage::Computing {
            return Err(Reject::Stale("the commitment is for another round"));
        }
        let seat = view.seats().get(commit.slot.index());
        // The slot is in the commitment: a seat's leaves follow from it, and nobody computes another one's.
        let seat = seat.filter(|seat| seat.member == commit.author());
        let seat = seat.ok_or(Reject::NotEntitled("commit for this slot"))?;
        require(
            // A commitment of another branch of the ledger, or on another state, would be judged against the
            // wrong leaves.
            commit.head == view.head() && commit.state == view.base().root(),
            "a commitment names the round's head and state",
        )?;
        require(usize::from(commit.seats) == view.seats().len(), "a commitment names the round's seats")?;
        // COMMIT-3: none where the state has one row, else the author's row and the set of rows with a seat. A judge knows
        // the leaves' windows and weights from what was signed.
        require(commit.route == view.route(commit.slot), "a commitment names its row")?;
        // A commitment to no leaf cannot be audited, and beyond the quota one member could outweigh the others.
        require((1..=seat.quota).contains(&commit.leaves), "a commitment sums 1 to quota leaves")?;
        require(commit.profile == self.terms.manifest().profile, "a commitment names the run's profile")?;
        Ok(commit)
    }

    /// STAND-3: weight and rate of audits are fixed when a contribution is frozen.
    fn commitment(&self, roster: &Roster, commit: &Verified<Commit>) -> WeightedCommit {
        let author = commit.author();
        let member = roster.member(&author);
        // What was committed to before a silence or a ban counts nowhere either.
        let out = |member: &Member| matches!(member.standing, Standing::Silent(_) | Standing::Banned);
        let late = self.current().is_some_and(|view| view.late().contains(commit.slot));
        let weighing = member.filter(|member| !late && !out(member));
        WeightedCommit {
            commit: (**commit).clone(),
            author,
            weight: weighing.map_or(0, |member| roster.weight(member, commit.leaves)),
            audit_ppm: member.map_or(0, |member| roster.audit_ppm(member)),
        }
    }

    /// AUDIT-27: who is late is the steward's word, which the round's Freeze goes by. A follower checks that it can be true.
    pub(in crate::ledger) fn check_late(
        &self,
        chain: &ChainTip,
        late: &Late,
        may_be_late: impl Fn(&MemberId) -> bool,
    ) -> Result<(), Reject> {
        require(chain.stage() == Stage::Computing, "members are late in a round that is computed")?;
        let view = self.current().ok_or(Reject::Rule("members are late in an open round"))?;
        require(late.round == view.round(), "the late are named with the round")?;
        // Once: a member must not be late by one record and in time by the next.
        let once = view.late().is_empty() && !late.slots.is_empty();
        require(once, "a round's late members are named once, if there are any")?;
        let may_be = |slot| view.member_at(slot).is_some_and(|member| may_be_late(&member));
        require(
            late.slots.slots().all(may_be),
            "only members with a seat are late, and only where an audit may have waited for them",
        )
    }

    pub(in crate::ledger) fn apply_late(&mut self, late: &Late) {
        self.newest().into_iter().for_each(|view| view.late_with(late.slots));
    }

    // LEDGER-7
    pub(in crate::ledger) fn check_freeze(
        &self,
        chain: &ChainTip,
        roster: &Roster,
        freeze: &Freeze,
    ) -> Result<FrozenCommits, Reject> {
        require(chain.stage() == Stage::Computing, "a freeze follows an open round")?;
        let view = self.current().ok_or(Reject::Rule("a freeze follows an open round"))?;
        require(
            freeze.round == view.round() && freeze.state == view.state().root(),
            "a freeze names its round and state",
        )?;
        let mut commits = vec![None; view.seats().len()];
        let mut verified = Vec::new();
        let mut last = None;
        for signed in &freeze.commits {
            let commit = self.check_commit(chain, signed)?;
            // One order only: R_t is the hash of this record, and the steward must not try orders until it
            // suits.
            require(last < Some(commit.slot), "commitments are in order of slots, one each")?;
            last = Some(commit.slot);
            if let Some(seat) = commits.get_mut(commit.slot.index()) {
                *seat = Some(self.commitment(roster, &commit));
            }
            verified.push(commit);
        }
        Ok(FrozenCommits { by_slot: commits, verified })
    }

    /// The open round is frozen by this record, with this head after it.
    pub(in crate::ledger) fn apply_freeze(
        &mut self,
        record: &Signed<Record>,
        head: Digest,
        commits: FrozenCommits,
        rows: RowPlan,
        inspectors: Vec<MemberId>,
    ) {
        if let Some(view) = self.newest() {
            view.freeze_with(record, head, commits.by_slot, rows, inspectors);
        }
    }

    // LEDGER-8
    pub(in crate::ledger) fn check_inputs(&self, chain: &ChainTip, inputs: &Inputs) -> Result<(), Reject> {
        require(chain.stage() == Stage::Exchanging, "inputs are sealed once for each attempt")?;
        let view = self.current().ok_or(Reject::Rule("inputs follow a freeze"))?;
        require(inputs.round == view.round(), "inputs name their round")?;
        let parts = parts_of(view, inputs);
        // What was sealed before tells the attempt: the record's own word could seal one attempt twice.
        let second = !view.inputs().is_empty();
        require(inputs.attempt == u8::from(second), "inputs name their attempt")?;
        require(inputs.parts.len() == parts.len(), "inputs hold one bitmap for each part of the attempt")?;
        let counted = inputs.parts.iter().flat_map(Bitmap::slots);
        // STAND-3: a newcomer's contribution is audited, and moves nothing before its probation is over.
        let counts = |slot| view.commitment(slot).is_some_and(|commitment| commitment.weight > 0);
        require(counted.into_iter().all(counts), "only frozen contributions with weight are counted")?;
        // A contribution of another row has no such coefficients.
        let of_row =
            |(part, inputs): (&Part, &Bitmap)| inputs.slots().all(|slot| view.computes_on(slot, *part));
        require(
            parts.iter().zip(&inputs.parts).all(of_row),
            "a part counts contributions of its own row only",
        )
    }

    /// Inputs of an attempt are sealed. Gives those that they leave out, at the first attempt: at the second only some parts
    /// are listed, and to be missing there tells nothing.
    pub(in crate::ledger) fn apply_inputs(
        &mut self,
        inputs: &Inputs,
        record: &Signed<Record>,
    ) -> Vec<MemberId> {
        let Some(view) = self.newest() else { return Vec::new() };
        let first = view.inputs().is_empty();
        let missed = if first { uncounted(view, &inputs.parts) } else { Vec::new() };
        let parts = parts_of(view, inputs);
        view.add_inputs(record, parts.into_iter().zip(&inputs.parts));
        missed
    }

    // LEDGER-9
    pub(in crate::ledger) fn check_reassign(
        &self,
        chain: &ChainTip,
        reassign: &Reassign,
    ) -> Result<(), Reject> {
        require(chain.stage() == Stage::Reducing, "parts are reassigned after their inputs were sealed")?;
        let view = self.current().ok_or(Reject::Rule("parts are reassigned in a round"))?;
        require(reassign.round == view.round(), "a reassignment names its round")?;
        // A second reassignment could hold the round up for as long as there are aggregators.
        require(view.reassigned().next().is_none(), "parts are reassigned once")?;
        require(!reassign.parts.is_empty(), "a reassignment holds a part")?;
        let mut last = None;
        for moved in &reassign.parts {
            require(last < Some(moved.part), "reassigned parts are in order, one each")?;
            last = Some(moved.part);
            require(moved.part.index() < view.parts().len(), "a reassigned part exists")?;
            // Whoever has had the part had its time, the second aggregator as well.
            let had = view.aggregators_in(moved.part, 0).any(|slot| slot == moved.aggregator);
            let able = view.aggregators().contains(&moved.aggregator) && !had;
            require(able, "a part goes to another aggregator")?;
        }
        Ok(())
    }

    pub(in crate::ledger) fn apply_reassign(&mut self, reassign: &Reassign) {
        if let Some(view) = self.newest() {
            view.reassign(reassign);
        }
    }
}

/// The parts whose inputs a record holds, in order.
fn parts_of(view: &RoundView, inputs: &Inputs) -> Vec<Part> {
    match inputs.attempt {
        0 => (0..view.parts().len() as u16).map(Part).collect(),
        _ => view.reassigned().collect(),
    }
}

/// Seats with weight that have committed and are in no part, while others are in some. Any of them that is there
/// could have had itself counted by the steward (ROUND-24), whatever aggregators say.
fn uncounted(view: &RoundView, parts: &[Bitmap]) -> Vec<MemberId> {
    // Where nobody counts, it was not the members that failed.
    if parts.iter().all(Bitmap::is_empty) {
        return Vec::new();
    }
    let counted = |slot: Slot| parts.iter().any(|inputs| inputs.contains(slot));
    // Missing from some parts is no failure: two or three aggregators may refuse a victim.
    let missed = view.commitments().filter(|(slot, c)| c.weight > 0 && !counted(*slot));
    missed.map(|(_, commitment)| commitment.author).collect()
}
