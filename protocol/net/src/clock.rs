//! The clock of the day: what it says, whether it can be right, and how far it is from another machine's.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use time::UtcDateTime;

/// How long the certificate of a channel key is valid: generous towards clocks that are wrong.
pub(crate) const CERTIFICATE_SECONDS: u64 = 24 * 3600;
/// Seconds since 1970 before which this state of the program did not exist. A release has the time of its commit here, so
/// that two builds of it are equal; any other build has the month in which this line was written.
pub const EARLIEST: u64 = match option_env!("SOURCE_DATE_EPOCH") {
    Some(text) => number(text),
    None => 1_793_491_200,
};
/// Years after that in which nobody uses this state any more: a clock beyond is set wrong.
const LATEST_YEARS: u64 = 25;
const DAY: u64 = 86_400;
/// What to do about a clock.
pub const REMEDY: &str = "set the clock, best from the network (timedatectl set-ntp true)";

/// Seconds since 1970, by the clock of this machine.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Why a clock that says this cannot be right, in words.
pub fn implausible(now: u64) -> Option<String> {
    if now < EARLIEST {
        return Some(format!("{}, before this program was made ({})", utc(now), utc(EARLIEST)));
    }
    let late = now - EARLIEST > LATEST_YEARS * 365 * DAY;
    late.then(|| format!("{}, {LATEST_YEARS} years after this program was made", utc(now)))
}

/// Seconds since 1970 as people read them.
pub fn utc(seconds: u64) -> String {
    let date = i64::try_from(seconds).ok().and_then(|seconds| UtcDateTime::from_unix_timestamp(seconds).ok());
    let Some(date) = date else { return "beyond the calendar".into() };
    let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", date.hour(), date.minute())
}

/// Two clocks that are too far apart for a channel (CHAN-3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skew {
    /// What it is at the other end, to some minutes, as its certificate shows.
    pub there: u64,
    /// What it is here.
    pub here: u64,
}

impl Skew {
    /// Of a machine whose certificate has expired here.
    pub(crate) fn behind(expiry: u64, here: u64) -> Option<Self> {
        (expiry <= here).then(|| Self::of(expiry, here))
    }

    /// Of a machine by whose clock every certificate that is made here has expired.
    pub(crate) fn ahead(expiry: u64, here: u64) -> Option<Self> {
        let skew = Self::of(expiry, here);
        (here.saturating_add(CERTIFICATE_SECONDS) <= skew.there).then_some(skew)
    }

    /// By a certificate that was made there some minutes ago at most (CHAN-15).
    fn of(expiry: u64, here: u64) -> Self {
        Self { there: expiry.saturating_sub(CERTIFICATE_SECONDS), here }
    }
}

impl fmt::Display for Skew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { there, here } = *self;
        let days = there.abs_diff(here).div_ceil(DAY).max(2) - 1;
        write!(
            f,
            "it answered, but by its clock it is {}, and by the clock of this machine {}: one of them is wrong by {days} days or \
             more. If it is this one, {REMEDY}; else the other machine's must be set",
            utc(there),
            utc(here)
        )
    }
}

/// A decimal number, while this is compiled.
const fn number(text: &str) -> u64 {
    let (bytes, mut value, mut at) = (text.as_bytes(), 0, 0);
    while at < bytes.len() {
        assert!(bytes[at].is_ascii_digit(), "SOURCE_DATE_EPOCH must be a number of seconds");
        value = value * 10 + (bytes[at] - b'0') as u64;
        at += 1;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_the_calendar_has_them() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_793_491_200, "2026-11-01 00:00 UTC"),
            (4_107_542_399, "2100-02-28 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), text);
        }
        assert_eq!(number("1793491200"), 1_793_491_200);
    }

    #[test]
    fn a_clock_before_the_program_or_long_after_it_cannot_be_right() {
        assert_eq!(implausible(EARLIEST), None);
        for (now, why) in [
            (0, "before this program was made"),
            (EARLIEST - 1, "before this program was made"),
            (EARLIEST + 26 * 366 * DAY, "25 years after"),
        ] {
            assert!(implausible(now).is_some_and(|said| said.contains(why)), "{now}");
        }
    }

    #[test]
    fn two_clocks_are_told_apart_by_days() {
        let said = Skew { there: 1_793_491_200, here: 1_793_491_200 + 30 * DAY }.to_string();
        for words in ["2026-11-01 00:00 UTC", "2026-12-01 00:00 UTC", "by 29 days or more", "timedatectl"] {
            assert!(said.contains(words), "{said}");
        }
    }
}
