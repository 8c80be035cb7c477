//! Requests that were taken and are in no record yet, on disk: a steward that was killed goes on where it was.
//!
//! One file a round, `inbox/<round>`: requests behind their lengths as little-endian `u32`, in the order in which
//! they were taken. What a killed process wrote is there; a torn end is cut off. Commitments and deliveries have a
//! receipt, so they are synced before it is given: a steward that loses one stands convicted.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use muster_core::codec::{decode, encode};
use muster_core::ids::Round;
use muster_core::limits;
use muster_core::messages::wire::Request;
use muster_store::patience::patiently;

use crate::exit::{Failure, Outcome};

/// The files of a run's folder.
pub(super) struct Inbox {
    folder: PathBuf,
    open: Option<(Round, File)>,
}

impl Inbox {
    /// Reads everything that was kept, in order, and goes on behind it.
    ///
    /// # Errors
    /// [`Failure`] naming the file that cannot be read.
    pub(super) fn open(home: &Path) -> Outcome<(Self, Vec<Request>)> {
        let inbox = Self { folder: home.join("inbox"), open: None };
        fs::create_dir_all(&inbox.folder).map_err(|error| failed(&inbox.folder, &error))?;
        let mut kept = Vec::new();
        for round in inbox.rounds()? {
            let path = inbox.path(round);
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
        for round in self.rounds()?.into_iter().filter(|round| *round < before) {
            let path = self.path(round);
            fs::remove_file(&path).map_err(|error| failed(&path, &error))?;
        }
        Ok(())
    }

    fn append(&mut self, round: Round, request: &Request) -> io::Result<()> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != round) {
            let path = self.path(round);
            let new = !path.exists();
            let file = patiently(|| OpenOptions::new().append(true).create(true).open(&path))?;
            if new && cfg!(unix) {
                // Else a power failure could take the whole file.
                patiently(|| File::open(&self.folder))?.sync_all()?;
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

    fn rounds(&self) -> Outcome<Vec<Round>> {
        let entries =
            patiently(|| fs::read_dir(&self.folder)).map_err(|error| failed(&self.folder, &error))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut rounds: Vec<Round> = names.filter_map(|name| name.parse().ok().map(Round)).collect();
        rounds.sort_unstable();
        Ok(rounds)
    }
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::environment(format!(
        "{}: {error}; make sure that the disk is writable and has room",
        path.display()
    ))
}

fn read(path: &Path) -> io::Result<Vec<Request>> {
    let bytes = fs::read(path)?;
    let mut rest: &[u8] = &bytes;
    let mut requests = Vec::new();
    while let Some((request, after)) = entry(rest) {
        requests.push(request);
        rest = after;
    }
    if !rest.is_empty() {
        // Cut off: what is appended behind a torn end would never be read.
        OpenOptions::new().write(true).open(path)?.set_len((bytes.len() - rest.len()) as u64)?;
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
