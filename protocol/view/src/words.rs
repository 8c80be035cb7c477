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

/// A time that something takes, as people say it: `40 s`, `12 min`, `3 h 20 min`, `2 days`.
pub fn lasting(seconds: f64) -> String {
    let minutes = (seconds / 60.0).round() as u64;
    match (minutes / 60, minutes % 60) {
        _ if seconds < 90.0 => format!("{seconds:.0} s"),
        (0, minutes) => format!("{minutes} min"),
        (hours, 0) if hours < 48 => format!("{hours} h"),
        (hours, minutes) if hours < 48 => format!("{hours} h {minutes} min"),
        (hours, _) => format!("{} days", hours / 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        let all = [5.4, 89.0, 720.0, 7_200.0, 12_000.0, 200_000.0].map(lasting);
        assert_eq!(all, ["5 s", "89 s", "12 min", "2 h", "3 h 20 min", "2 days"]);
    }

    #[test]
    fn one_thing_takes_no_s() {
        assert_eq!([0, 1, 2].map(|number: usize| counted(number, "node")), ["0 nodes", "1 node", "2 nodes"]);
        assert_eq!([1, 2].map(|number: u32| counted(number, "leaf")), ["1 leaf", "2 leaves"]);
    }
}
