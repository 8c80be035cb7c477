//! Words for people.

/// A number of things: `1 node`, `2 nodes`, `2 leaves`.
pub fn counted(number: impl TryInto<u64>, noun: &str) -> String {
    // No count here comes near the bound of a u64.
    match (number.try_into().unwrap_or(u64::MAX), noun.strip_suffix("leaf")) {
        (1, _) => format!("1 {noun}"),
        (number, Some(before)) => format!("{number} {before}leaves"),
        (number, None) => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_thing_takes_no_s() {
        assert_eq!([0, 1, 2].map(|number: usize| counted(number, "node")), ["0 nodes", "1 node", "2 nodes"]);
        assert_eq!([1, 2].map(|number: u32| counted(number, "leaf")), ["1 leaf", "2 leaves"]);
    }
}
