//! Members as the ledger has them: their standing, their seats and quotas, their bans.

use std::collections::{BTreeMap, BTreeSet};

use super::{Holding, Ledger, Stage};
use crate::bug::OrBug;
use crate::coins::{CoinTerms, majority};
use crate::error::{Reject, require};
use crate::ids::{Digest, Height, MemberId, Round, Slot};
use crate::limits;
use crate::messages::audit::AuditRequest;
use crate::messages::enrol::{Addresses, Enrol, Leave, Name, Return, Role, is_name};
use crate::messages::record::{Ban, Outcome, Record, Seat};
use crate::messages::round::Commit;
use crate::sign::{Signed, Verified};

/// A member and its standing.
#[derive(Clone, Debug)]
pub struct Member {
    /// Who.
    pub id: MemberId,
    /// What it calls itself; may be empty, and is not its alone.
    pub name: Name,
    /// As what.
    pub role: Role,
    /// Where it can be dialled.
    pub addresses: Addresses,
    /// A verifier's coins.
    pub coins: Option<CoinTerms>,
    /// Whether it takes part.
    pub standing: Standing,
    /// Height of the record that last changed it.
    pub since: Height,
    /// Rounds that it let wait in vain, without those that are forgotten (LEDGER-20).
    pub failures: u8,
    /// Rounds in which it counted since that number last changed.
    pub good_rounds: u32,
    /// First round in which it may have a seat again.
    pub barred: Round,
    /// Most leaves that it may sum (LEDGER-15): what it managed when it last fell short, and one more after each full
    /// round.
    pub pace: u32,
    /// The record that admitted a verifier, which proves its coins to a judge.
    pub admitted: Option<Signed<Record>>,
    /// Whether it has weight without probation.
    pub founder: bool,
    /// The member that brought it in; none where the organiser did, or nobody.
    pub inviter: Option<MemberId>,
    /// Length of the chain of members' invitations by which it came.
    pub depth: u8,
    /// Whether the organiser has neither invited nor listed it.
    pub stranger: bool,
    /// Members that it brought in.
    pub invited: u16,
    /// Why its tree of invitations is closed (STAND-6); none while it is not.
    pub closed: Option<Closed>,
    /// Leaves of its contributions that were recomputed and found right, by verifier.
    pub credits: BTreeMap<MemberId, u32>,
    /// Leaves that verifiers have to recompute before it is audited like others again (STAND-11).
    pub doubt: u32,
    /// The row that it was drawn for, while the state has several.
    pub holding: Option<Holding>,
}

/// Why a member's tree of invitations is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// It was convicted, or brought in a convict.
    Convicted,
    /// The organiser ordered it.
    Ordered,
}

/// How many members of a role are here, and how many are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turnout {
    /// Those that are here.
    pub here: usize,
    /// How many the next round needs.
    pub wanted: usize,
}

impl Turnout {
    /// Whether enough are here.
    pub fn suffices(self) -> bool {
        self.here >= self.wanted
    }
}

/// Whether a member takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It takes part.
    Active,
    /// It missed a freeze, or left its duty as a verifier undone; it takes part again when it returns.
    Away,
    /// It owes an answer to this audit request.
    Silent(Digest),
    /// It has left for good.
    Left,
    /// It was banned.
    Banned,
}

/// What a silent member owes an answer to.
#[derive(Clone)]
pub(super) struct Debt {
    /// Who asked.
    pub(super) creditor: MemberId,
    /// About which round.
    pub(super) round: Round,
}

impl Member {
    /// Whether it is a node that has not gone for good.
    pub fn is_node_still(&self) -> bool {
        self.role == Role::Node && !matches!(self.standing, Standing::Left | Standing::Banned)
    }
}

impl Ledger {
    /// LEDGER-5: checks an enrolment against everything but the clock, which only the steward has.
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_enrol(&self, signed: &Signed<Enrol>) -> Result<Verified<Enrol>, Reject> {
        let enrol = signed.verify(self.run())?;
        let entry = self.entry(&enrol.author(), &enrol)?;
        require(is_name(&enrol.name), "a name has ASCII letters, digits, spaces within, and . _ -")?;
        // A key that was banned, or has left, is still a member: it does not come again with a clean slate.
        require(self.member(&enrol.author()).is_none(), "a member enrols once")?;
        // Members are kept for good, so that whoever enrols for nothing must not fill everybody's memory.
        let most = usize::from(self.manifest().admission.most_members);
        require(self.members.len() < most, "the run is full (admission.most_members)")?;
        match (entry.role, &enrol.coins) {
            (Role::Node, None) => {}
            // A node's coins would serve nobody, and its record would be kept by everybody.
            (Role::Node, Some(_)) => return Err(Reject::Rule("a node registers no coins")),
            (Role::Verifier, None) => return Err(Reject::Rule("a verifier registers its coins")),
            (Role::Verifier, Some(terms)) => self.check_coins(terms)?,
        }
        require(self.takes_members(), "the run takes no more members")?;
        Ok(enrol)
    }

    /// Whether members are admitted in this stage.
    pub(super) fn takes_members(&self) -> bool {
        self.chain.takes_members()
    }

    /// COIN-6: coins must be registered before the randomness that they are used with is known.
    fn check_coins(&self, terms: &CoinTerms) -> Result<(), Reject> {
        terms.check()?;
        // Before the first round no R_t is known that a secret could be chosen for.
        let lead = if self.rounds.is_empty() { 0 } else { self.manifest().audit.coin_lead };
        let first = self.next_round().0.saturating_add(lead);
        require(terms.first_round.0 >= first, "coins are registered audit.coin_lead rounds before their use")
    }

    pub(super) fn admit(&mut self, signed: &Signed<Enrol>, record: &Signed<Record>) -> Result<(), Reject> {
        let enrol = self.check_enrol(signed)?;
        let id = enrol.author();
        let enrol = enrol.into_inner();
        let entry = self.entry(&id, &enrol)?;
        if let Some(presented) = &enrol.invitation {
            *self.invitations.entry(presented.invitation.digest()).or_insert(0) += 1;
        }
        self.strangers = self.strangers.saturating_add(u16::from(entry.stranger));
        if let Some(inviter) = entry.inviter.and_then(|inviter| self.member_mut(&inviter)) {
            inviter.invited = inviter.invited.saturating_add(1);
        }
        self.index.insert(id, self.members.len());
        self.members.push(Member {
            id,
            name: enrol.name,
            role: entry.role,
            addresses: enrol.addresses,
            coins: enrol.coins,
            standing: Standing::Active,
            since: self.height(),
            failures: 0,
            good_rounds: 0,
            barred: Round(0),
            // Nobody knows yet what it manages: its first round tells.
            pace: limits::QUOTA,
            // A judge needs it: which coins a verifier registered, only the steward's record proves.
            admitted: (entry.role == Role::Verifier).then(|| record.clone()),
            founder: entry.founder,
            inviter: entry.inviter,
            depth: entry.depth,
            stranger: entry.stranger,
            invited: 0,
            closed: None,
            credits: BTreeMap::new(),
            doubt: 0,
            holding: None,
        });
        Ok(())
    }

    /// Whether enough members are here for a round to begin.
    pub fn ready(&self) -> bool {
        [Role::Node, Role::Verifier].into_iter().all(|role| self.turnout(role).suffices())
    }

    /// How many members of a role are here, and how many the next round needs. A run begins with nodes that weigh.
    pub fn turnout(&self, role: Role) -> Turnout {
        let admission = &self.manifest().admission;
        let first = self.rounds.is_empty();
        let dealt = self.dealt(self.rows());
        let able =
            |member: &&Member| role == Role::Verifier || self.row_in(member, self.rows(), &dealt).is_some();
        let here = self.active(role).filter(able).count();
        match role {
            // Newcomers alone would train nothing: their leaves do not count.
            Role::Node if first => Turnout {
                here: self.active(role).filter(|member| self.weighs(member)).count(),
                wanted: admission.start_nodes.into(),
            },
            Role::Node => Turnout { here, wanted: 1 },
            Role::Verifier if first => Turnout { here, wanted: admission.start_verifiers.into() },
            Role::Verifier => Turnout { here, wanted: 0 },
        }
    }

    pub(super) fn active(&self, role: Role) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(move |m| m.role == role && m.standing == Standing::Active)
    }

    /// The seats of a round that would begin now (LEDGER-14): active nodes with weight in order of admission, in
    /// turn where they are more than the seats, the leaves shared equally, the first ones taking the remainder, each within its
    /// pace, and at least one leaf each. Then newcomers in turn, on a quarter of the seats at most but at least one, with as
    /// many leaves each on top.
    pub fn derived_seats(&self) -> Vec<Seat> {
        self.seats_without(&BTreeSet::new(), self.rows())
    }

    /// The seats that an outcome of the open round has to seal; its own `seats` are not read. None after the last
    /// round.
    pub fn seats_after(&self, outcome: &Outcome) -> Vec<Seat> {
        if self.ends_with(outcome.round) {
            return Vec::new();
        }
        // LEDGER-20: who fails at the outcome is away from it on, and has no seat in the round that it opens.
        let mut without = self.failed_at(outcome);
        // ROW-7: whoever moves has no seat before it holds its new row.
        without.extend(self.moved().map(|(member, _)| member));
        self.seats_without(&without, self.next_rows())
    }

    /// The seats of a round on a state with so many rows.
    fn seats_without(&self, failed: &BTreeSet<MemberId>, rows: u16) -> Vec<Seat> {
        let dealt = self.dealt(rows);
        let row = |member: &Member| self.row_in(member, rows, &dealt);
        // ROW-3: whoever still fetches its row has no seat.
        let there = self.active(Role::Node).filter(|member| !failed.contains(&member.id));
        let there = there.filter(|member| row(member).is_some());
        let (weighted, newcomers): (Vec<&Member>, Vec<&Member>) =
            there.partition(|member| self.weighs(member));
        // A quarter at most, so that a flood of keys does not displace those with weight; one at least, so that
        // a probation can end at all.
        let taken = newcomers.len().min((weighted.len() / 3).clamp(1, limits::SEATS / 4));
        let most = weighted.len().min(limits::SEATS - taken);
        // In turn, by the round's number: whoever chose them could keep its friends seated, or those on probation.
        let turn = self.next_round().index();
        let mut nodes: Vec<&Member> = in_turn(&weighted, most, turn).collect();
        // Newcomers' leaves come on top: otherwise every round would lose leaves to work that counts for
        // nothing.
        let sharers = if nodes.is_empty() { taken } else { nodes.len() };
        nodes.extend(in_turn(&newcomers, taken, turn));
        let leaves = self.manifest().training.leaves as usize;
        // Chains of steps cannot be shared out: in a run of local updates every seat has one.
        let local = self.manifest().local().is_some();
        let shared = |slot: usize| leaves / sharers + usize::from(slot < leaves % sharers);
        let share = |slot: usize| if local { leaves } else { shared(slot) };
        let seat = |(slot, member): (usize, &&Member)| Seat {
            member: member.id,
            // At least one leaf: a seat without one would have nothing to commit to, and fail.
            quota: u32::try_from(share(slot)).unwrap_or(u32::MAX).min(member.pace).clamp(1, limits::QUOTA),
            row: row(member).unwrap_or_default(),
        };
        nodes.iter().enumerate().map(seat).collect()
    }

    /// Slots whose members can be dialled and have weight, in order.
    pub(super) fn aggregators(&self, seats: &[Seat]) -> Vec<Slot> {
        // Senders must be able to dial it; and without weight a key costs nothing, so that it could let rounds
        // wait for free.
        let able = |member: &Member| !member.addresses.is_empty() && self.weighs(member);
        let able = |seat: &Seat| self.member(&seat.member).is_some_and(able);
        let slots = seats.iter().enumerate().filter(|(_, seat)| able(seat));
        slots.map(|(slot, _)| Slot(slot as u16)).collect()
    }

    /// LEDGER-15: adjusts the pace of every seat to what it committed; a seat without a commitment has failed.
    pub(super) fn pace(&mut self, round: Round, seats: &[Seat], commits: &[Verified<Commit>]) {
        for seat in seats {
            let leaves =
                commits.iter().find(|commit| commit.author() == seat.member).map(|commit| commit.leaves);
            if leaves.is_none() {
                self.fail(&seat.member, round);
            }
            let Some(member) = self.member_mut(&seat.member).or_bug("a member with a seat") else { continue };
            match leaves {
                // By committed leaves, not by measured speed: others can check only the former.
                Some(leaves) if leaves < seat.quota => member.pace = leaves.max(1),
                // One more each round: a member that grew slower for a while finds its pace again.
                Some(_) => member.pace = member.pace.saturating_add(1).min(limits::QUOTA),
                None => {}
            }
        }
    }

    // LEDGER-11: by a request that is due, of a member that is active or away.
    pub(super) fn silence(&mut self, signed: &Signed<AuditRequest>) -> Result<(), Reject> {
        let request = self.check_request(signed)?;
        let digest = signed.digest();
        let target = request.target;
        let standing = self.member(&target).map(|m| m.standing);
        let present = matches!(standing, Some(Standing::Active | Standing::Away));
        require(present, "only a present member can be silent")?;
        // AUDIT-8: no second silence is sealed. By turns with Answered, which nobody else signs, one request would otherwise make a
        // ledger without end, on the disk of everybody who follows.
        let taken = self.is_taken_over(request.round, &target);
        require(!taken, "a member is silent about a contribution once")?;
        // LEDGER-20: rounds may have waited for it, and its inspector computes all its leaves.
        self.note_failure(&target, self.next_round());
        self.stand(&target, Standing::Silent(digest));
        // In every round so far: its turn would otherwise begin again for each of its audits (AUDIT-8).
        self.rounds.iter_mut().for_each(|view| view.unanswered(&target));
        self.debts.insert(target, Debt { creditor: request.author(), round: request.round });
        Ok(())
    }

    /// Drops the matching debts. Returns those of their members that are still silent.
    pub(super) fn settle(&mut self, matches: impl Fn(&Debt) -> bool) -> Vec<MemberId> {
        let settled: Vec<MemberId> =
            self.debts.iter().filter(|(_, debt)| matches(debt)).map(|(id, _)| *id).collect();
        // Also those of members that stand otherwise by now: a debt outlives no round.
        self.debts.retain(|_, debt| !matches(debt));
        settled.into_iter().filter(|id| self.is_silent(id)).collect()
    }

    fn is_silent(&self, id: &MemberId) -> bool {
        matches!(self.member(id).map(|member| member.standing), Some(Standing::Silent(_)))
    }

    pub(super) fn answered(&mut self, request: &Digest) -> Result<(), Reject> {
        let owing = self.members.iter().find(|m| m.standing == Standing::Silent(*request)).map(|m| m.id);
        let owing = owing.ok_or(Reject::Rule("an answer follows a silence"))?;
        // Silence is no way round LEDGER-20.
        let barred = self.member(&owing).is_some_and(|member| self.is_barred(member.barred));
        self.stand(&owing, if barred { Standing::Away } else { Standing::Active });
        self.debts.remove(&owing);
        Ok(())
    }

    pub(super) fn ban(&mut self, ban: &Ban) -> Result<(), Reject> {
        let standing = self.member(&ban.culprit).map(|m| m.standing);
        // A second ban would count one conviction twice, for a Rewind too.
        require(standing.is_some_and(|s| s != Standing::Banned), "a member is banned once")?;
        // LEDGER-12: whoever accuses is known, so that a false word has an author; what it says is judged by the
        // evidence.
        let entitled = self.member(&ban.accuser).is_some() || ban.accuser == self.manifest().steward;
        require(entitled, "a member or the steward accuses")?;
        // The steward cannot spare the convict a round, nor take from it one whose seats are sealed.
        require(ban.effective == self.first_round_without(), "a ban is effective at the next round")?;
        require(ban.round < ban.effective, "an offence comes before its ban")?;
        self.check_jury(ban)?;
        self.stand(&ban.culprit, Standing::Banned);
        self.rewinds.apply_ban(ban);
        // What a convicted verifier was to inspect goes to the others at once, and what it has passed is open again.
        self.retire(&ban.culprit);
        self.open_again(&ban.culprit);
        self.doubt_credit(&ban.culprit, ban.finding);
        self.close_trees(&ban.culprit);
        Ok(())
    }

    // LEDGER-22: where there is a tolerance, what re-execution decides takes drawn jurors; elsewhere there is no jury.
    fn check_jury(&self, ban: &Ban) -> Result<(), Reject> {
        if !self.manifest().profile.needs_jury() || !ban.finding.needs_jury() {
            return require(ban.jury.is_empty(), "what is decided for good needs no jury");
        }
        let view =
            self.round(ban.round).ok_or(Reject::Stale("the round of the offence is not remembered"))?;
        require(view.results().is_some(), "jurors are drawn once the round of the offence is over")?;
        // Drawn from the head after that round, which neither party chose.
        let drawn = view.jury(&ban.culprit, &ban.accuser);
        let mut said = BTreeSet::new();
        for signed in &ban.jury {
            let opinion = signed.verify(self.run())?;
            let fits =
                opinion.guilty && opinion.evidence == ban.evidence && drawn.contains(&opinion.author());
            require(fits, "a jury's word is that of a drawn juror, on this evidence, and guilty")?;
            // Otherwise one juror could make up the majority alone.
            require(said.insert(opinion.author()), "a juror has one word")?;
        }
        require(said.len() >= majority(drawn.len()), "five of seven drawn jurors find a member guilty")
    }

    /// The first round whose seats are not sealed yet.
    pub fn first_round_without(&self) -> Round {
        self.chain.first_round_without()
    }

    /// Checks a return, which also tells where a member has moved to.
    ///
    /// # Errors
    /// [`Reject`] for one that is not away, or an old statement.
    pub fn check_return(&self, signed: &Signed<Return>) -> Result<Verified<Return>, Reject> {
        let back = signed.verify(self.run())?;
        let member = self.member(&back.author()).ok_or(Reject::NotEntitled("return: it is no member"))?;
        // LEDGER-13: in gathering no round is forgotten any more, and somebody must begin.
        let silent = self.stage() == Stage::Gathering && self.is_silent(&member.id);
        let present = silent || matches!(member.standing, Standing::Away | Standing::Active);
        require(present, "only a member that is away returns, or one that moved")?;
        require(
            // Every Return is public: an old one must not bring back a member that is away again.
            back.height > member.since && back.height <= self.height(),
            "a return is newer than the absence",
        )?;
        if member.standing == Standing::Active {
            // Every Return stays on everybody's disk: one a round must do.
            let moved = member.addresses != back.addresses;
            let settled = self.chain.opened().is_some_and(|opened| member.since < opened);
            require(moved && settled, "who is active says where it has moved to, once a round")?;
        }
        require(!self.sits_out(member), "who failed several times sits out some rounds before it returns")?;
        Ok(back)
    }

    pub(super) fn welcome_back(&mut self, signed: &Signed<Return>) -> Result<(), Reject> {
        let back = self.check_return(signed)?;
        let id = back.author();
        self.debts.remove(&id);
        self.stand(&id, Standing::Active);
        if let Some(member) = self.member_mut(&id) {
            member.addresses = back.into_inner().addresses;
        }
        Ok(())
    }

    /// Checks a leave.
    ///
    /// # Errors
    /// [`Reject`] for one that is no member any more, or an old statement.
    pub fn check_leave(&self, signed: &Signed<Leave>) -> Result<Verified<Leave>, Reject> {
        let leave = signed.verify(self.run())?;
        let member = self.member(&leave.author()).ok_or(Reject::NotEntitled("leave: it is no member"))?;
        let present = matches!(member.standing, Standing::Active | Standing::Away | Standing::Silent(_));
        require(present, "only a present member leaves")?;
        require(
            // A Leave that was signed and never sealed must not be used against a member that has returned
            // since.
            leave.height > member.since && leave.height <= self.height(),
            "a leave is newer than the last change",
        )?;
        Ok(leave)
    }

    pub(super) fn leave(&mut self, signed: &Signed<Leave>) -> Result<(), Reject> {
        let leave = self.check_leave(signed)?;
        self.stand(&leave.author(), Standing::Left);
        // Its contributions are still to be audited, and nobody will answer for them.
        self.rounds.iter_mut().for_each(|view| view.unanswered(&leave.author()));
        // Leaving is no way out of what a verifier owes: it falls to the others.
        self.retire(&leave.author());
        Ok(())
    }

    pub(super) fn stand(&mut self, id: &MemberId, standing: Standing) {
        let height = self.height();
        if let Some(member) = self.member_mut(id) {
            member.standing = standing;
            member.since = height;
        }
    }

    pub(super) fn member_mut(&mut self, id: &MemberId) -> Option<&mut Member> {
        self.members.get_mut(*self.index.get(id)?)
    }
}

/// So many of these members, each round others where they are more.
fn in_turn<'a>(members: &[&'a Member], seats: usize, round: usize) -> impl Iterator<Item = &'a Member> {
    let first = round.saturating_mul(seats);
    (0..seats).filter_map(move |turn| members.get((first + turn) % members.len()).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledger_14_where_there_are_more_members_than_seats_each_has_one_in_turn() {
        let chain = crate::ledger::fixture::Chain::begin();
        let all: Vec<&Member> = chain.ledger.members.iter().take(3).collect();
        let of = |round| -> Vec<MemberId> { in_turn(&all, 2, round).map(|member| member.id).collect() };
        let ids: Vec<MemberId> = all.iter().map(|member| member.id).collect();
        assert_eq!([of(0), of(1), of(2)], [[0, 1], [2, 0], [1, 2]].map(|turn| turn.map(|i| ids[i]).to_vec()));
        // Where all have seats they keep their order.
        assert_eq!(in_turn(&all, 3, 7).map(|member| member.id).collect::<Vec<_>>(), ids);
        assert_eq!(in_turn(&[], 0, 7).count(), 0);
    }
}
