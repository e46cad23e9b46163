//! Plots as SVG: lines over a logarithmic axis, drawn by hand so that they need nothing else.

use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 55.0;
/// Distinct colours for people with colour blindness too (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#000000"];

/// A line.
pub struct Line {
    /// Text in the legend.
    pub name: String,
    /// Its points, ascending in x.
    pub points: Vec<(f64, f64)>,
}

/// The scale of an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Axis {
    /// Linear, from 0.
    Linear,
    /// Logarithmic.
    Logarithmic,
}

/// One plot.
pub struct Plot {
    /// Title above the plot.
    pub title: String,
    /// Labels of the axes, with the unit.
    pub labels: [String; 2],
    /// Scales of the axes.
    pub axes: [Axis; 2],
    /// The lines.
    pub lines: Vec<Line>,
}

/// The range of an axis, and the way to its pixels.
struct Scale {
    axis: Axis,
    least: f64,
    most: f64,
    pixels: [f64; 2],
}

impl Scale {
    fn new(axis: Axis, values: impl Iterator<Item = f64> + Clone, pixels: [f64; 2]) -> Scale {
        let most = values.clone().fold(f64::MIN_POSITIVE, f64::max);
        let least = match axis {
            Axis::Linear => 0.0,
            Axis::Logarithmic => values.fold(most, f64::min).max(f64::MIN_POSITIVE),
        };
        let most = if axis == Axis::Linear { most * 1.05 } else { most };
        Scale { axis, least, most, pixels }
    }

    fn place(&self, value: f64) -> f64 {
        let share = match self.axis {
            Axis::Linear => value / self.most,
            Axis::Logarithmic if self.most == self.least => 0.5,
            Axis::Logarithmic => (value / self.least).ln() / (self.most / self.least).ln(),
        };
        self.pixels[0] + share * (self.pixels[1] - self.pixels[0])
    }

    /// Places of lines and numbers: each power of a logarithmic axis, or round steps.
    fn ticks(&self) -> Vec<f64> {
        match self.axis {
            Axis::Logarithmic => {
                let base: f64 = if self.most / self.least > 5000.0 { 10.0 } else { 2.0 };
                let first = (self.least.log(base) - 1e-9).ceil() as i32;
                let last = (self.most.log(base) + 1e-9).floor() as i32;
                (first..=last).map(|power| base.powi(power)).collect()
            }
            Axis::Linear => {
                let rough = self.most / 5.0;
                let power = 10_f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
                let step = step.into_iter().find(|step| *step >= rough).unwrap_or(rough);
                (0..=(self.most / step) as i32).map(|number| f64::from(number) * step).collect()
            }
        }
    }
}

fn number(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", value / 1e6),
        value if value >= 1e4 => format!("{}k", value / 1e3),
        value if value >= 10.0 || value == 0.0 => format!("{value:.0}"),
        value => format!("{}", (value * 1000.0).round() / 1000.0),
    }
}

impl Plot {
    /// The SVG text.
    pub fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| line.points.iter());
        let across = Scale::new(self.axes[0], points().map(|point| point.0), [LEFT, WIDTH - RIGHT]);
        let up = Scale::new(self.axes[1], points().map(|point| point.1), [HEIGHT - BOTTOM, TOP]);
        let mut out = String::new();
        let mut put = |text: String| {
            // Writing to a String cannot fail.
            writeln!(out, "{text}").unwrap_or_default();
        };
        put(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">"
        ));
        put(format!("<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>"));
        let text = |x: f64, y: f64, anchor: &str, text: &str| {
            let text = text.replace('&', "&amp;").replace('<', "&lt;");
            format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>")
        };
        let line = |x1: f64, y1: f64, x2: f64, y2: f64| {
            format!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#dddddd\"/>")
        };
        for tick in across.ticks() {
            let x = across.place(tick);
            put(line(x, TOP, x, HEIGHT - BOTTOM));
            put(text(x, HEIGHT - BOTTOM + 18.0, "middle", &number(tick)));
        }
        for tick in up.ticks() {
            let y = up.place(tick);
            put(line(LEFT, y, WIDTH - RIGHT, y));
            put(text(LEFT - 8.0, y + 4.0, "end", &number(tick)));
        }
        put(text(LEFT, TOP - 16.0, "start", &self.title));
        put(text((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14.0, "middle", &self.labels[0]));
        let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
        put(format!(
            "<text x=\"18\" y=\"{middle}\" text-anchor=\"middle\" transform=\"rotate(-90 18 {middle})\">{}</text>",
            self.labels[1]
        ));
        for (place, drawn) in self.lines.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let at = |point: &(f64, f64)| (across.place(point.0), up.place(point.1));
            let path: Vec<String> =
                drawn.points.iter().map(at).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            put(format!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                path.join(" ")
            ));
            for (x, y) in drawn.points.iter().map(at) {
                put(format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"));
            }
            let y = TOP + 16.0 * place as f64;
            let x = WIDTH - RIGHT + 14.0;
            put(format!(
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>",
                y - 9.0
            ));
            put(text(x + 16.0, y, "start", &drawn.name));
        }
        put("</svg>".to_owned());
        out
    }
}
