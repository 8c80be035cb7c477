//! `muster bench`: whether this machine can help, in seconds and without peers.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use muster_compute::measure::{Products, Strided};
use muster_compute::{Library, Machine, Path as KernelPath, Precision};
use muster_core::codec::decode;
use muster_core::error::Misuse;
use muster_core::ids::{Digest, Leaf, MemberId};
use muster_core::layout::Layout;
use muster_core::manifest::{Data, Family, Manifest, Model, Start, Tokeniser, TokeniserFile};
use muster_core::state::{LeafJob, Update};
use muster_replica::memory;

use crate::config::{Makers, Settings};
use crate::exit::{Failure, Outcome};

/// What leaves take of a measurement that a person waits for.
pub const PATIENCE: Duration = Duration::from_secs(6);
/// Rows, columns and depth of a product whose factors stay in the first two caches.
const IN_CACHE: [usize; 3] = [96, 64, 256];

/// What to measure.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// A run's folder, a member's data directory, or a `run.toml`; the default settings otherwise.
    pub run: Option<PathBuf>,
    /// What computes.
    pub machine: Machine,
    /// The profile to measure, instead of the run's own.
    pub precision: Option<Precision>,
    /// What leaves may take: [`PATIENCE`].
    pub patience: Duration,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Report {
    path: KernelPath,
    /// What computed the leaves, where that is not the path.
    libtorch: Option<String>,
    threads: usize,
    model: Model,
    windows: u32,
    /// FLOP/s of one core on a product within its caches.
    peak: f64,
    /// Seconds of a leaf, and whether they follow from a single window.
    leaf: (f64, bool),
    /// Seconds of one round's update.
    update: f64,
    /// Bytes that a node takes at least.
    memory: u64,
}

/// Measures.
///
/// # Errors
/// [`Failure`] naming a setting or a file that is wrong, or the kernels that this processor lacks, and a model that this
/// machine has no memory for; what libtorch lacks, where it is asked for.
pub fn bench(options: &BenchOptions) -> Outcome<Report> {
    let mut manifest = manifest(options.run.as_deref())?;
    let machine = options.machine;
    let by_default =
        Precision::of(manifest.profile).or((machine.library == Some(Library::Tch)).then_some(Precision::F32));
    if let Some(precision) = options.precision.or(by_default) {
        manifest.profile = precision.profile();
    }
    let broken = |misuse: Misuse| Failure::environment(misuse.to_string());
    let memory = memory::contributing(&manifest, &machine);
    memory::check(memory).map_err(broken)?;
    let path = machine.path.unwrap_or_else(KernelPath::detect);
    let mut backend = machine.leaves(manifest.profile).map_err(broken)?;
    backend.self_test().map_err(broken)?;
    let peak = peak(path)?;
    let mut state = backend.initial(&manifest, &[]);
    let windows = windows(&manifest);
    let mut sum = vec![0; state.parameters.len()];
    let mut time = |windows: &[Vec<u32>], number| {
        let job = LeafJob { state: &state, round_seed: Digest([1; 32]), leaf: Leaf(number), windows };
        let begun = Instant::now();
        backend.leaf(&manifest, &job, &mut sum);
        begun.elapsed()
    };
    let one = windows.get(..1).unwrap_or_default();
    // The first one makes the buffers.
    let mut single = time(one, 0);
    if single < options.patience / 4 {
        single = time(one, 1);
    }
    let whole = single * windows.len() as u32;
    let mut leaves = Vec::new();
    while whole < options.patience
        && (leaves.is_empty() || leaves.iter().sum::<Duration>() + whole < options.patience)
    {
        leaves.push(time(&windows, 2 + leaves.len() as u64));
    }
    leaves.sort_unstable();
    let leaf =
        leaves.get(leaves.len() / 2).map_or((whole.as_secs_f64(), true), |half| (half.as_secs_f64(), false));
    let values = sum.iter().map(|q| *q as f32).collect();
    let update = Update { values, present: vec![true; Layout::of(&manifest.model).blocks().len()] };
    let begun = Instant::now();
    backend.apply(&manifest, &mut state, &update);
    Ok(Report {
        path,
        libtorch: (!machine.is_exact(manifest.profile)?).then(|| backend.describe()),
        threads: machine.threads,
        windows: manifest.training.leaf_windows,
        model: manifest.model,
        peak,
        leaf,
        update: begun.elapsed().as_secs_f64(),
        memory,
    })
}

/// The manifest of a folder, or of settings; text of no account where there is none.
fn manifest(run: Option<&Path>) -> Outcome<Manifest> {
    let read = |path: &Path| {
        std::fs::read(path)
            .map_err(|error| Failure::environment(format!("{}: cannot be read ({error})", path.display())))
    };
    let settings = match run {
        None => Settings::default(),
        Some(folder) if folder.is_dir() => {
            let path = folder.join("manifest.bin");
            let manifest: Manifest = decode(&read(&path)?)
                .map_err(|reject| Failure::environment(format!("{}: {reject}", path.display())))?;
            manifest.check()?;
            return Ok(manifest);
        }
        Some(file) => {
            let text = String::from_utf8(read(file)?)
                .map_err(|_| Failure::usage(format!("{}: it is no text", file.display())))?;
            Settings::parse(file, &text)?
        }
    };
    let nobody = MemberId([0; 32]);
    let kinds = settings.model.vocabulary;
    let tokeniser = match kinds {
        256..=1279 => Tokeniser::Bytes,
        _ => Tokeniser::File(TokeniserFile { digest: Digest::default(), bytes: 1, tokens: kinds }),
    };
    let data = Data {
        root: Digest::default(),
        bytes: 1 << 30,
        held_out_root: Digest::default(),
        held_out_bytes: 0,
        tokeniser,
        start: Start::Drawn,
    };
    let makers = Makers { organiser: nobody, steward: nobody, nonce: [0; 16] };
    Ok(settings.manifest(&makers, data)?)
}

/// A leaf's windows of tokens that follow no pattern that matters.
fn windows(manifest: &Manifest) -> Vec<Vec<u32>> {
    let Model { vocabulary, sequence, .. } = manifest.model;
    let token = |place: u32| place.wrapping_mul(0x9e37_79b9) >> 7;
    let window = |w: u32| (0..=sequence).map(|t| token(w * sequence + t) % vocabulary).collect();
    (0..manifest.training.leaf_windows).map(window).collect()
}

/// FLOP/s of products within the caches: the best of some.
fn peak(path: KernelPath) -> Outcome<f64> {
    let mut products = Products::new(path)?;
    let [rows, columns, depth] = IN_CACHE;
    let (left, right) = (vec![0.5; rows * depth], vec![0.25; depth * columns]);
    let mut out = vec![0.0; rows * columns];
    let begun = Instant::now();
    let mut best = f64::INFINITY;
    while begun.elapsed() < Duration::from_millis(400) {
        let begun = Instant::now();
        for _ in 0..8 {
            products.multiply(
                Strided { data: &left, row: depth, column: 1 },
                Strided { data: &right, row: columns, column: 1 },
                IN_CACHE,
                &mut out,
            );
        }
        best = best.min(begun.elapsed().as_secs_f64() / 8.0);
    }
    Ok(2.0 * (rows * columns * depth) as f64 / best)
}

/// Floating-point operations of the matrix products of one token, forward and backward.
///
/// Each weight takes part in one multiplication and one addition forward and in two of each backward; attention
/// multiplies queries by keys and probabilities by values, of half the window on average where it is causal.
fn operations(model: &Model) -> f64 {
    let [vocabulary, width, hidden, layers, sequence] =
        [model.vocabulary, model.width, model.hidden, model.layers, model.sequence].map(f64::from);
    let forward = match &model.family {
        Family::Decoder(decoder) => {
            let key_value = width / f64::from(model.heads) * f64::from(decoder.key_value_heads);
            let weights = 2.0 * width * width + 2.0 * width * key_value + 3.0 * width * hidden;
            layers * (2.0 * weights + 2.0 * width * sequence) + 2.0 * vocabulary * width
        }
        Family::Albert(albert) => {
            let narrow = f64::from(albert.embedding);
            let weights = 4.0 * width * width + 2.0 * width * hidden;
            let predicted = f64::from(albert.masked(model.sequence)) / sequence;
            layers * (2.0 * weights + 4.0 * width * sequence)
                + 2.0 * narrow * width
                + predicted * 2.0 * narrow * (width + vocabulary)
        }
    };
    3.0 * forward
}

impl Report {
    /// For people.
    pub fn text(&self) -> String {
        let Self { path, libtorch, threads, model, windows, peak, leaf: (leaf, estimated), update, memory } =
            self;
        let tokens = f64::from(*windows) * f64::from(model.sequence);
        let speed = operations(model) * tokens / leaf;
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<10} {value}");
        };
        line(
            "kernels",
            format!("{}, {threads} {}", path.name(), if *threads == 1 { "thread" } else { "threads" }),
        );
        line(
            "model",
            format!("{} parameters, leaves of {windows} × {} tokens", model.parameters(), model.sequence),
        );
        line("products", format!("{:.1} GFLOP/s a core on data in its cache", peak / 1e9));
        let estimated = if *estimated { " (from one window)" } else { "" };
        let beside = match libtorch {
            None => format!("{:.0} % of that", 100.0 * speed / peak / *threads as f64),
            Some(libtorch) => format!("by {libtorch}"),
        };
        line("leaf", format!("{leaf:.3} s{estimated}: {:.1} GFLOP/s, {beside}", speed / 1e9));
        line("an hour", format!("{:.0} leaves, {:.0} tokens", 3600.0 / leaf, 3600.0 * tokens / leaf));
        line("update", format!("{update:.3} s a round"));
        line("memory", format!("{} at least, as a node of this run", memory::shown(*memory)));
        text
    }
}

#[cfg(test)]
mod tests {
    use muster_compute::Device;

    use super::*;
    use crate::exit::Exit;

    #[test]
    fn a_report_says_what_a_volunteer_asks() {
        let place = tempfile::tempdir().unwrap();
        let settings = place.path().join("run.toml");
        std::fs::write(
            &settings,
            "[model]\nwidth = 16\nlayers = 1\nheads = 2\nkey_value_heads = 2\nhidden = 24\n",
        )
        .unwrap();
        let options = BenchOptions {
            run: Some(settings.clone()),
            machine: Machine::new(1, None),
            precision: None,
            patience: Duration::from_millis(50),
        };
        let text = bench(&options).unwrap().text();
        for word in ["kernels", "GFLOP/s a core", "leaf", "an hour", "tokens", "update", "memory"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        let wide = "[model]\nvocabulary = 50000\nwidth = 24576\nlayers = 1\nheads = 256\nkey_value_heads = 256\nhidden = 24576\n\
                    [retention]\nstates = 4096\n";
        std::fs::write(&settings, wide).unwrap();
        let failure = bench(&options).unwrap_err();
        assert!(failure.exit == Exit::Environment && failure.message.contains("of memory"), "{failure}");
        let (library, device) = (Some(Library::Tch), Some(Device::Cuda(99)));
        let machine = Machine { library, device, ..options.machine };
        let failure = bench(&BenchOptions { run: None, machine, ..options.clone() }).unwrap_err();
        assert!(failure.exit == Exit::Environment && failure.message.contains("libtorch"), "{failure}");
        let failure = bench(&BenchOptions { run: Some("/nonexistent".into()), ..options }).unwrap_err();
        assert!(failure.message.contains("/nonexistent"), "{failure}");
    }
}
