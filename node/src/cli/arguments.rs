//! Commands and options of `muster`.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use muster_compute::{DeviceChoice, Precision};
use muster_core::limits;
use muster_core::messages::enrol::{Name, Role, parse_name};
use muster_host::CONNECTIONS;
use muster_member::pause::{Hours, Restraint, parse_hours};
use muster_net::rate::Rates;
use muster_organise::ask::GRACE;
use muster_organise::config::preset::Preset;
use muster_organise::invite::parse_span;
use muster_organise::pack::{COLUMN, Format, ROUTE_TOKENS};
use muster_organise::plan::lines::{Lines, lines, time};
use muster_organise::tokenise::LEARNT_TOKENS;
use muster_replica::manual::{CompletionsArguments, ManArguments};
use muster_replica::{Bounds, parse_gibibytes, parse_rate, parse_rates};

use super::options::{
    ComputeArguments, GossipArguments, HomeArguments, LeafArguments, OrganiserArguments, ShowArguments,
};

/// Train one neural network on strangers' machines, and audit their work.
#[derive(Parser)]
#[command(
    name = "muster",
    version,
    arg_required_else_help = true,
    after_help = "\
An organiser packs text, creates a run, hosts it and invites; volunteers join:
  muster data pack --text book.txt src/ --out corpus/
  muster run new --config run.toml --data corpus/ --out myrun/
  muster host myrun/
  muster invite myrun/ --role node --uses 10
  muster join muster1:…

Exit codes: 0 good, 1 negative verdict, 2 usage, 3 this machine, 4 network, 130 interrupted."
)]
pub(super) struct MusterCli {
    #[command(subcommand)]
    pub(super) command: MusterCommand,
    /// Log more; given twice, log everything. RUST_LOG overrides it.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(super) verbose: u8,
}

#[derive(Subcommand)]
pub(super) enum MusterCommand {
    /// Prepare the text that a run trains on.
    #[command(subcommand)]
    Data(DataCommand),
    /// Create a run, or export its model.
    #[command(subcommand)]
    Run(RunCommand),
    /// Host a run: admit members, seal rounds, examine accusations. Needs no powerful machine.
    #[command(after_help = "\
Ctrl-C finishes the round, unless everybody has left it, and stops; so do SIGTERM and a terminal that closes. The same
command continues where it stopped, on the same port. A run that is over is served on until then: its records, its
state, its pages.
  muster host myrun/
  muster host myrun/ --listen 0.0.0.0:7777 --advertise training.example.org:7777
The smallest run, of admission.start_nodes = 1 and start_verifiers = 1, takes one command:
  muster host myrun/ --with-node --with-verifier --web 8080
On one machine all compute at once; --threads is for each of them.")]
    Host(HostArguments),
    /// Print an invitation: one line that lets its holder take part. Works while the run is hosted.
    #[command(after_help = "\
  muster invite myrun/ --role node --uses 20 --expires 7d
  muster invite myrun/ --role node --founder
  muster invite myrun/ --role verifier
  muster invite ~/.muster --role node        # as a member
Where the organiser's key is kept on another machine, a copy of manifest.bin and --address are enough:
  muster invite copy/ --role node --organiser-key /media/stick/organiser.key --address training.example.org:7777")]
    Invite(InviteArguments),
    /// Take part in a run with this machine, until it is over.
    #[command(after_help = "\
Ctrl-C finishes the round and stops; so do SIGTERM and a terminal that closes (to go on without one: nohup). A second one
stops at once. The same command continues. `muster leave` leaves for good.
Never run two copies of one data directory: a key that signs two results of the same work is banned for life.
  muster join muster1:… --threads 2 --nice
  muster join muster1:… --max-rate 4/40 --max-traffic 20 --hours 22:00-07:00 --pause-when busy,battery
  muster join muster1:… --data-dir /data/muster --listen 0.0.0.0:7000 --advertise my.example.org:7000")]
    Join(JoinArguments),
    /// Continue a prompt with the model as trained so far.
    #[command(after_help = "\
  muster generate myrun/ --prompt \"fn main() {\" --tokens 400
  muster generate ~/.muster --temperature 0
  muster generate myrun/ --chat                                 # line by line
  muster generate myrun/ --chat --web 8080                      # on a page of this machine
  muster generate ~/.muster --prompt \"fn main() {\" --ask 1     # while the run goes on, by the members that hold the model")]
    Generate(GenerateArguments),
    /// Measure whether this machine can help, in ten seconds.
    #[command(after_help = "\
  muster bench                    # the settings that `muster run new` begins with
  muster bench run.toml --threads 2
  muster bench myrun/
  muster bench muster1:…          # the run of an invitation, which is not used up
  muster bench --backend tch --device cuda --precision bf16     # in a program built with --features tch")]
    Bench(BenchArguments),
    /// Plan a run: seconds and bytes of a step by the way in which members share the work, and which to choose.
    #[command(after_help = "\
It measures this machine for ten seconds, as `muster bench` does, unless --leaf says how long a leaf takes.
  muster plan                                        # the default settings, as many members as a run begins with, 100 Mbit/s
  muster plan run.toml --link 8x20/100               # eight members with 20 Mbit/s up and 100 down
  muster plan myrun/ --link 4x1000 --link 2x4/40 --leaf 0.8 --rest 0.1
`computing` is what an average member computes, `slowest` is the wait for one that computes for longer, `exchange` the wait for bytes
and records. The last lines say what to choose, and at which rates that changes. Audits, members that come and go, and what a way
does to the loss are left out: many local steps learn less from each token.")]
    Plan(PlanArguments),
    /// Examine this machine: arithmetic, threads, memory, disk, clock, ports, the way to a steward.
    #[command(after_help = "\
Each line says what was found and, where something needs care, what to do next: exit code 1. It joins nothing.
  muster doctor
  muster doctor muster1:…                     # also the invitation, and whether its steward can be reached
  muster doctor myrun/ --listen 0.0.0.0:7777  # before hosting")]
    Doctor(DoctorArguments),
    #[cfg(feature = "rehearse")]
    #[command(flatten)]
    Rehearse(muster_rehearse::RehearseCommand),
    /// Show what a running steward, node or verifier does: round, phase, whom it waits for, how members are reached.
    #[command(after_help = "\
It asks the program of that folder on this machine, which only its user may do.
  muster status                   # the node of ~/.muster
  muster status myrun/            # the steward
  muster status verifier/ --json  # for scripts
Exit codes: 0 it runs; 1 the run stands still: nothing was sealed for four times as long as the phase may take; 3 nothing runs there.")]
    Status(StatusArguments),
    /// Show a run as web pages, from its folder; or write them to files.
    #[command(after_help = "\
The pages are read-only. Every record is checked before it is shown. Ctrl-C ends.
  muster view myrun/                        # then open http://127.0.0.1:8080/
  muster view archive/ --export site/       # members' contributions, audits and bans as files to publish")]
    View(ViewArguments),
    /// Show the members, who invited each, and what weight each has.
    #[command(after_help = "\
Members that a member has invited are listed below it. `muster close-tree` closes such a tree.
  muster members myrun/
  muster members ~/.muster")]
    Members {
        /// A run's folder, or a member's directory.
        folder: PathBuf,
    },
    /// State what a member has done, signed: leaves that verifiers recomputed, and leaves that counted. Anybody can check it.
    #[command(after_help = "\
  muster credit --note \"for example.org/users/ada\"
  muster credit --check muster-service1:…                # with the records of the steward that it names
  muster credit --check muster-service1:… --run myrun/   # with those of a folder or an archive
Anybody can host a run and do no work there: compare the id of the run with the one that its organiser publishes.
Exit code 1: the statement is not true.")]
    Credit(CreditArguments),
    /// Close a member's tree: its invitations, and those of the members below it, admit nobody any more.
    #[command(after_help = "\
`muster members` shows the trees and the ids. Closing bans nobody, since a ban needs evidence: members who are in stay and
count as before. It is sealed in the ledger and cannot be undone. The run must be hosted meanwhile. Your own invitations
stay valid.
  muster close-tree myrun/ 3f2a9c0d11e48b57")]
    CloseTree {
        /// The run's folder.
        folder: PathBuf,
        /// The member's id, or a beginning of it that no other id has.
        member: String,
        #[command(flatten)]
        organiser: OrganiserArguments,
    },
    /// Print the member id of this machine.
    Id(HomeArguments),
    /// Leave the run for good.
    Leave(HomeArguments),
    /// Print the script that completes these commands in a shell.
    #[command(after_help = "\
  muster completions bash > ~/.local/share/bash-completion/completions/muster")]
    Completions(CompletionsArguments),
    /// Write man pages of these commands.
    #[command(after_help = "\
  muster man --out ~/.local/share/man/man1")]
    Man(ManArguments),
}

#[derive(Subcommand)]
pub(super) enum DataCommand {
    /// Pack text into a corpus with Merkle roots, so that everyone trains on the same bytes.
    #[command(after_help = "\
What a file holds is seen by its name: NAME.jsonl has rows of which the field `text` is one text each (--column names another,
doc.text one within a field), NAME.csv, NAME.tsv and NAME.parquet have columns, any other file is a text. Each may be compressed
(.gz, .zst).
`-` is standard input. A folder is taken in order of its names, without hidden ones; so is a folder that `save_to_disk` of
Python's `datasets` wrote.
  muster data pack --text book.txt src/ --out corpus/
  muster data pack --text rows.jsonl.gz --column story --out corpus/
  zcat rows.jsonl.gz | muster data pack --text - --format jsonl --out corpus/
Without --held-out, the last twentieth of the texts is held out, or the last twentieth of a single text. A saved dataset with
several splits is trained on `train`; its `validation`, or else its `test`, is held out.
  muster data pack --text books/ --held-out other/book.txt --out corpus/
Of several sources, --weights says which share of the bytes each has; the first that has no more ends the text.
  muster data pack --text books/ web.jsonl --weights 3 1 --out corpus/
With --tokenizer, the model's tokenizer_config.json or generation_config.json beside it says which token ends a text.
  muster data pack --text books/ --tokenizer model/tokenizer.json --out corpus/
  muster data pack --text books/ --train-tokenizer 8192 --out corpus/
For a mixture of several rows of experts, --rows makes the table by which each window has its row.
  muster data pack --text books/ --rows 5 --out corpus/")]
    Pack(PackArguments),
}

#[derive(Args)]
pub(super) struct PackArguments {
    /// Files, pipes, folders or saved datasets to train on; `-` is standard input.
    #[arg(long, alias = "hf", required = true, num_args = 1.., value_name = "PATH")]
    pub(super) text: Vec<PathBuf>,
    /// The same, to measure the loss on; the run never trains on them.
    #[arg(long, num_args = 1.., value_name = "PATH")]
    pub(super) held_out: Vec<PathBuf>,
    /// The field or column that holds the text, where a file has rows. `doc.text` is the field `text` within `doc`.
    #[arg(long, alias = "field", value_name = "NAME", default_value = COLUMN)]
    pub(super) column: String,
    /// What all files hold, where their names do not say it.
    #[arg(long, value_name = "KIND")]
    pub(super) format: Option<Format>,
    /// Parts that the paths of --text have in the bytes packed, in their order [default: all of each].
    #[arg(long, num_args = 1.., value_name = "PARTS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) weights: Vec<u32>,
    /// Read no more when the corpus has about this many GiB, like 0.5; 1024 is the most that a text may have.
    #[arg(long, value_name = "G", value_parser = parse_gibibytes)]
    pub(super) most: Option<u64>,
    /// A tokenizer.json in Hugging Face's format, or the folder of a model that has one, whose numbers are the tokens; without it,
    /// each byte is a token.
    #[arg(long, value_name = "FILE")]
    pub(super) tokenizer: Option<PathBuf>,
    /// Make a tokeniser of N numbers from the training text, a byte-level BPE, instead of taking one: a small model then writes
    /// words sooner. The corpus keeps it as tokenizer.json.
    #[arg(long, value_name = "N", conflicts_with = "tokenizer",
        value_parser = clap::value_parser!(u32).range(LEARNT_TOKENS))]
    pub(super) train_tokenizer: Option<u32>,
    /// The token that ends each text [default: as the files beside the tokenizer.json say]. '' stands for none: texts run into
    /// each other.
    #[arg(long, value_name = "WORD", requires = "tokenizer", conflicts_with = "train_tokenizer")]
    pub(super) end: Option<String>,
    /// Take the tokeniser's control words in a text, like <|im_start|>, for control tokens. Without it they are plain text,
    /// whoever wrote them.
    #[arg(long, requires = "tokenizer", conflicts_with = "train_tokenizer")]
    pub(super) control_words: bool,
    /// Rows of a mixture of experts, 2 to 64: alike texts share a row, and all rows are nearly equally large.
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u16).range(2..=i64::from(limits::ROWS)))]
    pub(super) rows: Option<u16>,
    /// Tokens before a window that give it its row.
    #[arg(long, value_name = "N", default_value_t = ROUTE_TOKENS, requires = "rows",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(limits::ROUTE_TOKENS)))]
    pub(super) route_tokens: u16,
    /// The new folder of the corpus.
    #[arg(long, value_name = "DIR")]
    pub(super) out: PathBuf,
}

#[derive(Subcommand)]
pub(super) enum RunCommand {
    /// Create a run from settings and a corpus, and print its id.
    #[command(after_help = "\
If the settings do not exist, a file with every setting explained is written there and used.
  muster run new --config run.toml --data corpus/ --out myrun/
  muster run new --preset small --config run.toml --data corpus/ --out myrun/
  muster run new --config run.toml --data corpus/ --out myrun/ --organiser-key /media/stick/organiser.key
With --init, the settings need not repeat what DIR/config.json says of the model, and must not contradict it.
  muster run export otherrun/ --out model/
  muster run new --data corpus/ --init model/ --out myrun/
  muster run new --data corpus/ --init model/ --sequence 256 --out myrun/

Rules of aggregation: centered-clip, the one for runs with strangers; for comparison mean, median, trimmed-mean,
geometric-median, krum, multi-krum, fixed-radius-clip, each also after mixing = true.")]
    New(NewArguments),
    /// Write a model as safetensors with Hugging Face names, for `transformers` and others, or as GGUF.
    #[command(after_help = "\
  muster run export myrun/ --out model/
  muster run export myrun/ --round 100 --out model-100/
  muster run export myrun/ --gguf model.gguf
Of a model with several rows of experts, each row becomes a checkpoint of its own, trunk included:
  muster run export myrun/ --out model/               # model/row-0/ to model/row-4/; model/rows.json: how to choose one
  muster run export myrun/ --row 2 --out model-2/     # one of them")]
    Export(ExportArguments),
}

#[derive(Args)]
pub(super) struct NewArguments {
    /// The settings.
    #[arg(long, value_name = "FILE", default_value = "run.toml")]
    pub(super) config: PathBuf,
    /// Write settings of this size, instead of the default ones, where there are none yet.
    #[arg(long, value_name = "SIZE", conflicts_with = "init")]
    pub(super) preset: Option<Preset>,
    /// A corpus made by `muster data pack`.
    #[arg(long, value_name = "DIR")]
    pub(super) data: PathBuf,
    /// What `muster-verifier calibrate` wrote: profile and tolerances, instead of the settings' [arithmetic].
    #[arg(long, value_name = "FILE")]
    pub(super) calibration: Option<PathBuf>,
    /// Allow a run with more than twice the rounds over which its tolerances were measured. Honest machines drift apart as
    /// training goes on, and may be banned.
    #[arg(long, requires = "calibration")]
    pub(super) beyond_calibration: bool,
    /// Begin with this checkpoint instead of drawn parameters: a folder with config.json and model.safetensors (F32, BF16 or
    /// F16), or the files that model.safetensors.index.json names, as `muster run export` writes it and `transformers` a
    /// LlamaForCausalLM, a MistralForCausalLM, a Qwen2ForCausalLM, a Qwen3ForCausalLM, an AlbertForMaskedLM or a
    /// Qwen2MoeForCausalLM. Of an export of several rows of experts, name the folder of one of them: all rows of the new run
    /// begin with it.
    #[arg(long, value_name = "DIR")]
    pub(super) init: Option<PathBuf>,
    /// Tokens of a window, where the settings do not say: memory for attention grows with their square [default: all that the
    /// checkpoint knows, up to 512].
    #[arg(long, value_name = "N", requires = "init",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(limits::SEQUENCE)))]
    pub(super) sequence: Option<u32>,
    /// Keep the organiser's key in FILE instead of in the run's folder, beside the steward's; an existing key is used. Do
    /// so if the host could be broken into, and keep FILE on another machine.
    #[arg(long, value_name = "FILE")]
    pub(super) organiser_key: Option<PathBuf>,
    /// Create the run even if a node needs more memory than this machine has: other machines host and compute it.
    #[arg(long)]
    pub(super) elsewhere: bool,
    /// The new folder of the run.
    #[arg(long, value_name = "DIR")]
    pub(super) out: PathBuf,
}

#[derive(Args)]
pub(super) struct ExportArguments {
    /// A run's folder, or the data directory of a member that has finished.
    pub(super) folder: PathBuf,
    /// The model as it was before this round [default: the newest].
    #[arg(long, value_name = "T")]
    pub(super) round: Option<u32>,
    /// The trunk and this row of experts alone [default: every row that is here].
    #[arg(long, value_name = "N", conflicts_with = "gguf")]
    pub(super) row: Option<u16>,
    /// The new folder of safetensors.
    #[arg(long, required_unless_present = "gguf", value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// A new GGUF file, for llama.cpp and others; decoders only.
    #[arg(long, value_name = "FILE")]
    pub(super) gguf: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct GenerateArguments {
    /// A run's folder, or the data directory of a member that has finished. Of several rows of experts, the one that suits
    /// the prompt best is used, or the only one that is there.
    pub(super) folder: PathBuf,
    /// What to continue.
    #[arg(long, value_name = "TEXT", default_value = "", allow_hyphen_values = true)]
    pub(super) prompt: String,
    /// Go on from each line that is typed, with --ask as well: the line is put behind the text so far, and the model continues it.
    /// Ctrl-D ends.
    #[arg(long)]
    pub(super) chat: bool,
    /// With --chat: a page to talk to the model, at this address; without HOST, only this machine sees it. Whoever can dial it may
    /// ask, and waits for the others. Ctrl-C ends.
    #[arg(long, value_name = "[HOST:]PORT", requires = "chat", value_parser = muster_view::serve::parse_address)]
    pub(super) web: Option<String>,
    /// Most tokens to add; a text may end before.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(super) tokens: usize,
    /// Below 1, likely tokens become likelier; 0 always takes the most likely one.
    #[arg(long, value_name = "X", default_value_t = 0.7, value_parser = temperature)]
    pub(super) temperature: f64,
    /// Draw among the K most likely tokens; 0 stands for all.
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub(super) top: usize,
    /// Seed of the draws: another seed gives another text.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,
    /// The model as it was before this round [default: the newest].
    #[arg(long, value_name = "T")]
    pub(super) round: Option<u32>,
    /// The run's tokenizer.json [default: the one in the folder].
    #[arg(long, value_name = "FILE")]
    pub(super) tokenizer: Option<PathBuf>,
    /// Ask the members that hold the model, by the K rows of experts that suit the text best; the folder is of a run that is
    /// being hosted, or of a member of it. Who is silent is left out, and whose answers are false is accused.
    #[arg(long, value_name = "K", conflicts_with = "round", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(super) ask: Option<u16>,
    /// With --ask: seconds that a holder may take.
    #[arg(long, value_name = "SECONDS", default_value_t = GRACE.as_secs_f32(), value_parser = seconds)]
    pub(super) grace: f32,
    #[command(flatten)]
    pub(super) compute: ComputeArguments,
    /// Where the model is read: auto, cpu, gpu or gpu:N, as `muster join` takes it. The text is the same [default: auto].
    #[arg(long, value_name = "NAME", conflicts_with = "ask")]
    pub(super) device: Option<DeviceChoice>,
}

fn seconds(text: &str) -> Result<f32, String> {
    let wrong = || "it must be a number from 0.1 to 600".to_owned();
    let value: f32 = text.parse().map_err(|_| wrong())?;
    if (0.1..=600.0).contains(&value) { Ok(value) } else { Err(wrong()) }
}

fn temperature(text: &str) -> Result<f64, String> {
    let wrong = || "it must be a number from 0 to 100".to_owned();
    let value: f64 = text.parse().map_err(|_| wrong())?;
    if (0.0..=100.0).contains(&value) { Ok(value) } else { Err(wrong()) }
}

#[derive(Args)]
pub(super) struct HostArguments {
    /// The run's folder.
    pub(super) folder: PathBuf,
    /// Where to listen; port 0 takes the same port as before, or a free one. May be given several times.
    #[arg(long, value_name = "HOST:PORT", default_value = "0.0.0.0:0")]
    pub(super) listen: Vec<String>,
    /// The address that others dial, if not the one listened on. May be given several times.
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) advertise: Vec<String>,
    /// Most connections at once from one address that are not those of members. Newcomers behind one router share it; each needs
    /// about three.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=CONNECTIONS as i64))]
    pub(super) per_address: u16,
    /// Most that the relay carries each way, in Mbit/s, for members behind home routers that reach each other by no other way. Where
    /// they bring more, each has an equal share, of 32 KiB a second at least. It sees nothing but encrypted bytes.
    #[arg(long, value_name = "RATE", value_parser = parse_rate, default_value = "256")]
    pub(super) relay_rate: u64,
    /// Leave all nodes as many parts to combine as they have, whatever their lines carry: from the first round on, equally many, but for
    /// nodes that bring parts too late. Otherwise a node whose values take long gets fewer, or none. Say it at each start.
    #[arg(long)]
    pub(super) equal_parts: bool,
    /// Keep the aggregates of all rounds, so that others can replay samples of the run; each takes 4 bytes a parameter.
    #[arg(long)]
    pub(super) keep_aggregates: bool,
    /// End with the run, once it was told to those who are connected. Without it, records, state and pages of a run that is over are
    /// served until Ctrl-C.
    #[arg(long)]
    pub(super) exit_when_done: bool,
    /// Also start a node on this machine, or N of them, each a process of its own that ends with this one. Its directory lies
    /// beside the run's folder: myrun-node.
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "1",
        value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(super) with_node: Option<u16>,
    /// Also start a verifier on this machine, by the program muster-verifier beside this one. Its directory: myrun-verifier.
    #[arg(long)]
    pub(super) with_verifier: bool,
    #[command(flatten)]
    pub(super) show: ShowArguments,
    #[command(flatten)]
    pub(super) gossip: GossipArguments,
    #[command(flatten)]
    pub(super) leaves: LeafArguments,
}

#[derive(Args)]
pub(super) struct CreditArguments {
    #[command(flatten)]
    pub(super) home: HomeArguments,
    /// For whom or for what you make the statement: at most 64 bytes, public, and covered by your signature.
    #[arg(long, value_name = "TEXT", default_value = "", conflicts_with = "check")]
    pub(super) note: String,
    /// Check somebody's statement instead.
    #[arg(long, value_name = "LINE")]
    pub(super) check: Option<String>,
    /// Check it with the records of this run's folder or archive [default: those of the steward that the statement names].
    #[arg(long, value_name = "DIR", requires = "check")]
    pub(super) run: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct ViewArguments {
    /// A run's folder, a member's or observer's directory, or an archive. The run may go on meanwhile.
    pub(super) folder: PathBuf,
    /// Where to serve the pages; without HOST, only this machine sees them.
    #[arg(long, value_name = "[HOST:]PORT", value_parser = muster_view::serve::parse_address, default_value = "8080")]
    pub(super) web: String,
    /// Instead, write the pages into this new folder for any web server, without a page for each record.
    #[arg(long, value_name = "DIR")]
    pub(super) export: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct StatusArguments {
    /// A run's folder, or the directory of a node or a verifier [default: ~/.muster].
    pub(super) folder: Option<PathBuf>,
    /// For scripts: all of it, as one line of JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Args)]
pub(super) struct BenchArguments {
    /// An invitation, a run's folder, a member's data directory, or settings [default: the default settings].
    pub(super) run: Option<PathBuf>,
    #[command(flatten)]
    pub(super) leaves: LeafArguments,
    /// Measure as if the run had the profile f32, tf32 or bf16 [default: the run's own; f32 with --backend tch where that
    /// is exact].
    #[arg(long, value_name = "NAME")]
    pub(super) precision: Option<Precision>,
}

#[derive(Args)]
pub(super) struct PlanArguments {
    /// An invitation, a run's folder, a member's data directory, or settings [default: the default settings].
    pub(super) run: Option<PathBuf>,
    /// Seconds that a member takes for a leaf [default: measured here].
    #[arg(long, value_name = "SECONDS", value_parser = time)]
    pub(super) leaf: Option<f64>,
    /// Seconds that a member takes in a round beside its leaves: packing, hashes, its part, the update, what it sends and keeps
    /// [default: measured here; 0 with --leaf].
    #[arg(long, value_name = "SECONDS", value_parser = time)]
    pub(super) rest: Option<f64>,
    /// Lines of members in Mbit/s, up and down. May be given several times [default: 100, of as many members as the run begins
    /// with].
    #[arg(long, value_name = "[Nx]UP[/DOWN]", value_parser = lines)]
    pub(super) link: Vec<Lines>,
    /// The line of one server, where it combines everything [default: 1000].
    #[arg(long, value_name = "UP[/DOWN]", value_parser = lines)]
    pub(super) steward: Option<Lines>,
    /// Seconds from one member to another, one way [default: 0.03].
    #[arg(long, value_name = "SECONDS", value_parser = time)]
    pub(super) latency: Option<f64>,
    #[command(flatten)]
    pub(super) leaves: LeafArguments,
}

#[derive(Args)]
pub(super) struct DoctorArguments {
    /// An invitation, a run's folder, a member's data directory, or settings [default: none, only the machine].
    pub(super) run: Option<PathBuf>,
    /// Where you mean to listen [default: any port]. May be given several times.
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) listen: Vec<String>,
    #[command(flatten)]
    pub(super) home: HomeArguments,
    #[command(flatten)]
    pub(super) leaves: LeafArguments,
}

#[derive(Args)]
pub(super) struct InviteArguments {
    /// The run's folder, or the directory of a member that may bring in others.
    pub(super) folder: PathBuf,
    /// The role of those invited: a node computes, a verifier audits. Without it, the line only leads to a listed or open
    /// run.
    #[arg(long)]
    pub(super) role: Option<RoleArgument>,
    /// Invite founders: their leaves count from the beginning, without probation.
    #[arg(long)]
    pub(super) founder: bool,
    /// How many members may use it.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) uses: u32,
    /// How long the invitation is valid: a number followed by s, m, h or d.
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = parse_span)]
    pub(super) expires: u64,
    /// An address of the steward, instead of those that `muster host` wrote down. May be given several times.
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) address: Vec<String>,
    #[command(flatten)]
    pub(super) organiser: OrganiserArguments,
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum RoleArgument {
    Node,
    Verifier,
}

impl From<RoleArgument> for Role {
    fn from(role: RoleArgument) -> Self {
        match role {
            RoleArgument::Node => Self::Node,
            RoleArgument::Verifier => Self::Verifier,
        }
    }
}

#[derive(Args)]
pub(super) struct JoinArguments {
    /// The line that the organiser gave you, or @FILE for a file that holds it: other users of this machine see the commands
    /// that run.
    pub(super) invitation: String,
    #[command(flatten)]
    pub(super) home: HomeArguments,
    /// What to call yourself when you are admitted, for people who look at the run: at most 32 ASCII letters, digits, spaces,
    /// . _ and -. It stays in the public ledger, beside your key, and cannot be changed [default: none].
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub(super) name: Option<Name>,
    /// Where to listen, so that others can bring you parts to combine [default: the address that this
    /// machine reaches the steward from, a free port].
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) listen: Option<String>,
    /// The address that others dial, if not the one listened on.
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) advertise: Option<String>,
    /// Do not listen, only dial out: for machines that others cannot reach.
    #[arg(long, conflicts_with_all = ["listen", "advertise"])]
    pub(super) no_listen: bool,
    /// Be no relay. Otherwise a node that others can dial carries bytes of members behind home routers that reach each other by no
    /// other way: at most 32 Mbit/s each way, or a quarter of --max-rate, which it counts towards that, and none where a quarter is
    /// less than 2 Mbit/s. It sees nothing but encrypted bytes.
    #[arg(long)]
    pub(super) no_relay: bool,
    #[command(flatten)]
    pub(super) show: ShowArguments,
    #[command(flatten)]
    pub(super) gossip: GossipArguments,
    #[command(flatten)]
    pub(super) leaves: LeafArguments,
    #[command(flatten)]
    pub(super) bounds: BoundArguments,
    #[command(flatten)]
    pub(super) restraint: RestraintArguments,
    /// Compute no leaves: combine parts of others, and serve text, states and results. For a machine with a good line and a slow
    /// processor. Invite it with --founder where the run has a probation: without weight it combines nothing. Where the run has rows
    /// of experts it only serves.
    #[arg(long)]
    pub(super) no_leaves: bool,
    /// Run at low priority.
    #[arg(long)]
    pub(super) nice: bool,
}

/// What the member may take of the machine.
#[derive(Args)]
pub(super) struct BoundArguments {
    /// Most disk to use, in GiB, like 10 or 0.5. The member stops before it would take more.
    #[arg(long, value_name = "G", value_parser = parse_gibibytes)]
    max_disk: Option<u64>,
    /// Most memory to use, in GiB, like 8 or 0.5. A run that takes more is refused before anything of it is fetched.
    #[arg(long, value_name = "G", value_parser = parse_gibibytes)]
    max_memory: Option<u64>,
    /// Most of the line to use, in Mbit/s, like 10 or 4/40 (up/down), at least 1: over all channels together. Gossip, a few kB/s, comes
    /// on top.
    #[arg(long, value_name = "UP[/DOWN]", value_parser = parse_rates)]
    max_rate: Option<Rates>,
}

/// When the member is not to work. A pause costs no standing: it finishes the round, answers the audits of what it has computed, which
/// takes some rounds, and comes back by itself. Where nobody else trains there are no rounds: it then computes nothing, and keeps its
/// channels open until the pause is over.
#[derive(Args)]
pub(super) struct RestraintArguments {
    /// Pause for the rest of the day, in local time, once the channels have carried so many GiB, both ways together. What is under
    /// way is finished first, so leave room for some rounds.
    #[arg(long, value_name = "G", value_parser = parse_gibibytes)]
    max_traffic: Option<u64>,
    /// Pause outside these hours, in local time, like 22:00-07:00. May be given several times.
    #[arg(long, value_name = "FROM-TO", value_parser = parse_hours)]
    hours: Vec<Hours>,
    /// Pause while other programs use a quarter of the processor, or while the machine is on battery. Linux tells both; whether
    /// somebody sits at the machine, it does not tell.
    #[arg(long, value_name = "WHEN", value_delimiter = ',')]
    pause_when: Vec<PauseWhen>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PauseWhen {
    Busy,
    Battery,
}

impl RestraintArguments {
    pub(super) fn restraint(self) -> Restraint {
        let when = |reason| self.pause_when.contains(&reason);
        let (busy, battery) = (when(PauseWhen::Busy), when(PauseWhen::Battery));
        Restraint { hours: self.hours, traffic: self.max_traffic, busy, battery }
    }
}

impl BoundArguments {
    pub(super) fn bounds(&self) -> Bounds {
        Bounds { disk: self.max_disk, memory: self.max_memory, rates: self.max_rate.unwrap_or_default() }
    }
}
