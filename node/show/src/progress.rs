//! What a person sees while it works: bars on a terminal, plain lines elsewhere.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use muster_core::ledger::{Ledger, Stage, Standing};
use muster_core::lock::lock;
use muster_core::messages::enrol::Role;
use muster_replica::StopRequests;
use muster_view::words::counted;

use crate::board::give_back;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often it is said whom a run waits for.
const AGAIN: Duration = Duration::from_secs(60);
/// Whom a run may wait for.
const ROLES: [Role; 2] = [Role::Node, Role::Verifier];

/// Bars or lines on standard error.
pub struct ProgressDisplay {
    rounds: ProgressBar,
    /// When it was last said whom the run waits for.
    told: Mutex<Option<Instant>>,
    drawn: bool,
}

impl ProgressDisplay {
    /// Bars if `drawn`, else lines through the log.
    pub fn new(drawn: bool) -> Self {
        let rounds = if drawn { ProgressBar::no_length() } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{bar:24} round {pos}/{len} [{elapsed} < {eta}] {msg}");
        rounds.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        if drawn {
            rounds.enable_steady_tick(Duration::from_millis(500));
        }
        Self { rounds, told: Mutex::default(), drawn }
    }

    /// A round is over.
    pub fn round(&self, done: u64, total: u64, text: &str) {
        self.rounds.set_length(total);
        self.rounds.set_position(done);
        self.rounds.set_message(text.to_owned());
        if !self.drawn {
            tracing::info!("round {done}/{total}: {text}");
        }
    }

    /// While a run gathers: an empty bar, and whom it waits for, when that changes and each minute. `invite` says how to bring in
    /// so many members of a role, for whoever may.
    pub fn gathering(&self, ledger: &Ledger, invite: impl Fn(Role, usize) -> Option<String>) {
        if ledger.stage() != Stage::Gathering {
            return;
        }
        let text = awaited(ledger);
        let mut told = lock(&self.told);
        if self.rounds.message() == text && told.is_some_and(|told| told.elapsed() < AGAIN) {
            return;
        }
        *told = Some(Instant::now());
        self.rounds.set_length(ledger.manifest().training.rounds.into());
        self.rounds.set_position(ledger.next_round().0.into());
        self.rounds.set_message(text.clone());
        let missing = ROLES.map(|role| (role, ledger.turnout(role))).into_iter();
        let missing = missing.map(|(role, turnout)| (role, turnout.wanted.saturating_sub(turnout.here)));
        let hints = missing.filter(|(_, count)| *count > 0).filter_map(|(role, count)| {
            let whom = if count == 1 { "one" } else { "them" };
            invite(role, count).map(|how| format!("; invite {whom}: {how}"))
        });
        self.line(&format!("{text}{}", hints.collect::<String>()));
    }

    /// A line that stays.
    pub fn line(&self, text: &str) {
        if self.drawn {
            // A line written into a bar would tear it.
            self.rounds.suspend(|| tracing::info!("{text}"));
        } else {
            tracing::info!("{text}");
        }
    }

    /// A bar for bytes.
    pub fn bytes(&self, what: &'static str, total: u64) -> ProgressBar {
        let bar = ProgressBar::new(total);
        if !self.drawn {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let style = ProgressStyle::with_template("{bar:24} {bytes}/{total_bytes} of {msg} [{eta}]");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what);
        bar
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.rounds.finish_and_clear();
    }
}

/// Whom the next round waits for, in words.
fn awaited(ledger: &Ledger) -> String {
    let turnouts = ROLES.map(|role| (role, ledger.turnout(role)));
    if turnouts.iter().all(|(_, turnout)| turnout.suffices()) {
        return "everyone is here, the next round is about to begin".into();
    }
    let wanted = turnouts.iter().filter(|(_, turnout)| turnout.wanted > 0);
    let counts = wanted.map(|(role, turnout)| {
        let (here, needed) = (turnout.here, counted(turnout.wanted, role.word()));
        // More than are needed may have come.
        if here > turnout.wanted { counted(here, role.word()) } else { format!("{here} of {needed}") }
    });
    let mut counts = counts.map(|count| count + " here");
    let first = counts.next().unwrap_or_default();
    let others: String = counts.map(|count| format!(", {}", count.trim_end_matches(" here"))).collect();
    format!("waiting: {first}{others}{}", newcomers(ledger))
}

/// Nodes that are here and do not count yet (STAND-1): without these words it would look as if nobody had come.
fn newcomers(ledger: &Ledger) -> String {
    let nodes = ledger.members().iter().filter(|member| member.role == Role::Node);
    let here = nodes.filter(|member| member.standing == Standing::Active);
    let unproven = here.filter(|member| !ledger.weighs(member)).count();
    match unproven {
        0 => String::new(),
        1 => ", beside one on probation, which does not count yet".into(),
        more => format!(", beside {more} on probation, which do not count yet"),
    }
}

/// Waits until somebody asks this process to stop. From then on the next request ends it at once, with exit code 130.
pub async fn interrupted() {
    let mut stops = StopRequests::listen();
    stops.next().await;
    tokio::spawn(async move {
        stops.next().await;
        end();
    });
}

/// What is done before the process ends at once, beside giving the terminal back: the newest one.
static AT_END: Mutex<Option<Box<dyn FnOnce() + Send>>> = Mutex::new(None);

/// Has this done before a second request ends the process.
pub fn at_end(action: impl FnOnce() + Send + 'static) {
    *lock(&AT_END) = Some(Box::new(action));
}

fn end() -> ! {
    give_back();
    if let Some(action) = lock(&AT_END).take() {
        action();
    }
    std::process::exit(130);
}
