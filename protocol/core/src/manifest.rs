//! The manifest: everything that members of a run agree on before it starts. Its hash is the run id.

use borsh::{BorshDeserialize, BorshSerialize};

use crate::codec::{Real, Text, encode};
use crate::error::Misuse;
use crate::hash::{Domain, hash_of};
use crate::ids::{Digest, MemberId, RunId};
use crate::{limits, wire};

/// Version of the protocol that this crate speaks.
pub const VERSION: u16 = 1;

wire! {
    /// The agreement of one run.
    pub struct Manifest {
        /// Protocol version: [`VERSION`].
        pub version: u16,
        /// A name for people.
        pub name: Text<64>,
        /// Who signs invitations.
        pub organiser: MemberId,
        /// Who seals records.
        pub steward: MemberId,
        /// Makes two runs of equal settings differ.
        pub nonce: [u8; 16],
        /// What is trained.
        pub model: Model,
        /// How a leaf gradient is computed.
        pub profile: Profile,
        /// What it is trained on.
        pub data: Data,
        /// How much, in what pieces.
        pub training: Training,
        /// How an aggregate changes the state.
        pub optimiser: Optimiser,
        /// How contributions are combined.
        pub aggregation: Aggregation,
        /// How they are inspected.
        pub audit: Audit,
        /// Who may come, and when it starts.
        pub admission: Admission,
        /// How long the steward waits.
        pub timers: Timers,
        /// How long things are kept.
        pub retention: Retention,
        /// Reserved: rounds between a gradient's state and its use. 0.
        pub delay: u8,
        /// Reserved: kind of exchange. 0, one all-reduce.
        pub exchange: u8,
        /// Reserved: groups of members. 0, one group.
        pub groups: u8,
    }
}

wire! {
    /// A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU; no biases.
    pub struct Model {
        /// Token kinds.
        pub vocabulary: u32,
        /// Width of the residual stream.
        pub width: u32,
        /// Layers.
        pub layers: u32,
        /// Query heads; divides `width`.
        pub heads: u32,
        /// Key and value heads; divides `heads`.
        pub key_value_heads: u32,
        /// Width inside the feed-forward.
        pub hidden: u32,
        /// Tokens of a window.
        pub sequence: u32,
        /// Whether the head shares the embedding.
        pub tied: bool,
        /// Base of the rotary frequencies.
        pub rope_base: Real,
        /// ε of RMSNorm.
        pub norm_epsilon: Real,
        /// Standard deviation of the initial matrices.
        pub initial_scale: Real,
    }
}

/// How leaf gradients are computed and compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
#[borsh(use_discriminant = false)]
pub enum Profile {
    /// Defined bits on any processor; audits are equalities.
    Exact,
}

wire! {
    /// The committed text.
    pub struct Data {
        /// Merkle root over chunks of [`limits::DATA_CHUNK_BYTES`] of the training bytes.
        pub root: Digest,
        /// Training bytes.
        pub bytes: u64,
        /// Merkle root over the held-out bytes.
        pub held_out_root: Digest,
        /// Held-out bytes.
        pub held_out_bytes: u64,
    }
}

wire! {
    /// Amount and grain of the work.
    pub struct Training {
        /// Rounds to train.
        pub rounds: u32,
        /// Leaves of a round, over all members.
        pub leaves: u32,
        /// Windows of a leaf.
        pub leaf_windows: u32,
        /// Negative log₂ of κ: a grid step is 2^−`grid_bits` of the last aggregate's rms.
        pub grid_bits: u8,
    }
}

/// How the learning rate goes down after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
#[borsh(use_discriminant = false)]
pub enum Schedule {
    /// Stays.
    Constant,
    /// Falls linearly to the minimum in the last round.
    Linear,
    /// Falls along half a cosine to the minimum in the last round.
    Cosine,
}

wire! {
    /// AdamW with decoupled weight decay (Loshchilov & Hutter 2019), gradient clipped by global norm.
    pub struct Optimiser {
        /// Peak learning rate.
        pub rate: Real,
        /// Last learning rate.
        pub minimum_rate: Real,
        /// Rounds of linear warm-up.
        pub warmup: u32,
        /// Shape after the warm-up.
        pub schedule: Schedule,
        /// Decay of the first moment.
        pub beta1: Real,
        /// Decay of the second moment.
        pub beta2: Real,
        /// Added to the root of the second moment.
        pub epsilon: Real,
        /// Weight decay of matrices; norms have none.
        pub weight_decay: Real,
        /// Largest global norm of the gradient; 0 turns clipping off.
        pub clip_norm: Real,
    }
}

/// A rule that combines the members' vectors of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
#[borsh(use_discriminant = false)]
pub enum Rule {
    /// Huber's M-estimator on standardised residuals: DESIGN §3.
    CenteredClip,
    /// Weighted mean: no robustness, for comparison.
    Mean,
    /// Weighted coordinate median, for comparison.
    Median,
}

wire! {
    /// How contributions are combined.
    pub struct Aggregation {
        /// The rule.
        pub rule: Rule,
        /// c: clipping radius in units of the median standardised residual.
        pub radius: Real,
        /// Fixed-point iterations.
        pub iterations: u8,
        /// Largest share of the weight of one member, in parts per million.
        pub cap_ppm: u32,
    }
}

wire! {
    /// How contributions are inspected.
    pub struct Audit {
        /// Probability that a verifier audits a node's round, in parts per million.
        pub node_ppm: u32,
        /// Leaves drawn in one audit, at most all.
        pub leaves: u8,
        /// A coin tree serves rounds this many after its registration, and later ones.
        pub coin_lead: u32,
        /// Last rounds of the run in which every contribution is audited.
        pub final_rounds: u32,
    }
}

wire! {
    /// Who may come, and when the run starts.
    pub struct Admission {
        /// Nodes to wait for.
        pub start_nodes: u16,
        /// Verifiers to wait for.
        pub start_verifiers: u16,
        /// Most members ever.
        pub most_members: u16,
    }
}

wire! {
    /// The steward's patience, in milliseconds since the sealed record that opened the phase.
    pub struct Timers {
        /// For commitments.
        pub commit: u32,
        /// For delivered parts.
        pub part: u32,
        /// For aggregated parts.
        pub result: u32,
        /// For an audited node's answers.
        pub audit: u32,
        /// For verdicts after the last round.
        pub final_audit: u32,
    }
}

wire! {
    /// How long things are kept, in rounds.
    pub struct Retention {
        /// Contributions with their aggregators and authors.
        pub contributions: u32,
        /// States for audits.
        pub states: u32,
    }
}

impl Manifest {
    /// The run id.
    pub fn run(&self) -> RunId {
        RunId(hash_of(Domain::RUN, self))
    }

    /// The canonical bytes.
    pub fn bytes(&self) -> Vec<u8> {
        encode(self)
    }

    /// Windows that the training text offers: window `w` holds the bytes `w·sequence ..= (w+1)·sequence`.
    pub fn windows(&self) -> u64 {
        self.data.bytes.saturating_sub(1) / u64::from(self.model.sequence.max(1))
    }

    /// Checks every rule that a manifest must keep.
    ///
    /// # Errors
    /// [`Misuse`] naming field and rule.
    pub fn check(&self) -> Result<(), Misuse> {
        require(self.version == VERSION, "version", "must be 1")?;
        self.model.check()?;
        self.check_training()?;
        self.check_audit()?;
        require(
            self.delay == 0 && self.exchange == 0 && self.groups == 0,
            "delay, exchange, groups",
            "are reserved and must be 0",
        )?;
        let windows = self.windows();
        require(windows >= 1, "data.bytes", "must hold at least one window of model.sequence tokens")?;
        require(self.data.bytes <= limits::DATA_BYTES, "data.bytes", "is over the limit of 1 TiB")
    }

    fn check_training(&self) -> Result<(), Misuse> {
        let training = &self.training;
        require((1..=limits::ROUNDS).contains(&training.rounds), "training.rounds", "must be 1 to 2^24")?;
        require((1..=1 << 16).contains(&training.leaves), "training.leaves", "must be 1 to 65536")?;
        let windows = 1..=limits::LEAF_WINDOWS;
        require(windows.contains(&training.leaf_windows), "training.leaf_windows", "must be 1 to 1024")?;
        require((1..=14).contains(&training.grid_bits), "training.grid_bits", "must be 1 to 14")?;
        let optimiser = &self.optimiser;
        let unit = 0.0..1.0;
        require(unit.contains(&optimiser.beta1.value()), "optimiser.beta1", "must lie in [0, 1)")?;
        require(unit.contains(&optimiser.beta2.value()), "optimiser.beta2", "must lie in [0, 1)")?;
        require(optimiser.epsilon.value() > 0.0, "optimiser.epsilon", "must be positive")?;
        require(optimiser.rate.value() > 0.0, "optimiser.rate", "must be positive")?;
        require(optimiser.minimum_rate.value() >= 0.0, "optimiser.minimum_rate", "must not be negative")?;
        require(optimiser.weight_decay.value() >= 0.0, "optimiser.weight_decay", "must not be negative")?;
        require(optimiser.clip_norm.value() >= 0.0, "optimiser.clip_norm", "must not be negative")?;
        let aggregation = &self.aggregation;
        require(aggregation.radius.value() > 0.0, "aggregation.radius", "must be positive")?;
        require(aggregation.iterations <= 64, "aggregation.iterations", "must be at most 64")?;
        require((1..=1_000_000).contains(&aggregation.cap_ppm), "aggregation.cap_ppm", "must be 1 to 1000000")
    }

    fn check_audit(&self) -> Result<(), Misuse> {
        let audit = &self.audit;
        require(audit.node_ppm <= 1_000_000, "audit.node_ppm", "must be at most 1000000")?;
        let leaves = 1..=limits::AUDIT_LEAVES;
        require(leaves.contains(&usize::from(audit.leaves)), "audit.leaves", "must be 1 to 32")?;
        require(
            audit.final_rounds <= self.retention.contributions,
            "audit.final_rounds",
            "must be within retention.contributions",
        )?;
        require(
            audit.final_rounds < self.retention.states,
            "audit.final_rounds",
            "must be below retention.states",
        )?;
        require(
            audit.coin_lead >= 1,
            "audit.coin_lead",
            "must be at least 1, or coins could be chosen after the freeze they are used with",
        )?;
        require(self.retention.states >= 2, "retention.states", "must be at least 2")?;
        require(self.admission.start_nodes >= 1, "admission.start_nodes", "must be at least 1")?;
        let most = self.admission.most_members;
        require(
            (1..=limits::MEMBERS).contains(&usize::from(most)),
            "admission.most_members",
            "must be 1 to 4096",
        )?;
        let timers = &self.timers;
        let positive = [timers.commit, timers.part, timers.result, timers.audit, timers.final_audit]
            .iter()
            .all(|t| *t > 0);
        require(positive, "timers", "must all be positive")
    }
}

impl Model {
    /// Checks the shape.
    ///
    /// # Errors
    /// [`Misuse`] naming field and rule.
    pub fn check(&self) -> Result<(), Misuse> {
        let positive = [
            self.vocabulary,
            self.width,
            self.layers,
            self.heads,
            self.key_value_heads,
            self.hidden,
            self.sequence,
        ];
        require(positive.iter().all(|n| *n > 0), "model", "must have no zero size")?;
        require(positive.iter().all(|n| *n <= 1 << 20), "model", "must have no size above 2^20")?;
        require(self.width.is_multiple_of(self.heads), "model.heads", "must divide model.width")?;
        require(
            (self.width / self.heads).is_multiple_of(2),
            "model.heads",
            "must leave an even head width for rotary positions",
        )?;
        require(
            self.heads.is_multiple_of(self.key_value_heads),
            "model.key_value_heads",
            "must divide model.heads",
        )?;
        require(self.sequence <= limits::SEQUENCE, "model.sequence", "is over the limit of 65536")?;
        require(
            self.vocabulary >= 2 && self.hidden >= 2,
            "model",
            "must have at least 2 tokens and 2 hidden units",
        )?;
        require(self.layers <= 256, "model.layers", "is over the limit of 256")?;
        require(self.rope_base.value() >= 1.0, "model.rope_base", "must be at least 1")?;
        require(self.norm_epsilon.value() > 0.0, "model.norm_epsilon", "must be positive")?;
        require(self.initial_scale.value() > 0.0, "model.initial_scale", "must be positive")?;
        require(self.parameters() <= limits::PARAMETERS, "model", "has more than 2^33 parameters")
    }

    /// Parameters in all.
    pub fn parameters(&self) -> u64 {
        let [width, hidden] = [u64::from(self.width), u64::from(self.hidden)];
        let key_value = width / u64::from(self.heads.max(1)) * u64::from(self.key_value_heads);
        let layer = 2 * width + 2 * width * width + 2 * width * key_value + 3 * width * hidden;
        let embeddings = if self.tied { 1 } else { 2 };
        u64::from(self.vocabulary) * width * embeddings + u64::from(self.layers) * layer + width
    }
}

fn require(holds: bool, field: &str, rule: &str) -> Result<(), Misuse> {
    if holds { Ok(()) } else { Err(Misuse(format!("{field} {rule}"))) }
}
