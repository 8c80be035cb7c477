//! `muster status`: what the program of a folder does now.

use muster_replica::exit::{Exit, Failure, Outcome};

use super::arguments::StatusArguments;
use super::options::HomeArguments;
use super::output::{say, show};

#[cfg(unix)]
pub(super) fn tell(arguments: StatusArguments) -> Outcome<Exit> {
    use muster_view::status::socket::{Missing, ask};

    let StatusArguments { folder, json } = arguments;
    let folder = HomeArguments { data_dir: folder }.directory()?;
    let path = folder.display();
    let status = super::runtime::block_on(ask(&folder))?.map_err(|missing| match missing {
        Missing::NotRunning if !folder.is_dir() => Failure::usage(format!("{path} does not exist: name the folder of a run or a member")),
        Missing::NotRunning => Failure::environment(format!(
            "{path}: no program of this folder runs; start it with muster host, muster join or muster-verifier watch"
        )),
        Missing::Busy => Failure::environment(format!(
            "{path}: its program runs, and says nothing yet: it is starting, or fetches the run's files; try again"
        )),
        Missing::Refused(why) => Failure::environment(format!("{path}: its program cannot be asked ({why})")),
    })?;
    if json {
        say(&status.json())?;
    } else {
        show(&status.text())?;
    }
    Ok(if status.is_well() { Exit::Good } else { Exit::Negative })
}

#[cfg(not(unix))]
pub(super) fn tell(_: StatusArguments) -> Outcome<Exit> {
    Err(Failure::usage(
        "this system has no local sockets: start the program with --metrics, and look at its page",
    ))
}
