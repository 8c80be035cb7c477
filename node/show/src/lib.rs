//! A run as it is shown to whoever sits at this machine: web pages, a board on the terminal, both or neither.

pub mod board;
pub mod lines;
mod picture;
pub mod progress;
mod still;

use std::sync::Arc;

use muster_view::View;
use muster_view::serve::{Pages, serve};

use self::board::Board;
pub use self::picture::Surroundings;
pub use self::still::still;

/// How to show a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShowOptions {
    /// Where to show it to browsers; none for nowhere.
    pub web: Option<String>,
    /// Whether to show it on the whole terminal.
    pub board: bool,
    /// Where to show what this program does to monitoring systems; none for nowhere.
    pub metrics: Option<String>,
}

impl ShowOptions {
    /// Whether anybody wants to see it.
    pub fn is_wanted(&self) -> bool {
        self.web.is_some() || self.board
    }
}

/// A run that is shown, until this is dropped.
pub struct Shown {
    /// What is told of it.
    pub view: Arc<View>,
    pages: Option<Pages>,
    _board: Option<Board>,
}

impl Shown {
    /// Shows it to browsers, if that is wanted.
    ///
    /// # Errors
    /// In words: the address cannot be listened on.
    pub async fn open(view: Arc<View>, options: &ShowOptions) -> Result<Self, String> {
        let pages = match &options.web {
            Some(address) => Some(serve(view.clone(), address).await?),
            None => None,
        };
        Ok(Self { view, pages, _board: None })
    }

    /// Where a browser sees it, if it is shown to browsers.
    pub fn page(&self) -> Option<&str> {
        self.pages.as_ref().map(|pages| &*pages.url)
    }

    /// Shows it on the terminal as well, with what this program does ("hosting") and where members can dial it. Whatever is
    /// printed before this is seen again when the board is gone.
    ///
    /// # Errors
    /// In words: the terminal refuses.
    pub fn open_board(&mut self, doing: &'static str, addresses: Vec<String>) -> Result<(), String> {
        let page = self.page().map(str::to_owned);
        let keys = "q or Ctrl-C: finish the round and stop";
        let seen = Surroundings { doing, addresses, page, keys, attackers: Vec::new() };
        let board = Board::open(self.view.clone(), seen);
        self._board = Some(
            board.map_err(|error| format!("the terminal refuses the board: {error}; leave --board out"))?,
        );
        Ok(())
    }
}
