//! The audit log: lines of JSON on standard error about sessions, refused clients and fenced sessions.
//!
//! Invariants: the threads of the node never wait for the log: a separate thread writes it, and lines that it cannot
//! write in time are dropped and counted. At most [`BURST`] lines are written at once and [`LINES_A_SECOND`] a second,
//! so that unknown clients cannot fill a disk; the next line says how many were dropped.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use guira::admin::{NodeEvent, NodeEventKind, TokenNumber};
use serde::Serialize;

use crate::failure::Failure;

/// Maximum lines a second, and at once.
const LINES_A_SECOND: u32 = 20;
const BURST: u32 = 200;
/// Maximum lines queued to be written.
const QUEUE_LINES: usize = 256;
/// Time to wait at the end for the last lines.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// One line of the log.
#[derive(Serialize)]
struct Line {
    audit: Entry,
}

#[derive(Serialize)]
struct Entry {
    /// Milliseconds since 1970.
    time_ms: u64,
    peer: SocketAddr,
    #[serde(flatten)]
    fields: EventFields,
    /// Number of lines dropped before this one.
    #[serde(skip_serializing_if = "is_zero")]
    left_out: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum EventFields {
    SessionOpened {
        session: u64,
        may_write: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        token: Option<usize>,
        #[serde(skip_serializing_if = "Option::is_none")]
        read_only_token: Option<usize>,
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    Refused {
        reason: String,
    },
    Fenced {
        session: u64,
        by_session: u64,
        by_peer: SocketAddr,
    },
    SessionEnded {
        session: u64,
        slots: usize,
        dropped: bool,
    },
    Other,
}

impl EventFields {
    fn new(kind: &NodeEventKind) -> EventFields {
        match kind.clone() {
            NodeEventKind::SessionOpened { session, may_write, token, name } => {
                let (token, read_only_token) = match token {
                    Some(TokenNumber::Writer(number)) => (Some(number), None),
                    Some(TokenNumber::Reader(number)) => (None, Some(number)),
                    None => (None, None),
                };
                EventFields::SessionOpened { session, may_write, token, read_only_token, name }
            }
            NodeEventKind::Refused { reason } => EventFields::Refused { reason },
            NodeEventKind::Fenced { session, by, by_peer } => EventFields::Fenced { session, by_session: by, by_peer },
            NodeEventKind::SessionEnded { session, slots, dropped } => {
                EventFields::SessionEnded { session, slots, dropped }
            }
            _ => EventFields::Other,
        }
    }
}

/// A token bucket that limits the rate of lines.
struct RateLimiter {
    lines: u32,
    since: Instant,
    left_out: u64,
}

impl RateLimiter {
    fn new(now: Instant) -> RateLimiter {
        RateLimiter { lines: BURST, since: now, left_out: 0 }
    }

    /// Takes the permission to write a line at `now`. Returns how many lines before it were dropped, or `None` if this
    /// line must be dropped, too.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let earned = (now.saturating_duration_since(self.since).as_millis() * u128::from(LINES_A_SECOND) / 1000) as u32;
        if earned > 0 {
            self.lines = self.lines.saturating_add(earned).min(BURST);
            self.since = now;
        }
        match self.lines.checked_sub(1) {
            Some(left) => {
                self.lines = left;
                Some(std::mem::take(&mut self.left_out))
            }
            None => {
                self.left_out += 1;
                None
            }
        }
    }
}

/// The writer of the audit log.
pub struct Audit {
    /// Number of lines that are not written yet.
    waiting: Arc<AtomicUsize>,
}

impl Audit {
    /// Starts a writer, and returns it with the observer for the node's events.
    pub fn start() -> Result<(Audit, impl Fn(&NodeEvent) + Send + Sync + 'static), Failure> {
        let (sender, lines) = sync_channel(QUEUE_LINES);
        let waiting = Arc::new(AtomicUsize::new(0));
        let writer = Arc::clone(&waiting);
        let spawned = thread::Builder::new().name("guira-audit".to_owned()).spawn(move || write(&lines, &writer));
        spawned.map_err(Failure::thread("start a thread for audit lines"))?;
        let (limiter, sent) = (Mutex::new(RateLimiter::new(Instant::now())), Arc::clone(&waiting));
        Ok((Audit { waiting }, move |event: &NodeEvent| report(event, &limiter, &sender, &sent)))
    }

    /// Waits up to [`DRAIN_TIMEOUT`] for the last lines. To be called when the node has ended.
    pub fn finish(self) {
        let until = Instant::now() + DRAIN_TIMEOUT;
        while self.waiting.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            thread::sleep(DRAIN_TIMEOUT / 100);
        }
    }
}

fn report(event: &NodeEvent, limiter: &Mutex<RateLimiter>, sender: &SyncSender<String>, waiting: &AtomicUsize) {
    let mut limiter = limiter.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(left_out) = limiter.take(Instant::now()) else { return };
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time_ms = u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX);
    let line = Line { audit: Entry { time_ms, peer: event.peer, fields: EventFields::new(&event.kind), left_out } };
    waiting.fetch_add(1, Ordering::SeqCst);
    let is_sent = serde_json::to_string(&line).is_ok_and(|line| sender.try_send(line).is_ok());
    if !is_sent {
        waiting.fetch_sub(1, Ordering::SeqCst);
        limiter.left_out += left_out + 1;
    }
}

fn write(lines: &Receiver<String>, waiting: &AtomicUsize) {
    for line in lines {
        // The node serves even if standard error is closed.
        let _ = writeln!(std::io::stderr(), "{line}");
        waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_rate_limited_and_dropped_lines_are_counted() {
        let start = Instant::now();
        let mut limiter = RateLimiter::new(start);
        assert!((0..BURST).all(|_| limiter.take(start) == Some(0)));
        assert!((0..7).all(|_| limiter.take(start).is_none()));
        let later = start + Duration::from_secs(1);
        assert_eq!(limiter.take(later), Some(7), "the next line has the count");
        assert!((1..LINES_A_SECOND).all(|_| limiter.take(later) == Some(0)) && limiter.take(later).is_none());
        let much_later = start + Duration::from_secs(3600);
        assert_eq!((0..2 * BURST).filter(|_| limiter.take(much_later).is_some()).count(), BURST as usize);
    }
}
