//! Who comes in, at whose invitation, and whose tree of invitations is closed.

use std::collections::BTreeMap;

use super::Roster;
use crate::coins::CoinTerms;
use crate::error::{Reject, require};
use crate::ids::{Digest, Height, MemberId, Round, ShareClass};
use crate::ledger::chain::ChainTip;
use crate::ledger::member::{Closed, Member, Service, Standing};
use crate::limits;
use crate::manifest::{Listed, Mode};
use crate::messages::enrol::{CloseTree, Engagement, Enrol, Presented, Role, is_name};
use crate::messages::record::Record;
use crate::sign::{Signed, Verified};

/// A newcomer's role, and who invited it.
struct Newcomer {
    role: Role,
    founder: bool,
    inviter: Option<MemberId>,
    depth: u8,
    /// The organiser has neither invited nor listed it.
    stranger: bool,
}

impl Newcomer {
    fn known(role: Role, founder: bool) -> Self {
        Self { role, founder, inviter: None, depth: 0, stranger: false }
    }
}

/// An enrolment that was checked, and how its author comes in.
pub(in crate::ledger) struct Entrant {
    enrol: Verified<Enrol>,
    entry: Newcomer,
}

impl Entrant {
    pub(in crate::ledger) fn enrolment(self) -> Verified<Enrol> {
        self.enrol
    }
}

/// LEDGER-24: a verifier has nothing to choose: its duties follow from its coins.
pub(super) fn check_engagement(role: Role, engagement: Engagement) -> Result<(), Reject> {
    let fits = role == Role::Node || engagement == Engagement::Trains;
    require(fits, "only a node says what it wants to do")
}

impl Roster {
    /// How often an invitation was used, by the digest of its signed form.
    pub(in crate::ledger) fn invitation_uses(&self, invitation: &Digest) -> u32 {
        self.invitations.get(invitation).copied().unwrap_or(0)
    }

    /// LEDGER-5: checks an enrolment against everything but the clock, which only the steward has. `began` says that some
    /// round is remembered.
    pub(in crate::ledger) fn check_enrol(
        &self,
        chain: &ChainTip,
        began: bool,
        signed: &Signed<Enrol>,
    ) -> Result<Entrant, Reject> {
        let enrol = signed.verify(self.terms.run())?;
        let entry = self.entry(&enrol.author(), &enrol)?;
        require(is_name(&enrol.name), "a name has ASCII letters, digits, spaces within, and . _ -")?;
        // A key that was banned, or has left, is still a member: it does not come again with a clean slate.
        require(self.member(&enrol.author()).is_none(), "a member enrols once")?;
        // Members are kept for good, so that whoever enrols for nothing must not fill everybody's memory.
        let most = usize::from(self.terms.manifest().admission.most_members);
        require(self.members.len() < most, "the run is full (admission.most_members)")?;
        match (entry.role, &enrol.coins) {
            (Role::Node, None) => {}
            // A node's coins would serve nobody, and its record would be kept by everybody.
            (Role::Node, Some(_)) => return Err(Reject::Rule("a node registers no coins")),
            (Role::Verifier, None) => return Err(Reject::Rule("a verifier registers its coins")),
            (Role::Verifier, Some(terms)) => self.check_coins(chain, began, terms)?,
        }
        check_engagement(entry.role, enrol.engagement)?;
        require(chain.takes_members(), "the run takes no more members")?;
        Ok(Entrant { enrol, entry })
    }

    /// COIN-6: coins must be registered before the randomness that they are used with is known.
    fn check_coins(&self, chain: &ChainTip, began: bool, terms: &CoinTerms) -> Result<(), Reject> {
        terms.check()?;
        // Before the first round no R_t is known that a secret could be chosen for.
        let lead = if began { self.terms.manifest().audit.coin_lead } else { 0 };
        let first = chain.next_round().0.saturating_add(lead);
        require(terms.first_round.0 >= first, "coins are registered audit.coin_lead rounds before their use")
    }

    /// A newcomer is a member from this record on.
    pub(in crate::ledger) fn apply_admit(&mut self, entrant: Entrant, record: &Signed<Record>, at: Height) {
        let Entrant { enrol, entry } = entrant;
        let id = enrol.author();
        let enrol = enrol.into_inner();
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
            engagement: enrol.engagement,
            since: at,
            failures: 0,
            good_rounds: 0,
            barred: Round(0),
            // Nobody knows yet what it manages: its first round tells.
            pace: limits::QUOTA,
            share: ShareClass(limits::SHARE_FIRST),
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
            service: Service::default(),
        });
    }

    /// A round is over: strangers may come again.
    pub(in crate::ledger) fn apply_next_round(&mut self) {
        self.strangers = 0;
    }

    /// The role and standing that the author of an enrolment may have.
    fn entry(&self, author: &MemberId, enrol: &Enrol) -> Result<Newcomer, Reject> {
        let entry = match (&enrol.invitation, &self.terms.manifest().admission.mode) {
            (Some(presented), _) => self.invited(presented, author)?,
            // STAND-7: the mode says who needs no invitation.
            (None, Mode::Listed(listed)) => self.listed(listed, author)?,
            (None, Mode::Open) => Newcomer { stranger: true, ..Newcomer::known(Role::Node, false) },
            (None, Mode::Invited) => {
                return Err(Reject::NotEntitled("enrol: this run asks for an invitation"));
            }
        };
        self.require_room(&entry)?;
        Ok(entry)
    }

    fn listed(&self, listed: &Listed, author: &MemberId) -> Result<Newcomer, Reject> {
        if listed.founders.contains(author) {
            return Ok(Newcomer::known(Role::Node, true));
        }
        if listed.nodes.contains(author) {
            return Ok(Newcomer::known(Role::Node, false));
        }
        let verifier = listed.verifiers.contains(author);
        let verifier = verifier.then(|| Newcomer::known(Role::Verifier, false));
        verifier.ok_or(Reject::NotEntitled("enrol: the manifest does not list it, and it has no invitation"))
    }

    fn invited(&self, presented: &Presented, newcomer: &MemberId) -> Result<Newcomer, Reject> {
        let invitation = presented.invitation.verify(self.terms.run())?;
        let possession = presented.possession.verify(self.terms.run())?;
        // STAND-9: everyone reads invitations in the ledger, and only those invited hold the secret.
        if possession.author() != invitation.key || possession.newcomer != *newcomer {
            return Err(Reject::NotEntitled("enrol: the invitation's key has not signed for this newcomer"));
        }
        // Counted by the ledger, since everybody must come to the same number.
        let used = self.invitation_uses(&presented.invitation.digest());
        require(used < invitation.uses, "the invitation is used up")?;
        let author = invitation.author();
        if author == self.terms.manifest().organiser {
            return Ok(Newcomer::known(invitation.role, invitation.founder));
        }
        let inviter = self.member(&author);
        let inviter = inviter.ok_or(Reject::NotEntitled("invite: only the organiser and members do"))?;
        // STAND-5: who would bring in verifiers could end any probation itself.
        let plain = invitation.role == Role::Node && !invitation.founder;
        require(plain, "a member invites nodes, neither founders nor verifiers")?;
        let good = matches!(inviter.standing, Standing::Active | Standing::Away);
        let able = good && inviter.role == Role::Node && self.weighs(inviter);
        require(able, "only a node past its probation invites, while it takes part")?;
        // STAND-6: an inviter answers for those below it.
        let closed =
            "those who answer for this invitation brought in a convict, or the organiser closed their tree";
        require(!self.is_closed(inviter), closed)?;
        let admission = &self.terms.manifest().admission;
        // Together with the depth it bounds how many keys one founder can bring in, for whom it answers.
        let quota = inviter.invited < admission.member_invites;
        require(quota, "this member has brought in as many as it may (admission.member_invites)")?;
        require(inviter.depth < admission.depth, "the chain of invitations is too long (admission.depth)")?;
        let known = Newcomer::known(Role::Node, false);
        Ok(Newcomer { inviter: Some(author), depth: inviter.depth + 1, stranger: true, ..known })
    }

    /// STAND-8: strangers come in turn. Those without weight never take more than half of all places, and the last quarter
    /// is for those whom the organiser brings in.
    fn require_room(&self, entry: &Newcomer) -> Result<(), Reject> {
        if !entry.stranger {
            return Ok(());
        }
        let admission = &self.terms.manifest().admission;
        require(
            self.strangers < admission.per_round,
            "enough newcomers came in this round (admission.per_round); try again in the next one",
        )?;
        // Those that have gone count as well: their places are used up for good.
        let most = usize::from(admission.most_members);
        let unproved = self.members.iter().filter(|m| m.stranger && !self.weighs(m)).count();
        require(2 * unproved < most, "too many newcomers have earned no weight yet; try again later")?;
        let full = "the last quarter of the run's places is for those whom the organiser invites (admission.most_members)";
        require(4 * self.members.len() < 3 * most, full)
    }

    /// Whether a member may invite nobody any more: its own tree is closed, or that of an inviter above it (STAND-6).
    pub(in crate::ledger) fn is_closed(&self, member: &Member) -> bool {
        let mut above = Some(member);
        while let Some(member) = above {
            if member.closed.is_some() {
                return true;
            }
            // Who invites was there before: the chain ends.
            above = member.inviter.as_ref().and_then(|inviter| self.member(inviter));
        }
        false
    }

    /// Closes the trees of a convict and of its inviter.
    pub(super) fn close_trees(&mut self, convict: &MemberId) {
        // STAND-6: whoever brought in a convict brings in nobody else.
        let inviter = self.member(convict).and_then(|member| member.inviter);
        for id in [Some(*convict), inviter].into_iter().flatten() {
            if let Some(member) = self.member_mut(&id) {
                member.closed = Some(Closed::Convicted);
            }
        }
    }

    /// Checks the organiser's order to close a member's tree.
    pub(in crate::ledger) fn check_close_tree(
        &self,
        chain: &ChainTip,
        signed: &Signed<CloseTree>,
    ) -> Result<Verified<CloseTree>, Reject> {
        let order = signed.verify(self.terms.run())?;
        // LEDGER-21: signed by the organiser; the named is a member that is not closed.
        if order.author() != self.terms.manifest().organiser {
            return Err(Reject::NotEntitled("close a tree: only the organiser does"));
        }
        let member = self.member(&order.member).ok_or(Reject::Rule("only a member's tree is closed"))?;
        require(!self.is_closed(member), "nobody comes by this member any more: its tree is closed already")?;
        // An order that changes nothing would only stay on everybody's disk.
        require(chain.takes_members(), "nobody comes to this run any more")?;
        Ok(order)
    }

    /// STAND-6: closing bans nobody, and takes nothing from who is there.
    pub(in crate::ledger) fn apply_close_tree(&mut self, order: &CloseTree) {
        // A suspicion is no evidence: closing stops only what can be refused without any, more keys.
        if let Some(member) = self.member_mut(&order.member) {
            member.closed = Some(Closed::Ordered);
        }
    }
}
