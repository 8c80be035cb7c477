//! `run.toml`: the settings of a run for people, and the manifest made of them.

use std::path::Path;

use muster_core::codec::{List, Real, Text};
use muster_core::error::Misuse;
use muster_core::ids::{MemberId, unhex};
use muster_core::layout::Layout;
use muster_core::limits;
use muster_core::manifest::{self, Data, Manifest, VERSION};
use serde::Deserialize;

use crate::exit::{Failure, Outcome};

/// Rounds of a run for each that its tolerances were measured over, at most: `spec/tolerance.md` says why.
const BEYOND: u32 = 2;

/// The commented file with every setting at its default.
pub const TEMPLATE: &str = include_str!("config/run.toml");

/// What a run is made by, beside its settings.
#[derive(Clone, Debug)]
pub struct Makers {
    /// Who signs invitations.
    pub organiser: MemberId,
    /// Who seals records.
    pub steward: MemberId,
    /// Makes two runs of equal settings differ.
    pub nonce: [u8; 16],
}

macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}

section! {
    /// The settings of a run. The file's comments say what each is; a test keeps them equal to these defaults.
    Settings {
        /// A name for people.
        name: String = "muster".into(),
        /// What is trained.
        model: Model = Model::default(),
        /// How leaf gradients are computed and compared.
        arithmetic: Arithmetic = Arithmetic::default(),
        /// How much, in what pieces.
        training: Training = Training::default(),
        /// How an aggregate changes the state.
        optimiser: Optimiser = Optimiser::default(),
        /// How contributions are combined.
        aggregation: Aggregation = Aggregation::default(),
        /// How they are inspected.
        audit: Audit = Audit::default(),
        /// Who may come.
        admission: Admission = Admission::default(),
        /// The steward's patience.
        timers: Timers = Timers::default(),
        /// How long things are kept.
        retention: Retention = Retention::default(),
        /// When the state goes back after a conviction.
        rollback: Rollback = Rollback::default(),
    }
}

/// As [`manifest::Family`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FamilySetting {
    /// Predicts the next token.
    Decoder,
    /// Predicts masked tokens.
    Albert,
}

section! {
    /// As [`manifest::Model`].
    Model {
        /// What kind of transformer.
        family: FamilySetting = FamilySetting::Decoder,
        /// Token kinds.
        vocabulary: u32 = 256,
        /// Width of the residual stream.
        width: u32 = 64,
        /// Layers.
        layers: u32 = 2,
        /// Query heads.
        heads: u32 = 4,
        /// Key and value heads.
        key_value_heads: u32 = 4,
        /// Width inside the feed-forward.
        hidden: u32 = 172,
        /// Tokens of a window.
        sequence: u32 = 128,
        /// Whether the head shares the embedding.
        tied: bool = true,
        /// Base of the rotary frequencies.
        rope_base: f32 = 10_000.0,
        /// ALBERT: width of the embedding.
        embedding: u32 = 32,
        /// ALBERT: share of the tokens to be predicted.
        masked: f64 = 0.15,
        /// ALBERT: the token that stands for a masked one.
        mask_token: u32 = 256,
        /// ε of the norms.
        norm_epsilon: f32 = 1e-5,
        /// Standard deviation of the initial matrices.
        initial_scale: f32 = 0.1,
    }
}

/// As [`manifest::Profile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProfileSetting {
    /// Defined bits.
    Exact,
    /// f32 in any order.
    F32,
    /// Factors of products in tf32.
    Tf32,
    /// Products in bf16.
    Bf16,
}

section! {
    /// As [`manifest::Profile`] with [`manifest::Tolerance`]: what `muster-verifier calibrate` writes.
    Arithmetic {
        /// How.
        profile: ProfileSetting = ProfileSetting::Exact,
        /// Largest honest deviation of each tensor group.
        tolerance: Vec<f32> = Vec::new(),
        /// Largest honest difference of a leaf's loss.
        loss_tolerance: f32 = 0.0,
        /// Rounds of training over which they were measured; 0 where nobody says.
        calibrated_rounds: u32 = 0,
    }
}

/// What `muster-verifier calibrate` writes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Calibration {
    arithmetic: Arithmetic,
}

section! {
    /// As [`manifest::Training`].
    Training {
        /// Rounds.
        rounds: u32 = 150,
        /// Leaves of a round.
        leaves: u32 = 16,
        /// Windows of a leaf.
        leaf_windows: u32 = 2,
        /// Negative log₂ of κ.
        grid_bits: u8 = 8,
        /// Whether activations are computed again.
        recompute: bool = false,
    }
}

/// As [`manifest::Schedule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleSetting {
    /// Stays.
    Constant,
    /// Falls linearly.
    Linear,
    /// Falls along half a cosine.
    Cosine,
}

/// As [`manifest::Method`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MethodSetting {
    /// Adam with decoupled weight decay.
    Adamw,
    /// Layer-wise scaled AdamW.
    Lamb,
}

section! {
    /// As [`manifest::Optimiser`].
    Optimiser {
        /// Which.
        method: MethodSetting = MethodSetting::Adamw,
        /// Peak learning rate.
        rate: f32 = 0.01,
        /// Last learning rate.
        minimum_rate: f32 = 0.0,
        /// Rounds of warm-up.
        warmup: u32 = 40,
        /// Shape after the warm-up.
        schedule: ScheduleSetting = ScheduleSetting::Linear,
        /// Decay of the first moment.
        beta1: f32 = 0.85,
        /// Decay of the second moment.
        beta2: f32 = 0.98,
        /// Added to the root of the second moment.
        epsilon: f32 = 1e-8,
        /// Weight decay.
        weight_decay: f32 = 0.05,
        /// Largest global norm.
        clip_norm: f32 = 1.0,
    }
}

/// As [`manifest::Rule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleSetting {
    /// The robust rule.
    CenteredClip,
    /// Weighted mean.
    Mean,
    /// Weighted coordinate median.
    Median,
    /// Weighted coordinate-wise trimmed mean.
    TrimmedMean,
    /// Weighted geometric median.
    GeometricMedian,
    /// The input nearest to its neighbours.
    Krum,
    /// The mean of the inputs nearest to their neighbours.
    MultiKrum,
    /// Centred clipping with an absolute radius.
    FixedRadiusClip,
}

section! {
    /// As [`manifest::Aggregation`].
    Aggregation {
        /// The rule.
        rule: RuleSetting = RuleSetting::CenteredClip,
        /// Clipping radius.
        radius: f32 = 1.25,
        /// Fixed-point iterations.
        iterations: u8 = 5,
        /// Largest share of one member.
        cap: f64 = 0.2,
        /// Share that is taken for attackers.
        assumed: f64 = 0.2,
        /// Whether inputs are mixed with those nearest to them.
        mixing: bool = false,
        /// Aggregators of a part, 1 or 2. Two must agree, and cost each member twice the upload.
        replicas: u8 = 1,
    }
}

section! {
    /// As [`manifest::Audit`].
    Audit {
        /// Probability of an audit.
        share: f64 = 0.5,
        /// Leaves of an audit.
        leaves: u8 = 1,
        /// Rounds from registration to use.
        coin_lead: u32 = 1,
        /// Rounds audited in full at the end.
        final_rounds: u32 = 4,
        /// Share of the passing verdicts that another verifier re-executes.
        recheck: f64 = 0.1,
        /// Share of the blocks that are reduced again.
        blocks: f64 = 0.05,
    }
}

section! {
    /// As [`manifest::Admission`].
    Admission {
        /// Nodes to wait for.
        start_nodes: u16 = 4,
        /// Verifiers to wait for.
        start_verifiers: u16 = 1,
        /// Most members ever.
        most_members: u16 = 256,
        /// Who needs no invitation.
        mode: ModeSetting = ModeSetting::Invited,
        /// Listed nodes that have weight from the beginning.
        founders: Vec<String> = Vec::new(),
        /// Other listed nodes.
        nodes: Vec<String> = Vec::new(),
        /// Listed verifiers.
        verifiers: Vec<String> = Vec::new(),
        /// Strangers admitted in a round.
        per_round: u16 = 16,
        /// Recomputed leaves after which a newcomer has weight.
        probation: u32 = 0,
        /// Verifiers that it takes.
        vouchers: u8 = 2,
        /// Members that a member may bring in.
        member_invites: u16 = 0,
        /// Members' invitations, one below the other.
        depth: u8 = 3,
        /// Probability of an audit of a newcomer.
        newcomer_share: f64 = 0.5,
        /// Recomputed leaves after which it halves.
        halving: u32 = 100,
    }
}

/// As [`manifest::Mode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModeSetting {
    /// Everyone needs an invitation.
    Invited,
    /// Those that are listed need none.
    Listed,
    /// Nobody needs one.
    Open,
}

section! {
    /// As [`manifest::Timers`], in seconds.
    Timers {
        /// For commitments.
        commit: f64 = 30.0,
        /// For delivered parts.
        part: f64 = 30.0,
        /// For aggregated parts.
        result: f64 = 30.0,
        /// For an audited node's answers, and for what a verifier owes.
        audit: f64 = 30.0,
        /// For verdicts after the last round.
        final_audit: f64 = 60.0,
    }
}

section! {
    /// As [`manifest::Retention`].
    Retention {
        /// Contributions.
        contributions: u32 = 16,
        /// States.
        states: u32 = 16,
    }
}

section! {
    /// As [`manifest::Rollback`].
    Rollback {
        /// Harm beyond which the state goes back; 0 for never.
        limit: f32 = 0.0,
        /// Rounds back at most.
        most_rounds: u32 = 16,
        /// Rounds between two times at least.
        spacing: u32 = 100,
    }
}

/// Reads a file's text; `path` is only for the errors.
fn parse<T: for<'a> Deserialize<'a>>(path: &Path, text: &str) -> Outcome<T> {
    toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let number = before.matches('\n').count();
        let line = text.lines().nth(number).unwrap_or_default();
        let field = line.split_once('=').map_or(line, |(field, _)| field).trim();
        Failure::usage(format!("{} line {}, {field}: {}", path.display(), number + 1, error.message()))
    })
}

impl Settings {
    /// Reads a file's text; `path` is only for the errors.
    ///
    /// # Errors
    /// [`Failure`] naming file, line, field and rule.
    pub fn parse(path: &Path, text: &str) -> Outcome<Self> {
        parse(path, text)
    }

    /// Takes the arithmetic that a calibration found; gives the settings' text with it in the place of what that said.
    ///
    /// # Errors
    /// [`Failure`] naming the file: it is no calibration, or one of a model with other tensor groups.
    pub fn calibrate(&mut self, text: &str, path: &Path, calibration: &str) -> Outcome<String> {
        let Calibration { arithmetic } = parse(path, calibration)?;
        let in_file = |why: String| Failure::usage(format!("{}: {why}", path.display()));
        let model = self.model.checked().map_err(|misuse| in_file(misuse.to_string()))?;
        model.check().map_err(|misuse| in_file(misuse.to_string()))?;
        let (found, groups) = (arithmetic.tolerance.len(), Layout::of(&model).groups().len());
        if found != groups {
            return Err(in_file(format!(
                "arithmetic.tolerance has {found} values, and this model {groups} tensor groups: calibrate this one"
            )));
        }
        self.arithmetic = arithmetic;
        let mut within = false;
        let others = text.lines().filter(|line| {
            let line = line.trim_start();
            within = if line.starts_with('[') { line.starts_with("[arithmetic]") } else { within };
            !within
        });
        let others: Vec<&str> = others.collect();
        let text = format!("{}\n\n{calibration}", others.join("\n"));
        match Self::parse(path, &text) {
            Ok(settings) if settings.arithmetic == self.arithmetic => Ok(text),
            _ => Err(in_file(
                "does not fit the settings: write their arithmetic as a section [arithmetic]".into(),
            )),
        }
    }

    /// Whether tolerances were measured over enough rounds of training for this run; where nobody says over how many, its
    /// author answers for them.
    ///
    /// # Errors
    /// [`Misuse`] with what to do about it.
    pub fn measured_for_long(&self) -> Result<(), Misuse> {
        let (rounds, measured) = (self.training.rounds, self.arithmetic.calibrated_rounds);
        if measured == 0 || rounds <= measured.saturating_mul(BEYOND) {
            return Ok(());
        }
        Err(Misuse(format!(
            "training.rounds is {rounds}, and tolerances were measured over {measured}: honest machines drift apart as training \
             goes on, and one that is too far is banned. Train {} rounds at most, or calibrate with --rounds {} or more",
            measured.saturating_mul(BEYOND),
            rounds.div_ceil(BEYOND)
        )))
    }

    /// The manifest of a run with these settings.
    ///
    /// # Errors
    /// [`Misuse`] naming field and rule.
    pub fn manifest(&self, makers: &Makers, data: Data) -> Result<Manifest, Misuse> {
        let manifest = Manifest {
            version: VERSION,
            name: Text::new(self.name.clone()).map_err(|misuse| Misuse(format!("name: {misuse}")))?,
            organiser: makers.organiser,
            steward: makers.steward,
            nonce: makers.nonce,
            model: self.model.checked()?,
            profile: self.arithmetic.profile.plain(),
            tolerance: self.arithmetic.tolerance()?,
            data,
            training: self.training.plain(),
            optimiser: self.optimiser.checked()?,
            aggregation: self.aggregation.checked()?,
            audit: self.audit.checked()?,
            admission: self.admission.checked()?,
            timers: self.timers.checked()?,
            retention: self.retention.plain(),
            rollback: self.rollback.checked()?,
            delay: 0,
            exchange: 0,
            groups: 0,
        };
        manifest.check()?;
        Ok(manifest)
    }
}

impl Model {
    pub(crate) fn checked(&self) -> Result<manifest::Model, Misuse> {
        Ok(manifest::Model {
            vocabulary: self.vocabulary,
            width: self.width,
            layers: self.layers,
            heads: self.heads,
            hidden: self.hidden,
            sequence: self.sequence,
            norm_epsilon: real("model.norm_epsilon", self.norm_epsilon)?,
            initial_scale: real("model.initial_scale", self.initial_scale)?,
            family: match self.family {
                FamilySetting::Decoder => manifest::Family::Decoder(manifest::Decoder {
                    key_value_heads: self.key_value_heads,
                    tied: self.tied,
                    rope_base: real("model.rope_base", self.rope_base)?,
                }),
                FamilySetting::Albert => manifest::Family::Albert(manifest::Albert {
                    embedding: self.embedding,
                    masked_ppm: millionths("model.masked", self.masked)?,
                    mask_token: self.mask_token,
                }),
            },
        })
    }
}

impl ProfileSetting {
    fn plain(self) -> manifest::Profile {
        match self {
            Self::Exact => manifest::Profile::Exact,
            Self::F32 => manifest::Profile::F32,
            Self::Tf32 => manifest::Profile::Tf32,
            Self::Bf16 => manifest::Profile::Bf16,
        }
    }
}

impl Arithmetic {
    fn tolerance(&self) -> Result<manifest::Tolerance, Misuse> {
        let groups: Result<Vec<Real>, Misuse> =
            self.tolerance.iter().map(|bound| Real::new(*bound)).collect();
        let groups = groups.and_then(List::new);
        let groups = groups.map_err(|misuse| Misuse(format!("arithmetic.tolerance: {misuse}")))?;
        let loss = Real::new(self.loss_tolerance)
            .map_err(|misuse| Misuse(format!("arithmetic.loss_tolerance: {misuse}")))?;
        Ok(manifest::Tolerance { groups, loss })
    }
}

impl Training {
    fn plain(&self) -> manifest::Training {
        let Self { rounds, leaves, leaf_windows, grid_bits, recompute } = *self;
        manifest::Training { rounds, leaves, leaf_windows, grid_bits, recompute }
    }
}

impl Optimiser {
    fn checked(&self) -> Result<manifest::Optimiser, Misuse> {
        Ok(manifest::Optimiser {
            method: match self.method {
                MethodSetting::Adamw => manifest::Method::AdamW,
                MethodSetting::Lamb => manifest::Method::Lamb,
            },
            rate: real("optimiser.rate", self.rate)?,
            minimum_rate: real("optimiser.minimum_rate", self.minimum_rate)?,
            warmup: self.warmup,
            schedule: match self.schedule {
                ScheduleSetting::Constant => manifest::Schedule::Constant,
                ScheduleSetting::Linear => manifest::Schedule::Linear,
                ScheduleSetting::Cosine => manifest::Schedule::Cosine,
            },
            beta1: real("optimiser.beta1", self.beta1)?,
            beta2: real("optimiser.beta2", self.beta2)?,
            epsilon: real("optimiser.epsilon", self.epsilon)?,
            weight_decay: real("optimiser.weight_decay", self.weight_decay)?,
            clip_norm: real("optimiser.clip_norm", self.clip_norm)?,
        })
    }
}

impl Aggregation {
    fn checked(&self) -> Result<manifest::Aggregation, Misuse> {
        Ok(manifest::Aggregation {
            rule: match self.rule {
                RuleSetting::CenteredClip => manifest::Rule::CenteredClip,
                RuleSetting::Mean => manifest::Rule::Mean,
                RuleSetting::Median => manifest::Rule::Median,
                RuleSetting::TrimmedMean => manifest::Rule::TrimmedMean,
                RuleSetting::GeometricMedian => manifest::Rule::GeometricMedian,
                RuleSetting::Krum => manifest::Rule::Krum,
                RuleSetting::MultiKrum => manifest::Rule::MultiKrum,
                RuleSetting::FixedRadiusClip => manifest::Rule::FixedRadiusClip,
            },
            radius: real("aggregation.radius", self.radius)?,
            iterations: self.iterations,
            cap_ppm: millionths("aggregation.cap", self.cap)?,
            assumed_ppm: millionths("aggregation.assumed", self.assumed)?,
            mixing: self.mixing,
            replicas: self.replicas,
        })
    }
}

impl Audit {
    fn checked(&self) -> Result<manifest::Audit, Misuse> {
        let Self { leaves, coin_lead, final_rounds, .. } = *self;
        Ok(manifest::Audit {
            share_ppm: millionths("audit.share", self.share)?,
            leaves,
            coin_lead,
            final_rounds,
            recheck_ppm: millionths("audit.recheck", self.recheck)?,
            blocks_ppm: millionths("audit.blocks", self.blocks)?,
        })
    }
}

impl Admission {
    fn checked(&self) -> Result<manifest::Admission, Misuse> {
        let listed = manifest::Listed {
            founders: keys("admission.founders", &self.founders)?,
            nodes: keys("admission.nodes", &self.nodes)?,
            verifiers: keys("admission.verifiers", &self.verifiers)?,
        };
        let keys = listed.founders.len() + listed.nodes.len() + listed.verifiers.len();
        if keys > 0 && self.mode != ModeSetting::Listed {
            return Err(Misuse("admission.mode must be \"listed\" where keys are listed".into()));
        }
        Ok(manifest::Admission {
            start_nodes: self.start_nodes,
            start_verifiers: self.start_verifiers,
            most_members: self.most_members,
            mode: match self.mode {
                ModeSetting::Invited => manifest::Mode::Invited,
                ModeSetting::Listed => manifest::Mode::Listed(listed),
                ModeSetting::Open => manifest::Mode::Open,
            },
            per_round: self.per_round,
            probation: self.probation,
            vouchers: self.vouchers,
            member_invites: self.member_invites,
            depth: self.depth,
            newcomer_ppm: millionths("admission.newcomer_share", self.newcomer_share)?,
            halving: self.halving,
        })
    }
}

impl Timers {
    fn checked(&self) -> Result<manifest::Timers, Misuse> {
        Ok(manifest::Timers {
            commit: milliseconds("timers.commit", self.commit)?,
            part: milliseconds("timers.part", self.part)?,
            result: milliseconds("timers.result", self.result)?,
            audit: milliseconds("timers.audit", self.audit)?,
            final_audit: milliseconds("timers.final_audit", self.final_audit)?,
        })
    }
}

impl Retention {
    fn plain(&self) -> manifest::Retention {
        let Self { contributions, states } = *self;
        manifest::Retention { contributions, states }
    }
}

fn keys(field: &str, list: &[String]) -> Result<List<MemberId, { limits::LISTED }>, Misuse> {
    let key = |text: &String| {
        let wrong = || Misuse(format!("{field}: {text:?} is no member id (`muster id` prints one)"));
        unhex(text).map(MemberId).ok_or_else(wrong)
    };
    let keys: Result<Vec<MemberId>, Misuse> = list.iter().map(key).collect();
    List::new(keys?).map_err(|misuse| Misuse(format!("{field}: {misuse}")))
}

impl Rollback {
    fn checked(&self) -> Result<manifest::Rollback, Misuse> {
        let Self { limit, most_rounds, spacing } = *self;
        Ok(manifest::Rollback { limit: real("rollback.limit", limit)?, most_rounds, spacing })
    }
}

fn real(field: &str, value: f32) -> Result<Real, Misuse> {
    Real::new(value).map_err(|misuse| Misuse(format!("{field}: {misuse}")))
}

fn millionths(field: &str, share: f64) -> Result<u32, Misuse> {
    if !(0.0..=1.0).contains(&share) {
        return Err(Misuse(format!("{field} must lie between 0 and 1")));
    }
    Ok((share * 1e6).round() as u32)
}

fn milliseconds(field: &str, seconds: f64) -> Result<u32, Misuse> {
    if !(0.001..=1e6).contains(&seconds) {
        return Err(Misuse(format!("{field} must lie between 0.001 and 1000000 seconds")));
    }
    Ok((seconds * 1e3).round() as u32)
}

#[cfg(test)]
mod tests {
    use muster_core::ids::Digest;

    use super::*;

    fn data() -> Data {
        Data {
            root: Digest([1; 32]),
            bytes: 1 << 20,
            held_out_root: Digest([2; 32]),
            held_out_bytes: 1 << 16,
            tokeniser: manifest::Tokeniser::Bytes,
            start: manifest::Start::Drawn,
        }
    }

    fn makers() -> Makers {
        Makers { organiser: MemberId([1; 32]), steward: MemberId([2; 32]), nonce: [3; 16] }
    }

    fn refused(text: &str) -> String {
        let parsed = Settings::parse(Path::new("run.toml"), text);
        let manifest = parsed.and_then(|settings| Ok(settings.manifest(&makers(), data())?));
        let failure = manifest.unwrap_err();
        assert_eq!(failure.exit, crate::exit::Exit::Usage);
        failure.message
    }

    #[test]
    fn the_template_shows_every_setting_at_its_default() {
        let settings = Settings::parse(Path::new("run.toml"), TEMPLATE).unwrap();
        assert_eq!(settings, Settings::default());
        let table: toml::Table = TEMPLATE.parse().unwrap();
        for section in table.values().filter_map(toml::Value::as_table) {
            for key in section.keys() {
                let lines = TEMPLATE.lines().filter(|line| line.starts_with(&format!("{key} = ")));
                assert!(lines.count() > 0, "{key}");
            }
        }
        // Every field that exists is in the template: without it, the file's text would not name it.
        let shown = format!("{settings:?}");
        let fields = shown.split([' ', '{', '}', ',']).filter_map(|word| word.strip_suffix(':'));
        for field in fields {
            let lines = TEMPLATE.lines();
            let named = lines.into_iter().any(|line| {
                line.starts_with(&format!("{field} =")) || line.starts_with(&format!("[{field}]"))
            });
            assert!(named, "run.toml does not show {field}");
        }
    }

    #[test]
    fn an_empty_file_is_a_run() {
        let manifest =
            Settings::parse(Path::new("run.toml"), "").unwrap().manifest(&makers(), data()).unwrap();
        assert_eq!(manifest.timers.commit, 30_000);
        assert_eq!(manifest.audit.share_ppm, 500_000);
        assert_eq!(manifest.training.leaves * manifest.training.leaf_windows * manifest.model.sequence, 4096);
    }

    #[test]
    fn committed_files_have_the_length_that_the_model_and_the_limits_say() {
        let settings = Settings::default();
        let with = |change: &dyn Fn(&mut Data)| {
            let mut data = data();
            change(&mut data);
            settings.manifest(&makers(), data)
        };
        let parameters = with(&|_| ()).unwrap().model.parameters();
        let given = |bytes| {
            let start = manifest::Start::Given(manifest::CommittedFile { root: Digest([3; 32]), bytes });
            with(&|data| data.start = start.clone())
        };
        // DATA-6: four bytes for each parameter, no more and no fewer.
        assert_eq!(given(4 * parameters).unwrap().data.all_bytes(), (1 << 20) + (1 << 16) + 4 * parameters);
        for bytes in [0, 4 * parameters - 4, 4 * parameters + 1, u64::MAX] {
            let misuse = given(bytes).unwrap_err().to_string();
            assert!(misuse.contains("data.start.bytes must be four for each parameter"), "{misuse}");
        }
        let tokeniser = |bytes| {
            let file = manifest::TokeniserFile { digest: Digest([4; 32]), bytes, tokens: 256 };
            with(&|data| data.tokeniser = manifest::Tokeniser::File(file.clone()))
        };
        // DATA-4: a tokeniser's file has 1 to 2^26 bytes.
        assert!(tokeniser(1).is_ok() && tokeniser(64 << 20).is_ok());
        assert!(tokeniser(0).is_err() && tokeniser((64 << 20) + 1).is_err());
        assert!(with(&|data| data.held_out_bytes = (1 << 40) + 1).is_err());
    }

    #[test]
    fn errors_name_file_field_and_rule() {
        let unknown = refused("[model]\nwidht = 3\n");
        assert!(unknown.contains("run.toml line 2, widht: unknown field"), "{unknown}");
        let mistyped = refused("[training]\n\nrounds = \"many\"\n");
        assert!(mistyped.contains("run.toml line 3, rounds: invalid type"), "{mistyped}");
        assert!(refused("[model]\nheads = 3\n").contains("model.heads must divide model.width"));
        assert!(refused("[audit]\nshare = 1.5\n").contains("audit.share must lie between 0 and 1"));
        assert!(refused("[aggregation]\nassumed = 0.5\n").contains("aggregation.assumed_ppm must be below"));
        assert!(refused("[aggregation]\nrule = \"bulyan\"\n").contains("multi-krum"));
        assert!(refused("[timers]\naudit = 0\n").contains("timers.audit must lie"));
        assert!(refused("[optimiser]\nrate = nan\n").contains("optimiser.rate"));
        assert!(refused("name = \"a\\u0007b\"\n").contains("name: a control character"));
        assert!(refused("[model]\nvocabulary = 100\n").contains("model.vocabulary is 100, but"));
        assert!(refused("[model\n").contains("run.toml line 1"));
        let open = refused("[admission]\nmode = \"open\"\n");
        assert!(open.contains("admission.probation must be positive in open mode"), "{open}");
        assert!(refused("[admission]\nnodes = [\"ab\"]\n").contains("is no member id"));
        let key = "ab".repeat(32);
        let unlisted = refused(&format!("[admission]\nfounders = [\"{key}\"]\n"));
        assert!(unlisted.contains("admission.mode must be"), "{unlisted}");
        let twice = format!("[admission]\nmode = \"listed\"\nfounders = [\"{key}\"]\nnodes = [\"{key}\"]\n");
        assert!(refused(&twice).contains("lists a key twice"));
        let unaudited = "[audit]\nshare = 0.0\n[admission]\nprobation = 9\nnewcomer_share = 0.0\n";
        assert!(refused(unaudited).contains("never ends when nobody is audited"));
    }
}
