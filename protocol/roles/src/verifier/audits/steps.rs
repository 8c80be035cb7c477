//! The steps of one audit: what follows from a notice on the board, and from what was computed.

use std::sync::Arc;

use muster_core::audit::Judgement;
use muster_core::bug::OrBug;
use muster_core::coins::draw;
use muster_core::contribution::PackedContribution;
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::Digest;
use muster_core::layout::Layout;
use muster_core::ledger::Ledger;
use muster_core::messages::audit::{
    Finding, FindingKind, Recomputation, ResultsSeal, TableSeal, Verdict, Withheld, results_seal,
};
use muster_core::messages::evidence::{Evidence, Total};
use muster_core::messages::wire::Notice;
use muster_core::sign::Signed;
use muster_core::sketch::Sketch;
use tracing::{debug, info, warn};

use super::case::{Case, Doubt, Drawn, Opened, Sealed};
use super::subject::Subject;
use super::{Audits, Key, Stop, recomputation};

impl Audits {
    pub(super) fn notice(&mut self, ledger: &Ledger, notice: &Notice) {
        match notice {
            Notice::Request(signed) => self.step(&signed.digest(), |audits, case| audits.seen(case, notice)),
            Notice::Table(signed) => {
                if let Ok(table) = signed.verify(self.run) {
                    self.step(&table.request, |audits, case| audits.table(case, signed));
                }
            }
            Notice::Results(signed) => {
                if let Ok(results) = signed.verify(self.run) {
                    self.step(&results.request, |audits, case| audits.seen(case, notice));
                }
            }
            Notice::Opening(signed) => {
                if let Ok(opening) = signed.verify(self.run) {
                    self.step(&opening.request, |_, case| case.open(signed));
                }
            }
            Notice::Verdict(signed) => self.verdict(signed, notice),
            Notice::Withheld(signed) => {
                if let Ok(withheld) = signed.verify(self.run) {
                    self.step(&withheld.request, |audits, case| audits.seen(case, notice));
                }
            }
            Notice::Obtained(request) => self.step(request, |_, case| case.obtained()),
            Notice::Recomputation(signed) => self.own_recomputation(ledger, signed),
            Notice::Duty(_) | Notice::Recheck(_) | Notice::Opinion(_) => self.was_said(notice),
            Notice::Charge(_)
            | Notice::Echo(_)
            | Notice::Result(_)
            | Notice::Return(_)
            | Notice::Ready(_)
            | Notice::Leave(_) => {}
        }
    }

    /// Takes a step of the audit that this verifier began with this request. What answers another verifier's request, or one
    /// that is void (DUTY-6), is nothing to it.
    fn step(&mut self, request: &Digest, take: impl FnOnce(&mut Self, &mut Case)) {
        if let Some(key) = self.names.get(request).copied() {
            // Requests and cases are forgotten together.
            self.with_case(key, take).or_bug("a case for each request that is not forgotten");
        }
    }

    /// Does something with a case, which is looked up once and nowhere else meanwhile; none where there is no such case.
    pub(super) fn with_case<T>(
        &mut self,
        key: Key,
        take: impl FnOnce(&mut Self, &mut Case) -> T,
    ) -> Option<T> {
        let mut case = self.cases.remove(&key)?;
        let taken = take(self, &mut case);
        self.cases.insert(key, case);
        Some(taken)
    }

    /// Our own word is on the board already.
    fn seen(&mut self, case: &mut Case, notice: &Notice) {
        let key = case.subject.key();
        if self.refused.get(&key) == Some(notice) {
            self.refused.remove(&key);
        }
        case.was_told(notice);
    }

    /// Our own verdict is on the board already: of an earlier process, if the audit is not over.
    fn verdict(&mut self, signed: &Signed<Verdict>, notice: &Notice) {
        if signed.claimed_signer() != self.identity.id() {
            return;
        }
        // Others may write our name.
        if let Ok(verdict) = signed.verify(self.run) {
            self.step(&verdict.request, |audits, case| {
                audits.seen(case, notice);
                if verdict.finding == Finding::Pass {
                    case.was_passed();
                }
            });
        }
    }

    /// Our own word on all leaves of a contribution is on the board already.
    fn own_recomputation(&mut self, ledger: &Ledger, signed: &Signed<Recomputation>) {
        if signed.claimed_signer() != self.identity.id() {
            return;
        }
        let slot = |said: &Recomputation| ledger.round(said.round)?.slot_of(&said.target);
        // Others may write our name; and an earlier process may have looked at what this one has not opened, or forgotten.
        if let Ok(said) = signed.verify(self.run)
            && let Some(slot) = slot(&said)
            && let Some(case) = self.cases.get_mut(&(said.round, slot))
        {
            case.was_summed(said.finding == Finding::Pass);
        }
    }

    fn table(&mut self, case: &mut Case, signed: &Signed<TableSeal>) {
        // AUDIT-2: one table for a request. A second one would have been made knowing more.
        if !case.awaits_table() {
            return;
        }
        let Some(asked) = case.asked_or_bug() else { return };
        let (round, slot) = case.subject.key();
        let table = match asked.requested.seal(signed) {
            Ok(table) => table,
            Err(reject) => return debug!("round {round}: a table of {}: {reject}", case.subject.author),
        };
        let coin = self.coins.leaf(round, slot).or_bug("a leaf coin of a slot whose member was asked");
        let Some(coin) = coin else { return };
        let commit = &case.subject.commit;
        let (freeze, most) = (&case.subject.freeze, self.manifest.audit.leaves);
        // AUDIT-4: drawn by the seal of the table, so that the member has fixed its rows before it can know the leaves.
        let positions = draw(&coin, freeze, &table.seal(), commit.leaves, most);
        case.draw(Drawn { table, positions });
        self.seal_results(case);
    }

    /// AUDIT-4: seals the recomputed leaves, once they are there.
    pub(super) fn seal_results(&mut self, case: &mut Case) {
        // Table or leaves may still be awaited.
        let Some((Drawn { table, positions }, computed)) = case.recomputed() else { return };
        let (round, slot) = case.subject.key();
        let coin = self.coins.leaf(round, slot).or_bug("a leaf coin of a slot whose member was asked");
        let Some(coin) = coin else { return };
        let request = table.requested().name();
        // Secret as long as the coin is, which the verdict shows too.
        let salt =
            Hasher::new(Domain::RESULTS).value(&coin.value()).value(&request).value(&table.seal()).finish().0;
        let (table_name, seal) = (table.table().digest(), results_seal(&salt, computed));
        let signed = self.identity.sign(self.run, &ResultsSeal { request, table: table_name, seal });
        let Some(results) = table.answer(&signed).or_bug("own results that fit the table") else { return };
        let (positions, computed) = (positions.clone(), computed.clone());
        case.seal(Sealed { results, positions, salt, computed }, Notice::Results(signed));
    }

    /// Compares leaves and total with the opened table. Without the integers a wrong leaf convicts all the same; if there is
    /// none, the steward is told what is lacking (TOL-12).
    /// `all` says that every leaf was recomputed, and that `q` is their sum.
    pub(super) fn conclude(
        &mut self,
        case: &mut Case,
        q: Option<Arc<PackedContribution>>,
        all: bool,
    ) -> Result<(), Stop> {
        // The audit may have moved on while its integers were looked for: its author was banned, or the board is new.
        let Some(opened) = case.opened() else { return Ok(()) };
        let Some(asked) = case.asked_or_bug() else { return Ok(()) };
        let said = || asked.probe.sum(&opened.rows).0;
        // AUDIT-7: of integers that have the frozen root, whatever anybody says of their fingerprint.
        let layout = Layout::of_run(&self.manifest);
        let known = q.as_ref().and_then(|q| q.sketch(&layout, &asked.probe));
        let q = q.filter(|_| known.is_some());
        let total = known.unwrap_or_else(said);
        let (found, deviations) = case.finding(&asked.probe, opened, &total);
        let round = case.subject.commit.round;
        // TOL-12: right leaves alone say nothing of the sum, so no verdict is given on them.
        if q.is_none() && found == Finding::Pass {
            info!(
                "round {round}: the integers of {} are unavailable; the steward is told",
                case.subject.author
            );
            let withheld = self.identity.sign(self.run, &Withheld { request: asked.requested.name() });
            case.withhold(Notice::Withheld(withheld));
            return Ok(());
        }
        // Here an accomplice would lie; everything before is what the machine found.
        let finding = self.conduct.says(found);
        let Some(verdict) = self.signed_verdict(&case.subject, opened, (finding, total), all)? else {
            case.distrust_if(true);
            // Only where bits are defined does a sum of one's own stand for the committed one.
            if !self.manifest.profile.leaves_stand_for_integers() {
                case.give_up();
            }
            return Ok(());
        };
        let said = Notice::Verdict(verdict.clone());
        if finding == Finding::Pass {
            let leaves: Vec<String> = opened.positions.iter().map(|p| leaf_name(case, *p)).collect();
            self.tally.passed += 1;
            self.duty.done += 1;
            let (who, passed) = (case.subject.author, self.tally.passed);
            info!(
                "round {round}: {who} passes: leaves {} and the sum are right ({passed} passed so far)",
                leaves.join(", ")
            );
            // TOL-10: after the verdict, which stands: the suspicion is about all leaves and not about the drawn ones.
            if let (Finding::Pass, Some(why)) = (found, self.drifts.suspect(who, &deviations)) {
                info!("round {round}: {who} {why}: all its leaves are recomputed");
                case.distrust_if(true);
            }
            case.pass(said);
            return Ok(());
        }
        let Some(judged) = opened.table.judge(&verdict).or_bug("an own verdict that fits the table") else {
            case.give_up();
            return Ok(());
        };
        let evidence = Box::new(Evidence::Audit(judged.transcript(case.subject.record.clone())));
        // Nothing is said before the second opinion: a false accusation is a ban for life (DUTY-9).
        // The second code path has the same integers, whoever shows others by then.
        case.doubt(Doubt { evidence, verdict: Some(said), q });
        Ok(())
    }

    /// Shows the leaf coin in a verdict on the opened table. Where it was shown for another table, whose draw is public
    /// therefore, that takes all leaves: `None` until they were recomputed.
    fn signed_verdict(
        &self,
        subject: &Subject,
        opened: &Opened,
        (finding, total): (Finding, Sketch),
        all: bool,
    ) -> Result<Option<Signed<Verdict>>, Stop> {
        let (round, slot) = subject.key();
        let table = opened.table.before().before();
        // COIN-7: a second table was made knowing the draw, so that its drawn leaves prove nothing.
        let coin = self.coins.show_leaf(round, slot, &table.seal())?;
        // All leaves need no draw: for them the coin may be shown once more.
        let coin = if all { coin.or_else(|| self.coins.shown_leaf(round, slot)) } else { coin };
        let Some(coin) = coin else {
            warn!(
                "round {round}: {} sealed a second table after the draw was public; all its leaves are recomputed",
                subject.author
            );
            return Ok(None);
        };
        let verdict = Verdict {
            request: table.requested().name(),
            opening: opened.table.opening().digest(),
            coin,
            salt: opened.salt,
            results: opened.computed.clone(),
            total,
            finding,
        };
        Ok(Some(self.identity.sign(self.run, &verdict)))
    }

    /// All leaves were recomputed, and the committed total is not their sum.
    pub(super) fn doubt_total(&mut self, case: &mut Case, q: &PackedContribution) -> Result<(), Stop> {
        let layout = Layout::of_run(&self.manifest);
        let total = case.asked().and_then(|asked| q.sketch(&layout, &asked.probe));
        let verdict = match (case.opened(), total) {
            (Some(opened), Some(total)) => {
                let found = (Finding::Guilty(FindingKind::TotalMismatch), total);
                self.signed_verdict(&case.subject, opened, found, true)?
            }
            _ => None,
        };
        let culprit = case.subject.author;
        let evidence = Box::new(Evidence::Total(Total { freeze: case.subject.record.clone(), culprit }));
        case.trust();
        // AUDIT-25: without an opened table it is no verdict, and is said all the same.
        let said = recomputation(&case.subject, Finding::Guilty(FindingKind::TotalMismatch));
        let exact = self.manifest.profile.leaves_stand_for_integers();
        let said = exact.then(|| Notice::Recomputation(self.identity.sign(self.run, &said)));
        let verdict = verdict.map(Notice::Verdict).or(said);
        case.doubt(Doubt { evidence, verdict, q: None });
        Ok(())
    }

    /// The second opinion is there.
    pub(super) fn decide(&mut self, case: &mut Case, judgement: Judgement) -> Result<(), Stop> {
        // The audit may have moved on since it was asked for: the author was banned, or this verifier is idle.
        let Some(doubt) = case.take_doubt() else { return Ok(()) };
        let (round, author) = (case.subject.commit.round, case.subject.author);
        match self.conduct.weighs(judgement, author) {
            // Only the author: evidence that convicts somebody else was not what was found here.
            Judgement::Guilty { culprit, finding, detail, .. } if culprit == author => {
                warn!("round {round}: {culprit} is guilty, {}: {detail}", finding.words());
                self.duty.done += u64::from(doubt.verdict.is_some());
                case.convict(doubt.verdict);
                self.tally.guilty += 1;
                self.accuse_of(culprit, doubt.evidence);
                Ok(())
            }
            // TOL-8: between two code paths that honestly differ nobody is wrong.
            Judgement::NotGuilty(why) if self.manifest.profile.may_split_opinions() => {
                info!("round {round}: {author} is too near to the limit to accuse: {why}");
                self.tally.undecided += 1;
                Ok(())
            }
            Judgement::NotGuilty(why) => Err(Stop::Faulty(format!(
                "round {round}: one code path finds {author} guilty, another one does not ({why}): this machine computes wrongly, \
                 and nobody is accused"
            ))),
            other => {
                warn!("round {round}: the audit of {author} stays undecided: {other:?}");
                self.tally.undecided += 1;
                Ok(())
            }
        }
    }
}

fn leaf_name(case: &Case, position: u32) -> String {
    muster_core::assign::leaf(case.subject.commit.slot, case.subject.commit.seats, position).to_string()
}
