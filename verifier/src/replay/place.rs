//! The auditor's own place: where its replays keep how far they came, and the key that binds what they keep to it.
//!
//! A run's folder, and whatever lies beside it, may come from whoever is audited. A replay goes on only from progress
//! that carries this key's hash, wherever it lies: a folder that comes along with an archive decides nothing.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use muster_core::ids::RunId;
use muster_store::error::StoreError;
use muster_store::home::Home;
use muster_store::secrets;

/// What the key's hash is of, so that another use of the key would not pass for this one.
const LABEL: &[u8] = b"muster replay progress 1";
/// Digits of the archive's path in the name of its folder.
const PATH_DIGITS: usize = 16;

/// For how long an interrupted replay is expected to go on. A folder is as large as some states.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// A directory of this user, and its key.
pub struct Place {
    folder: PathBuf,
    seal: Seal,
}

impl Place {
    /// That of the user: in `$XDG_STATE_HOME`, else in `~/.local/state`. It is made if it is missing.
    ///
    /// # Errors
    /// In words: why there is none, and what to do.
    pub fn of_user() -> Result<Self, String> {
        // The specification of these directories: a relative path counts as none.
        let named = env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let home = || Some(env::home_dir().filter(|home| home.is_absolute())?.join(".local/state"));
        let state = named.or_else(home).ok_or("this user has no home directory; set XDG_STATE_HOME")?;
        Self::at(&state.join("muster/replay"))
    }

    /// This directory.
    ///
    /// # Errors
    /// In words: why it cannot be used, and what to do.
    pub fn at(folder: &Path) -> Result<Self, String> {
        make(folder).map_err(|error| {
            format!("{}: cannot be made ({error}); set XDG_STATE_HOME to a folder of yours", folder.display())
        })?;
        let key = secrets::kept(&folder.join("key")).map_err(|error: StoreError| error.to_string())?;
        Ok(Self { folder: folder.to_owned(), seal: Seal(blake3::Hasher::new_keyed(&key)) })
    }

    /// Where the replay of the archive at this path keeps its progress.
    pub fn folder(&self, run: RunId, archive: &Path) -> PathBuf {
        let archive = archive.canonicalize().unwrap_or_else(|_| archive.to_owned());
        let path = blake3::hash(archive.as_os_str().as_encoded_bytes()).to_hex();
        self.folder.join(format!("{run:#}-{}", &path[..PATH_DIGITS]))
    }

    /// Removes what interrupted replays have left that were not gone on with for 30 days; which folders. `own` stays, and
    /// whatever another process uses.
    pub fn prune(&self, own: &Path, now: SystemTime) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return Vec::new() };
        let folders = entries.flatten().map(|entry| entry.path()).filter(|path| path != own && path.is_dir());
        let old = |folder: &PathBuf| {
            newest(folder).is_some_and(|then| now.duration_since(then).is_ok_and(|age| age > KEPT))
        };
        let removed = |folder: &PathBuf| {
            // Refused for what another process uses, and for what is no folder of a replay.
            Home::open(folder).map(drop).is_ok() && fs::remove_dir_all(folder).is_ok()
        };
        folders.filter(old).filter(removed).collect()
    }

    /// What binds bytes to this place.
    pub fn into_seal(self) -> Seal {
        self.seal
    }
}

/// When something in a folder was written last.
fn newest(folder: &Path) -> Option<SystemTime> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    entries.filter_map(|entry| entry.metadata().ok()?.modified().ok()).max()
}

/// For its owner only, with those above it.
fn make(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

/// A key that only this user has.
pub struct Seal(blake3::Hasher);

impl Seal {
    /// The bytes behind their keyed hash.
    pub fn close(&self, bytes: &[u8]) -> Vec<u8> {
        [self.hash(bytes).as_bytes().as_slice(), bytes].concat()
    }

    /// The bytes that [`Self::close`] of the same key got; `None` for all others.
    pub fn open<'a>(&self, sealed: &'a [u8]) -> Option<&'a [u8]> {
        let (hash, bytes) = sealed.split_first_chunk::<32>()?;
        // Compared in constant time, as blake3 compares its hashes.
        (self.hash(bytes) == *hash).then_some(bytes)
    }

    fn hash(&self, bytes: &[u8]) -> blake3::Hash {
        self.0.clone().update(LABEL).update(bytes).finalize()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use muster_core::ids::Digest;

    use super::*;

    #[test]
    fn only_the_own_key_opens_what_was_kept_and_only_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| Place::at(&directory.path().join(name)).unwrap().into_seal();
        let (own, other) = (place("own"), place("other"));
        let sealed = own.close(b"round 7");
        assert_eq!(place("own").open(&sealed), Some(b"round 7".as_slice()));
        assert_eq!(other.open(&sealed), None);
        assert_eq!(own.open(&blake3::hash(b"round 7").as_bytes()[..]), None);
        for at in 0..sealed.len() {
            let mut forged = sealed.clone();
            forged[at] ^= 1;
            assert_eq!(own.open(&forged), None, "byte {at}");
            assert_eq!(own.open(&sealed[..at]), None, "cut at {at}");
        }
    }

    #[test]
    fn each_archive_has_a_folder_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::at(&directory.path().join("place")).unwrap();
        let archives = ["one", "two"].map(|name| directory.path().join(name));
        archives.iter().for_each(|archive| fs::create_dir(archive).unwrap());
        let run = RunId(Digest([7; 32]));
        let [one, two] = archives.each_ref().map(|archive| place.folder(run, archive));
        assert!(one != two && one.starts_with(directory.path().join("place")));
        assert_eq!(one, place.folder(run, &archives[1].join("../one")));
    }

    #[test]
    fn what_was_interrupted_long_ago_is_removed_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::at(directory.path()).unwrap();
        let folders = ["old", "own", "used"].map(|name| directory.path().join(name));
        let homes = folders.each_ref().map(|folder| Home::open(folder).unwrap());
        homes.iter().for_each(|home| home.write_file("progress", b"round 7").unwrap());
        let [old, own, used] = homes;
        drop((old, own));
        // Somebody's own files, in a place that was named by XDG_STATE_HOME.
        let foreign = directory.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("thesis.txt"), b"years of work").unwrap();
        let now = SystemTime::now();
        assert!(place.prune(&folders[1], now).is_empty(), "they may go on");
        assert_eq!(place.prune(&folders[1], now + KEPT + Duration::from_secs(60)), [folders[0].clone()]);
        let left = folders.each_ref().map(|folder| folder.join("progress").exists());
        assert_eq!((left, foreign.join("thesis.txt").exists()), ([false, true, true], true));
        drop(used);
    }

    #[cfg(unix)]
    #[test]
    fn nobody_else_reads_the_key() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("state/muster/replay");
        Place::at(&folder).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join("key"))), (0o700, 0o600));
        fs::set_permissions(folder.join("key"), PermissionsExt::from_mode(0o644)).unwrap();
        assert!(Place::at(&folder).err().unwrap().contains("chmod 600"));
    }
}
