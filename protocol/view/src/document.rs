//! A page before it is HTML: facts, figures and tables under a title. Every page and report is one.

use std::borrow::Cow;

use askama::Template;

use crate::plot::{Plot, Size};

/// A page.
#[derive(Default)]
pub struct Document {
    /// What it is about.
    pub title: String,
    /// Sentences below the title.
    pub lead: Vec<String>,
    /// Something that has to be known before anything else.
    pub alarm: Option<String>,
    /// Names and values.
    pub facts: Vec<Fact>,
    /// What follows, in order.
    pub sections: Vec<Section>,
}

/// A name and a value.
pub struct Fact {
    /// What it is.
    pub name: String,
    /// Its value.
    pub value: Cell,
}

/// A part of a page.
pub struct Section {
    /// Its heading; may be empty.
    pub heading: String,
    /// Sentences.
    pub text: Vec<String>,
    /// What it shows.
    pub body: Body,
}

/// What a section shows.
pub enum Body {
    /// Its sentences alone.
    Text,
    /// A chart.
    Figure(Figure),
    /// A table.
    Table(Table),
    /// Text with its own line breaks.
    Code(String),
}

/// A chart with the way to its numbers.
pub struct Figure {
    /// Names it within the page.
    pub name: String,
    /// What it shows, in words: for those who do not see it.
    pub summary: String,
    /// What its lines and marks stand for: class and words.
    pub legend: Vec<(String, String)>,
    /// Where its image is.
    pub image: Image,
    /// The path of its numbers.
    pub csv: String,
}

/// Where a chart's image is, and what a script draws it anew from.
pub enum Image {
    /// In the page, which stands alone.
    Inline {
        /// For a wide screen.
        wide: String,
        /// For a small one.
        small: String,
        /// The chart as JSON, in which no `<` ends the element around it.
        json: String,
    },
    /// At `charts/NAME`, with an ending and this version, which changes with the chart.
    At(u64),
}

/// A table.
#[derive(Default)]
pub struct Table {
    /// Names it within the page.
    pub id: Cow<'static, str>,
    /// What it lists, for those who do not see it.
    pub caption: String,
    /// Its columns.
    pub head: Vec<Column>,
    /// Its rows.
    pub rows: Vec<Vec<Cell>>,
    /// Said where it has no row.
    pub empty: &'static str,
    /// The way to its other pages.
    pub pager: Option<Pager>,
}

/// A column.
pub struct Column {
    /// What is in it.
    pub title: Cow<'static, str>,
    /// Whether it has numbers.
    pub numbers: bool,
}

impl Column {
    /// Columns by their titles; those with `#` before it have numbers.
    pub fn all(titles: &[&'static str]) -> Vec<Self> {
        let column = |title: &&'static str| {
            let number = title.strip_prefix('#');
            Self { title: Cow::Borrowed(number.unwrap_or(title)), numbers: number.is_some() }
        };
        titles.iter().map(column).collect()
    }
}

/// A value in a table or of a fact.
#[derive(Clone, Default)]
pub struct Cell {
    /// What it says.
    pub text: String,
    /// Where it leads, from the root of the site; empty for nowhere.
    pub link: String,
    /// How it looks: `good`, `bad`, `waits`, `code`, or nothing.
    pub look: &'static str,
}

impl Cell {
    /// Text.
    pub fn of(text: impl ToString) -> Self {
        Self { text: text.to_string(), ..Self::default() }
    }

    /// That leads somewhere.
    #[must_use]
    pub fn to(mut self, link: impl Into<String>) -> Self {
        self.link = link.into();
        self
    }

    /// That looks so.
    #[must_use]
    pub fn looking(mut self, look: &'static str) -> Self {
        self.look = look;
        self
    }
}

/// The way to the other pages of a table.
pub struct Pager {
    /// This page, from 1.
    pub page: usize,
    /// How many there are.
    pub pages: usize,
    /// Path of the page before; empty where there is none.
    pub newer: String,
    /// Path of the page after; empty where there is none.
    pub older: String,
    /// Rows altogether.
    pub rows: usize,
}

impl Document {
    /// With a title.
    pub fn titled(title: impl Into<String>) -> Self {
        Self { title: title.into(), ..Self::default() }
    }

    /// With another sentence below the title.
    #[must_use]
    pub fn saying(mut self, sentence: impl Into<String>) -> Self {
        self.lead.push(sentence.into());
        self
    }

    /// Adds a fact.
    pub fn fact(&mut self, name: impl Into<String>, value: Cell) {
        self.facts.push(Fact { name: name.into(), value });
    }

    /// Adds sentences.
    pub fn text(&mut self, heading: impl Into<String>, text: Vec<String>) {
        self.sections.push(Section { heading: heading.into(), text, body: Body::Text });
    }

    /// Adds a chart, unless it has nothing to show; `within` says whether the page stands alone, and `version` changes with
    /// what it shows.
    pub fn plot(&mut self, name: &str, plot: &Plot, within: bool, version: u64) {
        if plot.is_empty() {
            return;
        }
        let image = if within {
            let (wide, small) = (plot.svg(Size::Wide), plot.svg(Size::Small));
            Image::Inline { wide, small, json: plot.json().replace('<', "\\u003c") }
        } else {
            Image::At(version)
        };
        let (name, summary, csv) = (name.to_owned(), plot.summary(), format!("data/{name}.csv"));
        let figure = Figure { name, summary, legend: plot.legend(), image, csv };
        let text = plot.notes.clone();
        self.sections.push(Section { heading: plot.title.clone(), text, body: Body::Figure(figure) });
    }

    /// Adds a table.
    pub fn table(&mut self, heading: impl Into<String>, table: Table) {
        self.sections.push(Section { heading: heading.into(), text: Vec::new(), body: Body::Table(table) });
    }

    /// Adds text with its own line breaks.
    pub fn code(&mut self, heading: impl Into<String>, code: impl Into<String>) {
        let (heading, body) = (heading.into(), Body::Code(code.into()));
        self.sections.push(Section { heading, text: Vec::new(), body });
    }
}

/// What surrounds a page.
pub struct Frame<'a> {
    /// Name of the run.
    pub run: &'a str,
    /// From this page to the root of the site: empty, or `../`.
    pub base: &'a str,
    /// Path of this page, to mark it in the menu.
    pub path: &'a str,
    /// The menu: path and words.
    pub menu: &'a [(&'a str, &'a str)],
    /// Whether it is served by a process that goes on: it then asks for news.
    pub live: bool,
    /// From this page to the script that draws charts anew.
    pub script: &'a str,
    /// Style sheet in the page, where it stands alone.
    pub style: Option<&'a str>,
}

#[derive(Template)]
#[template(path = "document.html")]
struct DocumentPage<'a> {
    document: &'a Document,
    frame: &'a Frame<'a>,
}

impl Document {
    /// Whether a section has a chart of half the page's width: charts stand in pairs, and of an odd number the first alone.
    /// A template gives references.
    fn is_half(&self, place: &usize) -> bool {
        let is_chart = |section: &Section| matches!(section.body, Body::Figure(_));
        let charts = |sections: &[Section]| sections.iter().filter(|section| is_chart(section)).count();
        let odd = charts(&self.sections) % 2 == 1;
        self.sections.get(*place).is_some_and(is_chart) && !(odd && charts(&self.sections[..*place]) == 0)
    }

    /// The page as HTML.
    pub fn html(&self, frame: &Frame<'_>) -> String {
        // Writing into a string does not fail.
        DocumentPage { document: self, frame }.render().unwrap_or_default()
    }
}
