//! `calibrate`: how far honest machines are apart on the leaves of a run, and the tolerances that follow.
//!
//! [`course`] trains in one process; early, midway and late all [`machines`] compute the same leaves. [`mod@measure`] takes
//! the tolerances from their deviations; [`trial`] judges as many new leaves by these as an audit does, and their totals.
//! The report is a section of run.toml under a comment that says what was measured.

pub mod course;
pub mod machines;
pub mod measure;
mod report;
pub mod statistics;
pub mod trial;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use muster_compute::Precision;
use muster_core::codec::decode;
use muster_core::error::Misuse;
use muster_core::ids::Digest;
use muster_core::manifest::{Family, Manifest, Model, Profile, Tolerance};
use muster_core::sketch::Probe;
use muster_replica::exit::Failure;
use muster_replica::memory;
use muster_store::dataset::Dataset;
use muster_store::reading;

use crate::arguments::Calibrating;
use course::Course;
use machines::{LeafComputer, computed};
use measure::{Measured, SamplingPlan, tolerant};
use report::Report;
use trial::{ToleranceTrial, beacon, settle};

/// Seconds of training after which a shorter one is proposed.
const LONG: f64 = 1200.0;

/// Calibrates for the run in a folder, writes the file, and gives what there is to say.
///
/// # Errors
/// `Failure` naming the file or the machine, with the remedy where libtorch is not there; usage where the run's model has
/// no tolerance; negative where honest machines are further apart than a run may allow.
pub fn command(folder: &Path, calibrating: &Calibrating) -> Result<Vec<String>, Failure> {
    let (manifest, dataset) = run(folder)?;
    has_tolerance(&manifest.model)?;
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = calibrating.threads.unwrap_or_else(cores);
    memory::check(memory::following(&manifest, threads).beside_text(), None).map_err(Failure::arithmetic)?;
    let profile = profile(calibrating.profile);
    let (devices, members_only) = (&calibrating.devices, calibrating.members_only);
    let (mut machines, absent) =
        machines::at_hand(profile, threads, devices, members_only, &manifest).map_err(Failure::arithmetic)?;
    for why in &absent {
        tracing::warn!("{why}");
    }
    let mut course = Course::begin(manifest.clone(), dataset, threads).map_err(Failure::arithmetic)?;
    let rounds = calibrating.rounds.unwrap_or(manifest.training.rounds);
    let plan = SamplingPlan::of(rounds, calibrating.leaves);
    tracing::info!("{}", ahead(&course, &mut machines, &plan)?);
    let bar = bar(plan.trained(course.leaves()) + plan.compared());
    let (measured, trial) = gather(&mut course, &mut machines, profile, &plan, &|| bar.inc(1))?;
    bar.finish_and_clear();
    let settled = settle(&manifest, profile, &measured, &trial).map_err(|Misuse(why)| {
        let others = machines.iter().any(|machine| !machine.member);
        let hint = "; or, if the members' devices are all of kinds that are here, compare these alone with --members-only";
        Failure::negative(why + if others { hint } else { "" })
    })?;
    let report = Report { settled: &settled, machines: &machines, plan: &plan, measured: &measured };
    let out = &calibrating.out;
    fs::write(out, report.file())
        .map_err(|error| Failure::environment(format!("{}: cannot be written ({error})", out.display())))?;
    let mut lines = report.lines();
    lines.push(format!("next: muster run new --calibration {} --config … --data … --out …", out.display()));
    Ok(lines)
}

/// Trains, and lets all machines compute leaves at every checkpoint: some to measure with, and as many new ones. Says when
/// a leaf is done.
fn gather(
    course: &mut Course,
    machines: &mut [LeafComputer],
    profile: Profile,
    plan: &SamplingPlan,
    done: &dyn Fn(),
) -> Result<(Measured, ToleranceTrial), Failure> {
    let manifest = course.manifest().clone();
    let mut measured = Measured::new(&manifest.model, machines.len());
    let mut trial = ToleranceTrial::new(&manifest, machines);
    let any = tolerant(&manifest, profile, Tolerance::none());
    for checkpoint in &plan.checkpoints {
        course.train(*checkpoint, done)?;
        trial.checkpoint();
        for leaf in 0..2 * u64::from(plan.leaves) {
            let passage = course.passage(leaf)?;
            let leaves = computed(machines, &manifest, &course.job(&passage));
            if leaf < u64::from(plan.leaves) {
                measured.compare(&leaves);
            } else {
                let beacon = beacon(leaf << 32 | u64::from(*checkpoint));
                trial.add(&Probe::new(&any, &Digest::default(), &beacon), &leaves);
            }
            done();
        }
    }
    Ok((measured, trial))
}

/// What will be done, and how long that takes by a leaf of each machine.
fn ahead(course: &Course, machines: &mut [LeafComputer], plan: &SamplingPlan) -> Result<String, Failure> {
    let passage = course.passage(0)?;
    let mut seconds = |machine: &mut LeafComputer| {
        // The first leaf takes longer: it makes buffers and plans.
        machine.leaf(course.manifest(), &course.job(&passage));
        let begun = Instant::now();
        machine.leaf(course.manifest(), &course.job(&passage));
        begun.elapsed().as_secs_f64()
    };
    let each: Vec<f64> = machines.iter_mut().map(&mut seconds).collect();
    let [trained, compared] = [plan.trained(course.leaves()), plan.compared()].map(|leaves| leaves as f64);
    let training = trained * each.first().copied().unwrap_or_default();
    let whole = training + compared * each.iter().sum::<f64>();
    let (rounds, of) = (plan.rounds(), course.manifest().training.rounds);
    let mut text = format!(
        "calibrates over {rounds} of the run's {of} rounds: trains {trained} leaves in defined bits and compares {compared} on \
         {} machines, which takes about {}",
        machines.len(),
        shown(whole)
    );
    if training > LONG {
        text += "; --rounds N trains fewer, for runs of up to 2·N rounds";
    }
    Ok(text)
}

/// A time in words.
fn shown(seconds: f64) -> String {
    match seconds {
        ..90.0 => format!("{seconds:.0} s"),
        ..5400.0 => format!("{:.0} min", seconds / 60.0),
        ..172_800.0 => format!("{:.1} h", seconds / 3600.0),
        _ => format!("{:.0} days", seconds / 86_400.0),
    }
}

/// A run as `muster run new` leaves it: its records, if there are any yet, are not read.
fn run(folder: &Path) -> Result<(Arc<Manifest>, Arc<Dataset>), Failure> {
    let wrong = |why: String| Failure::negative(format!("{}: {why}", folder.join("manifest.bin").display()));
    let manifest: Manifest =
        decode(&reading::manifest(folder)?).map_err(|reject| wrong(reject.to_string()))?;
    manifest.check().map_err(|misuse| wrong(misuse.to_string()))?;
    let dataset = Dataset::open(&folder.join("data"), &manifest.data)?;
    Ok((Arc::new(manifest), Arc::new(dataset)))
}

/// Refuses a mixture of experts, whose profile must be exact.
// MANIFEST-14: a rounding may send a token to another expert, and no tolerance fits such a jump.
fn has_tolerance(model: &Model) -> Result<(), Failure> {
    match model.family {
        Family::Mixture(_) => Err(Failure::usage(
            "a mixture of experts is trained in \"exact\", where every audit is an equality: there is nothing to calibrate",
        )),
        Family::Decoder(_) | Family::Variant(_) | Family::Albert(_) => Ok(()),
    }
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

#[cfg(test)]
mod tests {
    use muster_core::codec::Real;
    use muster_core::ids::MemberId;
    use muster_core::manifest::Mixture;
    use muster_core::manifest::fixture::tiny;

    use super::*;

    #[test]
    fn manifest_14_a_mixture_has_no_tolerance() {
        let mut model = tiny(MemberId([0; 32]), MemberId([0; 32]), 1, 1).model;
        has_tolerance(&model).unwrap();
        let decoder = model.decoder().unwrap().clone();
        let (columns, active, shared_hidden, balance) = (4, 2, 6, Real::ZERO);
        let trust = Real::new(4.0).unwrap();
        model.family = Family::Mixture(Mixture {
            decoder,
            columns,
            active,
            shared_hidden,
            balance,
            trust,
            rows: 1,
            branch: 0,
            few: 0,
            held: 0,
            lag: 0,
        });
        let failure = has_tolerance(&model).unwrap_err();
        assert!(failure.to_string().contains("there is nothing to calibrate"), "{failure}");
    }

    #[test]
    fn times_are_told_in_words() {
        let told = [5.0, 300.0, 7200.0, 864_000.0].map(shown);
        assert_eq!(told, ["5 s", "5 min", "2.0 h", "10 days"]);
    }
}
