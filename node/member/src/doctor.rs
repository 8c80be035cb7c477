//! `muster doctor`: whether this machine can take part in a run or host one, and what to do where it cannot.
//!
//! It joins nothing and leaves nothing behind. How fast a machine is, [`super::bench`] measures.

mod clock;
mod finding;
mod network;
mod resources;

use std::path::PathBuf;

use muster_compute::Machine;
use muster_core::manifest::{Manifest, Profile};
use muster_core::messages::enrol::Ticket;
use muster_net::capacity::Capacity;
use muster_organise::ticket;
use muster_replica::exit::Outcome;
use muster_replica::{disk, memory};

use self::clock::Watch;
use self::finding::Finding;
use super::bench::{Workload, manifest};

/// What to examine.
#[derive(Clone, Debug)]
pub struct DoctorOptions {
    /// For which run.
    pub run: ExaminedRun,
    /// What computes.
    pub machine: Machine,
    /// Where a member would keep its things.
    pub data_dir: PathBuf,
    /// Where to listen, each `HOST:PORT`; none for any port.
    pub listen: Vec<String>,
}

/// The run that a machine is examined for.
#[derive(Clone, Debug)]
pub enum ExaminedRun {
    /// Any: one of the default settings stands for it.
    Any,
    /// That of a run's folder, a member's data directory, or a `run.toml`.
    At(PathBuf),
    /// The one that an invitation leads to.
    Invited(Box<Ticket>),
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Examination(Vec<Finding>);

/// Examines this machine.
///
/// # Errors
/// [`muster_replica::exit::Failure`] naming a file or settings that cannot be read. What is wrong with the machine or the network is
/// no error but a finding.
pub async fn doctor(options: &DoctorOptions) -> Outcome<Examination> {
    // First: it may start this program anew.
    let libtorch = resources::libtorch(&options.machine);
    let watch = Watch::start();
    let (mut invited, mut reached, mut known) = (Vec::new(), false, None);
    match &options.run {
        ExaminedRun::Any => {}
        ExaminedRun::At(path) => known = Some(manifest(&Workload::At(path.clone()))?),
        ExaminedRun::Invited(ticket) => {
            let (steward, manifest) = network::steward(ticket).await;
            (reached, known) = (manifest.is_some(), manifest);
            invited.extend([clock::invitation(ticket), steward]);
        }
    }
    let profile = known.as_ref().map_or(Profile::Exact, |manifest| manifest.profile);
    let default = manifest(&Workload::Default)?;
    let mut findings =
        vec![resources::arithmetic(&options.machine, profile), resources::threads(&options.machine)];
    findings.push(resources::graphics(&options.machine, known.as_ref().unwrap_or(&default)));
    findings.push(memory(options, known.as_ref(), &default)?);
    findings.push(resources::descriptors(Capacity::of_process()));
    // The text of settings alone is made up.
    let settings = matches!(&options.run, ExaminedRun::At(path) if !path.is_dir());
    let disk = known.as_ref().filter(|_| !settings).map(|manifest| disk(options, manifest)).transpose()?;
    findings.push(resources::space(&options.data_dir, disk));
    let any = ["0.0.0.0:0".to_owned()];
    for wanted in if options.listen.is_empty() { &any[..] } else { &options.listen } {
        findings.push(network::port(wanted).await);
    }
    findings.extend(invited);
    // After all that takes time: what jumps meanwhile is seen.
    findings.push(watch.judge(reached));
    findings.push(libtorch);
    Ok(Examination(findings))
}

/// What the run takes: as its steward in the folder of a run, elsewhere as a node.
fn memory(options: &DoctorOptions, known: Option<&Manifest>, default: &Manifest) -> Outcome<Finding> {
    let machine = &options.machine;
    if let Some(manifest) = known
        && is_hosted(options)?
    {
        let need = memory::hosting(manifest, machine.threads);
        return Ok(resources::room(need, "the steward of this run"));
    }
    Ok(match known {
        Some(manifest) => resources::room(memory::contributing(manifest, machine), "a node of this run"),
        None => {
            let need = memory::contributing(default, machine).beside_text();
            resources::room(need, "a node of the default settings")
        }
    })
}

/// What the run takes of the disk, and as whose.
fn disk(options: &DoctorOptions, manifest: &Manifest) -> Outcome<(disk::Need, &'static str)> {
    Ok(if is_hosted(options)? {
        (disk::hosting(manifest, 0), "the steward of this run")
    } else {
        (disk::contributing(manifest), "a node of this run")
    })
}

/// Whether the run is named by the folder of its steward.
fn is_hosted(options: &DoctorOptions) -> Outcome<bool> {
    let ExaminedRun::At(path) = &options.run else { return Ok(false) };
    Ok(path.is_dir() && ticket(path)?.is_none())
}

impl Examination {
    /// Whether nothing needs care.
    pub fn is_good(&self) -> bool {
        self.0.iter().all(Finding::is_good)
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text: String = self.0.iter().map(|finding| finding.line() + "\n").collect();
        let care = self.0.iter().filter(|finding| !finding.is_good()).count();
        text += &match care {
            0 => "all is well\n".to_owned(),
            1 => "one thing needs care\n".to_owned(),
            care => format!("{care} things need care\n"),
        };
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(run: ExaminedRun) -> DoctorOptions {
        let data_dir = std::env::temp_dir();
        DoctorOptions { run, machine: Machine::new(1, None), data_dir, listen: vec!["127.0.0.1:0".into()] }
    }

    #[tokio::test]
    async fn every_part_of_the_machine_has_a_line() {
        let text = doctor(&options(ExaminedRun::Any)).await.unwrap().text();
        for subject in
            ["arithmetic", "threads", "devices", "memory", "files", "disk", "port", "clock", "libtorch"]
        {
            assert!(text.lines().any(|line| line.starts_with(subject)), "{subject}: {text}");
        }
        assert!(text.contains("a node of the default settings"), "{text}");
    }

    #[tokio::test]
    async fn what_needs_care_is_counted() {
        let mut busy = options(ExaminedRun::Any);
        busy.listen = vec!["192.0.2.1:7777".into()];
        busy.machine.threads = 100_000;
        // Memory or disk of the machine that tests this may need care, too.
        let examination = doctor(&busy).await.unwrap();
        assert!(!examination.is_good());
        assert!(examination.text().ends_with("things need care\n"), "{}", examination.text());
    }

    #[tokio::test]
    async fn settings_that_take_too_much_memory_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let settings = directory.path().join("run.toml");
        std::fs::write(
            &settings,
            "[model]\nwidth = 8192\nlayers = 10\nheads = 64\nkey_value_heads = 8\nhidden = 22016\n",
        )
        .unwrap();
        let text = doctor(&options(ExaminedRun::At(settings))).await.unwrap().text();
        // Where the system does not tell its memory, nothing is refused.
        assert!(text.contains("model.*") || text.contains("does not tell"), "{text}");
        let missing = doctor(&options(ExaminedRun::At("/nonexistent".into()))).await.unwrap_err();
        assert!(missing.message.contains("/nonexistent"), "{missing}");
    }
}
