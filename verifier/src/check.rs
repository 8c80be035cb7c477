//! `check`: re-executes one piece of evidence against an archive.

use std::path::{Path, PathBuf};

use muster_compute::Exact;
use muster_core::audit::{Judgement, Witness, frozen_commit, judge};
use muster_core::codec::decode;
use muster_core::error::Reject;
use muster_core::ids::{Block, Digest, MemberId, Round};
use muster_core::ledger::RoundView;
use muster_core::manifest::Manifest;
use muster_core::messages::audit::Evidence;
use muster_core::messages::wire::BlockData;
use muster_core::state::State;
use muster_replica::archive::{Archive, ReplayError};
use muster_replica::{Replica, memory};
use muster_store::error::Kind;
use muster_store::reading;

use crate::cli::Machine;
use crate::failure::{self, Failure};
use crate::session::rounds_bar;

/// Re-executes the evidence in a file. The archive, by default the folder two levels above the file, gives the
/// manifest, the ledger, the text and the exhibits.
///
/// # Errors
/// [`Failure`] when there is nothing to decide on: no file, no manifest. What is missing to decide is
/// [`Judgement::Undecided`].
pub fn check(file: &Path, run: Option<PathBuf>, machine: Machine) -> Result<Judgement, Failure> {
    let bytes = reading::file(file)?;
    let evidence: Evidence = match decode(&bytes) {
        Ok(evidence) => evidence,
        Err(reject) => return Ok(malformed(&reject)),
    };
    let two_above = || file.parent().and_then(Path::parent).map(Path::to_owned);
    let folder = run.or_else(two_above).filter(|folder| folder.join("manifest.bin").is_file());
    let folder = folder.ok_or_else(|| {
        Failure::Usage("no manifest.bin beside this evidence: name the run's folder with --run DIR".into())
    })?;
    let manifest: Manifest = match decode(&reading::file(&folder.join("manifest.bin"))?) {
        Ok(manifest) => manifest,
        Err(reject) => {
            return Err(Failure::Environment(format!("{}: manifest.bin: {reject}", folder.display())));
        }
    };
    match accused(&manifest, &evidence) {
        Ok(None) => {
            let mut exact = Exact::new(machine.threads, machine.path).map_err(failure::arithmetic)?;
            Ok(judge(&manifest, &evidence, &mut Nothing, &mut exact))
        }
        Ok(Some((round, member))) => re_execute(&folder, &evidence, (round, member), machine),
        Err(reject) => Ok(malformed(&reject)),
    }
}

fn re_execute(
    folder: &Path,
    evidence: &Evidence,
    (round, member): (Round, MemberId),
    machine: Machine,
) -> Result<Judgement, Failure> {
    let archive = match Archive::open(folder) {
        Err(ReplayError::Store(error)) if error.kind() == Kind::Missing => {
            return Ok(Judgement::Undecided(format!("{error}; an archive is whole when its run is over")));
        }
        archive => archive?,
    };
    let manifest = archive.manifest.clone();
    memory::check(memory::following(&manifest, machine.threads)).map_err(failure::arithmetic)?;
    let replica = Replica::genesis(manifest, archive.dataset.clone(), machine.threads, machine.path)
        .map_err(failure::arithmetic)?;
    let bar = rounds_bar("replaying", u64::from(round.0));
    let mut told = |done: Round| bar.set_position(u64::from(done.0));
    let judgement = match archive.re_execute(replica, evidence, (round, member), &mut told) {
        Err(ReplayError::Wrong(what)) => {
            Judgement::Undecided(format!("the archive does not replay to the end of round {round}: {what}"))
        }
        judgement => judgement?,
    };
    bar.finish_and_clear();
    Ok(judgement)
}

/// Round and member that need a state to be judged; `None` when the messages decide alone.
fn accused(manifest: &Manifest, evidence: &Evidence) -> Result<Option<(Round, MemberId)>, Reject> {
    let (freeze, member) = match evidence {
        Evidence::Equivocation(_) | Evidence::Results(_) => return Ok(None),
        Evidence::Aggregation(part) => {
            let result = part.result.verify(manifest.run())?;
            return Ok(Some((result.round, result.author())));
        }
        Evidence::Audit(transcript) => {
            (&transcript.freeze, transcript.request.verify(manifest.run())?.target)
        }
        Evidence::Total(total) => (&total.freeze, total.culprit),
    };
    let frozen = frozen_commit(manifest, freeze, &member)?;
    Ok(Some((frozen.commit.round, member)))
}

fn malformed(reject: &Reject) -> Judgement {
    Judgement::Malformed(reject.to_string())
}

/// What a judge of mere messages may look at.
struct Nothing;

impl Witness for Nothing {
    fn state(&mut self, _: &Digest) -> Option<State> {
        None
    }

    fn windows(&mut self, _: &[u64]) -> Option<Vec<Vec<u32>>> {
        None
    }

    fn contribution(&mut self, _: Round, _: &MemberId) -> Option<Vec<i32>> {
        None
    }

    fn round(&mut self, _: Round) -> Option<RoundView> {
        None
    }

    fn block(&mut self, _: Round, _: &MemberId, _: Block) -> Option<BlockData> {
        None
    }
}
