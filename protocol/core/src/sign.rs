//! Signatures over whole messages: `Signed<M>` comes from a stranger, `Verified<M>` has a known author.

mod cache;

use std::io;
use std::marker::PhantomData;
use std::ops::Deref;

use borsh::{BorshDeserialize, BorshSerialize};
use ed25519_dalek::{Signer, SigningKey, VerifyingKey};
use zeroize::Zeroizing;

use crate::codec::schema::{Described, Schema, Shape};
use crate::codec::{Bytes, decode, encode, field};
use crate::error::Reject;
use crate::hash::{Domain, Hasher};
use crate::ids::{Digest, MemberId, RunId};
use crate::limits;

/// A message that a member signs. The tag keeps one kind from passing for another.
pub trait Message: BorshSerialize + BorshDeserialize {
    /// Name of the kind, part of what is signed; unique among messages.
    const TAG: &'static str;
}

/// An Ed25519 secret key. Wiped on drop, never shown.
pub struct Identity(SigningKey);

impl Identity {
    /// The identity of 32 secret bytes.
    pub fn from_secret(secret: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(secret))
    }

    /// The public name.
    pub fn id(&self) -> MemberId {
        MemberId(self.0.verifying_key().to_bytes())
    }

    /// The secret bytes, for a library that keeps the same identity in a type of its own.
    pub fn secret(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(self.0.to_bytes())
    }

    /// Signs a whole message for one run (SIGN-1).
    pub fn sign<M: Message>(&self, run: RunId, message: &M) -> Signed<M> {
        let mut signed = Signed::claim(run, self.id(), [0; 64], message);
        signed.signature = self.0.sign(&signed_digest::<M>(run, &signed.body).0).to_bytes();
        signed
    }
}

/// A signed message as it came: the bytes are kept verbatim (SIGN-4), the author is only claimed.
pub struct Signed<M> {
    run: RunId,
    signer: MemberId,
    signature: [u8; 64],
    body: Bytes<{ limits::MESSAGE_BYTES }>,
    kind: PhantomData<fn() -> M>,
}

impl<M: Message> Signed<M> {
    /// A signed message put together again from its parts. It is as good as one that came whole: only
    /// [`Signed::verify`] says whether the signature is that of the message.
    pub(crate) fn claim(run: RunId, signer: MemberId, signature: [u8; 64], message: &M) -> Self {
        let body = Bytes::new(encode(message)).expect("every message is bounded below a channel message");
        Self { run, signer, signature, body, kind: PhantomData }
    }

    /// The message as it is claimed to be, for showing it.
    ///
    /// # Errors
    /// [`Reject::Malformed`].
    pub(crate) fn claimed(&self) -> Result<M, Reject> {
        decode(&self.body)
    }

    /// The bytes that are signed, to be compared with those of a message that is known.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// The signature, unchecked.
    pub(crate) fn signature(&self) -> &[u8; 64] {
        &self.signature
    }

    /// The claimed author.
    pub fn claimed_signer(&self) -> MemberId {
        self.signer
    }

    /// Checks run, key, signature and encoding, in this order (SIGN-6): the only way to a [`Verified`].
    ///
    /// # Errors
    /// [`Reject::WrongRun`], [`Reject::BadSignature`] (also for weak keys), [`Reject::Malformed`].
    pub fn verify(&self, run: RunId) -> Result<Verified<M>, Reject> {
        // First what costs nothing: a flood of messages of other runs needs no arithmetic.
        if self.run != run {
            return Err(Reject::WrongRun);
        }
        let digest = signed_digest::<M>(run, &self.body);
        if !cache::is_good(&digest, &self.signer, &self.signature, || self.is_signature_of(&digest)) {
            return Err(Reject::BadSignature);
        }
        // Decoded last: bytes that nobody signed are not interpreted (SIGN-6).
        Ok(Verified { message: decode(&self.body)?, author: self.signer })
    }

    fn is_signature_of(&self, digest: &Digest) -> bool {
        let signature = ed25519_dalek::Signature::from_bytes(&self.signature);
        // SIGN-2: canonical s, no small order, no cofactor: nobody makes a second signature of the first.
        verifying_key(self.signer).is_ok_and(|key| key.verify_strict(&digest.0, &signature).is_ok())
    }

    /// Hash of the signed envelope, to name it (SIGN-5).
    pub fn digest(&self) -> Digest {
        // Two parts, where what is signed has three: no name of a message is ever a signed hash.
        Hasher::new(Domain::SIGN).part(M::TAG.as_bytes()).part(&encode(self)).finish()
    }
}

/// A message whose author is known.
///
/// [`Signed::verify`] is the only way to obtain one, so a function that takes `Verified<M>` cannot be reached with
/// an unchecked message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified<M> {
    message: M,
    author: MemberId,
}

impl<M> Verified<M> {
    /// Who signed it.
    pub fn author(&self) -> MemberId {
        self.author
    }

    /// The message, without its proof.
    pub fn into_inner(self) -> M {
        self.message
    }
}

impl<M> Deref for Verified<M> {
    type Target = M;
    fn deref(&self) -> &M {
        &self.message
    }
}

/// SIGN-3: refuses keys of small order, under which one signature fits many messages.
///
/// # Errors
/// [`Reject::BadSignature`] when the bytes are no strong public key.
pub fn verifying_key(member: MemberId) -> Result<VerifyingKey, Reject> {
    let key = VerifyingKey::from_bytes(&member.0).map_err(|_| Reject::BadSignature)?;
    if key.is_weak() { Err(Reject::BadSignature) } else { Ok(key) }
}

fn signed_digest<M: Message>(run: RunId, body: &[u8]) -> Digest {
    Hasher::new(Domain::SIGN).part(M::TAG.as_bytes()).part(&run.0.0).part(body).finish()
}

impl<M> Clone for Signed<M> {
    fn clone(&self) -> Self {
        Self {
            run: self.run,
            signer: self.signer,
            signature: self.signature,
            body: self.body.clone(),
            kind: PhantomData,
        }
    }
}

impl<M> PartialEq for Signed<M> {
    fn eq(&self, other: &Self) -> bool {
        (self.run, self.signer, self.signature, &self.body)
            == (other.run, other.signer, other.signature, &other.body)
    }
}

impl<M> Eq for Signed<M> {}

impl<M: Message> std::fmt::Debug for Signed<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Signed {} by {}", M::TAG, self.signer)
    }
}

impl<M> BorshSerialize for Signed<M> {
    fn serialize<W: io::Write>(&self, writer: &mut W) -> io::Result<()> {
        self.run.serialize(writer)?;
        self.signer.serialize(writer)?;
        self.signature.serialize(writer)?;
        self.body.serialize(writer)
    }
}

impl<M> BorshDeserialize for Signed<M> {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        Ok(Self {
            run: field("Signed.run", reader)?,
            signer: field("Signed.signer", reader)?,
            signature: field("Signed.signature", reader)?,
            body: field("Signed.body", reader)?,
            kind: PhantomData,
        })
    }
}

impl<M> Described for Signed<M> {
    fn shape(schema: &mut Schema) -> Shape {
        let fields = vec![
            ("run", RunId::shape(schema)),
            ("signer", MemberId::shape(schema)),
            ("signature", Shape::Raw(64)),
            ("body", Bytes::<{ limits::MESSAGE_BYTES }>::shape(schema)),
        ];
        schema.structs.insert("Signed", fields);
        Shape::Named("Signed")
    }
}

#[cfg(feature = "arbitrary")]
impl<'a, M> arbitrary::Arbitrary<'a> for Signed<M> {
    fn arbitrary(u: &mut arbitrary::Unstructured<'a>) -> arbitrary::Result<Self> {
        Ok(Self {
            run: u.arbitrary()?,
            signer: u.arbitrary()?,
            signature: u.arbitrary()?,
            body: u.arbitrary()?,
            kind: PhantomData,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(BorshSerialize, BorshDeserialize, Debug, PartialEq)]
    struct Ping(u32);
    impl Message for Ping {
        const TAG: &'static str = "ping";
    }
    #[derive(BorshSerialize, BorshDeserialize, Debug, PartialEq)]
    struct Pong(u32);
    impl Message for Pong {
        const TAG: &'static str = "pong";
    }

    #[test]
    fn one_kind_one_run_one_author() {
        let run = RunId(Digest([1; 32]));
        let me = Identity::from_secret(&[7; 32]);
        let signed = me.sign(run, &Ping(5));
        assert_eq!(signed.verify(run).unwrap().author(), me.id());
        assert_eq!(signed.verify(RunId(Digest([2; 32]))).unwrap_err(), Reject::WrongRun);
        // SIGN-4: run ‖ signer ‖ signature ‖ length and body.
        let bytes = encode(&signed);
        let parts =
            [&run.0.0[..], &me.id().0, signed.signature(), &[4, 0, 0, 0], &5u32.to_le_bytes()].concat();
        assert_eq!(bytes, parts);
        // SIGN-5: the name covers the signature, too.
        let name = Hasher::new(Domain::SIGN).part(b"ping").part(&bytes).finish();
        assert_eq!(signed.digest(), name);
        assert_ne!(signed.digest(), me.sign(RunId(Digest([2; 32])), &Ping(5)).digest());
        assert_eq!(decode::<Signed<Pong>>(&bytes).unwrap().verify(run).unwrap_err(), Reject::BadSignature);
        for place in 32..bytes.len() {
            let mut forged = bytes.clone();
            forged[place] ^= 1;
            assert!(decode::<Signed<Ping>>(&forged).and_then(|s| s.verify(run)).is_err(), "byte {place}");
        }
    }

    #[test]
    fn weak_keys_are_refused() {
        assert!(verifying_key(MemberId([0; 32])).is_err());
        let mut identity_point = [0; 32];
        identity_point[0] = 1;
        assert!(verifying_key(MemberId(identity_point)).is_err());
    }
}
