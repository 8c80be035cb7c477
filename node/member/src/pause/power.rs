//! Whether a machine is on battery. Linux alone tells.

use std::fs;
use std::path::{Path, PathBuf};

/// Where Linux tells of batteries and mains.
const SUPPLIES: &str = "/sys/class/power_supply";

/// What supplies the machine.
pub(super) struct Power(PathBuf);

impl Power {
    pub(super) fn of_system() -> Self {
        Self(SUPPLIES.into())
    }

    /// Whether it is on battery; none where the system does not tell, or the machine has neither battery nor mains to tell of.
    pub(super) fn on_battery(&self) -> Option<bool> {
        let supplies: Vec<PathBuf> =
            fs::read_dir(&self.0).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
        // A mouse has a battery, too.
        let supplies = supplies.iter().filter(|supply| word(supply, "scope").as_deref() != Some("Device"));
        let mut told = None;
        for supply in supplies {
            match word(supply, "type").as_deref() {
                // Whichever socket has power: the machine is on mains.
                Some("Mains" | "USB") if word(supply, "online").as_deref() == Some("1") => {
                    return Some(false);
                }
                Some("Mains") => told = Some(true),
                Some("Battery") if word(supply, "status").as_deref() == Some("Discharging") => {
                    told = Some(true)
                }
                Some("Battery") => told = told.or(Some(false)),
                _ => {}
            }
        }
        told
    }
}

fn word(supply: &Path, name: &str) -> Option<String> {
    Some(fs::read_to_string(supply.join(name)).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a machine with these supplies, each of a type and another word.
    fn of(supplies: &[(&str, &str, &str)]) -> Option<bool> {
        let directory = tempfile::tempdir().unwrap();
        for (number, (kind, name, word)) in supplies.iter().enumerate() {
            let supply = directory.path().join(number.to_string());
            fs::create_dir(&supply).unwrap();
            fs::write(supply.join("type"), format!("{kind}\n")).unwrap();
            fs::write(supply.join(name), format!("{word}\n")).unwrap();
        }
        Power(directory.path().into()).on_battery()
    }

    #[test]
    fn a_machine_is_on_battery_where_no_mains_supplies_it() {
        let (on, off) = (("Mains", "online", "1"), ("Mains", "online", "0"));
        let (full, empties) = (("Battery", "status", "Full"), ("Battery", "status", "Discharging"));
        assert_eq!(
            (of(&[on, full]), of(&[off, empties]), of(&[empties]), of(&[full])),
            (Some(false), Some(true), Some(true), Some(false))
        );
        // A charger that is weaker than the machine.
        assert_eq!(of(&[empties, ("USB", "online", "1")]), Some(false));
        assert_eq!(of(&[off]), Some(true));
        // A desktop with a mouse, and a system that tells nothing.
        assert_eq!((of(&[("Battery", "scope", "Device")]), of(&[])), (None, None));
        assert_eq!(Power("/nowhere/muster".into()).on_battery(), None);
    }
}
