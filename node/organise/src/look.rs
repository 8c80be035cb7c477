//! `muster view`: a run's folder as web pages.

use std::path::Path;
use std::sync::Arc;

use muster_core::ids::MemberId;
use muster_replica::archive::read_ledger;
use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::Dataset;
use muster_view::{Source, View};

use crate::invite::read_manifest;
use crate::{read_identity, ticket};

/// The records of a run that is over, in its folder.
const LEDGER: &str = "ledger.bin";
/// Those of a run that another process may be following.
const JOURNAL: &str = "journal.redb";

/// Looks at the run that a folder belongs to; where the folder is a member's and `own` is said, as that member, whose work comes
/// first.
///
/// # Errors
/// [`Failure`]: the folder has no manifest or no records, or they are damaged.
pub fn looked_at(folder: &Path, own: bool) -> Outcome<Arc<View>> {
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
    let view = View::start(manifest, source, Some(folder.to_owned()), whose(folder).filter(|_| own));
    // Without the text, the pages lack the simple models.
    if let Ok(dataset) = Dataset::open(&folder.join("data"), &data) {
        view.compare(Arc::new(dataset));
    }
    Ok(view)
}

/// The member that a folder belongs to. A steward or observer, and whoever has an archive, came by no ticket.
fn whose(folder: &Path) -> Option<MemberId> {
    let _ticket = ticket(folder).ok()??;
    Some(read_identity(folder, "identity").ok()?.id())
}

#[cfg(test)]
mod tests {
    use muster_core::ids::{Digest, RunId};
    use muster_core::messages::enrol::{Addresses, Ticket};
    use muster_store::home::Home;

    use super::*;
    use crate::TICKET;

    #[test]
    fn a_folder_is_a_members_where_it_came_by_a_ticket() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(whose(directory.path()), None);
        let home = Home::open(directory.path()).unwrap();
        let id = home.identity().unwrap().id();
        assert_eq!(whose(directory.path()), None, "a steward's");
        let (run, addresses) = (RunId(Digest([1; 32])), Addresses::default());
        let ticket = Ticket { run, steward: MemberId([2; 32]), addresses, pass: None };
        home.write_secret(TICKET, ticket.to_line().as_bytes()).unwrap();
        assert_eq!(whose(directory.path()), Some(id));
    }
}
