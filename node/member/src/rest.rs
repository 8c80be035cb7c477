//! What a member does while it pauses: nothing, and it says why.

use std::sync::Arc;

use muster_core::codec::decode;
use muster_core::ledger::{Ledger, Stage};
use muster_core::limits::PULL_RECORDS;
use muster_core::manifest::Manifest;
use muster_organise::MANIFEST;
use muster_roles::node::is_at_rest;
use muster_show::progress::{ProgressDisplay, interrupted};
use muster_store::error::Kind;
use muster_store::home::Home;
use muster_store::journal::Journal;
use muster_view::status::Status;
use muster_view::status::window::Window;

use super::pause::{Restraint, Watch};
use super::{JoinError, JoinOptions};

/// Waits while the machine is not to work, and gives whether it was so; none where somebody asked this process to stop. `last` is
/// what the membership before said of itself.
pub(super) async fn pause(
    options: &JoinOptions,
    watch: &mut Watch,
    last: Option<Status>,
) -> Result<Option<bool>, JoinError> {
    watch.look(0);
    if watch.paused().is_none() {
        return Ok(Some(false));
    }
    let last = match last {
        Some(last) => last,
        None => first(options)?,
    };
    let opened = Window::open(&options.data_dir, options.show.metrics.as_deref()).await;
    let (_window, mut asked) = opened.map_err(JoinError::Environment)?;
    let progress = ProgressDisplay::new(options.progress);
    let mut interrupt = Box::pin(interrupted());
    let mut told = None;
    while let Some(paused) = watch.paused().cloned() {
        // A pause may go on for another reason.
        if told.as_ref().is_none_or(|told: &String| *told != paused.why) {
            progress.line(&format!("paused: {}. Ctrl-C ends this program", paused.words()));
            told = Some(paused.why.clone());
        }
        tokio::select! {
            () = &mut interrupt => return Ok(None),
            Some(inquiry) = asked.recv() => inquiry.answer(last.clone().asleep(paused)),
            () = watch.due() => drop(watch.look(0)),
        }
    }
    progress.line("the pause is over: taking part again");
    Ok(Some(true))
}

/// Whether the run may be waiting for this member, as far as its directory tells. Nothing of it is looked at where there is no reason
/// to pause.
///
/// # Errors
/// [`JoinError`] where the directory cannot be read.
pub(super) fn owes(options: &JoinOptions) -> Result<bool, JoinError> {
    if options.restraint == Restraint::default() {
        return Ok(false);
    }
    let home = Home::open(&options.data_dir)?;
    let manifest = match home.read_file(MANIFEST) {
        Err(error) if error.kind() == Kind::Missing => return Ok(false),
        manifest => manifest?,
    };
    // Whoever enters the run finds out what is damaged.
    let Ok(manifest) = decode::<Manifest>(&manifest) else { return Ok(true) };
    let (journal, mut ledger) = (Journal::open(&home)?, Ledger::new(Arc::new(manifest)));
    loop {
        let records = journal.records(ledger.height(), PULL_RECORDS)?;
        if records.is_empty() {
            break;
        }
        if records.iter().any(|record| ledger.apply(record).is_err()) {
            return Ok(true);
        }
    }
    let me = home.identity()?.id();
    Ok(ledger.member(&me).is_some() && (ledger.stage() == Stage::Closed || !is_at_rest(&ledger, &me)))
}

/// What there is to say before the first membership.
fn first(options: &JoinOptions) -> Result<Status, JoinError> {
    let home = Home::open(&options.data_dir)?;
    let (member, run) = (format!("{:#}", home.identity()?.id()), format!("{:#}", options.ticket.run));
    Ok(Status { role: "node".into(), member, run, ..Status::default() })
}
