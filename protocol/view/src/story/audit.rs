//! Audits, as they are asked for, answered and decided.

use std::collections::{BTreeMap, VecDeque};

use muster_core::grid::LOSS_ONE;
use muster_core::ids::{Digest, MemberId, Round};
use muster_core::messages::audit::{AuditRequest, Finding, FindingKind, Rows, Verdict};
use muster_core::messages::record::{Ban, Credit};
use serde::Serialize;

use super::full;

/// Audits that are remembered, the newest ones.
const AUDITS: usize = 100_000;
/// Tables that are kept until their verdict.
const TABLES: usize = 256;

/// One audit.
#[derive(Clone, Debug, Serialize)]
pub struct AuditedBy {
    /// Round of the contribution.
    pub round: u32,
    /// Whose.
    pub member: String,
    /// Who audits.
    pub verifier: String,
    /// How far it is.
    pub state: AuditState,
    /// Leaves that were recomputed.
    pub leaves: Option<u32>,
    /// What was found, and where.
    pub reason: String,
}

/// How far an audit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditState {
    /// The verifier has asked; the member seals its table.
    Requested,
    /// The member has sealed its table; leaves are drawn and recomputed.
    Recomputing,
    /// Both sides are sealed and the table is open; the verdict is due.
    Opened,
    /// All equal.
    Passed,
    /// Something is wrong; the steward examines it.
    Guilty,
    /// Something is wrong, and the member is banned.
    Banned,
    /// The member did not answer in time.
    Silent,
}

impl AuditState {
    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Recomputing => "recomputing",
            Self::Opened => "opened",
            Self::Passed => "passed",
            Self::Guilty => "guilty",
            Self::Banned => "banned",
            Self::Silent => "silent",
        }
    }
}

type Key = (Round, MemberId, MemberId);

/// The audits of a run, oldest first; of very long runs the newest.
#[derive(Default)]
pub struct Audits {
    lines: VecDeque<AuditedBy>,
    /// Number of the first of `lines`.
    first: usize,
    places: BTreeMap<Key, usize>,
    /// Of requests whose verdict is not there yet.
    requests: BTreeMap<Digest, Key>,
    tables: BTreeMap<Digest, Rows>,
    /// Ended well, ended badly, unanswered.
    counts: [u64; 3],
}

impl Audits {
    /// Oldest first.
    pub fn lines(&self) -> &VecDeque<AuditedBy> {
        &self.lines
    }

    /// How many passed, how many found something, how many were not answered.
    pub fn counts(&self) -> [u64; 3] {
        self.counts
    }

    /// How many are remembered of a member, or by a verifier, newest first.
    pub fn of<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a AuditedBy> + 'a {
        self.lines.iter().rev().filter(move |line| line.member == id || line.verifier == id)
    }

    fn at(&mut self, key: Key) -> &mut AuditedBy {
        let number = match self.places.get(&key) {
            Some(number) if *number >= self.first => *number,
            _ => self.begin(key),
        };
        &mut self.lines[number - self.first]
    }

    fn begin(&mut self, key: Key) -> usize {
        if self.lines.len() == AUDITS {
            self.lines.pop_front();
            self.first += 1;
            let first = self.first;
            self.places.retain(|_, number| *number >= first);
        }
        let (round, member, verifier) = key;
        self.lines.push_back(AuditedBy {
            round: round.0,
            member: full(&member),
            verifier: full(&verifier),
            state: AuditState::Requested,
            leaves: None,
            reason: String::new(),
        });
        let number = self.first + self.lines.len() - 1;
        self.places.insert(key, number);
        number
    }

    fn decide(&mut self, key: Key, state: AuditState) -> &mut AuditedBy {
        let place = |state| match state {
            AuditState::Passed => Some(0),
            AuditState::Guilty | AuditState::Banned => Some(1),
            AuditState::Silent => Some(2),
            _ => None,
        };
        let (before, now) = (place(self.at(key).state), place(state));
        if before != now {
            before.into_iter().for_each(|place| self.counts[place] -= 1);
            now.into_iter().for_each(|place| self.counts[place] += 1);
        }
        let line = self.at(key);
        line.state = state;
        line
    }

    /// A verifier asks.
    pub(crate) fn request(&mut self, digest: Digest, round: Round, member: MemberId, verifier: MemberId) {
        let key = (round, member, verifier);
        self.at(key);
        self.requests.insert(digest, key);
        while self.requests.len() > TABLES {
            self.requests.pop_first();
        }
    }

    /// A verdict fell, by what the log says; `finding` in words, none where nothing was wrong.
    pub(crate) fn logged(&mut self, request: &Digest, leaves: u32, finding: Option<&str>) {
        let Some(key) = self.requests.get(request).copied() else { return };
        if self.at(key).reason.is_empty() {
            self.decide_logged(key, finding);
            let line = self.at(key);
            line.leaves = Some(leaves);
            line.reason = match finding {
                None => format!("{leaves} leaves recomputed, all equal"),
                Some(finding) => format!("{finding}, after {leaves} leaves were recomputed"),
            };
        }
    }

    /// All leaves of a member that did not answer were recomputed, by what the log says.
    pub(crate) fn recomputed(
        &mut self,
        round: Round,
        member: MemberId,
        verifier: MemberId,
        finding: Option<&str>,
    ) {
        let key = (round, member, verifier);
        self.decide_logged(key, finding);
        self.at(key).reason =
            format!("the member did not answer; all leaves recomputed: {}", finding.unwrap_or("all equal"));
    }

    /// A ban says more than a verdict.
    fn decide_logged(&mut self, key: Key, finding: Option<&str>) {
        let state = if finding.is_some() { AuditState::Guilty } else { AuditState::Passed };
        if self.at(key).state != AuditState::Banned {
            self.decide(key, state);
        }
    }

    /// The audit of a request has come so far.
    pub(crate) fn reached(&mut self, request: &Digest, state: AuditState) {
        let Some(key) = self.requests.get(request).copied() else { return };
        let line = self.at(key);
        if matches!(line.state, AuditState::Requested | AuditState::Recomputing) {
            line.state = state;
        }
    }

    /// The member has opened its table.
    pub(crate) fn opened(&mut self, request: Digest, rows: Rows) {
        self.reached(&request, AuditState::Opened);
        self.tables.insert(request, rows);
        while self.tables.len() > TABLES {
            self.tables.pop_first();
        }
    }

    /// A verdict fell.
    pub(crate) fn judge(&mut self, verdict: &Verdict) {
        let rows = self.tables.remove(&verdict.request);
        let Some(key) = self.requests.remove(&verdict.request) else { return };
        let state = match verdict.finding {
            Finding::Pass => AuditState::Passed,
            Finding::Guilty(_) => AuditState::Guilty,
        };
        let banned = self.at(key).state == AuditState::Banned;
        let line = if banned { self.at(key) } else { self.decide(key, state) };
        line.leaves = Some(verdict.results.len() as u32);
        line.reason = reason(verdict, rows.as_ref());
    }

    /// A verdict that the ledger credits.
    pub(super) fn credit(&mut self, credit: &Credit) {
        let line = self.decide((credit.round, credit.member, credit.verifier), AuditState::Passed);
        line.leaves = Some(credit.leaves);
        if line.reason.is_empty() {
            line.reason = format!("{} leaves recomputed, all equal", credit.leaves);
        }
    }

    /// A ban; one that rests on an audit ends it.
    pub(super) fn convict(&mut self, ban: &Ban) {
        let of_audit = matches!(
            ban.finding,
            FindingKind::SumMismatch | FindingKind::LeafMismatch | FindingKind::TotalMismatch
        );
        if of_audit {
            let line = self.decide((ban.round, ban.culprit, ban.accuser), AuditState::Banned);
            if line.reason.is_empty() {
                line.reason = ban.finding.words().into();
            }
        }
    }

    /// The member did not answer.
    pub(super) fn silent(&mut self, request: &AuditRequest, verifier: MemberId) {
        let key = (request.round, request.target, verifier);
        self.decide(key, AuditState::Silent).reason = "the member did not answer in time".into();
    }
}

/// Why a verdict fell as it did.
fn reason(verdict: &Verdict, rows: Option<&Rows>) -> String {
    let drawn = verdict.results.len();
    let kind = match verdict.finding {
        Finding::Pass => return format!("{drawn} leaves recomputed, all equal"),
        Finding::Guilty(kind) => kind,
    };
    let differing = verdict.results.iter().find_map(|result| {
        let sealed = rows?.get(result.position as usize)?;
        (*sealed != result.row).then_some((result, sealed))
    });
    let nats = |loss: i64| loss as f64 / LOSS_ONE as f64;
    match (kind, differing) {
        (FindingKind::LeafMismatch, Some((result, sealed))) if sealed.loss != result.row.loss => format!(
            "leaf {} of the contribution: the member sealed a loss of {:.4}, recomputed it has {:.4}",
            result.position,
            nats(sealed.loss),
            nats(result.row.loss)
        ),
        (FindingKind::LeafMismatch, Some((result, _))) => format!(
            "leaf {} of the contribution: its loss agrees, the fingerprint of its gradient differs",
            result.position
        ),
        (FindingKind::SumMismatch, _) => {
            "the rows that the member sealed do not add up to the sum that it committed".into()
        }
        (FindingKind::TotalMismatch, _) => "all leaves recomputed do not give the committed sum".into(),
        (kind, _) => kind.words().into(),
    }
}
