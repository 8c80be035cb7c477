//! What a newcomer fetches before it follows: the manifest and the files that it commits to, all bound by hashes.

use std::path::Path;
use std::sync::Arc;

use muster_core::codec::decode;
use muster_core::error::Misuse;
use muster_core::ids::{Height, RunId};
use muster_core::ledger::Ledger;
use muster_core::manifest::{Data, Manifest};
use muster_core::messages::wire::{Follow, Request, Response};
use muster_store::dataset::{Assembly, Dataset, Supply, is_fetched};
use muster_store::error::StoreError;

use crate::follower::FollowError;
use crate::peers::{Contact, PeerError, Peers};
use crate::text::{TextHolders, is_fetched_first};

/// Why a newcomer cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// The steward.
    #[error(transparent)]
    Follow(FollowError),
    /// The manifest is not that of the run, or breaks a rule.
    #[error("the manifest: {0}")]
    Manifest(Misuse),
}

impl<E: Into<FollowError>> From<E> for BootstrapError {
    fn from(error: E) -> Self {
        Self::Follow(error.into())
    }
}

/// Fetches the manifest of a run and checks that it hashes to the run id and keeps every rule.
///
/// # Errors
/// [`BootstrapError`].
pub async fn fetch_manifest(
    peers: &Peers,
    steward: &Contact,
    run: RunId,
) -> Result<Arc<Manifest>, BootstrapError> {
    let Response::Manifest(bytes) = peers.ask(steward, &Request::Manifest).await? else {
        return Err(PeerError::Unexpected.into());
    };
    let manifest: Manifest = decode(&bytes).map_err(PeerError::Reject)?;
    // The run id is its hash, and came with the invitation: whoever answers cannot change a setting.
    if manifest.run() != run || manifest.steward != steward.member {
        return Err(BootstrapError::Manifest(Misuse("it is not the manifest of this run".into())));
    }
    // MANIFEST-1: a manifest that is the right one may still break a rule; nobody takes part then.
    manifest.check().map_err(BootstrapError::Manifest)?;
    Ok(Arc::new(manifest))
}

/// The ledger as the steward has it now, every record checked.
///
/// # Errors
/// [`FollowError`].
pub async fn fetch_ledger(
    peers: &Peers,
    steward: &Contact,
    manifest: &Arc<Manifest>,
) -> Result<Ledger, FollowError> {
    let mut ledger = Ledger::new(manifest.clone());
    follow_ledger(peers, steward, &mut ledger).await?;
    Ok(ledger)
}

/// The ledger of the run's first records, so many of them or as many as there are, every one checked.
///
/// # Errors
/// [`FollowError`].
pub async fn ledger_at(
    peers: &Peers,
    steward: &Contact,
    manifest: &Arc<Manifest>,
    height: Height,
) -> Result<Ledger, FollowError> {
    let mut ledger = Ledger::new(manifest.clone());
    follow_to(peers, steward, &mut ledger, height).await?;
    Ok(ledger)
}

/// Brings a ledger to where the steward has it now, every record checked.
///
/// # Errors
/// [`FollowError`].
pub async fn follow_ledger(peers: &Peers, steward: &Contact, ledger: &mut Ledger) -> Result<(), FollowError> {
    follow_to(peers, steward, ledger, Height(u64::MAX)).await
}

async fn follow_to(
    peers: &Peers,
    steward: &Contact,
    ledger: &mut Ledger,
    most: Height,
) -> Result<(), FollowError> {
    while ledger.height() < most {
        let request = Request::Follow(Follow { height: ledger.height(), board: 0, notice: 0 });
        let Response::News(news) = peers.ask(steward, &request).await? else {
            return Err(PeerError::Unexpected.into());
        };
        for signed in
            news.records.iter().take(usize::try_from(most.0 - ledger.height().0).unwrap_or(usize::MAX))
        {
            ledger.apply(signed).map_err(|reject| FollowError::Misconduct(reject, None))?;
        }
        // An answer may hold fewer records than there are.
        if ledger.height() > news.newest || news.records.is_empty() {
            return Ok(());
        }
    }
    Ok(())
}

/// The committed files of a run: from the folder if they are there whole, else from the steward, and from members once the ledger
/// names them ([`TextHolders::know`]). Tokeniser, router, given parameters and the outlines of the texts come first; of a long text
/// the rest when it is needed, or ahead of need. Of the training text `room` bytes are kept. `progress` is told the bytes done.
///
/// # Errors
/// [`BootstrapError`].
pub async fn fetch_dataset(
    holders: &TextHolders,
    data: &Data,
    folder: &Path,
    room: u64,
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<Arc<Dataset>, BootstrapError> {
    // Made only once there is something in it to go on from.
    if !folder.exists() {
        let mut assembly = Assembly::new(folder, data.clone()).map_err(FollowError::Store)?;
        while let Some(request) = assembly.wanted() {
            let Response::Bytes(bytes) = holders.ask_steward(&request).await? else {
                return Err(PeerError::Unexpected.into());
            };
            assembly.put(&bytes).map_err(FollowError::Store)?.map_err(PeerError::Reject)?;
        }
        assembly.finish().map_err(FollowError::Store)?;
    }
    let is_first = is_fetched_first(data);
    // What is fetched before a member begins was counted before.
    let room = if is_first { u64::MAX } else { room };
    let (holders, data, folder) = (holders.clone(), data.clone(), folder.to_owned());
    let opened = blocking(move || {
        // One that was packed is whole, and each byte of it is looked at once. A fetched one may have lost pages, whatever its map
        // says: they are fetched again.
        if !is_fetched(&folder) {
            return Dataset::open(&folder, &data);
        }
        let supply: Arc<dyn Supply> = Arc::new(holders);
        Dataset::open_partial(&folder, &data, room, &supply)
    });
    let dataset = Arc::new(opened.await?);
    loop {
        progress(dataset.held());
        let fetching = dataset.clone();
        if !blocking(move || needed_at_first(&fetching, is_first)).await? {
            return Ok(dataset);
        }
    }
}

/// Fetches some of what must be there before a member begins. Returns whether anything was lacking.
fn needed_at_first(dataset: &Dataset, is_first: bool) -> Result<bool, StoreError> {
    if dataset.fetch_given()? {
        return Ok(true);
    }
    if is_first { dataset.fetch_ahead(0) } else { Ok(false) }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, BootstrapError> {
    let done = tokio::task::spawn_blocking(work).await;
    // A task that failed has said why.
    let done = done.map_err(|_| FollowError::Steward(PeerError::Unexpected))?;
    Ok(done.map_err(FollowError::Store)?)
}
