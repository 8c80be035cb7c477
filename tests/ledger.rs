//! A steward that lies: every record that breaks a rule is refused by every member, and changes nothing.

use std::sync::Arc;

use e2e::sim::{Behaviour, Plan, Sim};
use muster_core::codec::{List, decode, encode};
use muster_core::ids::{Digest, Height, Part, Round, Slot};
use muster_core::ledger::Ledger;
use muster_core::manifest::Profile;
use muster_core::messages::audit::Jury;
use muster_core::messages::record::{Ban, Body, Inputs, Outcome, Reassign, Reassigned, Record, Seat};
use muster_core::messages::round::{Bitmap, Commit};
use muster_core::sign::{Identity, Signed};
use muster_core::state::{ShardRoots, StateRoots};

/// Puts other seats into a record.
type Rebuild = Box<dyn Fn(Vec<Seat>) -> Body>;

fn steward() -> Identity {
    Identity::from_secret(&[2; 32])
}

fn honest_run() -> Sim {
    let mut behaviours = [Behaviour::Honest; 4];
    behaviours[3] = Behaviour::NeverReduces;
    let mut sim = Sim::new(Plan::behaving(11, 3, &behaviours));
    sim.run(3_600_000);
    sim
}

/// Ledgers before each record of an honest run, with the record that comes next.
fn steps(sim: &Sim) -> Vec<(Ledger, Record)> {
    let mut ledger = Ledger::new(Arc::clone(sim.ledger().manifest()));
    let run = ledger.run();
    let step = |record: Record| {
        let before = ledger.clone();
        ledger.apply(&steward().sign(run, &record)).expect("an honest record");
        (before, record)
    };
    sim.records().map(step).collect()
}

fn refused(ledger: &Ledger, signed: &Signed<Record>, what: &str) {
    let mut after = ledger.clone();
    after.apply(signed).expect_err(what);
    assert_eq!(
        (after.head(), after.height(), after.stage()),
        (ledger.head(), ledger.height(), ledger.stage()),
        "{what}"
    );
    assert_eq!(after.derived_seats(), ledger.derived_seats(), "{what}");
}

fn refused_body(ledger: &Ledger, body: Body, what: &str) {
    refused(ledger, &steward().sign(ledger.run(), &ledger.record(body)), what);
}

/// LEDGER-1: a record is signed by the steward of the manifest, for this run.
#[test]
fn only_the_steward_seals() {
    let sim = honest_run();
    for (ledger, record) in steps(&sim) {
        refused(&ledger, &Identity::from_secret(&[10; 32]).sign(ledger.run(), &record), "a member's seal");
        let other = muster_core::ids::RunId(Digest([5; 32]));
        refused(&ledger, &steward().sign(other, &record), "another run's seal");
    }
}

/// LEDGER-1: its height and the head before it.
#[test]
fn a_record_has_one_place() {
    let sim = honest_run();
    for (ledger, record) in steps(&sim) {
        let run = ledger.run();
        let later = Record { height: Height(record.height.0 + 1), ..record.clone() };
        refused(&ledger, &steward().sign(run, &later), "a record with another height");
        let elsewhere = Record { previous: Digest([3; 32]), ..record.clone() };
        refused(&ledger, &steward().sign(run, &elsewhere), "a record after another head");
        let mut after = ledger.clone();
        let signed = steward().sign(run, &record);
        after.apply(&signed).expect("an honest record");
        refused(&after, &signed, "a record twice");
    }
}

#[test]
fn one_changed_bit_anywhere_is_refused() {
    let sim = honest_run();
    for (number, (ledger, record)) in steps(&sim).into_iter().enumerate() {
        let bytes = encode(&steward().sign(ledger.run(), &record));
        for place in (0..bytes.len()).step_by(1 + bytes.len() / 97) {
            let mut changed = bytes.clone();
            changed[place] ^= 1 << (number % 8);
            if let Ok(signed) = decode::<Signed<Record>>(&changed) {
                refused(&ledger, &signed, &format!("record {number}, byte {place}"));
            }
        }
    }
}

/// LEDGER-14: a follower derives the seats itself, to the order and the quota.
#[test]
fn seats_follow_from_the_ledger() {
    let sim = honest_run();
    for (ledger, record) in steps(&sim) {
        let (seats, rebuild): (Vec<Seat>, Rebuild) = match record.body {
            Body::Begin(seats) => {
                (seats.to_vec(), Box::new(|seats| Body::Begin(List::new(seats).expect("few"))))
            }
            Body::Outcome(outcome) if !outcome.seats.is_empty() => (
                outcome.seats.to_vec(),
                Box::new(move |seats| {
                    let mut outcome = outcome.clone();
                    outcome.seats = List::new(seats).expect("few");
                    Body::Outcome(outcome)
                }),
            ),
            _ => continue,
        };
        let mut fewer = seats.clone();
        fewer.pop();
        refused_body(&ledger, rebuild(fewer), "a seat withheld");
        let mut richer = seats.clone();
        richer[0].quota += 1;
        refused_body(&ledger, rebuild(richer), "a larger quota");
        let mut turned = seats;
        turned.swap(0, 1);
        refused_body(&ledger, rebuild(turned), "seats in another order");
    }
}

/// LEDGER-7.
#[test]
fn a_freeze_holds_each_commitment_once_in_order() {
    let sim = honest_run();
    for (ledger, record) in steps(&sim) {
        let Body::Freeze(freeze) = record.body else { continue };
        let commits = freeze.commits.to_vec();
        let with = |commits: Vec<_>| {
            let mut freeze = freeze.clone();
            freeze.commits = List::new(commits).expect("few");
            Body::Freeze(freeze)
        };
        let mut turned = commits.clone();
        turned.swap(0, 1);
        refused_body(&ledger, with(turned), "commitments out of order");
        let mut doubled = commits.clone();
        doubled.insert(0, commits[0].clone());
        refused_body(&ledger, with(doubled), "a commitment twice");
        let mut other = freeze.clone();
        other.round = Round(freeze.round.0 + 1);
        refused_body(&ledger, Body::Freeze(other), "a freeze of another round");
        let mut forged = ledger.check_commit(&commits[0]).expect("an honest commitment").into_inner();
        forged.leaves += 1;
        let mut stuffed = commits.clone();
        stuffed[0] = steward().sign(ledger.run(), &forged);
        refused_body(&ledger, with(stuffed), "a commitment signed by somebody else");
    }
}

#[test]
fn commit_3_each_field_of_a_commitment_is_the_ledgers() {
    let sim = honest_run();
    for (ledger, record) in steps(&sim) {
        let Body::Freeze(freeze) = &record.body else { continue };
        for signed in freeze.commits.iter() {
            let mut nodes = (10..14).map(|number| Identity::from_secret(&[number; 32]));
            let author = nodes.find(|node| node.id() == signed.claimed_signer()).expect("a node");
            let good = ledger.check_commit(signed).expect("an honest commitment").into_inner();
            let quota = ledger.current().expect("a round").seats()[good.slot.index()].quota;
            let wrong = [
                ("another round", Commit { round: good.round.next(), ..good.clone() }),
                ("another head", Commit { head: Digest([3; 32]), ..good.clone() }),
                ("another state", Commit { state: Digest([3; 32]), ..good.clone() }),
                (
                    "somebody else's slot",
                    Commit { slot: Slot((good.slot.0 + 1) % good.seats), ..good.clone() },
                ),
                ("no slot", Commit { slot: Slot(good.seats), ..good.clone() }),
                ("more seats", Commit { seats: good.seats + 1, ..good.clone() }),
                ("no leaf", Commit { leaves: 0, ..good.clone() }),
                ("more leaves than the quota", Commit { leaves: quota + 1, ..good.clone() }),
                ("another profile", Commit { profile: Profile::F32, ..good.clone() }),
            ];
            for (what, commit) in wrong {
                ledger.check_commit(&author.sign(ledger.run(), &commit)).expect_err(what);
            }
            let fewer = Commit { leaves: 1, ..good };
            ledger.check_commit(&author.sign(ledger.run(), &fewer)).expect("a member may fall short");
        }
        let mut after = ledger.clone();
        after.apply(&steward().sign(ledger.run(), &record)).expect("an honest record");
        after.check_commit(&freeze.commits[0]).expect_err("the round is frozen");
    }
}

/// LEDGER-8.
#[test]
fn inputs_are_frozen_contributions() {
    let sim = honest_run();
    for (ledger, record) in steps(&sim) {
        let Body::Inputs(Inputs { round, attempt, parts }) = record.body else { continue };
        let with = |attempt, parts: Vec<Bitmap>| {
            Body::Inputs(Inputs { round, attempt, parts: List::new(parts).expect("few") })
        };
        let mut stranger = parts.to_vec();
        stranger[0].insert(Slot(200));
        refused_body(&ledger, with(attempt, stranger), "a slot without commitment");
        let mut fewer = parts.to_vec();
        fewer.pop();
        refused_body(&ledger, with(attempt, fewer), "a part without bitmap");
        refused_body(&ledger, with(1 - attempt, parts.to_vec()), "another attempt");
    }
}

#[test]
fn results_are_by_their_aggregators_over_the_sealed_inputs() {
    let sim = honest_run();
    let mut seen = 0;
    for (ledger, record) in steps(&sim) {
        let Body::Outcome(outcome) = record.body else { continue };
        seen += 1;
        let run = ledger.run();
        let forge = |author: &Identity, change: &dyn Fn(&mut muster_core::messages::round::PartResult)| {
            let first = outcome.results[0].clone().expect("a result");
            let mut result = first.verify(run).expect("signed").into_inner();
            change(&mut result);
            let mut outcome = outcome.clone();
            let mut results = outcome.results.to_vec();
            results[0] = Some(author.sign(run, &result));
            outcome.results = List::new(results).expect("few");
            Body::Outcome(outcome)
        };
        refused_body(&ledger, forge(&steward(), &|_| {}), "a result by somebody else");
        let author = (10..14).map(|n| Identity::from_secret(&[n; 32]));
        let claimed = outcome.results[0].as_ref().expect("a result").claimed_signer();
        let author = author.into_iter().find(|id| id.id() == claimed).expect("a node");
        refused_body(
            &ledger,
            forge(&author, &|result| result.inputs.insert(Slot(99))),
            "a result over other inputs",
        );
        refused_body(
            &ledger,
            forge(&author, &|result| result.round = Round(77)),
            "a result of another round",
        );
        refused_body(&ledger, forge(&author, &|result| result.part = Part(1)), "a result of another part");
        refused_body(
            &ledger,
            forge(&author, &|result| result.attempt = 1 - result.attempt),
            "another attempt's result",
        );
        let shard = outcome.state.shards[0];
        let state = StateRoots::from([ShardRoots { step: shard.step + 1, ..shard }]);
        refused_body(&ledger, Body::Outcome(Outcome { state, ..outcome.clone() }), "two updates at once");
        for (state, what) in
            [(StateRoots::from([]), "no shard"), (StateRoots::from([shard; 2]), "a shard too many")]
        {
            refused_body(&ledger, Body::Outcome(Outcome { state, ..outcome.clone() }), what);
        }
        let mut echoes = outcome.clone();
        let doubled = [outcome.echoes.to_vec(), vec![outcome.echoes[0].clone()]].concat();
        echoes.echoes = List::new(doubled).expect("few");
        refused_body(&ledger, Body::Outcome(echoes), "an echo twice");
    }
    assert_eq!(seen, 3);
}

/// LEDGER-9.
#[test]
fn parts_move_once_to_another_aggregator() {
    let sim = honest_run();
    let mut seen = 0;
    for (ledger, record) in steps(&sim) {
        let Body::Reassign(reassign) = record.body else { continue };
        seen += 1;
        let moved = reassign.parts[0].clone();
        let view = ledger.current().expect("a round");
        let own = view.aggregator(moved.part).expect("an aggregator").0;
        let with =
            |parts| Body::Reassign(Reassign { round: reassign.round, parts: List::new(parts).expect("few") });
        refused_body(
            &ledger,
            with(vec![Reassigned { part: moved.part, aggregator: own }]),
            "back to the same",
        );
        refused_body(
            &ledger,
            with(vec![Reassigned { part: Part(99), aggregator: moved.aggregator }]),
            "no such part",
        );
        refused_body(&ledger, with(vec![moved.clone(), moved]), "a part twice");
        refused_body(&ledger, with(Vec::new()), "nothing moved");
    }
    assert!(seen > 0);
}

#[test]
fn bans_and_ends_have_their_time() {
    let sim = honest_run();
    for (ledger, record) in steps(&sim).into_iter().skip(6) {
        let ban = Ban {
            culprit: sim.id(0),
            effective: ledger.first_round_without(),
            round: Round(0),
            finding: muster_core::messages::audit::FindingKind::LeafMismatch,
            evidence: Digest([4; 32]),
            accuser: sim.id(1),
            jury: Jury::default(),
        };
        let inside = Ban { effective: Round(ban.effective.0 + 1), ..ban.clone() };
        refused_body(&ledger, Body::Ban(inside), "a ban at another round");
        let stranger = Ban { culprit: steward().id(), ..ban.clone() };
        refused_body(&ledger, Body::Ban(stranger), "a ban of no member");
        let anonymous = Ban { accuser: Identity::from_secret(&[99; 32]).id(), ..ban.clone() };
        refused_body(&ledger, Body::Ban(anonymous), "LEDGER-12: a ban by no member's word");
        if ban.round < ban.effective {
            let mut after = ledger.clone();
            let signed = steward().sign(ledger.run(), &ledger.record(Body::Ban(ban.clone())));
            after.apply(&signed).expect("a ban");
            refused_body(&after, Body::Ban(ban), "a ban twice");
        }
        // LEDGER-16: the honest record that closes the run was applied above.
        if !matches!(record.body, Body::Close(_)) {
            refused_body(&ledger, Body::Close(Digest([9; 32])), "an end with another root");
        }
    }
}
