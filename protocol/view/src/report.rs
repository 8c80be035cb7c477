//! `report.html`: one file that can be opened anywhere. Beside it lie the numbers of its charts, and the script that lets one
//! work with them.

use std::fs;
use std::io;
use std::path::Path;

use crate::document::{Document, Frame};
use crate::plot::Plot;

/// A report: a page that stands alone, and its charts.
pub struct Report {
    /// The run, or what else it is of.
    pub of: String,
    /// What it says.
    pub document: Document,
    /// How many of its sections come before the charts.
    pub before: usize,
    /// Charts, with the names of the files of their numbers.
    pub plots: Vec<(String, Plot)>,
}

impl Report {
    /// Writes `report.html` into a folder, and the numbers of its charts into `data/` beside it.
    ///
    /// # Errors
    /// What the system says, with the file.
    pub fn write(mut self, folder: &Path) -> io::Result<()> {
        let sections = &mut self.document.sections;
        let after = sections.split_off(self.before.min(sections.len()));
        self.plots.retain(|(_, plot)| !plot.is_empty());
        for (name, plot) in &self.plots {
            self.document.plot(name, plot, true, 0);
        }
        self.document.sections.extend(after);
        let html = self.document.html(&Frame {
            run: &self.of,
            base: "",
            path: "",
            menu: &[],
            live: false,
            script: "data/charts.js",
            style: Some(include_str!("../assets/style.css")),
        });
        write(&folder.join("report.html"), &html)?;
        if self.plots.is_empty() {
            return Ok(());
        }
        let data = folder.join("data");
        fs::create_dir_all(&data).map_err(|error| named(&data, &error))?;
        write(&data.join("charts.js"), include_str!("../assets/charts.js"))?;
        self.plots.iter().try_for_each(|(name, plot)| write(&data.join(format!("{name}.csv")), &plot.csv()))
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text).map_err(|error| named(path, &error))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: cannot be written ({error})", path.display()))
}
