//! How long the bytes of one exchange take, by the way in which members combine them.

use muster_core::assign::{TimedShare, parts_each, timed_classes};
use muster_core::ids::ShareClass;
use muster_core::limits;

/// Rounds in which share classes find their places.
const ROUNDS: usize = 64;

/// A member's line, or the steward's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes a second away from it.
    pub up: f64,
    /// Bytes a second towards it.
    pub down: f64,
}

impl Link {
    /// Of these rates in Mbit/s.
    pub fn megabits(up: f64, down: f64) -> Self {
        Self { up: up * 125e3, down: down * 125e3 }
    }

    fn slower(&self) -> f64 {
        self.up.min(self.down)
    }
}

/// What an exchange moves, and over which lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// The members' lines, of two members at least.
    pub links: Vec<Link>,
    /// That of the one server.
    pub server: Link,
    /// Bytes of a contribution.
    pub contribution: f64,
    /// Bytes of the results of all parts.
    pub results: f64,
    /// Seconds from one member to another, one way.
    pub latency: f64,
}

/// The bytes that the members of an exchange send, on average, and its seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Seconds.
    pub seconds: f64,
    /// Bytes a member sends.
    pub sent: f64,
}

impl Exchange {
    fn members(&self) -> f64 {
        self.links.len() as f64
    }

    /// Each member combines an equal part, as this program has it where lines are alike.
    pub fn equal_parts(&self) -> Cost {
        self.parts(&vec![1.0 / self.members(); self.links.len()])
    }

    /// Each combines as many whole parts as its share class gives it: what this program comes to after some rounds.
    pub fn filled_parts(&self) -> Cost {
        self.parts(&self.shares())
    }

    /// Each combines as much as its line carries, so that all end at once; equal parts where these are faster, since shares are of
    /// a time without the wait between the two phases.
    pub fn best_parts(&self) -> Cost {
        let (best, equal) = (self.parts(&self.best_shares()), self.equal_parts());
        if best.seconds < equal.seconds { best } else { equal }
    }

    /// LEDGER-25: the shares of members whose classes follow from how long their values took, round after round.
    fn shares(&self) -> Vec<f64> {
        let mut classes = vec![ShareClass(limits::SHARE_FIRST); self.links.len()];
        let mut shares = whole_parts(&classes);
        for _ in 0..ROUNDS {
            let next = self.classes_after(&classes, &shares);
            if next == classes {
                break;
            }
            classes = next;
            shares = whole_parts(&classes);
        }
        shares
    }

    fn classes_after(&self, classes: &[ShareClass], shares: &[f64]) -> Vec<ShareClass> {
        // ROUND-40: a member without a part has no time.
        let timed: Vec<usize> = (0..classes.len()).filter(|member| shares[*member] > 0.0).collect();
        let time = |member: &usize| {
            let (link, all) = (&self.links[*member], self.results / self.server.down);
            // To all others and to the steward, which takes everybody's at once.
            let seconds = (shares[*member] * self.members() * self.results / link.up).max(all);
            TimedShare { class: classes[*member], time: (1e3 * seconds) as u64 }
        };
        let after = timed_classes(&timed.iter().map(time).collect::<Vec<_>>());
        let mut classes = classes.to_vec();
        timed.into_iter().zip(after).for_each(|(member, class)| classes[member] = class);
        classes
    }

    /// Two phases, each as long as its slowest line: contributions to those that combine them, then results to everybody. The
    /// steward takes part in both: it keeps what a member would keep of itself (ROUND-15), and has all results.
    fn parts(&self, shares: &[f64]) -> Cost {
        let (all, others, c, r) = (self.members(), self.members() - 1.0, self.contribution, self.results);
        let slowest = |seconds: &dyn Fn(f64, &Link) -> f64| {
            shares.iter().zip(&self.links).map(|(share, link)| seconds(*share, link)).fold(0.0, f64::max)
        };
        let first = slowest(&|share, link| (c / link.up).max(share * others * c / link.down));
        let second = slowest(&|share, link| (share * all * r / link.up).max((1.0 - share) * r / link.down));
        let sent: f64 = shares.iter().map(|share| c + share * all * r).sum();
        Cost { seconds: first + second + 4.0 * self.latency, sent: sent / self.members() }
    }

    /// DeDLOC's optimisation: the shares of the least time in which all lines carry what they have to.
    fn best_shares(&self) -> Vec<f64> {
        let fits =
            |time: f64| -> Option<Vec<f64>> { self.links.iter().map(|link| self.most(link, time)).collect() };
        let (mut low, mut high) = (0.0, self.equal_parts().seconds + 1.0);
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            let enough = fits(middle).is_some_and(|shares| shares.iter().sum::<f64>() >= 1.0);
            if enough { high = middle } else { low = middle }
        }
        let shares = fits(high).unwrap_or_else(|| vec![1.0; self.links.len()]);
        let all: f64 = shares.iter().sum();
        shares.iter().map(|share| share / all).collect()
    }

    /// The largest share that a line carries in this time, both ways; none where it does not even carry the member's own bytes.
    fn most(&self, link: &Link, time: f64) -> Option<f64> {
        let (all, others, c, r) = (self.members(), self.members() - 1.0, self.contribution, self.results);
        let side = |rate: f64, own: f64, slope: f64| -> Option<(f64, f64)> {
            // own + slope·p ≤ rate·time
            let room = rate * time - own;
            match slope {
                slope if slope > 0.0 => (room >= 0.0).then_some((0.0, room / slope)),
                slope if slope < 0.0 => Some((room / slope, 1.0)),
                _ => (room >= 0.0).then_some((0.0, 1.0)),
            }
        };
        let (up, down) = (side(link.up, c, all * r)?, side(link.down, r, others * c - r)?);
        let (least, most) = (up.0.max(down.0), up.1.min(down.1).min(1.0));
        (least <= most).then_some(most.max(0.0))
    }

    /// One server combines everything.
    pub fn server(&self) -> Cost {
        let (n, c, r) = (self.members(), self.contribution, self.results);
        let slowest = |seconds: fn(&Link) -> f64| self.links.iter().map(seconds).fold(0.0, f64::max);
        let first = (n * c / self.server.down).max(c * slowest(|link| 1.0 / link.up));
        let second = (n * r / self.server.up).max(r * slowest(|link| 1.0 / link.down));
        Cost { seconds: first + second + 2.0 * self.latency, sent: c }
    }

    /// Parts go round a ring twice: summed on the way, then shown.
    pub fn ring(&self) -> Cost {
        let (n, slowest) =
            (self.members(), self.links.iter().map(Link::slower).fold(f64::INFINITY, f64::min));
        let turns = n - 1.0;
        let seconds = turns * ((self.contribution + self.results) / (n * slowest) + 2.0 * self.latency);
        Cost { seconds, sent: turns / n * (self.contribution + self.results) }
    }

    /// The seconds of a whole contribution from one member to another.
    pub(super) fn edge(&self, from: usize, to: usize) -> f64 {
        let (from, to) = (&self.links[from], &self.links[to]);
        self.contribution / from.up.min(to.down) + self.latency
    }
}

/// The shares of members of these classes.
fn whole_parts(classes: &[ShareClass]) -> Vec<f64> {
    let parts = parts_each(classes);
    let all = parts.iter().sum::<usize>().max(1) as f64;
    parts.into_iter().map(|parts| parts as f64 / all).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(links: &[(f64, f64)]) -> Exchange {
        let links = links.iter().map(|(up, down)| Link { up: *up, down: *down }).collect();
        Exchange { links, server: Link { up: 4.0, down: 4.0 }, contribution: 4.0, results: 4.0, latency: 0.0 }
    }

    #[test]
    fn equal_lines_have_equal_parts_and_a_ring_spares_what_the_steward_takes() {
        let equal = exchange(&[(1.0, 1.0); 4]);
        // Four bytes go out, and a quarter of four goes to three others and the steward.
        assert_eq!(equal.equal_parts(), Cost { seconds: 8.0, sent: 8.0 });
        assert_eq!(equal.filled_parts(), equal.equal_parts());
        // Three quarters of four bytes go out and come in, twice.
        assert_eq!(equal.ring(), Cost { seconds: 6.0, sent: 6.0 });
        assert_eq!(equal.server(), Cost { seconds: 8.0, sent: 4.0 });
    }

    #[test]
    fn the_best_parts_spare_slow_lines_and_are_never_slower() {
        let uneven = exchange(&[(0.5, 4.0), (8.0, 8.0), (8.0, 8.0), (8.0, 8.0)]);
        let (equal, best) = (uneven.equal_parts().seconds, uneven.best_parts().seconds);
        assert!(best < 0.8 * equal, "{best} {equal}");
        assert!(best >= 4.0 / 0.5, "its own bytes take that long");
        let shares = uneven.best_shares();
        assert!(shares[0] < 0.05 && (shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
        for seed in 1..40_u32 {
            let rate =
                |number: u32| 0.5 + f64::from(seed.wrapping_mul(number).wrapping_mul(2_654_435_761) % 100);
            let any = exchange(&[(rate(1), rate(2)), (rate(3), rate(4)), (rate(5), rate(6))]);
            let (equal, best) = (any.equal_parts().seconds, any.best_parts().seconds);
            assert!(best <= equal, "{best} {equal} {:?}", any.links);
        }
    }

    /// 10.7 million parameters, as `muster plan` counts their bytes.
    fn homes(links: &[(f64, f64)]) -> Exchange {
        let links = links.iter().map(|(up, down)| Link::megabits(*up, *down)).collect();
        let server = Link::megabits(1000.0, 1000.0);
        Exchange { links, server, contribution: 17.9e6, results: 9.2e6, latency: 0.015 }
    }

    #[test]
    fn parts_by_class_come_close_to_the_best_ones() {
        for links in [
            &[(4.0, 40.0), (100.0, 100.0), (100.0, 100.0), (100.0, 100.0)][..],
            &[(10.0, 10.0), (50.0, 50.0), (100.0, 100.0), (1000.0, 1000.0)],
            &[(10.0, 50.0), (10.0, 50.0), (20.0, 100.0), (40.0, 250.0), (1000.0, 1000.0)],
            &[(20.0, 100.0); 6],
        ] {
            let lines = homes(links);
            let (filled, best) = (lines.filled_parts().seconds, lines.best_parts().seconds);
            assert!(filled <= 1.15 * best, "{filled} {best} {:?}", lines.shares());
        }
        let slow = homes(&[(4.0, 40.0), (100.0, 100.0), (100.0, 100.0), (100.0, 100.0)]);
        assert_eq!(slow.shares()[0], 0.0, "its own contribution is enough");
        assert!(slow.filled_parts().seconds * 1.3 < slow.equal_parts().seconds);
    }
}
