//! The handshake: two states a side, each consumed by the next message.

use core::fmt;
use std::sync::Arc;

use snow::{Builder, HandshakeState, StatelessTransportState};
use zeroize::Zeroizing;

use crate::channel::certificate::{CERTIFICATE_BYTES, Credentials, holder};
use crate::channel::frames::{Opener, Sealer};
use crate::channel::primitives::{Primitives, TAG_BYTES};
use crate::channel::{PREAMBLE_BYTES, Suite};
use crate::ids::{MemberId, RunId};

const KEY_BYTES: usize = 32;
/// Bytes of message 1, from the dialler.
pub const FIRST_BYTES: usize = PREAMBLE_BYTES + KEY_BYTES;
/// Bytes of message 2, from the answerer.
pub const SECOND_BYTES: usize = KEY_BYTES + THIRD_BYTES;
/// Bytes of message 3, from the dialler.
pub const THIRD_BYTES: usize = KEY_BYTES + TAG_BYTES + CERTIFICATE_BYTES + TAG_BYTES;

/// The handshake failed. CHAN-6: why is not said, here or to the other side: a liar would learn from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HandshakeError;

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the handshake failed: not this run, not the member expected, or a certificate that has expired",
        )
    }
}

impl std::error::Error for HandshakeError {}

impl From<snow::Error> for HandshakeError {
    fn from(_: snow::Error) -> Self {
        Self
    }
}

/// A channel to a known member. The halves are independent of each other.
pub struct Established {
    /// Who is at the other end.
    pub peer: MemberId,
    /// Seconds since 1970 until which its certificate holds.
    pub expiry: u64,
    /// Towards the peer.
    pub sealer: Sealer,
    /// From the peer.
    pub opener: Opener,
}

/// The side that opens the connection, waiting for message 2.
pub struct Dialler {
    noise: HandshakeState,
    run: RunId,
    certificate: Vec<u8>,
    expected: Option<MemberId>,
}

impl Dialler {
    /// Starts a handshake and returns message 1. `seed` is 32 random bytes, used once.
    pub fn start(
        credentials: &Credentials,
        suite: Suite,
        expected: Option<MemberId>,
        seed: Zeroizing<[u8; 32]>,
    ) -> (Self, [u8; FIRST_BYTES]) {
        let mut noise = builder(credentials, suite, seed, &suite.prologue(credentials.run))
            .build_initiator()
            .expect("the resolver knows all names of a suite, and XX needs no remote key");
        let mut first = [0; FIRST_BYTES];
        let (preamble, ephemeral) = first.split_at_mut(PREAMBLE_BYTES);
        preamble.copy_from_slice(&suite.preamble());
        ephemeral.copy_from_slice(
            &write::<KEY_BYTES>(&mut noise, &[]).expect("an ephemeral key is always written"),
        );
        let certificate = credentials.certificate.clone();
        (Self { noise, run: credentials.run, certificate, expected }, first)
    }

    /// Takes message 2 at `now` (seconds since 1970) and returns message 3. The identity of this side is shown only
    /// to the member expected.
    ///
    /// # Errors
    /// [`HandshakeError`]; the connection is to be closed.
    pub fn receive(
        mut self,
        second: &[u8],
        now: u64,
    ) -> Result<(Established, [u8; THIRD_BYTES]), HandshakeError> {
        let (peer, expiry) = read::<SECOND_BYTES>(&mut self.noise, second, self.run, now)?;
        // CHAN-4: before this side shows its own certificate.
        if self.expected.is_some_and(|expected| expected != peer) {
            return Err(HandshakeError);
        }
        let third = write(&mut self.noise, &self.certificate)?;
        Ok((established(self.noise, peer, expiry)?, third))
    }
}

/// The side that was dialled, waiting for message 3.
pub struct Answerer {
    noise: HandshakeState,
    run: RunId,
}

impl Answerer {
    /// Takes message 1 and returns message 2. `seed` is 32 random bytes, used once.
    ///
    /// # Errors
    /// [`HandshakeError`]; the connection is to be closed.
    pub fn start(
        credentials: &Credentials,
        first: &[u8],
        seed: Zeroizing<[u8; 32]>,
    ) -> Result<(Self, [u8; SECOND_BYTES]), HandshakeError> {
        // Of one length each: what is longer could carry bytes that no handshake covers.
        let first: &[u8; FIRST_BYTES] = first.try_into().map_err(|_| HandshakeError)?;
        let (preamble, ephemeral) = first.split_at(PREAMBLE_BYTES);
        // Before any key is touched: bytes of another protocol cost nothing.
        let suite = Suite::of_preamble(preamble).ok_or(HandshakeError)?;
        let prologue = suite.prologue(credentials.run);
        let mut noise = builder(credentials, suite, seed, &prologue).build_responder()?;
        noise.read_message(ephemeral, &mut [])?;
        // Anyone who dials sees this certificate; the dialler shows its own only to the member that it expects.
        let second = write(&mut noise, &credentials.certificate)?;
        Ok((Self { noise, run: credentials.run }, second))
    }

    /// Takes message 3 at `now`, in seconds since 1970.
    ///
    /// # Errors
    /// [`HandshakeError`]; the connection is to be closed.
    pub fn receive(mut self, third: &[u8], now: u64) -> Result<Established, HandshakeError> {
        // CHAN-4: nothing before this message is known to come from a member.
        let (peer, expiry) = read::<THIRD_BYTES>(&mut self.noise, third, self.run, now)?;
        established(self.noise, peer, expiry)
    }
}

fn builder<'a>(
    credentials: &'a Credentials,
    suite: Suite,
    seed: Zeroizing<[u8; 32]>,
    prologue: &'a [u8],
) -> Builder<'a> {
    let parameters = suite.noise_name().parse().expect("the names of the suites are Noise names");
    Builder::with_resolver(parameters, Box::new(Primitives { seed }))
        .prologue(prologue)
        .and_then(|builder| builder.local_private_key(credentials.secret.as_slice()))
        .expect("prologue and key are set once")
}

/// Fails when the peer's key is of small order.
fn write<const LENGTH: usize>(
    noise: &mut HandshakeState,
    payload: &[u8],
) -> Result<[u8; LENGTH], HandshakeError> {
    // snow wants room for a tag even where none is written.
    let mut message = [0; SECOND_BYTES + TAG_BYTES];
    let length = noise.write_message(payload, &mut message)?;
    message.get(..length).and_then(|message| message.try_into().ok()).ok_or(HandshakeError)
}

/// Reads a message that carries a certificate, and returns its holder and its expiry.
fn read<const LENGTH: usize>(
    noise: &mut HandshakeState,
    message: &[u8],
    run: RunId,
    now: u64,
) -> Result<(MemberId, u64), HandshakeError> {
    let message: &[u8; LENGTH] = message.try_into().map_err(|_| HandshakeError)?;
    let mut certificate = [0; CERTIFICATE_BYTES];
    noise.read_message(message, &mut certificate)?;
    // The key that the handshake has proved, not the one that the certificate claims.
    let key = noise.get_remote_static().ok_or(HandshakeError)?;
    // The reason is dropped here: what a liar learns of it helps only the next try.
    holder(&certificate, run, key, now).map_err(|_| HandshakeError)
}

fn established(noise: HandshakeState, peer: MemberId, expiry: u64) -> Result<Established, HandshakeError> {
    let keys: Arc<StatelessTransportState> = Arc::new(noise.into_stateless_transport_mode()?);
    Ok(Established { peer, expiry, sealer: Sealer::new(keys.clone()), opener: Opener::new(keys) })
}
