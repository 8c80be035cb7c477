//! The steps of one audit: what follows from a notice on the board, and from what was computed.

use std::sync::Arc;

use muster_core::audit::Judgement;
use muster_core::coins::draw;
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::Digest;
use muster_core::ledger::Ledger;
use muster_core::manifest::Profile;
use muster_core::messages::audit::{
    Finding, FindingKind, Recomputation, ResultsSeal, TableOpening, TableSeal, Verdict, Withheld,
    results_seal,
};
use muster_core::messages::evidence::{Evidence, Total};
use muster_core::messages::wire::Notice;
use muster_core::sign::Signed;
use muster_core::sketch::Sketch;
use tracing::{debug, info, warn};

use super::case::{Case, Doubt, Drawn, Opened, Phase, Sealed};
use super::{Audits, Key, Stop, recomputation};

impl Audits {
    pub(super) fn notice(&mut self, ledger: &Ledger, notice: &Notice) {
        match notice {
            Notice::Request(signed) => self.seen(&signed.digest(), notice),
            Notice::Table(signed) => {
                if let Ok(table) = signed.verify(self.run) {
                    self.table(&table.request, signed);
                }
            }
            Notice::Results(signed) => {
                if let Ok(results) = signed.verify(self.run) {
                    self.seen(&results.request, notice);
                }
            }
            Notice::Opening(signed) => {
                if let Ok(opening) = signed.verify(self.run) {
                    self.opening(&opening.request, signed);
                }
            }
            Notice::Verdict(signed) => self.verdict(signed, notice),
            Notice::Withheld(signed) => {
                if let Ok(withheld) = signed.verify(self.run) {
                    self.seen(&withheld.request, notice);
                }
            }
            Notice::Obtained(request) => self.obtained(request),
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

    /// Our own word is on the board already.
    fn seen(&mut self, request: &Digest, notice: &Notice) {
        let Some(key) = self.names.get(request) else { return };
        if self.refused.get(key) == Some(notice) {
            self.refused.remove(key);
        }
        if let Some(case) = self.cases.get_mut(key).filter(|case| case.owed.as_ref() == Some(notice)) {
            case.owed = None;
        }
    }

    /// Our own verdict is on the board already: of an earlier process, if the audit is not over.
    fn verdict(&mut self, signed: &Signed<Verdict>, notice: &Notice) {
        if signed.claimed_signer() != self.identity.id() {
            return;
        }
        let Ok(verdict) = signed.verify(self.run) else { return };
        self.seen(&verdict.request, notice);
        let key = self.names.get(&verdict.request);
        if verdict.finding == Finding::Pass
            && let Some(case) = key.and_then(|key| self.cases.get_mut(key))
        {
            // A suspicion that this process has since is another matter.
            case.distrusted &= matches!(case.phase, Phase::Over { passed: true });
            case.phase = Phase::Over { passed: true };
            case.owed = None;
        }
    }

    /// Our own word on all leaves of a contribution is on the board already.
    fn own_recomputation(&mut self, ledger: &Ledger, signed: &Signed<Recomputation>) {
        if signed.claimed_signer() != self.identity.id() {
            return;
        }
        let Ok(said) = signed.verify(self.run) else { return };
        let slot = ledger.round(said.round).and_then(|view| view.slot_of(&said.target));
        let Some(case) = slot.and_then(|slot| self.cases.get_mut(&(said.round, slot))) else { return };
        if matches!(case.owed, Some(Notice::Recomputation(_))) {
            case.owed = None;
        }
        if said.finding == Finding::Pass {
            (case.phase, case.distrusted) = (Phase::Over { passed: true }, false);
        }
    }

    fn table(&mut self, request: &Digest, signed: &Signed<TableSeal>) {
        let Some(key) = self.names.get(request).copied() else { return };
        let Some(case) = self.cases.get_mut(&key) else { return };
        // AUDIT-2: one table for a request. A second one would have been made knowing more.
        let (Phase::Asked, Some(asked)) = (&case.phase, &case.request) else { return };
        let table = match asked.requested.seal(signed) {
            Ok(table) => table,
            Err(reject) => return debug!("round {}: a table of {}: {reject}", key.0, case.subject.author),
        };
        let Some(coin) = self.coins.leaf(key.0, key.1) else { return };
        let commit = &case.subject.commit;
        let (freeze, most) = (&case.subject.freeze, self.manifest.audit.leaves);
        // AUDIT-4: drawn by the seal of the table, so that the member has fixed its rows before it can know the leaves.
        let positions = draw(&coin, freeze, &table.seal(), commit.leaves, most);
        case.phase = Phase::Drawn(Drawn { table, positions });
        self.seal_results(key);
    }

    /// AUDIT-4: seals the recomputed leaves, once they are there.
    pub(super) fn seal_results(&mut self, key: Key) {
        let Some(case) = self.cases.get_mut(&key) else { return };
        let (Phase::Drawn(Drawn { table, positions }), Some((seal, computed))) =
            (&case.phase, &case.recomputed)
        else {
            return;
        };
        // Leaves that were recomputed for another table are other leaves.
        let Some(coin) = self.coins.leaf(key.0, key.1).filter(|_| *seal == table.seal()) else { return };
        let request = table.requested().name();
        // Secret as long as the coin is, which the verdict shows too.
        let salt = Hasher::new(Domain::RESULTS).value(&coin.value()).value(&request).value(seal).finish().0;
        let (table_name, seal) = (table.table().digest(), results_seal(&salt, computed));
        let signed = self.identity.sign(self.run, &ResultsSeal { request, table: table_name, seal });
        let results = match table.answer(&signed) {
            Ok(results) => results,
            Err(reject) => return debug!("round {}: own results: {reject}", key.0),
        };
        let (positions, computed) = (positions.clone(), computed.clone());
        case.owed = Some(Notice::Results(signed));
        case.phase = Phase::Sealed(Sealed { results, positions, salt, computed });
        if let Some(early) = case.early.take() {
            self.open_table(key, &early);
        }
    }

    fn opening(&mut self, request: &Digest, signed: &Signed<TableOpening>) {
        let Some(key) = self.names.get(request).copied() else { return };
        let Some(case) = self.cases.get_mut(&key) else { return };
        match case.phase {
            // After a restart the board shows the opening before the leaves are recomputed. It is looked at only once
            // they are sealed: results must not be copied from it.
            Phase::Asked | Phase::Drawn(_) => case.early = Some(signed.clone()),
            _ => self.open_table(key, signed),
        }
    }

    fn open_table(&mut self, key: Key, signed: &Signed<TableOpening>) {
        let Some(case) = self.cases.get_mut(&key) else { return };
        let (Phase::Sealed(sealed), Some(asked)) = (&case.phase, &case.request) else { return };
        match sealed.results.open(signed, &asked.probe) {
            Ok((table, rows)) => {
                let Sealed { positions, salt, computed, .. } = sealed;
                let (positions, salt, computed) = (positions.clone(), *salt, computed.clone());
                case.owed = None;
                case.phase = Phase::Opened(Opened { table, rows, positions, salt, computed });
            }
            Err(reject) => debug!("round {}: an opening of {}: {reject}", key.0, case.subject.author),
        }
    }

    /// The steward has the integers that this audit waited for.
    fn obtained(&mut self, request: &Digest) {
        let Some(case) = self.names.get(request).and_then(|key| self.cases.get_mut(key)) else { return };
        // Its author was silent by now, and all its leaves were recomputed in vain: once more.
        case.distrusted |= case.withheld && matches!(case.phase, Phase::Over { passed: false });
        case.withheld = false;
    }

    /// Compares leaves and total with the opened table. Without the integers a wrong leaf convicts all the same; if there is
    /// none, the steward is told what is lacking (TOL-12).
    /// `all` says that every leaf was recomputed, and that `q` is their sum.
    pub(super) fn conclude(&mut self, key: Key, q: Option<Vec<i32>>, all: bool) -> Result<(), Stop> {
        let Some(case) = self.cases.get_mut(&key) else { return Ok(()) };
        let (Phase::Opened(opened), Some(asked)) = (&case.phase, &case.request) else { return Ok(()) };
        let said = || asked.probe.sum(&opened.rows).0;
        // AUDIT-7: of integers that have the frozen root, whatever anybody says of their fingerprint.
        let total = q.as_ref().map_or_else(said, |q| asked.probe.sketch(q));
        let (found, deviations) = case.finding(&asked.probe, opened, &total);
        // TOL-12: right leaves alone say nothing of the sum, so no verdict is given on them.
        if q.is_none() && found == Finding::Pass {
            info!(
                "round {}: the integers of {} are unavailable; the steward is told",
                key.0, case.subject.author
            );
            let withheld = self.identity.sign(self.run, &Withheld { request: asked.requested.name() });
            (case.withheld, case.owed) = (true, Some(Notice::Withheld(withheld)));
            return Ok(());
        }
        // Here an accomplice would lie; everything before is what the machine found.
        let finding = self.conduct.says(found);
        let Some(verdict) = self.signed_verdict(key, (finding, total), all)? else { return Ok(()) };
        let Some(case) = self.cases.get_mut(&key) else { return Ok(()) };
        let Phase::Opened(opened) = &case.phase else { return Ok(()) };
        let said = Notice::Verdict(verdict.clone());
        if finding == Finding::Pass {
            let leaves: Vec<String> = opened.positions.iter().map(|p| leaf_name(case, *p)).collect();
            self.tally.passed += 1;
            self.duty.done += 1;
            let (who, passed) = (case.subject.author, self.tally.passed);
            info!(
                "round {}: {who} passes: leaves {} and the sum are right ({passed} passed so far)",
                key.0,
                leaves.join(", ")
            );
            // TOL-10: after the verdict, which stands: the suspicion is about all leaves and not about the drawn ones.
            if let (Finding::Pass, Some(why)) = (found, self.drifts.suspect(who, &deviations)) {
                info!("round {}: {who} {why}: all its leaves are recomputed", key.0);
                case.distrusted = true;
            }
            case.owed = Some(said);
            case.phase = Phase::Over { passed: true };
            return Ok(());
        }
        let judged = match opened.table.judge(&verdict) {
            Ok(judged) => judged,
            Err(reject) => {
                debug!("round {}: an own verdict: {reject}", key.0);
                case.phase = Phase::Over { passed: false };
                return Ok(());
            }
        };
        let evidence = Box::new(Evidence::Audit(judged.transcript(case.subject.record.clone())));
        // Nothing is said before the second opinion: a false accusation is a ban for life (DUTY-9).
        case.phase = Phase::Doubted(Doubt { evidence, verdict: Some(said), q: q.map(Arc::new) });
        Ok(())
    }

    /// Shows the leaf coin in a verdict on the opened table. Where it was shown for another table, whose draw is public
    /// therefore, that takes all leaves: `None` until they were recomputed.
    fn signed_verdict(
        &mut self,
        key: Key,
        (finding, total): (Finding, Sketch),
        all: bool,
    ) -> Result<Option<Signed<Verdict>>, Stop> {
        let Some(case) = self.cases.get_mut(&key) else { return Ok(None) };
        let Phase::Opened(opened) = &case.phase else { return Ok(None) };
        let table = opened.table.before().before();
        // COIN-7: a second table was made knowing the draw, so that its drawn leaves prove nothing.
        let coin = self.coins.show_leaf(key.0, key.1, &table.seal())?;
        // All leaves need no draw: for them the coin may be shown once more.
        let coin = if all { coin.or_else(|| self.coins.shown_leaf(key.0, key.1)) } else { coin };
        let Some(coin) = coin else {
            warn!(
                "round {}: {} sealed a second table after the draw was public; all its leaves are recomputed",
                key.0, case.subject.author
            );
            case.distrusted = true;
            // Only where bits are defined does a sum of one's own stand for the committed one.
            if self.manifest.profile != Profile::Exact {
                case.phase = Phase::Over { passed: false };
            }
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
    pub(super) fn doubt_total(&mut self, key: Key, q: Vec<i32>) -> Result<(), Stop> {
        let asked = self.cases.get(&key).and_then(|case| case.request.as_ref());
        let verdict = match asked.map(|asked| asked.probe.sketch(&q)) {
            Some(total) => {
                self.signed_verdict(key, (Finding::Guilty(FindingKind::TotalMismatch), total), true)?
            }
            None => None,
        };
        let Some(case) = self.cases.get_mut(&key) else { return Ok(()) };
        let culprit = case.subject.author;
        let evidence = Box::new(Evidence::Total(Total { freeze: case.subject.record.clone(), culprit }));
        case.distrusted = false;
        // AUDIT-25: without an opened table it is no verdict, and is said all the same.
        let said = recomputation(&case.subject, Finding::Guilty(FindingKind::TotalMismatch));
        let exact = self.manifest.profile == Profile::Exact;
        let said = exact.then(|| Notice::Recomputation(self.identity.sign(self.run, &said)));
        let verdict = verdict.map(Notice::Verdict).or(said);
        case.phase = Phase::Doubted(Doubt { evidence, verdict, q: None });
        Ok(())
    }

    /// The second opinion is there.
    pub(super) fn decide(&mut self, key: Key, judgement: Judgement) -> Result<(), Stop> {
        let Some(case) = self.cases.get_mut(&key) else { return Ok(()) };
        if !matches!(case.phase, Phase::Doubted(_)) {
            return Ok(());
        }
        let Phase::Doubted(doubt) = std::mem::replace(&mut case.phase, Phase::Over { passed: false }) else {
            return Ok(());
        };
        let author = case.subject.author;
        match self.conduct.weighs(judgement, author) {
            // Only the author: evidence that convicts somebody else was not what was found here.
            Judgement::Guilty { culprit, finding, detail, .. } if culprit == author => {
                warn!("round {}: {culprit} is guilty, {}: {detail}", key.0, finding.words());
                self.duty.done += u64::from(doubt.verdict.is_some());
                case.owed = doubt.verdict;
                self.tally.guilty += 1;
                self.accuse_of(culprit, doubt.evidence);
                Ok(())
            }
            // TOL-8: between two code paths that honestly differ nobody is wrong.
            Judgement::NotGuilty(why) if self.manifest.profile != Profile::Exact => {
                info!("round {}: {author} is too near to the limit to accuse: {why}", key.0);
                self.tally.undecided += 1;
                Ok(())
            }
            Judgement::NotGuilty(why) => Err(Stop::Faulty(format!(
                "round {}: one code path finds {author} guilty, another one does not ({why}): this machine computes wrongly, and \
                 nobody is accused",
                key.0
            ))),
            other => {
                warn!("round {}: the audit of {author} stays undecided: {other:?}", key.0);
                self.tally.undecided += 1;
                Ok(())
            }
        }
    }
}

fn leaf_name(case: &Case, position: u32) -> String {
    muster_core::assign::leaf(case.subject.commit.slot, case.subject.commit.seats, position).to_string()
}
