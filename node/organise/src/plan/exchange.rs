//! How long the bytes of one exchange take, by the way in which members combine them.

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

    /// Each member combines an equal part, as this program has it.
    pub fn equal_parts(&self) -> Cost {
        self.parts(&vec![1.0 / self.members(); self.links.len()])
    }

    /// Each combines as much as its line carries, so that all end at once; equal parts where these are faster, since shares are of
    /// a time without the wait between the two phases.
    pub fn filled_parts(&self) -> Cost {
        let (filled, equal) = (self.parts(&self.shares()), self.equal_parts());
        if filled.seconds < equal.seconds { filled } else { equal }
    }

    /// Two phases, each as long as its slowest line: contributions to those that combine them, then results to everybody.
    fn parts(&self, shares: &[f64]) -> Cost {
        let (others, c, r) = (self.members() - 1.0, self.contribution, self.results);
        let slowest = |seconds: &dyn Fn(f64, &Link) -> f64| {
            shares.iter().zip(&self.links).map(|(share, link)| seconds(*share, link)).fold(0.0, f64::max)
        };
        let first = slowest(&|share, link| ((1.0 - share) * c / link.up).max(share * others * c / link.down));
        let second =
            slowest(&|share, link| (share * others * r / link.up).max((1.0 - share) * r / link.down));
        let sent: f64 = shares.iter().map(|share| (1.0 - share) * c + share * others * r).sum();
        Cost { seconds: first + second + 4.0 * self.latency, sent: sent / self.members() }
    }

    /// DeDLOC's optimisation: the shares of the least time in which all lines carry what they have to.
    fn shares(&self) -> Vec<f64> {
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
        let (others, c, r) = (self.members() - 1.0, self.contribution, self.results);
        let side = |rate: f64, own: f64, of_others: f64| -> Option<(f64, f64)> {
            // own·(1 − p) + of_others·p ≤ rate·time
            let (slope, room) = (of_others - own, rate * time - own);
            match slope {
                slope if slope > 0.0 => (room >= 0.0).then_some((0.0, room / slope)),
                slope if slope < 0.0 => Some((room / slope, 1.0)),
                _ => (room >= 0.0).then_some((0.0, 1.0)),
            }
        };
        let (up, down) = (side(link.up, c, others * r)?, side(link.down, r, others * c)?);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(links: &[(f64, f64)]) -> Exchange {
        let links = links.iter().map(|(up, down)| Link { up: *up, down: *down }).collect();
        Exchange { links, server: Link { up: 4.0, down: 4.0 }, contribution: 4.0, results: 4.0, latency: 0.0 }
    }

    #[test]
    fn equal_lines_have_equal_parts_and_a_ring_is_as_fast() {
        let equal = exchange(&[(1.0, 1.0); 4]);
        // Three quarters of four bytes go out and come in, twice.
        assert_eq!(equal.equal_parts(), Cost { seconds: 6.0, sent: 6.0 });
        assert!((equal.filled_parts().seconds - 6.0).abs() < 1e-6);
        assert_eq!(equal.ring(), Cost { seconds: 6.0, sent: 6.0 });
        assert_eq!(equal.server(), Cost { seconds: 8.0, sent: 4.0 });
    }

    #[test]
    fn filled_parts_spare_slow_lines_and_are_never_slower() {
        let uneven = exchange(&[(0.5, 4.0), (8.0, 8.0), (8.0, 8.0), (8.0, 8.0)]);
        let (equal, filled) = (uneven.equal_parts().seconds, uneven.filled_parts().seconds);
        assert!(filled < 0.8 * equal, "{filled} {equal}");
        assert!(filled >= 4.0 / 0.5, "its own bytes take that long");
        let shares = uneven.shares();
        assert!(shares[0] < 0.05 && (shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
        for seed in 1..40_u32 {
            let rate =
                |number: u32| 0.5 + f64::from(seed.wrapping_mul(number).wrapping_mul(2_654_435_761) % 100);
            let any = exchange(&[(rate(1), rate(2)), (rate(3), rate(4)), (rate(5), rate(6))]);
            let (equal, filled) = (any.equal_parts().seconds, any.filled_parts().seconds);
            assert!(filled <= equal, "{filled} {equal} {:?}", any.links);
        }
    }
}
