//! Who holds which row of experts, whatever the steward's key seals: whoever has a seat holds its row and has said so or was
//! dealt it, and has no other seat; a Ready is taken exactly when ROW-3 says so, and a refused one changes nothing; rows
//! change hands by the records that may do so, and by no others; whoever has left or is banned counts as nobody's holder; and
//! all readers agree.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use muster_core::ids::{MemberId, Row};
use muster_core::ledger::{Holding, Ledger, Member, RowHolder, Stage, Standing};
use muster_core::manifest::Family;
use muster_core::messages::enrol::{Ready, Role};
use muster_core::messages::record::{Body, Record, Seat};
use muster_core::sign::Signed;
use muster_fuzz::records::{Act, Readers, Step};
use muster_fuzz::{PEOPLE, RowSettings, manifest, with_rollback, with_rows};

/// Rounds of each run: more than a list of steps is long enough for.
const ROUNDS: u32 = 24;

fn gone(member: &Member) -> bool {
    matches!(member.standing, Standing::Left | Standing::Banned)
}

/// Whether each of these seats is its author's only one, and of the row that it holds.
fn seats_hold(ledger: &Ledger, seats: &[Seat], rows: u16) {
    let authors: BTreeSet<MemberId> = seats.iter().map(|seat| seat.member).collect();
    assert_eq!(authors.len(), seats.len(), "a member has one seat");
    for seat in seats {
        let member = ledger.member(&seat.member).expect("a seat is a member's");
        if rows == 1 {
            assert_eq!((seat.row, member.holding), (Row(0), None), "one row is nobody's own");
            continue;
        }
        let holding = member.holding.expect("who has a seat holds a row");
        assert!(holding.ready && holding.row == seat.row && seat.row.0 < rows, "{holding:?} {seat:?}");
    }
}

/// ROW-2: of whom holders are counted.
fn holders_count(ledger: &Ledger) {
    let holders = ledger.holders();
    let names: BTreeSet<MemberId> = holders.iter().map(|holder| holder.member).collect();
    assert_eq!(names.len(), holders.len(), "a node holds one row");
    for RowHolder { member, row, seatable } in holders {
        let member = ledger.member(&member).expect("a holder is a member");
        let holding = member.holding.expect("a holder has a row");
        assert!(member.role == Role::Node && !gone(member), "{member:?} counts as a holder");
        assert!(row == holding.row && row.0 < ledger.rows());
        assert!(!seatable || (holding.ready && member.standing == Standing::Active));
    }
}

/// ROW-3, in its own words.
fn is_good(ledger: &Ledger, signed: &Signed<Ready>) -> bool {
    let Ok(ready) = signed.verify(ledger.run()) else { return false };
    let Some(member) = ledger.member(&ready.author()) else { return false };
    let Some(Holding { row, ready: said, since }) = member.holding else { return false };
    let next = ready.round == ledger.next_round() && ready.root == ledger.state().root();
    let remembered =
        ledger.rounds().any(|view| view.round() == ready.round && view.state().root() == ready.root);
    let author = member.role == Role::Node && !gone(member);
    author
        && !said
        && ready.row == row
        && ready.round >= since
        && (next || remembered)
        && ledger.stage() != Stage::Closed
}

/// What happened to a member's row.
enum Change {
    Dealt(Row),
    Drawn(Row),
    Said,
    Moved(Row, Row),
    Withdrawn,
}

fn change(was: Option<Holding>, is: Option<Holding>) -> Option<Change> {
    match (was, is) {
        (was, is) if was == is => None,
        (None, Some(is)) if is.ready => Some(Change::Dealt(is.row)),
        (None, Some(is)) => Some(Change::Drawn(is.row)),
        (Some(_), None) => Some(Change::Withdrawn),
        (Some(was), Some(is)) if was.row == is.row => {
            assert!(!was.ready && is.ready && was.since == is.since, "{was:?} becomes {is:?}");
            Some(Change::Said)
        }
        (Some(was), Some(is)) => {
            assert!(was.ready && !is.ready, "{was:?} becomes {is:?}");
            Some(Change::Moved(was.row, is.row))
        }
        (None, None) => None,
    }
}

/// Whether each change of a member's row is one that this record may make.
fn changes_are_due(before: &Ledger, after: &Ledger, body: &Body) {
    let (opens, outcome) =
        (matches!(body, Body::Begin(_) | Body::Outcome(_)), matches!(body, Body::Outcome(_)));
    let (mut dealt, mut drawn, mut moved) = (Vec::new(), Vec::new(), 0);
    for (place, is) in after.members().iter().enumerate() {
        let was = before.members().get(place).and_then(|was| was.holding);
        let Some(change) = change(was, is.holding) else { continue };
        match change {
            Change::Withdrawn => {
                // ROW-4.
                assert!(matches!(body, Body::Rewind(_)) && after.rows() == 1);
                continue;
            }
            Change::Said => {
                let said = matches!(body, Body::Ready(signed) if signed.claimed_signer() == is.id);
                assert!(said, "a member speaks for itself: {body:?}");
                continue;
            }
            Change::Dealt(row) => {
                // ROW-1.
                assert!(opens && !before.has_dealt_rows() && after.has_dealt_rows());
                dealt.push(row);
            }
            Change::Drawn(row) => {
                // ROW-2.
                assert!(after.has_dealt_rows() && (outcome || after.stage() == Stage::Gathering));
                drawn.push((is.id, row));
            }
            Change::Moved(from, to) => {
                moved += 1;
                moves_where_it_is_short(before, is.id, from, to);
                assert!(outcome, "ROW-7");
            }
        }
        assert!(is.role == Role::Node && !gone(is), "a row is given to somebody who is there");
        assert_eq!(is.holding.map(|holding| holding.since), Some(after.next_round()));
    }
    assert!(moved <= 1, "one node moves at a time");
    deals_evenly(&dealt, after.rows());
    draws_where_it_is_short(after, &drawn);
}

/// ROW-1: rows are dealt in turn.
fn deals_evenly(dealt: &[Row], rows: u16) {
    let counts = (0..rows).map(|row| dealt.iter().filter(|dealt| dealt.0 == row).count());
    let (most, least) = (counts.clone().max().unwrap_or(0), counts.min().unwrap_or(0));
    assert!(most <= least + 1, "{dealt:?}");
}

/// ROW-2: each row that was drawn is of the half with the fewest holders, in order of admission.
fn draws_where_it_is_short(after: &Ledger, drawn: &[(MemberId, Row)]) {
    let new = |member: &MemberId| drawn.iter().any(|(id, _)| id == member);
    let mut held: Vec<Row> =
        after.holders().iter().filter(|holder| !new(&holder.member)).map(|holder| holder.row).collect();
    for (_, row) in drawn {
        let rank = |row: &Row| (held.iter().filter(|held| *held == row).count(), *row);
        let before = (0..after.rows()).map(Row).filter(|other| rank(other) < rank(row)).count();
        assert!(before < usize::from(after.rows().div_ceil(2)), "{drawn:?} beside {held:?}");
        held.push(*row);
    }
}

/// ROW-7: a seatable node moves from the row with the most of them to the one with the fewest holders, if that is short.
fn moves_where_it_is_short(before: &Ledger, mover: MemberId, from: Row, to: Row) {
    let Family::Mixture(mixture) = &before.manifest().model.family else { panic!("rows of a mixture") };
    let holders = before.holders();
    let all = |row: Row| holders.iter().filter(|holder| holder.row == row).count();
    let seatable = |row: Row| holders.iter().filter(|holder| holder.row == row && holder.seatable).count();
    assert!(holders.iter().any(|holder| holder.member == mover && holder.row == from && holder.seatable));
    assert!(all(to) < usize::from(mixture.few) && seatable(from) >= all(to) + 2);
    let rows = || (0..before.rows()).map(Row);
    assert!(rows().all(|row| all(row) >= all(to) && seatable(row) <= seatable(from)));
}

fn check(before: &Ledger, after: &Ledger, record: &Record, taken: bool) {
    if let Body::Ready(signed) = &record.body {
        let right = record.height == before.height() && record.previous == before.head();
        assert_eq!(taken, right && is_good(before, signed), "{signed:?} (ROW-3)");
    }
    if !taken {
        return;
    }
    if after.rows() == 1 {
        assert!(!after.has_dealt_rows() && after.members().iter().all(|member| member.holding.is_none()));
    }
    changes_are_due(before, after, &record.body);
    holders_count(after);
    if let Some(view) = after.current().filter(|_| matches!(record.body, Body::Begin(_) | Body::Outcome(_))) {
        seats_hold(after, view.seats(), view.state().rows());
    }
}

/// What a run's first byte settles.
fn ledger(settings: u8) -> Ledger {
    let bit = |place: u8| u16::from(settings >> place & 1);
    let (rows, branch, few) = (2 + bit(0), u32::from(bit(1)), 3 * bit(2));
    let rows = RowSettings { rows, branch, few, held: if few > 0 { 2 * bit(3) } else { 0 } };
    // Others may come later.
    let nodes = 2 + u16::from(settings >> 4 & 3) % (PEOPLE as u16 - 1);
    let run = with_rows(&manifest(ROUNDS, nodes), rows);
    Ledger::new(if bit(6) == 0 { with_rollback(&run) } else { run })
}

fn show(readers: &mut Readers, step: &Step) {
    let Some((before, signed, taken)) = readers.show(step) else { return };
    let record = signed.verify(before.run()).expect("the steward signs it");
    check(&before, &readers.ledger, &record, taken);
}

fuzz_target!(|input: (u8, Vec<(u8, Step)>)| {
    let (settings, steps) = input;
    let mut readers = Readers::new(ledger(settings));
    for (honest, step) in steps.iter().take(32) {
        let mut seal = |act| show(&mut readers, &Step { act, edit: None });
        // Somebody comes, and whoever is waited for is ready: else few lists of steps give anybody a new row.
        if honest & 0x80 > 0 {
            seal(Act::Admit { who: honest >> 3, verifier: false, dialable: true });
        }
        if honest & 0x40 > 0 {
            seal(Act::Ready { who: 0, row: 0, back: 0, right: true });
        }
        // A round is three records, in which everybody takes part.
        (0..honest % 8).for_each(|_| seal(Act::Next(0)));
        show(&mut readers, step);
    }
    readers.finish();
});
