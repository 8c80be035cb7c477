//! Attackers that know each other.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use muster_core::ids::{MemberId, Slot};
use muster_core::sign::Identity;
use muster_member::Assignment;
use muster_organise::read_identity;
use muster_replica::exit::{Failure, Outcome};

/// Who conspires. Processes of one machine meet in a folder: each puts a file there that is named by its id and says where
/// its key is. What the others will commit to follows from what is public.
#[derive(Clone, Debug, Default)]
pub struct Coalition {
    known: BTreeSet<MemberId>,
    folder: Option<PathBuf>,
}

impl Coalition {
    /// Of these members.
    pub fn of(members: impl IntoIterator<Item = MemberId>) -> Self {
        Self { known: members.into_iter().collect(), folder: None }
    }

    /// Of all who meet in a folder, the member with this directory among them.
    ///
    /// # Errors
    /// [`Failure`] when the folder cannot be written.
    pub fn meeting(folder: &Path, me: MemberId, home: &Path) -> Outcome<Self> {
        let path = folder.join(format!("{me:#}"));
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, home.as_os_str().as_encoded_bytes()))
            .map_err(|error| {
                Failure::environment(format!("{}: cannot be written ({error})", path.display()))
            })?;
        Ok(Self { known: BTreeSet::from([me]), folder: Some(folder.to_owned()) })
    }

    /// The keys that conspirators lend to this member.
    pub(super) fn keys(&self, me: &MemberId) -> Vec<Identity> {
        let files = self.folder.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        let homes = files.filter_map(|entry| fs::read_to_string(entry.path()).ok());
        let keys = homes.filter_map(|home| read_identity(home.as_ref(), "identity").ok());
        keys.filter(|key| key.id() != *me).collect()
    }

    /// Slots of a round that are neither the member's own nor a conspirator's, ascending.
    pub(super) fn honest(&self, work: &Assignment) -> Vec<Slot> {
        let names: BTreeSet<String> = self
            .folder
            .iter()
            .filter_map(|folder| fs::read_dir(folder).ok())
            .flat_map(|entries| entries.flatten())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        let ours = |member: &MemberId| self.known.contains(member) || names.contains(&format!("{member:#}"));
        let seats = work.seating.iter().enumerate().map(|(slot, seat)| (Slot(slot as u16), seat));
        seats.filter(|(slot, seat)| *slot != work.slot && !ours(&seat.member)).map(|(slot, _)| slot).collect()
    }
}
