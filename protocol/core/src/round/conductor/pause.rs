//! Rounds in which nothing counts: after some of them the steward waits before it spends the next one.

use std::collections::BTreeSet;

use super::Conductor;
use crate::ids::MemberId;
use crate::ledger::{Ledger, RoundView, Stage, Standing};
use crate::messages::record::{Body, Credit};
use crate::standing::voucher_share;

/// Barren rounds in a row without a pause.
const SPARED: u32 = 3;
/// Longest pause before a Freeze, in milliseconds: an hour.
const LONGEST: u64 = 3_600_000;

/// What led up to a pause.
#[derive(Default)]
pub(super) struct Barren {
    /// Barren rounds in a row since whatever makes them so may have been over, up to the newest.
    rounds: u32,
    /// The member of which the record that is being sealed says where it has moved to.
    moving: Option<MemberId>,
    /// Members that have ended pauses since a round was not barren.
    came: BTreeSet<MemberId>,
}

impl Barren {
    /// Whatever kept members from each other may be over.
    pub(super) fn stir(&mut self) {
        self.rounds = 0;
    }

    /// The same, because a member has connected or moved. ROUND-26: each does so once until a round is not barren. Whoever comes and
    /// goes would otherwise spend the run's rounds on nothing.
    pub(super) fn come(&mut self, member: MemberId) {
        if self.rounds > 0 && self.came.insert(member) {
            self.stir();
        }
    }

    /// Takes note of a record before the ledger takes it. Whoever is active and returns has moved; whoever was away
    /// returns by itself after each round in which it failed, and that changes nothing.
    pub(super) fn proposed(&mut self, ledger: &Ledger, body: &Body) {
        let Body::Return(back) = body else { return };
        let member = ledger.member(&back.claimed_signer());
        let moves = member.filter(|member| member.standing == Standing::Active);
        self.moving = moves.map(|member| member.id);
    }

    /// Takes note of a record that the ledger has taken.
    pub(super) fn sealed(&mut self, ledger: &Ledger, body: &Body) {
        match body {
            Body::Outcome(outcome) => {
                let view = ledger.round(outcome.round);
                let barren = view.is_some_and(RoundView::is_barren);
                // ROUND-26: newcomers alone come closer to weight by such a round, or it is spent for nothing.
                let earned = view.is_some_and(|view| !view.weighs()) && has_earned(ledger, &outcome.credits);
                if barren && !earned {
                    self.rounds = self.rounds.saturating_add(1);
                } else {
                    *self = Self::default();
                }
            }
            Body::Admit(_) => self.stir(),
            Body::Return(_) => self.moving.take().into_iter().for_each(|member| self.come(member)),
            _ => {}
        }
    }
}

/// Whether one of these credits, which the ledger has taken, brings a member closer to the end of its probation.
fn has_earned(ledger: &Ledger, credits: &[Credit]) -> bool {
    let most = voucher_share(&ledger.manifest().admission);
    credits.iter().any(|credit| {
        let member = ledger.member(&credit.member).filter(|member| !member.founder);
        let now = member.and_then(|member| member.credits.get(&credit.verifier)).copied().unwrap_or(0);
        // STAND-2: beyond its share a verifier's word ends no probation, however often it is given.
        now.saturating_sub(credit.leaves) < most
    })
}

impl Conductor {
    /// Until when the Freeze of the open round waits, because nothing counted in the rounds before. A part's patience,
    /// doubled with each further such round. Where all aggregators have failed the run gathers first; the pause is
    /// said then already, and begins when the round opens.
    pub fn paused_until(&self) -> Option<u64> {
        // ROUND-26: after three barren rounds in a row the steward lets a pause pass before it seals a Freeze.
        let ahead = matches!(self.ledger.stage(), Stage::Computing | Stage::Gathering);
        let beyond = self.barren.rounds.checked_sub(SPARED).filter(|_| ahead)?;
        let part = u64::from(self.ledger.manifest().timers.part);
        // What parts the members outlasts a round, and rounds are numbered; a pause needs no record.
        let pause = part.saturating_mul(1 << beyond.min(32)).min(LONGEST);
        Some(self.phase_began.saturating_add(pause)).filter(|until| self.now < *until)
    }
}
