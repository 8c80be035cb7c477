//! Memberships one after the other, with the pauses between them.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use muster_show::progress::interrupted;
use muster_store::error::Kind;

use super::conduct::{HonestNode, NodeConduct};
use super::pause::Watch;
use super::rest::{self, owes};
use super::session::{Line, Session};
use super::{End, JoinError, JoinOptions};

/// How long a membership that has ended may still hold its directory: its tasks end by themselves.
const HELD_FOR: Duration = Duration::from_secs(150);
const AGAIN: Duration = Duration::from_millis(250);

/// What came of entering a membership.
enum Entered {
    Session(Box<Session>),
    /// The machine is not to work any more, before the run knew that it did.
    Paused,
    /// Somebody asked this process to stop.
    Interrupted,
}

/// Takes part until the run is over, the member is banned, or somebody asks it to stop.
///
/// # Errors
/// [`JoinError`], with an exit code.
pub async fn join(options: JoinOptions) -> Result<End, JoinError> {
    join_as(options, Arc::new(HonestNode)).await
}

/// [`join`] with another conduct.
///
/// # Errors
/// [`JoinError`], with an exit code.
pub async fn join_as(options: JoinOptions, conduct: Arc<dyn NodeConduct>) -> Result<End, JoinError> {
    let mut watch = Watch::new(options.restraint.clone(), &options.data_dir)?;
    // A process before this one may have ended in a round, or before an audit. What it owed comes before any pause.
    let mut owing = owes(&options)?;
    let (mut last, mut again) = (None, false);
    loop {
        watch.begin();
        if !owing {
            let Some(paused) = rest::pause(&options, &mut watch, last.take()).await? else {
                return Ok(End::Interrupted);
            };
            again |= paused;
        }
        let mut session = match enter((again, owing), &options, &conduct, &mut watch).await? {
            Entered::Session(session) => session,
            Entered::Paused => {
                again = true;
                continue;
            }
            Entered::Interrupted => return Ok(End::Interrupted),
        };
        if let Some(end) = session.attend(&mut watch).await? {
            return Ok(end);
        }
        (last, again, owing) = (Some(session.status(&watch)), true, false);
    }
}

/// Enters a membership; `again` after another one or a pause, once the tasks of the one before let go of its directory. Unless this
/// member is `owing`, it pauses as soon as it should while all is fetched that it needs at first.
async fn enter(
    (again, owing): (bool, bool),
    options: &JoinOptions,
    conduct: &Arc<dyn NodeConduct>,
    watch: &mut Watch,
) -> Result<Entered, JoinError> {
    let (began, line) = (Instant::now(), OnceLock::new());
    let entering = async {
        let opened = loop {
            let opened = Session::open(options.clone(), conduct.clone(), &line);
            tokio::select! {
                opened = opened => match opened {
                    Err(JoinError::Store(error))
                        if again && error.kind() == Kind::Locked && began.elapsed() < HELD_FOR =>
                    {
                        tokio::time::sleep(AGAIN).await;
                    }
                    opened => break opened?,
                },
                () = stopped(watch, &line), if !owing => return Ok(Entered::Paused),
            }
        };
        let mut session = Box::new(opened);
        session.begin().await?;
        Ok(Entered::Session(session))
    };
    // A request to stop ends the process by itself until it is listened for.
    let entered = tokio::select! {
        () = interrupted(), if again => Ok(Entered::Interrupted),
        entered = entering => entered,
    };
    if !matches!(entered, Ok(Entered::Session(_)))
        && let Some(line) = line.get()
    {
        line.count(watch, true);
    }
    entered
}

/// Waits until the machine is not to work any more.
async fn stopped(watch: &mut Watch, line: &OnceLock<Line>) {
    while watch.paused().is_none() {
        watch.due().await;
        match line.get() {
            Some(line) => line.count(watch, false),
            None => drop(watch.look(0)),
        }
    }
}
