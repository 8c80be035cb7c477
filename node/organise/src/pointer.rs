//! Pointers of Git LFS: what a clone without that extension has in the place of large files.

use std::path::Path;

use muster_replica::exit::{Failure, Outcome};

/// What every pointer begins with.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Refuses a file that is a pointer to another one.
///
/// # Errors
/// [`Failure`] naming the file, and how to get it.
pub(crate) fn no_pointer(path: &Path, bytes: &[u8]) -> Outcome<()> {
    if !bytes.starts_with(POINTER) {
        return Ok(());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Err(Failure::environment(format!(
        "{}: is a pointer of Git LFS and not the file itself; get it with `git lfs pull` in {}",
        path.display(),
        folder.display()
    )))
}
