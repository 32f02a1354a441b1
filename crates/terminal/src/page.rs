//! A page of results that needs nothing else: HTML, and plots as inline SVG.
//!
//! # Contract
//! Nothing is loaded, and equal figures give equal bytes. Lines and letters take the page's own
//! colour: readable on a light and on a dark ground.
use std::fmt::{Result, Write};

const STYLE: &str = "\
:root { color-scheme: light dark; }\n\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; }\n\
body { margin: 2rem auto; padding: 0 1rem; }\n\
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2.5rem 0 0; }\n\
p { margin: .3rem 0 .8rem; }\n\
svg { display: block; max-width: 100%; height: auto; font: 12px system-ui, sans-serif; }\n\
svg { margin: .4rem 0; }\n\
svg text { fill: currentColor; }\n\
.g { stroke: currentColor; stroke-opacity: .15; }\n";

/// A whole page; `style`: rules of CSS beside those that all pages have.
pub fn page(title: &str, style: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
         <style>\n{STYLE}{style}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
}

/// Text as HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// A round step of which three to seven make up `most`.
pub fn tick(most: f64) -> f64 {
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
    use super::{escaped, tick};

    #[test]
    fn ticks_are_round() {
        let ticks = [1.0, 6.0, 8.0, 330.0, 2400.0, 9000.0].map(tick);
        assert_eq!(ticks, [1.0, 1.0, 2.0, 50.0, 500.0, 2000.0]);
    }

    #[test]
    fn letters_with_a_meaning_are_escaped() {
        assert_eq!(escaped("a<b & c>d"), "a&lt;b &amp; c&gt;d");
    }
}
