//! The command line.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};
use muster_compute::Path;
use muster_core::audit::Judgement;
use muster_core::messages::audit::FindingKind;
use muster_core::messages::enrol::{Name, parse_name};
use muster_net::capacity::Capacity;
use muster_net::rate::Rates;
use muster_net::swarm::Settings;
use muster_replica::backend::BackendChoice;
use muster_replica::exit::{Exit, Failure};
use muster_replica::manual::{CompletionsArguments, ManArguments};
use muster_replica::{Bounds, parse_gibibytes, parse_rates, process};
use muster_roles::verifier::audits::{Conduct, Honest};
use muster_view::words::{audits, counted};
use tracing_subscriber::EnvFilter;

use crate::arguments::{Calibrating, Replaying, parse_path, threads};
use crate::output::say;
use crate::{calibrate, check, enroll, observe, replay, watch};

const AFTER: &str =
    "Exit codes: 0 good, 1 negative verdict, 2 usage, 3 environment, 4 network, 130 interrupted.";

/// Audits distributed training runs: recomputes what members claim to have computed.
#[derive(Parser)]
#[command(name = "muster-verifier", version, after_help = AFTER)]
struct VerifierCli {
    #[command(subcommand)]
    command: VerifierCommand,
}

#[derive(Subcommand)]
enum VerifierCommand {
    /// Become a verifier of a run: make keys and coins, fetch the run's files, be admitted.
    Enroll {
        /// The line that `muster invite --role verifier` printed, or @FILE for a file that holds it.
        invitation: String,
        /// Where to keep keys, coins, text and journal; a folder named after the run if absent.
        #[arg(long)]
        data_dir: Option<PathBuf>,
        /// What to call yourself, for people who look at the run: at most 32 ASCII letters, digits, spaces, . _ and -. It
        /// stays in the public ledger, beside your key, and cannot be changed [default: none].
        #[arg(long, value_name = "NAME", value_parser = parse_name)]
        name: Option<Name>,
        #[command(flatten)]
        bounds: BoundArgs,
    },
    /// Audit the run until it closes. May be stopped and started again at any time.
    ///
    /// Ctrl-C, SIGTERM or a terminal that closes: it finishes the work under way. A second one stops at once.
    Watch {
        /// The folder that `enroll` made.
        directory: PathBuf,
        #[command(flatten)]
        leaves: Leaves,
        #[command(flatten)]
        gossip: GossipArgs,
        #[command(flatten)]
        web: WebArgs,
        /// Show what this program does to monitoring systems, at this address: /metrics for Prometheus, /health. Without HOST,
        /// only this machine sees it. Whoever can dial it learns who takes part and how they are reached.
        #[arg(long, value_name = "[HOST:]PORT", value_parser = muster_view::serve::parse_address)]
        metrics: Option<String>,
        #[command(flatten)]
        bounds: BoundArgs,
        /// Give way to everything else on this machine. Not on one that is never idle: its audits would come too late.
        #[arg(long)]
        nice: bool,
    },
    /// Follow a run without being a member, checking every record and every state.
    Observe {
        /// An invitation, @FILE for a file that holds it, or RUN@STEWARD@HOST:PORT.
        target: String,
        /// Where to keep text and journal; a folder named after the run if absent.
        #[arg(long)]
        data_dir: Option<PathBuf>,
        #[command(flatten)]
        machine: ComputeArgs,
        #[command(flatten)]
        gossip: GossipArgs,
        #[command(flatten)]
        web: WebArgs,
        #[command(flatten)]
        bounds: BoundArgs,
    },
    /// Re-execute one piece of evidence.
    ///
    /// Exit codes: 0 guilty, the evidence holds; 1 not guilty; 3 undecided, and what is missing is said; 5 malformed, no
    /// evidence of anything. A bundle, which the steward's pages offer for each ban, brings all that it needs, and the run's id is
    /// printed to be compared. Of a file of evidence alone, two commitments in one round, and most misconduct of the steward, are decided by the file and
    /// the run's manifest.bin alone. A record that breaks a rule takes the ledger, a wrong root the state before it and the
    /// round's values, everything else text, state and contribution: these are looked for in the folder.
    Check {
        /// A file of the folder `evidence` of a run, or a bundle as it was downloaded.
        evidence: PathBuf,
        /// The run's folder; by default the one two levels above a file of evidence. For a bundle: where to look for what it lacks.
        #[arg(long)]
        run: Option<PathBuf>,
        #[command(flatten)]
        leaves: Leaves,
    },
    /// Measure how far honest machines are apart on a run's leaves, and write the tolerances that follow.
    ///
    /// Make a draft with `muster run new`, of the settings that the run will have in profile exact; calibrate that; then
    /// make the run with `muster run new --calibration FILE`. Trains a while in one process, and compares the leaves of
    /// everything at hand early, midway and late. Tolerances hold for the model, the leaf and the kinds of machines that
    /// were measured.
    Calibrate {
        /// The draft's folder, or that of any run.
        directory: PathBuf,
        #[command(flatten)]
        calibrating: Calibrating,
    },
    /// Re-execute a finished run from its folder, to the last bit: 0 all agrees, 1 something differs.
    ///
    /// May be stopped or killed at any time; the same command goes on.
    Replay {
        /// The run's folder.
        directory: PathBuf,
        #[command(flatten)]
        replaying: Replaying,
    },
    /// Print the script that completes these commands in a shell.
    Completions(CompletionsArguments),
    /// Write man pages of these commands.
    Man(ManArguments),
}

/// Whether and where to show the run.
#[derive(Args)]
struct WebArgs {
    /// Show the run as web pages, at this address; without HOST, only this machine sees them. Whoever can dial it sees the public
    /// ledger and may change nothing.
    #[arg(long, value_name = "[HOST:]PORT", value_parser = muster_view::serve::parse_address)]
    web: Option<String>,
}

/// Whether and where to gossip.
#[derive(Args)]
struct GossipArgs {
    /// Where to gossip with members [default: only dial].
    #[arg(long, value_name = "IP:PORT", value_parser = gossip_address)]
    gossip: Option<String>,
    /// Neither gossip nor listen to it: a steward that shows others another ledger is then not found out.
    #[arg(long, conflicts_with = "gossip")]
    no_gossip: bool,
}

impl GossipArgs {
    fn settings(self) -> Option<Settings> {
        let listen = self.gossip.into_iter().collect();
        (!self.no_gossip).then(|| Settings { listen, ..Settings::default() })
    }
}

fn gossip_address(text: &str) -> Result<String, String> {
    muster_net::swarm::check_listen(text).map(|()| text.to_owned()).map_err(|misuse| misuse.to_string())
}

/// What to take of the machine.
#[derive(Args, Clone, Copy)]
struct BoundArgs {
    /// Most disk to use, in GiB, like 10 or 0.5. The program stops before it would take more.
    #[arg(long, value_name = "G", value_parser = parse_gibibytes)]
    max_disk: Option<u64>,
    /// Most memory to use, in GiB, like 8 or 0.5. A run that takes more is refused before its text is fetched.
    #[arg(long, value_name = "G", value_parser = parse_gibibytes)]
    max_memory: Option<u64>,
    /// Most of the line to use, in Mbit/s, like 10 or 4/40 (up/down), at least 1: over all channels together. Gossip, a few kB/s, comes
    /// on top.
    #[arg(long, value_name = "UP[/DOWN]", value_parser = parse_rates)]
    max_rate: Option<Rates>,
}

impl BoundArgs {
    fn bounds(self) -> Bounds {
        Bounds { disk: self.max_disk, memory: self.max_memory, rates: self.max_rate.unwrap_or_default() }
    }
}

/// How to compute, leaves included.
#[derive(Args, Clone, Copy)]
struct Leaves {
    #[command(flatten)]
    machine: ComputeArgs,
    #[command(flatten)]
    backend: BackendChoice,
}

impl Leaves {
    fn machine(self) -> muster_compute::Machine {
        self.backend.machine(self.machine.threads, self.machine.path)
    }
}

/// How to compute.
#[derive(Args, Clone, Copy)]
pub struct ComputeArgs {
    /// Compute threads.
    #[arg(long, default_value_t = 1, value_parser = threads)]
    pub threads: usize,
    /// Kernel path: avx512, avx2, neon or portable; the fastest if absent.
    #[arg(long, visible_alias = "kernel", value_parser = parse_path)]
    pub path: Option<Path>,
}

/// Runs a command line, its first word being the name of the program, and gives the exit code. What people asked for
/// goes to standard output, the log (filter: `RUST_LOG`) and errors to standard error.
pub fn run(args: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> u8 {
    run_as(args, Arc::new(Honest))
}

/// What is logged unless the environment says otherwise. What others' crates that carry bytes report is for their authors.
const LOGGED: &str = "info,libp2p=error,iroh=off,iroh_relay=off,noq=off,noq_proto=off,noq_udp=off,netwatch=off,\
                      portmapper=off,n0_future=off";

/// [`run`] with another way to go from what is found to what is said.
pub fn run_as(args: impl IntoIterator<Item = impl Into<OsString> + Clone>, conduct: Arc<dyn Conduct>) -> u8 {
    let cli = match VerifierCli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { 2 } else { 0 };
        }
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOGGED));
    // A program that starts this one within itself may have a log already.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        // A terminal may be gone before the work under way is finished.
        .log_internal_errors(false)
        .try_init();
    // CHAN-13: raises the limit, before anything is opened.
    Capacity::of_process();
    execute(cli.command, conduct).unwrap_or_else(|failure| {
        let _ = writeln!(std::io::stderr(), "muster-verifier: {failure}");
        failure.exit.code()
    })
}

fn execute(command: VerifierCommand, conduct: Arc<dyn Conduct>) -> Result<u8, Failure> {
    match command {
        VerifierCommand::Enroll { invitation, data_dir, name, bounds } => block_on(async {
            let name = name.unwrap_or_default();
            let enrolled = enroll::enroll(&invitation, &name, data_dir, bounds.bounds()).await?;
            say(&format!(
                "enrolled as verifier {:#}; audits begin with round {}",
                enrolled.member, enrolled.first_round
            ));
            say(&format!("next: muster-verifier watch {}", enrolled.directory.display()));
            Ok(0)
        }),
        VerifierCommand::Watch { directory, leaves, gossip, web, metrics, bounds, nice } => {
            if nice {
                process::give_way();
            }
            let (machine, gossip) = (leaves.machine(), gossip.settings());
            let (web, bounds) = (web.web, bounds.bounds());
            let options = watch::WatchOptions { directory, machine, gossip, web, metrics, bounds, conduct };
            block_on(watched(options))
        }
        VerifierCommand::Observe { target, data_dir, machine, gossip, web, bounds } => block_on(async {
            let options = observe::ObserveOptions {
                directory: data_dir,
                threads: machine.threads,
                gossip: gossip.settings(),
                web: web.web,
                bounds: bounds.bounds(),
            };
            match observe::observe(&target, options).await? {
                observe::ObservationEnd::Closed => Ok(0),
                observe::ObservationEnd::Interrupted => Ok(Exit::Interrupted.code()),
            }
        }),
        VerifierCommand::Check { evidence, run, leaves } => {
            Ok(judged(&check::check(&evidence, run, leaves.machine())?))
        }
        VerifierCommand::Calibrate { directory, calibrating } => {
            calibrate::command(&directory, &calibrating)?.iter().for_each(|line| say(line));
            Ok(0)
        }
        VerifierCommand::Replay { directory, replaying } => {
            let summary = replay::replay(&directory, &replaying)?;
            summary.lines().iter().for_each(|line| say(line));
            Ok(0)
        }
        VerifierCommand::Completions(arguments) => {
            say(arguments.script(VerifierCli::command()).trim_end());
            Ok(0)
        }
        VerifierCommand::Man(arguments) => {
            let pages = arguments.write(VerifierCli::command())?;
            say(&format!("{pages} pages are in {}", arguments.out.display()));
            Ok(0)
        }
    }
}

async fn watched(options: watch::WatchOptions) -> Result<u8, Failure> {
    match watch::watch(options).await? {
        watch::WatchEnd::Closed(tally, service) => {
            let (passed, guilty, undecided) = (counted(tally.passed, "audit"), tally.guilty, tally.undecided);
            say(&format!(
                "since this program began: {passed} passed, {guilty} found guilty, {undecided} undecided"
            ));
            say(&format!("the run is over: by its records {}", audits(&service)));
            Ok(0)
        }
        watch::WatchEnd::Interrupted => Ok(Exit::Interrupted.code()),
    }
}

fn judged(judgement: &Judgement) -> u8 {
    match judgement {
        Judgement::Guilty { culprit, finding: FindingKind::StewardMisconduct, detail, .. } => {
            say(&format!("guilty: the steward {culprit:#}, steward misconduct"));
            say(detail);
            0
        }
        Judgement::Guilty { culprit, round, finding, detail } => {
            say(&format!("guilty: {culprit:#}, {} in round {round}", finding.words()));
            say(detail);
            0
        }
        Judgement::NotGuilty(why) => {
            say(&format!("not guilty: {why}"));
            1
        }
        Judgement::Malformed(why) => {
            say(&format!("malformed, no evidence of anything: {why}"));
            5
        }
        Judgement::Undecided(why) => {
            say(&format!("undecided: {why}"));
            3
        }
    }
}

fn block_on(command: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| Failure::environment(format!("no threads or sockets: {error}")))?;
    let ended = runtime.block_on(async {
        process::refuse_large_files();
        command.await
    });
    // Work that nobody waits for any more must not hold the process.
    runtime.shutdown_timeout(Duration::from_millis(100));
    ended
}
