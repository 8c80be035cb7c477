//! What a member does while it pauses: nothing, and it says why.

use muster_show::progress::{ProgressDisplay, interrupted};
use muster_store::home::Home;
use muster_view::status::Status;
use muster_view::status::window::Window;

use crate::pause::Watch;
use crate::{JoinError, JoinOptions};

/// Waits while the machine is not to work, and gives whether it was so; none where somebody asked this process to stop. `last` is
/// what the membership before said of itself.
pub(super) async fn pause(
    options: &JoinOptions,
    watch: &mut Watch,
    last: Option<Status>,
) -> Result<Option<bool>, JoinError> {
    watch.begin();
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

/// What there is to say before the first membership.
fn first(options: &JoinOptions) -> Result<Status, JoinError> {
    let home = Home::open(&options.data_dir)?;
    let (member, run) = (format!("{:#}", home.identity()?.id()), format!("{:#}", options.ticket.run));
    Ok(Status { role: "node".into(), member, run, ..Status::default() })
}
