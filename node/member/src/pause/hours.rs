//! Hours of a day, in local time.

use std::fmt;

use chrono::{NaiveTime, TimeDelta};

/// From one time of the day to another, possibly over midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours {
    from: NaiveTime,
    to: NaiveTime,
}

impl Hours {
    /// How long until they begin; none while they last.
    fn begins_in(self, now: NaiveTime) -> Option<TimeDelta> {
        let until = |time: NaiveTime| {
            let wait = time.signed_duration_since(now);
            if wait < TimeDelta::zero() { wait + TimeDelta::days(1) } else { wait }
        };
        // Whatever comes first of beginning and end says which of both it is now.
        let (begins, ends) = (until(self.from), until(self.to));
        let over = ends.is_zero() || begins < ends;
        (over && !begins.is_zero()).then_some(begins)
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |time: NaiveTime| {
            time.format(if time.format("%S").to_string() == "00" { "%H:%M" } else { "%H:%M:%S" })
        };
        write!(f, "{}-{}", time(self.from), time(self.to))
    }
}

/// How long until any of these begin; none while some last, and where there are none.
pub(super) fn opens_in(hours: &[Hours], now: NaiveTime) -> Option<TimeDelta> {
    let waits: Option<Vec<TimeDelta>> = hours.iter().map(|hours| hours.begins_in(now)).collect();
    waits?.into_iter().min()
}

/// Reads hours like 22:00-07:00; seconds may be given as well.
///
/// # Errors
/// What is expected.
pub fn parse_hours(text: &str) -> Result<Hours, String> {
    let time = |text: &str| {
        let formats = ["%H:%M", "%H:%M:%S"];
        formats.iter().find_map(|format| NaiveTime::parse_from_str(text, format).ok())
    };
    let read = text.split_once('-').and_then(|(from, to)| Some((time(from)?, time(to)?)));
    let hours = read.filter(|(from, to)| from != to).map(|(from, to)| Hours { from, to });
    hours.ok_or_else(|| "expected two different times of the day, like 22:00-07:00".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opens(hours: &[&str], now: &str) -> Option<i64> {
        let hours: Vec<Hours> = hours.iter().map(|hours| parse_hours(hours).unwrap()).collect();
        opens_in(&hours, now.parse().unwrap()).map(|wait| wait.num_seconds())
    }

    #[test]
    fn hours_may_pass_midnight_and_several_add_up() {
        assert_eq!(opens(&[], "12:00:00"), None);
        for now in ["22:00:00", "23:59:59", "00:00:00", "06:59:59"] {
            assert_eq!(opens(&["22:00-07:00"], now), None, "{now}");
        }
        assert_eq!(opens(&["22:00-07:00"], "07:00:00"), Some(15 * 3600));
        assert_eq!(opens(&["22:00-07:00"], "21:59:59"), Some(1));
        assert_eq!(opens(&["09:00-17:00:30"], "17:00:29"), None);
        assert_eq!(opens(&["09:00-17:00:30"], "17:00:30"), Some(16 * 3600 - 30));
        assert_eq!(opens(&["22:00-07:00", "12:00-13:00"], "12:30:00"), None);
        assert_eq!(opens(&["22:00-07:00", "12:00-13:00"], "11:00:00"), Some(3600));
    }

    #[test]
    fn what_are_no_hours_is_refused() {
        assert_eq!(parse_hours("9:00-17:00").unwrap().to_string(), "09:00-17:00");
        for wrong in ["", "9", "22:00", "22-7", "25:00-07:00", "07:00-07:00", "22:00-", "22:00-07:60"] {
            assert!(parse_hours(wrong).is_err(), "{wrong}");
        }
    }
}
