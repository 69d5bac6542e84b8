//! The terminal: draws frames as they arrive, and handles keys and signals.
//!
//! Invariant: the terminal is restored before this returns, and before a panic is printed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use super::draw::{self, Extras};
use super::frame::Frame;
use super::sampler::Sampler;
use crate::failure::Failure;
use crate::signals::{Signals, Terminal};

/// Maximum time until a key or a signal is handled.
const POLL: Duration = Duration::from_millis(100);
/// Time that the screen has to end by itself after a signal.
const GRACE: Duration = Duration::from_millis(500);
/// Maximum number of samples in the history: more than any terminal has columns.
const HISTORY_MAX: usize = 1_024;
/// Time to wait after the table was destroyed for a new table with its name, which is then watched.
const SUCCESSOR_WAIT: Duration = Duration::from_secs(3);
/// The results of sampling.
type Samples = Receiver<Result<Frame, Failure>>;

/// The keys that can be pressed.
const KEYS: &str = "q quit";

/// Shows the table until the user quits.
pub fn run(sampler: Sampler, every: Duration) -> Result<(), Failure> {
    let signals = Arc::new(Signals::catch()?);
    let (frames, stop) = start(sampler, every)?;
    // The first sample may take long, or fail, so nothing is drawn before it.
    let mut shown = View::new(frames.recv().map_err(|_| sampler_ended())??);
    watch(Arc::clone(&signals))?;
    let terminal = ratatui::try_init().map_err(Failure::host("draw on the terminal"));
    let result = terminal.and_then(|mut terminal| show(&mut terminal, &mut shown, &frames, &signals));
    ratatui::try_restore().map_err(Failure::host("restore the terminal"))?;
    // The other thread ends when this sender is dropped.
    drop(stop);
    result
}

/// Starts a thread that ends the process after a signal, or when the terminal has gone, if the process does not end by
/// itself: a read of a terminal that has gone may never return.
fn watch(signals: Arc<Signals>) -> Result<(), Failure> {
    let terminal = Terminal::detect();
    let watch = move || {
        while signals.received().is_none() && !terminal.is_closed() {
            thread::sleep(POLL);
        }
        thread::sleep(GRACE);
        // There may be nothing left to restore.
        let _ = ratatui::try_restore();
        std::process::exit(0);
    };
    thread::Builder::new()
        .name("guira-watch".to_owned())
        .spawn(watch)
        .map(drop)
        .map_err(Failure::thread("start a thread"))
}

/// Starts a thread that samples the table. Dropping the returned sender ends it.
fn start(mut sampler: Sampler, every: Duration) -> Result<(Samples, SyncSender<()>), Failure> {
    let (frames, shown) = channel();
    let (stop, stopped) = sync_channel(0);
    let sample = move || {
        while frames.send(sampler.sample()).is_ok() {
            if stopped.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    };
    thread::Builder::new().name("guira-top".to_owned()).spawn(sample).map_err(Failure::thread("start a thread"))?;
    Ok((shown, stop))
}

fn sampler_ended() -> Failure {
    Failure::host("sample the table")(std::io::Error::other("the sampling thread has ended"))
}

/// The state of the screen.
struct View {
    frame: Frame,
    history: VecDeque<u64>,
    problem: Option<String>,
    /// The time since which every sample has found the table destroyed.
    destroyed_since: Option<Instant>,
}

impl View {
    fn new(frame: Frame) -> View {
        View { frame, history: VecDeque::new(), problem: None, destroyed_since: None }
    }

    /// Processes the result of a sample.
    ///
    /// # Errors
    /// The table was destroyed [`SUCCESSOR_WAIT`] ago, and no new table has its name.
    fn take(&mut self, sample: Result<Frame, Failure>) -> Result<(), Failure> {
        match &sample {
            Err(Failure::Destroyed { .. }) => {
                self.destroyed_since.get_or_insert_with(Instant::now);
            }
            _ => self.destroyed_since = None,
        }
        if self.destroyed_since.is_some_and(|since| since.elapsed() >= SUCCESSOR_WAIT) {
            return sample.map(drop);
        }
        match sample {
            Ok(frame) => {
                if let Some((_, per_s)) = frame.activity() {
                    if self.history.len() == HISTORY_MAX {
                        self.history.pop_front();
                    }
                    self.history.push_back(per_s as u64);
                }
                (self.frame, self.problem) = (frame, None);
            }
            Err(failure) => self.problem = Some(Failure::Reading { source: Box::new(failure) }.to_string()),
        }
        Ok(())
    }

    fn draw(&mut self, terminal: &mut DefaultTerminal) -> Result<(), Failure> {
        let View { frame, history, problem, .. } = self;
        let extras = Extras { history: history.make_contiguous(), problem: problem.as_deref(), keys: KEYS };
        let drawn = terminal.draw(|screen| draw::draw(frame, extras, screen.area(), screen.buffer_mut()));
        drawn.map(|_| ()).map_err(Failure::host("draw on the terminal"))
    }
}

fn show(terminal: &mut DefaultTerminal, shown: &mut View, frames: &Samples, signals: &Signals) -> Result<(), Failure> {
    shown.draw(terminal)?;
    loop {
        if signals.received().is_some() {
            return Ok(());
        }
        let mut is_changed = false;
        if event::poll(POLL).map_err(Failure::host("read the terminal"))? {
            match event::read().map_err(Failure::host("read the terminal"))? {
                Event::Key(key) if key.kind != KeyEventKind::Release && is_quit(key.code, key.modifiers) => {
                    return Ok(());
                }
                Event::Resize(..) => is_changed = true,
                _ => {}
            }
        }
        loop {
            match frames.try_recv() {
                Ok(sample) => shown.take(sample)?,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(sampler_ended()),
            }
            is_changed = true;
        }
        if is_changed {
            shown.draw(terminal)?;
        }
    }
}

fn is_quit(code: KeyCode, modifiers: KeyModifiers) -> bool {
    match code {
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => true,
        KeyCode::Char('c') => modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    }
}
