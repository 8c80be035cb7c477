//! What to replay, how much of it, and what the records say beforehand about what will be needed.

use std::collections::BTreeSet;

use borsh::{BorshDeserialize, BorshSerialize};
use muster_compute::Path;
use muster_core::error::Misuse;
use muster_core::hash::{Domain, Hasher, below};
use muster_core::ids::{Height, MemberId, Round, RunId, Slot};
use muster_core::messages::audit::FindingKind;
use muster_core::messages::record::{Body, Record};

use crate::archive::Archive;

/// How to replay.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Threads, at least one.
    pub threads: usize,
    /// Kernel path, instead of the fastest.
    pub path: Option<Path>,
    /// Which contributions are recomputed; all without.
    pub sample: Option<Sample>,
}

/// A share of the contributions, drawn by a seed that nobody knew when they were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Sample {
    /// Probability of each contribution, in parts per million.
    pub ppm: u32,
    /// The seed.
    pub seed: [u8; 32],
}

impl Sample {
    /// Whether a contribution is recomputed.
    pub fn takes(&self, round: Round, slot: Slot) -> bool {
        let drawn = Hasher::new(Domain::FILE).part(b"sample").part(&self.seed).value(&round).value(&slot);
        below(drawn.number(), 1_000_000) < u64::from(self.ppm)
    }

    /// A fresh sample; `share` lies in 0 to 1.
    ///
    /// # Errors
    /// [`Misuse`] for another share.
    pub fn of(share: f64, seed: [u8; 32]) -> Result<Self, Misuse> {
        if !(0.0..=1.0).contains(&share) {
            return Err(Misuse("a share lies between 0 and 1".into()));
        }
        Ok(Self { ppm: (share * 1e6).round() as u32, seed })
    }
}
/// What is known of the run before it is re-executed.
pub(super) struct Outlook {
    pub(super) convicts: BTreeSet<MemberId>,
    /// Rounds whose states are needed again, and up to which record.
    needs: Vec<(Round, Height)>,
    /// Leaves to recompute, a little too many where contributions did not count.
    pub(super) leaves: u64,
}

impl Outlook {
    pub(super) fn of(archive: &Archive, sample: Option<&Sample>) -> Self {
        let run = archive.manifest.run();
        let mut outlook = Self { convicts: BTreeSet::new(), needs: Vec::new(), leaves: 0 };
        for record in archive.records.iter().filter_map(|signed| signed.verify(run).ok()) {
            match &record.body {
                Body::Ban(ban) => {
                    outlook.convicts.insert(ban.culprit);
                    // A ban is judged on the state of the offence, which may be many rounds back.
                    outlook.needs.push((ban.round, record.height));
                    // CALL-5: an answer is judged on the state that this round led to.
                    if ban.finding == FindingKind::FalseAnswer {
                        outlook.needs.push((ban.round.next(), record.height));
                    }
                }
                Body::Rewind(rewind) => outlook.needs.push((rewind.to, record.height)),
                _ => outlook.leaves += leaves(&record, sample, run),
            }
        }
        outlook
    }

    /// Whether a record at this height or later needs what a round began with.
    pub(super) fn needs(&self, round: Round, height: Height) -> bool {
        self.needs.iter().any(|(of, until)| *of == round && *until >= height)
    }
}

/// Leaves that a record says are to be recomputed.
pub(super) fn leaves(record: &Record, sample: Option<&Sample>, run: RunId) -> u64 {
    let Body::Freeze(freeze) = &record.body else { return 0 };
    let commits = freeze.commits.iter().filter_map(|signed| signed.verify(run).ok());
    let drawn = commits.filter(|commit| sample.is_none_or(|sample| sample.takes(commit.round, commit.slot)));
    drawn.map(|commit| u64::from(commit.leaves)).sum()
}
