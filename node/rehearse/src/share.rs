//! How many nodes play an attack, or verifiers tell a lie: `NAME`, `NAME:2`, `NAME:25%`.

use std::str::FromStr;

use clap::ValueEnum;
use muster_core::error::Misuse;

use super::lie::Lie;
use crate::attack::Attack;

/// A cheat and its share of the nodes or, for a lie, of the verifiers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    cheat: Cheat,
    count: AttackerCount,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Cheat {
    Node(Attack),
    Verifier(Lie),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum AttackerCount {
    Number(u16),
    /// Of all nodes.
    Percent(f64),
}

impl Share {
    /// Its attackers among `nodes` nodes: at least one.
    pub(super) fn attackers(&self, nodes: u16) -> impl Iterator<Item = Attack> + use<> {
        let attack = match self.cheat {
            Cheat::Node(attack) => Some(attack),
            Cheat::Verifier(_) => None,
        };
        let count = self.of(nodes);
        attack.into_iter().flat_map(move |attack| std::iter::repeat_n(attack, count))
    }

    /// Its liars among `verifiers` verifiers: at least one.
    pub(super) fn liars(&self, verifiers: u16) -> impl Iterator<Item = Lie> + use<> {
        let lie = match self.cheat {
            Cheat::Node(_) => None,
            Cheat::Verifier(lie) => Some(lie),
        };
        let count = self.of(verifiers);
        lie.into_iter().flat_map(move |lie| std::iter::repeat_n(lie, count))
    }

    fn of(&self, all: u16) -> usize {
        match self.count {
            AttackerCount::Number(count) => count.into(),
            AttackerCount::Percent(share) => ((share / 100.0 * f64::from(all)).round() as usize).max(1),
        }
    }
}

impl FromStr for Share {
    type Err = Misuse;

    fn from_str(text: &str) -> Result<Self, Misuse> {
        let (name, count) = text.split_once(':').unwrap_or((text, "1"));
        let cheat = match Lie::from_str(name, false) {
            Ok(lie) => Cheat::Verifier(lie),
            Err(_) => Cheat::Node(name.parse()?),
        };
        let wrong =
            || Misuse(format!("{count:?} is neither a number of members, from 1, nor a share like 25%"));
        let count = match count.strip_suffix('%') {
            Some(share) => {
                let share = share.parse().ok().filter(|share: &f64| *share > 0.0 && *share <= 100.0);
                AttackerCount::Percent(share.ok_or_else(wrong)?)
            }
            None => AttackerCount::Number(count.parse().ok().filter(|count| *count > 0).ok_or_else(wrong)?),
        };
        Ok(Self { cheat, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_numbers_or_percentages() {
        let count = |text: &str| text.parse::<Share>().unwrap().attackers(8).count();
        assert_eq!(["flip", "flip:3", "flip:25%", "flip:1%", "flip:30%"].map(count), [1, 3, 2, 1, 2]);
        let lies = |text: &str| text.parse::<Share>().unwrap().liars(4).count();
        assert_eq!(["accuse", "acquit:3", "accuse:50%", "flip:2"].map(lies), [1, 3, 2, 0]);
        assert_eq!(count("acquit:3"), 0);
        for wrong in ["flop", "flip:", "flip:0", "flip:-1", "flip:0%", "flip:101%", "flip:NaN%", "flip:%"] {
            assert!(wrong.parse::<Share>().is_err(), "{wrong}");
        }
    }
}
