//! Progress of long operations: a bar on a terminal, a line every few seconds elsewhere, nothing with JSON.
//!
//! Invariant: a tick that shows nothing costs one clock reading; an operation that ends at once shows nothing.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::{Format, Output};
use crate::units;

/// Time between two lines: long enough for a log file.
const LINE_INTERVAL: Duration = Duration::from_secs(5);
/// Time before which the remaining time is not estimated.
const ESTIMATE_AFTER: Duration = Duration::from_secs(1);
/// Time between two updates of a bar: as often as eyes can follow.
const BAR_INTERVAL: Duration = Duration::from_millis(100);

/// The progress display of one operation.
pub struct Progress {
    what: String,
    total: Option<u64>,
    started: Instant,
    shown_at: Instant,
    display: Display,
}

enum Display {
    Hidden,
    Lines,
    Bar(ProgressBar),
}

impl Progress {
    /// Creates the display of the operation `what`, with `total` units if known.
    pub fn new(output: &Output, what: impl Into<String>, total: Option<u64>) -> Progress {
        let what = what.into();
        let display = match output.format() {
            Format::Json => Display::Hidden,
            Format::Human if io::stderr().is_terminal() => Display::Bar(bar(total, what.clone())),
            Format::Human => Display::Lines,
        };
        let now = Instant::now();
        Progress { what, total, started: now, shown_at: now, display }
    }

    /// Sets the total number of units.
    pub fn set_total(&mut self, total: u64) {
        if self.total != Some(total) {
            self.total = Some(total);
            if let Display::Bar(bar) = &mut self.display {
                bar.finish_and_clear();
                self.display = Display::Bar(self::bar(Some(total), self.what.clone()));
            }
        }
    }

    /// Shows that `done` units are done, unless the display was updated recently.
    pub fn tick(&mut self, done: u64, text: impl FnOnce() -> String) {
        let interval = match self.display {
            Display::Hidden => return,
            Display::Lines => LINE_INTERVAL,
            Display::Bar(_) => BAR_INTERVAL,
        };
        if self.shown_at.elapsed() < interval {
            return;
        }
        self.shown_at = Instant::now();
        let left = self.total.and_then(|total| time_left(self.started.elapsed(), done, total));
        let text = || text() + &left.map_or(String::new(), |left| format!(", {left} left"));
        match &self.display {
            Display::Hidden => {}
            Display::Bar(bar) => {
                bar.set_message(text());
                bar.set_position(done);
            }
            Display::Lines => {
                let part = self.total.filter(|total| *total > 0);
                let part =
                    part.map_or(String::new(), |total| format!(" {}:", units::percent(units::share(done, total))));
                // A closed standard error is ignored.
                let _ = writeln!(io::stderr().lock(), "{}:{part} {}", self.what, text());
            }
        }
    }

    /// Removes the bar.
    pub fn finish(&mut self) {
        if let Display::Bar(bar) = &self.display {
            bar.finish_and_clear();
        }
    }
}

/// Estimates the remaining time from the speed so far; returns `None` if it is too early for an estimate.
fn time_left(elapsed: Duration, done: u64, total: u64) -> Option<String> {
    if elapsed < ESTIMATE_AFTER || done == 0 || done >= total {
        return None;
    }
    let seconds = elapsed.as_secs_f64() * (total - done) as f64 / done as f64;
    Some(units::duration(seconds as u64 + 1))
}

fn bar(total: Option<u64>, what: String) -> ProgressBar {
    let (bar, template) = match total {
        Some(total) => (ProgressBar::new(total), "{prefix} {bar:16} {percent:>3} % {wide_msg}"),
        None => (ProgressBar::new_spinner(), "{prefix} {spinner} {wide_msg}"),
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style).with_prefix(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_that_of_the_part_left() {
        let left = |elapsed_s, done| time_left(Duration::from_secs(elapsed_s), done, 100);
        assert_eq!(left(10, 50).unwrap(), "11 s");
        assert_eq!(left(10, 10).unwrap(), "1 min 31 s");
        for (elapsed_s, done) in [(0, 50), (10, 0), (10, 100), (10, 101)] {
            assert_eq!(left(elapsed_s, done), None, "{done} in {elapsed_s} s");
        }
    }
}
