//! `guira top`: one frame as text and JSON, and a real screen in a terminal emulator (tmux).

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Table, guira};
use guira_testing::{patience, unique_name, wait_until};
use serde_json::Value;

/// Between two looks at the screen.
const POLL: Duration = Duration::from_millis(50);

#[test]
fn one_frame_is_text_or_json() {
    let table = Table::new("top", "bytes:64");
    for key in ["cuckoo", "heron", "ibis"] {
        guira(&["put", table.url(), key, "seen"]).expect(0);
    }
    let text = guira(&["top", table.url(), "--once", "--every", "50ms"]).expect(0).text();
    for words in [table.url(), "entries     3 of", "no trace in shared", "0 of 40 clients live", "lock conflicts"] {
        assert!(text.contains(words), "no {words:?} in\n{text}");
    }
    assert!(!text.contains('\u{1b}') && text.lines().all(|line| line.chars().count() <= 80), "{text}");
    // The second look at all rows comes when twenty times as long has passed as the first one took.
    let json = ["50ms", "1s", "10s", "60s"]
        .into_iter()
        .map(|every| guira(&["top", table.url(), "--every", every, "--format", "json"]).expect(0).json())
        .find(|json| json["table"]["entries_per_s"].is_number())
        .expect("it looks twice, however long that takes");
    assert_eq!((&json["table"]["entries"], &json["clients"]["max"]), (&3.into(), &40.into()));
    assert_eq!((&json["node"], &json["met"][0]["what"]), (&Value::Null, &"lock_conflicts".into()));
}

/// Changes in shared memory are counted while their client is open, by its redo records.
#[test]
fn changes_of_an_open_client_are_counted() {
    let table = Table::new("top-changes", "bytes:64");
    let store = guira::Store::open(table.url()).expect("it is there");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = store.client().expect("there are slots");
            while !is_over.load(Ordering::Relaxed) {
                client.put(b"cuckoo", b"Guira guira").expect("there is room");
            }
        });
        wait_until("changes are counted", || {
            let json = guira(&["top", table.url(), "--every", "100ms", "--format", "json"]).expect(0).json();
            json["changes_per_s"].as_f64().is_some_and(|changes| changes > 0.0)
        });
        is_over.store(true, Ordering::Relaxed);
    });
    let json = guira(&["top", table.url(), "--every", "50ms", "--format", "json"]).expect(0).json();
    assert_eq!(json["changes_per_s"], 0.0, "no client is open");
}

#[test]
fn no_terminal_and_no_table_are_mistakes() {
    let table = Table::new("top-mistakes", "bytes:64");
    let run = guira(&["top", table.url()]).expect(2);
    assert!(run.stderr.contains("--once"), "{}", run.stderr);
    guira(&["top", "shm://guira-cli-test-missing", "--once"]).expect(1);
    guira(&["top", table.url(), "--every", "5"]).expect(2);
}

/// A terminal of 80 columns and 24 lines in which a shell runs a command, and then says how it ended.
struct Screen {
    socket: String,
}

impl Screen {
    /// `None` where there is no tmux.
    fn new(command: &str) -> Option<Screen> {
        let is_there =
            Command::new("tmux").arg("-V").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
        if !is_there {
            println!("tmux is not available here: the screen was not looked at");
            return None;
        }
        let screen = Screen { socket: unique_name() };
        let script = format!("printf 'before\\n'; {command}; printf 'ended with %s\\n' $?; stty -a; exec sleep 600");
        screen.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "sh", "-c", &script]);
        Some(screen)
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.env("TERM", "xterm-256color").env("LC_ALL", "C.UTF-8").arg("-u").args(["-L", &self.socket]);
        let output = command.args(arguments).output().expect("tmux starts");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns what is on the screen. Lines that were too long for it are joined.
    fn shows(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-J"])
    }

    /// Waits until all of these words are on the screen, and returns it.
    #[track_caller]
    fn until(&self, words: &[&str]) -> String {
        let began = Instant::now();
        loop {
            let screen = self.shows();
            if words.iter().all(|word| screen.contains(word)) {
                return screen;
            }
            assert!(began.elapsed() < patience(), "{words:?} never came:\n{screen}");
            thread::sleep(POLL);
        }
    }

    /// The terminal is as it was before the program drew on it.
    #[track_caller]
    fn is_given_back(&self) {
        let screen = self.until(&["before", "ended with 0", " echo "]);
        assert!(!screen.contains("guira top"), "{screen}");
        assert!(screen.contains(" icanon "), "keys are lines again: {screen}");
        assert_eq!(self.tmux(&["display-message", "-p", "#{cursor_flag}#{alternate_on}"]).trim(), "10");
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut command = Command::new("tmux");
        command.args(["-L", &self.socket, "kill-server"]).stdout(Stdio::null()).stderr(Stdio::null());
        // It ends with its last window, too.
        let _ = command.status();
    }
}

fn top(table: &Table) -> String {
    format!("{} top {} --every 100ms", env!("CARGO_BIN_EXE_guira"), table.url())
}

#[test]
fn the_screen_follows_the_table_the_window_and_the_keys() {
    let table = Table::new("top-screen", "bytes:64");
    let Some(screen) = Screen::new(&top(&table)) else { return };
    screen.until(&["guira top", table.url(), "entries     0 of", "q quit"]);
    let boxes = |screen: &str| screen.lines().filter(|line| line.starts_with('┌')).count();
    wait_until("boxes in four rows, one of them with the rates between two looks", || boxes(&screen.shows()) == 4);
    guira(&["put", table.url(), "cuckoo", "grey"]).expect(0);
    screen.until(&["entries     1 of"]);

    screen.tmux(&["resize-window", "-x", "120", "-y", "40"]);
    screen.until(&["entries     1 of"]);
    let is_wide = |screen: &str| screen.lines().any(|line| line.starts_with('└') && line.chars().count() == 120);
    wait_until("the wider window is used", || is_wide(&screen.shows()));
    screen.tmux(&["resize-window", "-x", "40", "-y", "10"]);
    screen.until(&["needs 60 x 16"]);
    screen.tmux(&["resize-window", "-x", "80", "-y", "24"]);
    screen.until(&["entries     1 of", "q quit"]);

    screen.tmux(&["send-keys", "x"]);
    guira(&["put", table.url(), "heron", "white"]).expect(0);
    screen.until(&["entries     2 of"]);
    screen.tmux(&["send-keys", "q"]);
    screen.is_given_back();
}

/// A terminal that goes away, with everything in it, ends the program, which would otherwise read it for ever.
#[test]
fn the_program_ends_with_its_terminal() {
    let table = Table::new("top-hangup", "bytes:64");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("process");
    // Of SIGHUP ignored, as under nohup, only the terminal is left to notice.
    let script = format!("sh -c 'trap \"\" HUP; echo $$ > {}; exec {}'", file.display(), top(&table));
    let Some(screen) = Screen::new(&script) else { return };
    screen.until(&["guira top", "q quit"]);
    let process = std::fs::read_to_string(&file).expect("it was written").trim().to_owned();
    screen.tmux(&["kill-server"]);
    let state = || std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    wait_until("the program ends", || state().is_empty() || state().contains(") Z "));
}

#[test]
fn a_destroyed_table_without_a_successor_is_the_end() {
    let table = Table::new("top-end", "bytes:64");
    let Some(screen) = Screen::new(&top(&table)) else { return };
    screen.until(&["entries     0 of"]);
    guira(&["destroy", table.url()]).expect(0);
    screen.until(&["was destroyed while it was watched", "ended with 1"]);
}

#[test]
fn a_destroyed_table_is_a_problem_that_is_shown_and_its_successor_is_watched() {
    let table = Table::new("top-destroyed", "bytes:64");
    let Some(screen) = Screen::new(&top(&table)) else { return };
    screen.until(&["entries     0 of"]);
    guira(&["destroy", table.url()]).expect(0);
    guira(&["create", table.url(), "--capacity", "1000", "--max-clients", "7"]).expect(0);
    guira(&["put", table.url(), "cuckoo", "grey"]).expect(0);
    screen.until(&["entries     1 of", "of 7 clients"]);
    screen.tmux(&["send-keys", "C-c"]);
    screen.is_given_back();
}

#[test]
fn signals_give_the_terminal_back() {
    let table = Table::new("top-signal", "bytes:64");
    let Some(screen) = Screen::new(&top(&table)) else { return };
    screen.until(&["guira top", "q quit"]);
    let pattern = format!("top {}", table.url());
    let found =
        Command::new("pgrep").args(["-f", "--", &format!("^[^ ]*guira {pattern}")]).output().expect("pgrep starts");
    let pids = String::from_utf8_lossy(&found.stdout).into_owned();
    let [pid] = pids.split_whitespace().collect::<Vec<_>>()[..] else { panic!("one process: {pids:?}") };
    assert!(Command::new("kill").args(["-TERM", pid]).status().expect("kill starts").success());
    screen.is_given_back();
}
