//! Being asked to stop: by Ctrl-C, by the system's signal to terminate, or by a terminal that closes.

use std::time::Duration;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// A hangup this soon after another request is the same one: when a terminal closes, the shell and the system both tell of it,
/// and the end of a session terminates and hangs up.
const ECHO: Duration = Duration::from_millis(300);

/// Requests to stop, from the moment when this is made. Until then, each of them ends the process.
pub struct StopRequests {
    heard: Option<Instant>,
    #[cfg(unix)]
    interrupt: Option<Signal>,
    #[cfg(unix)]
    terminate: Option<Signal>,
    /// None where it was to be ignored from the start, as `nohup` has it.
    #[cfg(unix)]
    hangup: Option<Signal>,
}

#[cfg(unix)]
impl StopRequests {
    /// Listens, within a runtime.
    pub fn listen() -> Self {
        let hear = |kind| match signal(kind) {
            Ok(heard) => Some(heard),
            Err(error) => {
                tracing::warn!("one of the signals to stop ends this process at once ({error})");
                None
            }
        };
        let hangup = (!ignores_hangup()).then(|| hear(SignalKind::hangup())).flatten();
        let (interrupt, terminate) = (hear(SignalKind::interrupt()), hear(SignalKind::terminate()));
        Self { heard: None, interrupt, terminate, hangup }
    }

    /// Waits for the next request. Cancelling this loses none.
    pub async fn next(&mut self) {
        loop {
            let hung_up = tokio::select! {
                () = received(&mut self.interrupt) => false,
                () = received(&mut self.terminate) => false,
                () = received(&mut self.hangup) => true,
            };
            let now = Instant::now();
            if !(hung_up && is_echo(self.heard.replace(now), now)) {
                self.heard = Some(now);
                return;
            }
        }
    }
}

/// Whether a hangup now belongs to a request that was heard before.
#[cfg(unix)]
fn is_echo(before: Option<Instant>, now: Instant) -> bool {
    before.is_some_and(|before| now.duration_since(before) < ECHO)
}

/// Never, where it cannot be listened to.
#[cfg(unix)]
async fn received(signal: &mut Option<Signal>) {
    match signal {
        // The runtime never ends the stream of a signal.
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether this process was started to go on without its terminal. Where the system does not tell, it was not.
#[cfg(unix)]
fn ignores_hangup() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignored(&status) & 1 == 1)
}

/// The signals that a process ignores, by its `/proc/…/status`: the first bit is that of a hangup.
#[cfg(unix)]
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(not(unix))]
impl StopRequests {
    /// Listens, within a runtime.
    pub fn listen() -> Self {
        Self { heard: None }
    }

    /// Waits for the next request. Cancelling this loses none.
    pub async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    fn send(signal: Signal) {
        kill_process(getpid(), signal).expect("a signal to itself");
    }

    /// One test: all of a process hear its signals.
    #[tokio::test]
    async fn each_signal_asks_to_stop_once() {
        let mut stops = StopRequests::listen();
        let hangup = Some(Signal::HUP).filter(|_| !ignores_hangup());
        for signal in hangup.into_iter().chain([Signal::INT, Signal::TERM, Signal::TERM]) {
            send(signal);
            tokio::time::timeout(Duration::from_secs(30), stops.next()).await.expect("a request");
        }
    }

    #[test]
    fn a_hangup_beside_another_request_is_the_same_one() {
        let now = Instant::now();
        assert!(!is_echo(None, now) && is_echo(Some(now), now) && is_echo(Some(now), now + ECHO / 2));
        assert!(!is_echo(Some(now), now + ECHO));
    }

    #[test]
    fn who_ignores_hangups_is_known() {
        let status = |mask: &str| format!("Name:\tmuster\nSigBlk:\t0000000000000000\nSigIgn:\t{mask}\n");
        assert_eq!(ignored(&status("0000000000001001")) & 1, 1);
        assert_eq!(ignored(&status("0000000000001000")) & 1, 0);
        assert_eq!(ignored("Name:\tmuster\n"), 0);
    }
}
