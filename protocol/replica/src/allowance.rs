//! What a process may take of a machine: what is free of its disk, and what its owner allows.

use std::path::PathBuf;

use muster_core::error::Misuse;
use muster_net::rate::Rates;
use muster_store::journal::Journal;
use muster_store::room;

use crate::disk::Need;
use crate::memory::{gibibytes, shown};

/// The most that the owner of a machine allows, in bytes and bytes a second; `None` for as much as there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Of the disk.
    pub disk: Option<u64>,
    /// Of the memory.
    pub memory: Option<u64>,
    /// Of the line.
    pub rates: Rates,
}

/// A folder, and the most that its owner allows it to take.
#[derive(Clone, Debug)]
pub struct Allowance {
    folder: PathBuf,
    most: Option<u64>,
}

impl Allowance {
    /// Of a folder, which may still have to be made; `most` is in bytes, `None` for as many as the disk takes.
    pub fn new(folder: impl Into<PathBuf>, most: Option<u64>) -> Self {
        Self { folder: folder.into(), most }
    }

    /// LIMIT-3: before it fetches the text, compares what the run takes with what is allowed, and with what is free.
    ///
    /// # Errors
    /// [`Misuse`] naming both sizes, what most of it is, and what to do.
    pub fn check_run(&self, need: &Need) -> Result<(), Misuse> {
        if let Some(most) = self.most.filter(|most| need.bytes() > *most) {
            return Err(Misuse(format!(
                "this run takes about {} GiB of disk ({}), --max-disk allows {}; allow more, or join another run",
                gibibytes(need.bytes()),
                need.because(),
                gibibytes(most)
            )));
        }
        match self.lacking(need) {
            Some((more, free)) => Err(Misuse(format!(
                "{}: this run takes about {} more of disk ({}), {} are free there; make room, or name a directory on another disk \
                 with --data-dir. Nothing was fetched, and nothing is damaged",
                self.folder.display(),
                shown(more),
                need.because(),
                shown(free)
            ))),
            None => Ok(()),
        }
    }

    /// Bytes of the training text that may be kept: three quarters of what all else that a run takes leaves, since that is an
    /// estimate.
    pub fn room(&self, need: &Need) -> u64 {
        let free =
            room::free(&self.folder).map_or(u64::MAX, |free| free.saturating_add(room::used(&self.folder)));
        self.most.unwrap_or(u64::MAX).min(free).saturating_sub(need.bytes()) / 4 * 3
    }

    /// How much more a run takes than the folder has, and how much is free, where that is less. A disk that does not tell lacks
    /// nothing.
    pub fn lacking(&self, need: &Need) -> Option<(u64, u64)> {
        let free = room::free(&self.folder).ok()?;
        let more = need.bytes().saturating_sub(room::used(&self.folder));
        (more > free).then_some((more, free))
    }

    /// Whether there is a bound below the disk's own.
    pub fn most(&self) -> Option<u64> {
        self.most
    }

    /// LIMIT-3: compares what the folder takes, and `growth` bytes that come next, with what is allowed. Gives the bytes that
    /// are left then.
    ///
    /// # Errors
    /// [`Misuse`] naming folder and sizes, and what to do.
    pub fn check(&self, growth: u64) -> Result<u64, Misuse> {
        let Some(most) = self.most else { return Ok(u64::MAX) };
        let used = room::used(&self.folder);
        most.checked_sub(used.saturating_add(growth)).ok_or_else(|| {
            Misuse(format!(
                "{}: holds {} GiB, and what comes next may take more than the {} of --max-disk; allow more, and the same command \
                 goes on",
                self.folder.display(),
                gibibytes(used),
                gibibytes(most)
            ))
        })
    }

    /// The same, where the journal may grow, too: by half of itself at a time.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_round(&self, growth: u64) -> Result<u64, Misuse> {
        let journal = room::taken(&self.folder.join(Journal::FILE));
        self.check(growth.saturating_add(journal / 2))
    }
}

/// Reads a size in GiB, like 10 or 0.5, in bytes.
///
/// # Errors
/// What is expected.
pub fn parse_gibibytes(text: &str) -> Result<u64, String> {
    let size = text.parse().ok().filter(|size: &f64| size.is_finite() && *size > 0.0);
    // A size beyond all disks stands for the largest.
    size.map(|size| (size * f64::from(1 << 30)) as u64).ok_or_else(|| "expected a number above 0".into())
}

/// Reads rates in Mbit/s, like 10 or 4/40: sent, and received.
///
/// # Errors
/// What is expected.
pub fn parse_rates(text: &str) -> Result<Rates, String> {
    let (up, down) = text.split_once('/').unwrap_or((text, text));
    match (rate(up), rate(down)) {
        (Some(up), Some(down)) => Ok(Rates { up: Some(up), down: Some(down) }),
        _ => Err("expected UP[/DOWN] in Mbit/s, like 10 or 4/40, at least 1 each".into()),
    }
}

/// Reads one rate in Mbit/s, into bytes a second.
///
/// # Errors
/// What a rate looks like, for people.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    rate(text).ok_or_else(|| "expected Mbit/s, like 100, at least 1".into())
}

fn rate(text: &str) -> Option<u64> {
    let rate = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate <= 1e6)?;
    Some((rate * 125_000.0) as u64).filter(|rate| *rate >= Rates::LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_people_say_them() {
        let read = |text| parse_rates(text).map(|rates| (rates.up, rates.down));
        assert_eq!(read("10"), Ok((Some(1_250_000), Some(1_250_000))));
        assert_eq!(read("1.5/40"), Ok((Some(187_500), Some(5_000_000))));
        assert_eq!(parse_rate("256"), Ok(32_000_000));
        for wrong in ["", "0", "0.9", "4/", "4/0", "-1", "nan", "inf", "1/2/3", "10M"] {
            assert!(read(wrong).is_err() && parse_rate(wrong).is_err(), "{wrong}");
        }
    }
}
