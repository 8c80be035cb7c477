//! Which records take a round from one phase to the next.

use super::view::{Opening, SealedResults};
use super::{Ledger, Member, RoundView, Stage, Standing, WeightedCommit};
use crate::assign::{self, Seating};
use crate::bug::OrBug;
use crate::error::{Reject, require};
use crate::ids::{Digest, MemberId, Part, Round, Row};
use crate::messages::record::{Freeze, Inputs, Late, Outcome, Reassign, Record, Seat};
use crate::messages::round::Route;
use crate::messages::round::{Bitmap, Commit, Echo, PartResult};
use crate::sign::{Signed, Verified};
use crate::state::StateRoots;

impl Ledger {
    /// The round that a record opens with these seats.
    pub(super) fn opened_with(&self, round: Round, seats: &[Seat], base: StateRoots) -> RoundView {
        let seed = assign::round_seed(self.run(), round, &base.root());
        // ASSIGN-1: the root of the newest state is in it, so that nobody knows who will reduce what before the seats are settled.
        let parts_seed = assign::round_seed(self.run(), round, &self.state().root());
        let aggregators = self.roster.aggregators(seats);
        let rows: Vec<Row> = seats.iter().map(|seat| seat.row).collect();
        let open = rows.iter().copied().collect();
        let route = (self.rows() > 1).then_some(Route { row: Row(0), open });
        let seating = Seating {
            layout: self.layout(),
            planes: self.manifest().planes_in(round),
            seed: &parts_seed,
            rows: &rows,
            route: route.as_ref(),
            aggregators: &aggregators,
        };
        let parts = assign::parts(&seating);
        // ASSIGN-9: the second aggregators of a run that has two.
        let seconds = match self.manifest().aggregation.replicas {
            2 => assign::seconds(&seating, &parts),
            _ => vec![None; parts.len()],
        };
        RoundView::new(Opening {
            round,
            steward: self.manifest().steward,
            head: self.head(),
            state: self.state().clone(),
            base,
            seed,
            parts_seed,
            seats: seats.to_vec(),
            aggregators,
            parts,
            seconds,
        })
    }

    /// ROUND-29: the next round as it will be if nothing changes the seats until then, in a run with a delay whose round under way
    /// is frozen: what to compute while its values travel. Its head is not known yet.
    pub fn foreseen(&self) -> Option<RoundView> {
        let view = self.current().filter(|_| self.manifest().delay > 0)?;
        let travels = matches!(self.stage(), Stage::Exchanging | Stage::Reducing);
        let goes_on = travels && !self.ends_with(view.round());
        goes_on.then(|| self.opened_with(view.round().next(), &self.derived_seats(), view.state().clone()))
    }

    /// COMMIT-3: checks a commitment for the round being computed, field by field.
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_commit(&self, signed: &Signed<Commit>) -> Result<Verified<Commit>, Reject> {
        let commit = signed.verify(self.run())?;
        let view = self.current().ok_or(Reject::Stale("no round is open"))?;
        // A late commitment is nobody's fault: it is stale, not against a rule.
        if commit.round != view.round() || self.stage() != Stage::Computing {
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
        require(commit.profile == self.manifest().profile, "a commitment names the run's profile")?;
        Ok(commit)
    }

    /// The round that the record at hand goes on with, which was looked at when the record was checked.
    #[track_caller]
    fn newest_round(&mut self) -> Option<&mut RoundView> {
        self.rounds.back_mut().or_bug("an open round")
    }

    /// STAND-3: weight and rate of audits are fixed when a contribution is frozen.
    fn commitment(&self, commit: &Verified<Commit>) -> WeightedCommit {
        let author = commit.author();
        let member = self.member(&author);
        // What was committed to before a silence or a ban counts nowhere either.
        let out = |member: &Member| matches!(member.standing, Standing::Silent(_) | Standing::Banned);
        let late = self.current().is_some_and(|view| view.late().contains(commit.slot));
        let weighing = member.filter(|member| !late && !out(member));
        WeightedCommit {
            commit: (**commit).clone(),
            author,
            weight: weighing.map_or(0, |member| self.weight(member, commit.leaves)),
            audit_ppm: member.map_or(0, |member| self.audit_ppm(member)),
        }
    }

    /// AUDIT-27: who is late is the steward's word, which the round's Freeze goes by. A follower checks that it can be true.
    pub(super) fn late(&mut self, late: &Late) -> Result<(), Reject> {
        require(self.stage() == Stage::Computing, "members are late in a round that is computed")?;
        let view = self.current().ok_or(Reject::Rule("members are late in an open round"))?;
        require(late.round == view.round(), "the late are named with the round")?;
        // Once: a member must not be late by one record and in time by the next.
        let once = view.late().is_empty() && !late.slots.is_empty();
        require(once, "a round's late members are named once, if there are any")?;
        let may_be = |slot| view.member_at(slot).is_some_and(|member| self.may_be_late(&member));
        require(
            late.slots.slots().all(may_be),
            "only members with a seat are late, and only where an audit may have waited for them",
        )?;
        self.newest_round().into_iter().for_each(|view| view.late_with(late.slots));
        Ok(())
    }

    /// Members that are late in the open round and were not in the one before it.
    pub fn newly_late(&self) -> Vec<MemberId> {
        let mut newest = self.rounds().rev();
        let (Some(view), before) = (newest.next(), newest.next()) else { return Vec::new() };
        let late = view.late().slots().filter_map(|slot| view.member_at(slot));
        let was = |member: &MemberId| {
            before.is_some_and(|view| view.slot_of(member).is_some_and(|slot| view.late().contains(slot)))
        };
        late.filter(|member| !was(member)).collect()
    }

    // LEDGER-7
    pub(super) fn freeze(
        &mut self,
        freeze: &Freeze,
        record: &Signed<Record>,
        head: Digest,
    ) -> Result<(), Reject> {
        require(self.stage() == Stage::Computing, "a freeze follows an open round")?;
        let view = self.current().ok_or(Reject::Rule("a freeze follows an open round"))?;
        require(
            freeze.round == view.round() && freeze.state == view.state().root(),
            "a freeze names its round and state",
        )?;
        let mut commits = vec![None; view.seats().len()];
        let mut verified = Vec::new();
        let mut last = None;
        for signed in &freeze.commits {
            let commit = self.check_commit(signed)?;
            // One order only: R_t is the hash of this record, and the steward must not try orders until it
            // suits.
            require(last < Some(commit.slot), "commitments are in order of slots, one each")?;
            last = Some(commit.slot);
            if let Some(seat) = commits.get_mut(commit.slot.index()) {
                *seat = Some(self.commitment(&commit));
            }
            verified.push(commit);
        }
        let rows = self.plan_rows(view, &mut commits);
        let seats = view.seats().to_vec();
        // Fixed here, before anybody knows who inspects what: a verifier that is admitted later was not drawn.
        let inspectors = self.roster.verifiers_of(view.round());
        // Only now: everything above may still refuse the record, which then changes nothing.
        self.roster.apply_freeze(freeze.round, &seats, &verified, self.chain.height());
        self.chain.apply_freeze();
        if let Some(view) = self.newest_round() {
            view.freeze_with(record, head, commits, rows, inspectors);
        }
        Ok(())
    }

    // LEDGER-8
    pub(super) fn inputs(&mut self, inputs: &Inputs, record: &Signed<Record>) -> Result<(), Reject> {
        require(self.stage() == Stage::Exchanging, "inputs are sealed once for each attempt")?;
        let view = self.current().ok_or(Reject::Rule("inputs follow a freeze"))?;
        require(inputs.round == view.round(), "inputs name their round")?;
        let parts: Vec<Part> = match inputs.attempt {
            0 => (0..view.parts().len() as u16).map(Part).collect(),
            _ => view.reassigned().collect(),
        };
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
        )?;
        self.chain.apply_inputs();
        if !second {
            // At the second attempt only some parts are listed: to be missing there tells nothing.
            self.miss_uncounted(&inputs.parts);
        }
        if let Some(view) = self.newest_round() {
            view.add_inputs(record, parts.into_iter().zip(&inputs.parts));
        }
        Ok(())
    }

    // LEDGER-9
    pub(super) fn reassign(&mut self, reassign: &Reassign) -> Result<(), Reject> {
        require(self.stage() == Stage::Reducing, "parts are reassigned after their inputs were sealed")?;
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
        self.chain.apply_reassign();
        if let Some(view) = self.newest_round() {
            view.reassign(reassign);
        }
        Ok(())
    }

    /// Checks a result for the round being reduced: by one of the part's aggregators, over the sealed inputs.
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_result(&self, signed: &Signed<PartResult>) -> Result<Verified<PartResult>, Reject> {
        let result = signed.verify(self.run())?;
        let view = self.current().ok_or(Reject::Stale("no round is open"))?;
        if result.round != view.round() || self.stage() != Stage::Reducing {
            return Err(Reject::Stale("the result is for another round"));
        }
        let attempt = view.attempt(result.part).ok_or(Reject::Rule("a result names a part"))?;
        if !view.aggregating(result.part).any(|member| member == result.author()) {
            return Err(Reject::NotEntitled("reduce this part"));
        }
        require(result.attempt == attempt, "a result names its attempt")?;
        // Without R_t a second Freeze and a colluding sender could make an honest result look wrong.
        require(view.freeze_digest() == Some(result.freeze), "a result names the freeze")?;
        let sealed = view.inputs().get(result.part.index());
        // An aggregator that could choose its inputs could leave out whom it likes.
        let sealed = sealed.is_some_and(|inputs| *inputs == result.inputs && !inputs.is_empty());
        require(sealed, "a result is over exactly the sealed inputs")?;
        Ok(result)
    }

    /// Checks an echo of the current round's freeze.
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_echo(&self, signed: &Signed<Echo>) -> Result<Verified<Echo>, Reject> {
        let echo = signed.verify(self.run())?;
        let view = self.current().ok_or(Reject::Stale("no round is open"))?;
        if echo.round != view.round() || Some(echo.freeze) != view.freeze_digest() {
            return Err(Reject::Stale("the echo is of another freeze"));
        }
        // Others' echoes would only fill the record.
        if view.slot_of(&echo.author()).is_none() {
            return Err(Reject::NotEntitled("echo: it has no seat"));
        }
        Ok(echo)
    }

    pub(super) fn outcome(&mut self, outcome: &Outcome, head: Digest) -> Result<(), Reject> {
        let view = self.current().ok_or(Reject::Rule("an outcome ends a round"))?;
        let reduced =
            // Where nobody can reduce there are no parts, and no inputs to wait for.
            self.stage() == Stage::Reducing || (self.stage() == Stage::Exchanging && view.parts().is_empty());
        require(reduced, "an outcome follows sealed inputs")?;
        require(outcome.round == view.round(), "an outcome names its round")?;
        require(outcome.results.len() == view.parts().len(), "an outcome holds one result for each part")?;
        let mut results = Vec::new();
        for (part, signed) in outcome.results.iter().enumerate() {
            let result = signed.as_ref().map(|signed| self.check_result(signed)).transpose()?;
            // The place says which part it is: one out of place would be applied to other blocks.
            let fits = result.as_ref().is_none_or(|result| result.part.index() == part);
            require(fits, "results are in order of parts")?;
            results.push(result.map(Verified::into_inner));
        }
        let seconds = self.check_seconds(outcome)?;
        let echoed = self.check_echoes(view, outcome)?;
        let heard = view.unheard(|member| echoed.contains(member)).is_empty();
        self.check_credits(&outcome.credits)?;
        // The root needs arithmetic and is checked by the replica (STATE-5); the step does not.
        let follows = self.follows(&outcome.state);
        require(follows, "an outcome applies one update to the trunk and to the rows that it names")?;
        // ROW-6: settled by the Freeze, so that nobody chooses what is applied.
        let steps = *outcome.steps == *view.row_steps();
        require(steps, "an outcome names the rows that take a step")?;
        let (dealt, moved) = (self.dealt(self.next_rows()), self.moved());
        let next_round = view.round().next();
        let last = self.ends_with(view.round());
        // Derived before the outcome changes anything: everybody computes these from the ledger before it.
        let failed = self.failed_at(outcome);
        let seats = self.seats_after(outcome);
        require(*outcome.seats == *seats, "the seats follow from the ledger")?;
        let stage = match (last, seats.is_empty()) {
            (true, _) => Stage::Auditing,
            (false, true) => Stage::Gathering,
            (false, false) => Stage::Computing,
        };
        self.chain.apply_outcome(&outcome.state, next_round, stage);
        // ROW-1: by a record that opens a round. Where nobody has a seat, the Begin that ends the gathering deals.
        if !seats.is_empty() {
            self.deal(&dealt);
        }
        if !last {
            self.move_to(moved);
        }
        if let Some(view) = self.newest_round() {
            let results = SealedResults { said: results, signed: outcome.results.to_vec(), seconds };
            // AUDIT-1: whoever counts has echoed; a round that counts nobody takes two thirds.
            let echoed = view.counts_somebody() || heard;
            view.end(results, echoed, head);
        }
        self.wait_on(outcome.round);
        // After the seats are checked, so that these follow from the ledger before this record.
        self.add_credits(&outcome.credits);
        self.roster.apply_next_round();
        // Last, because a member may be forgiven only once the round says whether it counted.
        self.judge_round(&failed);
        Ok(())
    }

    /// Checks the results of the parts' other aggregators, and gives them with their parts.
    fn check_seconds(&self, outcome: &Outcome) -> Result<Vec<(Part, Signed<PartResult>)>, Reject> {
        let mut seconds: Vec<(Part, Signed<PartResult>)> = Vec::new();
        for signed in &outcome.seconds {
            let second = self.check_result(signed)?;
            // Both signatures are sealed: otherwise the second of two liars would go free.
            let first = outcome.results.get(second.part.index()).and_then(Option::as_ref);
            let first =
                first.ok_or(Reject::Rule("a second result is beside a first one"))?.verify(self.run())?;
            require(
                first.author() != second.author() && *first == *second,
                "a second result is by the other aggregator and says the same",
            )?;
            let last = seconds.last().map(|(part, _)| *part);
            // One each: a part has two aggregators at most.
            require(last < Some(second.part), "second results are in order of parts, one each")?;
            seconds.push((second.part, signed.clone()));
        }
        Ok(seconds)
    }

    /// Checks the echoes, and gives their authors.
    fn check_echoes(&self, view: &RoundView, outcome: &Outcome) -> Result<Vec<MemberId>, Reject> {
        let mut authors = Vec::new();
        for signed in &outcome.echoes {
            authors.push(self.check_echo(signed)?.author());
        }
        require(
            authors.is_sorted_by(|a, b| view.slot_of(a) < view.slot_of(b)),
            "echoes are in order of slots, one each",
        )?;
        // LEDGER-10: a round that counts somebody can be audited, whoever keeps silent.
        let has_echoed = |slot| view.member_at(slot).is_some_and(|member| authors.contains(&member));
        let mut counted = view.inputs().iter().flat_map(Bitmap::slots);
        require(counted.all(has_echoed), "an outcome holds the echo of every slot that its inputs count")?;
        Ok(authors)
    }

    /// Whether the outcome of this round, the open one, is the run's last: with it as many updates are applied as there
    /// are rounds to train, or no further round may be opened.
    pub fn ends_with(&self, round: Round) -> bool {
        self.chain.ends_with(round)
    }
}
