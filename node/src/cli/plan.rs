//! `muster plan`: seconds and bytes of a step, by the way in which members share the work.

use muster_core::manifest::Manifest;
use muster_member::bench::{BenchOptions, PATIENCE, bench, glance};
use muster_organise::plan::exchange::{Exchange, Link};
use muster_organise::plan::job;
use muster_organise::plan::lines::MEMBERS;
use muster_replica::exit::{Exit, Failure, Outcome};

use super::arguments::PlanArguments;
use super::output::{say, show};
use super::workload::workload;

/// What lines are where nobody says so, in Mbit/s, and seconds from one member to another.
const LINE: f64 = 100.0;
const STEWARD: f64 = 1000.0;
const LATENCY: f64 = 0.03;

pub(super) fn plan(arguments: PlanArguments) -> Outcome<Exit> {
    let PlanArguments { run, leaf, rest, link, steward, latency, leaves } = arguments;
    let workload = workload(run)?;
    let (manifest, leaf, rest) = match leaf {
        Some(leaf) => (workload.manifest()?, leaf, rest.unwrap_or_default()),
        None => {
            let options =
                BenchOptions { workload, machine: leaves.machine(), precision: None, patience: PATIENCE };
            let benchmark = bench(&options)?;
            let measured = benchmark.seconds().ok_or_else(|| {
                Failure::environment(
                    "this machine lacks the memory to measure a leaf: say how long one takes with --leaf",
                )
            })?;
            (benchmark.manifest().clone(), measured.0, rest.unwrap_or(measured.1))
        }
    };
    let links: Vec<Link> = link.iter().flat_map(|lines| vec![lines.link; lines.count]).collect();
    let links = if links.is_empty() { usual(&manifest) } else { links };
    if !(2..=MEMBERS).contains(&links.len()) {
        return Err(Failure::usage(format!(
            "a plan is of 2 to {MEMBERS} members: --link names {}",
            links.len()
        )));
    }
    let server = steward.map_or_else(|| Link::megabits(STEWARD, STEWARD), |lines| lines.link);
    let latency = latency.unwrap_or(LATENCY);
    let exchange = Exchange { links, server, contribution: 0.0, results: 0.0, latency };
    let job = job(&manifest, leaf, rest, exchange);
    let (up, down) = (job.exchange.contribution / 1e6, job.exchange.results / 1e6);
    say(&format!(
        "{} members; a leaf takes {leaf:.3} s, a contribution has {up:.1} MB, the results {down:.1} MB\n",
        job.exchange.links.len()
    ))?;
    show(&job.text())?;
    Ok(Exit::Good)
}

/// The members that the run begins with, over usual lines.
fn usual(manifest: &Manifest) -> Vec<Link> {
    let nodes = usize::from(manifest.admission.start_nodes).clamp(2, MEMBERS);
    vec![Link::megabits(LINE, LINE); nodes]
}

/// What `run new` says of it.
pub(super) fn glimpse(manifest: &Manifest) -> Outcome<String> {
    let links = usual(manifest);
    let server = Link::megabits(STEWARD, STEWARD);
    let exchange = Exchange { links, server, contribution: 0.0, results: 0.0, latency: LATENCY };
    let job = job(manifest, glance(manifest)?, 0.0, exchange);
    Ok(format!("over lines of {LINE:.0} Mbit/s, as a guess: {}", job.recommendation()))
}
