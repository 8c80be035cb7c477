//! Any records sealed by the real steward's key, honest ones among them: no panic; on an error nothing has changed; a
//! second reader of the same bytes comes to the same head; and nobody who is out comes back in.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_core::codec::{List, decode, encode};
use muster_core::coins::CoinKind;
use muster_core::ids::{Height, MemberId, Part, Round, Slot};
use muster_core::ledger::{Ledger, RoundView, Stage, Standing};
use muster_core::messages::audit::{AuditRequest, FindingKind, Jury};
use muster_core::messages::enrol::{Leave, Return, Role};
use muster_core::messages::record::{Ban, Body, Freeze, Inputs, Outcome, Reassign, Reassigned, Record, Seat};
use muster_core::messages::round::{Bitmap, Echo, PartResult};
use muster_core::sign::Signed;
use muster_fuzz::{PEOPLE, coins, commit, enrol, manifest, named, person, reduced, roots, steward};

#[derive(arbitrary::Arbitrary, Debug)]
struct Step {
    act: Act,
    /// Changes a byte of the record before it is signed.
    edit: Option<(u16, u8)>,
}

#[derive(arbitrary::Arbitrary, Debug)]
enum Act {
    /// What an honest steward might seal next; the bits choose who takes part.
    Next(u8),
    Admit {
        who: u8,
        verifier: bool,
        dialable: bool,
    },
    Reassign(u8, u8),
    Silence {
        verifier: u8,
        round: u8,
        target: u8,
        coin: bool,
    },
    Answered(u8),
    Ban {
        culprit: u8,
        accuser: u8,
        round: u8,
    },
    Return {
        who: u8,
        back: u8,
    },
    Leave {
        who: u8,
        back: u8,
    },
    Any(Body),
}

fn bounded<T, const MAX: usize>(items: Vec<T>) -> List<T, MAX> {
    List::new(items).expect("few")
}

fn chosen(bits: u8, place: usize) -> bool {
    bits >> (place % 8) & 1 == 0
}

fn next(ledger: &Ledger, bits: u8) -> Option<Body> {
    Some(match ledger.stage() {
        Stage::Empty => Body::Open(roots(0)),
        Stage::Gathering if ledger.ready() => Body::Begin(bounded(ledger.derived_seats())),
        Stage::Gathering => {
            Body::Admit(enrol(ledger.run(), ledger.members().len(), Role::Node, bits & 1 == 0))
        }
        Stage::Computing => freeze(ledger, bits)?,
        Stage::Exchanging => inputs(ledger, bits)?,
        Stage::Reducing => outcome(ledger, bits)?,
        Stage::Auditing | Stage::Closed => Body::Close(ledger.state().root()),
    })
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
        let taken = view.commitments().filter(|(slot, _)| chosen(bits, slot.index() + part.index()));
        taken.for_each(|(slot, _)| bitmap.insert(slot));
        bitmap
    };
    let parts = bounded(parts.iter().map(bitmap).collect());
    Some(Body::Inputs(Inputs { round: view.round(), attempt: u8::from(!second.is_empty()), parts }))
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
        state: roots(ledger.state().step() + 1),
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
            let said = Return { height: before(*back), addresses: Default::default() };
            Body::Return(person(usize::from(*who)).sign(run, &said))
        }
        Act::Leave { who, back } => {
            Body::Leave(person(usize::from(*who)).sign(run, &Leave { height: before(*back) }))
        }
        Act::Any(body) => body.clone(),
    })
}

/// Everything that can be seen of a ledger.
fn seen(ledger: &Ledger) -> String {
    let rounds = ledger.rounds().map(|view| {
        let frozen: Vec<_> = view.commitments().collect();
        let moved: Vec<Part> = view.reassigned().collect();
        format!("{:?}{frozen:?}{:?}{moved:?}{:?}", view.seats(), view.inputs(), view.results())
    });
    let rounds: Vec<String> = rounds.collect();
    let (head, height, stage, state) = (ledger.head(), ledger.height(), ledger.stage(), ledger.state());
    format!("{head:?}{height:?}{stage:?}{state:?}{:?}{:?}{rounds:?}", ledger.next_round(), ledger.members())
}

/// A step from one ledger to the next breaks nothing that always holds.
fn lasting(before: &Ledger, after: &Ledger) {
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
    let opened = after.current().filter(|view| before.current().map(RoundView::round) != Some(view.round()));
    assert!(opened.is_none_or(|view| view.seats().iter().all(active)));
}

fuzz_target!(|input: (u8, Vec<Step>)| {
    let (settings, steps) = input;
    let mut ledger =
        Ledger::new(manifest(1 + u32::from(settings % 4), 1 + u16::from(settings / 4) % PEOPLE as u16));
    let mut twin = ledger.clone();
    for step in steps.iter().take(64) {
        let Some(body) = body(&ledger, &step.act) else { continue };
        let mut bytes = encode(&ledger.record(body));
        if let Some((at, bits)) = step.edit {
            let at = usize::from(at) % bytes.len();
            bytes[at] ^= bits;
        }
        let Ok(record) = decode::<Record>(&bytes) else { continue };
        // Signed after the edit: the steward's own key lies, so that only the ledger's rules can refuse.
        let signed = steward().sign(ledger.run(), &record);
        let before = ledger.clone();
        // A refused record changes nothing that can be seen.
        if ledger.apply(&signed).is_err() {
            assert_eq!(seen(&before), seen(&ledger));
            continue;
        }
        lasting(&before, &ledger);
        // The twin sees accepted records only, by their bytes: a trace of a refused one would make the two differ.
        twin.apply(&decode(&encode(&signed)).expect("canonical bytes"))
            .expect("what one reader takes, every reader takes");
        assert_eq!(twin.head(), ledger.head());
    }
    assert_eq!(seen(&twin), seen(&ledger));
});
