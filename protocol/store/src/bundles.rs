//! Bundles: a piece of evidence and what it is judged by, as one file, `evidence/<digest>.bundle`.
//!
//! A line that names the format, a checksum, the contents. The checksum tells damage, and nothing is believed for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use muster_core::ids::Digest;
use muster_core::limits::{BUNDLE_BYTES, BUNDLES_BYTES};

use crate::error::{Result, StoreError};
use crate::files::{self, Care};
use crate::home::{EVIDENCE, Home};
use crate::regular;

const FIRST_LINE: &[u8] = b"muster bundle 1\n";
const NAME: &str = "bundle";
/// What a name of a bundle ends with.
pub const ENDING: &str = ".bundle";
/// Most bytes of what stands behind first line and checksum.
pub const CONTENTS_BYTES: u64 = BUNDLE_BYTES - FIRST_LINE.len() as u64 - files::SUM_BYTES;

impl Home {
    /// Keeps a bundle of the evidence with this name. Where all together would take too much, the oldest make room.
    ///
    /// # Errors
    /// [`crate::error::Kind::Refused`] for contents of more than [`CONTENTS_BYTES`]; what the system reports.
    pub fn save_bundle(&self, digest: &Digest, contents: &[u8]) -> Result<()> {
        let path = bundle_path(self.path(), digest);
        if contents.len() as u64 > CONTENTS_BYTES {
            return Err(StoreError::refused(
                &path,
                "a bundle is no longer than 64 MiB",
                "leave the state out",
            ));
        }
        make_room(&self.at(EVIDENCE), BUNDLES_BYTES - BUNDLE_BYTES)?;
        // The evidence itself is kept with more care: a bundle that is lost is one download less.
        files::write(&path, Care::Cheap, |file| {
            file.write_all(FIRST_LINE)?;
            file.write_all(&files::seal(NAME, contents))
        })
    }
}

/// Drops the oldest bundles of a folder until no more than so many bytes are left.
fn make_room(folder: &Path, most: u64) -> Result<()> {
    let names = files::names(folder)?;
    let bundle = |name: &String| {
        let path = folder.join(name);
        let found = fs::metadata(&path).ok()?;
        Some((found.modified().unwrap_or(SystemTime::UNIX_EPOCH), found.len(), path))
    };
    let mut bundles: Vec<_> = names.iter().filter(|name| name.ends_with(ENDING)).filter_map(bundle).collect();
    bundles.sort_unstable();
    let mut held: u64 = bundles.iter().map(|(_, length, _)| length).sum();
    for (_, length, path) in bundles {
        if held <= most {
            break;
        }
        files::remove(&path)?;
        held -= length;
    }
    Ok(())
}

/// Where a folder keeps the bundle of this evidence.
pub fn bundle_path(folder: &Path, digest: &Digest) -> PathBuf {
    folder.join(EVIDENCE).join(format!("{digest:#}{ENDING}"))
}

/// The contents of a bundle wherever it is, which may be anything; none where the file is no bundle.
///
/// # Errors
/// [`crate::error::Kind::Corrupt`] for one that was changed or cut short; [`crate::error::Kind::Refused`] for one that is too
/// long; [`crate::error::Kind::Missing`]; what the system reports.
// AUDIT-30: no more than BUNDLE_BYTES are read, and of no other kind of file more than its first line.
pub fn bundle_in(path: &Path) -> Result<Option<Vec<u8>>> {
    use std::io::Read;
    let mut begin = Vec::new();
    let begun = regular::open(path, u64::MAX)?.take(FIRST_LINE.len() as u64).read_to_end(&mut begin);
    begun.map_err(|error| StoreError::io(path, &error))?;
    if begin != FIRST_LINE {
        return Ok(None);
    }
    let mut bytes = regular::read(path, BUNDLE_BYTES)?;
    let whole = bytes.get(FIRST_LINE.len()..).and_then(|sealed| files::unseal(NAME, sealed)).is_some();
    if !whole {
        let cause = "this bundle was changed or cut short: its checksum does not fit";
        return Err(StoreError::corrupt(path, cause, "download it again"));
    }
    Ok(Some(bytes.split_off(FIRST_LINE.len() + files::SUM_BYTES as usize)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn a_bundle_comes_back_whole_or_not() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(folder.path()).unwrap();
        home.save_bundle(&Digest([7; 32]), b"contents").unwrap();
        let path = bundle_path(folder.path(), &Digest([7; 32]));
        assert_eq!(bundle_in(&path).unwrap().unwrap(), b"contents");
        let whole = fs::read(&path).unwrap();
        for place in 0..whole.len() {
            let mut changed = whole.clone();
            changed[place] ^= 1;
            for bytes in [&changed, &whole[..place]] {
                fs::write(&path, bytes).unwrap();
                match bundle_in(&path) {
                    // Without its first line it is another file.
                    Ok(None) => assert!(place < FIRST_LINE.len(), "{place}"),
                    Ok(Some(_)) => panic!("{place}"),
                    Err(error) => assert_eq!(error.kind(), Kind::Corrupt, "{error}"),
                }
            }
        }
        assert_eq!(bundle_in(folder.path()).unwrap_err().kind(), Kind::Refused);
    }

    #[test]
    fn audit_30_a_bundle_that_is_too_long_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long.bundle");
        fs::write(&path, FIRST_LINE).unwrap();
        fs::File::options().append(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(bundle_in(&path).unwrap_err().kind(), Kind::Refused);
    }

    #[test]
    fn the_oldest_bundles_make_room() {
        let folder = tempfile::tempdir().unwrap();
        for (name, age) in [("a.bundle", 3), ("b.bundle", 9), ("c.bundle", 1), ("d.evidence", 99)] {
            let path = folder.path().join(name);
            fs::write(&path, [0; 10]).unwrap();
            let then = SystemTime::now() - std::time::Duration::from_secs(age);
            fs::File::options().append(true).open(&path).unwrap().set_modified(then).unwrap();
        }
        make_room(folder.path(), 20).unwrap();
        assert_eq!(files::names(folder.path()).unwrap(), ["a.bundle", "c.bundle", "d.evidence"]);
    }
}
