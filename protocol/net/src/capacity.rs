//! What this process can carry: the files and connections that the system lets it have open, divided before anybody asks.
//!
//! Every connection takes a descriptor, as every file does. Where connections could take all of them, whoever dials could
//! keep a process from opening a file that it must write.

use std::fmt;
use std::io;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use muster_core::lock::lock;

/// Descriptors that connections never take, at least: what the program has open from its start, and files of its disk.
const FILES: u64 = 48;
/// Beyond this many more descriptors change nothing: everything below has all that it uses.
const MOST: u64 = 1 << 20;
/// Connections that strangers and members open to the channel's ports, at most.
pub const CHANNEL: usize = 2048;
/// Connections that this process dials itself, and keeps, at most.
const DIALLED: usize = 512;
/// Connections with which it only looks whether somebody is there, at most.
const LOOKS: usize = 128;
/// Connections of the swarm, those that are about to open included, at most.
const GOSSIP: usize = 288;
/// Connections of browsers, at most.
const WEB: usize = 256;

/// How often a shortage is told of.
const TELLING: Duration = Duration::from_secs(60);
/// What to do about few descriptors.
pub const REMEDY: &str = "a higher `ulimit -n` (65536), or LimitNOFILE in a unit of systemd";

/// How many connections of each kind this process can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Files and connections that may be open at once.
    pub descriptors: u64,
    /// Connections to the ports of the channel, of all ports together.
    pub channel: usize,
    /// Connections that this process dials and keeps.
    pub dialled: usize,
    /// Connections with which this process looks whether somebody is there.
    pub looks: usize,
    /// Connections of the swarm.
    pub gossip: usize,
    /// Connections of browsers.
    pub web: usize,
}

impl Capacity {
    /// CHAN-13: of this process. The first call raises its limit as far as the system lets it.
    pub fn of_process() -> &'static Self {
        static CAPACITY: OnceLock<Capacity> = OnceLock::new();
        CAPACITY.get_or_init(|| Self::of(raised()))
    }

    /// With so many descriptors.
    pub fn of(descriptors: u64) -> Self {
        let descriptors = descriptors.min(MOST);
        let files = FILES.max(descriptors / 8);
        let rest = descriptors.saturating_sub(files);
        let part = |divisor, most: usize| usize::try_from(rest / divisor).unwrap_or(most).clamp(1, most);
        let (dialled, gossip) = (part(6, DIALLED), part(6, GOSSIP));
        let (looks, web) = (part(12, LOOKS), part(12, WEB));
        let others = (dialled + looks + gossip + web) as u64;
        let channel = usize::try_from(rest.saturating_sub(others)).unwrap_or(CHANNEL).clamp(4, CHANNEL);
        Self { descriptors, channel, dialled, looks, gossip, web }
    }

    /// Says in the log what this process can carry, and what to do where that is less than the program could use.
    pub fn tell(&self) {
        if self.is_full() {
            tracing::debug!("{self}");
        } else {
            tracing::warn!("{self}; more with {REMEDY}");
        }
    }

    /// Whether every kind has as many as the program ever uses.
    pub fn is_full(&self) -> bool {
        let Self { channel, dialled, looks, gossip, web, .. } = *self;
        (channel, dialled, looks, gossip, web) == (CHANNEL, DIALLED, LOOKS, GOSSIP, WEB)
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { descriptors, channel, gossip, web, .. } = self;
        write!(
            f,
            "{descriptors} files and connections may be open at once: room for {channel} connections of members and \
             strangers, {gossip} of gossip, {web} of browsers"
        )
    }
}

/// A port took no connection: says so in the log, but of what lasts no more than once a minute.
pub fn tell_unaccepted(error: &io::Error) {
    static TOLD: Mutex<Option<Instant>> = Mutex::new(None);
    // The dialler went away meanwhile: strangers could fill the log with it.
    if error.kind() == io::ErrorKind::ConnectionAborted {
        return tracing::debug!("accepting failed: {error}");
    }
    if !lock(&TOLD).is_none_or(|told| told.elapsed() >= TELLING) {
        return;
    }
    *lock(&TOLD) = Some(Instant::now());
    if is_shortage(error) {
        let most = Capacity::of_process().descriptors;
        tracing::warn!(
            "nobody new is taken for now: all {most} files and connections that may be open are ({error}); it takes {REMEDY}"
        );
    } else {
        tracing::warn!("a connection was not taken: {error}");
    }
}

/// Whether a call failed because this process, or the machine, has no descriptor left.
pub fn is_shortage(error: &io::Error) -> bool {
    #[cfg(unix)]
    {
        use rustix::io::Errno;
        let scarce = [Errno::MFILE, Errno::NFILE].map(|errno| errno.raw_os_error());
        error.raw_os_error().is_some_and(|code| scarce.contains(&code))
    }
    #[cfg(not(unix))]
    {
        let _ = error;
        false
    }
}

#[cfg(unix)]
fn raised() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // The soft limit is low for programs that use `select`, which this one does not.
    let wanted = Rlimit { current: maximum, maximum };
    let got = if setrlimit(Resource::Nofile, wanted).is_ok() { maximum } else { current };
    got.unwrap_or(MOST)
}

#[cfg(not(unix))]
fn raised() -> u64 {
    MOST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chan_13_connections_never_take_all_descriptors() {
        for descriptors in [256, 300, 1024, 4096, 65_536, u64::MAX] {
            let capacity = Capacity::of(descriptors);
            let Capacity { channel, dialled, looks, gossip, web, .. } = capacity;
            let taken = (channel + dialled + looks + gossip + web) as u64;
            assert!(taken + FILES <= capacity.descriptors, "{capacity:?}");
            assert!(channel >= 100, "{capacity:?}");
        }
        assert!(Capacity::of(65_536).is_full() && !Capacity::of(1024).is_full());
    }

    #[test]
    fn the_limit_is_raised_and_a_shortage_is_known() {
        assert!(Capacity::of_process().descriptors > 0);
        assert!(!is_shortage(&io::ErrorKind::NotFound.into()));
        #[cfg(unix)]
        assert!(is_shortage(&rustix::io::Errno::MFILE.into()));
    }
}
