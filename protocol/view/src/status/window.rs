//! All through which a program's status is seen.

use std::path::Path;

use tokio::sync::mpsc;

use super::desk::{Desk, Inquiry};
use super::metrics;
use crate::serve::Pages;

/// What the line begins with that says where monitoring systems see a program.
pub const METRICS: &str = "for monitoring: ";

/// Shows a program's status until this is dropped.
pub struct Window {
    pages: Option<Pages>,
    #[cfg(unix)]
    _socket: Option<super::socket::Served>,
}

impl Window {
    /// Shows it to commands on this machine, and to monitoring systems where an address for them is given. Gives what the program
    /// has to answer. A program works without a socket.
    ///
    /// # Errors
    /// In words: the address cannot be listened on.
    pub async fn open(
        folder: &Path,
        metrics: Option<&str>,
    ) -> Result<(Self, mpsc::Receiver<Inquiry>), String> {
        let (desk, asked) = Desk::open(folder);
        let pages = match metrics {
            Some(address) => Some(metrics::serve(desk.clone(), address).await?),
            None => None,
        };
        #[cfg(unix)]
        let socket = super::socket::serve(folder, desk).inspect_err(|error| {
            tracing::warn!("`muster status {}` will not work: {error}", folder.display());
        });
        let window = Self {
            pages,
            #[cfg(unix)]
            _socket: socket.ok(),
        };
        Ok((window, asked))
    }

    /// Where monitoring systems see it.
    pub fn metrics(&self) -> Option<&str> {
        self.pages.as_ref().map(|pages| &*pages.url)
    }
}
