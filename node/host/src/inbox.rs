//! Requests that were taken and are in no record yet, on disk: a steward that was killed goes on where it was.
//!
//! One file a round, `inbox/<round>`: requests behind their lengths as little-endian `u32`, in the order in which
//! they were taken. What a killed process wrote is there; a torn end is cut off. Commitments and deliveries have a
//! receipt, so they are synced before it is given: a steward that loses one stands convicted.
//!
//! It runs on the steward's own thread, where a file that waits for a descriptor (CHAN-13) would keep the whole run waiting. So
//! it has two from its beginning, and needs no other: the folder's, and that of the newest file, which is the next one's.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use muster_core::codec::{decode, encode};
use muster_core::ids::Round;
use muster_core::limits;
use muster_core::messages::wire::Request;
use muster_replica::exit::{Failure, Outcome};
use muster_store::patience::patiently;

/// The files of a run's folder.
pub(super) struct Inbox {
    folder: PathBuf,
    /// The folder itself, to sync new names in it; none where the system does not open folders.
    names: Option<File>,
    open: Option<(Round, File)>,
    /// Rounds that have a file.
    rounds: BTreeSet<Round>,
}

impl Inbox {
    /// Reads everything that was kept, in order, and goes on behind it.
    ///
    /// # Errors
    /// [`Failure`] naming the file that cannot be read.
    pub(super) fn open(home: &Path) -> Outcome<(Self, Vec<Request>)> {
        let folder = home.join("inbox");
        let unusable = |error: io::Error| failed(&folder, &error);
        fs::create_dir_all(&folder).map_err(unusable)?;
        let names =
            if cfg!(unix) { Some(patiently(|| File::open(&folder)).map_err(unusable)?) } else { None };
        let rounds = rounds_in(&folder).map_err(unusable)?;
        let inbox = Self { folder, names, open: None, rounds };
        let mut kept = Vec::new();
        for round in &inbox.rounds {
            let path = inbox.path(*round);
            kept.extend(read(&path).map_err(|error| failed(&path, &error))?);
        }
        Ok((inbox, kept))
    }

    /// Keeps a request that was taken in this round.
    ///
    /// # Errors
    /// [`Failure`] naming the file, such as for a full disk.
    pub(super) fn keep(&mut self, round: Round, request: &Request) -> Outcome<()> {
        let path = self.path(round);
        self.append(round, request).map_err(|error| failed(&path, &error))
    }

    /// Drops what was taken before this round.
    ///
    /// # Errors
    /// [`Failure`] naming the file.
    pub(super) fn prune(&mut self, before: Round) -> Outcome<()> {
        while let Some(round) = self.rounds.first().copied().filter(|round| *round < before) {
            let path = self.path(round);
            fs::remove_file(&path).map_err(|error| failed(&path, &error))?;
            self.rounds.remove(&round);
        }
        Ok(())
    }

    fn append(&mut self, round: Round, request: &Request) -> io::Result<()> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != round) {
            // Its descriptor is the next one's.
            self.open = None;
            let path = self.path(round);
            let file = patiently(|| OpenOptions::new().append(true).create(true).open(&path))?;
            if self.rounds.insert(round)
                && let Some(names) = &self.names
            {
                // Else a power failure could take the whole file.
                names.sync_all()?;
            }
            self.open = Some((round, file));
        }
        let Some((_, file)) = &mut self.open else { return Ok(()) };
        let bytes = encode(request);
        file.write_all(&[&(bytes.len() as u32).to_le_bytes(), bytes.as_slice()].concat())?;
        // Only these have a receipt, and what has one must outlive a power failure (ROUND-16).
        let promised = matches!(request, Request::Commit(_) | Request::Delivered(_));
        if promised { file.sync_data() } else { Ok(()) }
    }

    fn path(&self, round: Round) -> PathBuf {
        self.folder.join(round.to_string())
    }
}

fn rounds_in(folder: &Path) -> io::Result<BTreeSet<Round>> {
    let names =
        patiently(|| fs::read_dir(folder))?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter_map(|name| name.parse().ok().map(Round)).collect())
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::environment(format!(
        "{}: {error}; make sure that the disk is writable and has room",
        path.display()
    ))
}

fn read(path: &Path) -> io::Result<Vec<Request>> {
    let bytes = patiently(|| fs::read(path))?;
    let mut rest: &[u8] = &bytes;
    let mut requests = Vec::new();
    while let Some((request, after)) = entry(rest) {
        requests.push(request);
        rest = after;
    }
    if !rest.is_empty() {
        // Cut off: what is appended behind a torn end would never be read.
        let file = patiently(|| OpenOptions::new().write(true).open(path))?;
        file.set_len((bytes.len() - rest.len()) as u64)?;
    }
    Ok(requests)
}

fn entry(rest: &[u8]) -> Option<(Request, &[u8])> {
    let (length, after) = rest.split_first_chunk()?;
    let length = u32::from_le_bytes(*length) as usize;
    // A length in a torn end may be anything.
    let (bytes, after) = after.split_at_checked(length).filter(|_| length <= limits::MESSAGE_BYTES)?;
    Some((decode(bytes).ok()?, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process of its own: this one's other tests need descriptors.
    #[cfg(unix)]
    #[test]
    fn chan_13_what_is_kept_in_a_new_round_waits_for_no_descriptor() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        const ALONE: &str = "MUSTER_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let name = "inbox::tests::chan_13_what_is_kept_in_a_new_round_waits_for_no_descriptor";
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            let status = alone.args(["--exact", name]).env(ALONE, "").status().unwrap();
            assert!(status.success());
            return;
        }
        let home = tempfile::tempdir().unwrap();
        let (mut inbox, _) = Inbox::open(home.path()).unwrap();
        inbox.keep(Round(1), &Request::Manifest).unwrap();
        let limit = Rlimit { current: Some(64), ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, limit).unwrap();
        let taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        let begun = std::time::Instant::now();
        inbox.keep(Round(2), &Request::StateOffer).unwrap();
        inbox.keep(Round(3), &Request::Manifest).unwrap();
        inbox.prune(Round(2)).unwrap();
        assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{:?}", begun.elapsed());
        drop((taken, inbox));
        let (_, kept) = Inbox::open(home.path()).unwrap();
        assert_eq!(kept.len(), 2);
    }

    #[test]
    fn a_torn_end_is_cut_off() {
        let home = tempfile::tempdir().unwrap();
        let (mut inbox, kept) = Inbox::open(home.path()).unwrap();
        assert!(kept.is_empty());
        inbox.keep(Round(3), &Request::Manifest).unwrap();
        inbox.keep(Round(10), &Request::StateOffer).unwrap();
        drop(inbox);
        let path = home.path().join("inbox/10");
        let whole = fs::read(&path).unwrap();
        fs::write(&path, [whole.as_slice(), &[9, 0, 0, 0, 1]].concat()).unwrap();
        let (mut inbox, kept) = Inbox::open(home.path()).unwrap();
        assert_eq!(kept, [Request::Manifest, Request::StateOffer]);
        assert_eq!(fs::read(&path).unwrap(), whole);
        inbox.keep(Round(10), &Request::Manifest).unwrap();
        inbox.prune(Round(10)).unwrap();
        assert_eq!(Inbox::open(home.path()).unwrap().1, [Request::StateOffer, Request::Manifest]);
    }
}
