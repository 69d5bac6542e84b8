//! The subjects of commits: short enough for every list of commits. The reason for a change is in the body.
//!
//! Only commits behind [`BASE`] are checked, merges included; older ones are history. Without that commit, in an
//! archive or in a shallow clone, there is nothing to check, and the report says so.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::report::{Report, Violation};

/// The last commit that is not checked.
const BASE: &str = "5776cd5b8329e358a85128ead5e82e25068f2355";
/// Characters of a subject.
const SUBJECT_CHARACTERS: usize = 72;
/// Digits of a commit's hash in a violation.
const HASH_DIGITS: usize = 12;

/// One commit.
#[derive(Debug, PartialEq, Eq)]
pub struct Commit {
    hash: String,
    subject: String,
}

/// Checks the subject of every commit; `None` if there is no history.
pub fn check(commits: Option<&[Commit]>) -> Report {
    let base = &BASE[..HASH_DIGITS];
    let looked_at = match commits {
        Some(commits) => format!("{} commits since {base}", commits.len()),
        None => format!("no commits: there is no git history since {base}"),
    };
    let violations = commits.unwrap_or_default().iter().filter_map(too_long).collect();
    Report { name: "subjects", looked_at, violations }
}

fn too_long(commit: &Commit) -> Option<Violation> {
    let length = commit.subject.chars().count();
    let reason = format!("the subject has {length} characters; the limit is {SUBJECT_CHARACTERS}: {}", commit.subject);
    let hash = commit.hash.get(..HASH_DIGITS).unwrap_or(&commit.hash);
    (length > SUBJECT_CHARACTERS).then(|| Violation::new(&format!("commit {hash}"), 1, reason))
}

/// The commits of HEAD that are not in the history of [`BASE`], newest first; `None` if HEAD does not descend from it.
pub fn read(root: &Path) -> Option<Vec<Commit>> {
    read_since(root, BASE)
}

fn read_since(root: &Path, base: &str) -> Option<Vec<Commit>> {
    git(root, &["merge-base", "--is-ancestor", base, "HEAD"])?;
    let log = git(root, &["log", "--no-show-signature", "--no-color", "--format=%H %s", &format!("{base}..HEAD")])?;
    let commit = |line: &str| {
        let (hash, subject) = line.split_once(' ').unwrap_or((line, ""));
        Commit { hash: hash.to_owned(), subject: subject.to_owned() }
    };
    Some(log.lines().map(commit).collect())
}

/// The output of git, if it succeeds.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command.args(arguments).current_dir(root).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commit(subject: &str) -> Commit {
        Commit { hash: "0123456789abcdef".to_owned(), subject: subject.to_owned() }
    }

    #[test]
    fn a_long_subject_fails_and_is_counted_in_characters() {
        assert_eq!(check(Some(&[commit(&"é".repeat(SUBJECT_CHARACTERS))])).violations, []);
        let long = "é".repeat(SUBJECT_CHARACTERS + 1);
        let report = check(Some(&[commit("short"), commit(&long)]));
        let reason = format!("commit 0123456789ab:1: the subject has 73 characters; the limit is 72: {long}");
        assert_eq!(report.violations.iter().map(Violation::to_string).collect::<Vec<_>>(), [reason]);
        assert!(report.looked_at.starts_with("2 commits since "), "{}", report.looked_at);
    }

    #[test]
    fn without_history_nothing_is_checked_and_the_report_says_so() {
        let report = check(None);
        assert!(report.violations.is_empty() && report.looked_at.starts_with("no commits"), "{}", report.looked_at);
    }

    /// Runs git with `arguments` as an author of its own, whatever the machine's configuration is.
    fn run(root: &Path, arguments: &[&str]) -> String {
        let author = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"];
        git(root, &[&author[..], arguments].concat()).expect("git succeeds")
    }

    #[test]
    fn commits_and_merges_since_the_base_are_read_and_older_ones_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        run(root, &["init", "--quiet", "--initial-branch=main"]);
        let make = |subject: &str| drop(run(root, &["commit", "--quiet", "--allow-empty", "-m", subject]));
        let head = || run(root, &["rev-parse", "HEAD"]).trim().to_owned();
        make("before");
        make("base");
        let base = head();
        run(root, &["checkout", "--quiet", "-b", "side"]);
        make("side: change\n\nThe reason.");
        let side = head();
        run(root, &["checkout", "--quiet", "main"]);
        make("main: change");
        run(root, &["merge", "--quiet", "--no-ff", "-m", "Merge side", "side"]);
        let commits = read_since(root, &base).expect("HEAD descends from the base");
        let mut subjects: Vec<&str> = commits.iter().map(|commit| commit.subject.as_str()).collect();
        subjects.sort_unstable();
        assert_eq!(subjects, ["Merge side", "main: change", "side: change"]);
        assert_eq!(commits.first().map(|commit| commit.hash.as_str()), Some(head().as_str()));
        run(root, &["checkout", "--quiet", &base]);
        assert_eq!(read_since(root, &side), None, "HEAD does not descend from it");
    }

    #[test]
    fn an_archive_and_a_clone_without_the_base_have_no_history() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(read(folder.path()), None, "there is no repository");
        run(folder.path(), &["init", "--quiet"]);
        run(folder.path(), &["commit", "--quiet", "--allow-empty", "-m", "another project"]);
        assert_eq!(read(folder.path()), None, "there is no such commit");
    }
}
