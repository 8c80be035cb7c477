//! Words for people.

/// A number of things: `1 node`, `2 nodes`. The noun takes an s.
pub fn counted(number: impl TryInto<u64>, noun: &str) -> String {
    // No count here comes near the bound of a u64.
    match number.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_thing_takes_no_s() {
        assert_eq!([0, 1, 2].map(|number: usize| counted(number, "node")), ["0 nodes", "1 node", "2 nodes"]);
    }
}
