//! Drivers are tried in a process of their own, before they are loaded into the one that takes part in a run.
//!
//! A driver that crashes takes its process along, and one that hangs while it is loaded keeps its process from ending.

use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::guarded;
use crate::gpu;

/// Set in the environment of the process that tries drivers.
const TRIAL: &str = "MUSTER_TRIES_DRIVERS";
/// Pause between two looks at that process.
const LOOK: Duration = Duration::from_millis(2);

/// Whether this program can be started to try drivers.
static TRIES: OnceLock<()> = OnceLock::new();

/// What a program's main function calls first: from then on, the program is started once more to try drivers before it loads
/// them. In the process that tries them this does not return.
pub fn try_drivers_apart() {
    if std::env::var_os(TRIAL).is_none() {
        let _ = TRIES.set(());
        return;
    }
    // A panic is an answer: the process that loads them bears it, too.
    let _ = guarded(|| Ok(gpu::look()));
    std::process::exit(0);
}

/// Tries the drivers, if this program can.
///
/// # Errors
/// How a driver failed that must not be loaded.
pub(super) fn pass(patience: Duration) -> Result<(), String> {
    if TRIES.get().is_none() {
        return Ok(());
    }
    let trial = std::env::current_exe().and_then(|program| {
        let mut trial = Command::new(program);
        trial.env(TRIAL, "1").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    });
    // A program that was replaced on the disk, or may start none: they are loaded untried.
    let Ok(mut trial) = trial else { return Ok(()) };
    let begun = Instant::now();
    loop {
        match trial.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("a process that loaded them ended with {status}")),
            Ok(None) if begun.elapsed() < patience => std::thread::sleep(LOOK),
            _ => {
                // It is not waited for: the system may be unable to end it.
                let _ = trial.kill();
                return Err(format!("loading them has taken more than {} s", patience.as_secs()));
            }
        }
    }
}
