//! `replay`: re-executes a finished run from its archive, to the last bit.

use std::path::Path;

use muster_core::messages::record::Body;
use muster_replica::archive::{Archive, Replayed};
use muster_replica::{Replica, memory};

use crate::cli::Machine;
use crate::failure::{self, Failure};
use crate::session::rounds_bar;

/// What a replay confirmed.
pub struct Summary {
    /// Rounds of the run.
    pub rounds: u32,
    /// Bans that follow from their evidence.
    pub bans: usize,
    /// Everything else.
    pub replayed: Replayed,
}

/// Replays an archive.
///
/// # Errors
/// [`Failure`]; negative at the first thing that differs.
pub fn replay(folder: &Path, machine: Machine) -> Result<Summary, Failure> {
    let archive = Archive::open(folder)?;
    let manifest = archive.manifest.clone();
    memory::check(memory::following(&manifest, machine.threads)).map_err(failure::arithmetic)?;
    let rounds = manifest.training.rounds;
    let replica = Replica::genesis(manifest.clone(), archive.dataset.clone(), machine.threads, machine.path);
    let mut replica = replica.map_err(failure::arithmetic)?;
    replica.arithmetic().self_test().map_err(failure::arithmetic)?;
    let bar = rounds_bar("replaying", u64::from(rounds));
    let replayed = archive.replay(replica, &mut |done| bar.set_position(u64::from(done.0) + 1))?;
    bar.finish_and_clear();
    let run = manifest.run();
    let banned = |signed: &&_| is_ban(run, signed);
    let bans = archive.records.iter().filter(banned).count();
    Ok(Summary { rounds, bans, replayed })
}

fn is_ban(
    run: muster_core::ids::RunId,
    signed: &muster_core::sign::Signed<muster_core::messages::record::Record>,
) -> bool {
    signed.verify(run).is_ok_and(|record| matches!(record.body, Body::Ban(_)))
}

impl Summary {
    /// For people.
    pub fn lines(&self) -> Vec<String> {
        let replayed = &self.replayed;
        let loss = |loss: Option<&f64>| loss.map_or("none".into(), |loss| format!("{loss:.4}"));
        let mut lines = vec![
            format!("{} rounds replayed, every record and every state agrees", self.rounds),
            format!("final state {:#}", replayed.root),
            format!(
                "loss {} in the first round, {} in the last; held-out {}",
                loss(replayed.losses.first()),
                loss(replayed.losses.last()),
                loss(replayed.held_out_loss.as_ref())
            ),
            format!("{} bans confirmed by re-executing their evidence", self.bans),
        ];
        for bad in &replayed.bad {
            let (round, member, share) = (bad.round, bad.member, 100.0 * bad.factor);
            lines.push(format!(
                "round {round}: a false contribution of {member} counted; the rule left it {share:.1} %"
            ));
        }
        lines
    }
}
