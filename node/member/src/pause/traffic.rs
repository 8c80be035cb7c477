//! The bytes of a day, also over restarts.

use std::io::ErrorKind;
use std::path::Path;

use chrono::NaiveDate;
use muster_store::error::StoreError;
use muster_store::home::Home;

use crate::JoinError;

/// Name of the file that keeps them.
const FILE: &str = "traffic";
/// Bytes after which they are written down again: what a crash may leave uncounted.
const KEPT: u64 = 8 << 20;

/// Counts the bytes of a day.
pub(super) struct Meter {
    day: NaiveDate,
    bytes: u64,
    /// Those that the membership under way had carried when it was last asked.
    seen: u64,
    /// How many of the day's are written down.
    written: u64,
}

impl Meter {
    /// With what was counted before on this day.
    ///
    /// # Errors
    /// [`JoinError`] for a file that cannot be read, or is not this program's.
    pub(super) fn open(folder: &Path, today: NaiveDate) -> Result<Self, JoinError> {
        let path = folder.join(FILE);
        let wrong = |why: String| {
            JoinError::Environment(format!("{}: {why}; delete it to count anew", path.display()))
        };
        let before = match std::fs::read_to_string(&path) {
            Ok(text) => Some(read(&text).ok_or_else(|| wrong("is no count of a day's traffic".into()))?),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(wrong(format!("cannot be read ({error})"))),
        };
        let bytes = before.filter(|(day, _)| *day == today).map_or(0, |(_, bytes)| bytes);
        Ok(Self { day: today, bytes, seen: 0, written: bytes })
    }

    /// Another membership counts from 0.
    pub(super) fn begin(&mut self) {
        self.seen = 0;
    }

    /// The membership under way has carried so many bytes.
    pub(super) fn count(&mut self, carried: u64, today: NaiveDate) {
        // A clock that is set back over midnight begins no day anew; one that was far ahead does.
        if today > self.day || today.succ_opt() < Some(self.day) {
            (self.day, self.bytes, self.written) = (today, 0, 0);
        }
        self.bytes = self.bytes.saturating_add(carried.saturating_sub(self.seen));
        self.seen = carried;
    }

    /// Writes down what was counted, unless that was done lately; `now` in any case.
    pub(super) fn keep(&mut self, home: &Home, now: bool) -> Result<(), StoreError> {
        let fresh = self.bytes.saturating_sub(self.written);
        if fresh >= KEPT || (now && fresh > 0) {
            home.write_file(FILE, format!("{} {}\n", self.day, self.bytes).as_bytes())?;
            self.written = self.bytes;
        }
        Ok(())
    }

    /// The day's bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn read(text: &str) -> Option<(NaiveDate, u64)> {
    let (day, bytes) = text.trim_end().split_once(' ')?;
    Some((day.parse().ok()?, bytes.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_kept_for_the_day_and_no_longer() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&folder.path().join("home")).unwrap();
        let day = |day: u32| NaiveDate::from_ymd_opt(2026, 11, day).unwrap();
        let open = |today| Meter::open(home.path(), today).map(|meter| meter.bytes());
        let mut meter = Meter::open(home.path(), day(1)).unwrap();
        meter.count(KEPT - 1, day(1));
        meter.keep(&home, false).unwrap();
        assert_eq!(open(day(1)).unwrap(), 0, "not for every byte");
        meter.count(KEPT, day(1));
        meter.keep(&home, false).unwrap();
        assert_eq!((open(day(1)).unwrap(), open(day(2)).unwrap()), (KEPT, 0));
        meter.begin();
        meter.count(7, day(1));
        meter.keep(&home, true).unwrap();
        assert_eq!(open(day(1)).unwrap(), KEPT + 7);
        // Bytes since the last look belong to the new day, which a clock that is set back does not end.
        meter.count(10, day(2));
        assert_eq!(meter.bytes(), 3);
        meter.count(11, day(1));
        meter.count(12, day(2));
        assert_eq!(meter.bytes(), 5);
        // One that was days ahead does.
        meter.count(100, day(9));
        meter.count(101, day(3));
        meter.count(104, day(3));
        assert_eq!(meter.bytes(), 4);
        home.write_file(FILE, b"much").unwrap();
        assert!(open(day(1)).is_err_and(|error| error.to_string().contains("delete it")));
    }
}
