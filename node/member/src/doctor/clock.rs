//! Whether the clock is one that invitations and certificates can be judged by.

use std::time::{Duration, Instant, SystemTime};

use muster_core::messages::enrol::Ticket;
use muster_net::clock::{REMEDY, implausible, now, utc};

use super::finding::Finding;

/// How far clocks may jump during an examination: one that is set by the network is moved by milliseconds.
const JUMP: Duration = Duration::from_millis(500);

/// Both clocks of the machine, at the beginning of an examination.
pub struct Watch {
    wall: SystemTime,
    steady: Instant,
}

impl Watch {
    /// Looks at both.
    pub fn start() -> Self {
        Self { wall: SystemTime::now(), steady: Instant::now() }
    }

    /// How much farther one has gone than the other since.
    fn jump(&self) -> Duration {
        let steady = self.steady.elapsed();
        let wall = self.wall.elapsed();
        wall.map_or_else(|back| back.duration() + steady, |wall| wall.abs_diff(steady))
    }

    /// Judges the clock now. `reached`: whether a channel to a steward was opened meanwhile, which checks its clock against
    /// ours: a certificate holds for a day (CHAN-3).
    pub fn judge(&self, reached: bool) -> Finding {
        judge(now(), self.jump(), reached)
    }
}

fn judge(now: u64, jump: Duration, reached: bool) -> Finding {
    let care = |found: String| Finding::care("clock", found, REMEDY);
    if let Some(found) = implausible(now) {
        return care(found);
    }
    if jump > JUMP {
        return care(format!("{}, but it jumped by {:.1} s just now", utc(now), jump.as_secs_f64()));
    }
    let agrees = if reached { "; the steward's is less than a day away" } else { "" };
    Finding::good("clock", format!("{}, and steady{agrees}", utc(now)))
}

/// Whether an invitation can still be used, by this machine's clock.
pub fn invitation(ticket: &Ticket) -> Finding {
    let Some(pass) = &ticket.pass else {
        return Finding::good("invitation", "leads to a listed or open run, and is itself no leave to enter");
    };
    // The line was checked when it was read: signature and secret fit.
    match pass.verify(ticket.run) {
        Ok(invited) => usable(invited.role.word(), invited.expires, now()),
        Err(reject) => {
            let remedy = "ask the organiser for another one";
            Finding::care("invitation", format!("is not valid ({reject})"), remedy)
        }
    }
}

fn usable(role: &str, expires: u64, now: u64) -> Finding {
    if expires > now {
        return Finding::good("invitation", format!("for a {role}, until {}", utc(expires)));
    }
    let remedy = "ask the organiser for another one; if you are a member already, you need none";
    Finding::care("invitation", format!("for a {role}, expired since {}", utc(expires)), remedy)
}

#[cfg(test)]
mod tests {
    use muster_net::clock::EARLIEST;

    use super::*;

    #[test]
    fn a_clock_that_cannot_be_right_needs_care() {
        let none = Duration::ZERO;
        let good = judge(EARLIEST + 1, none, false);
        assert!(good.is_good() && !good.line().contains("steward"), "{good:?}");
        assert!(judge(EARLIEST, none, true).line().contains("steward"));
        for (now, jump, why) in [
            (0, none, "before this program was made"),
            (EARLIEST + 1, Duration::from_secs(3), "jumped by 3.0 s"),
        ] {
            let finding = judge(now, jump, false);
            let line = finding.line();
            assert!(!finding.is_good() && line.contains(why) && line.contains("timedatectl"), "{line}");
        }
    }

    #[test]
    fn this_machines_clocks_go_together() {
        let watch = Watch::start();
        assert!(watch.jump() < JUMP);
        let ahead = Watch { wall: watch.wall + Duration::from_secs(60), ..watch };
        assert!(ahead.jump() > Duration::from_secs(59));
    }

    #[test]
    fn an_invitation_that_has_expired_needs_care() {
        assert!(usable("node", 100, 99).is_good());
        let expired = usable("verifier", 100, 100);
        assert!(!expired.is_good() && expired.line().contains("expired since 1970-01-01"), "{expired:?}");
    }
}
