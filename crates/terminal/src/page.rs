//! A page of results that needs nothing else: HTML, and plots as inline SVG.
//!
//! # Contract
//! Nothing is loaded, and equal figures give equal bytes. Lines and letters take the page's own
//! colour: readable on a light and on a dark ground. On a phone the page itself does not scroll
//! sideways, and letters of plots stay as large as text.
use std::fmt::{Result, Write};

/// Plots and tables, which are wider than a phone, scroll in boxes of their own (`wide`).
const STYLE: &str = "\
:root { color-scheme: light dark; }\n\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 1.5rem auto; }\n\
body { padding: 0 1rem; overflow-wrap: anywhere; }\n\
@media (prefers-color-scheme: dark) { html { background: #121212; color: #e6e6e6; } }\n\
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2.5rem 0 0; }\n\
p { margin: .3rem 0 .8rem; }\n\
.wide { overflow-x: auto; margin: .4rem 0 .8rem; }\n\
svg { display: block; width: 100%; min-width: 34rem; max-width: 46rem; height: auto; }\n\
svg { font: 13px system-ui, sans-serif; }\n\
svg text { fill: currentColor; }\n\
.g { stroke: currentColor; stroke-opacity: .15; }\n\
table { border-collapse: collapse; white-space: nowrap; font-size: 14px; }\n\
table { font-variant-numeric: tabular-nums; }\n\
th, td { padding: .1rem 1rem .1rem 0; text-align: right; }\n\
th { border-bottom: 1px solid #8888; } .w { text-align: left; }\n\
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .4em 0 0; }\n\
.bar { display: flex; width: 9rem; height: .9em; background: #8883; }\n";

/// A whole page; `style`: rules of CSS beside those that all pages have.
pub fn page(title: &str, style: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}{style}</style>\n</head>\n\
         <body>\n{body}</body>\n</html>\n"
    )
}

/// Something wider than a phone, in a box in which it scrolls.
pub fn wide(inside: &str) -> String {
    format!("<div class=\"wide\">{inside}</div>\n")
}

/// A square of a colour, before what has it in a plot.
pub fn key(colour: &str) -> String {
    format!("<span class=\"key\" style=\"background:{colour}\"></span>")
}

/// A bar of parts of its whole: the width of each (0…1), its opacity, and its name.
pub fn bar(colour: &str, parts: &[(f64, f64, String)]) -> String {
    let mut bar = String::from("<div class=\"bar\">");
    for (width, opacity, name) in parts {
        let width = 100.0 * width.clamp(0.0, 1.0);
        bar.push_str(&format!(
            "<span title=\"{}\" style=\"width:{width:.1}%;opacity:{opacity};\
             background:{colour}\"></span>",
            escaped(name)
        ));
    }
    bar + "</div>"
}

/// Text as HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A round step of which three to seven make up `most`.
///
/// # Panics
/// If `most` is no number.
pub fn tick(most: f64) -> f64 {
    assert!(most.is_finite(), "an axis up to {most}");
    let mut tick = 1.0;
    for factor in [2.0, 2.5, 2.0].iter().cycle() {
        if most / tick < 7.0 {
            break;
        }
        tick *= factor;
    }
    tick
}

/// The place of a plot in its SVG element; both axes go from 0 to 1.
pub struct Frame {
    /// Of the upper left corner.
    pub left: f64,
    /// See `left`.
    pub top: f64,
    /// Size.
    pub width: f64,
    /// See `width`.
    pub height: f64,
}

impl Frame {
    /// Where a part of the width is.
    pub fn x(&self, part: f64) -> f64 {
        self.left + self.width * part
    }

    /// Where a part of the height is.
    pub fn y(&self, part: f64) -> f64 {
        self.top + self.height * (1.0 - part)
    }

    /// A line across, with its label at the left.
    pub fn row(&self, svg: &mut String, part: f64, label: &str) -> Result {
        let (y, right) = (self.y(part), self.x(1.0));
        write!(
            svg,
            "<path class=\"g\" d=\"M{:.1} {y:.1}H{right:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{label}</text>",
            self.left,
            self.left - 6.0,
            y + 4.0,
        )
    }

    /// A line upwards, with its label below.
    pub fn column(&self, svg: &mut String, part: f64, label: &str) -> Result {
        let (x, bottom) = (self.x(part), self.y(0.0));
        write!(
            svg,
            "<path class=\"g\" d=\"M{x:.1} {:.1}V{bottom:.1}\"/><text x=\"{x:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\">{label}</text>",
            self.top,
            bottom + 16.0,
        )
    }

    /// A line of text above the plot.
    pub fn title(&self, svg: &mut String, text: &str) -> Result {
        let y = self.top - 9.0;
        write!(
            svg,
            "<text x=\"{:.1}\" y=\"{y:.1}\">{text}</text>",
            self.left
        )
    }

    /// A line through points.
    pub fn line(&self, svg: &mut String, points: &[(f64, f64)], colour: &str) -> Result {
        let points: Vec<String> = points
            .iter()
            .map(|&(x, y)| format!("{:.1},{:.1}", self.x(x), self.y(y)))
            .collect();
        write!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\" \
             stroke-linejoin=\"round\" points=\"{}\"/>",
            points.join(" ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{bar, escaped, tick};

    #[test]
    fn ticks_are_round() {
        let ticks = [1.0, 6.0, 8.0, 330.0, 2400.0, 9000.0].map(tick);
        assert_eq!(ticks, [1.0, 1.0, 2.0, 50.0, 500.0, 2000.0]);
    }

    #[test]
    fn letters_with_a_meaning_are_escaped() {
        assert_eq!(escaped("a<b & \"c\">d"), "a&lt;b &amp; &quot;c&quot;&gt;d");
    }

    #[test]
    fn bars_have_a_named_part_for_each_share() {
        let bar = bar(
            "#123456",
            &[(0.25, 1.0, "fast".into()), (7.0, 0.5, "slow".into())],
        );
        assert!(bar.contains("title=\"fast\" style=\"width:25.0%"), "{bar}");
        assert!(bar.contains("title=\"slow\" style=\"width:100.0%"), "{bar}");
    }
}
