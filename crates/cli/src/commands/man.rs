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
/// To read it: guira man | man -l -. To install the pages: write them to ~/.local/share/man/man1. The page of lab ask
/// is guira-lab-ask, and so on.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Print the page of this command instead: create, or lab ask.
    #[arg(value_name = "COMMAND", conflicts_with = "out")]
    pub page: Vec<String>,
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
            let page = page_of(&arguments.page)?;
            output.answer(&page, || page.page.trim_end().to_owned())?;
        }
    }
    Ok(Verdict::Fine)
}

/// Returns the page of a command, which is given by the words after `guira`.
fn page_of(command: &[String]) -> Result<Page, Failure> {
    let file = [&["guira".to_owned()], command].concat().join("-") + "." + SECTION;
    let found = pages()?.into_iter().find(|page| page.file == file);
    found.ok_or_else(|| Failure::Misuse(format!("unknown command {:?}; see guira --help", command.join(" "))))
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

/// Returns the program's page and those of its commands and their commands.
fn pages() -> Result<Vec<Page>, Failure> {
    let program = program();
    let commands = commands_of(&program).map(|command| page(command.clone(), Ending::SeeAlso));
    let pages: io::Result<Vec<Page>> =
        std::iter::once(page(program.clone(), Ending::ExitStatus)).chain(commands).collect();
    pages.map_err(Failure::host("make the manual"))
}

/// Returns the program as the manual describes it: without `help`, which only prints what the pages say.
fn program() -> clap::Command {
    fn without_help(command: clap::Command) -> clap::Command {
        command.disable_help_subcommand(true).mut_subcommands(without_help)
    }
    let mut program = without_help(arguments::public());
    program.build();
    program
}

/// Yields the commands below `command` that are shown, each before its own.
fn commands_of(command: &clap::Command) -> Box<dyn Iterator<Item = &clap::Command> + '_> {
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    Box::new(shown.flat_map(|command| std::iter::once(command).chain(commands_of(command))))
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
    let has_commands = commands_of(&command).next().is_some();
    let man = Man::new(command).section(SECTION).source(concat!("guira ", env!("CARGO_PKG_VERSION"))).manual("Guira");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if has_commands {
        man.render_subcommands_section(&mut text)?;
    }
    match ending {
        Ending::ExitStatus => exit_status(&mut text)?,
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
        assert_eq!(check_commands_of(&program, "guira", &pages) + 1, pages.len());
        for hidden in ["worker(1)", "peers-helper", "-help(1)"] {
            assert!(pages.iter().all(|page| !page.page.replace('\\', "").contains(hidden)), "{hidden}");
        }
    }

    /// Checks that each command below `command` has a page, and is named on that of `command`. Returns their number.
    fn check_commands_of(command: &clap::Command, name: &str, pages: &[Page]) -> usize {
        let of = |file: &str| pages.iter().find(|page| page.file == file).map(|page| page.page.replace('\\', ""));
        let parent = of(&format!("{name}.1")).expect("every command has a page");
        let is_shown = |command: &&clap::Command| command.get_name() != "help" && !command.is_hide_set();
        let mut count = 0;
        for command in command.get_subcommands().filter(is_shown) {
            let name = format!("{name}-{}", command.get_name());
            assert!(parent.contains(&format!("{name}(1)")), "{name}: {parent}");
            let page = of(&format!("{name}.1")).expect("every command has a page");
            assert!(page.contains(&format!("{name} - ")), "{page}");
            for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
                let shown = match argument.get_long() {
                    Some(option) => format!("--{option}"),
                    None => argument.get_value_names().expect("positional arguments have names")[0].to_string(),
                };
                assert!(page.contains(&shown), "{name} {shown}: {page}");
            }
            count += 1 + check_commands_of(command, &name, pages);
        }
        count
    }

    #[test]
    fn pages_are_ascii() {
        assert!(pages().unwrap().iter().all(|page| page.page.is_ascii()));
        assert_eq!(ascii("a…\n"), "a\\[u2026]\n");
    }

    #[test]
    fn a_page_is_named_by_its_command() {
        let page_of = |line: &str| page_of(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        for (line, file) in [("", "guira.1"), ("create", "guira-create.1"), ("lab ask", "guira-lab-ask.1")] {
            assert_eq!(page_of(line).unwrap().file, file);
        }
        for line in ["ycsb-worker", "bench peers-helper", "lab help", "ask"] {
            assert!(matches!(page_of(line), Err(Failure::Misuse(_))), "{line}");
        }
    }

    #[test]
    fn exit_codes_are_on_the_page_of_the_program() {
        let page = page_of(&[]).unwrap().page;
        for (code, _) in EXIT_CODES {
            assert!(page.contains(&format!("\\fB{code}\\fR")), "{page}");
        }
    }
}
