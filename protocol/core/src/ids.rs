//! Fixed-size names of things: no name in the protocol is a string.

use core::fmt;

use borsh::{BorshDeserialize, BorshSerialize};

/// A 32-byte hash made by [`crate::hash`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
pub struct Digest(pub [u8; 32]);

/// A run: the hash of its canonical manifest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
pub struct RunId(pub Digest);

/// A member of a run, or its organiser: the bytes of an Ed25519 public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
pub struct MemberId(pub [u8; 32]);

/// What a process is called where it is met behind a router: the bytes of an Ed25519 public key, which it has for itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
pub struct EndpointKey(pub [u8; 32]);

/// Writes bytes as lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Reads hexadecimal of either case; `None` unless it is exactly `N` bytes.
pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

macro_rules! shown_as_hex {
    ($name:ident, $($path:tt)+) => {
        impl fmt::Display for $name {
            /// The first 8 bytes with `{}`, all with `{:#}`.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let bytes: &[u8; 32] = &self.$($path)+;
                f.write_str(&hex(if f.alternate() { bytes } else { bytes.split_at(8).0 }))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }
    };
}
shown_as_hex!(Digest, 0);
shown_as_hex!(RunId, 0.0);
shown_as_hex!(MemberId, 0);
shown_as_hex!(EndpointKey, 0);

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, BorshSerialize, BorshDeserialize)]
        #[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
        pub struct $name(pub $inner);

        impl $name {
            /// The number as an index into a slice.
            pub fn index(self) -> usize {
                usize::try_from(self.0).unwrap_or(usize::MAX)
            }

            /// The number after this one; stays at the largest.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}
number!(
    /// A training round. Numbers never repeat within a run, also after a rewind.
    Round, u32
);
number!(
    /// A place in the ledger; the opening record has height 0.
    Height, u64
);
number!(
    /// A seat of one round: slot i of n owns the leaves i, i+n, i+2n ….
    Slot, u16
);
number!(
    /// A microbatch of one round.
    Leaf, u64
);
number!(
    /// A set of blocks that one aggregator reduces in one round.
    Part, u16
);
number!(
    /// A row of experts: with the trunk it is a path, which one member holds (STATE-7).
    Row, u16
);
number!(
    /// A shard of a run's state: 0 is the trunk, or all of a model without experts; 1 + r is row r (STATE-7).
    ShardId, u16
);
number!(
    /// How much of a round a member reduces beside others, in steps of √2: its share class (LEDGER-25).
    ShareClass, u8
);
number!(
    /// A fixed range of coefficients within one tensor of a shard, numbered through all shards of a run (LAYOUT-6).
    Block, u32
);

impl ShardId {
    /// What every member holds.
    pub const TRUNK: Self = Self(0);

    /// The shard of a row.
    pub fn of(row: Row) -> Self {
        Self(row.0.saturating_add(1))
    }

    /// Its row; none of the trunk.
    pub fn row(self) -> Option<Row> {
        self.0.checked_sub(1).map(Row)
    }
}

/// A set of rows. CODEC-11: bit r is row r.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
pub struct RowSet(u64);

impl RowSet {
    /// Adds a row; one beyond the bound is left out.
    pub fn insert(&mut self, row: Row) {
        self.0 |= 1u64.checked_shl(row.0.into()).unwrap_or(0);
    }

    /// Whether it holds a row.
    pub fn contains(self, row: Row) -> bool {
        self.0.checked_shr(row.0.into()).is_some_and(|rest| rest & 1 == 1)
    }
}

impl FromIterator<Row> for RowSet {
    fn from_iter<T: IntoIterator<Item = Row>>(rows: T) -> Self {
        let mut set = Self::default();
        rows.into_iter().for_each(|row| set.insert(row));
        set
    }
}
