//! Words for people.

use muster_core::ledger::Service;

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

/// What audits have come to by the sealed records: the same for a verifier, its steward and everybody else, and after every
/// restart (STAND-12).
pub fn audits(service: &Service) -> String {
    let Service { passed, convicted, idle, .. } = service;
    let idle = match idle {
        0 => String::new(),
        1 => ", once left undone".into(),
        times => format!(", {times} times left undone"),
    };
    format!("{} passed, {convicted} found guilty{idle}", counted(*passed, "audit"))
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

    #[test]
    fn audits_are_told_by_what_is_sealed() {
        let mut service = Service { passed: 1, ..Service::default() };
        assert_eq!(audits(&service), "1 audit passed, 0 found guilty");
        (service.passed, service.convicted, service.idle) = (12, 1, 2);
        assert_eq!(audits(&service), "12 audits passed, 1 found guilty, 2 times left undone");
    }
}
