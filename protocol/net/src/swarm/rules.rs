//! What one swarm goes by, whoever in it asks.

use std::sync::Arc;

use super::accounts::Accounts;
use super::book::Book;
use super::sieve::Sieve;
use crate::reach::Reach;

/// Who judges what comes, who pays for it, and who is dialled.
#[derive(Clone)]
pub(super) struct Rules {
    pub(super) sieve: Arc<dyn Sieve>,
    pub(super) accounts: Arc<Accounts>,
    pub(super) book: Arc<Book>,
}

impl Rules {
    /// For a swarm that begins with nobody, `home` is how far the addresses reach at which it listens.
    pub(super) fn new(sieve: Arc<dyn Sieve>, home: Option<Reach>) -> Self {
        let (accounts, book) = (Accounts::new(sieve.clone()), Book::new(sieve.clone(), home));
        Self { sieve, accounts: Arc::new(accounts), book: Arc::new(book) }
    }
}
