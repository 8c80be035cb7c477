//! One member as the ledger has it.

use std::collections::BTreeMap;

use crate::coins::CoinTerms;
use crate::ids::{Digest, Height, MemberId, Round, Row, ShareClass};
use crate::messages::enrol::{Addresses, Engagement, Name, Role};
use crate::messages::record::Record;
use crate::sign::Signed;

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
    /// What it wants to do, if it is a node.
    pub engagement: Engagement,
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
    /// How much of a round it reduces beside others (LEDGER-25). It stays when the member goes away and returns.
    pub share: ShareClass,
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
    /// What it has done so far.
    pub service: Service,
}

/// STAND-12: what a member has done for the run, by sealed records alone: the same for everybody, and after every restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// A node's leaves that counted in rounds that are over, those that were taken back later included.
    pub leaves: u64,
    /// A verifier's audits that found all equal, as far as they are sealed as credit.
    pub passed: u64,
    /// Members that were banned on its accusation.
    pub convicted: u64,
    /// How often a verifier left its duty undone.
    pub idle: u64,
}

impl core::iter::Sum for Service {
    fn sum<I: Iterator<Item = Self>>(services: I) -> Self {
        services.fold(Self::default(), |sum, one| Self {
            leaves: sum.leaves.saturating_add(one.leaves),
            passed: sum.passed.saturating_add(one.passed),
            convicted: sum.convicted.saturating_add(one.convicted),
            idle: sum.idle.saturating_add(one.idle),
        })
    }
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

/// The row that a node was drawn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Which.
    pub row: Row,
    /// Whether it holds the row: it has said so, or it held all rows when they came to be.
    pub ready: bool,
    /// The next round when the row was dealt to it, or it was drawn for the row.
    pub since: Round,
}

impl Member {
    /// Whether it is a node that has not gone for good.
    pub fn is_node_still(&self) -> bool {
        self.role == Role::Node && !matches!(self.standing, Standing::Left | Standing::Banned)
    }

    /// Whether it is a node that has not gone for good and computes leaves while it takes part (LEDGER-24).
    pub fn trains(&self) -> bool {
        self.is_node_still() && self.engagement == Engagement::Trains
    }

    /// Whether it takes part, in a word for people.
    pub fn standing_word(&self) -> &'static str {
        match self.standing {
            Standing::Active => self.engagement.word().unwrap_or("active"),
            Standing::Away => "away",
            Standing::Silent(_) => "silent",
            Standing::Left => "left",
            Standing::Banned => "banned",
        }
    }

    /// The row of the member in a round on a state with so many rows, where `dealt` says who is dealt which with that round;
    /// none where it holds none that it could compute on.
    pub(super) fn row_in(&self, rows: u16, dealt: &BTreeMap<MemberId, Row>) -> Option<Row> {
        if rows == 1 {
            return Some(Row(0));
        }
        let holding = self.holding.filter(|holding| holding.ready).map(|holding| holding.row);
        holding.or_else(|| dealt.get(&self.id).copied())
    }
}
