//! The manifest: everything that members of a run agree on before it starts. Its hash is the run id.

use std::collections::BTreeSet;

use borsh::{BorshDeserialize, BorshSerialize};

use crate::codec::{List, Real, Text, encode};
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
        /// How far two honest ones may be apart.
        pub tolerance: Tolerance,
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
        /// When the state goes back after a conviction.
        pub rollback: Rollback,
        /// Reserved: rounds between a gradient's state and its use. 0.
        pub delay: u8,
        /// Reserved: kind of exchange. 0, one all-reduce.
        pub exchange: u8,
        /// Reserved: groups of members. 0, one group.
        pub groups: u8,
    }
}

wire! {
    /// A transformer: what both families share, and which it is.
    pub struct Model {
        /// Token kinds.
        pub vocabulary: u32,
        /// Width of the residual stream.
        pub width: u32,
        /// Layers.
        pub layers: u32,
        /// Query heads; divides `width`.
        pub heads: u32,
        /// Width inside the feed-forward.
        pub hidden: u32,
        /// Tokens of a window.
        pub sequence: u32,
        /// ε of the norms.
        pub norm_epsilon: Real,
        /// Standard deviation of the initial matrices.
        pub initial_scale: Real,
        /// What kind of transformer.
        pub family: Family,
    }
}

wire! {
    /// The kinds of transformers.
    pub enum Family {
        /// Predicts the next token.
        Decoder(Decoder),
        /// Predicts masked tokens.
        Albert(Albert),
    }
}

wire! {
    /// A Llama-style decoder: RMSNorm, rotary positions, grouped-query causal attention, SwiGLU; no biases.
    pub struct Decoder {
        /// Key and value heads; divides `heads`.
        pub key_value_heads: u32,
        /// Whether the head shares the embedding.
        pub tied: bool,
        /// Base of the rotary frequencies.
        pub rope_base: Real,
    }
}

wire! {
    /// ALBERT (Lan et al. 2020), masked-language-modelling head only: one layer's parameters serve all layers,
    /// factorised embedding, learned positions, LayerNorm after each sum, attention in both directions, GELU.
    ///
    /// Key biases and token types are left out: the first have no gradient, the second repeat the positions.
    pub struct Albert {
        /// Width of the embedding.
        pub embedding: u32,
        /// Positions of a window whose tokens are to be predicted, in parts per million of `sequence`.
        pub masked_ppm: u32,
        /// The token that stands for a masked one.
        pub mask_token: u32,
    }
}

/// How leaf gradients are computed and compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
#[borsh(use_discriminant = false)]
pub enum Profile {
    /// Defined bits on any processor; audits are equalities.
    Exact,
    /// f32 throughout, in any order; audits have a tolerance.
    F32,
    /// Factors of products rounded to 10 bits of mantissa where the device has units for that, as the next one.
    Tf32,
    /// Factors and results of products, attention and the feed-forward's inner values in bf16; parameters, residual
    /// stream, norms and sums in f32.
    Bf16,
}

impl Profile {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
        }
    }
}

wire! {
    /// What a calibration found of honest leaves of one job (TOL-4): bounds that one in a thousand exceeds.
    pub struct Tolerance {
        /// Largest deviation of each tensor group, the last value for all that follow; none in profile exact.
        pub groups: List<Real, { limits::GROUPS }>,
        /// Largest difference of the mean loss, in nats per token; 0 in profile exact.
        pub loss: Real,
    }
}

impl Tolerance {
    /// Of profile exact.
    pub fn none() -> Self {
        Self { groups: List::default(), loss: Real::ZERO }
    }
}

wire! {
    /// The committed files: the text, and what else a newcomer fetches.
    pub struct Data {
        /// Merkle root over chunks of [`limits::DATA_CHUNK_BYTES`] of the training bytes.
        pub root: Digest,
        /// Training bytes.
        pub bytes: u64,
        /// Merkle root over the held-out bytes.
        pub held_out_root: Digest,
        /// Held-out bytes.
        pub held_out_bytes: u64,
        /// How the bytes are tokens.
        pub tokeniser: Tokeniser,
        /// The parameters before the first round.
        pub start: Start,
    }
}

/// A committed file of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
#[borsh(use_discriminant = false)]
pub enum DataFile {
    /// The training text.
    Training,
    /// The held-out text.
    HeldOut,
    /// The tokeniser, where tokens are not bytes.
    Tokeniser,
    /// The parameters, where they were given.
    Parameters,
}

wire! {
    /// Where the parameters before the first round come from.
    pub enum Start {
        /// Drawn by the manifest's hash.
        Drawn,
        /// Given: each parameter in the canonical layout as a little-endian `f32`, finite.
        Given(CommittedFile),
    }
}

wire! {
    /// A file that is too large for one hash: whoever fetches it has it in pieces.
    pub struct CommittedFile {
        /// Merkle root over chunks of [`limits::DATA_CHUNK_BYTES`].
        pub root: Digest,
        /// Its bytes.
        pub bytes: u64,
    }
}

wire! {
    /// How committed bytes are tokens.
    pub enum Tokeniser {
        /// Each byte is a token: 256 kinds.
        Bytes,
        /// Token numbers, little-endian, in as many bytes as [`Tokeniser::token_bytes`] says.
        File(TokeniserFile),
    }
}

wire! {
    /// A `tokenizer.json` of Hugging Face's format.
    pub struct TokeniserFile {
        /// [`crate::hash::Domain::TOKENISER`] of the file's bytes.
        pub digest: Digest,
        /// The file's bytes.
        pub bytes: u32,
        /// Token kinds that it knows.
        pub tokens: u32,
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
        /// Whether activations are computed again in the backward pass: less memory, more time, the same bits.
        pub recompute: bool,
    }
}

/// How an aggregate changes parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
#[borsh(use_discriminant = false)]
pub enum Method {
    /// Adam with decoupled weight decay (Loshchilov & Hutter 2019).
    AdamW,
    /// Layer-wise scaled AdamW for large batches (You et al. 2020).
    Lamb,
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
    /// AdamW or LAMB, on a gradient clipped by global norm.
    pub struct Optimiser {
        /// Which.
        pub method: Method,
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
    /// Weighted coordinate-wise trimmed mean, for comparison.
    TrimmedMean,
    /// Weighted geometric median, for comparison.
    GeometricMedian,
    /// The input nearest to its neighbours, for comparison.
    Krum,
    /// The mean of the inputs nearest to their neighbours, for comparison.
    MultiKrum,
    /// Centred clipping with one absolute radius, as published, for comparison.
    FixedRadiusClip,
}

wire! {
    /// How contributions are combined.
    pub struct Aggregation {
        /// The rule.
        pub rule: Rule,
        /// c: clipping radius in units of the median standardised residual. In grid units a leaf: the radius of
        /// [`Rule::FixedRadiusClip`], the least distance that [`Rule::GeometricMedian`] tells from 0.
        pub radius: Real,
        /// Fixed-point iterations.
        pub iterations: u8,
        /// Largest share of the weight of one member, in parts per million.
        pub cap_ppm: u32,
        /// Share of the inputs (of the weight, for [`Rule::TrimmedMean`]) that is taken for attackers, in parts per
        /// million. [`Rule::CenteredClip`], [`Rule::Mean`] and [`Rule::Median`] ask only if inputs are mixed.
        pub assumed_ppm: u32,
        /// Whether each input is first replaced by the mean of those nearest to it; for comparison.
        pub mixing: bool,
        /// Aggregators of a part: 1, or 2 whose digests must agree.
        pub replicas: u8,
    }
}

wire! {
    /// How contributions are inspected.
    pub struct Audit {
        /// Probability that a contribution is audited, in parts per million.
        pub node_ppm: u32,
        /// Leaves drawn in one audit, at most all.
        pub leaves: u8,
        /// A coin tree serves rounds this many after its registration, and later ones.
        pub coin_lead: u32,
        /// Last rounds of the run in which every contribution is audited.
        pub final_rounds: u32,
        /// Share of the passing verdicts that another verifier re-executes, in parts per million.
        pub recheck_ppm: u32,
        /// Probability that a block of a round is reduced again by a verifier, in parts per million.
        pub block_ppm: u32,
    }
}

wire! {
    /// Who may come, when the run starts, and what a newcomer weighs.
    pub struct Admission {
        /// Nodes of weight to wait for.
        pub start_nodes: u16,
        /// Verifiers to wait for.
        pub start_verifiers: u16,
        /// Most members ever.
        pub most_members: u16,
        /// Who needs no invitation.
        pub mode: Mode,
        /// Strangers admitted between two outcomes.
        pub per_round: u16,
        /// Recomputed leaves after which a newcomer has weight; 0, and everyone has.
        pub probation: u32,
        /// Verifiers that it takes to end a probation.
        pub vouchers: u8,
        /// Members that one member may bring in.
        pub member_invites: u16,
        /// Members' invitations, one below the other.
        pub depth: u8,
        /// Probability that a verifier audits a newcomer's round, in parts per million.
        pub newcomer_ppm: u32,
        /// Recomputed leaves after which that probability halves.
        pub halving: u32,
    }
}

wire! {
    /// Who may enrol without an invitation.
    pub enum Mode {
        /// Nobody.
        Invited,
        /// Those that the manifest lists.
        Listed(Listed),
        /// Everyone, as a node.
        Open,
    }
}

wire! {
    /// Keys that are known beforehand.
    pub struct Listed {
        /// Nodes that have weight from the beginning.
        pub founders: List<MemberId, { limits::LISTED }>,
        /// Other nodes.
        pub nodes: List<MemberId, { limits::LISTED }>,
        /// Verifiers.
        pub verifiers: List<MemberId, { limits::LISTED }>,
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
        /// For an audited node's answers, and for what a verifier owes.
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

wire! {
    /// When and how far the state goes back after a conviction.
    pub struct Rollback {
        /// Harm beyond which it does: relative movement of aggregates, summed over rounds. 0: never.
        pub limit: Real,
        /// Rounds that it goes back at most.
        pub most_rounds: u32,
        /// Rounds between two times at least.
        pub spacing: u32,
    }
}

impl Rollback {
    /// The state never goes back.
    pub fn never() -> Self {
        Self { limit: Real::ZERO, most_rounds: 0, spacing: 0 }
    }

    /// Whether the run ever goes back.
    pub fn is_on(&self) -> bool {
        self.limit.value() > 0.0
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

    /// Windows that the training text offers: window `w` holds the tokens `w·sequence ..= (w+1)·sequence`.
    pub fn windows(&self) -> u64 {
        self.data.tokens().saturating_sub(1) / u64::from(self.model.sequence.max(1))
    }

    /// Rounds after which the run ends, however many of them were lost to rollbacks.
    pub fn most_rounds(&self) -> u32 {
        let rounds = self.training.rounds;
        if self.rollback.is_on() { rounds.saturating_mul(2) } else { rounds }
    }

    /// Checks every rule that a manifest must keep.
    ///
    /// # Errors
    /// [`Misuse`] naming field and rule.
    pub fn check(&self) -> Result<(), Misuse> {
        require(self.version == VERSION, "version", "must be 1")?;
        self.model.check()?;
        self.data.check(&self.model)?;
        self.check_tolerance()?;
        self.check_training()?;
        self.check_audit()?;
        self.check_rollback()?;
        require(
            self.delay == 0 && self.exchange == 0 && self.groups == 0,
            "delay, exchange, groups",
            "are reserved and must be 0",
        )?;
        require(self.windows() >= 1, "data.bytes", "must hold at least one window of model.sequence tokens")
    }

    /// TOL-5.
    fn check_tolerance(&self) -> Result<(), Misuse> {
        let Tolerance { groups, loss } = &self.tolerance;
        if self.profile == Profile::Exact {
            let none = groups.is_empty() && *loss == Real::ZERO;
            return require(none, "tolerance", "is for other profiles than exact, where leaves are equal");
        }
        require(!groups.is_empty(), "tolerance.groups", "is what profiles other than exact need: calibrate")?;
        let sound = |bound: &Real| bound.value() > 0.0 && bound.value() <= 0.125;
        require(groups.iter().all(sound), "tolerance.groups", "must be above 0 and at most 0.125")?;
        require(sound(loss), "tolerance.loss", "must be above 0 and at most 0.125")
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
        require(
            (1..=1_000_000).contains(&aggregation.cap_ppm),
            "aggregation.cap_ppm",
            "must be 1 to 1000000",
        )?;
        require((1..=2).contains(&aggregation.replicas), "aggregation.replicas", "must be 1 or 2")?;
        require(
            aggregation.assumed_ppm < 500_000,
            "aggregation.assumed_ppm",
            "must be below 500000: no rule withstands a majority",
        )
    }

    fn check_rollback(&self) -> Result<(), Misuse> {
        let Rollback { limit, most_rounds, spacing } = &self.rollback;
        require(limit.value() >= 0.0, "rollback.limit", "must not be negative")?;
        let kept = self.retention.states.min(self.retention.contributions);
        let reach = !self.rollback.is_on() || (1..=kept).contains(most_rounds);
        require(
            reach,
            "rollback.most_rounds",
            "must be at least 1 and within retention.states and retention.contributions",
        )?;
        require(
            !self.rollback.is_on() || spacing > most_rounds,
            "rollback.spacing",
            "must be above rollback.most_rounds, or the run could go back for ever",
        )
    }

    fn check_audit(&self) -> Result<(), Misuse> {
        let audit = &self.audit;
        require(audit.node_ppm <= 1_000_000, "audit.node_ppm", "must be at most 1000000")?;
        require(audit.recheck_ppm <= 1_000_000, "audit.recheck_ppm", "must be at most 1000000")?;
        require(audit.block_ppm <= 1_000_000, "audit.block_ppm", "must be at most 1000000")?;
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
        self.admission.check(audit.node_ppm)?;
        let timers = &self.timers;
        let positive = [timers.commit, timers.part, timers.result, timers.audit, timers.final_audit]
            .iter()
            .all(|t| *t > 0);
        require(positive, "timers", "must all be positive")
    }
}

impl Admission {
    /// Everyone by the organiser's invitation, with weight from the beginning.
    pub fn closed(start_nodes: u16, start_verifiers: u16, most_members: u16) -> Self {
        Self {
            start_nodes,
            start_verifiers,
            most_members,
            mode: Mode::Invited,
            per_round: 1,
            probation: 0,
            vouchers: 1,
            member_invites: 0,
            depth: 0,
            newcomer_ppm: 0,
            halving: 1,
        }
    }

    fn check(&self, node_ppm: u32) -> Result<(), Misuse> {
        require(self.start_nodes >= 1, "admission.start_nodes", "must be at least 1")?;
        require(
            (1..=limits::MEMBERS).contains(&usize::from(self.most_members)),
            "admission.most_members",
            "must be 1 to 4096",
        )?;
        require(
            u32::from(self.start_nodes) + u32::from(self.start_verifiers) <= self.most_members.into(),
            "admission.most_members",
            "must be at least start_nodes and start_verifiers together, or the run never starts",
        )?;
        require(self.per_round >= 1, "admission.per_round", "must be at least 1")?;
        require(self.probation <= 1 << 24, "admission.probation", "must be at most 2^24")?;
        require((1..=16).contains(&self.vouchers), "admission.vouchers", "must be 1 to 16")?;
        let several = self.probation == 0 || self.vouchers >= 2;
        require(
            several,
            "admission.vouchers",
            "must be 2 at least: one lying verifier would end a probation",
        )?;
        require(self.depth <= limits::INVITATION_DEPTH, "admission.depth", "must be at most 16")?;
        require(self.newcomer_ppm <= 1_000_000, "admission.newcomer_ppm", "must be at most 1000000")?;
        require(self.halving >= 1, "admission.halving", "must be at least 1")?;
        require(
            self.probation == 0 || self.newcomer_ppm.max(node_ppm) > 0,
            "admission.probation",
            "never ends when nobody is audited: raise audit.share or admission.newcomer_share",
        )?;
        // STAND-7: in open mode nothing but probation prices a new identity.
        let priced = self.mode != Mode::Open || self.probation > 0;
        require(priced, "admission.probation", "must be positive in open mode")?;
        let Mode::Listed(listed) = &self.mode else { return Ok(()) };
        let keys = || listed.founders.iter().chain(&listed.nodes).chain(&listed.verifiers);
        let different: BTreeSet<&MemberId> = keys().collect();
        require(different.len() == keys().count(), "admission.mode", "lists a key twice")
    }
}

impl Data {
    /// Bytes of a token: [`Tokeniser::token_bytes`].
    pub fn token_bytes(&self) -> u64 {
        self.tokeniser.token_bytes()
    }

    /// Kinds of tokens that may occur.
    pub fn kinds(&self) -> u32 {
        match &self.tokeniser {
            Tokeniser::Bytes => 256,
            Tokeniser::File(file) => file.tokens,
        }
    }

    /// Training tokens.
    pub fn tokens(&self) -> u64 {
        self.bytes / self.token_bytes()
    }

    /// Bytes of a committed file; 0 where the run has none.
    pub fn file_bytes(&self, file: DataFile) -> u64 {
        match (file, &self.tokeniser, &self.start) {
            (DataFile::Training, ..) => self.bytes,
            (DataFile::HeldOut, ..) => self.held_out_bytes,
            (DataFile::Tokeniser, Tokeniser::File(file), _) => file.bytes.into(),
            (DataFile::Parameters, _, Start::Given(file)) => file.bytes,
            (DataFile::Tokeniser | DataFile::Parameters, ..) => 0,
        }
    }

    /// Bytes of all committed files.
    pub fn all_bytes(&self) -> u64 {
        DataFile::ALL.iter().fold(0, |all, file| all.saturating_add(self.file_bytes(*file)))
    }

    /// Checks sizes, and the vocabulary against the tokeniser's. Models pad theirs to round numbers: some more kinds
    /// are good, fewer or many more are another tokeniser's.
    fn check(&self, model: &Model) -> Result<(), Misuse> {
        let most = limits::DATA_BYTES;
        require(
            self.bytes <= most && self.held_out_bytes <= most,
            "data.bytes",
            "is over the limit of 1 TiB",
        )?;
        let whole = |bytes: u64| bytes.is_multiple_of(self.token_bytes());
        require(whole(self.bytes) && whole(self.held_out_bytes), "data.bytes", "must be whole tokens")?;
        let kinds = self.kinds();
        require((2..=1 << 20).contains(&kinds), "data.tokeniser", "must know 2 to 2^20 tokens")?;
        let matches = (kinds..=kinds + limits::PADDED_TOKENS).contains(&model.vocabulary);
        if !matches {
            return Err(Misuse(format!(
                "model.vocabulary is {}, but the text's tokens are of {kinds} kinds: it must be {kinds}, or up to \
                 {} more where a model pads it",
                model.vocabulary,
                limits::PADDED_TOKENS
            )));
        }
        if let Tokeniser::File(file) = &self.tokeniser {
            // DATA-4: a tokeniser's file is not empty, and within the limit.
            let fits = (1..=limits::TOKENISER_BYTES).contains(&file.bytes);
            require(fits, "data.tokeniser.bytes", "must be 1 to 64 MiB")?;
        }
        match &self.start {
            Start::Drawn => Ok(()),
            // DATA-6: a manifest whose file has another length than 4·d is refused.
            Start::Given(file) => require(
                file.bytes == 4 * model.parameters(),
                "data.start.bytes",
                "must be four for each parameter of the model",
            ),
        }
    }
}

impl Tokeniser {
    /// Bytes of a token: 1, or for token numbers 2 while they fit, else 4.
    pub fn token_bytes(&self) -> u64 {
        match self {
            Self::Bytes => 1,
            Self::File(file) if file.tokens <= 1 << 16 => 2,
            Self::File(_) => 4,
        }
    }
}

impl DataFile {
    /// All of them, in the order in which they are fetched.
    pub const ALL: [Self; 4] = [Self::Training, Self::HeldOut, Self::Tokeniser, Self::Parameters];
}

impl Model {
    /// Checks the shape.
    ///
    /// # Errors
    /// [`Misuse`] naming field and rule.
    pub fn check(&self) -> Result<(), Misuse> {
        let sizes = [
            ("model.vocabulary", self.vocabulary, 2),
            ("model.width", self.width, 1),
            ("model.layers", self.layers, 1),
            ("model.heads", self.heads, 1),
            ("model.hidden", self.hidden, 2),
            ("model.sequence", self.sequence, 1),
        ];
        for (field, size, least) in sizes {
            require(size >= least, field, &format!("must be at least {least}"))?;
            require(size <= 1 << 20, field, "is over the limit of 2^20")?;
        }
        require(self.width.is_multiple_of(self.heads), "model.heads", "must divide model.width")?;
        require(self.sequence <= limits::SEQUENCE, "model.sequence", "is over the limit of 65536")?;
        require(self.layers <= 256, "model.layers", "is over the limit of 256")?;
        require(self.norm_epsilon.value() > 0.0, "model.norm_epsilon", "must be positive")?;
        let scale = self.initial_scale.value();
        require(scale > 0.0 && scale <= 16.0, "model.initial_scale", "must be above 0 and at most 16")?;
        match &self.family {
            Family::Decoder(decoder) => decoder.check(self)?,
            Family::Albert(albert) => albert.check(self)?,
        }
        require(self.parameters() <= limits::PARAMETERS, "model", "has more than 2^33 parameters")
    }

    /// Parameters in all.
    pub fn parameters(&self) -> u64 {
        let [vocabulary, width, hidden] = [self.vocabulary, self.width, self.hidden].map(u64::from);
        match &self.family {
            Family::Decoder(decoder) => {
                let key_value = width / u64::from(self.heads.max(1)) * u64::from(decoder.key_value_heads);
                let layer = 2 * width + 2 * width * width + 2 * width * key_value + 3 * width * hidden;
                let embeddings = if decoder.tied { 1 } else { 2 };
                vocabulary * width * embeddings + u64::from(self.layers) * layer + width
            }
            Family::Albert(albert) => {
                let embedding = u64::from(albert.embedding);
                let embedded = (vocabulary + u64::from(self.sequence) + 2) * embedding;
                let mapped = width * embedding + width;
                let attention = 4 * width * width + 3 * width + 2 * width;
                let feed_forward = 2 * width * hidden + hidden + width + 2 * width;
                let predicted = width * embedding + 3 * embedding + vocabulary;
                embedded + mapped + attention + feed_forward + predicted
            }
        }
    }
}

impl Decoder {
    fn check(&self, model: &Model) -> Result<(), Misuse> {
        require(self.key_value_heads >= 1, "model.key_value_heads", "must be at least 1")?;
        require(
            model.heads.is_multiple_of(self.key_value_heads),
            "model.key_value_heads",
            "must divide model.heads",
        )?;
        require(
            (model.width / model.heads).is_multiple_of(2),
            "model.heads",
            "must leave an even head width for rotary positions",
        )?;
        require(self.rope_base.value() >= 1.0, "model.rope_base", "must be at least 1")
    }
}

impl Albert {
    /// Positions of a window that are predicted, at least one.
    pub fn masked(&self, sequence: u32) -> u32 {
        ((u64::from(sequence) * u64::from(self.masked_ppm) / 1_000_000) as u32).clamp(1, sequence.max(1))
    }

    fn check(&self, model: &Model) -> Result<(), Misuse> {
        require(
            (1..=1 << 20).contains(&self.embedding),
            "model.embedding",
            "must be at least 1 and at most 2^20",
        )?;
        require((1..=1_000_000).contains(&self.masked_ppm), "model.masked", "must lie in (0, 1]")?;
        require(self.mask_token < model.vocabulary, "model.mask_token", "must lie below model.vocabulary")
    }
}

fn require(holds: bool, field: &str, rule: &str) -> Result<(), Misuse> {
    if holds { Ok(()) } else { Err(Misuse(format!("{field} {rule}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(admission: &Admission) -> Option<String> {
        admission.check(0).err().map(|misuse| misuse.0)
    }

    #[test]
    fn a_run_that_never_starts_is_refused() {
        assert_eq!(refusal(&Admission::closed(3, 2, 5)), None);
        let why = refusal(&Admission::closed(3, 2, 4)).unwrap();
        assert!(why.starts_with("admission.most_members must be at least start_nodes"), "{why}");
        assert!(refusal(&Admission::closed(u16::MAX, u16::MAX, 4096)).is_some());
    }

    #[test]
    fn initial_parameters_are_of_a_size_to_train() {
        let real = |value| Real::new(value).unwrap();
        let decoder = Decoder { key_value_heads: 1, tied: true, rope_base: real(10_000.0) };
        let model = |scale| Model {
            vocabulary: 256,
            width: 4,
            layers: 1,
            heads: 1,
            hidden: 4,
            sequence: 4,
            norm_epsilon: real(1e-5),
            initial_scale: real(scale),
            family: Family::Decoder(decoder.clone()),
        };
        for scale in [1e-3, 1.0, 16.0] {
            model(scale).check().unwrap();
        }
        for scale in [0.0, -1.0, 16.1, 3e38] {
            let why = model(scale).check().unwrap_err().0;
            assert_eq!(why, "model.initial_scale must be above 0 and at most 16");
        }
    }
}
