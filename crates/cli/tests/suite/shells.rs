//! Completions and manual pages, as shells and `man` take them.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

use crate::common::guira;

const SHELLS: [&str; 5] = ["bash", "elvish", "fish", "powershell", "zsh"];

/// The first words of the indented lines below a heading of a help text.
fn listed(help: &str, heading: &str) -> Vec<String> {
    let below = help.lines().skip_while(|line| !line.starts_with(heading)).skip(1);
    let lines = below.take_while(|line| line.is_empty() || line.starts_with(' '));
    lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

fn commands() -> Vec<String> {
    let names = listed(&guira(&["-h"]).expect(0).text(), "Commands:");
    assert!(names.len() > 10, "{names:?}");
    names
}

/// The long options that the help of a command lists: lines that start with a dash.
fn options(command: &str) -> BTreeSet<String> {
    let help = guira(&[command, "--help"]).expect(0).text();
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let words = lines.flat_map(|line| line.split([' ', ',']).take(3));
    words.filter(|word| word.len() > 2 && word.starts_with("--")).map(str::to_owned).collect()
}

/// Returns the completions of the last word in bash, with the script loaded.
fn completed(script: &str, words: &[&str]) -> BTreeSet<String> {
    let (last, before) = words.split_last().expect("there is a word to complete");
    let previous = before.last().expect("the program comes first");
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let (quoted, at) = (quoted.join(" "), words.len() - 1);
    let call = format!("COMP_WORDS=({quoted}); COMP_CWORD={at}; _guira guira '{last}' '{previous}'");
    let ask = format!("{script}\n{call}; printf '%s\\n' \"${{COMPREPLY[@]}}\"");
    let output = Command::new("bash").args(["--norc", "--noprofile", "-c", &ask]).output().expect("bash is installed");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{words:?}: {errors}");
    String::from_utf8(output.stdout).expect("names are text").lines().map(str::to_owned).collect()
}

#[test]
fn every_shell_has_a_script() {
    for shell in SHELLS {
        let script = guira(&["completions", shell]).expect(0).text();
        for command in commands() {
            assert!(script.contains(&command), "{shell}: {command}");
        }
        let json = guira(&["completions", shell, "--format", "json"]).expect(0).json();
        assert_eq!((&json["shell"], json["script"].as_str().unwrap().trim_end()), (&shell.into(), script.trim_end()));
    }
    guira(&["completions", "tcsh"]).expect(2);
}

#[test]
fn bash_loads_the_script() {
    let script = guira(&["completions", "bash"]).expect(0).text();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &script).unwrap();
    let output = Command::new("bash").arg("-n").arg(file.path()).output().expect("bash is installed");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let ask = "source \"$1\" && complete -p guira";
    let output = Command::new("bash").args(["--norc", "-c", ask, "bash"]).arg(file.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("_guira"), "the program has a completion");
}

#[test]
fn bash_completes_every_command_and_option() {
    let script = guira(&["completions", "bash"]).expect(0).text();
    let names: BTreeSet<String> = commands().into_iter().collect();
    let offered = completed(&script, &["guira", ""]);
    assert!(names.is_subset(&offered), "{names:?} of {offered:?}");
    assert!(!offered.iter().any(|name| name.contains("worker")), "{offered:?}");
    assert_eq!(completed(&script, &["guira", "cr"]), BTreeSet::from(["create".to_owned()]));
    for name in names.iter().filter(|name| *name != "help") {
        let expected = options(name);
        assert!(expected.contains("--format") && expected.contains("--help"), "{name}: {expected:?}");
        let offered = completed(&script, &["guira", name, "--"]);
        assert_eq!(offered, expected, "{name}");
    }
    assert_eq!(
        completed(&script, &["guira", "stat", "--format", ""]),
        BTreeSet::from(["human", "json"].map(str::to_owned))
    );
    assert!(completed(&script, &["guira", "completions", "z"]).contains("zsh"));
}

#[test]
fn every_command_has_a_manual_page() {
    let directory = tempfile::tempdir().unwrap();
    // One that is not there yet.
    let out = directory.path().join("share/man1");
    let written = guira(&["man", "--out", out.to_str().unwrap(), "--format", "json"]).expect(0).json();
    let mut files: Vec<String> =
        fs::read_dir(&out).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    let mut said: Vec<String> = serde_json::from_value(written["files"].clone()).unwrap();
    said.sort();
    assert_eq!(files, said);
    let mut expected: Vec<String> =
        commands().iter().filter(|name| *name != "help").map(|name| format!("guira-{name}.1")).collect();
    expected.push("guira.1".to_owned());
    let of_commands = ["bench-large", "bench-peers", "bench-records", "lab-all", "lab-ask", "lab-list", "lab-run"];
    expected.extend(of_commands.map(|name| format!("guira-{name}.1")));
    expected.sort();
    assert_eq!(files, expected);
    let root = fs::read_to_string(out.join("guira.1")).unwrap();
    assert_eq!(guira(&["man"]).expect(0).text().trim_end(), root.trim_end());
    let create = fs::read_to_string(out.join("guira-create.1")).unwrap();
    assert_eq!(guira(&["man", "create"]).expect(0).text().trim_end(), create.trim_end());
    for name in commands().iter().filter(|name| *name != "help") {
        let page = fs::read_to_string(out.join(format!("guira-{name}.1"))).unwrap().replace('\\', "");
        for option in options(name) {
            assert!(page.contains(&option), "{name} {option}");
        }
    }
    let ask = fs::read_to_string(out.join("guira-lab-ask.1")).unwrap();
    assert_eq!(guira(&["man", "lab", "ask"]).expect(0).text().trim_end(), ask.trim_end());
    guira(&["man", "frobnicate"]).expect(2);
    guira(&["man", "create", "--out", "x"]).expect(2);
    assert!(guira(&["man", "--out", "/proc/none/x"]).expect(3).stderr.contains("/proc/none/x"));
}

/// Every page, set by groff as `man` has it set, on a narrow terminal: no warning, and no line that is too long.
#[test]
fn groff_sets_every_page_without_a_warning() {
    let is_there = Command::new("groff").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !is_there {
        eprintln!("not run: there is no groff here");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    guira(&["man", "--out", directory.path().to_str().unwrap()]).expect(0);
    for file in fs::read_dir(directory.path()).unwrap() {
        let path = file.unwrap().path();
        let output =
            Command::new("groff").args(["-ww", "-man", "-Tutf8", "-rLL=80n", "-P-cbou"]).arg(&path).output().unwrap();
        let (text, warnings) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && warnings.is_empty(), "{}: {warnings}", path.display());
        for part in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"] {
            assert!(text.lines().any(|line| line == part), "{}: {part}: {text}", path.display());
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{}: {text}", path.display());
    }
}
