//! What a person sees while it works: bars on a terminal, plain lines elsewhere.

use std::time::Duration;

use muster_core::ledger::{Ledger, Stage};
use muster_core::messages::enrol::Role;
use muster_replica::StopRequests;

use crate::board::give_back;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Bars or lines on standard error.
pub struct ProgressDisplay {
    rounds: ProgressBar,
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
        Self { rounds, drawn }
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

    /// While a run gathers: an empty bar, and whom it waits for, as often as that changes.
    pub fn gathering(&self, ledger: &Ledger) {
        if ledger.stage() != Stage::Gathering {
            return;
        }
        let text = awaited(ledger);
        if self.rounds.message() == text {
            return;
        }
        self.rounds.set_length(ledger.manifest().training.rounds.into());
        self.rounds.set_position(ledger.next_round().0.into());
        self.rounds.set_message(text.clone());
        if !self.drawn {
            tracing::info!("{text}");
        }
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
    let (mut missing, mut here) = (Vec::new(), Vec::new());
    for (role, turnout) in [Role::Node, Role::Verifier].map(|role| (role.word(), ledger.turnout(role))) {
        let wanted = turnout.wanted;
        if !turnout.suffices() {
            missing.push(format!("{} of {wanted} {role}s", wanted - turnout.here));
        } else if wanted > 0 {
            here.push(format!("{} of {wanted} {role}s", turnout.here));
        }
    }
    let here = if here.is_empty() { String::new() } else { format!("; {} are here", here.join(" and ")) };
    if missing.is_empty() {
        return "everyone is here, the next round is about to begin".into();
    }
    format!("waiting for {}{here}", missing.join(" and "))
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

fn end() -> ! {
    give_back();
    std::process::exit(130);
}
