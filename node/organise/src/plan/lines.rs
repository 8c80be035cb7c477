//! Lines and times as people say them.

use super::exchange::Link;

/// Members of a plan at most: a recursion is played for each turn of each.
pub const MEMBERS: usize = 256;

/// So many lines of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lines {
    /// How many.
    pub count: usize,
    /// Each.
    pub link: Link,
}

/// Reads lines of one kind: `[Nx]UP[/DOWN]` in Mbit/s.
///
/// # Errors
/// What is expected.
pub fn lines(text: &str) -> Result<Lines, String> {
    let expected =
        || format!("expected [Nx]UP[/DOWN] in Mbit/s, like 100, 4/40 or 3x20/100, with N up to {MEMBERS}");
    let (count, rates) = match text.split_once('x') {
        Some((count, rates)) => (count.parse().map_err(|_| expected())?, rates),
        None => (1, text),
    };
    let (up, down) = rates.split_once('/').unwrap_or((rates, rates));
    let rate =
        |text: &str| text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0 && *rate <= 1e6);
    match (rate(up), rate(down)) {
        (Some(up), Some(down)) if (1..=MEMBERS).contains(&count) => {
            Ok(Lines { count, link: Link::megabits(up, down) })
        }
        _ => Err(expected()),
    }
}

/// Reads seconds.
///
/// # Errors
/// What is expected.
pub fn time(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds > 0.0);
    seconds.ok_or_else(|| "expected seconds above 0".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_people_say_them() {
        let read = |text: &str| lines(text).unwrap();
        assert_eq!(read("100"), Lines { count: 1, link: Link::megabits(100.0, 100.0) });
        assert_eq!(read("3x4/40"), Lines { count: 3, link: Link::megabits(4.0, 40.0) });
        for wrong in ["", "x", "0x1", "257x1", "-1", "1/0", "1/2/3", "nan", "inf", "2xx1"] {
            assert!(lines(wrong).is_err(), "{wrong}");
        }
    }
}
