//! Peer that floods the steward with deliveries full of receipts, each with a signature that nobody has seen before.
//!
//! An accomplice is the keeper that signs: it lends its key, and one receipt has as many good signatures as there are nonces.
//! The last receipt of each delivery is wrong, so that nothing is taken and everything can be said again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use curve25519_dalek::edwards::EdwardsPoint;
use curve25519_dalek::scalar::{Scalar, clamp_integer};
use muster_core::codec::{List, decode, encode};
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Part, Round, RunId};
use muster_core::ledger::Ledger;
use muster_core::limits;
use muster_core::lock::lock;
use muster_core::messages::round::{Delivered, Receipt};
use muster_core::messages::wire::Request;
use muster_core::sign::{Identity, Message, Signed};
use muster_member::{NodeConduct, Outside};
use sha2::{Digest, Sha512};

use super::coalition::Coalition;
use super::flood::{behind, flood};

/// Deliveries of a round, which are said again and again.
const DELIVERIES: u64 = 40;

pub(super) struct Receipts {
    pub(super) coalition: Coalition,
    /// A delivery with as many receipts as it can hold, of whichever round.
    large: Arc<OnceLock<Vec<u8>>>,
    /// Those of the open round.
    made: Arc<Mutex<Vec<Vec<u8>>>>,
    /// The round that they are made for.
    round: Arc<AtomicU32>,
    begun: OnceLock<()>,
}

impl Receipts {
    pub(super) fn new(coalition: Coalition) -> Self {
        let begun = OnceLock::new();
        Self { coalition, large: Arc::default(), made: Arc::default(), round: Arc::default(), begun }
    }
}

impl NodeConduct for Receipts {
    fn besides(&self, round: Round, outside: &Outside) {
        lock(&self.made).clear();
        let (made, ledger) = (self.made.clone(), outside.ledger.borrow().clone());
        let (me, friends) = (outside.identity.clone(), self.coalition.keys(&outside.identity.id()));
        self.round.store(round.0, Ordering::Relaxed);
        let (newest, large) = (self.round.clone(), self.large.clone());
        behind(move || {
            for number in 0..DELIVERIES {
                if newest.load(Ordering::Relaxed) != round.0 {
                    return;
                }
                let Some(delivery) = delivery(&ledger, round, &me, &friends, number, None) else { return };
                lock(&made).push(delivery);
            }
            // Dear to make, and good for ever: it is too long in every round.
            if large.get().is_none()
                && let Some(made) =
                    delivery(&ledger, round, &me, &friends, DELIVERIES, Some(limits::RECEIPTS))
            {
                large.get_or_init(|| made);
            }
        });
        let (made, large) = (self.made.clone(), self.large.clone());
        let say = move |connection: u32, count: u32| {
            if connection.is_multiple_of(2)
                && let Some(large) = large.get()
            {
                return Some(large.clone());
            }
            let made = lock(&made);
            made.get((connection.wrapping_add(count) as usize).checked_rem(made.len())?).cloned()
        };
        self.begun.get_or_init(|| flood(outside, say));
    }
}

/// A delivery with `most` receipts, or, without it, with one for each part that a friend keeps.
fn delivery(
    ledger: &Ledger,
    round: Round,
    me: &Identity,
    friends: &[Identity],
    number: u64,
    most: Option<usize>,
) -> Option<Vec<u8>> {
    let (run, view) = (ledger.run(), ledger.round(round)?);
    let root = view.commitment(view.slot_of(&me.id())?)?.commit.root;
    let kept = (0..).map(Part).zip(view.parts()).filter_map(|(part, _)| {
        let (keepers, attempt) = view.keepers(part, &me.id())?;
        let friend = friends.iter().find(|friend| keepers.contains(&friend.id()))?;
        Some((friend, Receipt { round, part, attempt, sender: me.id(), root }))
    });
    let kept: Vec<(&Identity, Receipt)> = kept.collect();
    let (_, first) = kept.first()?;
    // Signed by no keeper.
    let wrong = me.sign(run, first);
    let most = most.unwrap_or(kept.len());
    let signed = kept.iter().cycle().enumerate().take(most.saturating_sub(1));
    let signed = signed.map(|(at, (friend, receipt))| {
        let nonce = number * limits::RECEIPTS as u64 + at as u64;
        sign_anew(friend, run, receipt, nonce)
    });
    let receipts = List::new(signed.chain([Some(wrong)]).collect::<Option<_>>()?).ok()?;
    let delivered = Delivered { round, attempt: first.attempt, receipts };
    Some(encode(&Request::Delivered(me.sign(run, &delivered))))
}

/// A good signature with a nonce of the signer's choice: Ed25519 forbids nobody to choose it.
fn sign_anew<M: Message>(signer: &Identity, run: RunId, message: &M, nonce: u64) -> Option<Signed<M>> {
    let body = encode(message);
    let digest = Hasher::new(Domain::SIGN).part(M::TAG.as_bytes()).part(&run.0.0).part(&body).finish();
    let hashed = |parts: &[&[u8]]| -> [u8; 64] {
        parts.iter().fold(Sha512::new(), |hash, part| hash.chain_update(part)).finalize().into()
    };
    let expanded = hashed(&[&*signer.secret()]);
    let (secret, prefix) = expanded.split_at(32);
    let secret = Scalar::from_bytes_mod_order(clamp_integer(secret.try_into().ok()?));
    let r = Scalar::from_bytes_mod_order_wide(&hashed(&[prefix, &nonce.to_le_bytes(), &digest.0]));
    let point = EdwardsPoint::mul_base(&r).compress().to_bytes();
    let k = Scalar::from_bytes_mod_order_wide(&hashed(&[&point, &signer.id().0, &digest.0]));
    let s = (r + k * secret).to_bytes();
    // SIGN-4: run ‖ signer ‖ signature ‖ length and body.
    let mut bytes = encode(&signer.sign(run, message));
    bytes.get_mut(64..96)?.copy_from_slice(&point);
    bytes.get_mut(96..128)?.copy_from_slice(&s);
    decode(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use muster_core::ids::Digest;

    use super::*;

    #[test]
    fn one_receipt_has_as_many_good_signatures_as_there_are_nonces() {
        let (friend, run) = (Identity::from_secret(&[3; 32]), RunId(Digest([5; 32])));
        let (round, part, root) = (Round(4), Part(1), Digest([6; 32]));
        let receipt = Receipt { round, part, attempt: 0, sender: friend.id(), root };
        let [first, second] = [1, 2].map(|nonce| sign_anew(&friend, run, &receipt, nonce).unwrap());
        assert_ne!(first, second);
        for signed in [first, second] {
            assert_eq!(*signed.verify(run).unwrap(), receipt);
            assert_eq!(signed.claimed_signer(), friend.id());
        }
    }
}
