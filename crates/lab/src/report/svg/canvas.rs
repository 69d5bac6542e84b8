//! A canvas: an SVG that grows downwards.
//!
//! No font is measured: widths of texts are estimated, and the estimates are generous.

use super::super::style::{BACKGROUND, BORDER, FAINT, FONT, TEXT};
use super::super::text::escaped;

/// Width of a chart. At this width a text of [`TEXT_SIZE`] has some 11 pixels on a phone of 360.
pub(super) const WIDTH: f64 = 480.0;
/// Size of most text.
pub(super) const TEXT_SIZE: f64 = 16.0;
/// Size of text at ticks and in cells.
pub(super) const SMALL_SIZE: f64 = 14.5;
/// Size of the heading.
pub(super) const TITLE_SIZE: f64 = 18.0;
/// Space at the edges.
pub(super) const MARGIN: f64 = 14.0;
/// The estimated width of a letter, relative to the size of the text: that of a wide letter in common fonts.
const LETTER_WIDTH: f64 = 0.58;

/// The position of a text relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// An SVG that is being drawn.
pub(super) struct Canvas {
    out: String,
    /// Everything drawn so far is above it.
    pub(super) bottom: f64,
}

/// A text and how it is written.
pub(super) struct Label<'t> {
    pub(super) text: &'t str,
    pub(super) size: f64,
    pub(super) anchor: Anchor,
    /// The class: `text` or `faint`.
    pub(super) class: &'static str,
}

impl<'t> Label<'t> {
    /// A text at a tick.
    pub(super) fn small(text: &'t str, anchor: Anchor) -> Label<'t> {
        Label { text, size: SMALL_SIZE, anchor, class: "faint" }
    }

    /// A text in normal size.
    pub(super) fn normal(text: &'t str, anchor: Anchor) -> Label<'t> {
        Label { text, size: TEXT_SIZE, anchor, class: "text" }
    }
}

/// Returns the estimated width of a text.
pub(super) fn width_of(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * LETTER_WIDTH
}

/// Breaks a text into lines that are not wider than `width`, between words. A word that is wider is cut.
pub(super) fn wrapped(text: &str, size: f64, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let word = cut(word, size, width);
        match lines.last_mut() {
            Some(line) if width_of(line, size) + width_of(&word, size) + size * LETTER_WIDTH <= width => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}

/// Cuts a text that is wider than `width`.
pub(super) fn cut(text: &str, size: f64, width: f64) -> String {
    if width_of(text, size) <= width {
        return text.to_owned();
    }
    let letters = (width / (size * LETTER_WIDTH)).floor().max(1.0) as usize;
    text.chars().take(letters - 1).chain(std::iter::once('…')).collect()
}

impl Canvas {
    /// An empty canvas.
    pub(super) fn new() -> Canvas {
        Canvas { out: String::new(), bottom: MARGIN }
    }

    /// A canvas with a heading.
    pub(super) fn with_heading(title: &str) -> Canvas {
        let mut canvas = Canvas::new();
        for line in wrapped(title, TITLE_SIZE, WIDTH - 2.0 * MARGIN) {
            canvas.bottom += TITLE_SIZE * 1.25;
            let line = escaped(&line);
            let y = canvas.bottom - TITLE_SIZE * 0.3;
            canvas.raw(&format!(
                "<text class=\"text\" x=\"{MARGIN}\" y=\"{y:.1}\" font-size=\"{TITLE_SIZE}\" font-weight=\"600\" \
                 fill=\"{TEXT}\">{line}</text>\n"
            ));
        }
        canvas
    }

    /// Adds elements.
    pub(super) fn raw(&mut self, elements: &str) {
        self.out += elements;
    }

    /// Adds a text whose base line is at `y`.
    pub(super) fn text(&mut self, x: f64, y: f64, label: &Label<'_>) {
        self.turned(x, y, 0.0, label);
    }

    /// Adds a text that is turned by so many degrees around its point.
    pub(super) fn turned(&mut self, x: f64, y: f64, degrees: f64, label: &Label<'_>) {
        let anchor = match label.anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let turn =
            if degrees == 0.0 { String::new() } else { format!(" transform=\"rotate({degrees} {x:.1} {y:.1})\"") };
        let fill = if label.class == "faint" { FAINT } else { TEXT };
        let (class, size, text) = (label.class, label.size, escaped(label.text));
        self.raw(&format!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{fill}\"{anchor}{turn}>\
             {text}</text>\n"
        ));
    }

    /// Returns the document.
    pub(super) fn finish(self, title: &str) -> String {
        let height = (self.bottom + MARGIN).ceil();
        let (title, out) = (escaped(title), self.out);
        let (right, bottom) = (WIDTH - 1.0, height - 1.0);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" font-family=\"{FONT}\" role=\"img\">\n<title>{title}</title>\n\
             <rect class=\"background\" x=\"0.5\" y=\"0.5\" width=\"{right}\" height=\"{bottom}\" rx=\"8\" \
             fill=\"{BACKGROUND}\" stroke=\"{BORDER}\"/>\n{out}</svg>\n"
        )
    }
}
