//! The pages: from a path to its bytes.
//!
//! Paths are those of files, so that the same pages can be served and exported; lists are cut into pages of a hundred rows.

pub mod charts;
mod data;
mod door;
mod pages;
mod records;
mod tables;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use muster_core::ids::{Digest, unhex};
use muster_core::limits::BUNDLE_BYTES;
use muster_core::lock::lock;
use muster_store::bundles::{self, bundle_path};
use muster_store::{reading, regular};

use crate::document::{Document, Frame};
use crate::plot::Size;
use crate::view::View;

/// Rows of one page.
pub const ROWS: usize = 100;
/// Pages that are kept until there is news, and the bytes of one.
const KEPT: usize = 256;
const KEPT_BYTES: usize = 256 << 10;

/// The menu: path and words.
const MENU: [(&str, &str); 9] = [
    ("index.html", "Overview"),
    ("rounds.html", "Rounds"),
    ("members.html", "Members"),
    ("board.html", "Board"),
    ("audits.html", "Audits"),
    ("bans.html", "Bans"),
    ("verifiers.html", "Verifiers"),
    ("records.html", "Records"),
    ("manifest.html", "Manifest"),
];

/// What a site is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Served by a program that goes on.
    Live,
    /// Written to files: no news, and no page for each record.
    Files,
}

/// The pages of a run.
pub struct Site {
    view: Arc<View>,
    purpose: Purpose,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    version: u64,
    pages: BTreeMap<String, Page>,
}

/// Bytes with their type.
#[derive(Clone)]
pub struct Page {
    /// Media type.
    pub kind: &'static str,
    /// The bytes.
    pub body: Arc<[u8]>,
}

impl Page {
    fn of(kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { kind, body: body.into().into() }
    }
}

impl Site {
    /// Of a run.
    pub fn new(view: Arc<View>, purpose: Purpose) -> Self {
        Self { view, purpose, kept: Mutex::default() }
    }

    /// The run.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// The page at a path without a leading slash; none where there is no such page.
    pub fn page(&self, path: &str, query: &str) -> Option<Page> {
        match path {
            "style.css" => {
                return Some(Page::of("text/css; charset=utf-8", include_str!("../assets/style.css")));
            }
            "live.js" => {
                return Some(Page::of("text/javascript; charset=utf-8", include_str!("../assets/live.js")));
            }
            "charts.js" => {
                return Some(Page::of("text/javascript; charset=utf-8", include_str!("../assets/charts.js")));
            }
            "icon.svg" => return Some(Page::of("image/svg+xml", include_str!("../assets/icon.svg"))),
            _ => {}
        }
        if let Some(bundle) = self.bundle(path) {
            let bytes = regular::read(&bundle, BUNDLE_BYTES).ok()?;
            return Some(Page::of("application/octet-stream", bytes));
        }
        if let Some(name) = path.strip_prefix("evidence/") {
            return self.evidence(name);
        }
        if let Some(name) = path.strip_prefix("api/") {
            return self.data(name, query).map(|json| Page::of("application/json", json));
        }
        let version = self.view.version();
        if let Some(page) = self.kept(version, path) {
            return Some(page);
        }
        let page = self.made(path, version)?;
        let mut kept = lock(&self.kept);
        if kept.version == version && kept.pages.len() < KEPT && page.body.len() <= KEPT_BYTES {
            kept.pages.insert(path.to_owned(), page.clone());
        }
        Some(page)
    }

    /// A page that was made since there was news.
    fn kept(&self, version: u64, path: &str) -> Option<Page> {
        let mut kept = lock(&self.kept);
        if kept.version != version {
            *kept = Kept { version, pages: BTreeMap::new() };
        }
        kept.pages.get(path).cloned()
    }

    fn made(&self, path: &str, version: u64) -> Option<Page> {
        if let Some(name) = path.strip_prefix("charts/") {
            return self.drawn(name);
        }
        if let Some(name) = path.strip_prefix("data/").and_then(|name| name.strip_suffix(".csv")) {
            return Some(Page::of("text/csv; charset=utf-8", self.chart(name)?.csv()));
        }
        let name = path.strip_suffix(".html")?;
        let document = self.document(name, version)?;
        Some(Page::of("text/html; charset=utf-8", self.framed(&document, path)))
    }

    /// A chart in one of its forms.
    fn drawn(&self, name: &str) -> Option<Page> {
        if let Some(name) = name.strip_suffix(".json") {
            return Some(Page::of("application/json", self.chart(name)?.json()));
        }
        let name = name.strip_suffix(".svg")?;
        let (name, size) = name.strip_suffix("-small").map_or((name, Size::Wide), |name| (name, Size::Small));
        Some(Page::of("image/svg+xml", self.chart(name)?.svg(size)))
    }

    /// A document in the site's frame.
    pub(crate) fn framed(&self, document: &Document, path: &str) -> String {
        // A list's later pages are marked in the menu as its first is.
        let first = path.split_once('-').map_or_else(|| path.to_owned(), |(list, _)| format!("{list}.html"));
        document.html(&Frame {
            run: &self.view.manifest.name,
            base: if path.contains('/') { "../" } else { "" },
            path: &first,
            menu: if self.purpose == Purpose::Live { &MENU } else { self.menu_of_files() },
            live: self.purpose == Purpose::Live,
            script: "charts.js",
            style: None,
        })
    }

    fn menu_of_files(&self) -> &'static [(&'static str, &'static str)] {
        const FILES: [(&str, &str); 8] =
            [MENU[0], MENU[1], MENU[2], MENU[3], MENU[4], MENU[5], MENU[6], MENU[8]];
        &FILES
    }

    /// A page that says that there is none.
    pub(crate) fn missing(&self, path: &str) -> Page {
        let document = Document::titled("No such page")
            .saying("There is nothing at this address. The menu above leads to everything that there is.");
        Page::of("text/html; charset=utf-8", self.framed(&document, path))
    }

    /// A file of evidence, by its name: 64 hexadecimal digits, so that no other file can be meant.
    fn evidence(&self, name: &str) -> Option<Page> {
        let digest = Digest(unhex::<32>(name)?);
        let bytes = reading::evidence(self.view.folder.as_ref()?, &digest).ok()??;
        Some(Page::of("application/octet-stream", bytes))
    }

    /// Where the bundle at a path is: a file that is too long to be held in memory for each visitor.
    pub fn bundle(&self, path: &str) -> Option<PathBuf> {
        let name = path.strip_prefix("evidence/")?.strip_suffix(bundles::ENDING)?;
        let file = bundle_path(self.view.folder.as_ref()?, &Digest(unhex::<32>(name)?));
        file.is_file().then_some(file)
    }

    /// Whether a piece of evidence can be fetched here.
    fn has_evidence(&self, name: &str) -> bool {
        let digest = unhex::<32>(name).map(Digest);
        self.view
            .folder
            .as_ref()
            .zip(digest)
            .is_some_and(|(folder, digest)| reading::has_evidence(folder, &digest))
    }
}
