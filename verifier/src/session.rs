//! What following needs: a directory, a steward, the manifest, the text, and a ledger with its state.

use std::path::Path;
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use muster_core::codec::decode;
use muster_core::ids::{Digest, MemberId, Round, RunId, unhex};
use muster_core::manifest::Manifest;
use muster_core::messages::enrol::Ticket;
use muster_core::sign::Identity;
use muster_net::endpoint::Endpoint;
use muster_net::swarm::Settings;
use muster_replica::exit::Failure;
use muster_replica::memory::{self, Need};
use muster_replica::text::{TextHolders, fetch_ahead};
use muster_replica::{
    Allowance, Bounds, Contact, Follower, HeldState, Peers, Replica, disk, fetch_dataset, fetch_manifest,
    invitation, is_invitation, measure_held_out,
};
use muster_store::dataset::Dataset;
use muster_store::error::{Kind, StoreError};
use muster_store::home::Home;
use muster_store::journal::Journal;
use muster_store::patience;
use muster_store::rows::RowFiles;
use muster_view::serve::{Pages, serve as serve_pages};
use muster_view::{Source, View};

use crate::output::say;

const MANIFEST: &str = "manifest.bin";

/// Which run, and where its steward is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The run.
    pub run: RunId,
    /// Its steward.
    pub steward: Contact,
}

impl Target {
    /// Where an invitation leads.
    pub fn of(ticket: &Ticket) -> Self {
        let addresses = ticket.addresses.iter().map(|address| address.to_string()).collect();
        Self { run: ticket.run, steward: Contact { member: ticket.steward, addresses } }
    }

    /// Reads an invitation, `@FILE` for one in a file, or `RUN@STEWARD@HOST:PORT` with run and steward in hexadecimal.
    ///
    /// # Errors
    /// [`Failure`] saying what is expected.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        if is_invitation(text) {
            return invitation(text).map(|ticket| Self::of(&ticket));
        }
        // As with the line of an invitation, what was copied along is left out.
        let aside = |character: char| {
            character.is_whitespace() || "\"'<>`\u{feff}\u{201c}\u{201d}".contains(character)
        };
        let text = text.replace(aside, "");
        let mut parts = text.trim_end_matches(['.', ',', ';']).splitn(3, '@');
        let mut part = || parts.next().unwrap_or_default();
        let (run, steward, address) = (unhex(part()), unhex(part()), part());
        match (run, steward) {
            (Some(run), Some(steward)) if is_address(address) => Ok(Self {
                run: RunId(Digest(run)),
                steward: Contact { member: MemberId(steward), addresses: vec![address.to_owned()] },
            }),
            _ => Err(Failure::usage(
                "expected an invitation, @FILE for one in a file, or RUN@STEWARD@HOST:PORT with 64 hexadecimal digits each",
            )),
        }
    }
}

fn is_address(text: &str) -> bool {
    let (host, port) = text.rsplit_once(':').unwrap_or_default();
    let bracketed = host.starts_with('[') == host.ends_with(']');
    !host.is_empty() && bracketed && port.parse::<u16>().is_ok()
}

/// A directory that knows its run.
pub struct VerifierSession {
    /// The directory.
    pub home: Home,
    /// Who we are.
    pub identity: Arc<Identity>,
    /// Where the run is.
    pub target: Target,
    /// Counts what the channels carry.
    pub endpoint: Endpoint,
    /// The channels.
    pub peers: Peers,
    /// The agreement.
    pub manifest: Arc<Manifest>,
    /// The text, and what else the manifest commits to.
    pub dataset: Arc<Dataset>,
    /// Who gives what is lacking of it.
    holders: TextHolders,
    /// What it may take of the machine.
    bounds: Bounds,
    /// What it may take of the disk.
    pub allowance: Allowance,
}

/// What a run takes of the memory.
pub type Takes<'a> = &'a (dyn Fn(&Manifest) -> Need + Sync);

impl VerifierSession {
    /// Opens the directory and brings in what it lacks: an identity, the manifest, the text, within these bounds. `need` says what
    /// the run takes of the memory.
    ///
    /// # Errors
    /// [`Failure`], also for a run that this machine has no memory to follow, or no disk.
    pub async fn open(
        directory: &Path,
        target: Target,
        bounds: Bounds,
        need: Takes<'_>,
    ) -> Result<Self, Failure> {
        let home = Home::open(directory)?;
        let identity = Arc::new(home.identity()?);
        let endpoint = Endpoint::new(target.run, identity.clone()).with_rates(bounds.rates);
        let peers = Peers::new(endpoint.clone());
        // CHAN-13: nobody dials a verifier, so that it can close only what it has dialled itself.
        let relief = peers.clone();
        patience::relieve_by(Arc::new(move || relief.relieve()));
        let manifest = match stored_manifest(&home, target.run)? {
            Some(manifest) => manifest,
            None => {
                let manifest = fetch_manifest(&peers, &target.steward, target.run).await?;
                home.write_file(MANIFEST, &manifest.bytes())?;
                manifest
            }
        };
        // Before the text is fetched, and before a seat is asked for.
        memory::check(need(&manifest), bounds.memory).map_err(Failure::arithmetic)?;
        let allowance = Allowance::new(directory, bounds.disk);
        allowance.check_run(&disk::following(&manifest)).map_err(Failure::arithmetic)?;
        let bar = bytes_bar("the run's files", manifest.data.all_bytes());
        let mut progress = |done| bar.set_position(done);
        let folder = home.path().join("data");
        let holders = TextHolders::new(peers.clone(), target.steward.clone());
        let room = allowance.room(&disk::following(&manifest));
        let dataset = fetch_dataset(&holders, &manifest.data, &folder, room, &mut progress).await?;
        bar.finish_and_clear();
        fetch_ahead(&dataset);
        Ok(Self { holders, home, identity, target, endpoint, peers, manifest, dataset, bounds, allowance })
    }

    /// A follower that goes on where the directory stopped, and gossips if it can.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn follower(
        &self,
        journal: Arc<Journal>,
        threads: usize,
        gossip: Option<Settings>,
    ) -> Result<Follower, Failure> {
        // What of the text is in memory is there by now.
        let need = memory::following(&self.manifest, threads).beside_text();
        memory::check(need, self.bounds.memory).map_err(Failure::arithmetic)?;
        let (manifest, dataset) = (self.manifest.clone(), self.dataset.clone());
        let files = self.home.row_files()?;
        let kept = self.newest_state(&files);
        let replica = tokio::task::spawn_blocking(move || match kept {
            Some((round, held)) => Replica::resume(manifest, dataset, threads, None, held, round),
            None => Replica::genesis(manifest, dataset, threads, None),
        });
        let replica = replica.await.map_err(|error| Failure::environment(error.to_string()))?;
        let replica = replica.map_err(Failure::arithmetic)?;
        let replica = replica.with_state_files(files, memory::ROOM);
        let mut follower =
            Follower::new(self.peers.clone(), self.target.steward.clone(), replica, Some(journal))?;
        follower.keep_proofs(self.home.clone())?;
        follower.tell_text(self.holders.clone(), self.identity.id());
        follower.keep_within(self.allowance.clone(), disk::growth_of_follower(&self.manifest));
        if let Some(settings) = gossip
            && let Err(error) = follower.join_swarm(&self.identity, settings)
        {
            tracing::warn!("going on without gossip: {error}");
        }
        Ok(follower)
    }

    /// Shows the run to browsers at an address, if there is one, as long as the result is kept.
    ///
    /// # Errors
    /// [`Failure`]: the address cannot be listened on.
    pub async fn show(
        &self,
        address: Option<&str>,
        journal: &Arc<Journal>,
        follower: &mut Follower,
    ) -> Result<Option<Pages>, Failure> {
        let Some(address) = address else { return Ok(None) };
        let (source, folder) = (Source::Own(journal.clone()), Some(self.home.path().to_owned()));
        let view = View::start(self.manifest.clone(), source, folder, Some(self.identity.id()));
        view.compare(self.dataset.clone());
        let replica = follower.replica().clone();
        view.measure(move || measure_held_out(&replica));
        let pages = serve_pages(view.clone(), address).await.map_err(Failure::environment)?;
        say(&format!("the run as web pages: {}", pages.url));
        follower.tell_notices(Box::new(move |notice| view.hear(notice)));
        Ok(Some(pages))
    }

    fn newest_state(&self, files: &RowFiles) -> Option<(Round, HeldState)> {
        let rounds = self.home.states().ok()?;
        let whole = memory::is_away(self.manifest.model.parameters());
        let read = |round| {
            let (state, rows, roots) = self.home.load_state_and_rows(round, files, &|_| whole).ok()?;
            Some((round, HeldState { state, rows, roots }))
        };
        rounds.into_iter().rev().find_map(read)
    }
}

fn stored_manifest(home: &Home, run: RunId) -> Result<Option<Arc<Manifest>>, Failure> {
    let bytes = match home.read_file(MANIFEST) {
        Err(error) if error.kind() == Kind::Missing => return Ok(None),
        bytes => bytes?,
    };
    let directory = home.path().display();
    let manifest: Manifest = decode(&bytes).map_err(|reject| {
        Failure::environment(format!(
            "{directory}: {MANIFEST} is damaged ({reject}); delete it and try again"
        ))
    })?;
    if manifest.run() != run {
        let what =
            format!("{directory} belongs to run {}, not to {run}; use another directory", manifest.run());
        return Err(Failure::usage(what));
    }
    // MANIFEST-1: with a manifest that it has kept as with one that it is sent.
    manifest.check().map_err(|misuse| Failure::negative(format!("{directory}: the manifest: {misuse}")))?;
    Ok(Some(Arc::new(manifest)))
}

/// A file of the home; `None` when there is none.
///
/// # Errors
/// What the system reports.
pub fn optional_file(home: &Home, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
    match home.read_file(name) {
        Err(error) if error.kind() == Kind::Missing => Ok(None),
        bytes => bytes.map(Some),
    }
}

/// A bar over bytes; nothing is drawn where standard error is no terminal.
fn bytes_bar(what: &'static str, total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    let style = ProgressStyle::with_template("{msg}: {bar:30} {bytes} of {total_bytes}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.with_message(what)
}

/// A bar over rounds; nothing is drawn where standard error is no terminal.
pub fn rounds_bar(what: &'static str, total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    let style = ProgressStyle::with_template("{msg}: {bar:30} round {pos} of {len}, {eta} to go");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.with_message(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_run_and_steward() {
        let text = format!("{}@{}@[::1]:4000", "ab".repeat(32), "cd".repeat(32));
        let target = Target::parse(&text).unwrap();
        assert_eq!(target.run, RunId(Digest([0xab; 32])));
        assert_eq!(
            target.steward,
            Contact { member: MemberId([0xcd; 32]), addresses: vec!["[::1]:4000".into()] }
        );
        for changed in [format!(" {text}\n"), format!("<{text}>."), text.replacen('@', "\r\n@", 1)] {
            assert_eq!(Target::parse(&changed).unwrap(), target, "{changed:?}");
        }
        for wrong in ["", "host:1", "ab@cd@host:1", &text[..text.len() - 5], &text[1..], "muster1:zz"] {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
    }
}
