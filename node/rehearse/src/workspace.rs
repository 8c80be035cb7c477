//! The folder of a rehearsal.

use std::path::{Path, PathBuf};
use std::{env, fs};

use muster_replica::exit::{Failure, Outcome};

/// Where a rehearsal lives.
pub(super) struct Workspace {
    folder: PathBuf,
    temporary: bool,
}

impl Workspace {
    /// A new folder, kept if it was named.
    pub(super) fn make(out: Option<&Path>) -> Outcome<Self> {
        let (folder, temporary) = match out {
            Some(out) => (out.to_owned(), false),
            None => (env::temp_dir().join(format!("muster-demo-{}", std::process::id())), true),
        };
        let failed = |error| Failure::environment(format!("{}: cannot be used ({error})", folder.display()));
        fs::create_dir_all(&folder).map_err(failed)?;
        if fs::read_dir(&folder).map_err(failed)?.next().is_some() {
            let what = format!("{}: already holds something; name a new directory", folder.display());
            return Err(Failure::environment(what));
        }
        Ok(Self { folder, temporary })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Something in it.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(super) fn keep(&mut self) {
        self.temporary = false;
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if self.temporary {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
