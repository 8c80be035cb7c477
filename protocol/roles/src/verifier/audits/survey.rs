//! Which audits are this verifier's: opened after a round by its coins, and where members are silent or it is replaced itself.

use std::sync::Arc;

use muster_core::audit::probe;
use muster_core::audit::steps::Requested;
use muster_core::bug::OrBug;
use muster_core::coins::selects;
use muster_core::ids::{MemberId, Round, Slot};
use muster_core::ledger::{Ledger, RoundView, Standing};
use muster_core::messages::audit::{AuditRequest, Duty, Finding, FindingKind};
use muster_core::messages::evidence::Evidence;
use muster_core::messages::wire::Notice;
use tracing::{info, warn};

use super::case::{Asked, Case};
use super::subject::Subject;
use super::{Audits, Saying, recomputation};
use crate::verifier::coins::Unwritten;

impl Audits {
    /// Shows the coin of every round that is over and was echoed, and opens the audits that are this verifier's.
    pub(super) fn survey(&mut self, ledger: &Ledger) -> Result<(), Unwritten> {
        let me = self.identity.id();
        if self.conduct.hurries() && ledger.is_active_verifier(&me) {
            // The rehearsal only: an honest verifier never hurries (COIN-7).
            let frozen = ledger.rounds().filter(|view| !view.auditable() && view.freeze().is_some());
            frozen.into_iter().try_for_each(|view| self.show_coin(view))?;
        }
        for view in ledger.rounds().filter(|view| view.auditable()) {
            let (round, all) = (view.round(), ledger.in_final_audit(view.round()));
            if self.surveyed.contains(&(round, all)) {
                continue;
            }
            // DUTY-2: whomever it selects, so that what a verifier owes is public.
            if view.inspectors().contains(&me) {
                self.show_coin(view)?;
            }
            for (slot, commitment) in view.commitments() {
                let drawn = view.inspector(slot) == Some(me);
                // DUTY-3: due without a coin, in the final audit or when every pass has lost its word.
                let sure = ledger.is_due(view, slot, false);
                let mine = drawn || sure && ledger.may_inspect(view, slot, &me, true);
                let ppm = commitment.audit_ppm;
                let coin = self.coins.node(round).zip(view.freeze_digest()).filter(|_| drawn);
                let selected =
                    coin.is_some_and(|(coin, freeze)| selects(&coin, &freeze, &commitment.author, ppm));
                // DUTY-3: later its author need not have it any more.
                let answerable = ledger.is_answerable(round) && ledger.is_due(view, slot, selected);
                let due = mine && answerable && !self.others.passed(ledger, (round, slot));
                if self.conduct.asks(commitment.author, due) {
                    self.open(ledger, view, slot, selected || !sure)?;
                }
            }
            self.surveyed.insert((round, all));
        }
        Ok(())
    }

    /// DUTY-2: whether or not it selects anyone.
    fn show_coin(&mut self, view: &RoundView) -> Result<(), Unwritten> {
        let round = view.round();
        let shown = |saying: &Saying| saying.round == round && matches!(saying.notice, Notice::Duty(_));
        if self.sayings.iter().any(shown) {
            return Ok(());
        }
        let Some(freeze) = view.freeze_digest().or_bug("a frozen round") else { return Ok(()) };
        self.duty.rounds += 1;
        let Some(coin) = self.coins.show_node(round, &freeze)? else {
            warn!("round {round}: its node coin was shown with another freeze, and is not shown again");
            return Ok(());
        };
        self.duty.coins += 1;
        let duty = self.identity.sign(self.run, &Duty { round, freeze, coin });
        self.say(round, Notice::Duty(duty));
        Ok(())
    }

    fn open(
        &mut self,
        ledger: &Ledger,
        view: &RoundView,
        slot: Slot,
        selected: bool,
    ) -> Result<(), Unwritten> {
        let key = (view.round(), slot);
        let subject = Subject::of(ledger, view, slot).or_bug("a contribution of a slot that has committed");
        let Some(subject) = subject else { return Ok(()) };
        let standing = ledger.member(&subject.author).map(|member| member.standing);
        let absent = matches!(standing, Some(Standing::Silent(_) | Standing::Left));
        let distrusted = absent || ledger.is_taken_over(view.round(), &subject.author);
        // Who has left answers nothing, and without a leaf coin no draw could be shown.
        let ask = !matches!(standing, Some(Standing::Left)) && self.coins.leaf(view.round(), slot).is_some();
        let busy = |case: &Case| case.asked().is_some() || !case.has_ended();
        if matches!(standing, None | Some(Standing::Banned)) || self.cases.get(&key).is_some_and(busy) {
            return Ok(());
        }
        let request = if ask { self.request(&subject, selected)? } else { None };
        let case = self.cases.entry(key).or_insert_with(|| Case::new(subject, distrusted));
        if let Some(request) = request {
            let name = request.requested.name();
            case.ask(request, distrusted);
            self.names.insert(name, key);
            self.duty.due += 1;
        }
        Ok(())
    }

    fn request(&self, subject: &Subject, selected: bool) -> Result<Option<Asked>, Unwritten> {
        let round = subject.commit.round;
        let coin = if selected { self.coins.show_node(round, &subject.freeze)? } else { None };
        if selected && coin.is_none() {
            warn!("round {round}: its node coin was shown with another freeze; nobody is asked");
            return Ok(None);
        }
        let request = AuditRequest { round, freeze: subject.freeze, target: subject.author, coin };
        let signed = self.identity.sign(self.run, &request);
        let checked = signed.verify(self.run);
        let requested = checked
            .and_then(|request| Requested::new(self.run, &signed, request, &subject.commit, &subject.freeze));
        let Some(requested) = requested.or_bug("an own request that fits the freeze") else {
            return Ok(None);
        };
        let probe = Arc::new(probe(&self.manifest, &signed, &request));
        Ok(Some(Asked { requested: Arc::new(requested), probe }))
    }

    /// A member did not answer: its inspector recomputes everything.
    pub(super) fn silenced(&mut self, ledger: &Ledger, round: Round, member: &MemberId) {
        // A new process reads of all silences, and rounds are forgotten.
        let Some(slot) = ledger.round(round).and_then(|view| view.slot_of(member)) else { return };
        // What it has not asked about it may have to ask about yet (DUTY-6).
        let asked = self.cases.get_mut(&(round, slot)).filter(|case| case.asked().is_some());
        if let Some(case) = asked.filter(|_| !ledger.is_banned(member)) {
            info!("round {round}: {member} did not answer an audit in time; all its leaves are recomputed");
            case.is_unanswered();
        }
        self.abandoned(member);
    }

    /// Of who has left or is silent already no further silence is sealed: what it has not answered is recomputed.
    pub(super) fn abandoned(&mut self, member: &MemberId) {
        for case in self.cases.values_mut().filter(|case| case.subject.author == *member) {
            case.is_abandoned();
        }
    }

    /// Nothing of what is open is this verifier's any more. What all leaves give is heard of it all the same.
    pub(super) fn retire(&mut self) {
        let exact = self.manifest.profile.leaves_stand_for_integers();
        for case in self.cases.values_mut().filter(|_| exact) {
            let said = recomputation(&case.subject, Finding::Guilty(FindingKind::TotalMismatch));
            if let Some(doubt) = case.doubted()
                && matches!(*doubt.evidence, Evidence::Total(_))
            {
                doubt.verdict = Some(Notice::Recomputation(self.identity.sign(self.run, &said)));
            }
        }
        let open = |case: &&mut Case| !case.speaks_of_all_leaves() && !case.has_passed();
        for case in self.cases.values_mut().filter(open) {
            self.duty.overdue += u64::from(!case.is_over());
            case.hand_over(exact);
        }
        // DUTY-6: its audits are void; answers to them are for nobody.
        self.names.clear();
        self.refused.clear();
    }
}
