//! `muster view`: a run's folder as web pages.

use std::path::Path;
use std::sync::Arc;

use muster_replica::archive::read_ledger;
use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::Dataset;
use muster_view::{Source, View};

use crate::invite::read_manifest;

/// The records of a run that is over, in its folder.
const LEDGER: &str = "ledger.bin";
/// Those of a run that another process may be following.
const JOURNAL: &str = "journal.redb";

/// Looks at the run that a folder belongs to.
///
/// # Errors
/// [`Failure`]: the folder has no manifest or no records, or they are damaged.
pub fn looked_at(folder: &Path) -> Outcome<Arc<View>> {
    let manifest = Arc::new(read_manifest(folder)?);
    let source = if folder.join(LEDGER).exists() {
        let records = read_ledger(folder).map_err(|error| Failure::environment(error.to_string()))?;
        Source::Whole(records)
    } else if folder.join(JOURNAL).exists() {
        Source::Other(folder.to_owned())
    } else {
        return Err(Failure::usage(format!(
            "{}: there are no records here yet; `muster host {0}` begins the run",
            folder.display()
        )));
    };
    let data = manifest.data.clone();
    let view = View::start(manifest, source, Some(folder.to_owned()), None);
    // Without the text, the pages lack the simple models.
    if let Ok(dataset) = Dataset::open(&folder.join("data"), &data) {
        view.compare(Arc::new(dataset));
    }
    Ok(view)
}
