//! How often attackers are dealt enough places of a row, beside the hypergeometric tail, and what choosing a row costs.

use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Digest, MemberId, Row};
use muster_core::ledger::{deal_rows, draw_rows};

use super::markdown;
use crate::parallel::in_parallel;

/// Members, and the rows that they are dealt.
const SIZES: [(u16, u16); 4] = [(16, 5), (64, 7), (256, 16), (1000, 64)];
/// Attackers among them, in percent.
const SHARES: [u16; 2] = [10, 20];
/// Heads that rows are dealt by.
const HEADS: u32 = 4000;
/// How far a frequency may be from the formula, in standard errors of the mean.
const MOST_ERRORS: f64 = 4.0;

/// What was dealt to the attackers in all trials.
#[derive(Clone, Copy, Default)]
struct Dealt {
    /// Rows in which they have half of the places or more.
    rows: u32,
    /// Trials with such a row.
    trials: u32,
}

/// The table, and whether every frequency is what the formula gives.
pub fn report() -> (String, bool) {
    let jobs: Vec<(u16, u16, u16)> =
        SIZES.into_iter().flat_map(|(members, rows)| SHARES.map(|share| (members, rows, share))).collect();
    let done =
        in_parallel(&jobs, |(members, rows, share)| dealt(*members, *rows, attackers(*members, *share)));
    let mut good = true;
    let cells = jobs.iter().zip(done).map(|((members, rows, share), dealt)| {
        let attackers = attackers(*members, *share);
        let formula: f64 =
            (0..*rows).map(|row| tail(*members, attackers, places(*members, *rows, row))).sum::<f64>();
        let mean = f64::from(dealt.rows) / f64::from(HEADS);
        // Of a rare event; rows of one trial exclude each other rather than come together.
        let error = (formula.max(1.0 / f64::from(HEADS)) / f64::from(HEADS)).sqrt();
        good &= (mean - formula).abs() <= MOST_ERRORS * error;
        vec![
            members.to_string(),
            format!("{rows} of {}", members / rows),
            format!("{share} %"),
            percent(mean / f64::from(*rows)),
            percent(formula / f64::from(*rows)),
            percent(f64::from(dealt.trials) / f64::from(HEADS)),
        ]
    });
    let head =
        ["members", "rows", "attackers", "a given row, dealt", "a given row, by formula", "any row, dealt"];
    (markdown(&head, cells), good)
}

/// The table alone.
pub fn table() -> String {
    report().0
}

/// What keys cost that come again until their row suits, which nothing but a new key can do (ROW-2).
pub fn shop() -> String {
    let rows = SIZES.map(|(members, rows)| {
        let heads: Vec<u32> = (0..200).collect();
        let keys = in_parallel(&heads, |head| keys_until(*head, members, rows, 2));
        let mean = keys.iter().sum::<usize>() as f64 / keys.len() as f64;
        let most = keys.iter().max().copied().unwrap_or_default();
        vec![members.to_string(), rows.to_string(), format!("{mean:.1}"), most.to_string()]
    });
    markdown(&["members", "rows", "keys until two hold the row that is wanted", "at most"], rows)
}

fn attackers(members: u16, share: u16) -> u16 {
    // To the nearest: 10 % of 16 are two.
    (members * share + 50) / 100
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

fn member(number: u32) -> MemberId {
    MemberId(Hasher::new(Domain::PLACE).value(&number).finish().0)
}

fn head(number: u32) -> Digest {
    Hasher::new(Domain::LEDGER).value(&number).finish()
}

/// Places of a row: members take rows in turn.
fn places(members: u16, rows: u16, row: u16) -> u16 {
    members / rows + u16::from(row < members % rows)
}

fn dealt(members: u16, rows: u16, attackers: u16) -> Dealt {
    let ids: Vec<MemberId> = (0..u32::from(members)).map(member).collect();
    let mut dealt = Dealt::default();
    for number in 0..HEADS {
        let of_rows = deal_rows(&head(number), ids.iter().copied(), rows);
        let mut taken = vec![0u16; rows.into()];
        let theirs = ids.iter().take(attackers.into()).filter_map(|id| of_rows.get(id));
        theirs.for_each(|row| taken[row.index()] += 1);
        let captured =
            (0..rows).filter(|row| 2 * taken[usize::from(*row)] >= places(members, rows, *row)).count();
        dealt.rows += captured as u32;
        dealt.trials += u32::from(captured > 0);
    }
    dealt
}

/// Probability that of so many places, drawn without replacement, half or more go to attackers.
fn tail(members: u16, attackers: u16, places: u16) -> f64 {
    let ways =
        |all: u16, of: u16| -> f64 { (0..of).map(|i| f64::from(all - i).ln() - f64::from(i + 1).ln()).sum() };
    let all = ways(members, places);
    let (least, most) = (places.div_ceil(2), places.min(attackers));
    let fits = |taken: &u16| places - taken <= members - attackers;
    (least..=most)
        .filter(fits)
        .map(|taken| (ways(attackers, taken) + ways(members - attackers, places - taken) - all).exp())
        .sum()
}

/// Keys that somebody needs until so many of them hold row 0 of a run whose rows were dealt.
fn keys_until(number: u32, members: u16, rows: u16, wanted: usize) -> usize {
    let ids: Vec<MemberId> = (0..u32::from(members)).map(member).collect();
    let dealt = deal_rows(&head(number), ids.iter().copied(), rows);
    let mut nodes: Vec<(MemberId, Option<Row>)> =
        ids.iter().map(|id| (*id, dealt.get(id).copied())).collect();
    let (mut keys, mut held) = (0u32, 0);
    while held < wanted {
        let id = member(u32::from(members) + keys);
        nodes.push((id, None));
        keys += 1;
        // The head after an Outcome that follows its admission: another one for each.
        let drawn = draw_rows(&head(1_000_000 + number * 10_000 + keys), &nodes, rows);
        let row = drawn.iter().find(|(node, _)| *node == id).map(|(_, row)| *row);
        held += usize::from(row == Some(Row(0)));
        nodes.last_mut().into_iter().for_each(|(_, holds)| *holds = row);
    }
    keys as usize
}

#[cfg(test)]
mod tests {
    use super::{places, tail};

    #[test]
    fn tails_are_those_of_the_hypergeometric_distribution() {
        // Two of sixteen: both, or one of them, among three; counted by hand.
        let both = 14.0 / 560.0;
        assert!((tail(16, 2, 3) - both).abs() < 1e-12);
        // Four of sixteen, two places at least of four: 1 - (495 + 4 * 220) / 1820.
        assert!((tail(16, 4, 4) - (1.0 - 1375.0 / 1820.0)).abs() < 1e-12);
        let all: u16 = (0..5).map(|row| places(16, 5, row)).sum();
        assert_eq!(all, 16);
    }
}
