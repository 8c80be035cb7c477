//! Who is a member, and how each stands. Only this room changes a [`Member`].

mod admission;
mod credit;
mod failures;
mod presence;
mod seats;
mod shares;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::chain::ChainTip;
use super::member::{Holding, Member, Standing};
use super::terms::Terms;
use crate::bug::OrBug;
use crate::coins::{Coin, CoinKind, CoinOpening};
use crate::error::{Reject, require};
use crate::ids::{Digest, MemberId, Round};
use crate::messages::enrol::Role;
pub(super) use admission::Entrant;
use presence::Debt;
pub(super) use seats::Aggregators;

/// All members ever admitted.
#[derive(Clone)]
pub(super) struct Roster {
    terms: Arc<Terms>,
    /// In order of admission.
    members: Vec<Member>,
    index: BTreeMap<MemberId, usize>,
    /// How often each invitation was used.
    invitations: BTreeMap<Digest, u32>,
    /// Strangers admitted since the last outcome.
    strangers: u16,
    /// What silent members owe an answer to.
    debts: BTreeMap<MemberId, Debt>,
}

impl Roster {
    pub(super) fn new(terms: &Arc<Terms>) -> Self {
        Self {
            terms: Arc::clone(terms),
            members: Vec::new(),
            index: BTreeMap::new(),
            invitations: BTreeMap::new(),
            strangers: 0,
            debts: BTreeMap::new(),
        }
    }

    /// Members in order of admission.
    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    pub(super) fn member(&self, id: &MemberId) -> Option<&Member> {
        self.members.get(*self.index.get(id)?)
    }

    fn member_mut(&mut self, id: &MemberId) -> Option<&mut Member> {
        self.members.get_mut(*self.index.get(id)?)
    }

    pub(super) fn active(&self, role: Role) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(move |m| m.role == role && m.standing == Standing::Active)
    }

    /// Nodes that have not gone for good, in order of admission.
    pub(super) fn nodes_still(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.is_node_still())
    }

    pub(super) fn is_banned(&self, member: &MemberId) -> bool {
        self.member(member).is_some_and(|member| member.standing == Standing::Banned)
    }

    pub(super) fn is_active_verifier(&self, member: &MemberId) -> bool {
        let active = |member: &Member| member.role == Role::Verifier && member.standing == Standing::Active;
        self.member(member).is_some_and(active)
    }

    pub(super) fn is_verifier(&self, member: &MemberId) -> bool {
        self.member(member).is_some_and(|member| member.role == Role::Verifier)
    }

    /// Whether the run waits for verifiers, and none of them takes part.
    pub(super) fn is_unwatched(&self) -> bool {
        self.terms.manifest().admission.start_verifiers > 0 && self.active(Role::Verifier).next().is_none()
    }

    /// Whether a member is away and may not return yet.
    pub(super) fn sits_out(&self, chain: &ChainTip, member: &Member) -> bool {
        // LEDGER-20: where no verifier is active no round is spent (ROUND-33), so that those it sits out would never come.
        let missed = member.role == Role::Verifier && self.active(Role::Verifier).next().is_none();
        member.standing == Standing::Away && chain.is_barred(member.barred) && !missed
    }

    /// Active verifiers with coins for a round, in order of admission.
    pub(super) fn verifiers_of(&self, round: Round) -> Vec<MemberId> {
        // One without coins for the round could select nobody, and its share would stay unaudited.
        let serves = |member: &&Member| member.coins.as_ref().is_some_and(|terms| terms.serves(round));
        self.active(Role::Verifier).filter(serves).map(|member| member.id).collect()
    }

    /// The node coin of a verifier for a round, which this opening shows.
    pub(super) fn node_coin(
        &self,
        opening: &CoinOpening,
        verifier: &MemberId,
        round: Round,
    ) -> Result<Coin, Reject> {
        let terms = self.member(verifier).and_then(|member| member.coins.as_ref());
        let coin = opening.verify(terms.ok_or(Reject::NotEntitled("audit: it is no verifier"))?)?;
        require(
            // With a coin of another round, or kind, its verifier could choose whom it selects.
            coin.kind() == CoinKind::Node && coin.round() == round,
            "the round's node coin is shown",
        )?;
        Ok(coin)
    }

    /// A row was dealt to a member, or drawn for it.
    pub(super) fn apply_holding(&mut self, id: &MemberId, holding: Holding) {
        let member = self.member_mut(id).or_bug("a member that a row was drawn for");
        member.into_iter().for_each(|member| member.holding = Some(holding));
    }

    /// A member has said that it holds its row.
    pub(super) fn apply_ready(&mut self, id: &MemberId) {
        let holding = self.member_mut(id).and_then(|member| member.holding.as_mut());
        holding
            .or_bug("the row of a member that was ready")
            .into_iter()
            .for_each(|holding| holding.ready = true);
    }

    /// ROW-4: nobody holds a row any more.
    pub(super) fn apply_withdrawal(&mut self) {
        self.members.iter_mut().for_each(|member| member.holding = None);
    }
}
