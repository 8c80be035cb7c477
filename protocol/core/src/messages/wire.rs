//! Requests and responses on one channel. Who asks is known from the handshake.

use crate::codec::{Bytes, List, Text, is_hidden};
use crate::ids::{Block, Digest, EndpointKey, Height, MemberId, Round};
use crate::manifest::DataFile;
use crate::merkle::Proof;
use crate::messages::audit::{
    AuditRequest, Duty, Opinion, Recheck, Recomputation, ResultsSeal, TableOpening, TableSeal, Verdict,
    Withheld,
};
use crate::messages::call::{Answer, Ask};
use crate::messages::enrol::{CloseTree, Enrol, Leave, Ready, Return};
use crate::messages::evidence::Evidence;
use crate::messages::offer::{StateOffer, StatePiece, StateQuery};
use crate::messages::record::Record;
use crate::messages::round::{
    Checked, Commit, CommitReceipt, Delivered, DeliveryReceipt, Echo, PartResult, Receipt,
};
use crate::sign::Signed;
use crate::{limits, wire};

/// Bulk bytes of one answer: at most this, so that a message stays below [`limits::MESSAGE_BYTES`].
pub const BULK_BYTES: usize = 2 << 20;

wire! {
    /// What one side asks.
    pub enum Request {
        /// The manifest. From the steward.
        Manifest,
        /// Sealed records and public notices, waiting a while for the first new one. From the steward.
        Follow(Follow),
        /// Admission. From the steward.
        Enrol(Signed<Enrol>),
        /// Takes a commitment. From the steward.
        Commit(Signed<Commit>),
        /// Takes a statement of delivery. From the steward.
        Delivered(Signed<Delivered>),
        /// Takes a public notice. From the steward.
        Notice(Notice),
        /// Takes an accusation that is no verdict. From the steward.
        Accuse(Evidence),
        /// Takes blocks of the asker's own contribution. From an aggregator.
        PutBlocks(PutBlocks),
        /// Values of reduced blocks. From whoever holds them.
        ResultBlocks(BlockQuery),
        /// Blocks of a member's contribution, with proofs. From its aggregators or its author.
        InputBlocks(InputQuery),
        /// The newest state that can be fetched whole. From the steward.
        StateOffer,
        /// A piece of a state that is kept for others. From a node that holds the shard, or the steward.
        State(StateQuery),
        /// Bytes of a committed file. From whoever holds them.
        Data(DataQuery),
        /// Takes what a contributor says of the results. From the steward.
        Checked(Signed<Checked>),
        /// Takes the organiser's order, whoever brings it. From the steward.
        CloseTree(Signed<CloseTree>),
        /// The evidence of a sealed ban, by its digest. From the steward, whoever asks.
        Evidence(Digest),
        /// What follows a text. From a holder, whoever asks.
        Ask(Signed<Ask>),
        /// Bytes of the outline of a committed file: the nodes of its pages, one after the other. From the steward, or who has it.
        Outline(DataQuery),
        /// A place at the relay, for as long as it is asked for again, under this key. From the steward, or from a member that
        /// others can dial, by a member.
        Relay(EndpointKey),
    }
}

wire! {
    /// What the other side answers.
    pub enum Response {
        /// Taken.
        Done,
        /// Not taken; why, in words.
        Refused(Text<{ limits::TEXT_BYTES }>),
        /// The canonical manifest.
        Manifest(Bytes<65_536>),
        /// New records and notices.
        News(News),
        /// The commitment is in time.
        Committed(Signed<CommitReceipt>),
        /// The whole part is there.
        Receipt(Signed<Receipt>),
        /// Bulk bytes.
        Bytes(Bytes<BULK_BYTES>),
        /// Blocks with proofs.
        Blocks(List<BlockData, 1024>),
        /// Which state can be fetched.
        State(StateOffer),
        /// The delivery is in time.
        Delivered(Signed<DeliveryReceipt>),
        /// What a ban rests on.
        Evidence(Evidence),
        /// What follows the text.
        Answer(Answered),
        /// Values of a state, with proofs.
        Piece(StatePiece),
        /// The relay, and that there is a place.
        Relay(RelayTerms),
    }
}

impl Response {
    /// A refusal: the reason without characters that nobody sees, cut to [`limits::TEXT_BYTES`].
    pub fn refused(why: &str) -> Self {
        // A text has no such characters: an error of the system that holds one must still be told.
        let why = why.replace(is_hidden, " ");
        // A cut character would not be text, and the refusal not encodable.
        let cut = why.floor_char_boundary(limits::TEXT_BYTES);
        Self::Refused(Text::new(&why[..cut]).unwrap_or_default())
    }
}

wire! {
    /// The answer to a call, with what it binds.
    pub struct Answered {
        /// The answer.
        pub answer: Signed<Answer>,
        /// The logits (CALL-2), `vocabulary` of them for each position.
        pub logits: List<i32, { limits::CALL_LOGITS }>,
    }
}

wire! {
    /// Where the asker is.
    pub struct Follow {
        /// First height it lacks.
        pub height: Height,
        /// Which board it has read, and how far; 0 and 0 at first.
        pub board: u64,
        /// First notice it lacks.
        pub notice: u64,
    }
}

wire! {
    /// What is new.
    pub struct News {
        /// Records from the asked height on.
        pub records: List<Signed<Record>, { limits::PULL_RECORDS }>,
        /// Height of the newest sealed record.
        pub newest: Height,
        /// The board that `notices` come from; another one than asked for starts anew at 0.
        pub board: u64,
        /// Number of the first of `notices`.
        pub first_notice: u64,
        /// Notices.
        pub notices: List<Notice, { limits::PULL_NOTICES }>,
    }
}

wire! {
    /// A public statement on the steward's board.
    pub enum Notice {
        /// Has seen the freeze.
        Echo(Signed<Echo>),
        /// Has reduced a part.
        Result(Signed<PartResult>),
        /// Audits.
        Request(Signed<AuditRequest>),
        /// Answers an audit.
        Table(Signed<TableSeal>),
        /// Has recomputed.
        Results(Signed<ResultsSeal>),
        /// Opens the table.
        Opening(Signed<TableOpening>),
        /// Judges.
        Verdict(Signed<Verdict>),
        /// Is back.
        Return(Signed<Return>),
        /// Goes.
        Leave(Signed<Leave>),
        /// Shows a node coin.
        Duty(Signed<Duty>),
        /// Has re-executed a verdict.
        Recheck(Signed<Recheck>),
        /// The steward asks the drawn jurors about evidence that it finds convincing.
        Charge(Evidence),
        /// A juror has recomputed.
        Opinion(Signed<Opinion>),
        /// Cannot have the integers of the contribution that it audits.
        Withheld(Signed<Withheld>),
        /// The steward has the integers that this request's verifier could not have.
        Obtained(Digest),
        /// Has recomputed all leaves of somebody who does not answer.
        Recomputation(Signed<Recomputation>),
        /// Holds its row.
        Ready(Signed<Ready>),
    }
}

wire! {
    /// One block of a contribution: its chunks with proofs against the commitment.
    pub struct BlockData {
        /// The block.
        pub block: Block,
        /// Its chunks in order, each as packs (COMMIT-6).
        pub chunks: List<Bytes<{ limits::CHUNK_BYTES }>, { limits::BLOCK_COEFFICIENTS / limits::CHUNK_COEFFICIENTS }>,
        /// A proof for each.
        pub proofs: List<Proof, { limits::BLOCK_COEFFICIENTS / limits::CHUNK_COEFFICIENTS }>,
    }
}

wire! {
    /// Blocks for an aggregator.
    pub struct PutBlocks {
        /// The round.
        pub round: Round,
        /// 0, or 1 after a reassignment.
        pub attempt: u8,
        /// Blocks of one part.
        pub blocks: List<BlockData, 1024>,
    }
}

wire! {
    /// Blocks of a round's result.
    pub struct BlockQuery {
        /// The round.
        pub round: Round,
        /// Blocks, at most [`BULK_BYTES`] of values.
        pub blocks: List<Block, 1024>,
    }
}

wire! {
    /// Blocks of a contribution.
    pub struct InputQuery {
        /// The round.
        pub round: Round,
        /// Whose.
        pub member: MemberId,
        /// Blocks, at most [`BULK_BYTES`] of values.
        pub blocks: List<Block, 1024>,
    }
}

wire! {
    /// A piece of a committed file.
    pub struct DataQuery {
        /// Which.
        pub file: DataFile,
        /// First chunk of [`limits::DATA_CHUNK_BYTES`].
        pub first: u64,
        /// Chunks, at most [`BULK_BYTES`] in bytes.
        pub count: u32,
    }
}

wire! {
    /// What it takes to use somebody's relay, which is where its channels are.
    pub struct RelayTerms {
        /// The certificate that it shows.
        pub certificate: Bytes<{ limits::CERTIFICATE_BYTES }>,
        /// Where members learn from where they are seen; 0 if nowhere.
        pub port: u16,
    }
}
