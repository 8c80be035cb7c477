//! Integers in as few bits as the largest of their neighbours needs: the one encoding of a chunk (COMMIT-6) and of a result
//! (AGG-24).

use crate::error::Reject;
use crate::limits::PACK_COEFFICIENTS;

/// Integers whose bits are put together at a time: `w` bits of each make `w` whole bytes.
const GROUP: usize = 8;

/// The one encoding of any integers.
///
/// COMMIT-6: packs of 64 integers, the last one may be shorter. A pack is a byte w, then w bits of each integer in two's
/// complement, the lowest first; w is the least width that holds them all, 0 where all are 0.
pub fn pack(values: &[i32]) -> Vec<u8> {
    pulp::Arch::new().dispatch(Pack(values))
}

/// Appends the `count` integers that `bytes` are the encoding of (COMMIT-6).
///
/// `count` is the caller's, from the layout: what a stranger writes does not make this reserve more.
///
/// # Errors
/// [`Reject`] when the bytes are not the one encoding of so many integers; integers may have been appended by then.
pub fn unpack(bytes: &[u8], count: usize, values: &mut Vec<i32>) -> Result<(), Reject> {
    let rest = unpack_first(bytes, count, values)?;
    if rest.is_empty() { Ok(()) } else { Err(Reject::Rule("nothing follows the last pack")) }
}

/// The same of bytes that begin with an encoding; returns what follows it.
///
/// # Errors
/// As [`unpack`].
pub fn unpack_first<'a>(bytes: &'a [u8], count: usize, values: &mut Vec<i32>) -> Result<&'a [u8], Reject> {
    let start = values.len();
    // No pack is shorter than its width, so that few bytes cannot stand for more packs than they hold.
    if bytes.len() < count.div_ceil(PACK_COEFFICIENTS) {
        return Err(Reject::Rule("a pack begins with its width"));
    }
    values.resize(start + count, 0);
    pulp::Arch::new().dispatch(Unpack { bytes, values: values.get_mut(start..).unwrap_or_default() })
}

/// Calls a function for the width that a variable has: with a constant every shift is one.
macro_rules! with_width {
    ($width:expr, $function:ident($from:expr, $to:expr), [$($constant:literal)*]) => {
        match $width {
            $($constant => $function::<$constant>($from, $to),)*
            _ => {}
        }
    };
    ($width:expr, $function:ident($from:expr, $to:expr)) => {
        with_width!($width, $function($from, $to),
            [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32])
    };
}

/// What is to be encoded; no closure, whose body would not be compiled for the vectors that are dispatched to.
struct Pack<'a>(&'a [i32]);

impl pulp::NullaryFnOnce for Pack<'_> {
    type Output = Vec<u8>;

    #[inline(always)]
    fn call(self) -> Vec<u8> {
        let packs = || self.0.chunks(PACK_COEFFICIENTS);
        let length = packs().map(|values| 1 + packed_bytes(width_of(values), values.len())).sum();
        let mut bytes = vec![0; length];
        let mut rest = bytes.as_mut_slice();
        for values in packs() {
            let width = width_of(values);
            let Some((first, after)) = rest.split_first_mut() else { break };
            *first = width as u8;
            let (packed, after) = after.split_at_mut(packed_bytes(width, values.len()));
            with_width!(width, pack_values(values, packed));
            rest = after;
        }
        bytes
    }
}

/// Bytes of so many integers in `width` bits each.
#[inline(always)]
fn packed_bytes(width: usize, count: usize) -> usize {
    (width * count).div_ceil(8)
}

#[inline(always)]
fn pack_values<const WIDTH: usize>(values: &[i32], bytes: &mut [u8]) {
    let (groups, rest) = values.as_chunks::<GROUP>();
    let (whole, last) = bytes.split_at_mut(groups.len() * WIDTH);
    for (group, bytes) in groups.iter().zip(whole.chunks_exact_mut(WIDTH)) {
        pack_group::<WIDTH>(group, bytes);
    }
    // The last pack alone may end within a group. Integers of 0 make the bits after its last one 0.
    if !rest.is_empty() {
        let mut group = [0; GROUP];
        group.iter_mut().zip(rest).for_each(|(place, value)| *place = *value);
        let mut all = [0; 32];
        pack_group::<WIDTH>(&group, &mut all[..WIDTH]);
        last.copy_from_slice(&all[..last.len()]);
    }
}

/// The bytes of a group: as many as an integer has bits.
#[inline(always)]
fn pack_group<const WIDTH: usize>(group: &[i32; GROUP], bytes: &mut [u8]) {
    let mut words = [0u64; 4];
    for (index, value) in group.iter().enumerate() {
        let (word, shift) = (index * WIDTH / 64, index * WIDTH % 64);
        let low = u64::from(*value as u32) & (u64::MAX >> (64 - WIDTH));
        words[word] |= low << shift;
        if shift + WIDTH > 64 {
            words[word + 1] |= low >> (64 - shift);
        }
    }
    let mut all = [0; 32];
    all.as_chunks_mut().0.iter_mut().zip(words).for_each(|(eight, word)| *eight = word.to_le_bytes());
    bytes.copy_from_slice(&all[..WIDTH]);
}

/// What is to be decoded, to exactly these places.
struct Unpack<'a, 'v> {
    bytes: &'a [u8],
    values: &'v mut [i32],
}

impl<'a> pulp::NullaryFnOnce for Unpack<'a, '_> {
    type Output = Result<&'a [u8], Reject>;

    #[inline(always)]
    fn call(self) -> Result<&'a [u8], Reject> {
        let mut rest = self.bytes;
        for values in self.values.chunks_mut(PACK_COEFFICIENTS) {
            let (width, after) = rest.split_first().ok_or(Reject::Rule("a pack begins with its width"))?;
            let width = usize::from(*width);
            if width > 32 {
                return Err(Reject::Rule("a pack has a width of at most 32"));
            }
            let packed = after.split_at_checked(packed_bytes(width, values.len()));
            let (packed, after) = packed.ok_or(Reject::Rule("a pack is as long as its width says"))?;
            with_width!(width, unpack_values(packed, values));
            // One encoding: the committed hash is over these bytes.
            if width_of(values) != width {
                return Err(Reject::Rule("a pack has the least width"));
            }
            let unused = 8 * packed.len() - width * values.len();
            if packed.last().is_some_and(|last| u32::from(*last) >> (8 - unused) != 0) {
                return Err(Reject::Rule("the bits after the last integer are 0"));
            }
            rest = after;
        }
        Ok(rest)
    }
}

#[inline(always)]
fn unpack_values<const WIDTH: usize>(bytes: &[u8], values: &mut [i32]) {
    // With eight bytes after the last one, any integer can be read as part of eight bytes.
    let mut all = [0; 4 * PACK_COEFFICIENTS + 8];
    all[..bytes.len()].copy_from_slice(bytes);
    for (number, group) in values.chunks_mut(GROUP).enumerate() {
        let start = number * WIDTH;
        let Some(bytes) = all.get(start..start + WIDTH + 8) else { return };
        let integers = unpack_group::<WIDTH>(bytes);
        match group.as_chunks_mut() {
            ([whole], _) => *whole = integers,
            (_, rest) => rest.iter_mut().zip(integers).for_each(|(place, value)| *place = value),
        }
    }
}

/// A group of integers; eight bytes follow it.
#[inline(always)]
fn unpack_group<const WIDTH: usize>(bytes: &[u8]) -> [i32; GROUP] {
    std::array::from_fn(|index| {
        let bit = index * WIDTH;
        let eight = bytes[bit / 8..].first_chunk().map_or(0, |eight| u64::from_le_bytes(*eight));
        // Up, and down again with the sign.
        (((eight >> (bit % 8)) as u32) << (32 - WIDTH)) as i32 >> (32 - WIDTH)
    })
}

/// Bits that hold every one of the integers in two's complement; 0 where all are 0.
#[inline(always)]
fn width_of(values: &[i32]) -> usize {
    // A non-negative number has the same bits below its sign as the value, a negative one their complement.
    let (mut any, mut bits) = (0, 0);
    for value in values {
        any |= *value;
        bits |= value ^ (value >> 31);
    }
    if any == 0 { 0 } else { 33 - bits.leading_zeros() as usize }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_core::{Rng, SeedableRng};

    use super::*;
    use crate::limits::{CHUNK_BYTES, CHUNK_COEFFICIENTS};

    fn unpacked(bytes: &[u8], count: usize) -> Option<Vec<i32>> {
        let mut values = vec![9];
        unpack(bytes, count, &mut values).ok()?;
        Some(values.split_off(1))
    }

    #[test]
    fn commit_6_bits_follow_each_other_from_the_lowest() {
        let cases: [(&[i32], &[u8]); 10] = [
            (&[], &[]),
            (&[0, 0, 0], &[0]),
            (&[-1, 0, -1], &[1, 0b101]),
            (&[1, -2, -1, 0, 1], &[2, 0b00_11_10_01, 0b01]),
            (&[3, -4, -1], &[3, 0b11_100_011, 0b1]),
            (&[7, -8], &[4, 0x87]),
            (&[127, -128, 3], &[8, 127, 128, 3]),
            (&[128, 0], &[9, 128, 0, 0]),
            (&[-129], &[9, 0x7f, 1]),
            (&[i32::MAX, i32::MIN], &[32, 255, 255, 255, 127, 0, 0, 0, 128]),
        ];
        for (values, bytes) in cases {
            assert_eq!(pack(values), bytes, "{values:?}");
            assert_eq!(unpacked(bytes, values.len()).as_deref(), Some(values));
        }
    }

    #[test]
    fn commit_6_any_integers_have_one_encoding() {
        let mut random = ChaCha8Rng::seed_from_u64(6);
        for width in 0..=32 {
            for count in [1, 2, 3, 7, 8, 9, 31, 63, 64, 65, 127, 128, 200, CHUNK_COEFFICIENTS] {
                let shift = 32 - width;
                let values: Vec<i32> = (0..count)
                    .map(|_| if width == 0 { 0 } else { random.next_u32() as i32 >> shift })
                    .collect();
                let bytes = pack(&values);
                assert!(bytes.len() <= CHUNK_BYTES);
                assert_eq!(unpacked(&bytes, count), Some(values));
                // A changed bit is another vector, or none.
                let mut changed = bytes.clone();
                let at = random.next_u32() as usize % bytes.len();
                changed[at] ^= 1 << (random.next_u32() % 8);
                assert!(unpacked(&changed, count).is_none_or(|values| pack(&values) == changed));
                assert!(unpacked(&bytes[..bytes.len() - 1], count).is_none(), "short");
                assert!(unpacked(&[&bytes[..], &[0]].concat(), count).is_none(), "long");
            }
        }
    }

    #[test]
    fn commit_6_other_widths_and_bits_are_refused() {
        let cases: [(&[u8], usize, &str); 8] = [
            (&[1, 0], 3, "zeros in one bit"),
            (&[3, 0b001_001], 2, "ones in three bits"),
            (&[33, 0, 0, 0, 0, 1], 1, "more bits than an integer has"),
            (&[255; 40], 1, "more bits than an integer has"),
            (&[2, 0b100_0001], 3, "a bit after the last integer"),
            (&[8, 1, 2], 3, "an integer is missing"),
            (&[], 1, "no width"),
            (&[0], 0, "a pack of nothing"),
        ];
        for (bytes, count, why) in cases {
            assert!(unpacked(bytes, count).is_none(), "{why}");
        }
        assert!(unpacked(&[0], usize::MAX).is_none(), "few bytes reserve little");
    }

    #[test]
    fn packs_have_widths_of_their_own() {
        let values: Vec<i32> = (0..130).map(|i| if i < 64 { 1 } else { i32::from(i == 129) * 300 }).collect();
        assert_eq!(pack(&values).len(), 1 + 16 + 1 + 1 + 3);
        assert_eq!(unpacked(&pack(&values), 130), Some(values));
    }
}
