//! `replay`: re-executes a finished run from its archive, to the last bit or in samples.

mod meter;
mod page;
mod place;
mod summary;
mod work;

use std::path::Path;

use muster_compute::{Backend, Machine};
use muster_core::ids::hex;
use muster_core::manifest::{Manifest, Profile};
use muster_core::messages::record::Body;
use muster_replica::archive::{Archive, Plan, Replay, Sample};
use muster_replica::exit::Failure;
use muster_replica::memory;

use crate::arguments::Replaying;
use crate::output::say;
use meter::Meter;
pub use place::Place;
use summary::Summary;
pub use work::ReplayFolder;

/// Replays an archive; goes on where an earlier process stopped.
///
/// # Errors
/// [`Failure`]; negative at the first thing that differs.
pub fn replay(folder: &Path, replaying: &Replaying) -> Result<Summary, Failure> {
    replaying.report.as_deref().map_or(Ok(()), page::prepare)?;
    let archive = Archive::open(folder)?;
    defined(archive.manifest.profile)?;
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = replaying.threads.unwrap_or_else(cores);
    // The text is in memory by now.
    let fits = |need: memory::Need| memory::check(need.beside_text(), None).map_err(Failure::arithmetic);
    fits(memory::replaying(&archive.manifest, threads))?;
    let mut work = ReplayFolder::open(&archive, Place::of_user(), replaying.work.as_deref())?;
    if let Some(work) = work.as_mut().filter(|_| replaying.fresh) {
        work.clear();
    }
    if work.is_none() {
        // Without a folder all rows are in memory.
        fits(memory::following(&archive.manifest, threads))?;
    }
    let kept = work.as_ref().and_then(ReplayFolder::progress);
    let sample = sample(replaying, kept.as_ref().and_then(|progress| progress.sample))?;
    let plan = Plan { threads, path: replaying.path, sample };
    let mut replay = begin(&archive, &plan, work.as_ref())?;
    // Before hours of work, not after: a machine that computes wrongly finds every run wrong.
    replay.self_test().map_err(Failure::arithmetic)?;
    let device = device(&archive.manifest, replaying, threads)?;
    if let (Some(work), Some(progress)) = (&mut work, kept) {
        match replay.skip(&progress, work) {
            Ok(()) => say(&format!(
                "going on before round {}, as {} says; --fresh begins anew",
                progress.round,
                work.path()
            )),
            Err(why) => {
                say(&format!("what {} holds is not used: {why}; beginning anew", work.path()));
                work.clear();
                replay = begin(&archive, &plan, Some(work))?;
            }
        }
    }
    if let Some(device) = device {
        replay = replay.with_device(device);
    }
    let meter = Meter::new(replay.leaves(), replay.leaves_done(), archive.manifest.training.rounds);
    while let Some(round) = replay.round(&|| meter.leaf())? {
        meter.round(round);
        if let Some(work) = &mut work {
            work.save(&replay);
        }
    }
    meter.finish();
    let summary = summary(&archive, replay, sample);
    replaying.report.as_deref().map_or(Ok(()), |report| page::write(report, &archive, &summary))?;
    // Last: rows of the state are in this folder.
    if let Some(work) = work {
        work.remove();
    }
    Ok(summary)
}

/// What computes the leaves, tested, unless that is the processor: which computes several at once then.
fn device(
    manifest: &Manifest,
    replaying: &Replaying,
    threads: usize,
) -> Result<Option<Box<dyn Backend>>, Failure> {
    let machine = Machine { device: replaying.device, ..Machine::new(threads, replaying.path) };
    if machine.is_exact(manifest).map_err(Failure::arithmetic)? {
        return Ok(None);
    }
    let mut device = machine.leaves(manifest.profile).map_err(Failure::arithmetic)?;
    device.self_test().map_err(Failure::arithmetic)?;
    say(&format!("leaves are computed by {}{}", device.describe(), machine.reason(manifest)));
    Ok(Some(device))
}

/// At the beginning of the run. Of several rows one is in memory, where there is a folder for the others.
fn begin<'a>(archive: &'a Archive, plan: &Plan, work: Option<&ReplayFolder>) -> Result<Replay<'a>, Failure> {
    let replay = Replay::begin(archive, plan).map_err(Failure::arithmetic)?;
    match work {
        Some(work) => Ok(replay.with_row_files(work.row_files().clone(), memory::ROOM)?),
        None => Ok(replay),
    }
}

/// TOL-11.
fn defined(profile: Profile) -> Result<(), Failure> {
    if profile.is_replayable() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "this run's profile is {}: its leaves have no defined bits, so that nobody can replay it; `muster-verifier check` \
         re-executes the evidence of its bans, within the tolerance",
        profile.name()
    )))
}

fn summary(archive: &Archive, replay: Replay<'_>, sample: Option<Sample>) -> Summary {
    let run = archive.manifest.run();
    let records = archive.records.iter().filter_map(|signed| signed.verify(run).ok());
    let bans = records.filter(|record| matches!(record.body, Body::Ban(_)));
    let bans = bans.map(|ban| ban.height).collect();
    let (rounds, recomputed) = (replay.ledger().next_round().0, replay.recomputed());
    let earlier = replay.resumed();
    Summary { rounds, bans, earlier, recomputed, sample, replayed: replay.finish() }
}

/// The sample that is asked for: with the given seed, else that of an interrupted replay of the same share, else one
/// that nobody could foresee.
fn sample(replaying: &Replaying, kept: Option<Sample>) -> Result<Option<Sample>, Failure> {
    let Some(share) = replaying.fraction else { return Ok(None) };
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)
        .map_err(|error| Failure::environment(format!("the system gives no randomness ({error})")))?;
    let sample = Sample::of(share, replaying.seed.map_or(seed, |seed| seed.0))
        .map_err(|misuse| Failure::usage(format!("--fraction: {misuse}")))?;
    // A sample drawn anew would not fit the contributions that were recomputed already.
    let kept = kept.filter(|kept| kept.ppm == sample.ppm && replaying.seed.is_none());
    let sample = kept.unwrap_or(sample);
    say(&format!("recomputing {share} of the contributions, drawn with --seed {}", hex(&sample.seed)));
    Ok(Some(sample))
}
