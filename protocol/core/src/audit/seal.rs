//! What the steward has sealed.

use super::judgement::Judgement;
use crate::error::Reject;
use crate::ids::Round;
use crate::manifest::Manifest;
use crate::messages::audit::FindingKind;
use crate::messages::record::{Body, Record};
use crate::sign::{Message, Signed, Verified};

pub(super) fn guilty(manifest: &Manifest, round: Round, detail: String) -> Judgement {
    Judgement::Guilty { culprit: manifest.steward, round, finding: FindingKind::StewardMisconduct, detail }
}

/// A message of the steward.
pub(super) fn sealed<M: Message>(manifest: &Manifest, signed: &Signed<M>) -> Result<Verified<M>, Reject> {
    let message = signed.verify(manifest.run())?;
    if message.author() == manifest.steward {
        Ok(message)
    } else {
        Err(Reject::NotEntitled("sign as the steward"))
    }
}

/// The round that a record is about; 0 for those that are about none.
pub(super) fn of_round(record: &Record) -> Round {
    match &record.body {
        Body::Freeze(freeze) => freeze.round,
        Body::Inputs(inputs) => inputs.round,
        Body::Reassign(reassign) => reassign.round,
        Body::Outcome(outcome) => outcome.round,
        _ => Round::default(),
    }
}
