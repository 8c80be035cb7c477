//! `muster drill` and `muster demo`: a whole run on this machine, with cheats among the members, and an account of
//! what happened. The demo is a drill with settings and a text of its own.
//!
//! Everything is real: steward, nodes and verifiers are processes of their own that speak over the network. Only the
//! attackers are ours (`crate::attack`), and no honest path knows of them. This module alone may name the verifier's
//! crate, because the program starts its verifiers by starting itself.

mod account;
mod cast;
mod caught;
mod children;
mod corpus;
mod facts;
mod lie;
mod live;
mod odds;
mod role;
mod sample;
mod share;
mod stage;

use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
pub use role::{Role, play};
pub use share::Share;

use self::lie::Lie;
use self::odds::Odds;
use crate::attack::{ATTACKS, Attack};
use crate::backend::Backend;
use crate::config::Settings;
use crate::exit::{Exit, Failure, Outcome};

/// What a demo is asked for.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Keep everything in this new folder: text, run, members, logs, and report.json.
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
    /// Settings to start from instead of the rehearsal's own.
    #[arg(long, value_name = "FILE", hide = true)]
    pub config: Option<PathBuf>,
    /// Honest nodes.
    #[arg(long, value_name = "N", hide = true, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub nodes: u16,
    /// Ways to cheat, one attacker each.
    #[arg(long, hide = true, num_args = 1.., default_values = ["flip", "lazy"])]
    pub attack: Vec<Attack>,
}

/// What a drill is asked for.
#[derive(Clone, Debug, clap::Args)]
pub struct DrillOptions {
    /// The settings to rehearse, as for `muster run new`.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// An attack of those below, and how many nodes play it, or verifiers tell that lie: a number, or a share of them all
    /// like 25%. May be given several times.
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
    /// Keep everything in this new folder: text, run, members, logs, and report.json.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Draws what attackers choose at random.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// How every member computes leaves.
    #[command(flatten)]
    pub backend: Backend,
}

/// What help says below the options of a drill.
pub fn attacks_help() -> String {
    let lines = ATTACKS.iter().map(|attack| format!("  {:<11} {}\n", attack.name, attack.about()));
    let lies = Lie::value_variants().iter().map(|lie| format!("  {:<11} {}\n", lie.name(), lie.about()));
    format!(
        "\
Plays a run with your settings on this machine, every member a process of its own, and says what they caught. Times
and harm depend on audit.*, aggregation.* and the number of nodes, not on the size of the model: a small one will do.
  muster drill --config run.toml --attack flip:2 one-leaf:10% --nodes 10 --rounds 60

Exit code 1: an attack got away that these settings should have caught, or an honest member was banned.

Attacks:
{}
What verifiers may do wrong, from the first round on:
{}",
        lines.collect::<String>(),
        lies.collect::<String>()
    )
}

/// Plays a demo. What people asked for goes to standard output, progress to standard error.
///
/// # Errors
/// [`Failure`], negative when the run did not end as it should.
pub fn run(options: &Options, drawn: bool, say: &mut dyn FnMut(&str)) -> Outcome<Exit> {
    let (name, template) = match &options.config {
        None => ("the rehearsal's settings".to_owned(), include_str!("demo/run.toml").to_owned()),
        Some(path) => (path.display().to_string(), read(path)?),
    };
    let rehearsal = Rehearsal {
        settings: (name, template),
        out: options.out.clone(),
        text: options.text.clone(),
        rounds: options.rounds,
        from: options.attack_from,
        honest: options.nodes,
        attackers: options.attack.clone(),
        liars: Vec::new(),
        verifiers: 1,
        seed: 0,
        learning: !options.no_learning_check,
        drill: false,
        backend: Backend::default(),
    };
    if rehearsal.from >= rehearsal.rounds && !rehearsal.attackers.is_empty() {
        return Err(Failure::usage("--attack-from must be below --rounds, or nobody ever cheats"));
    }
    stage::run(&rehearsal, drawn, say)
}

/// Plays a drill, and says before it starts what is to be expected.
///
/// # Errors
/// [`Failure`], negative when an attack got away that should not have, or an honest member was banned.
pub fn drill(options: &DrillOptions, drawn: bool, say: &mut dyn FnMut(&str)) -> Outcome<Exit> {
    let rehearsal = Rehearsal::of(options)?;
    say(&rehearsal.odds()?.text(&rehearsal.attackers, &rehearsal.liars));
    say("\n");
    stage::run(&rehearsal, drawn, say)
}

fn read(path: &Path) -> Outcome<String> {
    let text = fs::read_to_string(path);
    text.map_err(|error| Failure::environment(format!("{}: cannot be read ({error})", path.display())))
}

/// What is rehearsed.
#[derive(Clone, Debug)]
struct Rehearsal {
    /// The name of the settings for people, and their text.
    settings: (String, String),
    out: Option<PathBuf>,
    text: Vec<PathBuf>,
    rounds: u32,
    /// Round in which the attackers begin.
    from: u32,
    /// Honest nodes.
    honest: u16,
    /// One attacker each.
    attackers: Vec<Attack>,
    /// Verifiers that lie, one each.
    liars: Vec<Lie>,
    /// Verifiers in all.
    verifiers: u16,
    seed: u64,
    /// Whether the model must beat the bigram model.
    learning: bool,
    /// Whether the account is that of a drill.
    drill: bool,
    /// How every member computes leaves.
    backend: Backend,
}

impl Rehearsal {
    fn of(options: &DrillOptions) -> Outcome<Self> {
        let (name, template) = (options.config.display().to_string(), read(&options.config)?);
        let settings = Settings::parse(&options.config, &template)?;
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
            settings: (name, template),
            out: options.out.clone(),
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
    fn nodes(&self) -> u32 {
        u32::from(self.honest) + self.attackers.len() as u32
    }

    /// The text of the settings with what was asked for.
    fn run_toml(&self) -> Outcome<String> {
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

    /// What the settings do to attacks.
    fn odds(&self) -> Outcome<Odds> {
        let settings = Settings::parse(Path::new(&self.settings.0), &self.run_toml()?)?;
        Ok(Odds::of(&settings, (self.nodes(), self.verifiers), self.from).with(&self.liars))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demo() -> Options {
        Options {
            out: None,
            text: Vec::new(),
            rounds: 14,
            attack_from: 5,
            no_learning_check: true,
            config: None,
            nodes: 3,
            attack: vec!["lazy".parse().unwrap()],
        }
    }

    fn drill_options(place: &Path, attack: &[&str], nodes: u16) -> DrillOptions {
        let config = place.join("run.toml");
        fs::write(&config, "[audit]\nshare = 0.25\n[training]\nrounds = 33\n").unwrap();
        DrillOptions {
            config,
            attack: attack.iter().map(|share| share.parse().unwrap()).collect(),
            nodes: Some(nodes),
            verifiers: None,
            rounds: None,
            from: 5,
            text: Vec::new(),
            out: None,
            seed: 0,
            backend: Backend::default(),
        }
    }

    #[test]
    fn the_settings_are_those_asked_for() {
        let place = tempfile::tempdir().unwrap();
        let options = drill_options(place.path(), &["flip:2", "one-leaf:25%"], 8);
        let rehearsal = Rehearsal::of(&options).unwrap();
        let names: Vec<_> = rehearsal.attackers.iter().map(|attack| attack.name).collect();
        assert_eq!((rehearsal.honest, names), (4, vec!["flip", "flip", "one-leaf", "one-leaf"]));
        let settings = Settings::parse(Path::new("run.toml"), &rehearsal.run_toml().unwrap()).unwrap();
        assert_eq!((settings.training.rounds, settings.admission.start_nodes), (33, 8));
        assert_eq!(settings.audit.share, 0.25);
    }

    #[test]
    fn wrong_wishes_are_refused() {
        let refused = |result: Outcome<Exit>| result.unwrap_err();
        let missing = Options { config: Some("/nonexistent.toml".into()), ..demo() };
        assert_eq!(refused(run(&missing, false, &mut |_| ())).exit, Exit::Environment);
        let late = Options { attack_from: 14, ..demo() };
        assert_eq!(refused(run(&late, false, &mut |_| ())).exit, Exit::Usage);
        let taken = tempfile::tempdir().unwrap();
        fs::write(taken.path().join("thesis"), "years").unwrap();
        let failure =
            refused(run(&Options { out: Some(taken.path().to_owned()), ..demo() }, false, &mut |_| ()));
        assert!(failure.message.contains("already holds something"), "{failure}");
        assert!(taken.path().join("thesis").exists());
        let place = tempfile::tempdir().unwrap();
        let wrong =
            [("flip:4", 5, "must be honest"), ("flip", 33, "nobody ever cheats"), ("accuse", 5, "would lie")];
        for (attack, from, word) in wrong {
            let options = DrillOptions { from, ..drill_options(place.path(), &[attack], 4) };
            let failure = Rehearsal::of(&options).unwrap_err();
            assert!(failure.exit == Exit::Usage && failure.message.contains(word), "{failure}");
        }
    }

    #[test]
    fn help_lists_every_attack() {
        let help = attacks_help();
        assert!(
            ATTACKS.iter().all(|attack| help.contains(&format!("  {:<11} Peer that ", attack.name))),
            "{help}"
        );
    }
}
