//! A rehearsal from its first byte to its account.

use std::fs;
use std::io::{IsTerminal, stdout};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use muster_core::manifest::Profile;
use muster_host::PAGE;
use muster_organise::create::{CreateOptions, create};
use muster_organise::invite::read_manifest;
use muster_organise::pack;
use muster_replica::Replica;
use muster_replica::archive::{Archive, ReplayError, Replayed};
use muster_replica::exit::{Exit, Failure, Outcome};
use muster_show::Surroundings;
use muster_show::board::{self, Board};
use muster_show::progress::ProgressDisplay;
use muster_view::event::LOG;
use muster_view::words::counted;
use muster_view::{Source, View};

use super::cast::{Cast, surroundings};
use super::facts::{Facts, Observed, UNREPLAYED};
use super::interrupt::{Interrupt, PAUSE};
use super::live::{Live, told};
use super::rehearsal::Rehearsal;
use super::sample::sample;
use super::workspace::Workspace;
use super::{account, caught, corpus, page};

/// How long the steward may report nothing.
const STALLED: Duration = Duration::from_secs(240);
/// How long the steward's last report may come after the first member has ended.
const LAST_REPORT: Duration = Duration::from_secs(5);

/// How a rehearsal is shown while it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Show {
    /// On the whole terminal.
    Board,
    /// As a bar.
    Bars,
    /// In a few lines.
    Lines,
}

impl Show {
    /// Without the whole terminal.
    fn of(drawn: bool) -> Self {
        if drawn { Self::Bars } else { Self::Lines }
    }
}

/// A rehearsal that has ended.
struct Played {
    facts: Facts,
    archive: Archive,
}

/// Rehearses, and says how it went. What people asked for goes to standard output, progress to standard error.
///
/// # Errors
/// [`Failure`], negative when the run did not end as it should.
pub(super) fn run(rehearsal: &Rehearsal, drawn: bool, say: &mut dyn FnMut(&str)) -> Outcome<Exit> {
    let interrupt = Interrupt::listen()?;
    let show = if drawn && board::fits() { Show::Board } else { Show::of(drawn) };
    in_workspace(rehearsal, &interrupt, show, |workspace, played| tell(rehearsal, workspace, &played, say))?;
    Ok(Exit::Good)
}

/// Runs a rehearsal and returns its facts, expected or not.
///
/// # Errors
/// [`Failure`] when there is nothing to tell.
pub(super) fn play(rehearsal: &Rehearsal, interrupt: &Interrupt, drawn: bool) -> Outcome<Facts> {
    interrupt.check()?;
    in_workspace(rehearsal, interrupt, Show::of(drawn), |_, played| Ok(played.facts))
}

/// Whether a rehearsal can begin: makes its run, in a folder that is gone afterwards.
///
/// # Errors
/// [`Failure`] of the settings, or of attacks that cannot be played in such a run.
pub(super) fn check(rehearsal: &Rehearsal) -> Outcome<()> {
    prepare(rehearsal, &Workspace::make(None)?)
}

/// Rehearses, and does something with the outcome while everything is there.
fn in_workspace<T>(
    rehearsal: &Rehearsal,
    interrupt: &Interrupt,
    show: Show,
    then: impl FnOnce(&Workspace, Played) -> Outcome<T>,
) -> Outcome<T> {
    let began = Instant::now();
    let mut workspace = Workspace::make(rehearsal.out.as_deref())?;
    let outcome = rehearse(rehearsal, &workspace, interrupt, began, show);
    outcome.and_then(|played| then(&workspace, played)).map_err(|mut failure| {
        // Whoever interrupts it does not want the folder; whoever sees it fail needs the logs.
        if failure.exit != Exit::Interrupted && workspace.path("logs").exists() {
            workspace.keep();
            failure.message += &format!("\nlogs and everything else: {}", workspace.folder().display());
        }
        failure
    })
}

fn rehearse(
    rehearsal: &Rehearsal,
    workspace: &Workspace,
    interrupt: &Interrupt,
    began: Instant,
    show: Show,
) -> Outcome<Played> {
    let progress = ProgressDisplay::new(show == Show::Bars);
    if show == Show::Bars {
        progress.round(0, u64::from(rehearsal.rounds), "setting up");
    }
    progress.line("packing the text");
    prepare(rehearsal, workspace)?;
    let mut cast = Cast::start(rehearsal, workspace, interrupt)?;
    progress.line(&format!(
        "a steward and {} are started, each a process of its own",
        counted(cast.players.len(), "member")
    ));
    let mut seen = surroundings(rehearsal);
    if rehearsal.web.is_some() {
        let said = cast.page(interrupt)?;
        progress.line(&said);
        seen.page = said.strip_prefix(PAGE).map(|url| url.trim().to_owned());
    }
    let _board = match show {
        Show::Board => Some(open_board(workspace, seen)?),
        Show::Bars | Show::Lines => None,
    };
    let live = watch(&mut cast, workspace, interrupt, show, &progress)?;
    progress.line("the run is over: members leave, the last states are measured on the held-out text");
    // Before the replay: every process has written what it has to say by then.
    cast.dismiss(&workspace.path("run").join(LOG), interrupt)?;
    let ran = began.elapsed();
    progress.line("replaying the archive");
    let archive = Archive::open(&workspace.path("run")).map_err(opened)?;
    let replayed = replay(&archive, show, &progress, interrupt)?;
    progress.finish();
    let seconds = began.elapsed().as_secs_f64();
    let observed = Observed { live, players: &cast.players, seconds, run_seconds: ran.as_secs_f64() };
    let facts = Facts::gather(&archive, replayed, observed, rehearsal)?;
    facts.save(&workspace.path("report.json"))?;
    page::write(&facts, &archive, workspace.folder(), rehearsal)?;
    Ok(Played { facts, archive })
}

/// The run on the whole terminal, until this is dropped. Whatever is said meanwhile is seen below it.
fn open_board(workspace: &Workspace, seen: Surroundings) -> Outcome<Board> {
    let folder = workspace.path("run");
    let manifest = Arc::new(read_manifest(&folder)?);
    let view = View::start(manifest, Source::Other(folder.clone()), Some(folder), None);
    let board = Board::open(view, seen);
    board.map_err(|error| Failure::environment(format!("the terminal refuses the board: {error}")))
}

/// Says how it went.
fn tell(
    rehearsal: &Rehearsal,
    workspace: &Workspace,
    Played { facts, archive }: &Played,
    say: &mut dyn FnMut(&str),
) -> Outcome<()> {
    say(&account::table(facts));
    if rehearsal.drill {
        say(&caught::table(facts));
        caught::check(facts)?;
        say(&verdict(&caught::conclusion(facts)));
        return Ok(());
    }
    say(&sample(rehearsal, &workspace.path("run"), archive)?);
    account::check(facts, rehearsal.learning)?;
    say(&verdict(&account::conclusion(facts)));
    Ok(())
}

/// The last sentence, which a terminal shows in green.
fn verdict(sentence: &str) -> String {
    let words = sentence.trim();
    if stdout().is_terminal() && board::wants_colour() {
        format!("\n\u{1b}[1;32m{words}\u{1b}[0m\n")
    } else {
        format!("\n{words}\n")
    }
}

/// Packs the text and creates the run, which must be one that the attacks can be played in.
fn prepare(rehearsal: &Rehearsal, workspace: &Workspace) -> Outcome<()> {
    let data = workspace.path("corpus");
    let router = rehearsal.router()?;
    if rehearsal.text.is_empty() {
        corpus::pack(&data, router)?;
    } else {
        let text = pack::PackOptions {
            text: rehearsal.text.clone(),
            router,
            out: data.clone(),
            ..pack::PackOptions::default()
        };
        pack::pack(&text, &mut |_, _| ())?;
    }
    let config = workspace.path("run.toml");
    fs::write(&config, rehearsal.run_toml()?).map_err(|error| {
        Failure::environment(format!("{}: cannot be written ({error})", config.display()))
    })?;
    let out = workspace.path("run");
    let options = CreateOptions { config, data, calibration: None, init: None, organiser_key: None, out };
    let manifest = create(&options)?.manifest;
    let unsuited = rehearsal.attackers.iter().find_map(|attack| attack.suits(&manifest).err());
    unsuited.map_or(Ok(()), |misuse| Err(Failure::usage(misuse.to_string())))
}

/// Follows the steward's reports to the end of the run.
fn watch(
    cast: &mut Cast,
    workspace: &Workspace,
    interrupt: &Interrupt,
    show: Show,
    progress: &ProgressDisplay,
) -> Outcome<Live> {
    let mut live = Live::new(&workspace.path("run"), show == Show::Bars);
    let (mut heard, mut ended) = (Instant::now(), None);
    while !live.closed {
        interrupt.check()?;
        if live.read(&cast.players, progress)? {
            heard = Instant::now();
            continue;
        }
        // Members may read that the run is over, and end, before the steward has written its last report.
        if let Err(failure) = cast.check()
            && ended.get_or_insert_with(Instant::now).elapsed() > LAST_REPORT
        {
            return Err(failure);
        }
        if heard.elapsed() > STALLED {
            return Err(cast.stalled());
        }
        sleep(PAUSE);
    }
    Ok(live)
}

/// Replays the archive, or says what a replay stops at: in a drill, an attack may have escaped.
fn replay(
    archive: &Archive,
    show: Show,
    progress: &ProgressDisplay,
    interrupt: &Interrupt,
) -> Outcome<Result<Replayed, String>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    let manifest = &archive.manifest;
    if manifest.profile != Profile::Exact {
        return Ok(Err(UNREPLAYED.to_owned()));
    }
    let replica = Replica::genesis(manifest.clone(), archive.dataset.clone(), threads, None)?;
    let rounds = u64::from(manifest.training.rounds);
    let replayed = archive.replay(replica, &mut |round| {
        let done = u64::from(round.0) + 1;
        if show == Show::Bars || told(done, rounds) {
            progress.round(done, rounds, "replayed");
        }
    });
    interrupt.check()?;
    match replayed {
        Ok(replayed) => Ok(Ok(replayed)),
        Err(ReplayError::Wrong(what)) => Ok(Err(what)),
        Err(error) => Err(opened(error)),
    }
}

fn opened(error: ReplayError) -> Failure {
    match error {
        ReplayError::Arithmetic(misuse) => misuse.into(),
        ReplayError::Store(error) => error.into(),
        ReplayError::Wrong(what) => Failure { exit: Exit::Negative, message: what },
    }
}
