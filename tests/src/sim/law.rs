//! Conservation of cases (AUDIT-26), checked after everything that happens: a case is closed by what the ledger seals, and
//! by nothing else. And no round is spent while a sanction could lose what it needs (ROLLBACK-5).

use std::collections::{BTreeMap, BTreeSet};

use muster_core::audit::docket::{Docket, OpenCase, WaitsFor};
use muster_core::ids::{MemberId, Round};
use muster_core::ledger::{Ledger, RoundView, Stage, Standing};
use muster_core::limits;
use muster_core::messages::record::{Body, Freeze, Record, RowStep};

/// Round and author of a contribution.
type Contribution = (Round, MemberId);

/// The cases that are open, and those that have passed and whose credit is not sealed yet.
#[derive(Default)]
pub(super) struct Law {
    /// With their verifiers.
    open: BTreeMap<Contribution, MemberId>,
    uncredited: BTreeSet<Contribution>,
    credited: BTreeSet<Contribution>,
    /// When each case that is open was first seen so, and which round was next then; coins of a round together.
    since: BTreeMap<(Round, Option<MemberId>), (u64, Round)>,
    /// Convicts whose pasts are being measured, with the first round of each that a Rewind reached when that began.
    measuring: BTreeMap<MemberId, Round>,
    /// Audits in which it is the member's turn: their verifiers, and which round was next when the turn began.
    waiting: BTreeMap<Contribution, (MemberId, Round)>,
    /// The case that was open for the most rounds, and the one for the longest time.
    longest: Longest,
}

/// How long cases were open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Longest {
    /// Rounds that began meanwhile, at most.
    pub rounds: u32,
    /// Virtual milliseconds, at most.
    pub time: u64,
}

impl Longest {
    /// The longer of each.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { rounds: self.rounds.max(other.rounds), time: self.time.max(other.time) }
    }
}

impl Law {
    /// How long cases were open.
    pub(super) fn longest(&self) -> Longest {
        self.longest
    }

    /// The past of a convict begins to be measured.
    pub(super) fn measures(&mut self, convict: MemberId, ledger: &Ledger) {
        let counted = |view: &&RoundView| view.slot_of(&convict).is_some_and(|slot| view.counted(slot));
        let within = ledger.rounds().filter(|view| ledger.can_rewind_to(view.round()));
        let first = within.filter(counted).map(RoundView::round).next();
        self.measuring.extend(first.map(|first| (convict, first)));
    }

    /// The past of a convict is measured.
    pub(super) fn measured(&mut self, convict: &MemberId) {
        self.measuring.remove(convict);
    }

    /// The steward's process was started again: measurements are over, and the turns of members begin anew.
    pub(super) fn restarted(&mut self) {
        self.measuring.clear();
        self.waiting.clear();
    }

    /// Takes in a sealed record, the ledger before it and the docket by which it was sealed.
    ///
    /// # Errors
    /// A step of a row that had to wait, a round that had to, or a member that counts though audits have waited for it, in
    /// words.
    pub(super) fn sealed(&mut self, record: &Record, ledger: &Ledger, docket: &Docket) -> Result<(), String> {
        if let Body::Freeze(freeze) = &record.body {
            self.spent(freeze.round, ledger)?;
            self.froze(freeze, ledger, docket)?;
        }
        if let Body::Outcome(outcome) = &record.body {
            if ledger.manifest().model.rows() > 1 {
                outcome.steps.iter().try_for_each(|step| self.took_step(ledger, outcome.round, step))?;
            }
            for credit in &outcome.credits {
                self.uncredited.remove(&(credit.round, credit.member));
                self.credited.insert((credit.round, credit.member));
            }
        }
        Ok(())
    }

    /// ROLLBACK-5: no round is spent with which a past that is being measured would leave the reach of a Rewind.
    fn spent(&self, round: Round, ledger: &Ledger) -> Result<(), String> {
        let lost = |first: &Round| ledger.can_rewind_to(*first) && ledger.is_last_chance_for(*first);
        match self.measuring.iter().find(|(_, first)| lost(first)) {
            Some((convict, first)) => Err(format!(
                "round {round} is frozen while the past of {convict} is measured, and takes round {first} out of reach"
            )),
            None => Ok(()),
        }
    }

    /// AUDIT-27: nothing of a member counts once an audit has waited for it while so many rounds began.
    fn froze(&self, freeze: &Freeze, ledger: &Ledger, docket: &Docket) -> Result<(), String> {
        // The Freeze may have waited for the answer, and follow from it at once.
        let waits = |name: &Contribution| {
            let of_it = |case: &OpenCase| (case.round, case.target) == (name.0, Some(name.1));
            docket.open_cases(ledger).any(|case| of_it(&case) && case.waits_for == WaitsFor::Member)
        };
        let latest = |author: MemberId| {
            let of_it = self.waiting.iter().filter(|(name, _)| name.1 == author && waits(name));
            of_it.map(|((round, _), (_, since))| (*since, *round)).min()
        };
        for signed in &freeze.commits {
            let commit = signed.verify(ledger.run()).map_err(|reject| reject.to_string())?;
            let Some((since, round)) = latest(commit.author()) else { continue };
            let late = ledger.current().is_some_and(|view| view.late().contains(commit.slot));
            if !late && freeze.round.0 >= since.0 + limits::LATE_ROUNDS {
                let (author, now) = (commit.author(), freeze.round);
                return Err(format!(
                    "what {author} contributes to round {now} counts, and the audit of its round {round} has waited \
                     for it since round {since} was next"
                ));
            }
        }
        Ok(())
    }

    /// ROW-5 and ROW-6: what a held row applies has passed an audit, and nobody banned has a part in what has waited.
    fn took_step(&self, ledger: &Ledger, now: Round, step: &RowStep) -> Result<(), String> {
        let name = format!("row {} takes the step of round {} in round {now}", step.row, step.round);
        let view = ledger.round(step.round).ok_or_else(|| format!("{name}, which is forgotten"))?;
        if step.round == now {
            return if view.is_held(step.row) { Err(format!("{name}, and is held")) } else { Ok(()) };
        }
        for author in view.authors_in(step.row) {
            if view.is_held(step.row) && !self.credited.contains(&(step.round, author)) {
                return Err(format!("{name}, and nobody has passed what {author} contributed"));
            }
        }
        Ok(())
    }

    /// Compares what is open with what was.
    ///
    /// # Errors
    /// The case that was lost, in words.
    pub(super) fn check(&mut self, now: u64, ledger: &Ledger, docket: &Docket) -> Result<(), String> {
        // What a verifier has passed that was banned since is no pass, and is audited again.
        let stands = |(round, member): &Contribution| {
            ledger.round(*round).is_none() || docket.has_passed(ledger, *round, member)
        };
        self.uncredited.retain(stands);
        let (mut open, before) = (BTreeMap::new(), std::mem::take(&mut self.since));
        let turns = std::mem::take(&mut self.waiting);
        for case in docket.open_cases(ledger) {
            self.measure(now, ledger, &case, &before);
            self.wait(ledger, &case, &turns);
            let contribution = case.target.map(|target| (case.round, target));
            open.extend(contribution.map(|contribution| (contribution, case.verifier)));
        }
        // AUDIT-26: no more rounds begin while a case is open.
        let (rounds, most) = (self.longest.rounds, ledger.audit_window() + 1);
        if rounds > most {
            return Err(format!("{rounds} rounds began while a case was open, {most} may"));
        }
        for (contribution, verifier) in std::mem::replace(&mut self.open, open) {
            if !self.open.contains_key(&contribution) {
                self.closed(ledger, docket, contribution, &verifier)?;
            }
        }
        if ledger.stage() == Stage::Closed && !self.open.is_empty() {
            return Err(format!("the run is closed, and {} cases are open", self.open.len()));
        }
        Ok(())
    }

    fn measure(
        &mut self,
        now: u64,
        ledger: &Ledger,
        case: &OpenCase,
        before: &BTreeMap<(Round, Option<MemberId>), (u64, Round)>,
    ) {
        let (name, next) = ((case.round, case.target), ledger.next_round());
        let (since, first) = before.get(&name).copied().unwrap_or((now, next));
        self.since.insert(name, (since, first));
        let rounds = next.0.saturating_sub(first.0);
        self.longest = self.longest.or(Longest { rounds, time: now - since });
    }

    /// Notes since when an audit has waited for its member.
    fn wait(&mut self, ledger: &Ledger, case: &OpenCase, before: &BTreeMap<Contribution, (MemberId, Round)>) {
        let (Some(target), WaitsFor::Member) = (case.target, case.waits_for) else { return };
        let name = (case.round, target);
        let known = before.get(&name).filter(|(verifier, _)| *verifier == case.verifier);
        let since = known.map_or(ledger.next_round(), |(_, since)| *since);
        self.waiting.insert(name, (case.verifier, since));
    }

    /// What closed a case must be sealed, or be about to be.
    fn closed(
        &mut self,
        ledger: &Ledger,
        docket: &Docket,
        contribution: Contribution,
        verifier: &MemberId,
    ) -> Result<(), String> {
        let (round, target) = contribution;
        if docket.has_passed(ledger, round, &target) {
            // After the last outcome a pass is sealed by the end of the run, which no open case allows.
            let rounds_go_on = !matches!(ledger.stage(), Stage::Auditing | Stage::Closed);
            if rounds_go_on && !self.credited.contains(&(round, target)) {
                self.uncredited.insert((round, target));
            }
            return Ok(());
        }
        let standing = |member: &MemberId| ledger.member(member).map(|member| member.standing);
        let convicted = standing(&target) == Some(Standing::Banned);
        // It is idle, banned or gone; or it was idle, and is back for other rounds.
        let inspects = ledger.round(round).is_some_and(|view| view.inspectors().contains(verifier));
        if convicted
            || standing(verifier) != Some(Standing::Active)
            || !inspects && ledger.round(round).is_some()
        {
            return Ok(());
        }
        Err(format!("the case of {target} in round {round} by {verifier} vanished"))
    }

    /// Contributions that have passed, and whose credit was never sealed.
    pub(super) fn uncredited(&self) -> impl Iterator<Item = &Contribution> {
        self.uncredited.iter()
    }
}
