//! Records that a steward might seal, honest ones and others, and what holds of every ledger that takes some of them.

use muster_core::codec::{List, decode, encode};
use muster_core::coins::CoinKind;
use muster_core::ids::{Height, MemberId, Part, Round, Row, ShareClass, Slot};
use muster_core::ledger::{Ledger, Member, RoundView, Stage, Standing};
use muster_core::messages::audit::{AuditRequest, FindingKind, Jury};
use muster_core::messages::enrol::{Leave, Ready, Return, Role};
use muster_core::messages::record::{
    Ban, Body, Freeze, Inputs, Late, Outcome, Reassign, Reassigned, Record, Rewind, Seat, ShareMove, Shares,
};
use muster_core::messages::round::{Bitmap, Echo, PartResult};
use muster_core::sign::Signed;

use crate::{PEOPLE, coins, commit, enrol, initial, named, next_state, person, reduced, steward};

/// One record.
#[derive(arbitrary::Arbitrary, Debug)]
pub struct Step {
    /// What it says.
    pub act: Act,
    /// Changes a byte of the record before it is signed.
    pub edit: Option<(u16, u8)>,
}

/// What a record says; names are taken modulo what there is.
#[derive(arbitrary::Arbitrary, Debug)]
pub enum Act {
    /// What an honest steward might seal next; the bits choose who takes part.
    Next(u8),
    /// Somebody enrols.
    Admit { who: u8, verifier: bool, dialable: bool },
    /// A part goes to another slot.
    Reassign(u8, u8),
    /// A request went unanswered.
    Silence { verifier: u8, round: u8, target: u8, coin: bool },
    /// A silent member answers.
    Answered(u8),
    /// Somebody is convicted.
    Ban { culprit: u8, accuser: u8, round: u8 },
    /// Somebody is back.
    Return { who: u8, back: u8 },
    /// Somebody goes.
    Leave { who: u8, back: u8 },
    /// A node says that it holds a row: the one that was drawn for it, or another one.
    Ready {
        who: u8,
        /// Rows beyond the right one.
        row: u8,
        /// Rounds before the next one; 3 is the round after it.
        back: u8,
        /// Of the state before that round, as the ledger has it.
        right: bool,
    },
    /// The state goes back so many rounds, for whatever ban there is.
    Rewind(u8),
    /// Whatever the fuzzer writes.
    Any(Body),
}

pub fn bounded<T, const MAX: usize>(items: Vec<T>) -> List<T, MAX> {
    List::new(items).expect("few")
}

fn chosen(bits: u8, place: usize) -> bool {
    bits >> (place % 8) & 1 == 0
}

fn next(ledger: &Ledger, bits: u8) -> Option<Body> {
    Some(match ledger.stage() {
        Stage::Empty => Body::Open(initial(ledger)),
        Stage::Gathering if ledger.ready() => Body::Begin(bounded(ledger.derived_seats())),
        Stage::Gathering => gathering(ledger, bits)?,
        // Mostly nobody may be late, and the record is refused for it.
        Stage::Computing if bits & 0x1c == 0x14 => late(ledger, bits)?,
        Stage::Computing => freeze(ledger, bits)?,
        Stage::Exchanging => inputs(ledger, bits)?,
        // Sometimes by too many classes, and in vain the second time.
        Stage::Reducing if bits & 0x1c == 0x14 => shares(ledger, bits)?,
        Stage::Reducing => outcome(ledger, bits)?,
        Stage::Auditing | Stage::Closed => Body::Close(ledger.state().root()),
    })
}

/// A newcomer, or the word of a node that is waited for.
fn gathering(ledger: &Ledger, bits: u8) -> Option<Body> {
    if let Some(place) = waiting(ledger).next().filter(|_| bits & 2 == 0) {
        return Some(Body::Ready(ready(ledger, place, 0, 0, true)?));
    }
    let newcomer = (0..PEOPLE).find(|number| ledger.member(&person(*number).id()).is_none())?;
    Some(Body::Admit(enrol(ledger.run(), newcomer, Role::Node, bits & 1 == 0)))
}

/// The people for whom a row was drawn, and who have not said that they hold it.
fn waiting(ledger: &Ledger) -> impl Iterator<Item = u8> + '_ {
    let waits = |member: &Member| member.holding.is_some_and(|holding| !holding.ready);
    (0..PEOPLE as u8).filter(move |who| ledger.member(&id(*who)).is_some_and(waits))
}

fn ready(ledger: &Ledger, who: u8, row: u8, back: u8, right: bool) -> Option<Signed<Ready>> {
    let next = ledger.next_round();
    let round = if back % 4 == 3 { next.next() } else { Round(next.0.saturating_sub(u32::from(back % 4))) };
    let state = match ledger.round(round) {
        Some(view) if round < next => view.state(),
        _ => ledger.state(),
    };
    let root = if right { state.root() } else { Default::default() };
    let drawn = ledger.member(&id(who)).and_then(|member| member.holding);
    let right_row = drawn.map_or(0, |holding| holding.row.0);
    let row = Row((right_row + u16::from(row)) % ledger.rows());
    Some(person(usize::from(who)).sign(ledger.run(), &Ready { round, row, root }))
}

fn late(ledger: &Ledger, bits: u8) -> Option<Body> {
    let mut slots = Bitmap::default();
    slots.insert(Slot(u16::from(bits & 3)));
    Some(Body::Late(Late { round: ledger.current()?.round(), slots }))
}

fn freeze(ledger: &Ledger, bits: u8) -> Option<Body> {
    let view = ledger.current()?;
    let commits = view.seats().iter().enumerate().filter(|(slot, _)| chosen(bits, *slot));
    let commits = commits.filter_map(|(slot, seat)| {
        let commit = commit(view, Slot(slot as u16), u32::from(bits >> 4))?;
        Some(named(&seat.member)?.sign(ledger.run(), &commit))
    });
    let (round, state) = (view.round(), view.state().root());
    Some(Body::Freeze(Freeze { round, state, commits: bounded(commits.collect()) }))
}

fn inputs(ledger: &Ledger, bits: u8) -> Option<Body> {
    let view = ledger.current()?;
    let second: Vec<Part> = view.reassigned().collect();
    let parts =
        if second.is_empty() { (0..view.parts().len() as u16).map(Part).collect() } else { second.clone() };
    let bitmap = |part: &Part| {
        let mut bitmap = Bitmap::default();
        let taken = view
            .commitments()
            .filter(|(slot, _)| chosen(bits, slot.index() + part.index()) && view.computes_on(*slot, *part));
        taken.for_each(|(slot, _)| bitmap.insert(slot));
        bitmap
    };
    let parts = bounded(parts.iter().map(bitmap).collect());
    Some(Body::Inputs(Inputs { round: view.round(), attempt: u8::from(!second.is_empty()), parts }))
}

fn shares(ledger: &Ledger, bits: u8) -> Option<Body> {
    let view = ledger.current()?;
    let slot = Slot(u16::from(bits & 3));
    let member = ledger.member(&view.member_at(slot)?)?;
    let class = ShareClass((member.share.0 + (bits >> 5)).saturating_sub(3));
    Some(Body::Shares(Shares { round: view.round(), moves: bounded(vec![ShareMove { slot, class }]) }))
}

fn outcome(ledger: &Ledger, bits: u8) -> Option<Body> {
    let (view, run) = (ledger.current()?, ledger.run());
    let result = |part: usize| {
        let (part, inputs) = (Part(part as u16), *view.inputs().get(part)?);
        let (slot, attempt) = view.aggregator(part)?;
        let digest = reduced(view.round(), part, &inputs);
        let result =
            PartResult { round: view.round(), part, attempt, freeze: view.freeze_digest()?, inputs, digest };
        (chosen(bits, part.index()) && !inputs.is_empty())
            .then(|| Some(named(&view.member_at(slot)?)?.sign(run, &result)))?
    };
    let freeze = view.freeze_digest()?;
    let echoing = view.seats().iter().enumerate().filter(|(slot, _)| chosen(bits, slot + 4));
    let echoes = echoing
        .filter_map(|(_, seat)| Some(named(&seat.member)?.sign(run, &Echo { round: view.round(), freeze })));
    let mut outcome = Outcome {
        round: view.round(),
        results: bounded((0..view.parts().len()).map(result).collect()),
        echoes: bounded(echoes.collect()),
        state: next_state(ledger),
        seats: bounded(Vec::new()),
        credits: bounded(Vec::new()),
        seconds: bounded(Vec::new()),
        steps: bounded(view.row_steps().to_vec()),
    };
    outcome.seats = bounded(ledger.seats_after(&outcome));
    Some(Body::Outcome(outcome))
}

fn request(ledger: &Ledger, verifier: u8, round: u8, target: u8, coin: bool) -> Option<Signed<AuditRequest>> {
    let round = Round(u32::from(round % 4));
    let freeze = ledger.round(round)?.freeze_digest()?;
    let coin = coin.then(|| coins().open(CoinKind::Node, round, 0)).flatten();
    let request = AuditRequest { round, freeze, target: id(target), coin };
    Some(person(usize::from(verifier)).sign(ledger.run(), &request))
}

fn id(who: u8) -> MemberId {
    person(usize::from(who)).id()
}

fn body(ledger: &Ledger, act: &Act) -> Option<Body> {
    let run = ledger.run();
    // A little too low as well: what is said twice or late must be refused.
    let before = |back: u8| Height(ledger.height().0.saturating_sub(u64::from(back % 4)));
    Some(match act {
        Act::Next(bits) => next(ledger, *bits)?,
        Act::Admit { who, verifier, dialable } => {
            let role = if *verifier { Role::Verifier } else { Role::Node };
            Body::Admit(enrol(run, usize::from(*who), role, *dialable))
        }
        Act::Reassign(part, slot) => {
            let moved = Reassigned { part: Part(u16::from(part % 4)), aggregator: Slot(u16::from(slot % 4)) };
            Body::Reassign(Reassign { round: ledger.next_round(), parts: bounded(vec![moved]) })
        }
        Act::Silence { verifier, round, target, coin } => {
            Body::Silence(request(ledger, *verifier, *round, *target, *coin)?)
        }
        Act::Answered(who) => {
            let Standing::Silent(request) = ledger.member(&id(*who))?.standing else { return None };
            Body::Answered(request)
        }
        Act::Ban { culprit, accuser, round } => Body::Ban(Ban {
            culprit: id(*culprit),
            effective: ledger.first_round_without(),
            round: Round(u32::from(round % 4)),
            finding: FindingKind::LeafMismatch,
            evidence: Default::default(),
            accuser: id(*accuser),
            jury: Jury::default(),
        }),
        Act::Return { who, back } => {
            let said = Return {
                height: before(*back),
                addresses: Default::default(),
                engagement: Default::default(),
            };
            Body::Return(person(usize::from(*who)).sign(run, &said))
        }
        Act::Leave { who, back } => {
            Body::Leave(person(usize::from(*who)).sign(run, &Leave { height: before(*back) }))
        }
        Act::Ready { who, row, back, right } => {
            // Half of the time somebody who is waited for, where there is one.
            let waiting = waiting(ledger).nth(usize::from(who / 2 % 2)).filter(|_| who & 1 == 0);
            Body::Ready(ready(ledger, waiting.unwrap_or(*who), row % 3, *back, *right)?)
        }
        Act::Rewind(back) => {
            let to = Round(ledger.next_round().0.saturating_sub(1 + u32::from(back % 3)));
            let state = ledger.state_before(to)?.clone();
            Body::Rewind(Rewind { to, state, evidence: Default::default() })
        }
        Act::Any(body) => body.clone(),
    })
}

/// A step's record, signed by the real steward's key after the edit; none where there is nothing to seal, or the edit leaves
/// no record.
pub fn sealed(ledger: &Ledger, step: &Step) -> Option<Signed<Record>> {
    let body = body(ledger, &step.act)?;
    let mut bytes = encode(&ledger.record(body));
    if let Some((at, bits)) = step.edit {
        let at = usize::from(at) % bytes.len();
        bytes[at] ^= bits;
    }
    let record = decode::<Record>(&bytes).ok()?;
    assert_eq!(encode(&record), bytes, "a record has one encoding");
    // Signed after the edit: the steward's own key lies, so that only the ledger's rules can refuse.
    Some(steward().sign(ledger.run(), &record))
}

/// Everything that can be seen of a ledger.
pub fn seen(ledger: &Ledger) -> String {
    let rounds = ledger.rounds().map(|view| {
        let frozen: Vec<_> = view.commitments().collect();
        let moved: Vec<Part> = view.reassigned().collect();
        format!("{:?}{frozen:?}{:?}{moved:?}{:?}", view.seats(), view.inputs(), view.results())
    });
    let rounds: Vec<String> = rounds.collect();
    let (head, height, stage, state) = (ledger.head(), ledger.height(), ledger.stage(), ledger.state());
    let rows = (ledger.has_dealt_rows(), ledger.holders());
    format!(
        "{head:?}{height:?}{stage:?}{state:?}{rows:?}{:?}{:?}{rounds:?}",
        ledger.next_round(),
        ledger.members()
    )
}

/// A step from one ledger to the next breaks nothing that always holds.
pub fn lasting(before: &Ledger, after: &Ledger) {
    assert_eq!(after.height(), before.height().next());
    assert!(after.next_round() >= before.next_round());
    assert!(after.members().len() <= usize::from(after.manifest().admission.most_members));
    for (was, is) in before.members().iter().zip(after.members()) {
        assert_eq!((was.id, was.role), (is.id, is.role));
        assert!(was.standing != Standing::Banned || is.standing == Standing::Banned, "a convict is back");
        let left = matches!(is.standing, Standing::Left | Standing::Banned);
        assert!(was.standing != Standing::Left || left, "one that left is back");
    }
    let active = |seat: &Seat| after.member(&seat.member).is_some_and(|m| m.standing == Standing::Active);
    assert!(after.derived_seats().iter().all(active));
    // LEDGER-20: nor has anybody a seat that failed at the very outcome which opens the round.
    // After a Rewind the last round is an earlier one, which this record has not opened.
    let opened = after.current().filter(|view| before.current().map(RoundView::round) < Some(view.round()));
    assert!(opened.is_none_or(|view| view.seats().iter().all(active)));
}

/// A reader of records, and a second one that sees only those that the first one takes.
pub struct Readers {
    /// The first.
    pub ledger: Ledger,
    twin: Ledger,
}

impl Readers {
    /// Both of the empty ledger of a run.
    pub fn new(ledger: Ledger) -> Self {
        Self { twin: ledger.clone(), ledger }
    }

    /// Shows a step's record to the first reader, and to the second one if the first takes it. Gives the ledger before and
    /// the record, and whether it was taken.
    pub fn show(&mut self, step: &Step) -> Option<(Ledger, Signed<Record>, bool)> {
        let signed = sealed(&self.ledger, step)?;
        let before = self.ledger.clone();
        let taken = self.ledger.apply(&signed).is_ok();
        if taken {
            lasting(&before, &self.ledger);
            // By its bytes, and without a refused one, of which a trace would make the two differ.
            self.twin
                .apply(&decode(&encode(&signed)).expect("canonical bytes"))
                .expect("what one reader takes, every reader takes");
            assert_eq!(self.twin.head(), self.ledger.head());
        } else {
            // A refused record changes nothing that can be seen.
            assert_eq!(seen(&before), seen(&self.ledger));
        }
        Some((before, signed, taken))
    }

    /// Both see the same in the end.
    pub fn finish(&self) {
        assert_eq!(seen(&self.twin), seen(&self.ledger));
    }
}
