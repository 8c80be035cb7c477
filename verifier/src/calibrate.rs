//! `calibrate`: how far honest machines are apart on the leaves of a run, and the tolerances that follow.
//!
//! [`course`] trains in one process; [`mod@measure`] lets all [`machines`] compute the same leaves early, midway and late,
//! and takes the tolerances from their deviations; [`trial`] then judges new leaves by these as an audit does, and the
//! totals of all of them. The report is a section of run.toml under a comment that says what was measured.

pub mod course;
pub mod machines;
pub mod measure;
mod report;
pub mod statistics;
pub mod trial;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use muster_compute::Precision;
use muster_core::codec::decode;
use muster_core::error::Misuse;
use muster_core::limits;
use muster_core::manifest::{Manifest, Profile};
use muster_replica::memory;
use muster_store::dataset::Dataset;
use muster_store::reading;

use crate::cli::Calibrating;
use crate::failure::{self, Failure};
use course::Course;
use measure::{Plan, measure, tolerant, widened};
use report::Report;
use trial::attempt;

/// Rounds trained, unless somebody says otherwise.
const ROUNDS: u32 = 300;

/// Calibrates for the run in a folder, writes the file, and gives what there is to say.
///
/// # Errors
/// `Failure` naming the file or the machine, with the remedy where libtorch is not there; negative where honest
/// machines are further apart than a run may allow.
pub fn command(folder: &Path, calibrating: &Calibrating) -> Result<Vec<String>, Failure> {
    let (manifest, dataset) = run(folder)?;
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = calibrating.threads.unwrap_or_else(cores);
    memory::check(memory::following(&manifest, threads)).map_err(failure::arithmetic)?;
    let profile = profile(calibrating.profile);
    let (mut machines, absent) =
        machines::at_hand(profile, threads, &calibrating.devices, &manifest).map_err(failure::arithmetic)?;
    for why in &absent {
        tracing::warn!("{why}");
    }
    let mut course = Course::begin(manifest.clone(), dataset, threads).map_err(failure::arithmetic)?;
    let rounds = calibrating.rounds.unwrap_or(manifest.training.rounds.min(ROUNDS));
    let plan = Plan::of(rounds, calibrating.leaves);
    let compared = plan.checkpoints.len() as u64 + 1;
    let leaves = u64::from(rounds) * u64::from(course.leaves()) + compared * u64::from(plan.leaves);
    let bar = bar(leaves);
    let done = || bar.inc(1);
    let measured = measure(&mut course, &mut machines, &plan, &done);
    let tolerance = measured.tolerance().map_err(|Misuse(why)| Failure::Negative(why))?;
    let mut with = tolerant(&manifest, profile, tolerance);
    let fresh = || u64::from(plan.leaves)..2 * u64::from(plan.leaves);
    let mut trial = attempt(&course, &mut machines, &with, fresh(), &done);
    // The grid's share of what a total may be apart does not grow: the factor that was needed may not be enough.
    let most = manifest.training.leaves.min(limits::QUOTA);
    let mut wider = 1.0;
    while trial.widening(most) > 1.0 {
        // No step is so small that rounding takes it back.
        wider *= trial.widening(most).max(1.05);
        let tolerance = measured.tolerance().and_then(|measured| widened(&measured, wider));
        with = tolerant(&manifest, profile, tolerance.map_err(|Misuse(why)| Failure::Negative(why))?);
        bar.inc_length(u64::from(plan.leaves));
        trial = attempt(&course, &mut machines, &with, fresh(), &done);
    }
    bar.finish_and_clear();
    let (measured, trial) = (&measured, &trial);
    let report = Report { manifest: &with, machines: &machines, plan: &plan, measured, trial, wider };
    let out = &calibrating.out;
    fs::write(out, report.file())
        .map_err(|error| Failure::Environment(format!("{}: cannot be written ({error})", out.display())))?;
    let mut lines = report.lines();
    lines.push(format!("next: muster run new --calibration {} --config … --data … --out …", out.display()));
    Ok(lines)
}

/// A run as `muster run new` leaves it: its records, if there are any yet, are not read.
fn run(folder: &Path) -> Result<(Arc<Manifest>, Arc<Dataset>), Failure> {
    let wrong = |why: String| Failure::Negative(format!("{}: {why}", folder.join("manifest.bin").display()));
    let manifest: Manifest =
        decode(&reading::file(&folder.join("manifest.bin"))?).map_err(|reject| wrong(reject.to_string()))?;
    manifest.check().map_err(|misuse| wrong(misuse.to_string()))?;
    let dataset = Dataset::open(&folder.join("data"), &manifest.data)?;
    Ok((Arc::new(manifest), Arc::new(dataset)))
}

fn profile(precision: Precision) -> Profile {
    match precision {
        Precision::F32 => Profile::F32,
        Precision::Tf32 => Profile::Tf32,
        Precision::Bf16 => Profile::Bf16,
    }
}

fn bar(leaves: u64) -> ProgressBar {
    let bar = ProgressBar::new(leaves);
    let style = "calibrating: {bar:30} {pos} of {len} leaves, {per_sec}, {eta} to go";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}
