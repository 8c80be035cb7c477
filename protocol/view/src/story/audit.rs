//! Audits, as they are asked for, answered and decided.

use std::collections::{BTreeMap, VecDeque};

use muster_core::grid::LOSS_ONE;
use muster_core::ids::{Digest, MemberId, Round};
use muster_core::messages::audit::{AuditRequest, Finding, FindingKind, Rows, Verdict};
use muster_core::messages::record::{Ban, Credit};
use serde::Serialize;

use super::full;
use crate::words::counted;

/// Audits that are remembered, the newest ones.
const AUDITS: usize = 100_000;
/// Requests whose verdict may still come.
const REQUESTS: usize = 8_192;
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
    /// The verifier says that something is wrong; the steward examines it.
    Accused,
    /// Something is wrong, and the member is banned.
    Banned,
    /// What the verifier said was not so.
    Dismissed,
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
            Self::Accused => "accused",
            Self::Banned => "banned",
            Self::Dismissed => "dismissed",
            Self::Silent => "silent",
        }
    }

    /// Which of the counts it belongs to.
    fn place(self) -> Option<usize> {
        match self {
            Self::Passed => Some(0),
            Self::Accused | Self::Banned => Some(1),
            Self::Silent => Some(2),
            Self::Requested | Self::Recomputing | Self::Opened | Self::Dismissed => None,
        }
    }
}

/// Round, member, verifier.
type Key = (Round, MemberId, MemberId);

/// Values by digest, of which the oldest go first.
struct Recent<T> {
    values: BTreeMap<Digest, T>,
    order: VecDeque<Digest>,
    most: usize,
}

impl<T> Recent<T> {
    fn of(most: usize) -> Self {
        Self { values: BTreeMap::new(), order: VecDeque::new(), most }
    }

    fn put(&mut self, name: Digest, value: T) {
        if self.values.insert(name, value).is_none() {
            self.order.push_back(name);
        }
        if self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.values.remove(&oldest);
        }
    }
}

/// The audits of a run, oldest first; of very long runs the newest.
pub struct Audits {
    lines: VecDeque<AuditedBy>,
    /// Of each line.
    keys: VecDeque<Key>,
    /// Number of the first of `lines`.
    first: usize,
    places: BTreeMap<Key, usize>,
    requests: Recent<Key>,
    tables: Recent<Rows>,
    /// Ended well, ended badly, unanswered.
    counts: [u64; 3],
}

impl Default for Audits {
    fn default() -> Self {
        Self {
            lines: VecDeque::new(),
            keys: VecDeque::new(),
            first: 0,
            places: BTreeMap::new(),
            requests: Recent::of(REQUESTS),
            tables: Recent::of(TABLES),
            counts: [0; 3],
        }
    }
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

    /// How many passed, by verifier.
    pub fn passed(&self) -> BTreeMap<&str, u64> {
        let mut passed = BTreeMap::new();
        for line in self.lines.iter().filter(|line| line.state == AuditState::Passed) {
            *passed.entry(line.verifier.as_str()).or_default() += 1;
        }
        passed
    }

    /// Those of a member, or by a verifier, newest first.
    pub fn of<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a AuditedBy> + 'a {
        self.lines.iter().rev().filter(move |line| line.member == id || line.verifier == id)
    }

    /// Adds audits that no record tells of, for a story that is told.
    pub fn enlist(&mut self, audits: impl IntoIterator<Item = (Round, MemberId, MemberId)>) {
        for key in audits {
            self.decide(key, AuditState::Passed);
        }
    }

    /// The line of an audit; none of one that was forgotten.
    fn at(&mut self, key: Key) -> Option<&mut AuditedBy> {
        let number = match self.places.get(&key) {
            Some(number) => *number,
            None if self.first > 0 && self.keys.front().is_some_and(|(oldest, ..)| key.0 < *oldest) => {
                return None;
            }
            None => self.begin(key),
        };
        self.lines.get_mut(number - self.first)
    }

    fn begin(&mut self, key: Key) -> usize {
        if self.lines.len() == AUDITS {
            self.lines.pop_front();
            self.first += 1;
            if let Some(oldest) = self.keys.pop_front() {
                self.places.remove(&oldest);
            }
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
        self.keys.push_back(key);
        let number = self.first + self.lines.len() - 1;
        self.places.insert(key, number);
        number
    }

    fn decide(&mut self, key: Key, state: AuditState) -> Option<&mut AuditedBy> {
        let before = self.at(key)?.state.place();
        if before != state.place() {
            before.into_iter().for_each(|place| self.counts[place] -= 1);
            state.place().into_iter().for_each(|place| self.counts[place] += 1);
        }
        let line = self.at(key)?;
        line.state = state;
        Some(line)
    }

    /// A verifier asks; the digest names its request.
    pub(crate) fn request(&mut self, digest: Digest, round: Round, member: MemberId, verifier: MemberId) {
        let key = (round, member, verifier);
        if self.at(key).is_some() {
            self.requests.put(digest, key);
        }
    }

    /// The audited member, by the digest of the request.
    pub(crate) fn audited(&self, request: &Digest) -> Option<MemberId> {
        self.requests.values.get(request).map(|(_, member, _)| *member)
    }

    /// Who audits, by the digest of the request.
    pub(crate) fn auditor(&self, request: &Digest) -> Option<MemberId> {
        self.requests.values.get(request).map(|(.., verifier)| *verifier)
    }

    /// The audit of a request has come so far.
    pub(crate) fn reached(&mut self, request: &Digest, state: AuditState) {
        let key = self.requests.values.get(request).copied();
        let Some(line) = key.and_then(|key| self.at(key)) else { return };
        if matches!(line.state, AuditState::Requested | AuditState::Recomputing) {
            line.state = state;
        }
    }

    /// The member has opened its table.
    pub(crate) fn opened(&mut self, request: Digest, rows: Rows) {
        self.reached(&request, AuditState::Opened);
        if self.requests.values.contains_key(&request) {
            self.tables.put(request, rows);
        }
    }

    /// A verdict fell.
    pub(crate) fn judge(&mut self, verdict: &Verdict) {
        let Some(key) = self.requests.values.get(&verdict.request).copied() else { return };
        let reason = reason(verdict, self.tables.values.get(&verdict.request));
        if self.decide_unless_banned(key, verdict.finding != Finding::Pass)
            && let Some(line) = self.at(key)
        {
            line.leaves = Some(verdict.results.len() as u32);
            line.reason = reason;
        }
    }

    /// A verdict fell, by what the log says; `finding` in words, none where nothing was wrong.
    pub(crate) fn logged(&mut self, request: &Digest, leaves: u32, finding: Option<&str>) {
        let key = self.requests.values.get(request).copied();
        // What was heard says more than the log.
        let Some(key) = key.filter(|key| self.at(*key).is_some_and(|line| line.reason.is_empty())) else {
            return;
        };
        if self.decide_unless_banned(key, finding.is_some())
            && let Some(line) = self.at(key)
        {
            line.leaves = Some(leaves);
            line.reason = match finding {
                None => equal(leaves),
                Some(finding) => format!("{finding}, after recomputing {}", counted(leaves, "leaf")),
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
        if self.decide_unless_banned(key, finding.is_some())
            && let Some(line) = self.at(key)
        {
            let finding = finding.unwrap_or("all equal");
            line.reason = format!("the member did not answer; all leaves recomputed: {finding}");
        }
    }

    /// A ban says more than a verdict. Whether the line is there.
    fn decide_unless_banned(&mut self, key: Key, guilty: bool) -> bool {
        let state = if guilty { AuditState::Accused } else { AuditState::Passed };
        match self.at(key).map(|line| line.state) {
            None => false,
            Some(AuditState::Banned) => true,
            Some(_) => self.decide(key, state).is_some(),
        }
    }

    /// A verdict that the ledger credits.
    pub(super) fn credit(&mut self, credit: &Credit) {
        let key = (credit.round, credit.member, credit.verifier);
        let silent = self.at(key).is_some_and(|line| line.state == AuditState::Silent);
        let Some(line) = self.decide(key, AuditState::Passed) else { return };
        line.leaves = Some(credit.leaves);
        if line.reason.is_empty() || silent {
            line.reason = equal(credit.leaves);
        }
    }

    /// A ban; one that rests on an audit ends it, and one of a verifier for its word ends what that said.
    pub(super) fn convict(&mut self, ban: &Ban) {
        use FindingKind::{FalseAccusation, LeafMismatch, SumMismatch, TotalMismatch};
        if matches!(ban.finding, SumMismatch | LeafMismatch | TotalMismatch) {
            if let Some(line) = self.decide((ban.round, ban.culprit, ban.accuser), AuditState::Banned)
                && line.reason.is_empty()
            {
                line.reason = ban.finding.words().into();
            }
        } else if ban.finding == FalseAccusation {
            self.dismiss(|key| key.0 == ban.round && key.2 == ban.culprit);
        }
    }

    /// An accusation came to nothing, by what the log says.
    pub(crate) fn acquit(&mut self, member: MemberId, accuser: MemberId) {
        self.dismiss(|key| key.1 == member && key.2 == accuser);
    }

    fn dismiss(&mut self, meant: impl Fn(&Key) -> bool) {
        let lines = self.keys.iter().zip(&self.lines);
        let accused = lines.filter(|(key, line)| line.state == AuditState::Accused && meant(key));
        let keys: Vec<Key> = accused.map(|(key, _)| *key).collect();
        for key in keys {
            if let Some(line) = self.decide(key, AuditState::Dismissed) {
                line.reason = format!("the verifier said: {}; that was not so", line.reason);
            }
        }
    }

    /// The member did not answer.
    pub(super) fn silent(&mut self, request: &AuditRequest, verifier: MemberId) {
        let key = (request.round, request.target, verifier);
        if let Some(line) = self.decide(key, AuditState::Silent) {
            line.reason = "the member did not answer in time".into();
        }
    }
}

fn equal(leaves: u32) -> String {
    format!("{} recomputed, all equal", counted(leaves, "leaf"))
}

/// Why a verdict fell as it did. `rows` is the member's table, where honest tables have the bits that were recomputed.
fn reason(verdict: &Verdict, rows: Option<&Rows>) -> String {
    let kind = match verdict.finding {
        Finding::Pass => return equal(verdict.results.len() as u32),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> MemberId {
        let mut id = [0; 32];
        id[..4].copy_from_slice(&number.to_be_bytes());
        MemberId(id)
    }

    fn ban(finding: FindingKind, culprit: u32, accuser: u32) -> Ban {
        Ban {
            culprit: id(culprit),
            effective: Round(3),
            round: Round(1),
            finding,
            evidence: Digest::default(),
            accuser: id(accuser),
            jury: Default::default(),
        }
    }

    #[test]
    fn verdicts_are_found_however_many_audits_there_were() {
        let mut audits = Audits::default();
        let digest =
            |round: u32| Digest(muster_core::hash::hash_of(muster_core::hash::Domain::SELECT, &round).0);
        for round in 0..AUDITS as u32 + 10 {
            audits.request(digest(round), Round(round), id(1), id(2));
            audits.logged(&digest(round), 4, None);
        }
        assert_eq!(audits.counts(), [AUDITS as u64 + 10, 0, 0]);
        assert!(audits.lines().iter().all(|line| line.state == AuditState::Passed));
        assert_eq!(
            (audits.lines().len(), audits.lines()[0].round, audits.places.len()),
            (AUDITS, 10, AUDITS)
        );
        // What is forgotten does not come back as the newest.
        let late =
            Credit { verdict: Digest::default(), round: Round(3), member: id(1), verifier: id(2), leaves: 4 };
        audits.credit(&late);
        assert_eq!((audits.lines().len(), audits.counts()[0]), (AUDITS, AUDITS as u64 + 10));
        assert!(audits.requests.values.len() <= REQUESTS && audits.requests.order.len() <= REQUESTS);
    }

    #[test]
    fn a_verifier_that_lied_marks_nobody() {
        let mut audits = Audits::default();
        for member in [5, 6] {
            audits.request(Digest([member; 32]), Round(1), id(member.into()), id(2));
            audits.logged(&Digest([member; 32]), 4, Some("leaf mismatch"));
        }
        assert_eq!((audits.counts()[1], audits.lines()[0].state), (2, AuditState::Accused));
        audits.acquit(id(5), id(2));
        assert_eq!((audits.counts()[1], audits.lines()[0].state), (1, AuditState::Dismissed));
        audits.convict(&ban(FindingKind::FalseAccusation, 2, 3));
        assert_eq!((audits.counts(), audits.lines()[1].state), ([0, 0, 0], AuditState::Dismissed));
    }

    #[test]
    fn a_ban_outlasts_the_verdict_that_comes_after_it() {
        let mut audits = Audits::default();
        audits.request(Digest([5; 32]), Round(1), id(5), id(2));
        audits.convict(&ban(FindingKind::LeafMismatch, 5, 2));
        audits.logged(&Digest([5; 32]), 4, Some("leaf mismatch"));
        assert_eq!((audits.counts(), audits.lines()[0].state), ([0, 1, 0], AuditState::Banned));
    }
}
