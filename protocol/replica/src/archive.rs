//! A finished run on disk, and its replay to the last bit.
//!
//! An archive is a folder: `manifest.bin` (canonical manifest), `ledger.bin` (signed records, each behind its length
//! as a little-endian `u32`), `data/` (the committed files), `exhibits/` and `evidence/`; `updates/` (aggregates by
//! round) where the steward was told to keep them. The steward's folder is one.

mod exhibits;
mod replay;
pub(crate) mod states;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_core::codec::decode;
use muster_core::error::Misuse;
use muster_core::ids::{Digest, MemberId, Round};
use muster_core::ledger::RoundView;
use muster_core::limits;
use muster_core::manifest::Manifest;
use muster_core::messages::record::Record;
use muster_core::sign::Signed;
use muster_store::dataset::Dataset;
use muster_store::error::StoreError;
use muster_store::{reading, regular};

pub use self::replay::{KeptProgress, Plan, Progress, Replay, Resumed, Sample};
pub use self::states::{advance, find_state};
use crate::replica::Replica;

/// A run read from disk; nothing in it is believed yet.
pub struct Archive {
    /// Its folder.
    pub folder: PathBuf,
    /// The manifest.
    pub manifest: Arc<Manifest>,
    /// The records.
    pub records: Vec<Signed<Record>>,
    /// The text and the other committed files, checked against the manifest.
    pub dataset: Arc<Dataset>,
}

/// Why a replay ended early.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The archive cannot be read here.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The archive is not what an honest run leaves: where, and what differs.
    #[error("{0}")]
    Wrong(String),
    /// This machine cannot compute in defined bits.
    #[error(transparent)]
    Arithmetic(#[from] Misuse),
}

/// What a replay found out, beyond that everything agrees.
#[derive(Clone, Debug, Default)]
pub struct Replayed {
    /// Mean loss of each round over its counted leaves, in nats per token.
    pub losses: Vec<f64>,
    /// The last state root.
    pub root: Digest,
    /// Contributions that counted and were not what the state and the text give, with the share that the robust
    /// rule left them.
    pub bad: Vec<BadContribution>,
    /// Leaves counted, by member.
    pub leaves: BTreeMap<MemberId, u64>,
    /// Loss on the held-out text at the end, in nats per token.
    pub held_out_loss: Option<f64>,
}

/// A convict's contribution that counted.
#[derive(Clone, Debug)]
pub struct BadContribution {
    /// The round.
    pub round: Round,
    /// The author.
    pub member: MemberId,
    /// The mean factor that the rule left it; 1 is untouched. Unknown where the round's rule was not re-executed.
    pub factor: Option<f64>,
}

impl Archive {
    /// Reads an archive.
    ///
    /// # Errors
    /// [`ReplayError::Store`] for files that cannot be read or are no archive, [`ReplayError::Wrong`] for bytes that
    /// are not canonical.
    pub fn open(folder: &Path) -> Result<Self, ReplayError> {
        let manifest: Manifest = decode(&reading::manifest(folder)?)
            .map_err(|reject| ReplayError::Wrong(format!("manifest.bin: {reject}")))?;
        manifest.check().map_err(|misuse| ReplayError::Wrong(format!("manifest.bin: {misuse}")))?;
        let dataset = Dataset::open(&folder.join("data"), &manifest.data)?;
        let records = read_ledger(folder)?;
        Ok(Self {
            folder: folder.to_owned(),
            manifest: Arc::new(manifest),
            records,
            dataset: Arc::new(dataset),
        })
    }

    /// Re-executes the whole run from a replica at its beginning, on as many threads as that has. `progress` is told the
    /// rounds done.
    ///
    /// # Errors
    /// [`ReplayError`] at the first thing that differs.
    pub fn replay(
        &self,
        mut replica: Replica,
        progress: &mut dyn FnMut(Round),
    ) -> Result<Replayed, ReplayError> {
        let (threads, path) = (replica.arithmetic().threads(), replica.arithmetic().path());
        drop(replica);
        let mut replay = Replay::begin(self, &Plan { threads, path: Some(path), sample: None })?;
        while let Some(round) = replay.round(&|| ())? {
            progress(round);
        }
        Ok(replay.finish())
    }
}

/// The records of an archive in order; nothing of them is checked but the encoding. Each is decoded before the next one is
/// read: a file that somebody made to be long takes no memory.
///
/// # Errors
/// As [`Archive::open`].
pub fn read_ledger(folder: &Path) -> Result<Vec<Signed<Record>>, ReplayError> {
    let path = folder.join("ledger.bin");
    let failed = |error: io::Error| ReplayError::Store(StoreError::io(&path, &error));
    let mut file = BufReader::new(regular::open(&path, u64::MAX)?);
    let (mut at, mut record, mut records) = (0u64, Vec::new(), Vec::new());
    while !file.fill_buf().map_err(failed)?.is_empty() {
        let broken = |why: &str| ReplayError::Wrong(format!("{} at byte {at}: {why}", path.display()));
        let mut length = [0; 4];
        match file.read_exact(&mut length) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(broken("cut short")),
            read => read.map_err(failed)?,
        }
        let length = u32::from_le_bytes(length) as usize;
        if length > limits::MESSAGE_BYTES {
            return Err(broken("a record longer than any message"));
        }
        record.clear();
        (&mut file).take(length as u64).read_to_end(&mut record).map_err(failed)?;
        if record.len() < length {
            return Err(broken("cut short"));
        }
        records.push(decode(&record).map_err(|reject| broken(&reject.to_string()))?);
        at += 4 + length as u64;
    }
    Ok(records)
}

/// Maps an error at a position of the archive.
fn wrong<E: fmt::Display>(at: &str) -> impl Fn(E) -> ReplayError {
    let at = at.to_owned();
    move |error| ReplayError::Wrong(format!("{at}: {error}"))
}

/// Mean loss of a round over its frozen leaves, in nats per token.
pub fn mean_loss(view: &RoundView) -> f64 {
    let (loss, leaves) = view.commitments().fold((0.0, 0.0), |(loss, leaves), (_, c)| {
        (loss + c.commit.loss as f64, leaves + f64::from(c.commit.leaves))
    });
    loss / f64::max(leaves, 1.0) / muster_core::grid::LOSS_ONE as f64
}
