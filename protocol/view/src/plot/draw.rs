//! Charts as SVG, drawn by plotters, which needs no font, no C and no script: for reports, and for browsers without scripts.

use std::ops::Range;

use plotters::prelude::*;

use super::{Kind, MarkKind, Plot, shown, thinned};

/// Points of a line that are drawn; a longer one is drawn by means.
const POINTS: usize = 440;
/// Points of a line that are marked; of more, none is.
const MARKED: usize = 24;
/// Those of `style.css`: dark enough for white paper, and told apart by people who see no red or green (after Okabe and Ito,
/// darkened).
const COLOURS: [RGBColor; super::COLOURS] = [
    RGBColor(0, 90, 156),
    RGBColor(180, 75, 0),
    RGBColor(0, 115, 85),
    RGBColor(160, 60, 120),
    RGBColor(95, 95, 95),
    RGBColor(40, 125, 170),
    RGBColor(140, 110, 0),
    RGBColor(110, 40, 40),
];

/// How large a chart is drawn, so that its letters can be read where it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// The width of a desk's screen.
    Wide,
    /// The width of a telephone.
    Small,
}

impl Size {
    /// In pixels.
    pub fn pixels(self) -> (u32, u32) {
        match self {
            Self::Wide => (1120, 320),
            Self::Small => (420, 270),
        }
    }
}

impl MarkKind {
    fn colour(self) -> RGBColor {
        match self {
            Self::Restart => RGBColor(86, 97, 107),
            Self::Cheat => RGBColor(176, 104, 0),
            Self::Ban => RGBColor(163, 32, 28),
            Self::Rewind => RGBColor(110, 60, 150),
        }
    }
}

impl Plot {
    /// The chart. What its lines stand for is beside it, where nothing is covered.
    pub fn svg(&self, size: Size) -> String {
        let mut svg = String::new();
        // The backend writes into a string, which does not fail; what else may fail is a range without a number in it.
        if let Err(error) = self.draw(&mut svg, size) {
            tracing::warn!("the chart {:?} cannot be drawn: {error}", self.title);
        }
        svg
    }

    fn draw(&self, svg: &mut String, size: Size) -> Result<(), Box<dyn std::error::Error>> {
        let root = SVGBackend::with_string(svg, size.pixels()).into_drawing_area();
        let layers = self.layers();
        let (xs, ys) = self.ranges(&layers);
        let mut chart = ChartBuilder::on(&root)
            .margin(8)
            .margin_right(22)
            .x_label_area_size(38)
            .y_label_area_size(62)
            .build_cartesian_2d(xs.clone(), ys.clone())?;
        chart
            .configure_mesh()
            .x_desc(self.x.as_str())
            .y_desc(self.y.as_str())
            .x_label_formatter(&|x| shown(*x))
            .y_label_formatter(&|y| shown(*y))
            .x_labels(self.labels(size, &xs))
            .y_labels(if size == Size::Wide { 8 } else { 6 })
            .label_style(("sans-serif", 15))
            .light_line_style(RGBColor(240, 242, 244))
            .bold_line_style(RGBColor(213, 219, 225))
            .draw()?;
        for mark in &self.marks {
            let line = [(mark.at, ys.start), (mark.at, ys.end)];
            chart.draw_series(DashedLineSeries::new(line, 4, 3, mark.kind.colour().stroke_width(1)))?;
            let top = TriangleMarker::new((mark.at, ys.end), -6, mark.kind.colour().filled());
            chart.draw_series(std::iter::once(top))?;
        }
        // From the outermost layer in, so that each covers what lies below it.
        let drawn: Vec<_> = layers.iter().zip(COLOURS.iter().cycle()).collect();
        for (points, colour) in drawn.into_iter().rev() {
            let points = points.iter().copied();
            match self.kind {
                Kind::Areas => {
                    chart.draw_series(AreaSeries::new(points, 0.0, colour.filled()))?;
                }
                Kind::Lines => {
                    let marked = points.clone().filter(|_| points.len() <= MARKED);
                    chart.draw_series(marked.map(|at| Circle::new(at, 4, colour.filled())))?;
                    chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
                }
                Kind::Points => {
                    chart.draw_series(points.map(|at| Circle::new(at, 5, colour.filled())))?;
                }
            }
        }
        for ((_, level), (dash, gap)) in self.levels.iter().zip([(8, 4), (2, 4)].into_iter().cycle()) {
            let line = [(xs.start, *level), (xs.end, *level)];
            chart.draw_series(DashedLineSeries::new(
                line,
                dash,
                gap,
                RGBColor(80, 80, 80).stroke_width(1),
            ))?;
        }
        root.present()?;
        drop(chart);
        Ok(())
    }

    /// How many numbers stand along it.
    fn labels(&self, size: Size, xs: &Range<f64>) -> usize {
        match (self.kind, size) {
            (Kind::Points, _) => (xs.end - xs.start) as usize + 1,
            (_, Size::Wide) => 11,
            (_, Size::Small) => 5,
        }
    }

    /// What is drawn of each series: few enough points, lying on the series before it where they are stacked.
    fn layers(&self) -> Vec<Vec<(f64, f64)>> {
        let mut below: Vec<(f64, f64)> = Vec::new();
        let thinned = self.series.iter().map(|series| thinned(&series.points, POINTS));
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
        let marks = self.marks.iter().map(|mark| mark.at);
        let xs = spanned(points().map(|(x, _)| *x).chain(marks));
        let ys = spanned(points().map(|(_, y)| *y).chain(levels));
        let room = 0.06 * (ys.end - ys.start);
        let low = if self.kind != Kind::Lines || ys.start >= 0.0 && ys.start < 0.4 * ys.end {
            0.0
        } else {
            ys.start - room
        };
        let xs = if self.kind == Kind::Points { xs.start.floor() - 1.0..xs.end.ceil() + 1.0 } else { xs };
        (xs, low..ys.end + room)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_style_sheet_has_the_colours_of_the_drawings() {
        let style = include_str!("../../assets/style.css");
        for (place, RGBColor(red, green, blue)) in (1..).zip(COLOURS) {
            let colour = format!("--s{place}: #{red:02x}{green:02x}{blue:02x};");
            assert!(style.contains(&colour), "{colour}");
        }
        for kind in [MarkKind::Restart, MarkKind::Cheat, MarkKind::Ban, MarkKind::Rewind] {
            let RGBColor(red, green, blue) = kind.colour();
            let colour = format!("--{}: #{red:02x}{green:02x}{blue:02x};", kind.class());
            assert!(style.contains(&colour), "{colour}");
        }
    }
}
