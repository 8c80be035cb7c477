//! Arguments of commands.

use std::path::PathBuf;

use clap::Args;
use muster_compute::{Device, DeviceChoice, Path, Precision};

/// How to calibrate.
#[derive(Args)]
pub struct Calibrating {
    /// The profile of the run to be: f32, tf32 or bf16.
    #[arg(long, value_name = "NAME")]
    pub profile: Precision,
    /// Compute threads; libtorch is measured with 1, 2, 4, … and this many [default: all cores].
    #[arg(long, value_parser = threads)]
    pub threads: Option<usize>,
    /// Where libtorch computes: cpu, cuda or cuda:N; may be given several times [default: everywhere].
    #[arg(long = "device", value_name = "NAME")]
    pub devices: Vec<Device>,
    /// Leave out what no member may use: in tf32 and bf16 the kernels with defined bits. Tolerances become far smaller, and
    /// are good for members on the kinds of devices that are measured here and on no others.
    #[arg(long)]
    pub members_only: bool,
    /// Rounds of training before the last leaves; `muster run new` takes runs of twice as many [default: the run's].
    #[arg(long, value_name = "N")]
    pub rounds: Option<u32>,
    /// Leaves to compare early, midway, and late; each time as many new ones are judged as an audit judges them.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=256))]
    pub leaves: u32,
    /// What to write.
    #[arg(long, value_name = "FILE", default_value = "calibration.toml")]
    pub out: PathBuf,
}

/// How to replay.
#[derive(Args)]
pub struct Replaying {
    /// Compute threads [default: all cores].
    #[arg(long, value_parser = threads)]
    pub threads: Option<usize>,
    /// Kernel path: avx512, avx2, neon or portable; the fastest if absent.
    #[arg(long, visible_alias = "kernel", value_parser = parse_path)]
    pub path: Option<Path>,
    /// Where leaves are computed: auto, cpu, gpu or gpu:N; the bits are the same.
    ///
    /// gpu:N is the device of that number in the list of `muster doctor`, gpu the first one. auto takes the first graphics
    /// processor that gives the known answers, else the processor. What bans stand on is recomputed on the processor.
    #[arg(long, value_name = "NAME", default_value_t)]
    pub device: DeviceChoice,
    /// Recompute only this share of the contributions, each drawn by chance, and take the sums of the others from the
    /// archive, which must have them (`muster host --keep-aggregates`). Every record, ban and state is checked all the
    /// same; what is not: the contributions not drawn, and the combining rule where one was not.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub fraction: Option<f64>,
    /// Draw as an earlier replay with this seed did [default: by the system's randomness].
    #[arg(long, requires = "fraction", value_parser = seed)]
    pub seed: Option<Seed>,
    /// Where to keep how far it came, and rows of experts that are not in memory. The folder is not believed: only progress that
    /// an earlier replay of this user sealed, with a key beside the default folder, counts [default: a folder in
    /// $XDG_STATE_HOME/muster/replay or ~/.local/state/muster/replay, removed at the end].
    #[arg(long, value_name = "FOLDER")]
    pub work: Option<PathBuf>,
    /// Write what was confirmed into this folder: report.html with charts, report.json for programs.
    #[arg(long, value_name = "FOLDER")]
    pub report: Option<PathBuf>,
    /// Begin anew, whatever was kept.
    #[arg(long)]
    pub fresh: bool,
}

/// The seed of a sample.
#[derive(Clone, Copy)]
pub struct Seed(pub [u8; 32]);

fn seed(text: &str) -> Result<Seed, String> {
    muster_core::ids::unhex(text).map(Seed).ok_or_else(|| "expected 64 hexadecimal digits".into())
}

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err("must lie between 0 and 1".into()) }
}

/// 1 to 1,024.
pub fn threads(text: &str) -> Result<usize, String> {
    let count: usize = text.parse().map_err(|_| "expected a number".to_owned())?;
    if (1..=1024).contains(&count) { Ok(count) } else { Err("must be 1 to 1024".into()) }
}

/// A kernel path by its name.
pub fn parse_path(text: &str) -> Result<Path, String> {
    Path::parse(text).map_err(|misuse| misuse.to_string())
}
