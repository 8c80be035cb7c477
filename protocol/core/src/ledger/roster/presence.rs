//! Who is there: silences and answers, bans, returns and leaves.

use std::collections::BTreeMap;

use super::Roster;
use super::admission::check_engagement;
use crate::bug::OrBug;
use crate::error::{Reject, require};
use crate::ids::{Digest, Height, MemberId, Round};
use crate::ledger::chain::{ChainTip, Stage};
use crate::ledger::member::Standing;
use crate::messages::audit::AuditRequest;
use crate::messages::enrol::{Engagement, Leave, Return};
use crate::messages::record::Ban;
use crate::sign::{Signed, Verified};

/// What a silent member owes an answer to.
#[derive(Clone)]
pub(super) struct Debt {
    /// Who asked.
    creditor: MemberId,
    /// About which round.
    round: Round,
}

impl Roster {
    pub(super) fn stand(&mut self, id: &MemberId, standing: Standing, at: Height) {
        if let Some(member) = self.member_mut(id) {
            member.standing = standing;
            member.since = at;
        }
    }

    /// Checks that a member can be silent now (LEDGER-11): it is active or away.
    pub(in crate::ledger) fn check_silence(&self, target: &MemberId) -> Result<(), Reject> {
        let standing = self.member(target).map(|m| m.standing);
        let present = matches!(standing, Some(Standing::Active | Standing::Away));
        require(present, "only a present member can be silent")
    }

    /// A member is silent to this request, whose signed form has this digest.
    pub(in crate::ledger) fn apply_silence(
        &mut self,
        request: &Verified<AuditRequest>,
        digest: Digest,
        chain: &ChainTip,
    ) {
        // LEDGER-20: rounds may have waited for it, and its inspector computes all its leaves.
        self.note_failure(&request.target, chain.next_round());
        self.stand(&request.target, Standing::Silent(digest), chain.height());
        self.debts.insert(request.target, Debt { creditor: request.author(), round: request.round });
    }

    /// Who owes the answer to a request, by the digest of its signed form.
    pub(in crate::ledger) fn check_answered(&self, request: &Digest) -> Result<MemberId, Reject> {
        let owing = self.members.iter().find(|m| m.standing == Standing::Silent(*request)).map(|m| m.id);
        owing.ok_or(Reject::Rule("an answer follows a silence"))
    }

    /// A silent member has answered.
    pub(in crate::ledger) fn apply_answered(&mut self, owing: &MemberId, chain: &ChainTip) {
        // Silence is no way round LEDGER-20.
        let barred = self.member(owing).is_some_and(|member| chain.is_barred(member.barred));
        self.stand(owing, if barred { Standing::Away } else { Standing::Active }, chain.height());
        self.debts.remove(owing);
    }

    /// Drops the matching debts. Those of their members that are still silent are away.
    fn settle(&mut self, at: Height, matches: impl Fn(&Debt) -> bool) {
        let settled: Vec<MemberId> =
            self.debts.iter().filter(|(_, debt)| matches(debt)).map(|(id, _)| *id).collect();
        // Also those of members that stand otherwise by now: a debt outlives no round.
        self.debts.retain(|_, debt| !matches(debt));
        for member in settled.iter().filter(|id| self.is_silent(id)).copied().collect::<Vec<_>>() {
            self.stand(&member, Standing::Away, at);
        }
    }

    fn is_silent(&self, id: &MemberId) -> bool {
        matches!(self.member(id).map(|member| member.standing), Some(Standing::Silent(_)))
    }

    /// LEDGER-20: a member that is silent about a forgotten round becomes away. Nobody could take its answer any more,
    /// and a member that computes other bits than before (TOL-7) never had one.
    pub(in crate::ledger) fn apply_oldest(&mut self, oldest: Round, at: Height) {
        self.settle(at, |debt| debt.round < oldest);
    }

    /// DUTY-6: nobody owes a verifier that inspects nothing any more an answer: a member that was silent to it is away.
    pub(in crate::ledger) fn apply_retirement(&mut self, verifier: &MemberId, at: Height) {
        self.settle(at, |debt| debt.creditor == *verifier);
    }

    /// An idle verifier is away until it returns, and has failed (LEDGER-20): rounds may have waited for it.
    pub(in crate::ledger) fn apply_idle(&mut self, verifier: &MemberId, chain: &ChainTip) {
        let idle = self.member_mut(verifier).or_bug("a verifier that is idle");
        idle.into_iter().for_each(|member| member.service.idle += 1);
        // A verifier that is idle again and again holds up rounds as a silent node does.
        self.count_failure(verifier, chain.next_round(), chain.height());
    }

    /// Checks a ban but for its jury (LEDGER-12).
    pub(in crate::ledger) fn check_ban(&self, chain: &ChainTip, ban: &Ban) -> Result<(), Reject> {
        let standing = self.member(&ban.culprit).map(|m| m.standing);
        // A second ban would count one conviction twice, for a Rewind too.
        require(standing.is_some_and(|s| s != Standing::Banned), "a member is banned once")?;
        // LEDGER-12: whoever accuses is known, so that a false word has an author; what it says is judged by the
        // evidence.
        let entitled = self.member(&ban.accuser).is_some() || ban.accuser == self.terms.manifest().steward;
        require(entitled, "a member or the steward accuses")?;
        // The steward cannot spare the convict a round, nor take from it one whose seats are sealed.
        require(ban.effective == chain.first_round_without(), "a ban is effective at the next round")?;
        require(ban.round < ban.effective, "an offence comes before its ban")
    }

    pub(in crate::ledger) fn apply_ban(&mut self, culprit: &MemberId, at: Height) {
        self.stand(culprit, Standing::Banned, at);
    }

    /// What follows from a ban for others: `opened` are the drawn leaves of members' contributions that are open again.
    pub(in crate::ledger) fn apply_conviction(&mut self, ban: &Ban, opened: &BTreeMap<MemberId, u32>) {
        self.void_credit(&ban.culprit, ban.finding, opened);
        self.close_trees(&ban.culprit);
        // The steward accuses, too, and is no member.
        let accuser = self.member_mut(&ban.accuser);
        accuser.into_iter().for_each(|accuser| accuser.service.convicted += 1);
    }

    /// Checks a return, which also tells where a member has moved to, and what it wants to do.
    pub(in crate::ledger) fn check_return(
        &self,
        chain: &ChainTip,
        signed: &Signed<Return>,
    ) -> Result<Verified<Return>, Reject> {
        let back = signed.verify(self.terms.run())?;
        let member = self.member(&back.author()).ok_or(Reject::NotEntitled("return: it is no member"))?;
        // LEDGER-13: in gathering no round is forgotten any more, and somebody must begin.
        let silent = chain.stage() == Stage::Gathering && self.is_silent(&member.id);
        let present = silent || matches!(member.standing, Standing::Away | Standing::Active);
        require(present, "only a member that is away returns, or one that moved")?;
        require(
            // Every Return is public: an old one must not bring back a member that is away again.
            back.height > member.since && back.height <= chain.height(),
            "a return is newer than the absence",
        )?;
        if member.standing == Standing::Active {
            // Every Return stays on everybody's disk: one a round must do.
            let moved = member.addresses != back.addresses || member.engagement != back.engagement;
            let settled = chain.opened().is_some_and(|opened| member.since < opened);
            // Once as well, and the run may have nobody else to go on with.
            let trains_again =
                member.engagement != Engagement::Trains && back.engagement == Engagement::Trains;
            require(
                moved && (settled || trains_again && chain.stage() == Stage::Gathering),
                "who is active says where it has moved to or what it will do, once a round",
            )?;
        }
        check_engagement(member.role, back.engagement)?;
        require(
            !self.sits_out(chain, member),
            "who failed several times sits out some rounds before it returns",
        )?;
        Ok(back)
    }

    pub(in crate::ledger) fn apply_return(&mut self, back: Verified<Return>, at: Height) {
        let id = back.author();
        self.debts.remove(&id);
        self.stand(&id, Standing::Active, at);
        if let Some(member) = self.member_mut(&id) {
            let back = back.into_inner();
            (member.addresses, member.engagement) = (back.addresses, back.engagement);
        }
    }

    /// Checks a leave.
    pub(in crate::ledger) fn check_leave(
        &self,
        chain: &ChainTip,
        signed: &Signed<Leave>,
    ) -> Result<Verified<Leave>, Reject> {
        let leave = signed.verify(self.terms.run())?;
        let member = self.member(&leave.author()).ok_or(Reject::NotEntitled("leave: it is no member"))?;
        let present = matches!(member.standing, Standing::Active | Standing::Away | Standing::Silent(_));
        require(present, "only a present member leaves")?;
        require(
            // A Leave that was signed and never sealed must not be used against a member that has returned
            // since.
            leave.height > member.since && leave.height <= chain.height(),
            "a leave is newer than the last change",
        )?;
        Ok(leave)
    }

    pub(in crate::ledger) fn apply_leave(&mut self, member: &MemberId, at: Height) {
        self.stand(member, Standing::Left, at);
    }
}
