//! `check`: re-executes one piece of evidence with what a folder holds, or a bundle.

mod bundled;
mod folder;

use std::path::{Path, PathBuf};

use muster_compute::{Backend, Machine};
use muster_core::audit::{Judgement, claim, judge};
use muster_core::codec::decode;
use muster_core::error::Reject;
use muster_core::ids::{MemberId, Round};
use muster_core::manifest::Manifest;
use muster_core::messages::evidence::Evidence;
use muster_replica::bundle::Bundle;
use muster_replica::exit::Failure;
use muster_replica::memory;
use muster_store::bundles::bundle_in;
use muster_store::reading;

use self::bundled::BundleWitness;
use self::folder::{FolderWitness, Searching};
use crate::output::say;

/// Re-executes the evidence in a file, or in a bundle as it was downloaded. The folder, by default the one two levels above a file
/// of evidence, gives the manifest and, where the messages do not decide alone, the text, the state and the contribution: a
/// steward's, a verifier's, a node's, or an archive. A bundle brings these itself, and takes from a folder what it lacks.
///
/// # Errors
/// [`Failure`] when there is nothing to decide on: no file, no manifest, or one that breaks a rule. What is missing to decide is
/// [`Judgement::Undecided`], in words.
pub fn check(file: &Path, run: Option<PathBuf>, machine: Machine) -> Result<Judgement, Failure> {
    if let Some(contents) = bundle_in(file)? {
        return bundled(&contents, run, machine);
    }
    let bytes = reading::evidence_in(file)?;
    let evidence: Evidence = match decode(&bytes) {
        Ok(evidence) => evidence,
        // A file from a stranger: what cannot be read is no failure of this command.
        Err(reject) => return Ok(malformed(&reject)),
    };
    let two_above = || file.parent().and_then(Path::parent).map(Path::to_owned);
    let folder = run.or_else(two_above).filter(|folder| folder.join("manifest.bin").is_file());
    let folder = folder.ok_or_else(|| {
        Failure::usage("no manifest.bin beside this evidence: name the run's folder with --run DIR")
    })?;
    let manifest = permitted(&folder)?;
    let witness = |accused| FolderWitness::new(folder, manifest.clone(), accused, machine);
    examine(&manifest, &evidence, machine, witness)
}

/// The same of a bundle, whose run is said: only its id tells whether it is the run that somebody means.
fn bundled(contents: &[u8], run: Option<PathBuf>, machine: Machine) -> Result<Judgement, Failure> {
    let bundle = match Bundle::open(contents) {
        Ok(bundle) => bundle,
        Err(why) => return Ok(Judgement::Malformed(why)),
    };
    let (manifest, evidence) = (bundle.manifest.clone(), bundle.evidence.clone());
    if let Some(folder) = &run
        && permitted(folder)?.run() != manifest.run()
    {
        return Err(Failure::usage(format!(
            "{} is of another run than this bundle, which is of {:#}",
            folder.display(),
            manifest.run()
        )));
    }
    say(&format!(
        "run {:#} ({}), steward {:#}: compare both with your invitation, or with what others say",
        manifest.run(),
        &*manifest.name,
        manifest.steward
    ));
    let witness = |accused| {
        let folder = run.map(|folder| FolderWitness::new(folder, manifest.clone(), accused, machine));
        BundleWitness::new(bundle, folder)
    };
    examine(&manifest, &evidence, machine, witness)
}

fn examine<W: Searching>(
    manifest: &Manifest,
    evidence: &Evidence,
    machine: Machine,
    witness: impl FnOnce(Option<(Round, MemberId)>) -> W,
) -> Result<Judgement, Failure> {
    let accused = match accused(manifest, evidence) {
        Ok(accused) => accused,
        Err(reject) => return Ok(malformed(&reject)),
    };
    let mut arithmetic: Box<dyn Backend> = match evidence {
        // A step has defined bits in every profile.
        Evidence::Misconduct(_) => Box::new(machine.exact().map_err(Failure::arithmetic)?),
        _ => machine.leaves(manifest.profile).map_err(Failure::arithmetic)?,
    };
    // Where messages decide alone, a machine that computes nothing can judge them.
    if accused.is_some() {
        memory::check(memory::following(manifest, machine.threads), None).map_err(Failure::arithmetic)?;
        arithmetic.self_test().map_err(Failure::arithmetic)?;
    }
    let mut witness = witness(accused);
    Ok(match judge(manifest, evidence, &mut witness, &mut *arithmetic) {
        Judgement::Undecided(_) if !witness.missing().is_empty() => {
            Judgement::Undecided(witness.missing().join("; "))
        }
        judgement => judgement,
    })
}

/// The manifest of a folder, which may be a stranger's.
fn permitted(folder: &Path) -> Result<Manifest, Failure> {
    let wrong = |why: String| Failure::environment(format!("{}: manifest.bin: {why}", folder.display()));
    let manifest: Manifest =
        decode(&reading::manifest(folder)?).map_err(|reject: Reject| wrong(reject.to_string()))?;
    // MANIFEST-1: whoever is to judge a run MUST refuse one whose manifest breaks a rule.
    manifest.check().map_err(|misuse| wrong(format!("{misuse}; there is no such run to judge")))?;
    Ok(manifest)
}

/// Round and member of the contribution that is to be looked at, or the steward and its step, or who answered a call by
/// which state; `None` when the messages decide alone.
fn accused(manifest: &Manifest, evidence: &Evidence) -> Result<Option<(Round, MemberId)>, Reject> {
    let claim = claim(manifest, evidence)?;
    // A call names the round of its state; elsewhere that is the round of the contribution.
    if let Evidence::Answer(_) = evidence {
        return Ok(evidence.state(manifest.run()).map(|(round, _)| (round, claim.subject)));
    }
    Ok(evidence.freeze().map(|_| (claim.round, claim.subject)))
}

fn malformed(reject: &Reject) -> Judgement {
    Judgement::Malformed(reject.to_string())
}
