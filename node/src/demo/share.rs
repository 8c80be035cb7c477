//! How many of the nodes play an attack: `NAME`, `NAME:2`, `NAME:25%`.

use std::str::FromStr;

use muster_core::error::Misuse;

use crate::attack::Attack;

/// An attack and its share of the nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    attack: Attack,
    count: Count,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Count {
    Number(u16),
    /// Of all nodes.
    Percent(f64),
}

impl Share {
    /// Its attackers among so many nodes: at least one.
    pub(super) fn attackers(&self, nodes: u16) -> impl Iterator<Item = Attack> + use<> {
        let count = match self.count {
            Count::Number(count) => count,
            Count::Percent(share) => ((share / 100.0 * f64::from(nodes)).round() as u16).max(1),
        };
        std::iter::repeat_n(self.attack, count.into())
    }
}

impl FromStr for Share {
    type Err = Misuse;

    fn from_str(text: &str) -> Result<Self, Misuse> {
        let (name, count) = text.split_once(':').unwrap_or((text, "1"));
        let attack = name.parse()?;
        let wrong =
            || Misuse(format!("{count:?} is neither a number of nodes, from 1, nor a share like 25%"));
        let count = match count.strip_suffix('%') {
            Some(share) => {
                let share = share.parse().ok().filter(|share: &f64| *share > 0.0 && *share <= 100.0);
                Count::Percent(share.ok_or_else(wrong)?)
            }
            None => Count::Number(count.parse().ok().filter(|count| *count > 0).ok_or_else(wrong)?),
        };
        Ok(Self { attack, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_numbers_or_percentages() {
        let count = |text: &str| text.parse::<Share>().unwrap().attackers(8).count();
        assert_eq!(["flip", "flip:3", "flip:25%", "flip:1%", "flip:30%"].map(count), [1, 3, 2, 1, 2]);
        for wrong in ["flop", "flip:", "flip:0", "flip:-1", "flip:0%", "flip:101%", "flip:NaN%", "flip:%"] {
            assert!(wrong.parse::<Share>().is_err(), "{wrong}");
        }
    }
}
