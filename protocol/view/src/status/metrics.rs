//! The status for monitoring systems: `/metrics` in the text format of Prometheus, `/health` for whatever restarts programs.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::any;

use super::desk::Desk;
use super::{Status, Way};
use crate::serve::door::{Door, PLAIN, Pages, Policy, guarded, refused};

/// The kind of the text that Prometheus reads.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
/// How long a connection lasts, whether or not its other end reads.
const LONGEST: Duration = Duration::from_secs(300);

/// Shows a program's status to monitoring systems at an address, as long as the result is kept.
///
/// # Errors
/// In words: the address is no address of this machine, or is taken.
pub async fn serve(desk: Arc<Desk>, address: &str) -> Result<Pages, String> {
    let door = Door::open("--metrics", address).await?;
    let router = Router::new().fallback(any(page)).with_state((desk, door.is_local()));
    Ok(door.serve(router, LONGEST))
}

async fn page(State((desk, local)): State<(Arc<Desk>, bool)>, request: Request) -> Response {
    if let Some(refusal) = refused(local, &request) {
        return refusal;
    }
    let path = request.uri().path();
    if !matches!(path, "/metrics" | "/health") {
        return guarded(Policy::Reading, StatusCode::NOT_FOUND, PLAIN, "There is /metrics, and /health.\n");
    }
    let Some(status) = desk.status().await else {
        return guarded(
            Policy::Reading,
            StatusCode::SERVICE_UNAVAILABLE,
            PLAIN,
            "The program is starting, or does not answer.\n",
        );
    };
    match path {
        "/metrics" => guarded(Policy::Reading, StatusCode::OK, PROMETHEUS, text(&status)),
        _ if status.is_well() => guarded(Policy::Reading, StatusCode::OK, PLAIN, health(&status)),
        _ => guarded(Policy::Reading, StatusCode::SERVICE_UNAVAILABLE, PLAIN, health(&status)),
    }
}

fn health(status: &Status) -> String {
    let Status { round, rounds, phase, quiet, .. } = status;
    let well = if status.is_well() { "well" } else { "the run stands still" };
    format!("{well}: round {round} of {rounds}, {phase}, newest record {quiet:.0} s ago\n")
}

/// What Prometheus reads.
fn text(status: &Status) -> String {
    let Status { up, round, rounds, quiet, traffic, disk, credit, .. } = status;
    let mut text = String::new();
    let mut say = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
        // Writing to a string does not fail.
        let _ = write!(text, "# HELP muster_{name} {help}\n# TYPE muster_{name} {kind}\n");
        for (labels, value) in values {
            let _ = writeln!(text, "muster_{name}{labels} {value}");
        }
    };
    let one = |value: f64| [(String::new(), value)];
    let labels = format!("{{role=\"{}\",run=\"{}\",member=\"{}\"}}", status.role, status.run, status.member);
    say("info", "gauge", "The program, its run and its key.", &[(labels, 1.0)]);
    say("up_seconds", "gauge", "Since the program began.", &one(*up));
    say("round", "gauge", "The round under way, or the next one.", &one(f64::from(*round)));
    say("rounds", "gauge", "Rounds of the whole run.", &one(f64::from(*rounds)));
    let phase = [(format!("{{phase=\"{}\"}}", status.phase), 1.0)];
    say("phase", "gauge", "What the run does.", &phase);
    say("quiet_seconds", "gauge", "Since this program saw a new record.", &one(*quiet));
    let awaited = status.waits.iter().map(|wait| wait.on.len()).sum::<usize>();
    say("awaited_members", "gauge", "Members that something is waited for on.", &one(awaited as f64));
    let ways = Way::ALL.map(|way| {
        let count = status.peers.iter().filter(|peer| peer.way == way).count();
        (format!("{{way=\"{}\"}}", way.word()), count as f64)
    });
    say("peers", "gauge", "Members that are not gone, by how they are reached.", &ways);
    say("sent_bytes_total", "counter", "Over channels, since the program began.", &one(traffic.sent as f64));
    say(
        "received_bytes_total",
        "counter",
        "Over channels, since the program began.",
        &one(traffic.received as f64),
    );
    say(
        "relayed_bytes_total",
        "counter",
        "Of others, that this program's relay has carried.",
        &one(traffic.relayed as f64),
    );
    say("disk_used_bytes", "gauge", "That the folder takes.", &one(disk.used as f64));
    let free: Vec<_> = disk.free.map(|free| (String::new(), free as f64)).into_iter().collect();
    say("disk_free_bytes", "gauge", "That are free where the folder is.", &free);
    say(
        "leaves_total",
        "counter",
        "Leaves of this member that counted, by sealed records.",
        &one(credit.leaves as f64),
    );
    say(
        "verified_leaves_total",
        "counter",
        "Of these, recomputed and found right.",
        &one(credit.verified as f64),
    );
    say("audits_total", "counter", "Audits that it passed as a verifier.", &one(credit.audits as f64));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_reads_every_line() {
        let status = Status { role: "node".into(), phase: "computing".into(), ..Status::default() };
        let text = text(&status);
        let name = |line: &str| line.split(['{', ' ']).next().unwrap().to_owned();
        let (told, values): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with('#'));
        let typed: Vec<&str> = told.iter().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        assert!(values.len() >= 16);
        for line in values {
            let (_, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(typed.iter().any(|typed| typed.split(' ').next() == Some(&name(line))), "{line}");
        }
    }

    #[test]
    fn a_run_that_stands_still_is_not_well() {
        let status = |quiet, patience| Status { quiet, patience, ..Status::default() };
        assert!(status(1e6, None).is_well(), "it waits for people");
        assert!(status(30.0, Some(10.0)).is_well() && !status(50.0, Some(10.0)).is_well());
    }
}
