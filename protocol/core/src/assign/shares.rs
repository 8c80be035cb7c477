//! How much of a round each aggregator reduces, by the share classes of the members (ASSIGN-12).
//!
//! Parts of a shard are nearly equal. Where classes differ there are more parts than aggregators, and a fast member reduces
//! several of them: whoever lacks the ledger still finds the same blocks from the number of parts.

use std::collections::BTreeMap;

use crate::ids::{ShareClass, Slot};
use crate::limits;

/// How fast a class is beside others: ⌊√2^(16 + class)⌋, so that each step is one of √2.
fn speed(class: ShareClass) -> u64 {
    (1u64 << (16 + u32::from(class.0.min(limits::SHARE_CLASS)))).isqrt()
}

/// Of fewer aggregators classes mean nothing.
const LEAST: usize = 3;

/// Whether classes count among so many aggregators (ASSIGN-12). Of two neither may have more than half, whatever their classes.
/// Of more than 64 a slow one would have whole parts where it should have a fraction of one.
pub fn weighs(aggregators: usize) -> bool {
    (LEAST..=limits::SHARERS).contains(&aggregators)
}

/// The share class of each aggregator, in the same order. Parts are counted and given by it.
#[derive(Clone, Copy)]
pub(super) struct Shares<'a> {
    slots: &'a [Slot],
    /// By slot; none where they do not count.
    classes: &'a [ShareClass],
}

impl<'a> Shares<'a> {
    pub(super) fn of(slots: &'a [Slot], classes: &'a [ShareClass]) -> Self {
        // Where they do not count, all are alike.
        Self { slots, classes: if weighs(slots.len()) { classes } else { &[] } }
    }

    fn class(&self, slot: Slot) -> ShareClass {
        self.classes.get(slot.index()).copied().unwrap_or_default()
    }

    /// For how many aggregators blocks are divided.
    ///
    /// ASSIGN-12: for as many as there are if they are of one class, or classes do not count; otherwise for
    /// [`limits::SHARE_PARTS`] times as many.
    pub(super) fn divisor(&self) -> usize {
        let mut classes = self.slots.iter().map(|slot| self.class(*slot));
        let first = classes.next();
        let alike = classes.all(|class| Some(class) == first);
        if alike { self.slots.len() } else { self.slots.len() * limits::SHARE_PARTS }
    }

    /// Nobody has anything yet of so many parts.
    pub(super) fn filling(self, parts: usize) -> Filling<'a> {
        // Half at most, and 4/A of more than eight: nobody holds the aggregate alone, however fast it is.
        let most = (parts / 2).min(4 * parts / self.slots.len().max(1)).max(1);
        Filling { shares: self, most, parts: BTreeMap::new() }
    }
}

/// Water-filling: how many parts each aggregator has so far.
pub(super) struct Filling<'a> {
    shares: Shares<'a>,
    /// Of the parts, what one aggregator has at most while another is able.
    most: usize,
    parts: BTreeMap<Slot, usize>,
}

impl Filling<'_> {
    fn parts_of(&self, slot: Slot) -> usize {
        self.parts.get(&slot).copied().unwrap_or(0)
    }

    /// Gives a part to one of these slots, which are in the order of the shuffle.
    ///
    /// ASSIGN-6: to the one that would be done first with it and what it has, the first among equals; to one that has as many
    /// as one may have only where all of them have.
    pub(super) fn give(&mut self, able: &[Slot]) -> Option<Slot> {
        // (parts + 1)/speed in integers: a quotient would round two times to one.
        let sooner = |one: &Slot, other: &Slot| {
            let time =
                |slot: Slot, than: Slot| (self.parts_of(slot) as u64 + 1) * speed(self.shares.class(than));
            time(*one, *other).cmp(&time(*other, *one))
        };
        let below: Vec<Slot> = able.iter().copied().filter(|slot| self.parts_of(*slot) < self.most).collect();
        let among = if below.is_empty() { able } else { &below };
        // `min_by` gives the first one among equals.
        let next = among.iter().min_by(|one, other| sooner(one, other)).copied()?;
        *self.parts.entry(next).or_insert(0) += 1;
        Some(next)
    }
}

/// How many parts aggregators of these classes have of one shard with blocks enough: what a plan goes by.
pub fn parts_each(classes: &[ShareClass]) -> Vec<usize> {
    let slots: Vec<Slot> = (0..).take(classes.len()).map(Slot).collect();
    let shares = Shares::of(&slots, classes);
    let parts = shares.divisor();
    let mut filling = shares.filling(parts);
    for _ in 0..parts {
        filling.give(&slots);
    }
    slots.iter().map(|slot| filling.parts_of(*slot)).collect()
}

/// ASSIGN-12: the aggregators without one of these parts whose class is below that of one that has a part. Their lines are
/// best left to what they themselves compute.
pub(super) fn passed_over(
    aggregators: &[Slot],
    classes: &[ShareClass],
    has_part: impl Fn(Slot) -> bool,
) -> Vec<Slot> {
    let shares = Shares::of(aggregators, classes);
    let chosen = aggregators.iter().filter(|slot| has_part(**slot));
    let Some(best) = chosen.map(|slot| shares.class(*slot)).max() else { return Vec::new() };
    let passed = |slot: &Slot| !has_part(*slot) && shares.class(*slot) < best;
    aggregators.iter().copied().filter(passed).collect()
}

/// A member's class, and how long it took to show what it reduced, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedShare {
    /// Its class.
    pub class: ShareClass,
    /// Until everything was there.
    pub time: u64,
}

/// ROUND-40: the classes of aggregators after a round in which they took so long. Whoever takes much longer than most has too
/// much to show, and whoever takes much less could show more.
pub fn timed_classes(shares: &[TimedShare]) -> Vec<ShareClass> {
    // Shorter times are those of the way there and back, not of the bytes.
    let least = |share: &TimedShare| share.time.max(limits::SHARE_TIME);
    let mut times: Vec<u64> = shares.iter().map(least).collect();
    times.sort_unstable();
    // Of the middle: no single member can make all others look slow, or fast.
    let middle = times.get(times.len().saturating_sub(1) / 2).copied();
    // Of fewer there is no middle that one of them could not be.
    let usual = middle.filter(|_| times.len() >= LEAST);
    let after =
        |share: &TimedShare| usual.map_or(share.class, |usual| moved(share.class, least(share), usual));
    shares.iter().map(after).collect()
}

/// The class of a member that took so long where the usual time is another. Within a factor of √2 nothing changes, so that
/// chance does not.
fn moved(class: ShareClass, time: u64, usual: u64) -> ShareClass {
    let (squared, usual_squared) = (u128::from(time).pow(2), u128::from(usual).pow(2));
    // Halved before squared: twice the longest time has no square in these bits.
    ShareClass(if squared / 4 >= usual_squared {
        class.0.saturating_sub(limits::SHARE_FALL)
    } else if squared / 2 >= usual_squared {
        class.0.saturating_sub(1)
    } else if squared <= usual_squared / 2 {
        class.next().0.min(limits::SHARE_CLASS)
    } else {
        class.0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_40_a_class_changes_from_a_factor_of_the_root_of_two_on() {
        let after = |class, time| moved(ShareClass(class), time, 10_000).0;
        assert_eq!([14_142, 14_143, 19_999, 20_000, 900_000].map(|time| after(8, time)), [8, 7, 7, 6, 6]);
        assert_eq!([10_000, 7_072, 7_071, 1].map(|time| after(8, time)), [8, 8, 9, 9]);
        assert_eq!([after(1, 90_000), after(0, 90_000), after(16, 1)], [0, 0, 16]);
        assert_eq!(moved(ShareClass(8), u64::MAX, u64::MAX / 2).0, 6, "no overflow");
    }

    #[test]
    fn round_40_no_single_member_moves_the_others() {
        let after = |times: &[u64]| -> Vec<u8> {
            let shares = times.iter().map(|time| TimedShare { class: ShareClass(8), time: *time });
            timed_classes(&shares.collect::<Vec<_>>()).into_iter().map(|class| class.0).collect()
        };
        assert_eq!(after(&[9_000, 9_100, 1, 9_300]), [8, 8, 9, 8], "a fast one");
        assert_eq!(after(&[9_000, 90_000, 9_000]), [8, 6, 8], "a slow one");
        assert_eq!(after(&[1, 999, 1_000, 1_400]), [8; 4], "shorter than the bytes of any line take");
        assert_eq!(after(&[9_000, 90_000]), [8; 2], "two have halves in any case");
        assert_eq!(after(&[]), []);
    }

    /// The classes after so many rounds in which the values of lines of these rates take as long as their parts are many.
    fn settled(rates: &[u64], rounds: usize) -> Vec<u8> {
        let mut classes = vec![ShareClass(limits::SHARE_FIRST); rates.len()];
        for _ in 0..rounds {
            let parts = parts_each(&classes);
            let divisor = parts.iter().sum::<usize>() as u64;
            let showing: Vec<usize> = (0..rates.len()).filter(|member| parts[*member] > 0).collect();
            let time = |member: &usize| 1_000_000 * parts[*member] as u64 / divisor / rates[*member];
            let timed =
                showing.iter().map(|member| TimedShare { class: classes[*member], time: time(member) });
            let after = timed_classes(&timed.collect::<Vec<_>>());
            showing.iter().zip(after).for_each(|(member, class)| classes[*member] = class);
        }
        classes.into_iter().map(|class| class.0).collect()
    }

    #[test]
    fn round_40_one_slow_line_moves_nobody_else() {
        for count in [4, 5, 8, 16, 63, 64] {
            let mut rates = vec![10; count];
            rates[1] = 1;
            let classes = settled(&rates, 40);
            assert!(classes[1] < limits::SHARE_FIRST, "{classes:?}");
            let others = (0..count).filter(|member| *member != 1);
            assert!(others.into_iter().all(|member| classes[member] == limits::SHARE_FIRST), "{classes:?}");
        }
    }

    fn filled(classes: &[u8], parts: usize) -> Vec<usize> {
        let slots: Vec<Slot> = (0..classes.len() as u16).map(Slot).collect();
        let classes: Vec<ShareClass> = classes.iter().copied().map(ShareClass).collect();
        let mut filling = Shares::of(&slots, &classes).filling(parts);
        for _ in 0..parts {
            filling.give(&slots);
        }
        slots.iter().map(|slot| filling.parts_of(*slot)).collect()
    }

    #[test]
    fn assign_6_equal_classes_have_equal_parts() {
        assert_eq!(filled(&[8; 4], 4), [1; 4]);
        assert_eq!(filled(&[3; 4], 6), [2, 2, 1, 1]);
        assert_eq!(filled(&[8], 3), [3], "alone there is nobody else");
    }

    #[test]
    fn assign_6_the_slowest_is_done_as_early_as_whole_parts_allow() {
        // No other split of sixteen parts is over earlier, by trying all of them.
        for classes in [[8, 8, 8, 4], [9, 6, 5, 2], [16, 8, 8, 0], [7, 7, 6, 6], [10, 8, 8, 8]] {
            let time = |parts: &[usize]| {
                let of = |(parts, class): (&usize, &u8)| *parts as f64 / speed(ShareClass(*class)) as f64;
                parts.iter().zip(&classes).map(of).fold(0.0, f64::max)
            };
            let found = time(&filled(&classes, 16));
            let all = (0..=8).flat_map(|a| (0..=8).flat_map(move |b| (0..=8).map(move |c| [a, b, c])));
            let all = all.filter(|[a, b, c]| (8..=16).contains(&(a + b + c)));
            let best = all.map(|[a, b, c]| time(&[a, b, c, 16 - a - b - c])).fold(f64::MAX, f64::min);
            assert!(found <= best * (1.0 + 1e-9), "{classes:?}: {found} {best}");
        }
    }

    #[test]
    fn assign_12_a_slow_line_has_no_part_and_nobody_has_more_than_half() {
        assert_eq!(filled(&[8, 8, 8, 2], 16), [6, 5, 5, 0]);
        assert_eq!(filled(&[16, 0, 0, 0], 16)[0], 8, "half");
        assert_eq!(filled(&[16, 4, 4], 12), [6, 3, 3]);
        let mut classes = [0; 16];
        classes[3] = 16;
        assert_eq!(filled(&classes, 64)[3], 16, "a quarter of sixteen");
    }

    #[test]
    fn assign_12_there_are_more_parts_only_where_classes_differ() {
        let slots: Vec<Slot> = (0..100).map(Slot).collect();
        let divisor = |classes: &[u8]| {
            let classes: Vec<ShareClass> = classes.iter().copied().map(ShareClass).collect();
            Shares::of(&slots[..classes.len()], &classes).divisor()
        };
        assert_eq!([divisor(&[]), divisor(&[5]), divisor(&[5, 9]), divisor(&[5; 3])], [0, 1, 2, 3]);
        assert_eq!(divisor(&[5, 5, 6]), 12);
        let mut many = [8; 100];
        many[7] = 9;
        assert_eq!([64, 65, 100].map(|count| divisor(&many[..count])), [256, 65, 100]);
    }

    #[test]
    fn assign_12_only_whoever_is_slower_than_one_with_a_part_is_passed_over() {
        let slots: Vec<Slot> = (0..4).map(Slot).collect();
        let passed = |classes: [u8; 4]| {
            let classes = classes.map(ShareClass);
            passed_over(&slots, &classes, |slot| slot.0 < 2)
        };
        assert_eq!(passed([8; 4]), [], "there were too few blocks");
        assert_eq!(passed([8, 3, 9, 3]), [Slot(3)]);
    }
}
