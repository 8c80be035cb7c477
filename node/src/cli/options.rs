//! Options that several commands of `muster` share.

use std::path::PathBuf;

use clap::Args;
use muster_compute::{Machine, Path as KernelPath};
use muster_replica::backend::BackendChoice;
use muster_replica::exit::{Failure, Outcome};
use muster_show::{ShowOptions, board};

#[derive(Args)]
pub(super) struct ShowArguments {
    /// Show the run as web pages, at this address; without HOST, only this machine sees them. Whoever can dial it sees the public
    /// ledger and may change nothing.
    #[arg(long, value_name = "[HOST:]PORT", value_parser = muster_view::serve::parse_address)]
    pub(super) web: Option<String>,
    /// Show the run on the whole terminal; q or Ctrl-C stops the program as it does without a board. NO_COLOR=1 leaves out the
    /// colours.
    #[arg(long)]
    pub(super) board: bool,
    /// Show what this program does to monitoring systems, at this address: /metrics for Prometheus, /health. Without HOST, only this
    /// machine sees it. Whoever can dial it learns who takes part and how they are reached.
    #[arg(long, value_name = "[HOST:]PORT", value_parser = muster_view::serve::parse_address)]
    pub(super) metrics: Option<String>,
}

impl ShowArguments {
    /// How to show the run.
    ///
    /// # Errors
    /// [`Failure`]: there is no terminal for a board.
    pub(super) fn options(self) -> Outcome<ShowOptions> {
        let Self { web, board, metrics } = self;
        if board && !board::fits() {
            let why = "--board needs a terminal to draw on and to read keys from; leave it out here";
            return Err(Failure::usage(why));
        }
        Ok(ShowOptions { web, board, metrics })
    }
}

#[derive(Args)]
pub(super) struct GossipArguments {
    /// Where to gossip with other members [default: beside the address listened on, a free port].
    #[arg(long, value_name = "IP:PORT", value_parser = gossip_address)]
    pub(super) gossip: Option<String>,
    /// Do not take part in gossip. A run works without it, but a steward that shows its members different ledgers goes
    /// undetected.
    #[arg(long, conflicts_with = "gossip")]
    pub(super) no_gossip: bool,
}

/// How to compute, leaves included.
#[derive(Args)]
pub(super) struct LeafArguments {
    #[command(flatten)]
    pub(super) compute: ComputeArguments,
    #[command(flatten)]
    pub(super) backend: BackendChoice,
}

impl LeafArguments {
    pub(super) fn machine(&self) -> Machine {
        self.backend.machine(self.compute.threads.into(), self.compute.kernel)
    }

    /// The words that say it again, to either program.
    pub(super) fn words(&self) -> Vec<String> {
        let mut words = vec!["--threads".to_owned(), self.compute.threads.to_string()];
        words.extend(
            self.compute
                .kernel
                .into_iter()
                .flat_map(|kernel| ["--kernel".to_owned(), kernel.name().to_owned()]),
        );
        words.extend(self.backend.words());
        words
    }
}

#[derive(Args)]
pub(super) struct ComputeArguments {
    /// Compute threads.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) threads: u16,
    /// Instructions to compute with, instead of the fastest: avx512, avx2, neon or portable. The results are the same.
    #[arg(long, value_name = "NAME", value_parser = kernel)]
    pub(super) kernel: Option<KernelPath>,
}

#[derive(Args)]
pub(super) struct OrganiserArguments {
    /// The organiser's key, if it is not in the run's folder.
    #[arg(long, value_name = "FILE")]
    pub(super) organiser_key: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct HomeArguments {
    /// The directory of identity, text and journal, one for each run [default: ~/.muster].
    #[arg(long, value_name = "DIR")]
    pub(super) data_dir: Option<PathBuf>,
}

impl HomeArguments {
    /// Where it is.
    ///
    /// # Errors
    /// [`Failure`] where none is named and there is no home directory.
    pub(super) fn directory(self) -> Outcome<PathBuf> {
        let own = || std::env::home_dir().map(|home| home.join(".muster"));
        self.data_dir
            .or_else(own)
            .ok_or_else(|| Failure::usage("there is no home directory: name one with --data-dir"))
    }
}

fn kernel(name: &str) -> Result<KernelPath, String> {
    KernelPath::parse(name).map_err(|misuse| misuse.to_string())
}

fn gossip_address(text: &str) -> Result<String, String> {
    muster_net::swarm::check_listen(text).map(|()| text.to_owned()).map_err(|misuse| misuse.to_string())
}
