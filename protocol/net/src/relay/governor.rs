//! How much a relay carries: all connections together no more than its line, and each as much as the others leave (CHAN-28).

use std::time::Duration;

/// How often it is looked how much a relay carries.
pub(super) const LOOK: Duration = Duration::from_millis(500);
/// Looks in a second.
const LOOKS: u64 = 1000 / LOOK.as_millis() as u64;
/// The least that one connection may bring in a second, whatever others bring.
const SLOWEST: u64 = 32 << 10;

/// What a relay has carried since the last look.
pub struct Look {
    /// Bytes that connections brought.
    pub brought: u64,
    /// Bytes that connections were given.
    pub carried: u64,
    /// Whether connections brought more than the line takes, and wait from now on.
    pub is_full: bool,
}

/// Keeps what a relay carries within its line.
pub(super) struct Governor {
    /// Bytes a second, each way.
    line: u64,
    /// What each connection may bring in a second.
    limit: u64,
    /// Bytes that the relay was brought, and has given, until the last look.
    brought: u64,
    carried: u64,
}

impl Governor {
    /// Of a relay with this line, which has carried nothing so far.
    pub(super) fn new(line: u64) -> Self {
        Self { line, limit: line, brought: 0, carried: 0 }
    }

    /// What each connection may bring in a second.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Looks at what the relay was brought and has given so far, and bounds each connection anew.
    pub(super) fn look(&mut self, brought: u64, carried: u64) -> Look {
        let before = (self.brought, self.carried, self.limit);
        (self.brought, self.carried) = (brought, carried);
        let (brought, carried) = (brought - before.0, carried - before.1);
        self.limit = governed(self.limit, brought, self.line / LOOKS);
        Look { brought, carried, is_full: self.limit < before.2 }
    }
}

/// How much each connection may bring in a second from now on, where all have brought so much since the last look, and may bring
/// `most` between two.
fn governed(limit: u64, brought: u64, most: u64) -> u64 {
    let next = if brought > most {
        limit.saturating_mul(most) / brought
    } else if brought < most / 4 * 3 {
        limit + limit / 4
    } else {
        limit
    };
    next.min(most * LOOKS).max(SLOWEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: u64 = 4_000_000;

    /// However many bring what they may.
    #[test]
    fn chan_28_what_a_relay_carries_stays_within_its_line() {
        for connections in [1, 3, 64] {
            let (most, mut governor) = (LINE / LOOKS, Governor::new(LINE));
            let (mut all, looks) = (0, 200);
            for _ in 0..looks {
                all += connections * governor.limit() / LOOKS;
                governor.look(all, all);
            }
            let mean = all / looks;
            // Those of the first half second count as well.
            let first = connections * LINE / LOOKS / looks;
            assert!(mean <= most + most / 8 + first, "{connections}: {mean} of {most}");
            assert!(mean >= most / 2, "{connections}: {mean} of {most}");
            // A quiet moment gives it back.
            for _ in 0..40 {
                governor.look(all, all);
            }
            assert_eq!(governor.limit(), LINE);
        }
    }
}
