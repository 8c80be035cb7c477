//! After a conviction: which of the convict's contributions and parts were false, and whether the state goes
//! back for it.

use std::collections::{BTreeMap, BTreeSet};

use muster_core::ids::{Digest, MemberId, Part, Round};
use muster_core::ledger::{Ledger, RoundView, Stage};
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::{Ban, Rewind};

use super::exhibits::Exhibits;

/// What the steward found out about one past round of a convict.
#[derive(Clone, Debug, PartialEq)]
pub struct PastRound {
    /// The round.
    pub round: Round,
    /// The convict's contribution, if that counted.
    pub contribution: Option<Found>,
    /// The parts that the convict signed.
    pub parts: Vec<(Part, Found)>,
    /// How far the false contribution and parts moved the aggregate, where that was measured.
    pub harm: Option<f64>,
    /// Evidence against wrong parts: others may have signed the same.
    pub wrong: Vec<Evidence>,
}

/// What the steward found out about one contribution, or one part.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// It follows from the state and the text, or from the rule.
    Right,
    /// It does not, or cannot be shown to.
    False,
    /// It could not be computed again, and why.
    Unknown(String),
}

impl PastRound {
    /// Whether the convict's contribution or a part of its was false.
    pub fn is_bad(&self) -> bool {
        let mut found = self.contribution.iter().chain(self.parts.iter().map(|(_, found)| found));
        found.any(|found| *found == Found::False)
    }
}

/// How far the convicts' pasts are looked into.
#[derive(Default)]
pub(super) struct Past {
    /// By convict.
    retros: BTreeMap<MemberId, Retro>,
    /// States that a Rewind can go back to.
    states: BTreeSet<Digest>,
}

/// What is known of one convict.
enum Retro {
    /// Its last round is not over, or its exhibits are not complete; since when only exhibits are missing.
    Waiting(Ban, Option<u64>),
    /// Being measured.
    Measuring(Ban),
    /// Its harm is beyond the limit, so that the state is to go back; the rounds that it moved.
    Beyond(Ban, Vec<Round>),
    /// Nothing more follows.
    Over,
}

/// What follows from convictions now.
pub(super) struct Consequences {
    /// Convicts whose pasts are to be recomputed.
    pub(super) measure: Vec<MemberId>,
    /// Convicts whose harm is beyond the limit, while no Rewind reaches any round of it.
    pub(super) out_of_reach: Vec<MemberId>,
    /// ROLLBACK-3: the Rewind to propose.
    pub(super) rewind: Option<Rewind>,
}

impl Past {
    /// After a restart: the pasts of these convicts are looked into again.
    pub(super) fn new(bans: impl Iterator<Item = Ban>, states: BTreeSet<Digest>) -> Self {
        let retros = bans.map(|ban| (ban.culprit, Retro::Waiting(ban, None))).collect();
        Self { retros, states }
    }

    /// These are now the states that a Rewind can go back to.
    pub(super) fn holds(&mut self, states: BTreeSet<Digest>) {
        self.states = states;
    }

    /// A member was convicted: its past is looked into.
    pub(super) fn convicted(&mut self, ban: &Ban) {
        self.retros.insert(ban.culprit, Retro::Waiting(ban.clone(), None));
    }

    /// Goes on with what follows from convictions.
    pub(super) fn pursue(&mut self, ledger: &Ledger, now: u64, exhibits: &Exhibits) -> Consequences {
        let mut measure = Vec::new();
        // Until it is out, a convict has a seat and may contribute once more.
        let waiting = self.retros.values().filter_map(|retro| match retro {
            Retro::Waiting(ban, since) if is_out(ledger, ban) => Some((ban.clone(), since.unwrap_or(now))),
            _ => None,
        });
        for (ban, since) in waiting.collect::<Vec<_>>() {
            let culprit = ban.culprit;
            let retro = if is_complete(ledger, now, exhibits, &culprit, since) {
                measure.push(culprit);
                Retro::Measuring(ban)
            } else {
                Retro::Waiting(ban, Some(since))
            };
            self.retros.insert(culprit, retro);
        }
        let (rewind, out_of_reach) = self.go_back(ledger);
        for culprit in &out_of_reach {
            self.retros.insert(*culprit, Retro::Over);
        }
        Consequences { measure, out_of_reach, rewind }
    }

    /// ROLLBACK-5: a convict whose past is not measured yet, where one more round would take the first round
    /// that it may have spoiled out of the reach of a Rewind. Its exhibits are at hand, and no friend of the
    /// convict can delay the measurement.
    pub(super) fn at_stake(&self, ledger: &Ledger) -> Option<MemberId> {
        let unmeasured = |retro: &Retro| match retro {
            Retro::Measuring(ban) => Some(ban.culprit),
            Retro::Waiting(ban, _) if is_out(ledger, ban) => Some(ban.culprit),
            Retro::Waiting(..) | Retro::Beyond(..) | Retro::Over => None,
        };
        let mut open = self.retros.values().filter_map(unmeasured);
        open.find(|convict| {
            first_within_reach(ledger, convict).is_some_and(|first| ledger.is_last_chance_for(first))
        })
    }

    /// The past of a convict was measured. It is empty for a verifier, and for a node that never counted and
    /// reduced nothing.
    pub(super) fn measured(&mut self, ledger: &Ledger, culprit: MemberId, past: &[PastRound]) {
        let harms = harms(past);
        // Summed: ten rounds moved by a tenth each weigh as much as one round that was replaced.
        let total: f64 = harms.iter().map(|(_, harm)| harm).sum();
        let limit = &ledger.manifest().rollback;
        let beyond = limit.is_on() && total > f64::from(limit.limit.value());
        let rounds = harms.into_iter().map(|(round, _)| round).collect();
        let retro = match self.retros.remove(&culprit) {
            Some(Retro::Measuring(ban)) if beyond => Retro::Beyond(ban, rounds),
            _ => Retro::Over,
        };
        self.retros.insert(culprit, retro);
    }

    /// The state went back for this evidence. What was measured before is of another past.
    pub(super) fn went_back(&mut self, evidence: &Digest) {
        for retro in self.retros.values_mut() {
            if matches!(retro, Retro::Beyond(ban, _) if ban.evidence == *evidence) {
                *retro = Retro::Over;
            }
        }
    }

    /// Whether something may still follow from a conviction.
    pub(super) fn is_open(&self) -> bool {
        self.retros.values().any(|retro| !matches!(retro, Retro::Over))
    }

    /// When a convict has had its time to show what it contributed.
    pub(super) fn timeout(&self, ledger: &Ledger) -> impl Iterator<Item = u64> {
        let audit = u64::from(ledger.manifest().timers.audit);
        self.retros.values().filter_map(move |retro| match retro {
            Retro::Waiting(_, since) => since.map(|since| since.saturating_add(audit)),
            Retro::Measuring(_) | Retro::Beyond(..) | Retro::Over => None,
        })
    }

    /// ROLLBACK-3: the Rewind to before the first round that any convict moved, once that may be sealed; and the
    /// convicts that have no round within reach.
    fn go_back(&self, ledger: &Ledger) -> (Option<Rewind>, Vec<MemberId>) {
        let going = match ledger.stage() {
            // LEDGER-17: between two updates only. The next turn looks again.
            Stage::Exchanging | Stage::Reducing => return (None, Vec::new()),
            stage => matches!(stage, Stage::Gathering | Stage::Computing),
        };
        let reach = |round: &&Round| {
            let held =
                || ledger.state_before(**round).is_some_and(|state| self.states.contains(&state.root()));
            // The ledger may allow a state that this steward does not have; no round could go on from it.
            going && ledger.can_rewind_to(**round) && held()
        };
        let beyond = self.retros.values().filter_map(|retro| match retro {
            Retro::Beyond(ban, rounds) => Some((ban.culprit, rounds.iter().find(reach).copied())),
            Retro::Waiting(..) | Retro::Measuring(_) | Retro::Over => None,
        });
        // The reach only moves away: a convict without a round within it now has none later.
        let (within, out): (Vec<_>, Vec<_>) = beyond.partition(|(_, first)| first.is_some());
        let measuring = self.retros.values().any(|retro| matches!(retro, Retro::Measuring(_)));
        let times = Times {
            now: ledger.next_round(),
            allowed: ledger.next_rewind(),
            most: ledger.manifest().rollback.most_rounds,
        };
        let within = within.into_iter().filter_map(|(member, first)| Some((member, first?)));
        let rewind = first_of(within, times, measuring).and_then(|(member, to)| {
            let Some(Retro::Beyond(ban, _)) = self.retros.get(&member) else { return None };
            Some(Rewind { to, state: ledger.state_before(to)?.clone(), evidence: ban.evidence })
        });
        (rewind, out.into_iter().map(|(culprit, _)| culprit).collect())
    }
}

/// The rounds that were moved, and how far: to go back to before a false contribution that moved nothing would take back honest
/// rounds for nothing.
fn harms(past: &[PastRound]) -> Vec<(Round, f64)> {
    let moved = |past: &PastRound| Some((past.round, past.harm.filter(|harm| *harm > 0.0)?));
    past.iter().filter_map(moved).collect()
}

/// Whether a convict has no seat any more.
fn is_out(ledger: &Ledger, ban: &Ban) -> bool {
    ledger.next_round() >= ban.effective
}

/// Whether the measurement of a convict has all that it needs. In `exact` it needs nothing from the convict:
/// the steward recomputes its leaves. With a tolerance the convict has to show its integers, and is waited
/// for during `audit` at most.
fn is_complete(ledger: &Ledger, now: u64, exhibits: &Exhibits, culprit: &MemberId, since: u64) -> bool {
    let manifest = ledger.manifest();
    let exact = manifest.profile.leaves_stand_for_integers();
    let over = now >= since.saturating_add(manifest.timers.audit.into());
    exact || over || exhibits.are_complete(culprit, exact)
}

/// The first round that a Rewind reaches and in which a member counted, or signed a part.
fn first_within_reach(ledger: &Ledger, member: &MemberId) -> Option<Round> {
    let signed = |view: &RoundView| {
        let mut parts = (0..view.parts().len() as u16).flat_map(|part| view.signed_results_of(Part(part)));
        parts.any(|signed| signed.claimed_signer() == *member)
    };
    let took_part =
        |view: &RoundView| view.slot_of(member).is_some_and(|slot| view.counted(slot)) || signed(view);
    let over = ledger.rounds().filter(|view| view.results().is_some());
    let mut within = over.filter(|view| ledger.can_rewind_to(view.round()));
    within.find(|view| took_part(view)).map(RoundView::round)
}

/// When the state may go back.
#[derive(Clone, Copy)]
struct Times {
    /// The next round.
    now: Round,
    /// The first next round that allows a Rewind.
    allowed: Round,
    /// Rounds that a Rewind goes back at most.
    most: u32,
}

/// The convict with the earliest bad round within reach, and that round, if the state goes back now.
///
/// The earliest of all: the next Rewind is far away. So the state waits for measurements that are under way,
/// but not until the earliest round gets out of reach.
fn first_of(
    beyond: impl Iterator<Item = (MemberId, Round)>,
    times: Times,
    measuring: bool,
) -> Option<(MemberId, Round)> {
    let (member, to) = beyond.min_by_key(|(member, round)| (*round, *member))?;
    let can_wait = times.now.0.saturating_sub(to.0) < times.most;
    let go = times.allowed <= times.now && !(measuring && can_wait);
    go.then_some((member, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollback_3_the_state_goes_back_to_the_first_round_that_was_moved() {
        let past = |round, harm| {
            let (contribution, parts, wrong) = (Some(Found::False), Vec::new(), Vec::new());
            PastRound { round: Round(round), contribution, parts, harm, wrong }
        };
        let found = [past(40, Some(0.0)), past(41, None), past(42, Some(0.7))];
        assert_eq!(harms(&found), [(Round(42), 0.7)]);
    }

    #[test]
    fn rollback_3_the_state_goes_back_for_whoever_began_first() {
        let [early, late] = [9, 1].map(|number| MemberId([number; 32]));
        let both = || [(late, Round(50)), (early, Round(40))].into_iter();
        let times = |now, allowed| Times { now: Round(now), allowed: Round(allowed), most: 16 };
        assert_eq!(first_of(both(), times(52, 52), false), Some((early, Round(40))));
        // Too soon after another one: later, if it is within reach then.
        assert_eq!(first_of(both(), times(52, 55), false), None);
        // Somebody else may have begun earlier; but the fortieth is not waited out of reach.
        assert_eq!(first_of(both(), times(55, 52), true), None);
        assert_eq!(first_of(both(), times(56, 52), true), Some((early, Round(40))));
        assert_eq!(first_of(std::iter::empty(), times(52, 52), false), None);
    }
}
