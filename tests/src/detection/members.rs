//! Members, and when they cheat.

use muster_core::hash::{Domain, Hasher, below};
use muster_core::ids::{MemberId, Round};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use super::schedule::Schedule;
use super::setting::Setting;
use super::tally::Tally;

/// A member; of a cheat, one life after the other.
pub(super) struct Member {
    pub(super) id: MemberId,
    /// Which of the setting's cheats it is.
    pub(super) kind: Option<usize>,
    schedule: Option<Schedule>,
    slot: usize,
    life: u32,
    born: Round,
    /// Bad leaves of this life.
    placed: u64,
    /// Acting rounds of this life before this one.
    acted: u64,
    bad: Vec<u32>,
    acting: bool,
    /// Round of the offence of the first audit that found something, and first round without it.
    conviction: Option<(Round, Round)>,
    random: ChaCha8Rng,
}

impl Member {
    pub(super) fn new(setting: &Setting, slot: usize, kind: Option<usize>) -> Self {
        let random = Hasher::new(Domain::SELECT).value(&setting.seed).value(&(slot as u64)).finish();
        Self {
            id: name(setting, slot, 0),
            schedule: kind.map(|kind| setting.cheats[kind].0),
            kind,
            slot,
            life: 0,
            born: Round(0),
            placed: 0,
            acted: 0,
            bad: Vec::new(),
            acting: false,
            conviction: None,
            random: ChaCha8Rng::from_seed(random.0),
        }
    }

    /// Whether it has a seat: a cheat that has left has none until it comes back.
    pub(super) fn present(&self) -> bool {
        self.kind.is_none() || self.schedule != Some(Schedule::OnceAndGone) || self.acting
    }

    /// Bad leaves of this round.
    pub(super) fn bad(&self) -> &[u32] {
        &self.bad
    }

    pub(super) fn schedule(&self) -> Option<Schedule> {
        self.schedule
    }

    /// Decides what to do in a round.
    pub(super) fn begin(&mut self, setting: &Setting, round: Round) {
        let Some(schedule) = self.schedule else { return };
        let banned = self.conviction.is_some_and(|(_, effective)| effective <= round);
        let gone = schedule == Schedule::OnceAndGone && round > self.born;
        if banned || gone {
            self.life += 1;
            self.id = name(setting, self.slot, self.life);
            (self.born, self.placed, self.acted, self.conviction) = (round, 0, 0, None);
        }
        self.acting = schedule.acts(round.0 - self.born.0);
        self.bad.clear();
        if !self.acting {
            return;
        }
        let leaves = setting.leaves;
        match schedule {
            Schedule::Drip | Schedule::Slow(_) => {
                self.bad.push(below(self.random.next_u64(), u64::from(leaves)) as u32);
            }
            Schedule::Teleport => {
                self.bad.extend(below(self.random.next_u64(), u64::from(leaves)) as u32..leaves);
            }
            Schedule::Random(ppm) => {
                let random = &mut self.random;
                let hit = |_: &u32| below(random.next_u64(), 1_000_000) < u64::from(ppm);
                self.bad.extend((0..leaves).filter(hit));
            }
            Schedule::Burst(_) | Schedule::OnceAndGone | Schedule::FalseSum => self.bad.extend(0..leaves),
        }
    }

    /// An audit of this round found something; it counts once.
    pub(super) fn convicted(&mut self, round: Round, effective: Round) {
        let sooner = |(_, before): &(Round, Round)| effective < *before;
        match &mut self.conviction {
            None => self.conviction = Some((round, effective)),
            // Another verifier was faster.
            Some(before) if sooner(before) => before.1 = effective,
            Some(_) => {}
        }
    }

    /// Counts the round.
    pub(super) fn end(&mut self, round: Round, tally: &mut Tally) {
        if !self.acting && self.conviction.is_none() {
            return;
        }
        let hit = self.conviction.is_some_and(|(offence, _)| offence == round);
        let known = self.conviction.is_some_and(|(offence, _)| offence < round);
        self.placed += self.bad.len() as u64;
        if known {
            tally.late(self.bad.len() as u64);
        } else if self.acting {
            tally.acted(self.acted, self.bad.len() as u64, hit);
            self.acted += 1;
        }
        if hit && let Some((offence, effective)) = self.conviction {
            tally.latency(effective.0 - offence.0 - 1);
        }
    }
}

fn name(setting: &Setting, slot: usize, life: u32) -> MemberId {
    let name = Hasher::new(Domain::SIGN).value(&setting.seed).value(&(slot as u64)).value(&life);
    MemberId(name.finish().0)
}
