//! The manifest: everything that members of a run agree on before it starts. Its hash is the run id.

#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
mod rules;

use borsh::{BorshDeserialize, BorshSerialize};

use crate::codec::{List, Real, Text, encode};
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
    /// Huber's M-estimator on standardised residuals (AGG-3 to AGG-7).
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
        pub share_ppm: u32,
        /// Leaves drawn in one audit, at most all.
        pub leaves: u8,
        /// A coin tree serves rounds this many after its registration, and later ones.
        pub coin_lead: u32,
        /// Last rounds of the run in which every contribution is audited.
        pub final_rounds: u32,
        /// Share of the passing verdicts that another verifier re-executes, in parts per million.
        pub recheck_ppm: u32,
        /// Probability that a block of a round is reduced again by a verifier, in parts per million.
        pub blocks_ppm: u32,
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

    /// Windows that the training text offers (DATA-3): window `w` holds the tokens `w·sequence ..= (w+1)·sequence`.
    pub fn windows(&self) -> u64 {
        self.data.tokens().saturating_sub(1) / u64::from(self.model.sequence.max(1))
    }

    /// Rounds after which the run ends, however many of them were lost to rollbacks.
    pub fn most_rounds(&self) -> u32 {
        let rounds = self.training.rounds;
        if self.rollback.is_on() { rounds.saturating_mul(2) } else { rounds }
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

impl Albert {
    /// Positions of a window that are predicted, at least one.
    pub fn masked(&self, sequence: u32) -> u32 {
        ((u64::from(sequence) * u64::from(self.masked_ppm) / 1_000_000) as u32).clamp(1, sequence.max(1))
    }
}
