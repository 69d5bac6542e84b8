//! The examples print what they promise, and report mistakes without a panic.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The environment variable that names the directory of examples, if they are built already.
const BUILT: &str = "GUIRA_TEST_EXAMPLES";

/// Returns the directory of the examples: the one that the environment names, or else the one beside this test, in
/// which they are built with the same profile, because cargo does not tell a test where examples are.
fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        if let Some(built) = std::env::var_os(BUILT) {
            return PathBuf::from(built);
        }
        let test = std::env::current_exe().expect("a test has a file");
        // TARGET/PROFILE/deps/examples-0123456789abcdef
        let profile = test.parent().and_then(Path::parent).expect("deps is in a profile's directory");
        let (target, name) = (profile.parent().expect("a profile is in the target directory"), profile.file_name());
        let name = name.and_then(|name| name.to_str()).filter(|name| *name != "debug").unwrap_or("test");
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--locked", "--package", "guira", "--examples", "--profile", name])
            .arg("--target-dir")
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(built.expect("cargo starts").success(), "the examples do not build");
        profile.join("examples")
    })
}

fn run(example: &str, arguments: &[&str]) -> Output {
    Command::new(directory().join(example)).args(arguments).output().expect("the example starts")
}

/// Runs an example, which must succeed and print no error. Returns its output.
fn printed(example: &str, arguments: &[&str]) -> String {
    let output = run(example, arguments);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaints.is_empty(), "{example} {arguments:?}: {complaints}");
    String::from_utf8(output.stdout).expect("it prints text")
}

#[test]
fn a_shared_cache_serves_others_when_a_worker_is_killed() {
    let text = printed("shared_cache", &["3", "400"]);
    for id in 0..3 {
        assert!(text.contains(&format!("worker {id}: ")) && text.contains("hits in 200 requests\n"), "{text}");
    }
    assert!(text.contains("worker 0 is dead"), "{text}");
    for id in 1..3 {
        let line =
            text.lines().find(|line| line.contains("in 400 requests") && line.contains(&format!("worker {id}:")));
        let hits = line.and_then(|line| line.split(' ').nth(2)).and_then(|hits| hits.parse::<u64>().ok());
        // Of 400 requests for 500 questions, of which some are frequent, a good part must be hits.
        assert!(hits.is_some_and(|hits| (100..=400).contains(&hits)), "{text}");
    }
    assert_eq!(text.matches("in 400 requests").count(), 2, "the dead worker prints nothing more: {text}");
    assert!(text.contains(" answers in the cache, 0 of them wrong; check: 0 problems"), "{text}");
}

#[test]
fn word_counts_do_not_depend_on_the_number_of_processes() {
    let text = tempfile::NamedTempFile::new().unwrap();
    let (often, once) = ("the Cuckoo, THE cuckoo; the\n".repeat(2_000), "Guira-guira canta çedo");
    std::fs::write(&text, [often.as_bytes(), once.as_bytes(), &[b'x'; 5_000], b" \xff\xfe ", &[0; 100]].concat())
        .unwrap();
    let path = text.path().to_str().unwrap();
    for processes in ["1", "4"] {
        let printed = printed("word_count", &[path, processes]);
        let lines: Vec<&str> = printed.lines().collect();
        assert_eq!(lines[..2], ["      6000  the", "      4000  cuckoo"]);
        assert!(lines.contains(&"         2  guira") && lines.contains(&"         1  canta"), "{printed}");
        let sum = format!("10005 words counted by {processes} processes, 6 different; the text has 10005");
        assert_eq!(lines.last(), Some(&sum.as_str()));
    }
    std::fs::write(&text, "").unwrap();
    assert_eq!(printed("word_count", &[path, "3"]), "0 words counted by 3 processes, 0 different; the text has 0\n");
}

#[test]
fn a_generated_text_is_counted() {
    let printed = printed("word_count", &[]);
    assert_eq!(printed.lines().count(), 21, "{printed}");
    assert!(printed.ends_with("the text has 100000\n") && printed.contains("\n100000 words counted by 4"), "{printed}");
}

#[test]
fn readers_follow_a_live_configuration() {
    let printed = printed("live_config", &["2"]);
    let expected = |revision: u32, changes: &str| {
        (0..2).map(|id| format!("reader {id} at revision {revision}: {changes}\n")).collect::<String>()
    };
    let all = [
        expected(1, "log.level is info, cache.mib is 100, feature.beta is (unset)"),
        expected(2, "log.level is debug, feature.beta is on"),
        "a token that went stale: Different\n".to_owned(),
        expected(3, "cache.mib is 300"),
    ];
    assert_eq!(printed, all.concat());
}

#[test]
fn mistakes_are_reported_without_a_panic() {
    let mistakes: [(&str, &[&str], &str); 12] = [
        ("shared_cache", &["none"], "is not a number from 2 to 64; usage: shared_cache"),
        ("shared_cache", &["1"], "is not a number from 2 to 64; usage: shared_cache"),
        ("shared_cache", &["2", "-5"], "is not a number from 2 to 1000000; usage: shared_cache"),
        ("shared_cache", &["worker", "shm://guira-no-such-table", "1", "10"], "guira-no-such-table"),
        ("shared_cache", &["1", "2", "3"], "usage: shared_cache"),
        ("word_count", &["/no/such/file"], "/no/such/file: "),
        ("word_count", &["Cargo.toml", "0"], "usage: word_count"),
        ("word_count", &["Cargo.toml", "many"], "usage: word_count"),
        ("word_count", &["worker", "nowhere", "Cargo.toml", "0", "1"], "it has no scheme"),
        ("live_config", &["0"], "usage: live_config"),
        ("live_config", &["1", "2"], "usage: live_config"),
        ("live_config", &["reader", "shm://guira-no-such-table", "1"], "guira-no-such-table"),
    ];
    for (example, arguments, reason) in mistakes {
        let output = run(example, arguments);
        let complaint = String::from_utf8(output.stderr).expect("it prints text");
        assert_eq!(output.status.code(), Some(1), "{example} {arguments:?}: {complaint}");
        assert!(complaint.starts_with(&format!("{example}: ")) && complaint.contains(reason), "{complaint}");
        assert!(output.stdout.is_empty() && !complaint.contains("panicked"), "{complaint}");
    }
}
