//! `guira lab list`: the figures.

use guira_lab::experiment::figures;
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{Output, fields};

/// A figure in JSON.
#[derive(Serialize)]
struct Figure {
    id: &'static str,
    title: &'static str,
    about: &'static str,
}

/// Lists the figures, one per line.
pub fn run(output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Answer {
        figures: Vec<Figure>,
    }
    let figures = figures().iter().map(|figure| Figure { id: figure.id, title: figure.title, about: figure.about });
    let answer = Answer { figures: figures.collect() };
    output.answer(&answer, || {
        let lines: Vec<(&str, String)> =
            answer.figures.iter().map(|figure| (figure.id, figure.title.to_owned())).collect();
        fields(&lines)
    })
}
