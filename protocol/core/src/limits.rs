//! Every bound of the protocol, one constant per row of `spec/limits.md`.

/// Longest message on a channel, in bytes, before it is split into frames.
pub const MESSAGE_BYTES: usize = 4 << 20;
/// Longest request of whoever is no member, in bytes: a call about the longest text
pub const STRANGER_BYTES: usize = 320 << 10;
/// Longest certificate of a relay, in bytes.
pub const CERTIFICATE_BYTES: usize = 1_024;
/// Milliseconds after which a holder that has shown nothing is late, before the bytes are counted.
pub const SOON: u64 = 3_000;
/// Bytes a second that a slow line carries: a holder of so many bytes more is late so much later.
pub const SLOWEST: u64 = 1 << 20;
/// Holders of a contribution that are waited for, one after the other.
pub const HOLDERS: u64 = 4;
/// Longest bundle of one piece of evidence, in bytes.
pub const BUNDLE_BYTES: u64 = 64 << 20;
/// Bytes of the bundles that a steward keeps: beyond, the oldest make room.
pub const BUNDLES_BYTES: u64 = 1 << 30;
/// Longest Noise frame, in bytes, tag included.
pub const FRAME_BYTES: usize = 65_535;
/// Frames that one direction of a channel carries before the channel is replaced: AES-GCM stays far below its bound.
pub const CHANNEL_FRAMES: u64 = 1 << 24;
/// Largest gossiped message, in bytes; larger things travel by hash.
pub const GOSSIP_BYTES: usize = 32 << 10;
/// Members seated in one round.
pub const SEATS: usize = 256;
/// Members ever admitted to one run.
pub const MEMBERS: usize = 4096;
/// Parts of one round.
pub const PARTS: usize = 512;
/// The highest share class of a member (LEDGER-25): each is √2 times as fast as the one below it.
pub const SHARE_CLASS: u8 = 16;
/// The share class of a newcomer.
pub const SHARE_FIRST: u8 = 8;
/// Classes that a member falls at most in a round, for a part that it did not reduce or showed at less than half of the usual rate.
pub const SHARE_FALL: u8 = 2;
/// For so many times the aggregators the blocks of a round are divided where their classes differ.
pub const SHARE_PARTS: usize = 4;
/// Aggregators of a round of which classes count, at most: so many times [`SHARE_PARTS`] are [`SEATS`].
pub const SHARERS: usize = 64;
/// Rounds after which a member that has fallen, or has had no part, goes one class up.
pub const SHARE_ROUNDS: u32 = 32;
/// Milliseconds within which the values of a member's parts are there as early as any: shorter times tell nothing of its line.
pub const SHARE_TIME: u64 = 1_000;
/// Bytes of a round's contributions, four for each coefficient, up to which the steward stands in where no member can be dialled
/// (ROUND-39).
pub const STOOD_IN_BYTES: u64 = 4 << 30;
/// Receipts in one delivery: from two aggregators for each part.
pub const RECEIPTS: usize = 2 * PARTS;
/// Tensors of a model.
pub const TENSORS: usize = 16_384;
/// Experts of a layer's row.
pub const COLUMNS: u16 = 256;
/// Rows of experts.
pub const ROWS: u16 = 64;
/// Tokens before a window that give it its row.
pub const ROUTE_TOKENS: u16 = 4096;
/// Draws for a window of one row, for each row that there is.
pub const ROW_DRAWS: u32 = 64;
/// Shards of a state.
pub const SHARDS: usize = 65;
/// Coefficients of a block.
pub const BLOCK_COEFFICIENTS: usize = 65_536;
/// Coefficients of a Merkle chunk: 64 KiB of `i32`.
pub const CHUNK_COEFFICIENTS: usize = 16_384;
/// Coefficients of a pack: what one width holds (COMMIT-6).
pub const PACK_COEFFICIENTS: usize = 64;
/// Bytes of a packed chunk: 256 packs at 32 bits, each with its width.
pub const CHUNK_BYTES: usize = 65_792;
/// Coefficients of a model, of all its rows.
pub const PARAMETERS: u64 = 1 << 33;
/// Bytes of the file of given parameters.
pub const PARAMETER_BYTES: u64 = 4 * PARAMETERS;
/// Leaves that one member sums in one round.
pub const QUOTA: u32 = 256;
/// Segments of a contribution in a run of local updates.
pub const SEGMENTS: u32 = 64;
/// Local steps of one segment.
pub const SEGMENT_STEPS: u32 = 1024;
/// Windows of one leaf.
pub const LEAF_WINDOWS: u32 = 1024;
/// Tokens of one window, without the target that follows the last one.
pub const SEQUENCE: u32 = 1 << 16;
/// Token kinds by which a model's vocabulary may exceed its tokeniser's.
pub const PADDED_TOKENS: u32 = 1023;
/// Saturation of a grid coefficient of one leaf, symmetric.
pub const GRID_LIMIT: i32 = 1 << 22;
/// Bits of a coefficient of local updates beyond `grid_bits`, without its sign: 16 to 32 times what is usual.
pub const LOCAL_BITS: u8 = 5;
/// Tensor groups by which leaves are compared in profiles with tolerance.
pub const GROUPS: usize = 16;
/// Least coefficients of a group, where the model has that many.
pub const GROUP_COEFFICIENTS: usize = 10_000;
/// Projections of a group.
// 64 suffice because the beacon is a coin registered before the commitment and shown after it: nobody can grind it.
pub const PROJECTIONS: usize = 64;
/// Bytes of one chunk of a dataset.
pub const DATA_CHUNK_BYTES: usize = 4096;
/// Chunks of one page of a dataset, which is checked by itself.
pub const PAGE_CHUNKS: u64 = 1 << 4;
/// Levels of a Merkle tree between the leaves and the nodes of its pages.
pub const PAGE_LEVELS: u32 = 4;
/// Bytes of a dataset.
pub const DATA_BYTES: u64 = 1 << 40;
/// Bytes of a tokeniser's file.
pub const TOKENISER_BYTES: u32 = 64 << 20;
/// Characters of a name or an address, in bytes of UTF-8.
pub const TEXT_BYTES: usize = 256;
/// Bytes of the name that a member gives itself.
pub const NAME_BYTES: usize = 32;
/// Addresses of one member.
pub const ADDRESSES: usize = 8;
/// Siblings in a Merkle proof.
pub const PROOF_SIBLINGS: usize = 48;
/// Coins that a verifier may register at once.
pub const COINS: u64 = 1 << 22;
/// Leaves drawn in one audit.
pub const AUDIT_LEAVES: usize = 32;
/// An audit draws at least one in this many leaves of a contribution.
pub const AUDITED_SHARE: u32 = 8;
/// Jurors of one case.
pub const JURY: usize = 7;
/// Records in one answer to a pull.
pub const PULL_RECORDS: usize = 256;
/// Notices kept on the steward's board.
pub const BOARD_NOTICES: usize = 8192;
/// Bytes of notices kept on the steward's board.
pub const BOARD_BYTES: usize = 256 << 20;
/// Notices in one answer.
pub const PULL_NOTICES: usize = 256;
/// Credits sealed in one outcome.
pub const CREDITS: usize = 1024;
/// Founders that a manifest lists; likewise nodes, and verifiers.
pub const LISTED: usize = 512;
/// Members' invitations, one below the other.
pub const INVITATION_DEPTH: u8 = 16;
/// Blocks that one contributor objects to in one round.
pub const OBJECTIONS: usize = 4096;
/// Rounds after which an audit lasts: what is forgotten from then on of its member stays until the audit is over (AUDIT-24).
pub const LASTING_ROUNDS: u32 = 4;
/// Rounds that begin while an audit waits for a member before it is late: what it commits to then counts nowhere (AUDIT-27).
pub const LATE_ROUNDS: u32 = 2;
/// Failures of one member that are remembered: after the n-th it sits out 2^(n − 1) − 1 rounds.
pub const FAILURES: u8 = 7;
/// Rounds in which a member must count before one of its failures is forgotten.
pub const FORGIVING: u32 = 64;
/// Rounds between two states that are kept for others.
pub const OFFER_ROUNDS: u32 = 3;
/// The newest states that one member keeps for others.
pub const OFFERS: usize = 2;
/// Earlier states that it keeps beside them while somebody fetches them.
pub const OFFERS_FETCHED: usize = 1;
/// Runs of a vector in one piece of a state: 2 MiB.
pub const OFFER_RUNS: usize = 32;
/// How many times a node sends one member as many bytes as it keeps of a state.
pub const OFFER_TIMES: u64 = 2;
/// The same for all strangers together.
pub const OFFER_STRANGERS: u64 = 16;
/// Logits in the answer to one call: 2 MiB.
pub const CALL_LOGITS: usize = 1 << 19;
/// Calls of one member that a holder answers in one round; likewise of all strangers together.
pub const CALLS: u32 = 1024;
/// Rounds of one run.
pub const ROUNDS: u32 = 1 << 24;
