//! When a phase is over, and the record that ends it.

use super::results::parts;
use super::{Conductor, Output};
use crate::assign::{Seating, reassignment};
use crate::codec::List;
use crate::ids::{MemberId, Part, Slot};
use crate::ledger::{Member, RoundView, Standing};
use crate::limits;
use crate::messages::enrol::Role;
use crate::messages::record::{Body, Credit, Freeze, Inputs, Late, Outcome, Reassign, Reassigned, Shares};
use crate::messages::round::{Bitmap, PartResult};
use crate::sign::Signed;
use crate::state::StateRoots;

impl Conductor {
    pub(super) fn begin(&self) -> Option<Output> {
        let seats = self.ledger.derived_seats();
        // LEDGER-24: a supporter that is not there keeps nobody waiting.
        let training = || seats.iter().filter(|seat| seat.quota > 0);
        let here = training().filter(|seat| self.is_live(&seat.member)).count();
        // Every wait is bounded; but the first round does not begin with fewer than the manifest asks for.
        let least = match self.ledger.current() {
            Some(_) => 1,
            None => usize::from(self.ledger.manifest().admission.start_nodes).max(1),
        };
        let enough = self.overdue() && here >= least;
        // Whoever may return first: where all have failed at once, one alone must not have a round for itself.
        let complete = here == training().count() && !seats.is_empty() && !self.awaits_returns();
        let present = complete || enough;
        let begins = self.ledger.ready() && present && !self.holds_begin();
        begins.then(|| Output::Seal(Body::Begin(bounded(seats))))
    }

    /// Whether a connected node is away or silent and may return. LEDGER-6: where all have failed at once, the first
    /// one back must not have a round for itself.
    fn awaits_returns(&self) -> bool {
        let out = |member: &Member| matches!(member.standing, Standing::Away | Standing::Silent(_));
        let returns = |member: &Member| member.role == Role::Node && out(member) && self.is_live(&member.id);
        self.ledger.current().is_some() && self.ledger.members().iter().any(returns)
    }

    pub(super) fn freeze(&self) -> Option<Output> {
        let view = self.ledger.current()?;
        if self.paused_until().is_some() || self.awaits().is_some() {
            return None;
        }
        if !self.freeze_is_due(view) {
            return None;
        }
        // Named once in a round: after a restart the record may be there already.
        if view.late().is_empty() {
            let slots = self.late_slots();
            if self.waits_for_answers(&slots) {
                return None;
            }
            if !slots.is_empty() {
                return Some(Output::Seal(Body::Late(Late { round: view.round(), slots })));
            }
        }
        let commits = bounded(self.gathered.commits.values().cloned().collect());
        Some(Output::Seal(Body::Freeze(Freeze { round: view.round(), state: view.state().root(), commits })))
    }

    /// ROUND-1: whether no live seat lacks a commitment, or the timer is over; without any only where others could go on.
    pub(super) fn freeze_is_due(&self, view: &RoundView) -> bool {
        let done = |slot| !view.trains(slot) || self.gathered.commits.contains_key(&slot);
        let waiting = self.waits_for(view, done);
        let none = self.gathered.commits.is_empty();
        !((waiting || none) && !self.overdue() || none && !self.others_are_there(view))
    }

    /// Whether a live node that trains has no leaves in a round, or may lack the state that its leaves are computed on (ROUND-28): whoever has
    /// fetched the newest one has no earlier state, and waits for a newer one. Where it is away, too, so that nobody has a seat in the next one, the run
    /// gathers, and it may return.
    fn others_are_there(&self, view: &RoundView) -> bool {
        let remains = |id: &MemberId| self.ledger.member(id).is_some_and(Member::trains);
        let has_leaves = |id: &MemberId| view.slot_of(id).is_some_and(|slot| view.trains(slot));
        self.live.iter().any(|id| remains(id) && (view.is_behind() || !has_leaves(id)))
    }

    /// Whether a live member has yet to do something. One that has lost its seat since is not waited for.
    fn waits_for(&self, view: &RoundView, done: impl Fn(Slot) -> bool) -> bool {
        let mut seats = view.seats().iter().enumerate();
        seats.any(|(slot, seat)| self.is_awaited(&seat.member) && !done(Slot(slot as u16)))
    }

    pub(super) fn is_awaited(&self, id: &MemberId) -> bool {
        // A member that has failed in the round is waited for no more: it costs one timer, not one a phase.
        let gone = |member: &Member| matches!(member.standing, Standing::Away | Standing::Silent(_));
        self.is_live(id) && !self.ledger.member(id).is_some_and(gone)
    }

    pub(super) fn inputs(&self) -> Option<Output> {
        let view = self.ledger.current()?;
        // Nobody without weight is counted, and so none is waited for; but where nobody has any, their echoes count.
        let counts = |slot| view.commitment(slot).is_some_and(|c| c.weight > 0 || !view.weighs());
        // With weight a delivery comes after its author's echo (ROUND-5).
        let done = |slot| !counts(slot) || self.gathered.delivered.contains(&slot);
        // Without echoes nobody could audit a round in which nobody has weight (LEDGER-20).
        let has_echoed =
            |id: &MemberId| view.slot_of(id).is_some_and(|slot| self.gathered.echoes.contains_key(&slot));
        let unheard = view.unheard(has_echoed).iter().any(|id| self.is_awaited(id));
        // ROUND-36: what is being checked came in time, also where its author has gone since.
        let at_it = self.debts.any();
        if (self.waits_for(view, done) || unheard || at_it) && !self.overdue() {
            return None;
        }
        let second: Vec<Part> = view.reassigned().collect();
        let attempt = u8::from(!second.is_empty());
        let parts = if attempt == 1 { second } else { parts(view).collect() };
        let bitmap = |part| {
            let mut counted = Bitmap::default();
            // By weight once more: the ledger refuses inputs that count a contribution without it.
            let held = self.gathered.receipts.get(part).copied().unwrap_or_default();
            let weighs = |slot: &Slot| view.commitment(*slot).is_some_and(|c| c.weight > 0);
            held.slots().filter(weighs).for_each(|slot| counted.insert(slot));
            counted
        };
        let parts = bounded(parts.iter().map(bitmap).collect());
        Some(Output::Seal(Body::Inputs(Inputs { round: view.round(), attempt, parts })))
    }

    /// What follows from the results alone. Contributors still have to check them before they are applied.
    pub(super) fn reduced(&self) -> Option<Output> {
        let view = self.ledger.current()?;
        if let Some(next) = &self.gathered.next {
            // The state is computed already; only the seal waits for the case.
            return (!self.holds_outcome()).then(|| {
                let settled = view.has_shares() || self.equal_parts;
                let moves = if settled { Vec::new() } else { self.timing.moves(&self.ledger, view) };
                // LEDGER-25: before the Outcome, which opens the round that they are for.
                Output::Seal(match moves.is_empty() {
                    true => self.outcome(view, next.clone()),
                    false => Body::Shares(Shares { round: view.round(), moves: bounded(moves) }),
                })
            });
        }
        let missing: Vec<Part> =
            parts(view).filter(|part| self.results.standing(view, *part).is_none()).collect();
        if self.awaits_results(view, &missing) && !self.overdue() {
            return None;
        }
        // Once, so that a round ends; and where nothing weighs there is nothing to reduce.
        let unmoved = view.reassigned().next().is_none() && view.weighs();
        let moves = if unmoved { self.moves(view, &missing) } else { Vec::new() };
        if !moves.is_empty() {
            return Some(Output::Seal(Body::Reassign(Reassign {
                round: view.round(),
                parts: bounded(moves),
            })));
        }
        Some(Output::Apply(self.results(view)))
    }

    /// Whether a live aggregator may still say something that counts: of a part that nobody has reduced, and until
    /// parts were reassigned also of one that another has.
    fn awaits_results(&self, view: &RoundView, missing: &[Part]) -> bool {
        let first = view.reassigned().next().is_none();
        let mut parts = view.inputs().iter().enumerate().filter(|(_, inputs)| !inputs.is_empty());
        parts.any(|(part, _)| {
            let part = Part(part as u16);
            let owes = |member: MemberId| !self.results.is_settled(part, member) && self.is_awaited(&member);
            // A second signature makes a lie dearer, but no round waits for it once parts were reassigned.
            (first || missing.contains(&part)) && view.aggregating(part).any(owes)
        })
    }

    fn moves(&self, view: &RoundView, missing: &[Part]) -> Vec<Reassigned> {
        let (seed, rows) = (view.parts_seed(), view.seats().iter().map(|seat| seat.row).collect::<Vec<_>>());
        let (layout, route) = (self.ledger.layout(), view.route(Slot(0)));
        let seating = Seating {
            layout,
            planes: self.ledger.manifest().planes_in(view.round()),
            seed: &seed,
            rows: &rows,
            route: route.as_ref(),
            aggregators: view.aggregators(),
            classes: view.classes(),
        };
        let passed = view.passed_over();
        let to = |part: &Part| {
            let plan = view.parts().get(part.index())?;
            // By the round's seed, not by choice: the steward must not be able to give a part to a friend.
            let others = reassignment(&seating, *part, plan, &passed);
            let awaited = |slot: &Slot| view.member_at(*slot).is_some_and(|member| self.is_awaited(&member));
            // The second aggregator has had its time as well.
            let new = |slot: &Slot| !view.aggregators_in(*part, 0).any(|had| had == *slot);
            Some(Reassigned {
                part: *part,
                aggregator: others.into_iter().find(|slot| new(slot) && awaited(slot))?,
            })
        };
        missing.iter().filter_map(to).collect()
    }

    fn results(&self, view: &RoundView) -> Vec<Option<Signed<PartResult>>> {
        parts(view).map(|part| self.results.standing(view, part).map(|(_, signed)| signed.clone())).collect()
    }

    /// The second signature of each part that two aggregators have signed.
    fn seconds(&self, view: &RoundView) -> Vec<Signed<PartResult>> {
        parts(view).filter_map(|part| self.results.second(view, part).cloned()).collect()
    }

    fn outcome(&self, view: &RoundView, state: StateRoots) -> Body {
        let mut outcome = Outcome {
            round: view.round(),
            results: bounded(self.results(view)),
            echoes: bounded(self.gathered.echoes.values().cloned().collect()),
            state,
            seats: List::default(),
            credits: bounded(self.due_credits()),
            seconds: bounded(self.seconds(view)),
            steps: bounded(view.row_steps().to_vec()),
        };
        // Last: who fails at this outcome depends on everything else in it.
        outcome.seats = bounded(self.ledger.seats_after(&outcome));
        Body::Outcome(outcome)
    }

    fn due_credits(&self) -> Vec<Credit> {
        let due = self.credits.iter().filter(|credit| self.ledger.check_credit(credit).is_ok());
        due.take(limits::CREDITS).cloned().collect()
    }
}

fn bounded<T, const MAX: usize>(items: Vec<T>) -> List<T, MAX> {
    List::new(items).expect("slots and parts are bounded by the ledger")
}
