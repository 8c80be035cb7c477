//! The router of a corpus: which row of experts a window belongs to, by the text before it.

use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Digest, Row};
use muster_core::manifest::Router;
use muster_core::router::Table;

/// The router's table, where a corpus has one.
pub const ROUTER: &str = "router.bin";

/// A router's table, and how much text it reads.
#[derive(Clone, Debug)]
pub struct Routing {
    tokens: u16,
    table: Table,
    file: Vec<u8>,
}

impl Routing {
    /// A router that reads the last `tokens` tokens before a window.
    pub fn new(tokens: u16, table: Table) -> Self {
        let file = table.encode();
        Self { tokens, table, file }
    }

    /// The router that a manifest names; none where this is not its file.
    pub(super) fn of(router: &Router, file: Vec<u8>) -> Option<Self> {
        let table = Table::decode(&file, router.rows).ok()?;
        // DATA-8: a file of another length or digest is refused.
        (digest(&file) == router.digest).then_some(Self { tokens: router.tokens, table, file })
    }

    /// What a manifest says of it.
    pub fn router(&self) -> Router {
        Router { rows: self.table.rows(), tokens: self.tokens, digest: digest(&self.file) }
    }

    /// The row of what follows this text among those that are open; none where no row is.
    pub fn row(&self, text: &[u32], open: impl Fn(Row) -> bool) -> Option<Row> {
        self.table.row(self.end(text), open)
    }

    /// All rows, the best one for what follows this text first.
    pub fn ranked(&self, text: &[u32]) -> Vec<Row> {
        self.table.ranked(self.end(text))
    }

    /// The score of each row for what follows this text, in order of rows.
    pub fn scores(&self, text: &[u32]) -> Vec<i64> {
        self.table.scores(self.end(text))
    }

    /// Tokens that it reads at most.
    pub fn tokens(&self) -> usize {
        self.tokens.into()
    }

    /// The table's file.
    pub fn file(&self) -> &[u8] {
        &self.file
    }

    /// What it reads of a text.
    fn end<'a>(&self, text: &'a [u32]) -> &'a [u32] {
        // DATA-9: the last `tokens` tokens, or all where there are fewer.
        &text[text.len().saturating_sub(self.tokens())..]
    }
}

fn digest(file: &[u8]) -> Digest {
    // DATA-8: the digest is H("router", file).
    Hasher::new(Domain::ROUTER).part(file).finish()
}

#[cfg(test)]
mod tests;
