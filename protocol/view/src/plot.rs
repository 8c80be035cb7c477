//! Charts: drawn as SVG by plotters, which needs no font, no C and no script, and written as CSV.

use std::fmt::Write;
use std::ops::Range;

use plotters::prelude::*;

/// Width and height of a chart.
const SIZE: (u32, u32) = (880, 300);
/// Points of a line that are drawn; a longer one is drawn by means.
const POINTS: usize = 440;
/// Points of a line that are marked; of more, none is.
const MARKED: usize = 24;
/// Dark enough for white paper, and told apart by people who see no red or green (after Okabe and Ito, darkened).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 90, 156),
    RGBColor(180, 75, 0),
    RGBColor(0, 115, 85),
    RGBColor(160, 60, 120),
    RGBColor(95, 95, 95),
    RGBColor(40, 125, 170),
    RGBColor(140, 110, 0),
    RGBColor(110, 40, 40),
];

/// A chart with its numbers.
#[derive(Clone, Default)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// Sentences that a reader of the chart needs.
    pub notes: Vec<String>,
    /// What lies along it.
    pub x: String,
    /// What is measured, with its unit.
    pub y: String,
    /// Lines.
    pub series: Vec<Series>,
    /// Level lines: what they stand for, and where they are.
    pub levels: Vec<(String, f64)>,
    /// How the series are drawn.
    pub kind: Kind,
}

/// How series are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Default)]
pub struct Series {
    /// What it is of.
    pub name: String,
    /// Its points, in order.
    pub points: Vec<(f64, f64)>,
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

    /// The chart.
    pub fn svg(&self) -> String {
        let mut svg = String::new();
        // The backend writes into a string, which does not fail; what else may fail is a range without a number in it.
        if let Err(error) = self.draw(&mut svg) {
            tracing::warn!("the chart {:?} cannot be drawn: {error}", self.title);
        }
        svg
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        let layers = self.layers();
        let (xs, ys) = self.ranges(&layers);
        let mut chart = ChartBuilder::on(&root)
            .margin(10)
            .margin_right(24)
            .x_label_area_size(40)
            .y_label_area_size(64)
            .build_cartesian_2d(xs.clone(), ys)?;
        chart
            .configure_mesh()
            .x_desc(self.x.as_str())
            .y_desc(self.y.as_str())
            .x_label_formatter(&|x| shown(*x))
            .y_label_formatter(&|y| shown(*y))
            .x_labels(if self.kind == Kind::Points { (xs.end - xs.start) as usize + 1 } else { 11 })
            .label_style(("sans-serif", 15))
            .light_line_style(RGBColor(240, 242, 244))
            .bold_line_style(RGBColor(213, 219, 225))
            .draw()?;
        let colours = COLOURS.iter().cycle();
        // From the outermost layer in, so that each covers what lies below it.
        let drawn: Vec<_> = self.series.iter().zip(&layers).zip(colours).collect();
        for ((series, points), colour) in drawn.into_iter().rev() {
            let (points, colour) = (points.iter().copied(), *colour);
            let legend = move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled());
            let line = match self.kind {
                Kind::Areas => chart.draw_series(AreaSeries::new(points, 0.0, colour.filled()))?,
                Kind::Lines => {
                    let marks = points.clone().filter(|_| points.len() <= MARKED);
                    chart.draw_series(marks.map(|at| Circle::new(at, 4, colour.filled())))?;
                    chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?
                }
                Kind::Points => chart.draw_series(points.map(|at| Circle::new(at, 5, colour.filled())))?,
            };
            line.label(&series.name).legend(legend);
        }
        for (name, level) in &self.levels {
            let grey = RGBColor(80, 80, 80);
            chart.draw_series(DashedLineSeries::new(
                [(xs.start, *level), (xs.end, *level)],
                6,
                4,
                grey.stroke_width(1),
            ))?;
            let style = ("sans-serif", 14).into_font().color(&grey);
            chart.draw_series(std::iter::once(Text::new(format!(" {name}"), (xs.start, *level), style)))?;
        }
        if self.series.len() > 1 {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperRight)
                .background_style(WHITE.filled())
                .border_style(RGBColor(213, 219, 225))
                .label_font(("sans-serif", 14))
                .draw()?;
        }
        root.present()?;
        drop(chart);
        Ok(())
    }

    /// What is drawn of each series: few enough points, lying on the series before it where they are stacked.
    fn layers(&self) -> Vec<Vec<(f64, f64)>> {
        let mut below: Vec<(f64, f64)> = Vec::new();
        let thinned = self.series.iter().map(|series| thinned(&series.points));
        thinned
            .map(|mut points| {
                if self.kind == Kind::Areas {
                    points.iter_mut().zip(&below).for_each(|(point, below)| point.1 += below.1);
                    below.clone_from(&points);
                }
                points
            })
            .collect()
    }

    fn ranges(&self, layers: &[Vec<(f64, f64)>]) -> (Range<f64>, Range<f64>) {
        let points = || layers.iter().flatten();
        let levels = self.levels.iter().map(|(_, level)| *level);
        let xs = spanned(points().map(|(x, _)| *x));
        let ys = spanned(points().map(|(_, y)| *y).chain(levels));
        // Lines keep out of the way of their names.
        let names = if self.series.len() > 1 { 0.06 * self.series.len() as f64 } else { 0.0 };
        let room = 0.06 * (ys.end - ys.start);
        let low = if self.kind != Kind::Lines || ys.start >= 0.0 && ys.start < 0.4 * ys.end {
            0.0
        } else {
            ys.start - room
        };
        let xs = if self.kind == Kind::Points { xs.start.floor() - 1.0..xs.end.ceil() + 1.0 } else { xs };
        (xs, low..ys.end + room + names * (ys.end - ys.start))
    }
}

/// From the least to the largest; never empty.
fn spanned(values: impl Iterator<Item = f64>) -> Range<f64> {
    let finite = values.filter(|value| value.is_finite());
    let (low, high) =
        finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    match (low.is_finite(), high > low) {
        (false, _) => 0.0..1.0,
        (true, false) => low - 0.5..low + 0.5,
        (true, true) => low..high,
    }
}

/// At most [`POINTS`] points, each the mean of as many.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let each = points.len().div_ceil(POINTS).max(1);
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
        for plot in [plot(), Plot { kind: Kind::Areas, ..plot() }, Plot::default()] {
            let svg = plot.svg();
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
        assert_eq!(plot.svg().matches("<circle").count(), 0);
        plot.series[0].points = vec![(1.0, 5.0)];
        plot.series[1].points = vec![(0.0, 6.0), (1.0, 7.0)];
        assert_eq!(plot.svg().matches("<circle").count(), 3);
        assert_eq!(plot.csv(), "round,\"a, <b>\",c,bigram\n0,,6,2.5\n1,5,7,2.5\n");
    }

    #[test]
    fn numbers_for_people() {
        let all = [0.0, 1.5, 1.5482, 250.0, 12_345.0, 2.5e6, 0.000_04].map(shown);
        assert_eq!(all, ["0", "1.5", "1.548", "250", "12.3 k", "2.50 M", "4.0e-5"]);
    }
}
