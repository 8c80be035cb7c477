//! Which Rewind the ledger takes, and which it refuses.

use e2e::sim::{self, Plan, Sim};
use muster_core::codec::{List, Real};
use muster_core::ids::{Digest, Round};
use muster_core::ledger::{Ledger, Stage};
use muster_core::manifest::{Manifest, Rollback};
use muster_core::messages::audit::{FindingKind, Jury};
use muster_core::messages::record::{Ban, Body, Rewind};
use muster_core::state::{ShardRoots, StateRoots};

use crate::records::{node, steps, steward};

/// LEDGER-17, LEDGER-18.
#[test]
fn a_rewind_keeps_its_limits() {
    let (ledger, evidence) = convicted(Stage::Computing);
    let next = ledger.next_round();
    let to = Round(next.0 - 1);
    let good = Rewind { to, state: ledger.state_before(to).expect("a sealed state").clone(), evidence };
    let unknown = Rewind { evidence: Digest([5; 32]), ..good.clone() };
    refused(&ledger, &unknown, "evidence of no ban");
    refused(&ledger, &Rewind { to: next, ..good.clone() }, "to the present");
    refused(&ledger, &Rewind { state: ledger.state().clone(), ..good.clone() }, "to another state");
    assert!(ledger.state_before(Round(0)).is_none() || next.0 <= 2, "most_rounds is 2");
    if next.0 > 2 {
        let state = StateRoots::from([ShardRoots { step: 0, ..good.state.shards[0] }]);
        refused(&ledger, &Rewind { to: Round(0), state, ..good.clone() }, "too far back");
    }
    for stage in [Stage::Exchanging, Stage::Reducing, Stage::Auditing] {
        let (busy, evidence) = convicted(stage);
        let to = Round(busy.next_round().0 - 1);
        let state = busy.state_before(to).expect("a sealed state").clone();
        refused(&busy, &Rewind { to, state, evidence }, "inside an update, or after the last one");
    }

    let mut after = ledger.clone();
    seal(&mut after, Body::Rewind(good.clone())).expect("a rewind");
    assert_eq!(
        (after.stage(), after.next_round(), after.state()),
        (Stage::Gathering, next.next(), &good.state)
    );
    assert!(after.round(next).is_none(), "the open round is over without an update");
    refused(&after, &good, "the same evidence twice, at once");
    let seats = List::new(after.derived_seats()).expect("few");
    seal(&mut after, Body::Begin(seats)).expect("rounds go on");
    let view = after.current().expect("a round");
    assert_eq!((view.round(), view.state()), (next.next(), &good.state));
    assert!(view.slot_of(&node(1).id()).is_none(), "the convict has no seat");
    let ban = Ban {
        culprit: node(2).id(),
        effective: after.first_round_without(),
        round: Round(1),
        finding: FindingKind::LeafMismatch,
        evidence: Digest([6; 32]),
        accuser: node(0).id(),
        jury: Jury::default(),
    };
    seal(&mut after, Body::Ban(ban)).expect("another ban");
    refused(&after, &Rewind { evidence: Digest([6; 32]), ..good }, "two rewinds without spacing");
    assert_eq!(after.next_rewind(), Round(next.0 + 4), "three above the round that went on");
    assert!(
        (0..=after.next_round().0).all(|round| !after.can_rewind_to(Round(round))),
        "out of reach by then"
    );
}

/// A ledger in which a member is banned, in the middle of a run, with the name of the evidence.
fn convicted(stage: Stage) -> (Ledger, Digest) {
    let mut steps = steps();
    // The last record leads to the last audits, which no record follows here.
    let (mut end, last) = steps.last().cloned().expect("records");
    seal(&mut end, last.body.clone()).expect("an honest record");
    steps.push((end, last));
    let at = steps.iter().rev().find(|(ledger, _)| ledger.stage() == stage && ledger.next_round().0 >= 2);
    let mut ledger = at.expect("such a stage").0.clone();
    let evidence = Digest([4; 32]);
    let ban = Ban {
        culprit: node(1).id(),
        effective: ledger.first_round_without(),
        round: Round(1),
        finding: FindingKind::LeafMismatch,
        evidence,
        accuser: node(0).id(),
        jury: Jury::default(),
    };
    seal(&mut ledger, Body::Ban(ban)).expect("a ban");
    (ledger, evidence)
}

fn seal(ledger: &mut Ledger, body: Body) -> Result<(), muster_core::error::Reject> {
    let signed = steward().sign(ledger.run(), &ledger.record(body));
    ledger.apply(&signed).map(drop)
}

fn refused(ledger: &Ledger, rewind: &Rewind, what: &str) {
    let mut after = ledger.clone();
    seal(&mut after, Body::Rewind(rewind.clone())).expect_err(what);
    assert_eq!((after.head(), after.stage(), after.state()), (ledger.head(), ledger.stage(), ledger.state()));
}

/// A convict's friends can make it take as long as they like to look into its past; meanwhile rounds went on, and the first bad
/// one got out of reach.
#[test]
fn rollback_5_no_round_is_spent_that_would_take_a_past_that_is_measured_out_of_reach() {
    let change: fn(&mut Manifest) = |manifest| {
        let limit = Real::new(0.5).expect("finite");
        manifest.rollback = Rollback { limit, most_rounds: 4, spacing: 5 };
    };
    let players = sim::cast(4, &["flip".parse().expect("an attack")], Round(3), 5);
    let plan = Plan { verifiers: 1, share_ppm: 1_000_000, change, ..Plan::new(5, 16, players) };
    // A minute, in which sixteen rounds would be over.
    let report = Sim::new(Plan { measures: 60_000, ..plan.clone() }).finish();
    assert_eq!(report.rewinds, 1);
    // The steward's process may be killed meanwhile, and begins again.
    let crashes = Plan { measures: 5_000, steward_crashes: 2_000, ..plan };
    assert_eq!(Sim::new(crashes).finish().false_bans(), 0);
}
