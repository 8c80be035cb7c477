//! `muster drill` and `muster demo`: a whole run on this machine, with cheats among the members, and an account of
//! what happened. The demo is a drill with settings and a text of its own.
//!
//! Everything is real: steward, nodes and verifiers are processes of their own that speak over the network. Only the
//! attackers are ours ([`attack`]), and no honest path knows of them. Of the node's crates this one alone may name the
//! verifier's, because the program starts its verifiers by starting itself.

mod account;
pub mod attack;
mod cast;
mod caught;
mod children;
pub mod corpus;
mod deed;
mod facts;
mod interrupt;
mod lie;
mod live;
mod odds;
mod page;
mod rehearsal;
mod role;
mod sample;
mod share;
mod stage;
mod sweep;
mod swept;
mod workspace;

use clap::{Subcommand, ValueEnum};
use rehearsal::{DrillOptions, RehearsalOptions};
use role::{RehearsalRole, play};

use muster_core::error::Misuse;
use muster_replica::backend::BackendChoice;
use muster_replica::exit::{Exit, Failure, Outcome};

use self::attack::ATTACKS;
use self::deed::deed;
use self::lie::Lie;
use self::rehearsal::{Rehearsal, read};

/// What is rehearsed, on the command line.
#[derive(Subcommand)]
pub enum RehearseCommand {
    /// Rehearse a whole run on this machine, each member a process of its own, with cheats among them.
    #[command(after_help = "\
Trains on Rust sources that cargo has downloaded, unless --text names other text.
  muster demo --out rehearsal/
  muster demo --experts                  # three rows of experts, of which each node holds one")]
    Demo(RehearsalOptions),
    /// Rehearse your own settings on this machine: which attacks would they catch, how soon, at what harm?
    #[command(after_help = attacks_help())]
    Drill(DrillOptions),
    /// Play in a rehearsal.
    #[command(subcommand, hide = true)]
    DemoRole(RehearsalRole),
}

/// Does what the command says. What people asked for goes to standard output, progress to standard error, `drawn` or not.
///
/// # Errors
/// [`Failure`], negative when the run did not end as it should.
pub fn act(command: RehearseCommand, drawn: bool, say: &mut dyn FnMut(&str)) -> Outcome<Exit> {
    match command {
        RehearseCommand::Demo(options) => demo(&options, drawn, say),
        RehearseCommand::Drill(options) => drill(&options, drawn, say),
        RehearseCommand::DemoRole(role) => play(role),
    }
}

/// What help says below the options of a drill.
fn attacks_help() -> String {
    let line = |name: &str, about: &str| format!("  {name:<11} {}\n", deed(about));
    let lines = ATTACKS.iter().map(|attack| line(attack.name, &attack.about()));
    let lies = Lie::value_variants().iter().map(|lie| line(lie.name(), lie.about()));
    format!(
        "\
Plays a run with your settings on this machine, every member a process of its own, and reports what was caught. Times
and harm depend on audit.*, aggregation.* and the number of nodes, not on the size of the model: a small one will do.
  muster drill --config run.toml --attack flip:2 one-leaf:10% --nodes 10 --rounds 60
  muster drill --config run.toml --attack flip --sweep audit.share=0.05,0.1,0.2 --out sweep/

Exit code 1: an attack got away that these settings should have caught, or an honest member was banned.

Attacks:
{}
Lies of verifiers, from the first round on:
{}",
        lines.collect::<String>(),
        lies.collect::<String>()
    )
}

/// Plays a demo.
fn demo(options: &RehearsalOptions, drawn: bool, say: &mut dyn FnMut(&str)) -> Outcome<Exit> {
    let own = if options.experts { include_str!("experts.toml") } else { rehearsal::OWN.1 };
    let (name, template) = match &options.config {
        None => (rehearsal::OWN.0.to_owned(), own.to_owned()),
        Some(path) => (path.display().to_string(), read(path)?),
    };
    let (nodes, cheats) = if options.experts { (7, ["pair", "stale-row"]) } else { (4, ["flip", "lazy"]) };
    let attackers = match options.attack.as_slice() {
        [] => cheats.iter().map(|name| name.parse()).collect::<Result<_, Misuse>>()?,
        asked => asked.to_vec(),
    };
    let rehearsal = Rehearsal {
        settings: (name, template),
        out: options.out.clone(),
        web: options.web.clone(),
        text: options.text.clone(),
        rounds: options.rounds,
        from: options.attack_from,
        honest: options.nodes.unwrap_or(nodes),
        attackers,
        liars: Vec::new(),
        verifiers: 1,
        seed: 0,
        learning: !options.no_learning_check,
        drill: false,
        backend: BackendChoice::default(),
    };
    if rehearsal.from >= rehearsal.rounds && !rehearsal.attackers.is_empty() {
        return Err(Failure::usage("--attack-from must be below --rounds, or nobody ever cheats"));
    }
    stage::run(&rehearsal, drawn, say)
}

/// Plays a drill, and says before it starts what is to be expected.
fn drill(options: &DrillOptions, drawn: bool, say: &mut dyn FnMut(&str)) -> Outcome<Exit> {
    if let (Some(sweep), Some(out)) = (&options.sweep, &options.out) {
        return sweep::run(sweep, out, options, drawn, say);
    }
    let rehearsal = Rehearsal::of(options)?;
    say(&rehearsal.odds()?.text(&rehearsal.attackers, &rehearsal.liars));
    say("\n");
    stage::run(&rehearsal, drawn, say)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use muster_organise::config::Settings;

    use super::*;

    fn demo_options() -> RehearsalOptions {
        RehearsalOptions {
            out: None,
            web: None,
            text: Vec::new(),
            rounds: 14,
            attack_from: 5,
            no_learning_check: true,
            config: None,
            experts: false,
            nodes: Some(3),
            attack: vec!["lazy".parse().unwrap()],
        }
    }

    fn drill_options(directory: &Path, attack: &[&str], nodes: u16) -> DrillOptions {
        let config = directory.join("run.toml");
        fs::write(&config, "[audit]\nshare = 0.25\n[training]\nrounds = 33\n").unwrap();
        DrillOptions {
            config: Some(config),
            attack: attack.iter().map(|share| share.parse().unwrap()).collect(),
            nodes: Some(nodes),
            verifiers: None,
            rounds: None,
            from: 5,
            text: Vec::new(),
            out: None,
            sweep: None,
            web: None,
            seed: 0,
            backend: BackendChoice::default(),
        }
    }

    #[test]
    fn the_settings_are_those_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let options = drill_options(directory.path(), &["flip:2", "one-leaf:25%"], 8);
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
        let missing = RehearsalOptions { config: Some("/nonexistent.toml".into()), ..demo_options() };
        assert_eq!(refused(demo(&missing, false, &mut |_| ())).exit, Exit::Environment);
        let late = RehearsalOptions { attack_from: 14, ..demo_options() };
        assert_eq!(refused(demo(&late, false, &mut |_| ())).exit, Exit::Usage);
        let taken = tempfile::tempdir().unwrap();
        fs::write(taken.path().join("thesis"), "years").unwrap();
        let failure = refused(demo(
            &RehearsalOptions { out: Some(taken.path().to_owned()), ..demo_options() },
            false,
            &mut |_| (),
        ));
        assert!(failure.message.contains("already holds something"), "{failure}");
        assert!(taken.path().join("thesis").exists());
        let directory = tempfile::tempdir().unwrap();
        let wrong =
            [("flip:4", 5, "must be honest"), ("flip", 33, "nobody ever cheats"), ("accuse", 5, "would lie")];
        for (attack, from, word) in wrong {
            let options = DrillOptions { from, ..drill_options(directory.path(), &[attack], 4) };
            let failure = Rehearsal::of(&options).unwrap_err();
            assert!(failure.exit == Exit::Usage && failure.message.contains(word), "{failure}");
        }
    }

    #[test]
    fn help_lists_every_attack() {
        let help = attacks_help();
        assert!(
            ATTACKS.iter().all(|attack| help.contains(&format!(
                "\n  {:<11} {}",
                attack.name,
                deed(&attack.about())
            ))),
            "{help}"
        );
        assert!(!help.contains("Peer that"), "{help}");
    }
}
