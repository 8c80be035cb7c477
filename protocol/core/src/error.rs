//! Errors sorted by who is wrong.

use core::fmt;

/// Bytes or a message to drop: nobody is blamed, because nobody provably sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reject {
    /// The bytes are not the one encoding of a value; the text names the field.
    Malformed(String),
    /// Longer than its bound allows.
    TooLong {
        /// What was measured.
        what: &'static str,
        /// Its length.
        length: u64,
        /// Its bound in [`crate::limits`].
        limit: u64,
    },
    /// A signature that `verify_strict` refuses, or a weak key.
    BadSignature,
    /// Made for another run.
    WrongRun,
    /// Made for another round, height or state than the one at hand.
    Stale(&'static str),
    /// A Merkle proof that does not lead to the root.
    BadProof(&'static str),
    /// Its author may not say this.
    NotEntitled(&'static str),
    /// It contradicts a rule; the text names the rule.
    Rule(&'static str),
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(detail) => write!(f, "malformed: {detail}"),
            Self::TooLong { what, length, limit } => {
                write!(f, "{what} is {length} long, the limit is {limit}")
            }
            Self::BadSignature => write!(f, "the signature does not verify"),
            Self::WrongRun => write!(f, "made for another run"),
            Self::Stale(what) => write!(f, "stale: {what}"),
            Self::BadProof(what) => write!(f, "the Merkle proof of {what} does not lead to its root"),
            Self::NotEntitled(what) => write!(f, "its author may not {what}"),
            Self::Rule(rule) => write!(f, "against the rule: {rule}"),
        }
    }
}

impl std::error::Error for Reject {}

/// What must hold for a message to be taken, by the rule in words.
///
/// # Errors
/// [`Reject::Rule`] where it does not hold.
pub(crate) fn require(holds: bool, rule: &'static str) -> Result<(), Reject> {
    if holds { Ok(()) } else { Err(Reject::Rule(rule)) }
}

/// A call that breaks a contract of this crate: a bug of the caller, or a value a person typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misuse(pub String);

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misuse {}
