//! What each verifier owes in the rounds that are remembered, and what it has done.
//!
//! A round owes a verifier's node coin, and the audits that the coin makes due. Everybody can compute this from the
//! ledger and the board; the steward's clock decides when a verifier is idle.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::coins::{Coin, selects};
use crate::ids::{MemberId, Round, Slot};
use crate::layout::Layout;
use crate::ledger::{Ledger, RoundView, Stage};
use crate::limits;

/// What a verifier has done since this docket began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rounds that it shared in and that are over.
    pub rounds: u64,
    /// Node coins that it has shown.
    pub coins: u64,
    /// Audits that were its own to do.
    pub due: u64,
    /// Audits that it has given a verdict on.
    pub done: u64,
    /// Coins and audits that it left undone.
    pub overdue: u64,
    /// Verdicts of others that it has re-executed.
    pub rechecks: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rounds, coins, due, done, overdue, rechecks } = self;
        write!(
            f,
            "{coins} of {rounds} coins shown, {done} of {due} audits done, {overdue} left undone, {rechecks} rechecks"
        )
    }
}

/// What is owed.
#[derive(Default)]
pub(super) struct DutyRoster {
    coins: BTreeMap<(Round, MemberId), Coin>,
    entries: BTreeMap<(Round, Slot), Entry>,
    /// Rounds that were counted, and whose coin is its own to show still.
    served: BTreeSet<(Round, MemberId)>,
    clocks: BTreeMap<MemberId, Clock>,
    counts: BTreeMap<MemberId, Counts>,
}

/// What a verifier has to do next in an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// Ask.
    Request,
    /// Recompute the drawn leaves and seal the results.
    Results,
    /// Judge the opened table.
    Verdict,
    /// Recompute every leaf, and say what they give.
    Recomputation,
}

impl Step {
    /// Whether leaves are recomputed for it.
    fn computes(self) -> bool {
        self != Self::Request
    }

    /// Whether every leaf may have to be recomputed for it: for a verdict, if the integers are withheld.
    fn may_take_all(self) -> bool {
        matches!(self, Self::Verdict | Self::Recomputation)
    }
}

/// A round's coin, or the next step of an audit of one of its slots; a coin comes first.
type Owed = (Round, Option<(Slot, Step)>);

/// How long a verifier has owed the same thing.
struct Clock {
    /// What it is that it owes.
    what: Owing,
    since: u64,
    /// The contributions that it had to recompute leaves of since then, done or not.
    computed: BTreeSet<Slot>,
    /// Milliseconds that it may take.
    patience: u64,
}

/// What a clock is about (DUTY-4).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owing {
    /// The oldest of all that it owes.
    One(Owed),
    /// Anything at all in this round, which holds the next ones up.
    Round(Round),
}

impl Owing {
    /// Whether the clock of one goes on for the other: that of the oldest thing in a round becomes the round's.
    fn goes_on_as(self, next: Self) -> bool {
        self == next || matches!((self, next), (Self::One((round, _)), Self::Round(held)) if round == held)
    }
}

/// What one verifier owes.
struct Debts {
    oldest: Owed,
    /// How many things it owes.
    much: u64,
    /// Contributions of the oldest round of which leaves are to be recomputed.
    computes: BTreeSet<Slot>,
}

/// Which step of an audit waits for its verifier, by round, verifier and target; none while it is the member's turn.
pub(super) type StepOf<'a> = &'a dyn Fn(Round, &MemberId, &MemberId) -> Option<Step>;

/// Whether the contribution of a member to a round has passed.
pub(super) type Passed<'a> = &'a dyn Fn(Round, &MemberId) -> bool;

/// One contribution, and whether its inspector owes an audit of it.
struct Entry {
    verifier: MemberId,
    target: MemberId,
    due: Due,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Due {
    /// Its inspector has not shown its coin.
    Unknown,
    No,
    /// It has passed by another one's word, and is not due while that stands.
    Passed,
    Yes,
    Done,
}

impl DutyRoster {
    pub(super) fn counts(&self) -> &BTreeMap<MemberId, Counts> {
        &self.counts
    }

    pub(super) fn coin(&self, round: Round, verifier: &MemberId) -> Option<&Coin> {
        self.coins.get(&(round, *verifier))
    }

    /// A verifier has shown its coin of a round.
    pub(super) fn shown(&mut self, verifier: MemberId, coin: Coin) {
        // Posts are taken again after a restart: each coin counts once.
        if self.coins.insert((coin.round(), verifier), coin).is_none() {
            self.count(verifier).coins += 1;
        }
    }

    /// A verifier has given a verdict.
    pub(super) fn judged(&mut self, verifier: MemberId, target: MemberId, key: (Round, Slot)) {
        let before = self.entries.insert(key, Entry { verifier, target, due: Due::Done });
        let counted = before.is_some_and(|entry| entry.verifier == verifier && entry.due == Due::Yes);
        let counts = self.count(verifier);
        counts.due += u64::from(!counted);
        counts.done += 1;
    }

    /// A verifier has re-executed another one's verdict.
    pub(super) fn rechecked(&mut self, verifier: MemberId) {
        self.count(verifier).rechecks += 1;
    }

    /// Takes in what the ledger has: rounds that are over, inspectors that are gone, rounds that are forgotten.
    /// `passed` says which contributions have passed already.
    pub(super) fn update(&mut self, ledger: &Ledger, passed: Passed<'_>) {
        self.forget(ledger);
        // DUTY-6: a verifier that no longer remains in a round owes nothing there when the round is forgotten.
        self.served.retain(|(round, verifier)| {
            ledger.round(*round).is_some_and(|view| view.inspectors().contains(verifier))
        });
        for view in ledger.rounds().filter(|view| view.auditable()) {
            for verifier in view.inspectors() {
                if self.served.insert((view.round(), *verifier)) {
                    self.count(*verifier).rounds += 1;
                }
            }
            for (slot, commitment) in view.commitments() {
                let done = passed(view.round(), &commitment.author);
                self.assign(ledger, view, slot, commitment.author, done);
            }
        }
    }

    fn assign(&mut self, ledger: &Ledger, view: &RoundView, slot: Slot, target: MemberId, done: bool) {
        let key = (view.round(), slot);
        let Some(verifier) = view.inspector(slot) else {
            self.entries.remove(&key);
            return;
        };
        let before = self.entries.get(&key).filter(|entry| entry.verifier == verifier).map(|entry| entry.due);
        let sure = ledger.is_due(view, slot, false);
        let stale = !ledger.is_due(view, slot, true);
        let due = match (before, self.coins.get(&(view.round(), verifier)), view.freeze_digest()) {
            // Once due it stays due until its inspector has said what it finds.
            (Some(Due::Yes | Due::Done), ..) => return,
            // Not done: if whoever has passed it is banned, it is due again (DUTY-3).
            _ if done => Due::Passed,
            _ if sure => Due::Yes,
            (Some(Due::No), ..) => return,
            _ if stale => Due::No,
            (_, Some(coin), Some(freeze)) => {
                let ppm = view.commitment(slot).map_or(0, |commitment| commitment.audit_ppm);
                if selects(coin, &freeze, &target, ppm) { Due::Yes } else { Due::No }
            }
            _ => Due::Unknown,
        };
        self.count(verifier).due += u64::from(due == Due::Yes);
        self.entries.insert(key, Entry { verifier, target, due });
    }

    fn forget(&mut self, ledger: &Ledger) {
        let Some(oldest) = ledger.rounds().next().map(RoundView::round) else { return };
        self.entries = self.entries.split_off(&(oldest, Slot(0)));
        self.served.retain(|(round, _)| *round >= oldest);
        self.coins.retain(|(round, _), _| *round >= oldest);
    }

    /// Who owes an audit of the contribution of a slot, which is due and has no verdict.
    pub(super) fn owes(&self, round: Round, slot: Slot) -> Option<MemberId> {
        let entry = self.entries.get(&(round, slot)).filter(|entry| entry.due == Due::Yes)?;
        Some(entry.verifier)
    }

    /// Who inspects the contribution of a slot, whether or not an audit is due.
    pub(super) fn inspects(&self, round: Round, slot: Slot) -> Option<MemberId> {
        self.entries.get(&(round, slot)).map(|entry| entry.verifier)
    }

    /// Verifiers of a round that have not shown their coin.
    pub(super) fn unshown<'a>(&'a self, view: &'a RoundView) -> impl Iterator<Item = MemberId> + 'a {
        let shown = |verifier: &MemberId| self.coin(view.round(), verifier).is_some();
        view.inspectors().iter().filter(move |verifier| !shown(verifier)).copied()
    }

    /// Others take over what a verifier owes: counts it as left undone.
    pub(super) fn replaced(&mut self, verifier: MemberId, much: u64) {
        self.count(verifier).overdue += much;
    }

    /// Verifiers that are idle, each with the oldest round in which it owes something and how many things it owes
    /// (DUTY-4).
    pub(super) fn idle(
        &mut self,
        now: u64,
        ledger: &Ledger,
        step: StepOf<'_>,
    ) -> Vec<(MemberId, Round, u64)> {
        let owing = self.owing(ledger, step);
        self.clocks.retain(|verifier, _| owing.contains_key(verifier));
        let mut idle = Vec::new();
        for (verifier, debts) in &owing {
            let what = debts.owing(ledger);
            let fresh = || Clock { what, since: now, computed: BTreeSet::new(), patience: 0 };
            let clock = self.clocks.entry(*verifier).or_insert_with(fresh);
            if !clock.what.goes_on_as(what) {
                *clock = fresh();
            }
            clock.what = what;
            // Kept when done: the time grows with each contribution, and does not shrink with what is finished.
            clock.computed.extend(&debts.computes);
            clock.patience = patience(ledger, what, clock.computed.len());
            if now >= clock.since.saturating_add(clock.patience) {
                // Begun anew: the ledger may refuse the Idle, and then it is not proposed again at once.
                *clock = Clock { patience: clock.patience, ..fresh() };
                idle.push((*verifier, debts.oldest.0, debts.much));
            }
        }
        idle
    }

    /// What each verifier owes now.
    fn owing(&self, ledger: &Ledger, step: StepOf<'_>) -> BTreeMap<MemberId, Debts> {
        let mut owing: BTreeMap<MemberId, Debts> = BTreeMap::new();
        let mut owe = |verifier: MemberId, owed: Owed| {
            let fresh = || Debts { oldest: owed, much: 0, computes: BTreeSet::new() };
            let debts = owing.entry(verifier).or_insert_with(fresh);
            // The oldest: whatever else is done, a verifier that never gets to it is idle.
            debts.oldest = owed.min(debts.oldest);
            debts.much += 1;
        };
        for view in ledger.rounds().filter(|view| view.auditable()) {
            self.unshown(view).for_each(|verifier| owe(verifier, (view.round(), None)));
        }
        let due = self.entries.iter().filter(|(_, entry)| entry.due == Due::Yes);
        let owed = due.filter_map(|((round, slot), entry)| {
            Some((entry.verifier, *round, *slot, step(*round, &entry.verifier, &entry.target)?))
        });
        let owed: Vec<_> = owed.collect();
        for (verifier, round, slot, step) in &owed {
            owe(*verifier, (*round, Some((*slot, *step))));
        }
        for (verifier, round, slot, _) in owed.into_iter().filter(|(.., step)| step.computes()) {
            // Only of the oldest round: more work elsewhere is no reason to be late there.
            let debts = owing.get_mut(&verifier).filter(|debts| debts.oldest.0 == round);
            debts.into_iter().for_each(|debts| _ = debts.computes.insert(slot));
        }
        owing
    }

    /// All clocks begin anew; what they are about stays.
    pub(super) fn begin_again(&mut self, now: u64) {
        self.clocks.values_mut().for_each(|clock| clock.since = now);
    }

    /// When [`DutyRoster::idle`] may next have something.
    pub(super) fn timeout(&self) -> Option<u64> {
        self.clocks.values().map(|clock| clock.since.saturating_add(clock.patience)).min()
    }

    fn count(&mut self, verifier: MemberId) -> &mut Counts {
        self.counts.entry(verifier).or_default()
    }
}

impl Debts {
    /// What its clock is about.
    fn owing(&self, ledger: &Ledger) -> Owing {
        let round = self.oldest.0;
        // A round that holds up everybody has one clock for all that is owed there: those of its steps would
        // add up.
        if ledger.is_last_call(round) { Owing::Round(round) } else { Owing::One(self.oldest) }
    }
}

/// How long a verifier waits for the integers of a contribution, in milliseconds (DUTY-14): as long as each of its holders may
/// take on a slow line, one after the other.
pub fn fetch_patience(layout: &Layout) -> u64 {
    let bytes = (layout.coefficients() as u64).saturating_mul(4);
    let transfer = bytes.saturating_mul(1_000) / limits::SLOWEST;
    limits::HOLDERS * limits::SOON.saturating_add(transfer)
}

/// How long a verifier may take, in milliseconds (DUTY-4): `audit` or, after the last round, `final_audit`; as long
/// as a member may take for a whole contribution, for each of those that it has had to compute; once more for a
/// second opinion; and once more for the job that it was at when this began.
fn patience(ledger: &Ledger, what: Owing, computed: usize) -> u64 {
    let timers = &ledger.manifest().timers;
    let after = ledger.stage() == Stage::Auditing;
    // DUTY-14: where all leaves may have to stand for the integers, these were asked for before.
    let fetched = |timer: u32| u64::from(timer).max(fetch_patience(ledger.layout()));
    let (base, whole) = match what {
        Owing::Round(_) => {
            let timer = if after { timers.final_audit } else { timers.audit };
            // A second opinion takes as long as the first, and only an audit with leaves has one, or asks for integers.
            if computed > 0 { (fetched(timer), computed + 1) } else { (u64::from(timer), 0) }
        }
        Owing::One((_, Some((_, step)))) if step.may_take_all() => (fetched(timers.audit), 2),
        // LOCAL-8: for the last segment of a chain all of it is recomputed.
        Owing::One((_, Some((_, Step::Results)))) if ledger.regime().recomputes_chains() => {
            (u64::from(timers.audit), 1)
        }
        Owing::One(_) => (u64::from(timers.audit), 0),
    };
    // DUTY-13: nobody breaks off what it computes for something else that is due meanwhile, and a member that withholds its
    // integers chooses when all of its leaves are recomputed.
    let under_way = whole as u64 + 1;
    base.saturating_add(under_way.saturating_mul(u64::from(timers.commit)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::fixture::chain::{Chain, manifest};
    use crate::manifest::Manifest;
    use crate::manifest::fixture::local;

    /// How long a step of an audit may take.
    fn of(manifest: Manifest, step: Option<Step>) -> u64 {
        let owed = Owing::One((Round(0), step.map(|step| (Slot(0), step))));
        patience(&Chain::begin_with(manifest).ledger, owed, 0)
    }

    #[test]
    fn duty_4_results_of_a_chain_may_take_as_long_as_the_chain() {
        let mut chained = manifest(3);
        local(&mut chained, 4);
        let commit = u64::from(chained.timers.commit);
        let results = |manifest| of(manifest, Some(Step::Results));
        assert_eq!(results(chained) - results(manifest(3)), commit);
    }

    #[test]
    fn duty_14_who_waits_for_integers_on_a_slow_line_is_not_idle() {
        let mut hasty = manifest(3);
        hasty.timers.audit = 1_000;
        let chain = Chain::begin_with(hasty);
        let layout = chain.ledger.layout();
        let bytes = 4 * layout.coefficients() as u64;
        let fetch = fetch_patience(layout);
        assert_eq!(fetch, 4 * (3_000 + bytes * 1_000 / (1 << 20)));
        let [audit, commit] = [1_000, u64::from(chain.ledger.manifest().timers.commit)];
        let of = |step| patience(&chain.ledger, Owing::One((Round(0), Some((Slot(0), step)))), 0);
        assert_eq!(of(Step::Verdict), fetch + 3 * commit);
        assert_eq!(of(Step::Results), audit + commit, "results need no integers");
    }

    /// A member withholds its integers in one audit and seals the table of another one while all its leaves are recomputed.
    #[test]
    fn duty_13_each_patience_includes_one_longest_job() {
        let [audit, commit] = [manifest(3).timers.audit, manifest(3).timers.commit].map(u64::from);
        let steps =
            [None, Some(Step::Request), Some(Step::Results), Some(Step::Verdict), Some(Step::Recomputation)];
        let longest = [0, 0, 0, 2, 2].map(|own| audit + (own + 1) * commit);
        assert_eq!(steps.map(|step| of(manifest(3), step)), longest);
        let chain = Chain::begin();
        let held =
            [0, 1, 3].map(|contributions| patience(&chain.ledger, Owing::Round(Round(0)), contributions));
        assert_eq!(held, [1, 3, 5].map(|jobs| audit + jobs * commit));
    }
}
