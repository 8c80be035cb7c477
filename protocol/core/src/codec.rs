//! Canonical bytes: borsh, one encoding per value, every length bounded before it is believed. Integers and fixed
//! arrays (CODEC-2), options (CODEC-8) and booleans (CODEC-9) are borsh's own, which refuses every other byte.
//!
//! [`wire!`](crate::wire) declares a structure or an enumeration whose decoder names the field that is wrong, and
//! [`choice!`](crate::choice) names that are one byte.

pub mod schema;

use std::io::{self, Read};
use std::ops::Deref;

use borsh::{BorshDeserialize, BorshSerialize};

use crate::error::{Misuse, Reject};

/// The one encoding of a value.
pub fn encode<T: BorshSerialize + ?Sized>(value: &T) -> Vec<u8> {
    borsh::to_vec(value).expect("writing to a vector does not fail, and every list is bounded when built")
}

/// Bytes of [`encode`]'s result, which is not made.
///
/// # Panics
/// As [`encode`].
pub fn encoded_length<T: BorshSerialize + ?Sized>(value: &T) -> u64 {
    borsh::object_length(value).expect("counting does not fail, and every list is bounded when built") as u64
}

/// Reads a value that fills `bytes` exactly (CODEC-10).
///
/// # Errors
/// [`Reject::Malformed`] with the path of the field: truncated, trailing, non-canonical or mistyped bytes.
pub fn decode<T: BorshDeserialize>(bytes: &[u8]) -> Result<T, Reject> {
    T::try_from_slice(bytes).map_err(|error| Reject::Malformed(error.to_string()))
}

/// Reads one field and names it in the error.
#[doc(hidden)]
pub fn field<T: BorshDeserialize, R: io::Read>(name: &'static str, reader: &mut R) -> io::Result<T> {
    T::deserialize_reader(reader).map_err(|error| {
        let detail = error.to_string();
        let separator = if detail.starts_with(|c: char| c.is_ascii_uppercase()) { ": " } else { " > " };
        malformed(format!("{name}{separator}{detail}"))
    })
}

/// An error about bytes, for decoders written by hand.
pub fn malformed(detail: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, detail.into())
}

/// Declares wire structures and enumerations.
///
/// A structure's fields (CODEC-1) and an enumeration's payloads are written in order by borsh; an enumeration's
/// variant is one byte, counted from 0, and a byte beyond the last one is refused (CODEC-3). Decoding names the field
/// that is wrong.
#[macro_export]
macro_rules! wire {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $type:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, ::borsh::BorshSerialize)]
        #[cfg_attr(feature = "arbitrary", derive(::arbitrary::Arbitrary))]
        pub struct $name { $($(#[$field_meta])* pub $field: $type,)* }

        impl ::borsh::BorshDeserialize for $name {
            fn deserialize_reader<R: ::std::io::Read>(reader: &mut R) -> ::std::io::Result<Self> {
                $(let $field = $crate::codec::field(concat!(stringify!($name), ".", stringify!($field)), reader)?;)*
                Ok(Self { $($field,)* })
            }
        }

        impl $crate::codec::schema::Described for $name {
            fn shape(schema: &mut $crate::codec::schema::Schema) -> $crate::codec::schema::Shape {
                use $crate::codec::schema::{Described, Shape};
                let fields = vec![$((stringify!($field), <$type as Described>::shape(schema))),*];
                schema.structs.insert(stringify!($name), fields);
                Shape::Named(stringify!($name))
            }
        }
    };
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident $(($type:ty))?),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, ::borsh::BorshSerialize)]
        #[cfg_attr(feature = "arbitrary", derive(::arbitrary::Arbitrary))]
        pub enum $name { $($(#[$variant_meta])* $variant $(($type))?,)* }

        impl ::borsh::BorshDeserialize for $name {
            fn deserialize_reader<R: ::std::io::Read>(reader: &mut R) -> ::std::io::Result<Self> {
                let tag: u8 = $crate::codec::field(concat!(stringify!($name), " tag"), reader)?;
                let mut next = 0u8;
                $(
                    if tag == next {
                        return Ok(Self::$variant $(({
                            let payload: $type = $crate::codec::field(
                                concat!(stringify!($name), "::", stringify!($variant)), reader)?;
                            payload
                        }))?);
                    }
                    next += 1;
                )*
                Err($crate::codec::malformed(format!(
                    "{} has no variant {tag}, the last is {}", stringify!($name), next.wrapping_sub(1))))
            }
        }

        impl $crate::codec::schema::Described for $name {
            fn shape(schema: &mut $crate::codec::schema::Schema) -> $crate::codec::schema::Shape {
                use $crate::codec::schema::Shape;
                let variants = vec![$((
                    stringify!($variant),
                    None$(.or(Some(<$type as $crate::codec::schema::Described>::shape(schema))))?,
                )),*];
                schema.enums.insert(stringify!($name), variants);
                Shape::Named(stringify!($name))
            }
        }
    };
}

/// Declares an enumeration of names alone: one byte, counted from 0, and a byte beyond the last one is refused (CODEC-3).
#[macro_export]
macro_rules! choice {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, ::borsh::BorshSerialize, ::borsh::BorshDeserialize)]
        #[cfg_attr(feature = "arbitrary", derive(::arbitrary::Arbitrary))]
        #[borsh(use_discriminant = false)]
        pub enum $name { $($(#[$variant_meta])* $variant,)* }

        impl $crate::codec::schema::Described for $name {
            fn shape(_: &mut $crate::codec::schema::Schema) -> $crate::codec::schema::Shape {
                $crate::codec::schema::Shape::Choice(vec![$(stringify!($variant)),*])
            }
        }
    };
}

/// A vector of at most `MAX` items (CODEC-4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> Default for List<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const MAX: usize> List<T, MAX> {
    /// # Errors
    /// [`Misuse`] when there are more than `MAX` items: what is too long is never written (LIMIT-2).
    pub fn new(items: Vec<T>) -> Result<Self, Misuse> {
        if items.len() > MAX {
            return Err(Misuse(format!("{} items in a list of at most {MAX}", items.len())));
        }
        Ok(Self(items))
    }

    /// The items, without the bound.
    pub fn into_inner(self) -> Vec<T> {
        self.0
    }
}

impl<T, const MAX: usize> Deref for List<T, MAX> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<'a, T, const MAX: usize> IntoIterator for &'a List<T, MAX> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T: BorshSerialize, const MAX: usize> BorshSerialize for List<T, MAX> {
    fn serialize<W: io::Write>(&self, writer: &mut W) -> io::Result<()> {
        self.0.serialize(writer)
    }
}

impl<T: BorshDeserialize, const MAX: usize> BorshDeserialize for List<T, MAX> {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        let length = bounded_length(reader, MAX)?;
        // A stranger's count reserves little before its items arrive.
        let mut items = Vec::with_capacity(length.min(64));
        for index in 0..length {
            let item =
                T::deserialize_reader(reader).map_err(|error| malformed(format!("[{index}] {error}")))?;
            items.push(item);
        }
        Ok(Self(items))
    }
}

/// At most `MAX` bytes (CODEC-5).
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Bytes<const MAX: usize>(Vec<u8>);

impl<const MAX: usize> Bytes<MAX> {
    /// # Errors
    /// [`Misuse`] when there are more than `MAX` bytes.
    pub fn new(bytes: Vec<u8>) -> Result<Self, Misuse> {
        if bytes.len() > MAX {
            return Err(Misuse(format!("{} bytes where at most {MAX} fit", bytes.len())));
        }
        Ok(Self(bytes))
    }

    /// The bytes, without the bound.
    pub fn into_inner(self) -> Vec<u8> {
        self.0
    }
}

impl<const MAX: usize> Deref for Bytes<MAX> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<const MAX: usize> std::fmt::Debug for Bytes<MAX> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl<const MAX: usize> BorshSerialize for Bytes<MAX> {
    fn serialize<W: io::Write>(&self, writer: &mut W) -> io::Result<()> {
        self.0.serialize(writer)
    }
}

impl<const MAX: usize> BorshDeserialize for Bytes<MAX> {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        let length = bounded_length(reader, MAX)?;
        let mut bytes = Vec::new();
        // Grows as bytes arrive: a bare length reserves nothing.
        let read = reader.take(length as u64).read_to_end(&mut bytes)?;
        if read != length {
            return Err(malformed("Unexpected length of input"));
        }
        Ok(Self(bytes))
    }
}

/// Whether a character is one that people do not see, and that turns, hides or parts the text around it (CODEC-6).
pub fn is_hidden(c: char) -> bool {
    let ranges = [
        '\u{ad}'..='\u{ad}',
        '\u{61c}'..='\u{61c}',
        '\u{180e}'..='\u{180e}',
        '\u{200b}'..='\u{200f}',
        '\u{2028}'..='\u{202e}',
        '\u{2060}'..='\u{206f}',
        '\u{feff}'..='\u{feff}',
        '\u{fff9}'..='\u{fffb}',
        '\u{e0000}'..='\u{e007f}',
    ];
    c.is_control() || ranges.iter().any(|range| range.contains(&c))
}

/// UTF-8 of at most `MAX` bytes, without characters that nobody sees (CODEC-6).
#[derive(Clone, PartialEq, Eq, Debug, Default, PartialOrd, Ord)]
pub struct Text<const MAX: usize>(String);

impl<const MAX: usize> Text<MAX> {
    /// # Errors
    /// [`Misuse`] when the text is too long or holds a character that [`is_hidden`].
    pub fn new(text: impl Into<String>) -> Result<Self, Misuse> {
        let text = text.into();
        if text.len() > MAX {
            return Err(Misuse(format!("{} bytes of text where at most {MAX} fit", text.len())));
        }
        // It is shown on terminals, in logs and on pages, where an escape could forge lines, and a change of direction make
        // one name look like another.
        if let Some(hidden) = text.chars().find(|c| is_hidden(*c)) {
            let kind = if hidden.is_control() { "a control character" } else { "an invisible character" };
            return Err(Misuse(format!("{kind}, U+{:04X}, in a name or address", u32::from(hidden))));
        }
        Ok(Self(text))
    }
}

impl<const MAX: usize> Deref for Text<MAX> {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl<const MAX: usize> BorshSerialize for Text<MAX> {
    fn serialize<W: io::Write>(&self, writer: &mut W) -> io::Result<()> {
        self.0.serialize(writer)
    }
}

impl<const MAX: usize> BorshDeserialize for Text<MAX> {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        let bytes = Bytes::<MAX>::deserialize_reader(reader)?;
        let text = String::from_utf8(bytes.0).map_err(|_| malformed("Not UTF-8"))?;
        Self::new(text).map_err(|error| malformed(format!("Text refused: {error}")))
    }
}

/// A finite `f32` that is not −0, carried as its bits (CODEC-7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Real(u32);

impl Real {
    /// 0.
    pub const ZERO: Self = Self(0);

    /// # Errors
    /// [`Misuse`] when the value is not finite, or is −0.
    pub fn new(value: f32) -> Result<Self, Misuse> {
        // −0 equals 0 and has other bits: two encodings of one value.
        if !value.is_finite() || value.to_bits() == (-0.0f32).to_bits() {
            return Err(Misuse(format!("{value} where a finite number is needed")));
        }
        Ok(Self(value.to_bits()))
    }

    /// The value.
    pub fn value(self) -> f32 {
        f32::from_bits(self.0)
    }
}

impl BorshSerialize for Real {
    fn serialize<W: io::Write>(&self, writer: &mut W) -> io::Result<()> {
        self.0.serialize(writer)
    }
}

impl BorshDeserialize for Real {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        let bits = u32::deserialize_reader(reader)?;
        Self::new(f32::from_bits(bits)).map_err(|error| malformed(format!("Real refused: {error}")))
    }
}

fn bounded_length<R: io::Read>(reader: &mut R, limit: usize) -> io::Result<usize> {
    let length = u32::deserialize_reader(reader)? as usize;
    // LIMIT-1: more than its bound is refused before anything is allocated or read for it.
    if length > limit {
        return Err(malformed(format!("Length {length} over the limit {limit}")));
    }
    Ok(length)
}

#[cfg(feature = "arbitrary")]
mod arbitrary_values {
    use arbitrary::{Arbitrary, Result, Unstructured};

    use super::{Bytes, List, Real, Text};

    impl<'a, T: Arbitrary<'a>, const MAX: usize> Arbitrary<'a> for List<T, MAX> {
        fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
            let items: Result<Vec<T>> = u.arbitrary_iter()?.take(MAX.min(8)).collect();
            Ok(Self(items?))
        }
    }

    impl<'a, const MAX: usize> Arbitrary<'a> for Bytes<MAX> {
        fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
            let bytes: Result<Vec<u8>> = u.arbitrary_iter()?.take(MAX).collect();
            Ok(Self(bytes?))
        }
    }

    impl<'a, const MAX: usize> Arbitrary<'a> for Text<MAX> {
        fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
            let text: String =
                String::arbitrary(u)?.chars().filter(|c| !super::is_hidden(*c)).take(MAX / 4).collect();
            Ok(Self(text))
        }
    }

    impl<'a> Arbitrary<'a> for Real {
        fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
            Ok(Self::new(f32::from_bits(u.arbitrary()?)).unwrap_or(Self(0)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    wire! {
        /// A structure to decode.
        pub struct Inner { /// A list.
            pub items: List<u16, 3> }
    }
    wire! {
        /// An enumeration to decode.
        pub enum Outer { /// Nothing.
            Empty, /// Something.
            Full(Inner) }
    }

    #[test]
    fn errors_name_the_field() {
        let value = Outer::Full(Inner { items: List::new(vec![1, 2]).unwrap() });
        let bytes = encode(&value);
        assert_eq!(decode::<Outer>(&bytes).unwrap(), value);
        let truncated = decode::<Outer>(&bytes[..bytes.len() - 1]).unwrap_err().to_string();
        assert!(truncated.contains("Outer::Full") && truncated.contains("Inner.items"), "{truncated}");
        let trailing = [bytes.as_slice(), &[0]].concat();
        assert!(decode::<Outer>(&trailing).is_err());
        assert!(decode::<Outer>(&[7]).unwrap_err().to_string().contains("no variant 7"));
        let long = decode::<Inner>(&[4, 0, 0, 0]).unwrap_err().to_string();
        assert!(long.contains("over the limit 3"), "{long}");
    }

    #[test]
    fn codec_2_integers_are_little_endian_and_arrays_bare() {
        assert_eq!(encode(&0x0102_0304u32), [4, 3, 2, 1]);
        assert_eq!(encode(&-2i64), [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(encode(&[0x0102u16, 3]), [2, 1, 3, 0]);
        assert_eq!(decode::<[u16; 2]>(&[2, 1, 3, 0]), Ok([0x0102, 3]));
        assert!(decode::<u32>(&[4, 3, 2]).is_err() && decode::<[u16; 2]>(&[2, 1, 3]).is_err());
    }

    #[test]
    fn limit_1_and_limit_2_what_is_too_long_is_neither_read_nor_written() {
        // LIMIT-2
        assert!(List::<u8, 3>::new(vec![1; 3]).is_ok() && List::<u8, 3>::new(vec![1; 4]).is_err());
        assert!(Bytes::<3>::new(vec![1; 3]).is_ok() && Bytes::<3>::new(vec![1; 4]).is_err());
        assert!(Text::<3>::new("abc").is_ok() && Text::<3>::new("abcd").is_err());
        for (length, good) in [(3, true), (4, false), (u32::MAX, false)] {
            let bytes = [&u32::to_le_bytes(length)[..], &[b'a'; 4][..length.min(4) as usize]].concat();
            assert_eq!(decode::<List<u8, 3>>(&bytes).is_ok(), good, "{length} items");
            assert_eq!(decode::<Bytes<3>>(&bytes).is_ok(), good, "{length} bytes");
            assert_eq!(decode::<Text<3>>(&bytes).is_ok(), good, "{length} bytes of text");
        }
    }

    #[test]
    fn codec_6_text_holds_nothing_that_is_not_seen() {
        for hidden in ['\n', '\u{7f}', '\u{202e}', '\u{2066}', '\u{200b}', '\u{feff}', '\u{e0041}'] {
            let said = Text::<64>::new(format!("a{hidden}b")).unwrap_err().to_string();
            assert!(said.contains(&format!("character, U+{:04X}, in a name", u32::from(hidden))), "{said}");
        }
        for shown in ["a b", "é", "שלום", "日本", "\u{2027}\u{202f}", "👍"] {
            assert_eq!(&*Text::<64>::new(shown).unwrap(), shown);
        }
    }

    #[test]
    fn real_is_canonical() {
        assert!(decode::<Real>(&f32::NAN.to_bits().to_le_bytes()).is_err());
        assert!(decode::<Real>(&(-0.0f32).to_bits().to_le_bytes()).is_err());
        assert_eq!(decode::<Real>(&1.5f32.to_bits().to_le_bytes()).unwrap().value(), 1.5);
    }
}
