//! How a run is hosted.

use std::path::PathBuf;

use muster_compute::Machine;
use muster_net::swarm::Settings;
use muster_show::ShowOptions;

/// How to host.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// The run's folder.
    pub folder: PathBuf,
    /// Where to listen, `HOST:PORT`; port 0 takes the port of the last time, or a free one.
    pub listen: Vec<String>,
    /// What invitations tell people to dial; none for the addresses listened on.
    pub advertise: Vec<String>,
    /// Connections from one address at once, on each port.
    pub per_address: usize,
    /// Bytes a second that its relay carries at most, each way.
    pub relay_rate: u64,
    /// Whether aggregators reduce equally many parts whatever their lines carry.
    pub equal_parts: bool,
    /// Whether the aggregates of all rounds stay, so that others can replay the run in samples.
    pub keep_aggregates: bool,
    /// Whether hosting ends with the run; else what is left of it is served until somebody stops it.
    pub exit_when_done: bool,
    /// Where to gossip; none for a run without.
    pub gossip: Option<Settings>,
    /// How to show the run.
    pub show: ShowOptions,
    /// What computes.
    pub machine: Machine,
    /// Whether to draw progress; else plain lines are logged.
    pub progress: bool,
}
