//! The run as web pages and on the terminal, while it is hosted.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use muster_replica::exit::{Failure, Outcome};
use muster_replica::measure_held_out;
use muster_show::Shown;
use muster_store::journal::Journal;
use muster_store::patience::patiently;
use muster_view::event::{LOG, LogEvent};
use muster_view::{Source, View};

use super::court::Court;
use super::options::HostOptions;
use super::sample::Sampler;

/// Shows a run, if somebody wants to see it: at first to browsers alone.
///
/// # Errors
/// [`Failure`]: the address cannot be listened on.
pub(super) async fn show(
    options: &HostOptions,
    journal: &Arc<Journal>,
    court: &Court,
) -> Outcome<Option<Shown>> {
    if !options.show.is_wanted() {
        return Ok(None);
    }
    let source = Source::Own(journal.clone());
    let view = View::start(court.manifest.clone(), source, Some(options.folder.clone()), None);
    view.compare(court.dataset.clone());
    let (replica, log) = (court.replica.clone(), options.folder.join(LOG));
    let mut sampler = Sampler::of(court, &options.folder);
    let mut last = None;
    view.measure(move || {
        let sample = sampler.as_mut().and_then(Sampler::write);
        sample.iter().for_each(|event| append(&log, event));
        let (round, loss) = measure_held_out(&replica)?;
        // For those who look at the folder later.
        if last.replace(round) != Some(round) {
            append(&log, &LogEvent::HeldOut { round: round.0, loss });
        }
        Some((round, loss))
    });
    Ok(Some(Shown::open(view, &options.show).await.map_err(Failure::environment)?))
}

/// Writes an event down for pages; one that cannot be written is missing there, and nowhere else.
fn append(log: &Path, event: &LogEvent) {
    if let Ok(mut log) = patiently(|| OpenOptions::new().append(true).open(log)) {
        let _ = log.write_all(event.line(None).as_bytes());
    }
}
