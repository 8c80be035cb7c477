//! The run as web pages and on the terminal, while it is hosted.

use std::sync::Arc;

use muster_replica::exit::{Failure, Outcome};
use muster_show::Shown;
use muster_store::journal::Journal;
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
    Ok(Some(Shown::open(view, &options.show).await.map_err(Failure::environment)?))
}
