//! After a conviction: what follows from which of the convict's contributions and parts were false, and whether the state
//! goes back for it.

use muster_core::ids::{MemberId, Part, Round};
use muster_core::ledger::{RoundView, Stage};
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::{Ban, Body, Rewind};

use super::{Bulletin, Steward, StewardEffect};

/// What is known of one convict.
pub(super) enum Retro {
    /// Its last round is not over, or its exhibits are not there yet; since when only these are missing.
    Waiting(Ban, Option<u64>),
    /// Being measured.
    Measuring(Ban),
    /// The state is to go back: these rounds were moved.
    Beyond(Ban, Vec<Round>),
    /// Nothing more follows.
    Over,
}

impl Retro {
    /// Whether something may still follow.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self, Self::Over)
    }
}

/// What the steward found out about one past round of a convict.
#[derive(Clone, Debug, PartialEq)]
pub struct PastRound {
    /// Which.
    pub round: Round,
    /// Of what the convict contributed, if that counted.
    pub contribution: Option<Found>,
    /// Of the parts that it signed.
    pub parts: Vec<(Part, Found)>,
    /// How far all that is false moved the aggregate, where that was measured.
    pub harm: Option<f64>,
    /// What was found wrong of parts: others may have signed the same.
    pub wrong: Vec<Evidence>,
}

/// What the steward found out about one contribution, or one part.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// It is what the state and the text give, or the rule.
    Right,
    /// It is not, or cannot be shown to be.
    False,
    /// It could not be computed again, and why.
    Unknown(String),
}

impl PastRound {
    /// Whether something of the convict's was false.
    pub fn is_bad(&self) -> bool {
        let mut found = self.contribution.iter().chain(self.parts.iter().map(|(_, found)| found));
        found.any(|found| *found == Found::False)
    }
}

/// When the state may go back.
struct Times {
    /// The next round.
    now: Round,
    /// What it has to be for a Rewind.
    allowed: Round,
    /// Rounds that a Rewind goes back at most.
    most: u32,
}

/// Whose first round within reach the state goes back for now: the earliest of all, because the next Rewind is far away.
/// So those that are still being measured are waited for, but not for so long that the earliest gets out of reach.
fn first_of(
    beyond: impl Iterator<Item = (MemberId, Round)>,
    times: &Times,
    measuring: bool,
) -> Option<(MemberId, Round)> {
    let (member, to) = beyond.min_by_key(|(member, round)| (*round, *member))?;
    let can_wait = times.now.0.saturating_sub(to.0) < times.most;
    let go = times.allowed <= times.now && !(measuring && can_wait);
    go.then_some((member, to))
}

impl Steward {
    /// After a restart: who passed by a false verdict may not have been examined yet (DUTY-10).
    pub(super) fn examine_acquitted(&mut self, bans: &[(Ban, Option<Evidence>)]) {
        for (ban, evidence) in bans {
            let run = self.ledger().run();
            let of_member = evidence.as_ref().and_then(|evidence| evidence.against_the_acquitted(run));
            of_member.into_iter().for_each(|evidence| self.owe_hearing(ban.accuser, evidence));
        }
    }

    /// Somebody was convicted.
    pub(super) fn examine_past(&mut self, ban: &Ban) {
        self.justice.retros.insert(ban.culprit, Retro::Waiting(ban.clone(), None));
    }

    /// Goes on with what follows from convictions.
    pub(super) fn pursue_past(&mut self) {
        // Until it is out a convict has a seat, and may contribute once more.
        let waiting = self.justice.retros.values().filter_map(|retro| match retro {
            Retro::Waiting(ban, since) if self.is_out(ban) => Some((ban.clone(), since.unwrap_or(self.now))),
            _ => None,
        });
        for (ban, since) in waiting.collect::<Vec<_>>() {
            if self.is_complete(&ban.culprit, since) {
                self.measure(ban);
            } else {
                self.justice.retros.insert(ban.culprit, Retro::Waiting(ban, Some(since)));
            }
        }
        if self.justice.retros.values().any(|retro| matches!(retro, Retro::Beyond(..))) {
            self.go_back();
        }
    }

    /// ROLLBACK-5: a convict whose past is not measured yet, where one more round would take the first one that it may have
    /// spoiled out of the reach of a Rewind. What it needs is at hand, and its friends have nothing to say in it.
    pub(super) fn past_at_stake(&self) -> Option<MemberId> {
        let measured = |retro: &Retro| match retro {
            Retro::Measuring(ban) => Some(ban.culprit),
            Retro::Waiting(ban, _) if self.is_out(ban) => Some(ban.culprit),
            Retro::Waiting(..) | Retro::Beyond(..) | Retro::Over => None,
        };
        let mut open = self.justice.retros.values().filter_map(measured);
        open.find(|convict| {
            self.first_within_reach(convict).is_some_and(|first| self.ledger().is_last_chance_for(first))
        })
    }

    /// The first round that a Rewind reaches and in which a member counted, or signed a part.
    fn first_within_reach(&self, member: &MemberId) -> Option<Round> {
        let signed = |view: &RoundView| {
            let mut parts =
                (0..view.parts().len() as u16).flat_map(|part| view.signed_results_of(Part(part)));
            parts.any(|signed| signed.claimed_signer() == *member)
        };
        let took_part =
            |view: &RoundView| view.slot_of(member).is_some_and(|slot| view.counted(slot)) || signed(view);
        let over = self.ledger().rounds().filter(|view| view.results().is_some());
        let mut within = over.filter(|view| self.ledger().can_rewind_to(view.round()));
        within.find(|view| took_part(view)).map(RoundView::round)
    }

    /// Whether a convict has no seat any more.
    fn is_out(&self, ban: &Ban) -> bool {
        self.ledger().next_round() >= ban.effective
    }

    /// Whether all that a measurement needs is there. In `exact` that is nothing of the convict's: its leaves are recomputed.
    /// With a tolerance the convict has to show its integers, for `audit` at most.
    fn is_complete(&self, culprit: &MemberId, since: u64) -> bool {
        let manifest = self.ledger().manifest();
        let exact = manifest.profile.leaves_stand_for_integers();
        let over = self.now >= since.saturating_add(manifest.timers.audit.into());
        exact || over || self.justice.exhibits.are_complete(culprit, exact)
    }

    fn measure(&mut self, ban: Ban) {
        let culprit = ban.culprit;
        self.justice.retros.insert(culprit, Retro::Measuring(ban));
        self.effects.push_back(StewardEffect::Measure(culprit));
    }

    /// The past of a convict was measured. There is none of a verifier, or of a node that never counted and reduced nothing.
    pub(super) fn measured(&mut self, culprit: MemberId, past: Vec<PastRound>) {
        // AUDIT-23: others may have signed the same wrong part.
        past.iter().flat_map(|past| &past.wrong).for_each(|evidence| self.examine_second(evidence));
        let harms: Vec<(Round, f64)> =
            past.iter().filter_map(|past| Some((past.round, past.harm?))).collect();
        // Summed: ten rounds moved by a tenth each are worth one that was replaced.
        let total: f64 = harms.iter().map(|(_, harm)| harm).sum();
        let limit = &self.ledger().manifest().rollback;
        let beyond = limit.is_on() && total > f64::from(limit.limit.value());
        let rounds = harms.into_iter().map(|(round, _)| round).collect();
        let retro = match self.justice.retros.remove(&culprit) {
            Some(Retro::Measuring(ban)) if beyond => Retro::Beyond(ban, rounds),
            _ => Retro::Over,
        };
        self.justice.retros.insert(culprit, retro);
        if !past.is_empty() {
            self.tell(Bulletin::Past(culprit, past));
        }
    }

    /// ROLLBACK-3: proposes to go back to before the first bad round of all convicts, once that may be sealed.
    fn go_back(&mut self) {
        let ledger = self.ledger();
        let going = match ledger.stage() {
            // LEDGER-17: between two updates only. The next turn looks again.
            Stage::Exchanging | Stage::Reducing => return,
            stage => matches!(stage, Stage::Gathering | Stage::Computing),
        };
        let reach = |round: &&Round| {
            let held =
                || ledger.state_before(**round).is_some_and(|state| self.states.contains(&state.root()));
            // The ledger may allow a state that this steward does not have; no round could go on from it.
            going && ledger.can_rewind_to(**round) && held()
        };
        let beyond = self.justice.retros.values().filter_map(|retro| {
            let Retro::Beyond(ban, rounds) = retro else { return None };
            Some((ban.culprit, rounds.iter().find(reach).copied()))
        });
        // Whoever has no round within reach is done with: the reach only moves away.
        let (within, out): (Vec<_>, Vec<_>) = beyond.partition(|(_, first)| first.is_some());
        let measuring = self.justice.retros.values().any(|retro| matches!(retro, Retro::Measuring(_)));
        let times = Times {
            now: ledger.next_round(),
            allowed: ledger.next_rewind(),
            most: ledger.manifest().rollback.most_rounds,
        };
        let back = first_of(
            within.iter().filter_map(|(member, first)| Some((*member, (*first)?))),
            &times,
            measuring,
        );
        let rewind = back.and_then(|(member, to)| {
            let Some(Retro::Beyond(ban, _)) = self.justice.retros.get(&member) else { return None };
            Some(Rewind { to, state: ledger.state_before(to)?.clone(), evidence: ban.evidence })
        });
        for (culprit, _) in out {
            self.tell(Bulletin::OutOfReach(culprit));
            self.justice.retros.insert(culprit, Retro::Over);
        }
        if let Some(rewind) = rewind {
            self.conductor.propose(Body::Rewind(rewind));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollback_3_the_state_goes_back_for_whoever_began_first() {
        let [early, late] = [9, 1].map(|number| MemberId([number; 32]));
        let both = || [(late, Round(50)), (early, Round(40))].into_iter();
        let times = |now, allowed| Times { now: Round(now), allowed: Round(allowed), most: 16 };
        assert_eq!(first_of(both(), &times(52, 52), false), Some((early, Round(40))));
        // Too soon after another one: later, if it is within reach then.
        assert_eq!(first_of(both(), &times(52, 55), false), None);
        // Somebody else may have begun earlier; but the fortieth is not waited out of reach.
        assert_eq!(first_of(both(), &times(55, 52), true), None);
        assert_eq!(first_of(both(), &times(56, 52), true), Some((early, Round(40))));
        assert_eq!(first_of(std::iter::empty(), &times(52, 52), false), None);
    }
}
