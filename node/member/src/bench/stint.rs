//! How much of a processor this program has while it measures: on a busy machine it has a part.

use std::time::{Duration, Instant};

/// Something that one thread computes without a pause, from now on.
pub(super) struct Stint {
    began: Instant,
    computed: Option<Duration>,
}

impl Stint {
    pub(super) fn begin() -> Self {
        Self { began: Instant::now(), computed: computed() }
    }

    /// The share of a processor that this program has had since; none where the system does not tell.
    pub(super) fn share(&self) -> Option<f64> {
        let had = computed()?.saturating_sub(self.computed?);
        Some(had.as_secs_f64() / self.began.elapsed().as_secs_f64().max(1e-9))
    }
}

/// What processors have computed for this thread.
#[cfg(unix)]
fn computed() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Some(Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?))
}

#[cfg(not(unix))]
fn computed() -> Option<Duration> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_others_has_no_processor() {
        let stint = Stint::begin();
        std::thread::sleep(Duration::from_millis(50));
        assert!(stint.share().unwrap() < 0.5);
        let before = computed().unwrap();
        while computed().unwrap() < before + Duration::from_millis(20) {}
        assert!(stint.computed.unwrap() < computed().unwrap());
    }
}
