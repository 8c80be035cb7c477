//! The run as web pages and on the terminal, while it is hosted.

use std::fs::OpenOptions;
use std::io::Write;
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
    let mut last = None;
    view.measure(move || {
        let (round, loss) = measure_held_out(&replica)?;
        // For those who look at the folder later.
        if last.replace(round) != Some(round)
            && let Ok(mut log) = patiently(|| OpenOptions::new().append(true).open(&log))
        {
            let event = LogEvent::HeldOut { round: round.0, loss };
            let _ = log.write_all(event.line(None).as_bytes());
        }
        Some((round, loss))
    });
    Ok(Some(Shown::open(view, &options.show).await.map_err(Failure::environment)?))
}
