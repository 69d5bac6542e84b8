//! `guira man`: prints the manual pages.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use serde::Serialize;

use super::Verdict;
use crate::arguments;
use crate::failure::{ERROR_FORM, EXIT_CODES, Failure};
use crate::output::Output;
use crate::units::counted;

/// The section of the manual for programs.
const SECTION: &str = "1";

/// Print the manual page, or write the pages of all commands.
///
/// To read it: guira man | man -l -. To install the pages: write them to ~/.local/share/man/man1.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Print the page of this command instead.
    #[arg(value_name = "COMMAND", conflicts_with = "out")]
    pub page: Option<String>,
    /// Write the pages of the program and of each command to this directory, which is created if it does not exist.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// A page of the manual.
#[derive(Serialize)]
struct Page {
    /// The file name, such as `guira-create.1`.
    file: String,
    /// The text, in roff.
    page: String,
}

/// The pages that were written.
#[derive(Serialize)]
struct Written {
    directory: String,
    files: Vec<String>,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    match &arguments.out {
        Some(directory) => write(directory.clone(), output)?,
        None => {
            let page = page_of(arguments.page.as_deref())?;
            output.answer(&page, || page.page.trim_end().to_owned())?;
        }
    }
    Ok(Verdict::Fine)
}

fn page_of(name: Option<&str>) -> Result<Page, Failure> {
    let file = match name {
        Some(name) => format!("guira-{name}.{SECTION}"),
        None => format!("guira.{SECTION}"),
    };
    let found = pages()?.into_iter().find(|page| page.file == file);
    found.ok_or_else(|| Failure::Misuse(format!("unknown command {:?}; see guira --help", name.unwrap_or_default())))
}

fn write(directory: PathBuf, output: &Output) -> Result<(), Failure> {
    let shown = directory.display().to_string();
    fs::create_dir_all(&directory).map_err(Failure::host(format!("create the directory {shown}")))?;
    let mut files = Vec::new();
    for Page { file, page } in pages()? {
        let path = directory.join(&file);
        fs::write(&path, page).map_err(Failure::host(format!("write {}", path.display())))?;
        files.push(file);
    }
    let written = Written { directory: shown, files };
    let count = written.files.len() as u64;
    output.answer(&written, || format!("wrote {} to {}", counted(count, "page"), written.directory))
}

/// Returns the program's page and those of its commands.
fn pages() -> Result<Vec<Page>, Failure> {
    let mut program = arguments::public().disable_help_subcommand(true);
    program.build();
    let commands = program.get_subcommands().cloned().map(|command| page(command, Ending::SeeAlso));
    let pages: io::Result<Vec<Page>> =
        std::iter::once(page(program.clone(), Ending::ExitStatus)).chain(commands).collect();
    pages.map_err(Failure::host("make the manual"))
}

/// The last section of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The meaning of exit codes, on the program's page.
    ExitStatus,
    /// A reference to the program's page, on the page of a command.
    SeeAlso,
}

fn page(command: clap::Command, ending: Ending) -> io::Result<Page> {
    let man = Man::new(command).section(SECTION).source(concat!("guira ", env!("CARGO_PKG_VERSION"))).manual("Guira");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    match ending {
        Ending::ExitStatus => {
            man.render_subcommands_section(&mut text)?;
            exit_status(&mut text)?;
        }
        Ending::SeeAlso => see_also(&mut text)?,
    }
    Ok(Page { file: man.get_filename(), page: ascii(&String::from_utf8_lossy(&text)) })
}

/// Escapes non-ASCII characters by number, so that every roff prints them, whatever encoding it expects.
fn ascii(text: &str) -> String {
    let escaped = |c: char| if c.is_ascii() { c.to_string() } else { format!("\\[u{:04X}]", u32::from(c)) };
    text.chars().map(escaped).collect()
}

fn exit_status(to: &mut dyn Write) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in EXIT_CODES {
        roff.control("TP", []);
        roff.text([bold(code.to_string())]);
        roff.text([roman(meaning)]);
    }
    roff.control("PP", []);
    roff.text([roman(ERROR_FORM)]);
    roff.to_writer(to)
}

fn see_also(to: &mut dyn Write) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    roff.text([bold("guira"), roman("(1), which also explains exit codes")]);
    roff.to_writer(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_all_of_its_options() {
        let pages = pages().unwrap();
        let mut program = arguments::public();
        program.build();
        let of = |file: &str| pages.iter().find(|page| page.file == file).map(|page| page.page.replace('\\', ""));
        let root = of("guira.1").expect("the program has a page");
        let mut count = 1;
        for command in program.get_subcommands().filter(|command| command.get_name() != "help") {
            let name = command.get_name();
            assert!(root.contains(&format!("guira-{name}(1)")), "{name}: {root}");
            let page = of(&format!("guira-{name}.1")).expect("every command has a page");
            assert!(page.contains(&format!("guira-{name} - ")), "{page}");
            for argument in command.get_arguments() {
                let shown = match argument.get_long() {
                    Some(option) => format!("--{option}"),
                    None => argument.get_value_names().expect("positional arguments have names")[0].to_string(),
                };
                assert!(page.contains(&shown), "{name} {shown}: {page}");
            }
            count += 1;
        }
        assert_eq!(pages.len(), count);
        assert!(pages.iter().all(|page| !page.page.contains("worker\\(1)")));
    }

    #[test]
    fn pages_are_ascii() {
        assert!(pages().unwrap().iter().all(|page| page.page.is_ascii()));
        assert_eq!(ascii("a…\n"), "a\\[u2026]\n");
    }

    #[test]
    fn a_page_is_named_by_its_command() {
        assert_eq!(page_of(None).unwrap().file, "guira.1");
        assert_eq!(page_of(Some("create")).unwrap().file, "guira-create.1");
        assert!(matches!(page_of(Some("ycsb-worker")), Err(Failure::Misuse(_))));
    }

    #[test]
    fn exit_codes_are_on_the_page_of_the_program() {
        let page = page_of(None).unwrap().page;
        for (code, _) in EXIT_CODES {
            assert!(page.contains(&format!("\\fB{code}\\fR")), "{page}");
        }
    }
}
