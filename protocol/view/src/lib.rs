//! A run as people look at it: what its sealed records and its steward's log tell, as pages, charts and tables.
//!
//! A [`View`] reads a journal beside whoever writes it, applies every record to a ledger of its own, and folds it into a
//! [`story::Story`]. Nothing that a run's members say is believed before the ledger has taken it; what only a log says is
//! marked as such. A view writes nothing and holds no secret.
//!
//! | module | contents |
//! |---|---|
//! | [`story`] | rounds, members, audits, bans, from records, notices and the log |
//! | [`event`] | the events of a steward's log |
//! | [`document`] | a page before it is HTML |
//! | [`plot`] | charts, as SVG and as CSV |
//! | [`site`] | the pages: from a path to its bytes |
//! | [`serve`] | the pages over HTTP, with live updates |
//! | [`chat`] | a page to talk to a model |
//! | [`export`] | the pages as files |
//! | [`status`] | what a running program does now: on a local socket, and for monitoring systems |
//! | [`report`] | one page that stands alone |
//! | [`words`] | numbers of things, for people |

pub mod chat;
pub mod document;
pub mod event;
pub mod export;
mod log;
mod manifest;
pub mod plot;
pub mod report;
pub mod serve;
pub mod site;
pub mod status;
pub mod story;
mod view;
pub mod words;

pub use view::{COMPARED, Source, View};
