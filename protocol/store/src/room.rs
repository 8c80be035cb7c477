//! How much of a disk a folder takes, and how much is free there.

use std::fs;
use std::path::Path;

use crate::patience::patiently;

/// Bytes that a folder with all in it takes on the disk. What is removed meanwhile does not count.
pub fn used(folder: &Path) -> u64 {
    let own = taken(folder);
    // A folder that is not looked into would count as empty.
    let Ok(entries) = patiently(|| fs::read_dir(folder)) else { return own };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(about) if about.is_dir() => used(&entry.path()),
        about => about.map_or(0, |about| blocks(&about)),
    };
    entries.flatten().map(size).fold(own, u64::saturating_add)
}

/// Bytes that one file, or a folder without what is in it, takes on the disk; 0 where there is none.
pub fn taken(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |about| blocks(&about))
}

/// Bytes that are free for files in a folder, or for the folder itself where it is still to be made.
///
/// # Errors
/// What the system reports.
pub fn free(folder: &Path) -> std::io::Result<u64> {
    let disk = rustix::fs::statvfs(existing(folder))?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// The folder, or the nearest one above it that is there already.
pub fn existing(folder: &Path) -> &Path {
    let above = folder.ancestors().find(|above| above.is_dir());
    // Of a relative path the last one is empty.
    above.filter(|above| !above.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// Bytes that a file takes on the disk. Files have holes, the journal above all, so that its length says too much.
fn blocks(about: &fs::Metadata) -> u64 {
    #[cfg(unix)]
    return std::os::unix::fs::MetadataExt::blocks(about).saturating_mul(512);
    #[cfg(not(unix))]
    about.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_takes_what_its_files_take_and_holes_take_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let before = used(directory.path());
        fs::File::create(directory.path().join("hole")).unwrap().set_len(1 << 40).unwrap();
        fs::create_dir(directory.path().join("deep")).unwrap();
        fs::write(directory.path().join("deep/file"), vec![1; 100_000]).unwrap();
        let grown = used(directory.path()) - before;
        assert!((100_000..200_000).contains(&grown), "{grown}");
        assert_eq!(taken(&directory.path().join("nothing")), 0);
    }

    #[test]
    fn what_is_free_is_told_also_where_the_folder_is_still_to_be_made() {
        let directory = tempfile::tempdir().unwrap();
        let deep = directory.path().join("a/b");
        assert_eq!(existing(&deep), directory.path());
        assert_eq!(existing(Path::new("nothing/there")), Path::new("."));
        assert!(free(&deep).unwrap() > 0);
    }
}
