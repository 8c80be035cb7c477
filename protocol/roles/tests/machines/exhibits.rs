//! What the steward keeps by value while audits last.

use muster_core::ids::Round;
use muster_core::ledger::Stage;
use muster_core::messages::record::Body;
use muster_roles::steward::{Steward, StewardSetup};

use super::run::{Run, identity, roots};

/// Rounds that are remembered, and the first one whose audits begin: its verifier shows no coin, so that everybody may be accused
/// for it for as long as it likes (AUDIT-26).
const REMEMBERED: u32 = 4;
const SILENT: Round = Round(3);
/// With the Outcome of this round the audit has lasted, since A is 3; with the next one a round is forgotten that counts everybody.
const LASTS: Round = Round(4);

/// The round after `LASTS` is open.
fn lasting() -> Run {
    let mut run = Run::gathered(
        |manifest| {
            manifest.training.rounds = 12;
            (manifest.retention.contributions, manifest.retention.states) = (REMEMBERED, REMEMBERED);
        },
        Some(SILENT),
    );
    while run.ledger.next_round() <= LASTS {
        next_round(&mut run);
    }
    assert!(run.ledger.round(next_forgotten(&run)).is_some_and(|view| view.results().is_some()));
    run
}

/// Everybody works until the next round is open.
fn next_round(run: &mut Run) {
    run.until(Stage::Exchanging);
    run.until(Stage::Computing);
}

/// The round that the next Outcome has everybody forget.
fn next_forgotten(run: &Run) -> Round {
    Round(run.ledger.next_round().0 - REMEMBERED)
}

/// The rounds of which parts are kept by value, each with whether a record waited for that, and with the newest Outcome by then.
fn kept(run: &Run) -> Vec<(Round, bool, Option<Round>)> {
    let parts = run.parts_kept.iter().flat_map(|(records, at_once, parts)| {
        let outcome = run.records[..*records].iter().rev().find_map(|record| match &record.body {
            Body::Outcome(outcome) => Some(outcome.round),
            _ => None,
        });
        parts.iter().map(move |(round, ..)| (*round, *at_once, outcome))
    });
    let mut kept: Vec<_> = parts.collect();
    kept.dedup();
    kept
}

/// A member that lets its audits wait would otherwise have every Outcome wait for the steward's disk.
#[test]
fn audit_24_parts_are_kept_while_there_is_time_and_no_record_waits_for_them() {
    let mut run = lasting();
    let forgotten = next_forgotten(&run);
    assert_eq!(kept(&run), [(forgotten, false, Some(LASTS))]);
    next_round(&mut run);
    assert!(run.ledger.round(forgotten).is_none());
    assert_eq!(kept(&run)[1..], [(next_forgotten(&run), false, Some(LASTS.next()))]);
}

/// A steward that begins again has seen no Outcome by which to keep anything, and the next one has a round forgotten.
#[test]
fn audit_24_what_a_record_has_everybody_forget_is_on_the_disk_before_it() {
    let run = lasting();
    let setup = StewardSetup {
        ledger: run.ledger.clone(),
        identity: identity(101),
        roots: roots(run.ledger.state().step()),
        states: Default::default(),
        bans: Vec::new(),
        kept: run.kept.clone(),
    };
    let mut again = Run::of(Steward::new(setup), run.ledger.clone());
    assert!(kept(&again).is_empty());
    let forgotten = next_forgotten(&again);
    next_round(&mut again);
    assert!(again.ledger.round(forgotten).is_none());
    assert_eq!(kept(&again)[0], (forgotten, true, None));
}
