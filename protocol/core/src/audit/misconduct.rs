//! What convicts the steward: its own signatures, against each other or against the rules. What takes the ledger or
//! arithmetic besides stays undecided without.

use super::frozen::frozen_commit;
use super::judgement::Judgement;
use super::root;
use super::seal::{guilty, of_round, sealed};
use crate::error::{Reject, require};
use crate::ids::{Digest, Height, Part, Round};
use crate::ledger::Ledger;
use crate::manifest::Manifest;
use crate::messages::evidence::{Misconduct, OmittedCommit, OmittedDelivery, Seal, TwoSeals};
use crate::messages::record::{Body, Record};
use crate::sign::Signed;

/// Decides evidence against the steward. `ledger` gives the ledger before the record of a height.
///
/// # Errors
/// [`Reject`] for what is no evidence of anything.
pub(super) fn judge(
    manifest: &Manifest,
    misconduct: &Misconduct,
    ledger: &mut dyn FnMut(Height) -> Option<Ledger>,
) -> Result<Judgement, Reject> {
    match misconduct {
        Misconduct::Commit(omitted) => commit(manifest, omitted),
        Misconduct::Delivery(omitted) => delivery(manifest, omitted),
        Misconduct::Split(seals) => split(manifest, seals),
        Misconduct::Record(record) => invalid(manifest, record, ledger),
        Misconduct::Root(wrong) => root::unexecuted(manifest, wrong),
    }
}

/// COMMIT-4: a Commit with a receipt is in the Freeze of its round.
fn commit(manifest: &Manifest, omitted: &OmittedCommit) -> Result<Judgement, Reject> {
    let commit = omitted.commit.verify(manifest.run())?;
    let receipt = sealed(manifest, &omitted.receipt)?;
    let freeze = sealed(manifest, &omitted.freeze)?;
    let Body::Freeze(frozen) = &freeze.body else {
        return Err(Reject::Rule("an omission is shown with the freeze of its round"));
    };
    // By digest: a commitment with the same body under another signature has no receipt.
    require(receipt.commit == omitted.commit.digest(), "the receipt is of the commitment")?;
    require(
        receipt.round == commit.round && frozen.round == commit.round,
        "commitment, receipt and freeze are of one round",
    )?;
    // The very message that has the receipt: another one of the author would be evidence against it.
    if frozen.commits.iter().any(|kept| kept.digest() == receipt.commit) {
        return Ok(Judgement::NotGuilty("the freeze has the commitment".into()));
    }
    let (round, author, height) = (commit.round, commit.author(), freeze.height);
    let detail = format!(
        "it gave a receipt for the commitment of {author} to round {round}, and froze the round without it (record {height})"
    );
    Ok(guilty(manifest, round, detail))
}

/// ROUND-5: a Delivered with a receipt counts its author in each part that it has a keeper's receipt for.
fn delivery(manifest: &Manifest, omitted: &OmittedDelivery) -> Result<Judgement, Reject> {
    let delivered = omitted.delivered.verify(manifest.run())?;
    let receipt = sealed(manifest, &omitted.receipt)?;
    require(receipt.delivered == omitted.delivered.digest(), "the receipt is of the delivery")?;
    let author = delivered.author();
    let frozen = frozen_commit(manifest, &omitted.freeze, &author)?;
    let record = sealed(manifest, &omitted.inputs)?;
    let Body::Inputs(inputs) = &record.body else {
        return Err(Reject::Rule("an omitted delivery is shown with the inputs of its round"));
    };
    let rounds = [receipt.round, frozen.commit.round, inputs.round];
    require(rounds.iter().all(|round| *round == delivered.round), "delivery and records are of one round")?;
    require(
        receipt.attempt == delivered.attempt && inputs.attempt == delivered.attempt,
        "delivery and inputs are of one attempt",
    )?;
    // Inputs of a second attempt list only parts that moved: their places tell nothing without the Reassign.
    let parts = parts(manifest, omitted, delivered.round, delivered.attempt, inputs.parts.len())?;
    for signed in &delivered.receipts {
        let part = signed.verify(manifest.run())?.part;
        let place = parts.iter().position(|sealed| *sealed == part);
        let bitmap = place.and_then(|place| inputs.parts.get(place));
        if bitmap.is_some_and(|bitmap| !bitmap.contains(frozen.commit.slot)) {
            let (round, height) = (delivered.round, record.height);
            let detail = format!(
                "it gave a receipt for the delivery of {author} in round {round}, and left it out of part {part} (record {height})"
            );
            return Ok(guilty(manifest, round, detail));
        }
    }
    Ok(Judgement::NotGuilty("every delivered part counts its sender".into()))
}

/// The parts that sealed inputs are about, in order.
fn parts(
    manifest: &Manifest,
    omitted: &OmittedDelivery,
    round: Round,
    attempt: u8,
    count: usize,
) -> Result<Vec<Part>, Reject> {
    if attempt == 0 {
        return Ok((0..count as u16).map(Part).collect());
    }
    let reassign =
        omitted.reassign.as_ref().ok_or(Reject::Rule("a second delivery is shown with its reassignment"))?;
    let record = sealed(manifest, reassign)?;
    let Body::Reassign(reassign) = &record.body else {
        return Err(Reject::Rule("a second delivery is shown with its reassignment"));
    };
    require(reassign.round == round, "delivery and records are of one round")?;
    Ok(reassign.parts.iter().map(|moved| moved.part).collect())
}

/// LEDGER-3: one record of each height.
fn split(manifest: &Manifest, seals: &TwoSeals) -> Result<Judgement, Reject> {
    let (first, second) = (heads(manifest, &seals.first)?, heads(manifest, &seals.second)?);
    let mut met = false;
    for (height, head) in &first {
        for (_, other) in second.iter().filter(|(other, _)| other == height) {
            met = true;
            if head != other {
                let detail = format!(
                    "it sealed two records at height {height}, with the heads {head:#} and {other:#}"
                );
                return Ok(guilty(manifest, round_of(&seals.first, manifest), detail));
            }
        }
    }
    if met {
        return Ok(Judgement::NotGuilty("both seals are of one ledger".into()));
    }
    Err(Reject::Rule("two seals are of one height"))
}

/// The heads that a seal gives: of its own height, and a record's of the height before.
fn heads(manifest: &Manifest, seal: &Seal) -> Result<Vec<(Height, Digest)>, Reject> {
    match seal {
        Seal::Head(signed) => sealed(manifest, signed).map(|said| vec![(said.height, said.head)]),
        Seal::Record(signed) => {
            let record = sealed(manifest, signed)?;
            // A record names the head before it: two ledgers show in that as well.
            let before = record.height.0.checked_sub(1).map(|height| (Height(height), record.previous));
            Ok([(record.height, record.head())].into_iter().chain(before).collect())
        }
    }
}

fn round_of(seal: &Seal, manifest: &Manifest) -> Round {
    let Seal::Record(signed) = seal else { return Round::default() };
    signed.verify(manifest.run()).map_or_else(|_| Round::default(), |record| of_round(&record))
}

/// A record that the ledger before it does not take. What needs arithmetic is not looked at.
fn invalid(
    manifest: &Manifest,
    signed: &Signed<Record>,
    ledger: &mut dyn FnMut(Height) -> Option<Ledger>,
) -> Result<Judgement, Reject> {
    let record = sealed(manifest, signed)?;
    let height = record.height;
    // Rules are about the ledger before the record: of another height nothing can be decided.
    let ledger = ledger(height).filter(|ledger| ledger.height() == height);
    let Some(mut ledger) = ledger else {
        return Ok(Judgement::Undecided(format!("the ledger before height {height} is unavailable")));
    };
    // Not an invalid record but a second ledger: that takes the other seal to prove.
    if ledger.head() != record.previous {
        return Ok(Judgement::Undecided(format!(
            "the ledger at hand has another head before height {height}: its record and this one are two seals"
        )));
    }
    match ledger.apply(signed) {
        Err(reject) => {
            Ok(guilty(manifest, of_round(&record), format!("record {height} breaks a rule: {reject}")))
        }
        // What needs arithmetic is not the ledger's to find (LEDGER-4, STATE-5).
        Ok(_) if matches!(record.body, Body::Open(_) | Body::Outcome(_)) => {
            Ok(Judgement::Undecided(format!(
                "record {height} keeps the ledger's rules; whether its state follows only re-executing shows"
            )))
        }
        Ok(_) => Ok(Judgement::NotGuilty(format!("record {height} keeps the rules"))),
    }
}
