//! Roles that only a rehearsal has: `muster demo-role`.

use std::ffi::{OsStr, OsString};
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Subcommand;
use muster_core::ids::Round;
use muster_core::messages::enrol::{Name, Ticket, parse_name};
use muster_member::{End, JoinError};
use muster_net::swarm::Settings;
use muster_replica::Bounds;
use muster_replica::backend::BackendChoice;
use muster_replica::exit::{Exit, Failure, Outcome};
use muster_roles::verifier::audits::{Conduct, Honest};
use muster_show::ShowOptions;

use super::lie::Lie;
use crate::attack::{Attack, Campaign, Coalition};

/// A role of the rehearsal's own.
#[derive(Clone, Debug, Subcommand)]
pub enum RehearsalRole {
    /// Joins as a node that cheats.
    Attacker {
        /// How.
        attack: Attack,
        /// From which round on.
        from: u32,
        /// The invitation.
        invitation: String,
        /// Its directory.
        data_dir: PathBuf,
        /// Draws what it chooses at random.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// What it calls itself.
        #[arg(long, value_parser = parse_name)]
        name: Option<Name>,
        /// Where it meets the others.
        #[arg(long)]
        coalition: Option<PathBuf>,
        /// How it computes.
        #[command(flatten)]
        backend: BackendChoice,
    },
    /// Enrols as a verifier and watches.
    Verifier {
        /// The invitation.
        invitation: String,
        /// Its directory.
        data_dir: PathBuf,
        /// What it calls itself.
        #[arg(long, default_value = "")]
        name: String,
        /// How it computes.
        #[command(flatten)]
        backend: BackendChoice,
    },
    /// Enrols as a verifier that lies, and watches.
    Liar {
        /// How.
        lie: Lie,
        /// The invitation.
        invitation: String,
        /// Its directory.
        data_dir: PathBuf,
        /// What it calls itself.
        #[arg(long, default_value = "")]
        name: String,
        /// How it computes.
        #[command(flatten)]
        backend: BackendChoice,
    },
}

/// Plays a role to its end. A verifier says itself what went wrong.
///
/// # Errors
/// [`Failure`] of an attacker that did not even get as far as being banned.
pub fn play(role: RehearsalRole) -> Outcome<Exit> {
    match role {
        RehearsalRole::Attacker { attack, from, invitation, data_dir, seed, name, coalition, backend } => {
            let me = muster_member::leave::id(&data_dir)?;
            let coalition = coalition.map(|folder| Coalition::meeting(&folder, me, &data_dir)).transpose()?;
            let campaign = Campaign { from: Round(from), coalition: coalition.unwrap_or_default(), seed };
            let options = muster_member::JoinOptions {
                ticket: Ticket::from_line(&invitation)?,
                data_dir,
                name: name.unwrap_or_default(),
                listen: muster_member::Listen::At("127.0.0.1:0".into()),
                advertise: None,
                relay: true,
                show: ShowOptions::default(),
                gossip: Some(Settings { listen: vec!["127.0.0.1:0".into()], ..Settings::default() }),
                machine: backend.machine(1, None),
                bounds: Bounds::default(),
                restraint: Default::default(),
                engagement: Default::default(),
                progress: false,
            };
            block_on(muster_member::join_as(options, attack.conduct(&campaign)))?.map(ended).or_else(
                |error| {
                    match error {
                        // What an attacker is there for.
                        JoinError::Banned { .. } => Ok(Exit::Negative),
                        error => Err(Failure::environment(error.to_string())),
                    }
                },
            )
        }
        RehearsalRole::Verifier { invitation, data_dir, name, backend } => {
            Ok(watch(&invitation, &name, data_dir.as_os_str(), backend, Arc::new(Honest)))
        }
        RehearsalRole::Liar { lie, invitation, data_dir, name, backend } => {
            Ok(watch(&invitation, &name, data_dir.as_os_str(), backend, lie.conduct()))
        }
    }
}

fn ended(end: End) -> Exit {
    match end {
        End::Closed { .. } | End::Left => Exit::Good,
        End::Interrupted => Exit::Interrupted,
    }
}

fn watch(
    invitation: &str,
    name: &str,
    data_dir: &OsStr,
    backend: BackendChoice,
    conduct: Arc<dyn Conduct>,
) -> Exit {
    let words = ["enroll", invitation, "--name", name, "--data-dir"].map(OsStr::new);
    let enroll = [&words[..], &[data_dir]].concat();
    match verifier(&enroll, conduct.clone()) {
        Exit::Good => {
            let backend = backend.words();
            let mut words = vec![OsStr::new("watch"), data_dir];
            words.extend(backend.iter().map(OsStr::new));
            verifier(&words, conduct)
        }
        failed => failed,
    }
}

/// The verifier's own command line.
fn verifier(arguments: &[&OsStr], conduct: Arc<dyn Conduct>) -> Exit {
    let program = std::iter::once(OsStr::new("muster-verifier"));
    let words = program.chain(arguments.iter().copied()).map(OsString::from);
    let code = muster_verifier::run_as(words, conduct);
    let exits = [Exit::Good, Exit::Negative, Exit::Usage, Exit::Environment, Exit::Interrupted];
    exits.into_iter().find(|exit| exit.code() == code).unwrap_or(Exit::Network)
}

fn block_on<T>(work: impl Future<Output = T>) -> Outcome<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::environment(format!("the system gives no threads ({error})")))?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    Ok(done)
}
