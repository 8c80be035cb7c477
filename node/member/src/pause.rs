//! When a volunteer's machine is not to work for the run: outside its hours, once the day's traffic is used up, while others use
//! the machine, or on battery.
//!
//! A pause lets nobody wait. The member says that it rests (LEDGER-24), finishes the round in which it has a seat, answers for what
//! it has committed to, and closes everything. It comes back by itself.

mod hours;
mod others;
mod power;
mod traffic;

use std::path::Path;
use std::time::Duration;

use chrono::{DateTime, Local, TimeDelta};
use muster_replica::memory::shown;
use muster_store::error::StoreError;
use muster_store::home::Home;
use muster_view::status::Paused;
use tokio::time::{Instant, sleep_until};

pub use self::hours::{Hours, parse_hours};
use self::others::Others;
use self::power::Power;
use self::traffic::Meter;
use crate::JoinError;

/// How often it is looked whether to pause: often enough for whoever comes back to the machine, and for traffic.
const LOOK: Duration = Duration::from_secs(5);

/// When a volunteer's machine is not to work for the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restraint {
    /// When it may work, in local time; always where there are none.
    pub hours: Vec<Hours>,
    /// Most bytes of a day over its channels, both ways together.
    pub traffic: Option<u64>,
    /// Not while other programs use its processor.
    pub busy: bool,
    /// Not on battery.
    pub battery: bool,
}

/// Looks whether to pause.
pub(crate) struct Watch {
    restraint: Restraint,
    meter: Option<Meter>,
    others: Option<Others>,
    power: Option<Power>,
    next: Instant,
    paused: Option<Paused>,
}

impl Watch {
    /// Of a member with this directory.
    ///
    /// # Errors
    /// [`JoinError`] where the system does not tell what is asked for, or a disk fails.
    pub(crate) fn new(restraint: Restraint, home: &Path) -> Result<Self, JoinError> {
        let meter = restraint.traffic.map(|_| Meter::open(home, today())).transpose()?;
        let unknown = || {
            JoinError::Environment(
                "--pause-when busy: this system does not tell how busy its processor is (Linux does, in /proc/stat); leave it out, \
                 and name --hours instead"
                    .into(),
            )
        };
        let others = restraint.busy.then(|| Others::new().ok_or_else(unknown)).transpose()?;
        let power = restraint.battery.then(Power::of_system);
        if power.as_ref().is_some_and(|power| power.on_battery().is_none()) {
            tracing::warn!(
                "--pause-when battery: this system names no battery and no mains (Linux does, in /sys/class/power_supply), so that \
                 it is never taken to be on battery"
            );
        }
        Ok(Self { restraint, meter, others, power, next: Instant::now(), paused: None })
    }

    /// Waits until it is time to look again.
    pub(crate) async fn due(&self) {
        sleep_until(self.next).await;
    }

    /// Looks whether to pause now, while the membership under way has carried so many bytes in all. Gives whether that has changed.
    pub(crate) fn look(&mut self, carried: u64) -> bool {
        self.next = Instant::now() + LOOK;
        let now = Local::now();
        self.meter.iter_mut().for_each(|meter| meter.count(carried, now.date_naive()));
        let busy = self.others.as_mut().is_some_and(|others| others.are_busy(std::time::Instant::now()));
        let paused = self.reason(now, busy);
        let changes = paused.is_some() != self.paused.is_some();
        self.paused = paused;
        changes
    }

    /// Another membership begins to count its traffic.
    pub(crate) fn begin(&mut self) {
        self.meter.iter_mut().for_each(Meter::begin);
    }

    /// Writes down what the day has carried; at the end of a membership all of it.
    ///
    /// # Errors
    /// [`StoreError`] where that fails.
    pub(crate) fn keep(&mut self, home: &Home, end: bool) -> Result<(), StoreError> {
        self.meter.iter_mut().try_for_each(|meter| meter.keep(home, end))
    }

    /// Why it pauses now, if it does.
    pub(crate) fn paused(&self) -> Option<&Paused> {
        self.paused.as_ref()
    }

    fn reason(&self, now: DateTime<Local>, busy: bool) -> Option<Paused> {
        let Restraint { hours, traffic, .. } = &self.restraint;
        let paused = |why: String, until: Option<DateTime<Local>>| {
            let until = until.map(|until| until.format("%Y-%m-%d %H:%M:%S").to_string());
            Some(Paused { why, until })
        };
        // The reason that lasts longest comes first.
        if let Some((most, meter)) =
            traffic.zip(self.meter.as_ref()).filter(|(most, meter)| meter.bytes() >= *most)
        {
            let why = format!("{} of {} of --max-traffic are used up", shown(meter.bytes()), shown(most));
            return paused(why, Some(midnight(now)));
        }
        if let Some(wait) = hours::opens_in(hours, now.time()) {
            let said: Vec<String> = hours.iter().map(Hours::to_string).collect();
            return paused(
                format!("it is not within --hours {}", said.join(" ")),
                now.checked_add_signed(wait),
            );
        }
        if self.power.as_ref().and_then(Power::on_battery) == Some(true) {
            return paused("the machine is on battery".into(), None);
        }
        if busy { paused(others::WORDS.into(), None) } else { None }
    }
}

fn today() -> chrono::NaiveDate {
    Local::now().date_naive()
}

/// The end of a day, as nearly as a clock that is changed in the night allows.
fn midnight(now: DateTime<Local>) -> DateTime<Local> {
    let left = TimeDelta::days(1) - now.time().signed_duration_since(chrono::NaiveTime::MIN);
    now.checked_add_signed(left).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_days_traffic_outlasts_a_restart_and_pauses_until_midnight() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&folder.path().join("home")).unwrap();
        let restraint = Restraint { traffic: Some(1000), ..Restraint::default() };
        let mut watch = Watch::new(restraint.clone(), home.path()).unwrap();
        assert!(!watch.look(999) && watch.paused().is_none());
        watch.keep(&home, true).unwrap();
        let mut watch = Watch::new(restraint, home.path()).unwrap();
        assert!(watch.look(1) && !watch.look(1), "it changes once");
        let paused = watch.paused().cloned().expect("as many as are allowed");
        assert!(paused.why.contains("--max-traffic") && paused.until.unwrap().ends_with("00:00:00"));
    }

    #[test]
    fn it_pauses_outside_its_hours_and_says_until_when() {
        let now = Local::now();
        let around = |from: i64, to: i64| {
            let at = |minutes| (now + TimeDelta::minutes(minutes)).format("%H:%M").to_string();
            parse_hours(&format!("{}-{}", at(from), at(to))).unwrap()
        };
        let home = tempfile::tempdir().unwrap();
        let look = |hours| {
            let restraint = Restraint { hours, ..Restraint::default() };
            let mut watch = Watch::new(restraint, home.path()).unwrap();
            watch.look(0);
            watch.paused().cloned()
        };
        assert_eq!(look(vec![around(-5, 5)]), None);
        assert_eq!(look(vec![around(10, 20), around(-5, 5)]), None);
        let paused = look(vec![around(20, 30), around(10, 15)]).expect("a pause");
        let until = (now + TimeDelta::minutes(10)).format("%Y-%m-%d %H:%M:00").to_string();
        assert_eq!(paused.until, Some(until));
        assert!(paused.why.contains("--hours"));
    }
}
