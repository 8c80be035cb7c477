//! Makes a router's table: rows of alike texts, each with nearly the same share of the windows.
//!
//! A row is a unigram model of the buckets (token mod 256) of the text before a window; an entry is the logarithm of
//! a bucket's probability in units of 2⁻¹⁰ nats, rounded. As in k-means, rows are fitted to the places that they have,
//! and places go to the row that finds their text likeliest; but biases keep the rows equally large. There is no
//! chance in it. Floats are the packer's business: a run commits to the integers that come out.

use core::ops::Range;

use muster_core::limits;
use muster_core::router::{BUCKETS, NAT, RouterRow, Table};

use super::{Dataset, Routing};
use crate::error::Result;

/// Places of the text to which rows are fitted.
const FITTED: u64 = 1 << 14;
/// Places on which rows are made equally large, and as many between them on which their shares are measured.
const BALANCED: u64 = 1 << 16;
/// Times that rows are fitted and places dealt out.
const TIMES: usize = 30;
/// Turns of all biases for each time, which continues the one before, and at the end.
const TURNS: usize = 3;
const LAST_TURNS: usize = 40;

/// What router a corpus is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterSize {
    /// Rows of experts.
    pub rows: u16,
    /// Tokens before a window that give it its row.
    pub tokens: u16,
}

impl RouterSize {
    /// Why a training text of this many tokens cannot have this router.
    pub(super) fn fault(self, length: u64) -> Option<String> {
        let Self { rows, tokens } = self;
        // DATA-8: `rows` is 2 to 64, `tokens` 1 to 4,096.
        if !(2..=limits::ROWS).contains(&rows) || !(1..=limits::ROUTE_TOKENS).contains(&tokens) {
            return Some(format!(
                "a router has 2 to {} rows and reads 1 to {} tokens, not {rows} and {tokens}",
                limits::ROWS,
                limits::ROUTE_TOKENS
            ));
        }
        let least = u64::from(rows) * u64::from(tokens);
        (length < least).then(|| {
            format!(
                "{length} training tokens are too few for {rows} rows that read {tokens}: at least {least}"
            )
        })
    }
}

/// A router for the training text of a corpus, which has no [`RouterSize::fault`]. The same text gives the same router.
///
/// # Errors
/// As of [`Dataset::read`].
pub(super) fn fitted(dataset: &Dataset, size: RouterSize) -> Result<Routing> {
    let rows = usize::from(size.rows);
    let places = Places::of(dataset, size.tokens, FITTED)?;
    // Neighbouring texts are alike: to begin with, each row has one stretch of the whole.
    let mut dealt: Vec<usize> = (0..places.len()).map(|place| place * rows / places.len()).collect();
    let mut biases = vec![0; rows];
    let mut entries = places.entries(&dealt, rows);
    for _ in 0..TIMES {
        let scores = Scores::of(&places, &entries, rows);
        scores.balance(&mut biases, TURNS);
        let again = scores.deal(&biases);
        if again == dealt {
            break;
        }
        dealt = again;
        entries = places.entries(&dealt, rows);
    }
    let scores = Scores::of(&Places::of(dataset, size.tokens, BALANCED)?, &entries, rows);
    scores.balance(&mut biases, LAST_TURNS);
    // Only differences matter.
    let least = biases.iter().copied().min().unwrap_or(0);
    let row = |row: usize| RouterRow {
        entries: core::array::from_fn(|bucket| entries[bucket * rows + row]),
        bias: i32::try_from(biases[row] - least).unwrap_or(i32::MAX),
    };
    let table = Table::new((0..rows).map(row).collect()).expect("a size without a fault");
    Ok(Routing::new(size.tokens, table))
}

/// The share that each row has of the training text, all rows being open: of 65,536 places that are spread evenly, or
/// of all where there are fewer. Empty where there is no router.
///
/// # Errors
/// As of [`Dataset::read`].
pub fn row_shares(dataset: &Dataset) -> Result<Vec<f64>> {
    let Some(routing) = dataset.routing() else { return Ok(Vec::new()) };
    let mut places = vec![0u32; routing.router().rows.into()];
    let length = dataset.training_tokens();
    let count = length.min(BALANCED);
    for place in (0..count).map(|index| between(index, count, length, 1)) {
        let row = routing.row(&dataset.before(place, routing.tokens())?, |_| true);
        places[row.map_or(0, |row| row.index())] += 1;
    }
    Ok(places.iter().map(|places| f64::from(*places) / count.max(1) as f64).collect())
}

/// Place `index` of `count` in a text of this length, moved on by `halves` halves of their distance.
fn between(index: u64, count: u64, length: u64, halves: u64) -> u64 {
    (u128::from(2 * index + halves) * u128::from(length) / u128::from(2 * count)) as u64
}

/// How often each bucket occurs in the text before each of some places.
struct Places {
    /// Where a place's buckets end; they begin where those of the one before end.
    ends: Vec<usize>,
    /// Buckets that occur, and how often.
    buckets: Vec<(u8, u16)>,
}

impl Places {
    fn of(dataset: &Dataset, tokens: u16, most: u64) -> Result<Self> {
        let length = dataset.training_tokens();
        let count = length.min(most);
        let (mut ends, mut buckets) = (Vec::with_capacity(count as usize), Vec::new());
        for place in (0..count).map(|index| between(index, count, length, 0)) {
            let mut counts = [0u16; BUCKETS];
            let before = dataset.before(place, tokens.into())?;
            before.iter().for_each(|token| counts[*token as usize % BUCKETS] += 1);
            buckets.extend((0..=u8::MAX).zip(counts).filter(|(_, count)| *count > 0));
            ends.push(buckets.len());
        }
        Ok(Self { ends, buckets })
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn each(&self) -> impl Iterator<Item = &[(u8, u16)]> {
        let starts = core::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).map(|(start, end)| &self.buckets[Range { start: *start, end: *end }])
    }

    /// Entries of unigram models of the places that each row has, bucket by bucket, with one more of each bucket than
    /// there is: one that a row has never seen is unlikely, and not impossible.
    fn entries(&self, dealt: &[usize], rows: usize) -> Vec<i32> {
        let (mut seen, mut all) = (vec![1u64; BUCKETS * rows], vec![BUCKETS as u64; rows]);
        for (buckets, row) in self.each().zip(dealt) {
            for (bucket, count) in buckets {
                seen[usize::from(*bucket) * rows + row] += u64::from(*count);
                all[*row] += u64::from(*count);
            }
        }
        let entry = |(index, seen): (usize, &u64)| (*seen as f64 / all[index % rows] as f64).ln() * NAT;
        seen.iter().enumerate().map(|of| entry(of).round() as i32).collect()
    }
}

/// The scores of all rows at each place, without biases.
struct Scores {
    rows: usize,
    scores: Vec<i64>,
}

impl Scores {
    fn of(places: &Places, entries: &[i32], rows: usize) -> Self {
        let mut scores = vec![0i64; places.len() * rows];
        for (buckets, scores) in places.each().zip(scores.chunks_exact_mut(rows)) {
            for (bucket, count) in buckets {
                let entries = &entries[usize::from(*bucket) * rows..][..rows];
                let of_rows = scores.iter_mut().zip(entries);
                of_rows.for_each(|(score, entry)| *score += i64::from(*count) * i64::from(*entry));
            }
        }
        Self { rows, scores }
    }

    /// The row of each place.
    fn deal(&self, biases: &[i64]) -> Vec<usize> {
        let best = |scores: &[i64]| {
            let scored = scores.iter().zip(biases).map(|(score, bias)| score + bias).enumerate();
            scored.max_by_key(|(row, score)| (*score, core::cmp::Reverse(*row))).map_or(0, |(row, _)| row)
        };
        self.scores.chunks_exact(self.rows).map(best).collect()
    }

    /// Gives each row in turn the bias with which it has its share of the places, until all have.
    fn balance(&self, biases: &mut [i64], turns: usize) {
        let places = self.scores.len() / self.rows;
        for _ in 0..turns {
            for row in 0..self.rows {
                self.settle(row, biases, places / self.rows);
            }
            let mut sizes = vec![0usize; self.rows];
            self.deal(biases).into_iter().for_each(|row| sizes[row] += 1);
            // Within a 200th of its share: the text between these places differs by more.
            if sizes.iter().all(|size| size.abs_diff(places / self.rows) * self.rows * 200 <= places) {
                break;
            }
        }
    }

    /// Sets a row's bias so that it has `share` places while the others keep their biases.
    fn settle(&self, row: usize, biases: &mut [i64], share: usize) {
        // By how much the best of the others is ahead: a row has the places at which its bias is greater.
        let ahead = |scores: &[i64]| {
            let others = scores.iter().zip(&*biases).enumerate().filter(|(other, _)| *other != row);
            others.map(|(_, (score, bias))| score + bias).max().unwrap_or(0) - scores[row]
        };
        let mut ahead: Vec<i64> = self.scores.chunks_exact(self.rows).map(ahead).collect();
        if share == 0 || share >= ahead.len() {
            return;
        }
        let (below, next, _) = ahead.select_nth_unstable(share);
        let last = below.iter().copied().max().unwrap_or(*next);
        // Between the last place that it is to have and the first that it is not.
        biases[row] = last + (*next - last + 1) / 2;
    }
}
