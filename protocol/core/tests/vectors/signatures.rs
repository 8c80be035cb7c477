//! What a signature covers, and which signatures are refused.

use serde_json::{Value, json};

use muster_core::codec::{decode, encode};
use muster_core::error::Reject;
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{MemberId, RunId, hex};
use muster_core::messages::{enrol, round};
use muster_core::sign::{Identity, Message, Signed};

use super::cases::{bytes, digest, full, read_as, text};

pub(super) fn sign(inputs: &Value) -> Value {
    match text(inputs, "type") {
        "Echo" => sign_as::<round::Echo>(inputs),
        "Commit" => sign_as::<round::Commit>(inputs),
        "Leave" => sign_as::<enrol::Leave>(inputs),
        "Ready" => sign_as::<enrol::Ready>(inputs),
        name => panic!("no message {name:?}"),
    }
}

fn sign_as<M: Message>(inputs: &Value) -> Value {
    let identity = Identity::from_secret(&digest(inputs, "secret").0);
    let run = RunId(digest(inputs, "run"));
    let signed = identity.sign(run, &read_as::<M>(inputs, "body"));
    assert!(signed.verify(run).is_ok());
    let covered = Hasher::new(Domain::SIGN).part(M::TAG.as_bytes()).part(&run.0.0);
    json!({
        "tag": M::TAG,
        "signer": hex(&identity.id().0),
        "signed_digest": full(&covered.part(&bytes(inputs, "body")).finish()),
        "envelope": hex(&encode(&signed)),
        "envelope_digest": full(&signed.digest()),
    })
}

pub(super) fn verify(inputs: &Value) -> Value {
    let outcome = match text(inputs, "type") {
        "Echo" => verify_as::<round::Echo>(inputs),
        "Leave" => verify_as::<enrol::Leave>(inputs),
        "CommitReceipt" => verify_as::<round::CommitReceipt>(inputs),
        name => panic!("no message {name:?}"),
    };
    match outcome {
        Ok(author) => json!({ "signer": hex(&author.0) }),
        Err(Reject::WrongRun) => json!({ "refused": "wrong-run" }),
        Err(Reject::BadSignature) => json!({ "refused": "bad-signature" }),
        Err(Reject::Malformed(_)) => json!({ "refused": "malformed" }),
        Err(other) => json!({ "refused": other.to_string() }),
    }
}

fn verify_as<M: Message>(inputs: &Value) -> Result<MemberId, Reject> {
    let signed = decode::<Signed<M>>(&bytes(inputs, "envelope"))?;
    Ok(signed.verify(RunId(digest(inputs, "run")))?.author())
}
