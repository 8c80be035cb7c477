//! A rehearsal as it was asked for, and the settings that follow.

use std::path::{Path, PathBuf};

use muster_organise::config::Settings;
use muster_organise::pack::ROUTE_TOKENS;
use muster_replica::backend::BackendChoice;
use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::RouterSize;
use muster_store::regular;

use super::lie::Lie;
use super::odds::Odds;
use super::share::Share;
use super::swept::Sweep;
use crate::attack::Attack;

/// Options of a demo.
#[derive(Clone, Debug, clap::Args)]
pub struct RehearsalOptions {
    /// Keep everything in this new folder: text, run, members, logs, report.json, report.html and board.svg.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Train on these UTF-8 files, or folders of them, instead of Rust sources; the tail is held out.
    #[arg(long, num_args = 1.., value_name = "PATH")]
    pub text: Vec<PathBuf>,
    /// Rounds to train.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(2..))]
    pub rounds: u32,
    /// Round in which the attackers begin to cheat.
    #[arg(long, value_name = "ROUND", default_value_t = 10)]
    pub attack_from: u32,
    /// Do not demand that the model beats the bigram model: for runs too short to learn.
    #[arg(long)]
    pub no_learning_check: bool,
    /// Show the run as web pages while it goes on, at this address; without HOST, only this machine sees them.
    #[arg(long, value_name = "[HOST:]PORT", value_parser = muster_view::serve::parse_address)]
    pub web: Option<String>,
    /// Train a mixture of experts in rows, of which each node holds one.
    #[arg(long, conflicts_with = "config")]
    pub experts: bool,
    /// Settings to start from instead of the rehearsal's own.
    #[arg(long, value_name = "FILE", hide = true)]
    pub config: Option<PathBuf>,
    /// Honest nodes [default: 4, with --experts 7].
    #[arg(long, value_name = "N", hide = true, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub nodes: Option<u16>,
    /// Ways to cheat, one attacker each [default: flip and lazy, with --experts pair and stale-row].
    #[arg(long, hide = true, num_args = 1..)]
    pub attack: Vec<Attack>,
}

/// The settings of a rehearsal for which nobody gives others: their name, and their text.
pub(super) const OWN: (&str, &str) = ("the demo's settings", include_str!("run.toml"));

/// Options of a drill.
#[derive(Clone, Debug, clap::Args)]
pub struct DrillOptions {
    /// The settings to rehearse, as for `muster run new` [default: run.toml, and where there is none those of the demo].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// An attack listed below, and how many nodes play it (for a lie, how many verifiers tell it): a number, or a share of
    /// them all, like 25%. May be given several times.
    #[arg(long, value_name = "NAME:SHARE", num_args = 1..)]
    pub attack: Vec<Share>,
    /// Nodes in all, attackers among them [default: start_nodes of the settings].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub nodes: Option<u16>,
    /// Verifiers [default: start_verifiers of the settings].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    pub verifiers: Option<u16>,
    /// Rounds to train [default: those of the settings].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub rounds: Option<u32>,
    /// Round in which the attackers begin to cheat.
    #[arg(long, value_name = "ROUND", default_value_t = 5)]
    pub from: u32,
    /// Train on these UTF-8 files, or folders of them, instead of Rust sources; the tail is held out.
    #[arg(long, num_args = 1.., value_name = "PATH")]
    pub text: Vec<PathBuf>,
    /// Keep everything in this new folder: text, run, members, logs, report.json and report.html.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Play the drill at each of these values of a setting, and plot harm beside price in the report of --out.
    #[arg(long, value_name = "SECTION.KEY=VALUE,…", requires = "out", conflicts_with = "web")]
    pub sweep: Option<Sweep>,
    /// Show the run as web pages while it goes on, at this address; without HOST, only this machine sees them.
    #[arg(long, value_name = "[HOST:]PORT", value_parser = muster_view::serve::parse_address)]
    pub web: Option<String>,
    /// Draws what attackers choose at random.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// How every member computes leaves.
    #[command(flatten)]
    pub backend: BackendChoice,
}

pub(super) fn read(path: &Path) -> Outcome<String> {
    Ok(regular::text(path, regular::TEXT_BYTES)?)
}

/// The settings of a drill: what people call them, and their text.
pub(super) fn settings(config: Option<&Path>) -> Outcome<(String, String)> {
    let here = Path::new("run.toml");
    match config.or_else(|| here.exists().then_some(here)) {
        Some(path) => Ok((path.display().to_string(), read(path)?)),
        None => Ok((OWN.0.to_owned(), OWN.1.to_owned())),
    }
}

/// What is rehearsed.
#[derive(Clone, Debug)]
pub(super) struct Rehearsal {
    /// The name of the settings for people, and their text.
    pub(super) settings: (String, String),
    pub(super) out: Option<PathBuf>,
    pub(super) text: Vec<PathBuf>,
    pub(super) rounds: u32,
    /// Round in which the attackers begin.
    pub(super) from: u32,
    /// Honest nodes.
    pub(super) honest: u16,
    /// One attacker each.
    pub(super) attackers: Vec<Attack>,
    /// Verifiers that lie, one each.
    pub(super) liars: Vec<Lie>,
    /// Verifiers in all.
    pub(super) verifiers: u16,
    pub(super) seed: u64,
    /// Whether the model must beat the bigram model.
    pub(super) learning: bool,
    /// Where the steward shows the run to browsers.
    pub(super) web: Option<String>,
    /// Whether the account is that of a drill.
    pub(super) drill: bool,
    /// How every member computes leaves.
    pub(super) backend: BackendChoice,
}

impl Rehearsal {
    pub(super) fn of(options: &DrillOptions) -> Outcome<Self> {
        let (name, template) = settings(options.config.as_deref())?;
        Self::of_settings(options, &name, template)
    }

    /// The same with the text of other settings, and what people call them.
    pub(super) fn of_settings(options: &DrillOptions, name: &str, template: String) -> Outcome<Self> {
        let settings = Settings::parse(Path::new(name), &template)?;
        let all = options.nodes.unwrap_or(settings.admission.start_nodes);
        let attackers: Vec<Attack> = options.attack.iter().flat_map(|share| share.attackers(all)).collect();
        let honest = usize::from(all).checked_sub(attackers.len()).filter(|honest| *honest > 0);
        let honest = honest.ok_or_else(|| {
            Failure::usage(format!(
                "{} of {all} nodes would be attackers, and one at least must be honest; give more with --nodes",
                attackers.len()
            ))
        })?;
        let verifiers = options.verifiers.unwrap_or(settings.admission.start_verifiers.max(1));
        let liars: Vec<Lie> = options.attack.iter().flat_map(|share| share.liars(verifiers)).collect();
        if liars.len() >= usize::from(verifiers) {
            return Err(Failure::usage(format!(
                "{} of {verifiers} verifiers would lie, and one at least must be honest; give more with --verifiers",
                liars.len()
            )));
        }
        let rounds = options.rounds.unwrap_or(settings.training.rounds);
        if options.from >= rounds && !attackers.is_empty() {
            return Err(Failure::usage(format!(
                "--from {} must be below the number of rounds, {rounds}, or nobody ever cheats",
                options.from
            )));
        }
        Ok(Self {
            settings: (name.to_owned(), template),
            out: options.out.clone(),
            web: options.web.clone(),
            text: options.text.clone(),
            rounds,
            from: options.from,
            honest: honest as u16,
            attackers,
            liars,
            verifiers,
            seed: options.seed,
            learning: false,
            drill: true,
            backend: options.backend,
        })
    }

    /// Nodes in all.
    pub(super) fn nodes(&self) -> u32 {
        u32::from(self.honest) + self.attackers.len() as u32
    }

    /// The text of the settings, with the options in them.
    pub(super) fn run_toml(&self) -> Outcome<String> {
        let (name, template) = &self.settings;
        let wrong = |why: String| Failure::usage(format!("{name}: {why}"));
        let mut table: toml::Table =
            template.parse().map_err(|error: toml::de::Error| wrong(error.message().to_owned()))?;
        let asked = [
            ("training", "rounds", i64::from(self.rounds)),
            ("admission", "start_nodes", i64::from(self.nodes())),
            ("admission", "start_verifiers", i64::from(self.verifiers)),
        ];
        for (section, key, value) in asked {
            let section = table.entry(section).or_insert_with(|| toml::Table::new().into());
            let section =
                section.as_table_mut().ok_or_else(|| wrong(format!("{key} must be in a section")))?;
            section.insert(key.to_owned(), value.into());
        }
        toml::to_string(&table).map_err(|error| wrong(error.to_string()))
    }

    fn parsed(&self) -> Outcome<Settings> {
        Settings::parse(Path::new(&self.settings.0), &self.run_toml()?)
    }

    /// The router that the text is packed with: where these settings have several rows of experts.
    pub(super) fn router(&self) -> Outcome<Option<RouterSize>> {
        let rows = self.parsed()?.checked_model()?.rows();
        Ok((rows > 1).then_some(RouterSize { rows, tokens: ROUTE_TOKENS }))
    }

    /// What these settings can be expected to catch.
    pub(super) fn odds(&self) -> Outcome<Odds> {
        let settings = self.parsed()?;
        Ok(Odds::of(&settings, self.nodes(), self.verifiers, self.from).with(&self.liars))
    }
}
