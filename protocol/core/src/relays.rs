//! Which members' relays lead to a member behind a router: an order that everybody computes alike (CHAN-29).

use crate::hash::{Domain, Hasher};
use crate::ids::{EndpointKey, MemberId};

/// These members in the order in which their relays are tried for a key: by the first eight bytes of `H(RELAY, key, member)`,
/// little-endian, the smallest first, and by their ids where these are equal.
///
/// Rendezvous hashing: where a member goes, only the keys that it was first for go to others.
pub fn order(key: &EndpointKey, members: impl IntoIterator<Item = MemberId>) -> Vec<MemberId> {
    let hasher = Hasher::new(Domain::RELAY).value(key);
    let mut members: Vec<MemberId> = members.into_iter().collect();
    members.sort_by_cached_key(|member| (hasher.clone().value(member).number(), *member));
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(names: core::ops::Range<u8>) -> impl Iterator<Item = MemberId> {
        names.map(|name| MemberId([name; 32]))
    }

    #[test]
    fn chan_29_everybody_has_one_order_and_who_goes_moves_only_its_own_keys() {
        let keys = (0..=255).map(|name| EndpointKey([name; 32]));
        let mut first = [0; 8];
        for key in keys {
            let all = order(&key, members(0..8));
            let mut reversed: Vec<MemberId> = members(0..8).collect();
            reversed.reverse();
            assert_eq!(order(&key, reversed), all);
            let gone = all.iter().copied().filter(|member| *member != MemberId([3; 32]));
            assert_eq!(order(&key, members(0..8).filter(|member| member.0[0] != 3)), Vec::from_iter(gone));
            first[usize::from(all[0].0[0])] += 1;
        }
        assert!(first.iter().all(|count| (16..=56).contains(count)), "each has its part: {first:?}");
    }
}
