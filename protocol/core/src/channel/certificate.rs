//! Who holds a channel key: a member signs the key for one run, with an expiry.

use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

use crate::codec::{decode, encode};
use crate::error::Reject;
use crate::ids::{MemberId, RunId};
use crate::sign::{Identity, Message, Signed};
use crate::wire;

/// Bytes of a signed certificate: run, signer, signature, length, key, expiry.
pub(super) const CERTIFICATE_BYTES: usize = 32 + 32 + 64 + 4 + 32 + 8;

wire! {
    /// "This X25519 key speaks for me in this run until then."
    pub struct Certificate {
        /// The X25519 public key.
        pub key: [u8; 32],
        /// Seconds since 1970 from which the certificate is void.
        pub expiry: u64,
    }
}

impl Message for Certificate {
    const TAG: &'static str = "channel-certificate";
}

/// A channel key with its certificate: what a member shows in a handshake.
pub struct Credentials {
    pub(super) run: RunId,
    pub(super) secret: Zeroizing<[u8; 32]>,
    pub(super) certificate: Vec<u8>,
}

impl Credentials {
    /// Certifies the channel key of 32 random bytes until `expiry`, in seconds since 1970.
    pub fn new(run: RunId, identity: &Identity, secret: Zeroizing<[u8; 32]>, expiry: u64) -> Self {
        let key = PublicKey::from(&StaticSecret::from(*secret)).to_bytes();
        let certificate = encode(&identity.sign(run, &Certificate { key, expiry }));
        Self { run, secret, certificate }
    }
}

/// The member whose certificate for `key` this is, and when it expires (CHAN-3).
///
/// # Errors
/// Another run or key, expired at `now`, mis-signed, or malformed.
pub(super) fn holder(
    certificate: &[u8],
    run: RunId,
    key: &[u8],
    now: u64,
) -> Result<(MemberId, u64), Reject> {
    let certificate = decode::<Signed<Certificate>>(certificate)?.verify(run)?;
    // A certificate is public once shown: without this, whoever saw it could use it with its own key.
    if certificate.key != key {
        return Err(Reject::Rule("a certificate names the key it is shown for"));
    }
    // A stolen channel key is of use only until then.
    if certificate.expiry <= now {
        return Err(Reject::Stale("the certificate has expired"));
    }
    Ok((certificate.author(), certificate.expiry))
}
