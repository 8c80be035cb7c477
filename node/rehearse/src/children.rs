//! The processes of a rehearsal, none of which outlives it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, ExitStatus, Stdio};

use muster_replica::exit::{Exit, Failure, Outcome};

/// Lines of a log that are shown when its process fails.
const TAIL: usize = 20;

/// A process of this same executable; killed when dropped.
pub(super) struct Child {
    /// What people call it.
    pub(super) name: String,
    process: Process,
    log: PathBuf,
}

impl Child {
    /// Starts this executable with these arguments; what it says goes to a log of its name.
    ///
    /// # Errors
    /// [`Failure`] when the log cannot be written or the system starts no process.
    pub(super) fn start(name: &str, logs: &Path, arguments: &[&OsStr]) -> Outcome<Self> {
        let path = logs.join(format!("{name}.log"));
        let failed = |error| Failure::environment(format!("{}: cannot be written ({error})", path.display()));
        let log = File::create(&path).map_err(failed)?;
        let same = log.try_clone().map_err(failed)?;
        let own = std::env::current_exe();
        let own =
            own.map_err(|error| Failure::environment(format!("this program cannot be found ({error})")))?;
        let process =
            Command::new(&own).args(arguments).stdin(Stdio::null()).stdout(log).stderr(same).spawn();
        let process = process.map_err(|error| {
            Failure::environment(format!("{}: cannot be started ({error})", own.display()))
        })?;
        Ok(Self { name: name.to_owned(), process, log: path })
    }

    /// How it ended; none while it runs.
    ///
    /// # Errors
    /// What the system reports.
    pub(super) fn ended(&mut self) -> Outcome<Option<ExitStatus>> {
        let ended = self.process.try_wait();
        ended.map_err(|error| Failure::environment(format!("{}: cannot be waited for ({error})", self.name)))
    }

    /// The first line of its log that begins so.
    pub(super) fn said(&self, beginning: &str) -> Option<String> {
        let log = fs::read(&self.log).ok()?;
        let log = String::from_utf8_lossy(&log);
        log.lines().find(|line| line.starts_with(beginning)).map(str::to_owned)
    }

    /// A failure of the rehearsal by this process, with the end of its log.
    pub(super) fn fault(&self, what: &str) -> Failure {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n  ");
        let message = format!("{} {what}; the end of {}:\n  {tail}", self.name, self.log.display());
        Failure { exit: Exit::Negative, message }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        // A killed process that is not waited for stays as a zombie, and may still hold its directory.
        let _ = self.process.wait();
    }
}
