//! How long real runs wait for a ban: out of the reports of drills and demos, beside what the simulation assumes.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use serde_json::Value;

use super::cells::markdown;

/// Runs whose rounds are shorter than this, in seconds, are shown apart.
const SHORT: f64 = 0.4;

/// Bans by whether rounds are long, and by finding: rounds between offence and ban, the seconds of a round of their runs.
type Waits = BTreeMap<(bool, String), Vec<(u64, f64)>>;

/// A row for short and long rounds and each finding: how many bans, and how many rounds the cheat still took part in after
/// its offence.
///
/// # Errors
/// [`io::Error`] naming the file that is no report.
pub fn table(reports: &[String]) -> io::Result<String> {
    let mut waits = Waits::new();
    for path in reports {
        let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, format!("{path}: {why}"));
        let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let report: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        read(&report, &mut waits).ok_or_else(|| wrong("not a report of a drill".into()))?;
    }
    let rows = waits.into_iter().map(|((_, finding), bans)| {
        let rounds = || bans.iter().map(|(rounds, _)| *rounds);
        let (least, most) = (rounds().min().unwrap_or(0), rounds().max().unwrap_or(0));
        let mean = rounds().sum::<u64>() as f64 / bans.len() as f64;
        let seconds = bans.iter().map(|(_, seconds)| seconds).sum::<f64>() / bans.len() as f64;
        let range = format!("{mean:.1}, {least}–{most}");
        vec![format!("{seconds:.2} s"), finding, bans.len().to_string(), range]
    });
    Ok(markdown(&["a round", "found", "bans", "waited"], rows))
}

fn read(report: &Value, waits: &mut Waits) -> Option<()> {
    let rounds = report["rounds"].as_array()?;
    let lasted: Option<Vec<f64>> = rounds.iter().map(|round| round["seconds"].as_f64()).collect();
    let seconds = lasted?.iter().sum::<f64>() / rounds.len() as f64;
    for ban in report["bans"].as_array()? {
        let (offence, effective) = (ban["round"].as_u64()?, ban["effective"].as_u64()?);
        let waited = effective.saturating_sub(offence + 1);
        let kind = (seconds >= SHORT, ban["finding"].as_str()?.to_owned());
        waits.entry(kind).or_default().push((waited, seconds));
    }
    Some(())
}
