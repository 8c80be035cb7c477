//! The committed files: texts, tokeniser, given parameters, router.

use crate::ids::Digest;
use crate::router;
use crate::{choice, wire};

wire! {
    /// The committed files: the text, and what else a newcomer fetches.
    pub struct Data {
        /// Merkle root over chunks of [`crate::limits::DATA_CHUNK_BYTES`] of the training bytes.
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
        /// What gives each window its row, where a mixture of experts has several.
        pub router: Option<Router>,
    }
}

choice! {
    /// A committed file of a run.
    pub enum DataFile {
        /// The training text.
        Training,
        /// The held-out text.
        HeldOut,
        /// The tokeniser, where tokens are not bytes.
        Tokeniser,
        /// The parameters, where they were given.
        Parameters,
        /// The router's table, where there is one.
        Router,
    }
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
        /// Merkle root over chunks of [`crate::limits::DATA_CHUNK_BYTES`].
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
    /// A table that gives a window its row of experts by the text before it (DATA-9).
    pub struct Router {
        /// Rows of the table.
        pub rows: u16,
        /// Most tokens before a window that it reads.
        pub tokens: u16,
        /// [`crate::hash::Domain::ROUTER`] of the file's bytes.
        pub digest: Digest,
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
            (DataFile::Router, ..) => self.router.as_ref().map_or(0, Router::bytes),
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

impl Router {
    /// The file's bytes.
    pub fn bytes(&self) -> u64 {
        router::file_bytes(self.rows)
    }
}

impl DataFile {
    /// All of them, in the order in which they are fetched.
    pub const ALL: [Self; 5] =
        [Self::Training, Self::HeldOut, Self::Tokeniser, Self::Parameters, Self::Router];
}
