//! Tagged, framed hashing: the only place a hasher is made.
//!
//! `H(domain, a, b, …)` is BLAKE3 in derive-key mode with the context `"muster 1 <domain>"` over
//! `len(a) ‖ a ‖ len(b) ‖ b …`, each length a little-endian `u64` (HASH-1, HASH-2).

use std::sync::OnceLock;

use blake3::hazmat::{ContextKey, HasherExt, hash_derive_key_context};
use borsh::BorshSerialize;

use crate::codec::encode;
use crate::ids::Digest;

/// What a hash is for. Two domains never give one hash.
#[derive(Clone, Copy, Debug)]
pub struct Domain(&'static Context);

/// A derive-key context, with its key once that is needed: to derive it takes as long as to hash what is short.
#[derive(Debug)]
struct Context {
    name: &'static str,
    key: OnceLock<ContextKey>,
}

impl PartialEq for Domain {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Domain {}

macro_rules! domains {
    ($($(#[$doc:meta])* $name:ident = $context:literal),* $(,)?) => {
        impl Domain {
            $($(#[$doc])* pub const $name: Self = {
                static CONTEXT: Context =
                    Context { name: concat!("muster 1 ", $context), key: OnceLock::new() };
                Self(&CONTEXT)
            };)*

            /// All domains, for the test that no two agree and for the vectors.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }
    };
}

domains! {
    /// Run id of a canonical manifest.
    RUN = "run",
    /// What a signature covers.
    SIGN = "sign",
    /// Head of the ledger after a record.
    LEDGER = "ledger",
    /// Seed of a round's leaves and dither.
    ROUND_SEED = "round-seed",
    /// Windows of a leaf.
    WINDOWS = "windows",
    /// Dither of a leaf.
    DITHER = "dither",
    /// Dither of a block of a result.
    ROUNDING = "rounding",
    /// Aggregators of a round.
    AGGREGATORS = "aggregators",
    /// Rows of members.
    PLACE = "place",
    /// Places and tokens that a masked language model does not see.
    MASK = "mask",
    /// Name of a tokeniser's file.
    TOKENISER = "tokeniser",
    /// Name of a router's file.
    ROUTER = "router",
    /// Initial parameters.
    INITIAL = "initial",
    /// Root of a state.
    STATE = "state",
    /// Grid exponents within a state root.
    EXPONENTS = "exponents",
    /// Merkle leaves.
    MERKLE_LEAF = "merkle-leaf",
    /// Merkle nodes.
    MERKLE_NODE = "merkle-node",
    /// Count and root of a Merkle tree.
    MERKLE_ROOT = "merkle-root",
    /// Fingerprint points.
    SKETCH = "sketch",
    /// Signs of the projections of an audit.
    PROJECT = "project",
    /// A verifier's coin.
    COIN = "coin",
    /// Choice of the audited nodes.
    SELECT = "select",
    /// Choice of the blocks that are reduced again.
    SELECT_BLOCK = "select-block",
    /// Which verifier may choose a block.
    INSPECTOR_BLOCK = "inspector-block",
    /// Choice of the audited leaves.
    DRAW = "draw",
    /// Choice of the verifier that inspects a contribution.
    INSPECTOR = "inspector",
    /// Choice of the verdicts that another verifier re-executes.
    RECHECK = "recheck",
    /// Choice of the jurors of a case.
    JURY = "jury",
    /// Hiding commitment to an audit table.
    TABLE = "table",
    /// Hiding commitment to a verifier's results.
    RESULTS = "results",
    /// Name of a piece of evidence.
    EVIDENCE = "evidence",
    /// Logits of an answered call.
    ANSWER = "answer",
    /// Digest of an aggregated part.
    PART = "part",
    /// Checksum of what one machine keeps on its disk.
    FILE = "file",
    /// Name of a gossiped message.
    GOSSIP = "gossip",
    /// Which members' relays lead to a key.
    RELAY = "relay",
}

impl Domain {
    /// The BLAKE3 derive-key context.
    pub fn context(self) -> &'static str {
        self.0.name
    }
}

/// A hash in the making.
#[derive(Clone)]
pub struct Hasher(blake3::Hasher);

impl Hasher {
    /// Starts a hash of one domain.
    #[inline]
    pub fn new(domain: Domain) -> Self {
        let key = domain.0.key.get_or_init(|| hash_derive_key_context(domain.context()));
        Self(blake3::Hasher::new_from_context_key(key))
    }

    // Inlined, because a hasher is large to be moved.

    /// Adds one framed part.
    #[must_use]
    #[inline]
    pub fn part(mut self, bytes: &[u8]) -> Self {
        // Lengths first: `ab, c` and `a, bc` are different inputs.
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    /// Adds bytes without a frame: bulk data that begins the hash keeps BLAKE3's full speed, which any prefix
    /// halves. Only parts of one fixed length may follow, so that the whole stays injective. HASH-3: Merkle leaves
    /// alone.
    #[must_use]
    #[inline]
    pub fn bulk(mut self, bytes: &[u8]) -> Self {
        self.0.update(bytes);
        self
    }

    /// Adds the canonical encoding of a value as one framed part.
    #[must_use]
    #[inline]
    pub fn value<T: BorshSerialize + ?Sized>(self, value: &T) -> Self {
        self.part(&encode(value))
    }

    /// The hash.
    #[inline]
    pub fn finish(&self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }

    /// The first eight bytes of the hash as a little-endian number: uniform in `u64` (HASH-4).
    pub fn number(&self) -> u64 {
        u64::from_le_bytes(self.finish().0.first_chunk().copied().unwrap_or_default())
    }
}

/// `H(domain, encode(value))`.
pub fn hash_of<T: BorshSerialize + ?Sized>(domain: Domain, value: &T) -> Digest {
    Hasher::new(domain).value(value).finish()
}

/// Maps a uniform `u64` to `0..n` by the high half of the product (Lemire), bias below `n`/2⁶⁴ (HASH-5). `n` = 0
/// gives 0.
pub fn below(uniform: u64, n: u64) -> u64 {
    // No rejection: a draw takes one number, so that everybody's streams stay in step.
    ((u128::from(uniform) * u128::from(n)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_begins_with_its_context() {
        for domain in Domain::ALL {
            let mut plain = blake3::Hasher::new_derive_key(domain.context());
            plain.update(&3u64.to_le_bytes()).update(b"abc");
            assert_eq!(Hasher::new(*domain).part(b"abc").finish().0, *plain.finalize().as_bytes());
        }
    }

    #[test]
    fn framing_separates() {
        let one = Hasher::new(Domain::RUN).part(b"ab").part(b"c").finish();
        let two = Hasher::new(Domain::RUN).part(b"a").part(b"bc").finish();
        assert_ne!(one, two);
        let mut contexts: Vec<_> = Domain::ALL.iter().map(|d| d.context()).collect();
        contexts.sort_unstable();
        contexts.dedup();
        assert_eq!(contexts.len(), Domain::ALL.len());
    }

    #[test]
    fn hash_4_a_number_is_the_first_eight_bytes_little_endian() {
        let hasher = Hasher::new(Domain::RUN).part(b"abc");
        let digest = hasher.finish();
        let expected: u64 = (0..8).map(|place| u64::from(digest.0[place]) << (8 * place)).sum();
        assert_eq!(hasher.number(), expected);
        assert_ne!(hasher.number(), u64::from_be_bytes(digest.0[..8].try_into().unwrap()));
    }

    #[test]
    fn below_covers_its_range() {
        assert_eq!(below(0, 10), 0);
        assert_eq!(below(u64::MAX, 10), 9);
        assert_eq!(below(u64::MAX, 0), 0);
    }
}
