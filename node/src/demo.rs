//! `muster demo`: a whole run on this machine, with cheats among the members, and an account of what happened.
//!
//! Everything is real: steward, nodes and verifier are processes of their own that speak over the network. Only the
//! attackers are ours (`attack`), and no honest path knows of them. This module alone may name the verifier's
//! crate, because the program starts its verifier by starting itself.

mod account;
mod cast;
mod children;
mod corpus;
mod facts;
mod live;
mod role;
mod sample;
mod stage;

use std::path::PathBuf;

use crate::attack::Attack;

pub use role::{Role, play};
pub use stage::run;

/// What a rehearsal is asked for.
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
