//! What an interrupted replay leaves, so that the next one goes on: states, and a file that says how far it came.
//!
//! The file is written after the states that it names and before others are dropped, each whole or not at all: a
//! process may be killed at any moment. The auditor's key seals the file: states in the folder are checked against the
//! roots of the ledger, but only that file says that somebody re-executed what led to them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use muster_core::codec::{decode, encode};
use muster_core::ids::{Round, ShardId};
use muster_core::layout::Layout;
use muster_core::state::Update;
use muster_replica::archive::{Archive, KeptProgress, Progress, Replay};
use muster_replica::exit::Failure;
use muster_replica::{HeldState, memory};
use muster_store::error::{Kind, StoreError};
use muster_store::home::Home;
use muster_store::rows::RowFiles;

use super::place::{Place, Seal};
use crate::output::say;

const FILE: &str = "progress";
/// Between two savings at least, unless they take so long that more than a twentieth of the time went into them.
const PAUSE: Duration = Duration::from_secs(2);
const SHARE: u32 = 20;

/// A folder of one replay.
pub struct ReplayFolder {
    home: Home,
    row_files: RowFiles,
    /// Whether all of a state goes there.
    whole: bool,
    folder: PathBuf,
    /// Made by this command, to be removed by it.
    own: bool,
    /// None where this user has no place for a key: nothing is gone on from, and nothing kept to go on from.
    seal: Option<Seal>,
    saved: Instant,
    pause: Duration,
    failed: bool,
}

impl KeptProgress for ReplayFolder {
    fn state(&self, round: Round) -> Option<HeldState> {
        let away = |shard: ShardId| self.whole || shard.row().is_some();
        let (state, rows, roots) = self.home.load_state_and_rows(round, &self.row_files, &away).ok()?;
        Some(HeldState { state, rows, roots })
    }

    fn aggregate(&self, layout: &Layout, round: Round) -> Option<Update> {
        self.home.load_update(layout, round).ok()
    }
}

impl ReplayFolder {
    /// Opens or makes the folder: in the auditor's own place, or where `work` says. `None` where none can be made and none
    /// was asked for.
    ///
    /// # Errors
    /// [`Failure`]: the folder that was asked for cannot be used, or another process uses it.
    pub fn open(
        archive: &Archive,
        place: Result<Place, String>,
        work: Option<&Path>,
    ) -> Result<Option<Self>, Failure> {
        let place = place.map_err(|why| say(&format!("this replay cannot be resumed: {why}"))).ok();
        let own = place.as_ref().map(|place| place.folder(archive.manifest.run(), &archive.folder));
        let Some(folder) = work.map(Path::to_owned).or(own) else { return Ok(None) };
        let own = work.is_none();
        let home = match Home::open(&folder) {
            Ok(home) => home,
            // On a full or read-only disk: the replay works without, but not beside another one in the same folder.
            Err(error) if own && error.kind() != Kind::Locked => {
                say(&format!("this replay cannot be resumed: {error}; or name a folder with --work"));
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let removed = place.as_ref().map(|place| place.prune(&folder, SystemTime::now())).unwrap_or_default();
        removed.iter().for_each(|old| {
            say(&format!("removed {}: its replay has not gone on for a month", old.display()))
        });
        let (row_files, seal, saved) = (home.row_files()?, place.map(Place::into_seal), Instant::now());
        let whole = memory::is_away(archive.manifest.model.parameters());
        Ok(Some(Self { home, row_files, whole, folder, own, seal, saved, pause: PAUSE, failed: false }))
    }

    /// Where the replay keeps rows that are not in memory.
    pub fn row_files(&self) -> &RowFiles {
        &self.row_files
    }

    /// Where it is.
    pub fn path(&self) -> std::path::Display<'_> {
        self.folder.display()
    }

    /// How far an earlier process of this auditor came. One that is damaged, or that anybody else left here, counts as
    /// none.
    pub fn progress(&self) -> Option<Progress> {
        let read = match self.home.read_sealed(FILE) {
            Err(error) if error.kind() == Kind::Missing => return None,
            read => read.map_err(|error| error.to_string()),
        };
        let progress = read.and_then(|sealed| {
            let own = self.seal.as_ref().and_then(|seal| seal.open(&sealed));
            let bytes = own.ok_or("no earlier replay of yours on this machine sealed it")?;
            decode(bytes).map_err(|reject| reject.to_string())
        });
        progress.map_err(|why| say(&format!("what {} holds is not used: {why}", self.path()))).ok()
    }

    /// Forgets what an earlier process kept.
    pub fn clear(&mut self) {
        let _ = fs::remove_file(self.folder.join(FILE));
        let _ = self.home.prune_states(&|_| false);
        let _ = self.home.prune_updates(&|_| false);
    }

    /// Keeps how far the replay came, if it is time. A disk that refuses is told of once; the replay goes on.
    pub fn save(&mut self, replay: &Replay<'_>) {
        if self.saved.elapsed() < self.pause {
            return;
        }
        let begun = Instant::now();
        if let Err(error) = self.write(replay)
            && !std::mem::replace(&mut self.failed, true)
        {
            say(&format!("this replay cannot be resumed from here: {error}"));
        }
        self.saved = Instant::now();
        // Large states on a slow disk would otherwise take more time than the replay.
        self.pause = PAUSE.max(begun.elapsed() * SHARE);
    }

    /// Keeps how far the replay came.
    ///
    /// # Errors
    /// What the disk reports.
    pub fn write(&self, replay: &Replay<'_>) -> Result<(), StoreError> {
        let Some(seal) = &self.seal else { return Ok(()) };
        let (progress, states) = replay.progress();
        let kept: BTreeSet<Round> = self.home.states()?.into_iter().collect();
        for (round, held) in states.filter(|(round, _)| !kept.contains(round)) {
            self.home.save_state_and_rows(round, &held.state, &held.rows, &held.roots)?;
        }
        for (round, update) in replay.waiting() {
            self.home.save_update(replay.ledger().layout(), round, update, &[])?;
        }
        // Between the states that it names and the removal of others: wherever it is killed, the file names what is
        // there.
        self.home.write_sealed(FILE, &seal.close(&encode(&progress)))?;
        self.home.prune_updates(&|round| replay.waiting().any(|(waiting, _)| waiting == round))?;
        self.home.prune_states(&|round| round == progress.round || progress.held.contains(&round))
    }

    /// The replay is over.
    pub fn remove(mut self) {
        self.clear();
        if self.own {
            let Self { home, folder, .. } = self;
            drop(home);
            let _ = fs::remove_dir_all(folder);
        }
    }
}
