//! `muster bench`: whether this machine can help, in seconds and without peers.

mod exchange;
mod stint;
mod trials;

use std::num::NonZero;
use std::path::PathBuf;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use muster_compute::measure::{self, MatrixBenchmark, Strided};
use muster_compute::{Closeness, Library, Machine, Path as KernelPath, Precision};
use muster_core::codec::decode;
use muster_core::error::Misuse;
use muster_core::ids::{Digest, MemberId};
use muster_core::limits;
use muster_core::manifest::{
    Data, Decoder, Family, Manifest, Model, Start, Tokeniser, TokeniserFile, Variant,
};
use muster_core::regime::Regime;
use muster_organise::config::{Makers, Settings};
use muster_organise::estimate::Estimate;
use muster_organise::size;
use muster_replica::exit::{Failure, Outcome};
use muster_replica::memory::{self, Need};
use muster_store::{reading, regular};
use muster_view::words::counted;

use stint::Stint;
use trials::{Timings, Trials};

/// What leaves take of a measurement that a person waits for.
pub const PATIENCE: Duration = Duration::from_secs(6);
/// How many times as fast as this machine's processor a graphics processor is at most, about.
const GRAPHICS: f64 = 100.0;
/// Share of the steward's patience in which a node takes up leaves.
const COMMIT_SHARE: f64 = 0.7;
/// How long products are measured, and where a guess will do.
const PRODUCTS: Duration = Duration::from_millis(400);
const GLANCE: Duration = Duration::from_millis(40);
/// Share of the speed of products that leaves have, about.
const USE: f64 = 0.5;
/// Share of a processor below which others are taken to have the rest.
const BUSY: f64 = 0.8;
/// Rows, columns and depth of a product whose factors stay in the first two caches.
const IN_CACHE: [usize; 3] = [96, 64, 256];

/// What to measure.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// The run.
    pub workload: Workload,
    /// What computes.
    pub machine: Machine,
    /// The profile to measure, instead of the run's own.
    pub precision: Option<Precision>,
    /// What leaves may take: [`PATIENCE`].
    pub patience: Duration,
}

/// Whose leaves to compute.
#[derive(Clone, Debug)]
pub enum Workload {
    /// Those of the default settings.
    Default,
    /// Those of a run's folder, a member's data directory, or a `run.toml`.
    At(PathBuf),
    /// Those of a run that was fetched, as an invitation says.
    Agreed(Box<Manifest>),
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Benchmark {
    path: KernelPath,
    /// What computed the leaves, where that is not the path.
    other: Option<String>,
    /// How close that came to the known gradients.
    closeness: Option<Closeness>,
    /// The processor's leaves beside those of a device.
    processor: Option<Timings>,
    threads: usize,
    manifest: Manifest,
    /// FLOP/s of one core on fused multiply-adds in its registers, on the fastest path.
    peak: f64,
    /// FLOP/s of one core on a product within its caches.
    product: f64,
    /// `None` if there is too little memory to measure.
    timings: Option<Timings>,
    memory: Need,
    /// Why there is too little memory, if so.
    lacking: Option<Misuse>,
    /// Share of a processor that this program had, where the system tells.
    had: Option<f64>,
    /// Whether the text is known, and not made up.
    has_text: bool,
}

/// Measures.
///
/// # Errors
/// [`Failure`] naming a setting or a file that is wrong, or the kernels that this processor lacks; what libtorch lacks,
/// where it is asked for.
pub fn bench(options: &BenchOptions) -> Outcome<Benchmark> {
    let mut manifest = manifest(&options.workload)?;
    let machine = options.machine;
    let by_default =
        Precision::of(manifest.profile).or((machine.library == Some(Library::Tch)).then_some(Precision::F32));
    if let Some(precision) = options.precision.or(by_default) {
        manifest.profile = precision.profile();
    }
    // MANIFEST-14: libtorch computes none.
    if !manifest.profile.has_defined_bits() && matches!(manifest.model.family, Family::Mixture(_)) {
        let why = "a mixture of experts is trained in \"exact\": leave --backend and --precision out";
        return Err(Failure::usage(why));
    }
    let broken = |misuse: Misuse| Failure::environment(misuse.to_string());
    let path = machine.path.unwrap_or_else(KernelPath::detect);
    let mut backend = machine.leaves(manifest.profile).map_err(broken)?;
    backend.self_test().map_err(broken)?;
    backend.has_room(&manifest).map_err(broken)?;
    let exact = machine.is_exact(&manifest)?;
    let on_device = machine.is_on_device(&manifest)?;
    let stint = Stint::begin();
    let (peak, product) = (measure::peak(), product(path, PRODUCTS)?);
    let had = stint.share();
    let mut memory = memory::contributing(&manifest, &machine);
    let has_text = match &options.workload {
        Workload::Default => false,
        Workload::At(path) => path.is_dir(),
        Workload::Agreed(_) => true,
    };
    // Settings alone say nothing of the text.
    if !has_text {
        memory = memory.beside_text();
    }
    let lacking = memory::within(memory, memory::available()).err();
    // Of one window on all threads, if all of it went as products do.
    let window = window_operations(&manifest.model) / (product * machine.threads.max(1) as f64);
    let description = backend.describe();
    let faster = if on_device || !exact && description.contains("cuda") { GRAPHICS } else { 1.0 };
    let mut trials = Trials { manifest: &manifest, window, patience: options.patience };
    let timings = lacking.is_none().then(|| trials.of(&mut *backend, faster));
    let closeness = backend.closeness();
    drop(backend);
    let processor = if on_device && lacking.is_none() {
        // A person came for the device.
        trials.patience /= 3;
        Some(trials.of(&mut machine.exact()?, 1.0))
    } else {
        None
    };
    let (other, threads) = ((!exact).then_some(description), machine.threads);
    Ok(Benchmark {
        path,
        other,
        closeness,
        processor,
        threads,
        manifest,
        peak,
        product,
        timings,
        memory,
        lacking,
        had,
        has_text,
    })
}

/// The manifest of a folder, or of settings with a made-up text.
///
/// # Errors
/// [`Failure`] naming a file that cannot be read, or a setting that is wrong.
pub(super) fn manifest(workload: &Workload) -> Outcome<Manifest> {
    let settings = match workload {
        Workload::Agreed(manifest) => return Ok(Manifest::clone(manifest)),
        Workload::Default => Settings::default(),
        Workload::At(folder) if folder.is_dir() => {
            let path = folder.join("manifest.bin");
            let manifest: Manifest = decode(&reading::manifest(folder)?)
                .map_err(|reject| Failure::environment(format!("{}: {reject}", path.display())))?;
            manifest.check()?;
            return Ok(manifest);
        }
        Workload::At(file) => {
            let text = regular::text(file, regular::TEXT_BYTES)?;
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
        router: None,
    };
    let makers = Makers { organiser: nobody, steward: nobody, nonce: [0; 16] };
    Ok(settings.manifest(&makers, data)?)
}

impl Workload {
    /// The manifest of it.
    ///
    /// # Errors
    /// [`Failure`] naming a file that cannot be read, or a setting that is wrong.
    pub fn manifest(&self) -> Outcome<Manifest> {
        manifest(self)
    }
}

/// Seconds of a leaf on this machine with all its processors, guessed from products alone in a moment.
///
/// # Errors
/// [`Failure`] where the processor lacks the kernels.
pub fn glance(manifest: &Manifest) -> Outcome<f64> {
    Ok(glanced(manifest)?.0)
}

/// The same, with the share of a processor that this program had meanwhile.
fn glanced(manifest: &Manifest) -> Outcome<(f64, Option<f64>)> {
    let stint = Stint::begin();
    let product = product(KernelPath::detect(), GLANCE)?;
    let had = stint.share();
    let threads = available_parallelism().map_or(1, NonZero::get);
    let window = window_operations(&manifest.model) / (product * threads as f64 * USE);
    Ok((window * f64::from(manifest.training.leaf_windows), had))
}

/// How long a run computes on machines like this one with all their processors, guessed from products alone in a moment, in words.
///
/// # Errors
/// [`Failure`] naming the kernels that this processor lacks.
pub fn guess(manifest: &Manifest) -> Outcome<String> {
    let (leaf, had) = glanced(manifest)?;
    let threads = available_parallelism().map_or(1, NonZero::get);
    let time = Estimate::of(manifest).time(leaf, 0.0);
    let processors = counted(threads, "processor");
    Ok(match had.filter(|had| *had < BUSY) {
        None => format!("{time} with {processors}, as a guess"),
        Some(_) => format!("{time} at most, as a guess: this machine is busy, try again"),
    })
}

/// FLOP/s of products within the caches: the best of some.
fn product(path: KernelPath, patience: Duration) -> Outcome<f64> {
    let mut products = MatrixBenchmark::new(path)?;
    let [rows, columns, depth] = IN_CACHE;
    let (left, right) = (vec![0.5; rows * depth], vec![0.25; depth * columns]);
    let mut out = vec![0.0; rows * columns];
    let begun = Instant::now();
    let mut best = f64::INFINITY;
    while begun.elapsed() < patience {
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

/// Floating-point operations of the matrix products of one window, forward and backward.
fn window_operations(model: &Model) -> f64 {
    operations(model) * f64::from(model.sequence)
}

/// The same of one token.
///
/// Each weight takes part in one multiplication and one addition forward and in two of each backward; attention
/// multiplies queries by keys and probabilities by values, of half the window on average where it is causal. Of the experts of
/// a mixture, only those count that the token passes.
fn operations(model: &Model) -> f64 {
    let [vocabulary, width, hidden, layers, sequence] =
        [model.vocabulary, model.width, model.hidden, model.layers, model.sequence].map(f64::from);
    let causal = |decoder: &Decoder, feed_forward: f64| {
        let head = f64::from(model.head_width());
        let [query, key_value] = [model.heads, decoder.key_value_heads].map(|heads| head * f64::from(heads));
        let weights = 2.0 * width * query + 2.0 * width * key_value + feed_forward;
        layers * (2.0 * weights + 2.0 * query * sequence) + 2.0 * vocabulary * width
    };
    let forward = match &model.family {
        Family::Decoder(decoder) | Family::Variant(Variant { decoder, .. }) => {
            causal(decoder, 3.0 * width * hidden)
        }
        Family::Mixture(mixture) => {
            let [columns, active] = [mixture.columns, mixture.active].map(f64::from);
            let shared = 3.0 * width * f64::from(mixture.shared_hidden) + width;
            causal(&mixture.decoder, shared + columns * width + active * 3.0 * width * hidden)
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

impl Benchmark {
    /// Whether this machine can help, and why.
    ///
    /// # Errors
    /// Why not.
    pub fn verdict(&self) -> Result<String, String> {
        if let Some(Misuse(why)) = &self.lacking {
            return Err(why.clone());
        }
        let Manifest { timers, training, .. } = &self.manifest;
        let patience = f64::from(timers.commit) / 1000.0 * COMMIT_SHARE;
        let steps = Regime::of(&self.manifest).leaves_of_number();
        let leaf = self.timings.map_or(0.0, |timings| timings.leaf * f64::from(steps));
        let [one, several] = if steps > 1 { ["segment", "segments"] } else { ["leaf", "leaves"] };
        if leaf > patience {
            return Err(format!(
                "a {one} takes {leaf:.1} s, and a node has {patience:.1} s for its {several} of a round (timers.commit)"
            ));
        }
        let most = (patience / leaf).min(f64::from(training.leaves.min(limits::QUOTA)));
        let (most, all) = (most.floor(), training.leaves);
        Ok(format!(
            "{most} of a round's {all} {several} fit into the {patience:.1} s that a node has for them"
        ))
    }

    /// For people.
    pub fn text(&self) -> String {
        let Self { path, threads, manifest, peak, product, memory, .. } = self;
        let (model, windows) = (&manifest.model, manifest.training.leaf_windows);
        let mut lines = vec![
            ("kernels", format!("{}, {}", path.name(), counted(*threads, "thread"))),
            (
                "model",
                format!("{}, leaves of {windows} × {} tokens", size::parameters(model), model.sequence),
            ),
            ("peak", format!("{:.1} GFLOP/s a core on data in its registers", peak / 1e9)),
            (
                "products",
                format!(
                    "{:.1} GFLOP/s a core on data in its cache, {:.0} % of the peak",
                    product / 1e9,
                    100.0 * product / peak
                ),
            ),
        ];
        lines.extend(self.closeness.map(|closeness| ("self-test", closeness.to_string())));
        if let Some(timings) = &self.timings {
            lines.extend(self.timing_lines(timings));
        }
        lines.extend(self.plan().map(|plan| ("the run", plan)));
        lines.push(("memory", format!("about {}, as a node of this run", memory::shown(memory.bytes()))));
        lines.extend(self.had.filter(|had| *had < BUSY).map(|had| ("busy", format!(
            "this machine is busy: try again. This program had {:.0} % of a processor, so that it is faster than is said here",
            100.0 * had
        ))));
        let (can, why) = self.verdict().map_or_else(|why| ("no", why), |why| ("yes", why));
        lines.push(("can help", format!("{can}, because {why}")));
        lines.iter().fold(String::new(), |text, (name, value)| format!("{text}{name:<10} {value}\n"))
    }

    /// What was measured.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Seconds of a leaf, and of the rest of a round; none if there was too little memory to measure.
    pub fn seconds(&self) -> Option<(f64, f64)> {
        self.timings.map(|timings| (timings.leaf, timings.round.unwrap_or_default()))
    }

    /// What the whole run comes to.
    fn plan(&self) -> Option<String> {
        let timings = self.timings?;
        let estimate = Estimate::of(&self.manifest);
        let time = estimate.time(timings.leaf, timings.round.unwrap_or_default());
        Some(if self.has_text { format!("{}; {time}", estimate.text()) } else { time })
    }

    fn timing_lines(&self, timings: &Timings) -> Vec<(&'static str, String)> {
        let Timings { leaf, round, .. } = timings;
        let (model, windows) = (&self.manifest.model, f64::from(self.manifest.training.leaf_windows));
        let tokens = windows * f64::from(model.sequence);
        let speed = window_operations(model) * windows / leaf;
        let estimated = timings.estimated();
        let beside = match &self.other {
            None => format!("{:.0} % of the peak", 100.0 * speed / self.peak / self.threads as f64),
            Some(other) => format!("by {other}"),
        };
        let mut lines = vec![
            ("leaf", format!("{leaf:.3} s{estimated}: {:.1} GFLOP/s, {beside}", speed / 1e9)),
            ("an hour", format!("{:.0} leaves, {:.0} tokens", 3600.0 / leaf, 3600.0 * tokens / leaf)),
        ];
        lines.extend(self.processor.map(|processor| {
            let [own, other] = [*leaf, processor.leaf].map(|leaf| tokens / leaf);
            let (times, estimated) = (own / other, processor.estimated());
            ("device", format!("{own:.0} tokens/s, {times:.2} times the processor's {other:.0}{estimated}"))
        }));
        lines.extend(round.map(|round| {
            ("round", format!("{round:.3} s beside its leaves: packing, hashes, its part, the update, what it sends and keeps"))
        }));
        lines
    }
}

#[cfg(test)]
mod tests {
    use muster_compute::{DeviceChoice, devices};
    use muster_replica::exit::Exit;

    use super::trials::TimingBasis;
    use super::*;

    #[test]
    fn a_report_says_what_a_volunteer_asks() {
        let directory = tempfile::tempdir().unwrap();
        let settings = directory.path().join("run.toml");
        std::fs::write(
            &settings,
            "[model]\nwidth = 16\nlayers = 1\nheads = 2\nkey_value_heads = 2\nhidden = 24\n",
        )
        .unwrap();
        let options = BenchOptions {
            workload: Workload::At(settings.clone()),
            machine: Machine::new(1, None),
            precision: None,
            patience: Duration::from_millis(50),
        };
        let report = bench(&options).unwrap();
        let text = report.text();
        for word in [
            "kernels",
            "in its registers",
            "GFLOP/s a core on data in its cache",
            "% of the peak",
            "leaf",
            "an hour",
            "tokens",
            "beside its leaves: packing",
            "memory",
            "of computing on 4 machines like this one",
            "can help   yes, because 16 of a round's 16 leaves fit into the 21.0 s",
        ] {
            assert!(text.contains(word), "{word}: {text}");
        }
        let refusal = |settings_text: &str, words: &[&str]| {
            std::fs::write(&settings, settings_text).unwrap();
            let report = bench(&options).unwrap();
            assert!(report.verdict().is_err());
            let text = report.text();
            for word in words {
                assert!(text.contains(word), "{word}: {text}");
            }
        };
        refusal(
            "[model]\nvocabulary = 50000\nwidth = 24576\nlayers = 1\nheads = 256\nkey_value_heads = 256\nhidden = 24576\n",
            &["GFLOP/s a core", "can help   no, because this run takes", "model.*"],
        );
        refusal(
            "[model]\nwidth = 512\nlayers = 4\nheads = 8\nkey_value_heads = 8\nhidden = 1024\n[training]\nleaf_windows = 1024\n\
             [timers]\ncommit = 0.01\n",
            &["(estimated from products alone", "can help   no, because a leaf takes", "timers.commit"],
        );
        std::fs::write(&settings, "[model]\nfamily = \"mixture\"\n").unwrap();
        let failure =
            bench(&BenchOptions { precision: Some(Precision::Bf16), ..options.clone() }).unwrap_err();
        assert!(failure.exit == Exit::Usage && failure.message.contains("mixture"), "{failure}");
        let (library, device) = (Some(Library::Tch), DeviceChoice::Cuda(99));
        let machine = Machine { library, device, ..options.machine };
        let failure =
            bench(&BenchOptions { workload: Workload::Default, machine, ..options.clone() }).unwrap_err();
        assert!(failure.exit == Exit::Environment && failure.message.contains("libtorch"), "{failure}");
        let failure =
            bench(&BenchOptions { workload: Workload::At("/nonexistent".into()), ..options }).unwrap_err();
        assert!(failure.message.contains("/nonexistent"), "{failure}");
    }

    #[test]
    fn the_rest_of_a_round_is_timed_whatever_the_run_exchanges() {
        let directory = tempfile::tempdir().unwrap();
        let settings = directory.path().join("run.toml");
        let model = "[model]\nwidth = 16\nlayers = 1\nheads = 2\nkey_value_heads = 2\nhidden = 24\n";
        for more in ["", "[local]\nsteps = 8\n", "family = \"mixture\"\n"] {
            std::fs::write(&settings, format!("{model}{more}")).unwrap();
            let (workload, machine) = (Workload::At(settings.clone()), Machine::new(1, None));
            let patience = Duration::from_millis(50);
            let report = bench(&BenchOptions { workload, machine, precision: None, patience }).unwrap();
            assert!(report.seconds().unwrap().1 > 0.0, "{more}: {}", report.text());
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_said() {
        let machine = Machine { device: DeviceChoice::Gpu(99), ..Machine::new(1, None) };
        let options =
            BenchOptions { workload: Workload::Default, machine, precision: None, patience: PATIENCE };
        let failure = bench(&options).unwrap_err();
        assert!(failure.exit == Exit::Environment && failure.message.contains("device"), "{failure}");
    }

    /// Wherever OpenCL has a device.
    #[test]
    fn a_device_is_measured_beside_the_processor() {
        if devices().is_empty() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let settings = directory.path().join("run.toml");
        let model = "width = 16\nlayers = 1\nheads = 2\nkey_value_heads = 2\nhidden = 24";
        std::fs::write(&settings, format!("[model]\n{model}\n")).unwrap();
        let machine = Machine { device: DeviceChoice::Gpu(0), ..Machine::new(1, None) };
        let patience = Duration::from_millis(50);
        let options = BenchOptions { workload: Workload::At(settings), machine, precision: None, patience };
        let text = bench(&options).unwrap().text();
        assert!(text.contains("tokens/s, ") && text.contains(" times the processor's "), "{text}");
    }

    #[test]
    fn only_experts_that_a_token_passes_are_computed() {
        let model = |text: &str| Settings::parse("run.toml".as_ref(), text).unwrap().checked_model().unwrap();
        let sizes = "width = 8\nheads = 2\nkey_value_heads = 1\nlayers = 3\n";
        let experts = |columns: u32, active: u32| {
            let experts = format!("columns = {columns}\nactive = {active}\nshared_hidden = 10\n");
            operations(&model(&format!(
                "[model]\nfamily = \"mixture\"\nhidden = 5\n{sizes}[experts]\n{experts}"
            )))
        };
        // One expert beside the shared one is a decoder as wide as both, a gate and a router.
        let decoder = operations(&model(&format!("[model]\nhidden = 15\n{sizes}")));
        let each = |weights: f64| 3.0 * 2.0 * 3.0 * weights;
        assert_eq!(experts(1, 1), decoder + each(8.0 + 8.0));
        assert_eq!(experts(7, 1), decoder + each(8.0 + 7.0 * 8.0));
        assert_eq!(experts(7, 3), decoder + each(8.0 + 7.0 * 8.0 + 2.0 * 3.0 * 8.0 * 5.0));
    }

    /// Up to the first model that is only estimated: the last one before is just under that.
    #[test]
    fn a_measurement_ends_whatever_the_model() {
        let directory = tempfile::tempdir().unwrap();
        let settings = directory.path().join("run.toml");
        let patience = Duration::from_millis(600);
        let mut longest = Duration::ZERO;
        for sequence in (5..16).map(|power| 1 << power) {
            let model = "width = 128\nlayers = 2\nheads = 2\nkey_value_heads = 2\nhidden = 256";
            std::fs::write(&settings, format!("[model]\n{model}\nsequence = {sequence}\n")).unwrap();
            let machine = Machine::new(1, None);
            let options =
                BenchOptions { workload: Workload::At(settings.clone()), machine, precision: None, patience };
            let begun = Instant::now();
            let timings = bench(&options).unwrap().timings.unwrap();
            longest = longest.max(begun.elapsed());
            if timings.basis == TimingBasis::Products {
                // A window, and leaves for as long as a person waits; the rest is for a machine that does much else.
                assert!(longest < patience * 3 + Duration::from_secs(10), "{longest:?}");
                return;
            }
        }
        panic!("a window of 32,768 tokens was not too long: {longest:?}");
    }
}
