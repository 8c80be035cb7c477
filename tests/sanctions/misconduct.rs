//! What convicts the steward: records that break its receipts, and two seals of one height.

use muster_core::audit::{Judgement, judge_steward};
use muster_core::codec::List;
use muster_core::ids::{Digest, Part, Round};
use muster_core::ledger::Ledger;
use muster_core::manifest::Manifest;
use muster_core::messages::evidence::{Misconduct, OmittedCommit, OmittedDelivery, Seal, TwoSeals};
use muster_core::messages::gossip::Head;
use muster_core::messages::record::{Body, Freeze, Inputs, Record};
use muster_core::messages::round::{Bitmap, Commit, CommitReceipt, Delivered, DeliveryReceipt, Receipt};
use muster_core::sign::Signed;

use crate::records::{node, steps, steward};

/// AUDIT-13: a Commit with a receipt is in the Freeze of its round.
#[test]
fn a_receipted_commitment_that_is_left_out_convicts_the_steward() {
    let mut seen = 0;
    for (ledger, record) in steps() {
        let Body::Freeze(freeze) = &record.body else { continue };
        seen += 1;
        let (run, manifest) = (ledger.run(), ledger.manifest());
        let commit = freeze.commits[1].clone();
        let receipt = |digest, round| steward().sign(run, &CommitReceipt { commit: digest, round });
        let seal = |commits: Vec<Signed<Commit>>, round| {
            let freeze = Freeze { commits: List::new(commits).expect("few"), round, ..freeze.clone() };
            steward().sign(run, &ledger.record(Body::Freeze(freeze)))
        };
        let without: Vec<_> = freeze.commits.iter().filter(|kept| **kept != commit).cloned().collect();
        let omitted =
            |receipt, freeze| Misconduct::Commit(OmittedCommit { commit: commit.clone(), receipt, freeze });
        let good = receipt(commit.digest(), freeze.round);
        assert!(guilty(manifest, omitted(good.clone(), seal(without.clone(), freeze.round))));
        assert!(!guilty(manifest, omitted(good.clone(), seal(freeze.commits.to_vec(), freeze.round))));
        let later = Round(freeze.round.0 + 1);
        malformed(manifest, omitted(good.clone(), seal(without.clone(), later)), "a freeze of another round");
        let other = receipt(freeze.commits[0].digest(), freeze.round);
        malformed(manifest, omitted(other, seal(without.clone(), freeze.round)), "a receipt of another");
        let own = node(0).sign(run, &CommitReceipt { commit: commit.digest(), round: freeze.round });
        malformed(manifest, omitted(own, seal(without.clone(), freeze.round)), "a receipt of one's own");
        let own = node(0).sign(run, &ledger.record(Body::Close(Digest([1; 32]))));
        malformed(manifest, omitted(good, own), "a record of one's own");
    }
    assert_eq!(seen, 3);
}

/// AUDIT-13: a Delivered with a receipt counts its author in each part that it has a keeper's receipt for.
#[test]
fn a_receipted_delivery_that_is_left_out_convicts_the_steward() {
    let (mut seen, mut seconds) = (0, 0);
    let (mut freeze, mut reassign) = (None, None);
    for (ledger, record) in steps() {
        let signed = steward().sign(ledger.run(), &record);
        match &record.body {
            Body::Freeze(_) => (freeze, reassign) = (Some(signed), None),
            Body::Reassign(_) => reassign = Some(signed),
            Body::Inputs(inputs) => {
                let freeze = freeze.clone().expect("a freeze");
                left_out(&ledger, inputs, freeze, reassign.clone());
                seen += 1;
                seconds += u32::from(inputs.attempt);
            }
            _ => {}
        }
    }
    assert!(seen > 3 && seconds > 0, "{seen} and {seconds}");
}

fn left_out(ledger: &Ledger, inputs: &Inputs, freeze: Signed<Record>, reassign: Option<Signed<Record>>) {
    let (run, manifest) = (ledger.run(), ledger.manifest());
    let view = ledger.current().expect("a round");
    let author = view.member_at(inputs.parts[0].slots().next().expect("a sender")).expect("a member");
    let author = (0..4).map(node).find(|node| node.id() == author).expect("a node");
    let slot = view.slot_of(&author.id()).expect("a seat");
    let second: Vec<Part> = view.reassigned().collect();
    let place = inputs.parts.len() - 1;
    let part = if inputs.attempt == 0 { Part(place as u16) } else { second[place] };
    let (round, attempt) = (inputs.round, inputs.attempt);
    let root = view.commitment(slot).expect("a commitment").commit.root;
    let receipt = Receipt { round, part, attempt, sender: author.id(), root };
    let keeper = node(0).sign(run, &receipt);
    let delivered = Delivered { round, attempt, receipts: List::new(vec![keeper]).expect("one") };
    let delivered = author.sign(run, &delivered);
    let promise = DeliveryReceipt { delivered: delivered.digest(), round, attempt };
    let seal = |counted: bool, attempt: u8| {
        let mut parts = inputs.parts.to_vec();
        let others = parts[place].slots().filter(|other| *other != slot).collect::<Vec<_>>();
        parts[place] = Bitmap::default();
        others.into_iter().for_each(|other| parts[place].insert(other));
        if counted {
            parts[place].insert(slot);
        }
        let inputs = Inputs { round, attempt, parts: List::new(parts).expect("few") };
        steward().sign(run, &ledger.record(Body::Inputs(inputs)))
    };
    let omitted = |receipt: Signed<DeliveryReceipt>, inputs: Signed<Record>| {
        let (delivered, freeze) = (delivered.clone(), freeze.clone());
        let reassign = reassign.clone().filter(|_| attempt == 1);
        Misconduct::Delivery(OmittedDelivery { delivered, receipt, freeze, reassign, inputs })
    };
    let good = steward().sign(run, &promise);
    assert!(guilty(manifest, omitted(good.clone(), seal(false, attempt))));
    assert!(!guilty(manifest, omitted(good.clone(), seal(true, attempt))));
    malformed(manifest, omitted(good.clone(), seal(false, 1 - attempt)), "inputs of another attempt");
    malformed(manifest, omitted(author.sign(run, &promise), seal(false, attempt)), "a receipt of one's own");
    let other = DeliveryReceipt { delivered: Digest([5; 32]), ..promise };
    malformed(manifest, omitted(steward().sign(run, &other), seal(false, attempt)), "a receipt of another");
}

/// LEDGER-3, AUDIT-13: one record of each height.
#[test]
fn two_seals_of_one_height_convict_the_steward() {
    let steps = steps();
    for ((ledger, record), (_, next)) in steps.iter().zip(&steps[1..]) {
        let (run, manifest) = (ledger.run(), ledger.manifest());
        let other = ledger.record(Body::Close(Digest([7; 32])));
        let after_other = Record { previous: other.head(), ..next.clone() };
        let seal = |record: &Record| Seal::Record(steward().sign(run, record));
        let head =
            |of: &Record| Seal::Head(steward().sign(run, &Head { height: of.height, head: of.head() }));
        let split = |first, second| Misconduct::Split(TwoSeals { first, second });
        assert!(guilty(manifest, split(seal(record), seal(&other))));
        assert!(guilty(manifest, split(seal(record), seal(&after_other))));
        assert!(guilty(manifest, split(head(&other), seal(next))));
        assert!(guilty(manifest, split(head(&other), head(record))));
        assert!(!guilty(manifest, split(seal(record), seal(record))));
        assert!(!guilty(manifest, split(seal(record), seal(next))));
        assert!(!guilty(manifest, split(seal(next), head(record))));
        malformed(manifest, split(head(record), head(next)), "two heights");
        let own = Seal::Record(node(1).sign(run, &other));
        malformed(manifest, split(seal(record), own), "a member's record");
    }
}

fn guilty(manifest: &Manifest, misconduct: Misconduct) -> bool {
    match judge_steward(manifest, &misconduct) {
        Judgement::Guilty { culprit, .. } => {
            assert_eq!(culprit, manifest.steward);
            true
        }
        Judgement::NotGuilty(_) => false,
        other => panic!("{other:?}"),
    }
}

fn malformed(manifest: &Manifest, misconduct: Misconduct, what: &str) {
    let judgement = judge_steward(manifest, &misconduct);
    assert!(matches!(judgement, Judgement::Malformed(_)), "{what}: {judgement:?}");
}
