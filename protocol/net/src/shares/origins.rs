//! Where members come from, so that they need not wait for what strangers elsewhere do.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use muster_core::ids::MemberId;

use crate::source::Source;

/// Sources of one member that are remembered: at home, on the way, and of whoever had the address before.
const OF_ONE: usize = 4;
/// For how long, since it last came from there.
pub(super) const REMEMBERED: Duration = Duration::from_secs(3600);

/// The newest sources of each member. None has more of them because it comes from many, and none loses its own because
/// others do.
#[derive(Default)]
pub(super) struct Origins {
    /// The newest last.
    by_member: BTreeMap<MemberId, VecDeque<Source>>,
    /// When a member last came from there, and how many members have it among theirs.
    by_source: BTreeMap<Source, (Instant, usize)>,
}

impl Origins {
    /// A member comes from there.
    pub(super) fn came(&mut self, member: MemberId, source: Source, now: Instant) {
        let sources = self.by_member.entry(member).or_default();
        let before = sources.iter().position(|known| *known == source);
        if let Some(place) = before {
            sources.remove(place);
        }
        sources.push_back(source);
        let oldest = if sources.len() > OF_ONE { sources.pop_front() } else { None };
        let (seen, members) = self.by_source.entry(source).or_insert((now, 0));
        *seen = now;
        *members += usize::from(before.is_none());
        if let Some(oldest) = oldest
            && let Some((_, members)) = self.by_source.get_mut(&oldest)
        {
            *members -= 1;
            if *members == 0 {
                self.by_source.remove(&oldest);
            }
        }
    }

    /// Whether a member came from there lately.
    pub(super) fn knows(&self, source: Source, now: Instant) -> bool {
        let lately = |(seen, _): &(Instant, usize)| now.saturating_duration_since(*seen) < REMEMBERED;
        self.by_source.get(&source).is_some_and(lately)
    }

    /// Whether a source is among the newest of a member.
    pub(super) fn has(&self, member: &MemberId, source: Source) -> bool {
        self.by_member.get(member).is_some_and(|sources| sources.contains(&source))
    }

    /// The newest source of each member.
    pub(super) fn newest(&self) -> impl Iterator<Item = (MemberId, Source)> + '_ {
        self.by_member.iter().filter_map(|(member, sources)| Some((*member, *sources.back()?)))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn source(number: u32) -> Source {
        Source::of(Ipv4Addr::from_bits(0x0a00_0000 + number).into())
    }

    #[test]
    fn chan_15_a_member_that_comes_from_everywhere_makes_nobody_elses_source_forgotten() {
        let (mut origins, now) = (Origins::default(), Instant::now());
        let [one, other] = [1, 2].map(|byte| MemberId([byte; 32]));
        origins.came(one, source(0), now);
        origins.came(other, source(1), now);
        (2..10_000).for_each(|number| origins.came(other, source(number), now));
        assert!(origins.knows(source(0), now), "the other member's");
        let known = (1..10_000).filter(|number| origins.knows(source(*number), now)).count();
        assert_eq!((known, origins.by_source.len()), (OF_ONE, OF_ONE + 1), "its own newest");
    }

    #[test]
    fn chan_15_a_source_is_known_as_long_as_one_member_has_it() {
        let (mut origins, now) = (Origins::default(), Instant::now());
        let [one, other] = [1, 2].map(|byte| MemberId([byte; 32]));
        [one, other, one].into_iter().for_each(|member| origins.came(member, source(0), now));
        (1..9).for_each(|number| origins.came(one, source(number), now));
        assert!(origins.knows(source(0), now));
        (9..18).for_each(|number| origins.came(other, source(number), now));
        assert!(!origins.knows(source(0), now));
        assert!(origins.knows(source(8), now) && !origins.knows(source(8), now + REMEMBERED));
        assert!(origins.newest().eq([(one, source(8)), (other, source(17))]));
    }
}
