//! `guira completions`: prints completion scripts for shells.

use clap::Args;
use clap_complete::Shell;
use serde::Serialize;

use super::Verdict;
use crate::arguments;
use crate::failure::Failure;
use crate::output::Output;

/// Print a script that completes commands and options in a shell.
///
/// Save it as ~/.local/share/bash-completion/completions/guira for bash, as ~/.config/fish/completions/guira.fish for
/// fish, or as _guira in a directory of fpath for zsh.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The shell.
    #[arg(value_enum)]
    pub shell: Shell,
}

#[derive(Serialize)]
struct Answer {
    shell: String,
    script: String,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let answer = Answer { shell: arguments.shell.to_string(), script: script(arguments.shell) };
    output.answer(&answer, || answer.script.trim_end().to_owned())?;
    Ok(Verdict::Fine)
}

fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut arguments::public(), "guira", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_shell_knows_every_command_and_option() {
        let mut command = arguments::public();
        command.build();
        for shell in Shell::value_variants() {
            let script = script(*shell);
            let words: Vec<&str> = script
                .split(|c: char| !(c.is_alphanumeric() || c == '-' || c == '_'))
                .filter(|w| !w.is_empty())
                .collect();
            for subcommand in command.get_subcommands() {
                assert!(words.contains(&subcommand.get_name()), "{shell}: {}", subcommand.get_name());
                for option in subcommand.get_arguments().filter_map(clap::Arg::get_long) {
                    // fish scripts have options without dashes.
                    let is_there = words.contains(&option) || words.contains(&format!("--{option}").as_str());
                    assert!(is_there, "{shell}: {} --{option}", subcommand.get_name());
                }
            }
            assert!(!script.contains("worker"), "{shell} completes hidden commands");
        }
    }
}
