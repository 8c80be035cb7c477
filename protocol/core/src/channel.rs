//! The channel on which members talk: Noise XX over any stream of bytes, as a state machine without input or output.
//!
//! ```text
//! dialler → answerer   preamble ‖ e                      (40 bytes)
//! answerer → dialler   e, ee, s, es ‖ certificate        (268 bytes)
//! dialler → answerer   s, se ‖ certificate               (236 bytes)
//! either               u16 length ‖ frame, …             (length ≤ 65,535, little-endian)
//! ```
//!
//! The preamble names version and suite in clear; it and the run are the Noise prologue, so that a changed byte of it,
//! or another run at the other end, fails at message 2. A certificate binds the channel key to a member
//! ([`certificate`]). Each step of the [`handshake`] consumes a state and returns the next, and the answerer hands out
//! nothing before message 3 has verified. Then two independent halves carry messages ([`frames`]).
//!
//! Randomness and time are arguments. Whoever holds the stream may lie in every byte, cut it and replay it; what it
//! gains is a failed channel.

use crate::ids::RunId;

pub mod certificate;
pub mod frames;
pub mod handshake;
mod primitives;

/// Bytes of the preamble.
const PREAMBLE_BYTES: usize = 8;
/// What a preamble begins with: the protocol and its version.
const PREAMBLE: [u8; PREAMBLE_BYTES - 1] = *b"muster\x01";

/// What an answerer says instead of message 2 when it has no place left (CHAN-12).
pub const FULL: [u8; PREAMBLE_BYTES] = *b"muster\x00\x00";

/// The ciphers of a channel (CHAN-1). The dialler picks; the answerer takes either.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Suite {
    /// AES-256-GCM: the faster one where the processor has AES instructions.
    AesGcm,
    /// ChaCha20-Poly1305: the faster one elsewhere.
    ChaChaPoly,
}

impl Suite {
    /// Both.
    pub const ALL: [Self; 2] = [Self::AesGcm, Self::ChaChaPoly];

    fn noise_name(self) -> &'static str {
        match self {
            Self::AesGcm => "Noise_XX_25519_AESGCM_SHA256",
            Self::ChaChaPoly => "Noise_XX_25519_ChaChaPoly_SHA256",
        }
    }

    fn preamble(self) -> [u8; PREAMBLE_BYTES] {
        let [a, b, c, d, e, f, version] = PREAMBLE;
        let suite = match self {
            Self::AesGcm => 1,
            Self::ChaChaPoly => 2,
        };
        [a, b, c, d, e, f, version, suite]
    }

    /// The suite of a preamble, unless protocol, version or suite are unknown.
    fn of_preamble(preamble: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.preamble() == preamble)
    }

    // CHAN-2: another run, version or suite at the other end fails at message 2.
    fn prologue(self, run: RunId) -> Vec<u8> {
        [self.preamble().as_slice(), &run.0.0].concat()
    }
}

#[cfg(test)]
mod tests;
