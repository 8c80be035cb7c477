//! A router's table has one file, and any table gives any text a row: the best one that is open.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_core::ids::Row;
use muster_core::limits;
use muster_core::router::{Table, file_bytes};

#[derive(arbitrary::Arbitrary, Debug)]
struct Case<'a> {
    rows: u16,
    /// The file begins with these bytes and repeats them, or is them.
    repeated: bool,
    open: u64,
    before: Vec<u32>,
    bytes: &'a [u8],
}

fuzz_target!(|case: Case<'_>| {
    let sized = (2..=limits::ROWS).contains(&case.rows);
    let length = if sized && case.repeated && !case.bytes.is_empty() {
        file_bytes(case.rows) as usize
    } else {
        case.bytes.len()
    };
    let file: Vec<u8> = case.bytes.iter().copied().cycle().take(length).collect();
    let Ok(table) = Table::decode(&file, case.rows) else {
        assert!(!sized || file.len() as u64 != file_bytes(case.rows), "a file of the right size is refused");
        return;
    };
    assert_eq!((table.rows(), table.encode()), (case.rows, file));
    let scores = table.scores(&case.before);
    let ranked = table.ranked(&case.before);
    let open = |row: Row| case.open >> row.0 & 1 == 1;
    assert_eq!(table.row(&case.before, open), ranked.iter().copied().find(|row| open(*row)));
    let falls = ranked.windows(2).all(|pair| {
        let [one, two] = [pair[0], pair[1]].map(|row| scores[row.index()]);
        one > two || one == two && pair[0] < pair[1]
    });
    assert!(falls, "{ranked:?} {scores:?}");
    let mut once = ranked;
    once.sort_unstable();
    assert!(once.into_iter().eq((0..case.rows).map(Row)), "each row once");
});
