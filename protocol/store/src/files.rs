//! Files that are whole or absent: written aside, then renamed into place; and checked when read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use muster_core::hash::{Domain, Hasher};
use muster_core::ids::Digest;

use crate::error::{Result, StoreError};
use crate::patience::patiently;
use crate::regular;

/// Ending of files that are being written; leftovers with it are rubbish.
pub(crate) const ASIDE: &str = ".tmp";

/// How a file is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Care {
    /// Survives a power failure, and only its owner may read it.
    Secret,
    /// Survives a power failure.
    Durable,
    /// May be lost in a power failure.
    Cheap,
}

/// Writes a file so that `path` holds its old or its new content, whole, at every moment.
pub(crate) fn write(
    path: &Path,
    care: Care,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let (aside, file) = create_aside(path, care).map_err(|error| StoreError::io(path, &error))?;
    let written = fill_aside(file, care, fill).and_then(|()| fs::rename(&aside, path));
    if let Err(error) = written {
        let _ = fs::remove_file(&aside);
        return Err(StoreError::io(path, &error));
    }
    // The new name survives a power failure only once its directory is on the disk.
    if care == Care::Cheap { Ok(()) } else { sync_directory(parent(path)) }
}

/// A new file beside `path`. Names that a killed process left behind are passed over: where nothing sweeps them, numbers
/// that begin anew would meet them again.
fn create_aside(path: &Path, care: Care) -> io::Result<(PathBuf, File)> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    // From its creation on: whoever opens a file before its mode is changed keeps it open.
    if care == Care::Secret {
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    }
    loop {
        let aside = aside(path);
        match patiently(|| options.open(&aside)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            opened => return Ok((aside, opened?)),
        }
    }
}

fn fill_aside(file: File, care: Care, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    fill(&mut file)?;
    let file = file.into_inner()?;
    // Before the rename: otherwise a power failure could leave the name with nothing behind it.
    if care == Care::Cheap { Ok(()) } else { file.sync_all() }
}

/// A name beside `path` that no other write of this process uses.
pub(crate) fn aside(path: &Path) -> PathBuf {
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}{ASIDE}", WRITES.fetch_add(1, Ordering::Relaxed)));
    name.into()
}

/// Removes what interrupted writes left in a directory.
pub(crate) fn sweep(directory: &Path) -> Result<()> {
    for name in names(directory)?.iter().filter(|name| name.ends_with(ASIDE)) {
        remove(&directory.join(name))?;
    }
    Ok(())
}

/// Makes renames within a directory survive a power failure.
pub(crate) fn sync_directory(directory: &Path) -> Result<()> {
    if cfg!(unix) {
        let synced = patiently(|| File::open(directory)).and_then(|directory| directory.sync_all());
        return synced.map_err(|error| StoreError::io(directory, &error));
    }
    Ok(())
}

/// The directory that holds `path`.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Names in a directory, sorted; none when it does not exist. Names that are not UTF-8 are left out.
pub(crate) fn names(directory: &Path) -> Result<Vec<String>> {
    let failed = |error: io::Error| StoreError::io(directory, &error);
    let entries = match patiently(|| fs::read_dir(directory)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

/// All bytes of a file of the own home, which is as long as this program made it.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    regular::read(path, u64::MAX)
}

/// Removes a file; one that is gone already is as good.
pub(crate) fn remove(path: &Path) -> Result<()> {
    gone(path, fs::remove_file(path))
}

/// Removes a directory and all in it; one that is gone already is as good.
pub(crate) fn remove_directory(path: &Path) -> Result<()> {
    gone(path, fs::remove_dir_all(path))
}

fn gone(path: &Path, removed: io::Result<()>) -> Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::io(path, &error)),
        _ => Ok(()),
    }
}

/// Makes a directory and those above it.
pub(crate) fn make_directory(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|error| StoreError::io(path, &error))
}

/// Makes a directory that only its owner may look into, and those above it; one that is there becomes so.
pub(crate) fn make_private_directory(path: &Path) -> Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(path).map_err(|error| StoreError::io(path, &error))?;
    keep_from_others(path);
    Ok(())
}

/// Takes from all but the owner what they may do with a file or directory. What another user owns stays as it is: that
/// user has decided.
pub(crate) fn keep_from_others(path: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(path).map_or(0, |found| found.permissions().mode());
        if mode & 0o077 != 0 {
            let _ = fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o700));
        }
    }
    #[cfg(not(unix))]
    let _ = path;
}

/// Checksum of bytes under a name, so that one thing does not pass for another.
pub(crate) fn checksum(name: &str, bytes: &[u8]) -> Digest {
    Hasher::new(Domain::FILE).part(name.as_bytes()).part(bytes).finish()
}

/// Bytes of a checksum, which stands before what it is of.
pub(crate) const SUM_BYTES: u64 = 32;

/// Checksum and bytes.
pub(crate) fn seal(name: &str, bytes: &[u8]) -> Vec<u8> {
    [&checksum(name, bytes).0, bytes].concat()
}

/// The bytes behind a checksum; `None` unless they are those that were sealed under this name.
pub(crate) fn unseal<'a>(name: &str, sealed: &'a [u8]) -> Option<&'a [u8]> {
    let (sum, bytes) = sealed.split_first_chunk::<32>()?;
    (checksum(name, bytes).0 == *sum).then_some(bytes)
}

/// Writes bytes behind their checksum.
pub(crate) fn write_sealed(path: &Path, care: Care, name: &str, bytes: &[u8]) -> Result<()> {
    write_sealed_pieces(path, care, name, bytes.len() as u64, &|take| take(bytes))
}

/// What takes a piece of bytes.
pub(crate) type Take<'a> = &'a mut dyn FnMut(&[u8]) -> io::Result<()>;

/// As [`write_sealed`], for `length` bytes that `pieces` hands out one after the other. It is called twice: for the
/// checksum, which stands first, and for the bytes.
pub(crate) fn write_sealed_pieces(
    path: &Path,
    care: Care,
    name: &str,
    length: u64,
    pieces: &dyn Fn(Take<'_>) -> io::Result<()>,
) -> Result<()> {
    write(path, care, |file| {
        // As [`checksum`] has it.
        let mut sum = Hasher::new(Domain::FILE).part(name.as_bytes()).bulk(&length.to_le_bytes());
        pieces(&mut |piece| {
            // Hashing consumes the state, which the closure only borrows; it has a fixed size.
            sum = sum.clone().bulk(piece);
            Ok(())
        })?;
        file.write_all(&sum.finish().0)?;
        pieces(&mut |piece| file.write_all(piece))
    })
}

/// Reads bytes that [`write_sealed`] wrote under this name.
pub(crate) fn read_sealed(path: &Path, name: &str, advice: &str) -> Result<Vec<u8>> {
    read_sealed_within(path, name, advice, u64::MAX)
}

/// The same of at most so many bytes.
pub(crate) fn read_sealed_within(path: &Path, name: &str, advice: &str, most: u64) -> Result<Vec<u8>> {
    let mut sealed = regular::read(path, most.saturating_add(32))?;
    if unseal(name, &sealed).is_none() {
        return Err(StoreError::corrupt(path, "its checksum does not fit", advice));
    }
    Ok(sealed.split_off(32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        write(&path, Care::Durable, |file| file.write_all(b"old")).unwrap();
        let full = |file: &mut dyn Write| {
            file.write_all(b"ne")?;
            Err(io::ErrorKind::StorageFull.into())
        };
        let error = write(&path, Care::Durable, full).unwrap_err();
        assert_eq!(error.kind(), Kind::Full);
        assert!(error.to_string().contains("the disk is full; make room"), "{error}");
        assert_eq!(read(&path).unwrap(), b"old");
        assert_eq!(names(directory.path()).unwrap(), ["file"]);
    }

    #[test]
    fn what_a_killed_process_left_stops_no_write() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let name = aside(&path).file_name().unwrap().to_str().unwrap().to_owned();
        let last: u64 = name.strip_prefix("file.").unwrap().strip_suffix(ASIDE).unwrap().parse().unwrap();
        // More than one: other tests take numbers meanwhile.
        let left = |number| directory.path().join(format!("file.{number}{ASIDE}"));
        (1..=64).for_each(|more| fs::write(left(last + more), b"half").unwrap());
        for care in [Care::Cheap, Care::Secret] {
            write(&path, care, |file| file.write_all(b"whole")).unwrap();
            assert_eq!(read(&path).unwrap(), b"whole");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_device_is_named_so() {
        let path = Path::new("/dev/full");
        let error = fs::write(path, b"x").unwrap_err();
        assert_eq!(StoreError::io(path, &error).kind(), Kind::Full);
    }

    #[test]
    fn a_seal_binds_name_and_every_byte() {
        let sealed = seal("a", b"bytes");
        assert_eq!(unseal("a", &sealed), Some(b"bytes".as_slice()));
        assert_eq!(unseal("b", &sealed), None);
        for length in 0..sealed.len() {
            assert_eq!(unseal("a", &sealed[..length]), None);
        }
        for place in 0..sealed.len() {
            let mut forged = sealed.clone();
            forged[place] ^= 1;
            assert_eq!(unseal("a", &forged), None);
        }
    }

    #[test]
    fn leftovers_are_swept() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(aside(&directory.path().join("file")), b"half").unwrap();
        fs::write(directory.path().join("whole"), b"whole").unwrap();
        sweep(directory.path()).unwrap();
        assert_eq!(names(directory.path()).unwrap(), ["whole"]);
    }
}
