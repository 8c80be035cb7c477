//! A member and its standing.

use muster_core::ids::Round;
use muster_core::ledger::{Ledger, Member, RoundView, Standing};
use serde::Serialize;

use super::full;

/// A member.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MemberLine {
    /// Its key.
    pub id: String,
    /// The beginning of it, for people.
    pub short: String,
    /// What it calls itself; may be empty.
    pub name: String,
    /// What it does.
    pub role: &'static str,
    /// Height of the record that admitted it.
    pub admitted: u64,
    /// Who brought it in; none where the organiser did, or nobody.
    pub inviter: Option<String>,
    /// Length of the chain of invitations by which it came.
    pub depth: u8,
    /// Members that it brought in.
    pub invited: u16,
    /// Whether it has weight without probation.
    pub founder: bool,
    /// Whether its tree of invitations is closed.
    pub tree_closed: bool,
    /// Whether it takes part, in a word.
    pub standing: &'static str,
    /// What keeps it from counting, if anything.
    pub penalty: Option<Penalty>,
    /// Rounds that it let wait in vain, without those that are forgotten.
    pub failures: u8,
    /// Rounds in which it counted.
    pub rounds: u64,
    /// Leaves that counted.
    pub leaves: u64,
    /// Leaves that verifiers recomputed and found right.
    pub verified: u64,
    /// The probability that a verifier audits its round.
    pub audited: f64,
    /// Its share of the weight of the last round, if it counted in it.
    pub share: Option<f64>,
    /// The row of experts that it holds.
    pub row: Option<u16>,
    /// How fast its line is beside others (LEDGER-25); none where lines are not weighed.
    pub share_class: Option<u8>,
}

/// Why a member does not count now.
#[derive(Clone, Debug, Serialize)]
pub enum Penalty {
    /// Leaves are still to be recomputed before it has weight.
    Probation {
        /// Found right so far, as far as they count towards it.
        done: u64,
        /// Wanted.
        wanted: u32,
    },
    /// It sits out until this round.
    Barred(u32),
}

impl Penalty {
    /// In words.
    pub fn words(&self) -> String {
        match self {
            Self::Probation { done, wanted } => format!("on probation: {done} of {wanted} leaves recomputed"),
            Self::Barred(round) => format!("sits out until round {round}, for rounds that it let wait"),
        }
    }
}

impl MemberLine {
    /// Its name beside the beginning of its key: names are not unique.
    pub fn label(&self) -> String {
        if self.name.is_empty() { self.short.clone() } else { format!("{} · {}", self.name, self.short) }
    }

    pub(super) fn admitted(member: &Member, height: u64) -> Self {
        Self {
            id: full(&member.id),
            short: member.id.to_string(),
            name: member.name.to_string(),
            role: member.role.word(),
            admitted: height,
            inviter: member.inviter.as_ref().map(full),
            depth: member.depth,
            invited: 0,
            founder: member.founder,
            tree_closed: false,
            standing: "active",
            penalty: None,
            failures: 0,
            rounds: 0,
            leaves: 0,
            verified: 0,
            audited: 0.0,
            share: None,
            row: None,
            share_class: None,
        }
    }

    pub(super) fn stand(&mut self, ledger: &Ledger, member: &Member) {
        self.standing = member.standing_word();
        let next: Round = ledger.next_round();
        let wanted = ledger.manifest().admission.probation;
        let present = matches!(member.standing, Standing::Active | Standing::Away | Standing::Silent(_));
        let node = self.role == "node";
        self.penalty = match () {
            () if !present || !node => None,
            () if member.barred > next => Some(Penalty::Barred(member.barred.0)),
            () if wanted > 0 && !ledger.weighs(member) => {
                Some(Penalty::Probation { done: ledger.vouched(member), wanted })
            }
            () => None,
        };
        self.invited = member.invited;
        self.tree_closed = ledger.is_closed(member);
        self.failures = member.failures;
        self.verified = ledger.credit(member);
        self.audited = f64::from(ledger.audit_ppm(member)) / 1e6;
        self.row = member.holding.map(|holding| holding.row.0);
        let weighs = node && ledger.current().is_some_and(RoundView::weighs_lines);
        self.share_class = weighs.then_some(member.share.0);
    }

    /// Its name, or the beginning of its key.
    pub fn called(&self) -> &str {
        if self.name.is_empty() { &self.short } else { &self.name }
    }
}
