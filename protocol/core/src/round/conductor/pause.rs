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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::List;
    use crate::coins::drawn_leaves;
    use crate::ids::{Digest, Round};
    use crate::ledger::fixture::chain::{Chain, manifest, node, verifier};
    use crate::manifest::Admission;
    use crate::messages::enrol::Leave;

    /// A founder that leaves in the first round, and a newcomer that goes on alone.
    fn of_a_newcomer() -> Chain {
        let mut manifest = manifest(4);
        manifest.training.rounds = 20;
        let admission = Admission::closed(1, 0, 64);
        manifest.admission = Admission { probation: 6, vouchers: 2, newcomer_ppm: 1_000_000, ..admission };
        let mut chain = Chain::open(manifest);
        chain.admit_verifier(0);
        (0..2).for_each(|number| chain.admit_node(number, number == 0));
        chain.seal(Body::Begin(List::new(chain.ledger.derived_seats()).unwrap()));
        chain.reduce_all();
        let leave = Leave { height: chain.ledger.height() };
        chain.seal(Body::Leave(node(0).sign(chain.ledger.run(), &leave)));
        chain.seal(Body::Outcome(chain.outcome()));
        chain
    }

    /// The open round to its end, with these credits; gives how many barren ones that makes.
    fn finish(chain: &mut Chain, barren: &mut Barren, credits: Vec<Credit>) -> u32 {
        chain.reduce_all();
        let mut outcome = chain.outcome();
        outcome.credits = List::new(credits).unwrap();
        outcome.seats = List::new(chain.ledger.seats_after(&outcome)).unwrap();
        let body = Body::Outcome(outcome);
        chain.seal(body.clone());
        barren.sealed(&chain.ledger, &body);
        barren.rounds
    }

    #[test]
    fn round_26_a_round_of_newcomers_alone_is_spent_for_nothing_unless_one_comes_closer_to_weight() {
        let (mut chain, mut barren) = (of_a_newcomer(), Barren::default());
        assert_eq!([(); 2].map(|()| finish(&mut chain, &mut barren, Vec::new())), [1, 2]);
        let (verifier, member) = (verifier(0).id(), node(1).id());
        let given = [1, 2, 3, 4, 5].map(|round| {
            let view = chain.ledger.round(Round(round)).unwrap();
            let slot = view.slot_of(&member).unwrap();
            let most = view.commitment(slot).unwrap().commit.leaves;
            let leaves = drawn_leaves(most, chain.ledger.manifest().audit.leaves);
            assert_eq!(leaves, 1);
            let (verdict, round) = (Digest::default(), Round(round));
            finish(&mut chain, &mut barren, vec![Credit { verdict, round, member, verifier, leaves }])
        });
        assert_eq!(given, [0, 0, 0, 1, 2], "of six, three by one verifier: its other words end no probation");
    }
}
