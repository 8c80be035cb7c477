//! Charts: what they show, in words, as CSV for people's programs, and as JSON for `charts.js`, which draws them anew in a browser.

mod draw;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write;

use muster_core::bug::OrBug;
use serde::{Serialize, Serializer};

pub use draw::Size;

/// Points of a line that a browser is given; a longer one comes as means.
const GIVEN: usize = 4_000;
/// Marks of one kind; of more, the first ones are shown.
const MARKS: usize = 64;
/// Colours before they begin anew.
pub const COLOURS: usize = 8;

/// A chart with its numbers.
#[derive(Clone, Default, Serialize)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// Sentences that a reader of the chart needs.
    #[serde(skip)]
    pub notes: Vec<String>,
    /// What lies along it.
    pub x: String,
    /// What is measured, with its unit.
    pub y: String,
    /// Lines.
    pub series: Vec<Series>,
    /// Level lines: what they stand for, and where they are.
    pub levels: Vec<(String, f64)>,
    /// Where along it something happened.
    pub marks: Vec<Mark>,
    /// How the series are drawn.
    pub kind: Kind,
}

/// How series are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// As lines, whose points are marked where they are few.
    #[default]
    Lines,
    /// As areas that lie on each other and begin at 0.
    Areas,
    /// As points, whose places are whole numbers.
    Points,
}

/// A line of a chart.
#[derive(Clone, Default, Serialize)]
pub struct Series {
    /// What it is of.
    pub name: String,
    /// Its points, in order.
    #[serde(serialize_with = "given")]
    pub points: Vec<(f64, f64)>,
}

/// A place along a chart at which something happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mark {
    /// Where.
    pub at: f64,
    /// What kind of thing.
    pub kind: MarkKind,
    /// What, in words.
    pub text: String,
}

/// What happened at a mark, from what hides the least to what hides the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MarkKind {
    /// A program was started again, or a member came back.
    Restart,
    /// False work begins.
    Cheat,
    /// A member is banned.
    Ban,
    /// The state went back.
    Rewind,
}

impl MarkKind {
    /// Its name in style sheets.
    pub fn class(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Cheat => "cheat",
            Self::Ban => "ban",
            Self::Rewind => "rewind",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Restart => "started again",
            Self::Cheat => "false work begins",
            Self::Ban => "ban",
            Self::Rewind => "the state went back",
        }
    }
}

impl Plot {
    /// Whether there is nothing to draw.
    pub fn is_empty(&self) -> bool {
        self.series.iter().all(|series| series.points.is_empty())
    }

    /// The chart in words, for those who do not see it.
    pub fn summary(&self) -> String {
        let of = |series: &Series| {
            let (first, last) = (series.points.first()?, series.points.last()?);
            Some(format!("{} from {} to {}", series.name, shown(first.1), shown(last.1)))
        };
        let lines: Vec<String> = self.series.iter().filter_map(of).collect();
        let levels: Vec<String> =
            self.levels.iter().map(|(name, level)| format!("{name} at {}", shown(*level))).collect();
        let all = [lines, levels].concat().join("; ");
        format!("{} by {}: {all}.", self.y, self.x)
    }

    /// All numbers: a column for x, and one for each series.
    pub fn csv(&self) -> String {
        let mut xs: Vec<f64> =
            self.series.iter().flat_map(|series| series.points.iter().map(|(x, _)| *x)).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let names = self.series.iter().map(|series| quoted(&series.name));
        let levels = self.levels.iter().map(|(name, _)| quoted(name));
        let head: Vec<String> = std::iter::once(quoted(&self.x)).chain(names).chain(levels).collect();
        let mut text = head.join(",") + "\n";
        let mut places = vec![0; self.series.len()];
        for x in xs {
            let _ = write!(text, "{x}");
            for (series, place) in self.series.iter().zip(&mut places) {
                text.push(',');
                // Of several at one place, the first has a line.
                if let Some((_, y)) = series.points.get(*place).filter(|(at, _)| *at == x) {
                    let _ = write!(text, "{y}");
                }
                *place += series.points[*place..].iter().take_while(|(at, _)| *at <= x).count();
            }
            for (_, level) in &self.levels {
                let _ = write!(text, ",{level}");
            }
            text.push('\n');
        }
        text
    }

    /// Marks those places; what is of one kind at one place becomes one mark.
    pub fn mark(&mut self, marks: impl IntoIterator<Item = Mark>) {
        let mut places: BTreeMap<(MarkKind, u64), Mark> = BTreeMap::new();
        for mark in marks {
            // Places are rounds: never negative, so that their bits have their order.
            match places.entry((mark.kind, mark.at.to_bits())) {
                Entry::Vacant(free) => drop(free.insert(mark)),
                Entry::Occupied(mut taken) => taken.get_mut().text += &format!("; {}", mark.text),
            }
        }
        let mut before: BTreeMap<MarkKind, usize> = BTreeMap::new();
        self.marks = places.into_values().collect();
        self.marks.retain(|mark| {
            let number = before.entry(mark.kind).or_default();
            *number += 1;
            *number <= MARKS
        });
        self.marks.sort_by(|a, b| a.at.total_cmp(&b.at));
    }

    /// What its lines and marks stand for: the class of each in style sheets, and its words.
    pub fn legend(&self) -> Vec<(String, String)> {
        let series = self.series.iter().enumerate();
        let series = series.map(|(place, series)| (format!("s{}", place % COLOURS + 1), series.name.clone()));
        let levels = self.levels.iter().enumerate();
        let levels = levels.map(|(place, (name, level))| {
            (format!("level level{}", place % 2 + 1), format!("{name}: {}", shown(*level)))
        });
        let mut kinds: BTreeMap<MarkKind, usize> = BTreeMap::new();
        self.marks.iter().for_each(|mark| *kinds.entry(mark.kind).or_default() += 1);
        let marks = kinds.into_iter().map(|(kind, count)| {
            let times = if count > 1 { format!(" ({count})") } else { String::new() };
            (format!("mark {}", kind.class()), format!("{}{times}", kind.words()))
        });
        // One line alone is named by the axis.
        let lines: Vec<_> = series.chain(levels).collect();
        if lines.len() == 1 { marks.collect() } else { lines.into_iter().chain(marks).collect() }
    }

    /// All that `charts.js` needs.
    pub fn json(&self) -> String {
        serde_json::to_string(self).or_bug("a chart has names for its fields").unwrap_or_default()
    }
}

/// The points of a line as a browser is given them: few enough, in few digits.
fn given<S: Serializer>(points: &[(f64, f64)], serializer: S) -> Result<S::Ok, S::Error> {
    let short = |value: f64| format!("{value:.5e}").parse::<f64>().unwrap_or(value);
    serializer.collect_seq(thinned(points, GIVEN).into_iter().map(|(x, y)| (short(x), short(y))))
}

/// At most that many points, each the mean of as many.
fn thinned(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    let each = points.len().div_ceil(most).max(1);
    let mean = |points: &[(f64, f64)]| {
        let count = points.len() as f64;
        let sum = points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
        (sum.0 / count, sum.1 / count)
    };
    points.chunks(each).map(mean).collect()
}

/// A number as people write it.
pub fn shown(value: f64) -> String {
    let size = value.abs();
    let text = match size {
        _ if size >= 1e9 => return format!("{:.4} G", value / 1e9).replace(".0000", ""),
        _ if size >= 1e6 => return format!("{:.2} M", value / 1e6).replace(".00", ""),
        _ if size >= 1e4 => return format!("{:.1} k", value / 1e3).replace(".0", ""),
        _ if size >= 100.0 => format!("{value:.1}"),
        _ if size >= 1e-3 || size == 0.0 => format!("{value:.3}"),
        _ => return format!("{value:.1e}"),
    };
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    text.to_owned()
}

/// A field of CSV (RFC 4180).
pub fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot() -> Plot {
        let series = |name: &str, y: f64| Series {
            name: name.into(),
            points: (0..1_000).map(|x| (f64::from(x), y + f64::from(x % 3))).collect(),
        };
        Plot {
            title: "Loss".into(),
            x: "round".into(),
            y: "nats".into(),
            series: vec![series("a, <b>", 1.0), series("c", 2.0)],
            levels: vec![("bigram".into(), 2.5)],
            ..Plot::default()
        }
    }

    #[test]
    fn a_chart_is_an_image_without_style_or_script() {
        let all = [plot(), Plot { kind: Kind::Areas, ..plot() }, Plot::default()];
        for (plot, size) in all.iter().flat_map(|plot| [(plot, Size::Wide), (plot, Size::Small)]) {
            let svg = plot.svg(size);
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
            assert!(!svg.contains("style=") && !svg.contains("<script") && !svg.contains("<b>"), "{svg}");
            assert!(svg.len() < 60_000, "{}", svg.len());
        }
    }

    #[test]
    fn numbers_are_written_in_full() {
        let csv = plot().csv();
        let mut lines = csv.lines();
        assert_eq!(lines.next(), Some("round,\"a, <b>\",c,bigram"));
        assert_eq!(lines.next(), Some("0,1,2,2.5"));
        assert_eq!(lines.count(), 999);
    }

    #[test]
    fn series_of_different_length_share_their_lines() {
        let mut plot = plot();
        assert_eq!(plot.svg(Size::Wide).matches("<circle").count(), 0);
        plot.series[0].points = vec![(1.0, 5.0)];
        plot.series[1].points = vec![(0.0, 6.0), (1.0, 7.0)];
        assert_eq!(plot.svg(Size::Wide).matches("<circle").count(), 3);
        assert_eq!(plot.csv(), "round,\"a, <b>\",c,bigram\n0,,6,2.5\n1,5,7,2.5\n");
    }

    #[test]
    fn marks_of_one_kind_at_one_place_are_one() {
        let mut plot = plot();
        let mark = |at: f64, kind, text: &str| Mark { at, kind, text: text.into() };
        let bans = (0..100).map(|round| mark(100.0 + f64::from(round), MarkKind::Ban, "another"));
        let before = plot.svg(Size::Wide).matches("<polygon").count();
        plot.mark(
            [mark(7.0, MarkKind::Cheat, "ada"), mark(7.0, MarkKind::Cheat, "bob")].into_iter().chain(bans),
        );
        assert_eq!(plot.marks[0], mark(7.0, MarkKind::Cheat, "ada; bob"));
        assert_eq!(plot.marks.len(), 1 + MARKS);
        assert_eq!(plot.svg(Size::Wide).matches("<polygon").count() - before, 1 + MARKS);
        let legend = plot.legend();
        let words: Vec<&str> = legend.iter().map(|(_, words)| words.as_str()).collect();
        assert_eq!(words, ["a, <b>", "c", "bigram: 2.5", "false work begins", "ban (64)"]);
        assert_eq!(legend[3].0, "mark cheat");
    }

    #[test]
    fn a_browser_is_given_every_number_of_a_short_run_and_means_of_a_long_one() {
        let mut plot = plot();
        let given = |plot: &Plot| -> serde_json::Value { serde_json::from_str(&plot.json()).unwrap() };
        let points = |value: &serde_json::Value| value["series"][0]["points"].as_array().unwrap().len();
        let value = given(&plot);
        assert_eq!((value["kind"].as_str(), points(&value)), (Some("lines"), 1_000));
        assert_eq!(value["levels"][0][1], 2.5);
        plot.series[0].points = (0..10_001).map(|x| (f64::from(x), 1.0 / 3.0)).collect();
        let value = given(&plot);
        assert_eq!((points(&value), &value["series"][0]["points"][0][1]), (3_334, &0.333333.into()));
    }

    #[test]
    fn numbers_for_people() {
        let all = [0.0, 1.5, 1.5482, 250.0, 12_345.0, 2.5e6, 0.000_04].map(shown);
        assert_eq!(all, ["0", "1.5", "1.548", "250", "12.3 k", "2.50 M", "4.0e-5"]);
    }
}
