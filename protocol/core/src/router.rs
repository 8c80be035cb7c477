//! Which row of a mixture of experts a window belongs to: a committed table of integers scores the text before it.
//!
//! Nothing of the table is trained, so nothing of it can be poisoned: whoever has the text and the table knows every
//! window's row. All of it is exact in 64 bits: 4,096 entries of 32 bits and a bias stay below 2^44.

use core::cmp::Reverse;

use crate::error::{Misuse, Reject};
use crate::ids::Row;
use crate::limits;

/// Entries of a row: tokens that are equal modulo this share one.
pub const BUCKETS: usize = 256;

/// Units of a score in a nat, where entries are logarithms of probabilities: an entry is one in units of 2⁻¹⁰ nats.
pub const NAT: f64 = 1024.0;

/// Numbers of a row in the file: its entries and its bias.
const NUMBERS: usize = BUCKETS + 1;

/// Bytes of a number.
const SIZE: usize = size_of::<i32>();

/// Bytes of the file of this many rows (DATA-8).
pub fn file_bytes(rows: u16) -> u64 {
    u64::from(rows) * (NUMBERS * SIZE) as u64
}

/// A row's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterRow {
    /// What each token of a bucket adds to the score.
    pub entries: [i32; BUCKETS],
    /// What the score begins with.
    pub bias: i32,
}

/// The numbers of all rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    rows: Vec<RouterRow>,
}

impl Table {
    /// A table of these rows.
    ///
    /// # Errors
    /// [`Misuse`] when they are fewer than 2 or too many.
    pub fn new(rows: Vec<RouterRow>) -> Result<Self, Misuse> {
        let (count, most) = (rows.len(), usize::from(limits::ROWS));
        if !(2..=most).contains(&count) {
            return Err(Misuse(format!("a router has 2 to {most} rows, not {count}")));
        }
        Ok(Self { rows })
    }

    /// Reads the file of a router of `rows` rows.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for a number of rows that no router has, and for bytes of another length.
    pub fn decode(bytes: &[u8], rows: u16) -> Result<Self, Reject> {
        // DATA-8: `rows` is 2 to 64, and a file of another length than 1,028·R is refused.
        if !(2..=limits::ROWS).contains(&rows) || bytes.len() as u64 != file_bytes(rows) {
            let length = bytes.len();
            return Err(Reject::Malformed(format!("{length} bytes are no router's file of {rows} rows")));
        }
        let row = |bytes: &[u8]| {
            let mut numbers = bytes.chunks_exact(SIZE).map(|bytes| {
                i32::from_le_bytes(bytes.try_into().expect("a chunk has the bytes of a number"))
            });
            let mut next = || numbers.next().expect("a row has all of its numbers");
            RouterRow { entries: core::array::from_fn(|_| next()), bias: next() }
        };
        Ok(Self { rows: bytes.chunks_exact(NUMBERS * SIZE).map(row).collect() })
    }

    /// The file: of each row its entries, then its bias.
    pub fn encode(&self) -> Vec<u8> {
        let numbers = self.rows.iter().flat_map(|row| row.entries.iter().chain([&row.bias]));
        numbers.flat_map(|number| number.to_le_bytes()).collect()
    }

    /// How many rows there are.
    pub fn rows(&self) -> u16 {
        self.rows.len() as u16
    }

    /// The score of each row for a window after these tokens, which may be none (DATA-9).
    pub fn scores(&self, before: &[u32]) -> Vec<i64> {
        self.each(before).collect()
    }

    /// The row of a window after these tokens: none where no row is open.
    ///
    /// DATA-9: the open row with the largest score, the lowest among equals.
    pub fn row(&self, before: &[u32], open: impl Fn(Row) -> bool) -> Option<Row> {
        let scored = (0..).map(Row).zip(self.each(before)).filter(|(row, _)| open(*row));
        scored.max_by_key(|(row, score)| (*score, Reverse(*row))).map(|(row, _)| row)
    }

    /// All rows, the one with the largest score first, the lowest first among equals (DATA-9).
    pub fn ranked(&self, before: &[u32]) -> Vec<Row> {
        let mut scored: Vec<(i64, Row)> = self.each(before).zip((0..).map(Row)).collect();
        scored.sort_unstable_by_key(|(score, row)| (Reverse(*score), *row));
        scored.into_iter().map(|(_, row)| row).collect()
    }

    /// DATA-9: the score of row r is its bias and, of each token, entry token mod 256 of its row.
    fn each(&self, before: &[u32]) -> impl Iterator<Item = i64> {
        self.rows.iter().map(|row| {
            let entries = before.iter().map(|token| row.entries[*token as usize % BUCKETS]);
            // No overflow: there would have to be 2^31 tokens.
            entries.fold(i64::from(row.bias), |score, entry| score + i64::from(entry))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bias: i32, entries: &[(usize, i32)]) -> RouterRow {
        let mut row = RouterRow { entries: [0; BUCKETS], bias };
        entries.iter().for_each(|(bucket, entry)| row.entries[*bucket] = *entry);
        row
    }

    fn table(rows: Vec<RouterRow>) -> Table {
        Table::new(rows).unwrap()
    }

    #[test]
    fn data_8_a_file_has_entries_then_bias_of_each_row_and_no_other_length() {
        let table = table(vec![row(-1, &[(0, 1), (255, i32::MIN)]), row(i32::MAX, &[])]);
        let file = table.encode();
        assert_eq!(file.len() as u64, file_bytes(2));
        assert_eq!(
            (&file[..4], &file[1020..1028]),
            (&[1, 0, 0, 0][..], &[0, 0, 0, 0x80, 255, 255, 255, 255][..])
        );
        assert_eq!(&file[2052..], [255, 255, 255, 127]);
        assert_eq!(Table::decode(&file, 2).as_ref(), Ok(&table));
        for (bytes, rows) in [(&file[1..], 2), (&file[..], 1), (&file[..], 3), (&[], 0), (&file[..1028], 1)] {
            assert!(matches!(Table::decode(bytes, rows), Err(Reject::Malformed(_))), "{rows}");
        }
        let many = vec![0; 65 * 1028];
        assert!(Table::decode(&many, 65).is_err() && Table::decode(&many[1028..], 64).is_ok());
    }

    #[test]
    fn data_8_a_table_has_2_to_64_rows() {
        assert!(Table::new(vec![row(0, &[]); 64]).is_ok());
        for rows in [0, 1, 65] {
            let refused = Table::new(vec![row(0, &[]); rows]).unwrap_err();
            assert_eq!(refused.0, format!("a router has 2 to 64 rows, not {rows}"));
        }
    }

    #[test]
    fn data_9_the_best_open_row_is_taken_and_the_lowest_among_equals() {
        let table = table(vec![row(3, &[(7, -10)]), row(0, &[(7, 4)]), row(3, &[]), row(0, &[(7, 4)])]);
        let all = |_| true;
        // No text before: the biases alone.
        assert_eq!((table.scores(&[]), table.row(&[], all)), (vec![3, 0, 3, 0], Some(Row(0))));
        // A token counts by its number modulo 256.
        let before = [7, 263, u32::MAX];
        assert_eq!(table.scores(&before), [-17, 8, 3, 8]);
        assert_eq!(table.row(&before, all), Some(Row(1)));
        assert_eq!(table.ranked(&before), [1, 3, 2, 0].map(Row));
        assert_eq!(table.row(&before, |row| row != Row(1)), Some(Row(3)));
        assert_eq!(table.row(&before, |row| row == Row(0)), Some(Row(0)));
        assert_eq!(table.row(&before, |_| false), None);
    }

    #[test]
    fn data_9_the_largest_entries_do_not_overflow() {
        let (least, most) = (RouterRow { entries: [i32::MIN; BUCKETS], bias: i32::MIN }, i32::MAX);
        let table = table(vec![least, RouterRow { entries: [most; BUCKETS], bias: most }]);
        let before = vec![9; usize::from(limits::ROUTE_TOKENS)];
        let scores = table.scores(&before);
        assert_eq!(scores, [4097 * i64::from(i32::MIN), 4097 * i64::from(most)]);
        assert_eq!(table.row(&before, |_| true), Some(Row(1)));
    }
}
