//! The pages `/metrics`, a node's counters for Prometheus (text format 0.0.4), and `/health`.
//!
//! The format is written by hand: every number is read on request and none is kept in a registry, so a client library
//! would add types and no safety. Names are `guira_<subject>_<unit>`, with `_total` for counters, in bytes and seconds.
//! Invariant: a metric has one HELP and one TYPE line, before all of its samples.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use guira::admin::NodeCounters;
use serde::Serialize;

use super::http::{Page, Pages};

/// The status of the pages. It is an error if the table lost memory, so that probes notice.
const OK: &str = "200 OK";
const LOST: &str = "503 Service Unavailable";

/// The source of the pages.
pub struct MetricsPages {
    count: Arc<dyn Fn() -> NodeCounters + Send + Sync>,
    backing: String,
    started: Instant,
    started_unix_s: f64,
}

/// The page `/health`.
#[derive(Serialize)]
struct Health<'h> {
    status: &'static str,
    version: &'static str,
    backing: &'h str,
    uptime_seconds: u64,
    sessions_open: u64,
}

impl MetricsPages {
    /// Creates the pages about a node: `count` reads its counters, and `backing` names its table.
    pub fn new(count: Arc<dyn Fn() -> NodeCounters + Send + Sync>, backing: &str) -> MetricsPages {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        MetricsPages {
            count,
            backing: backing.to_owned(),
            started: Instant::now(),
            started_unix_s: since.as_secs_f64(),
        }
    }
}

impl Pages for MetricsPages {
    fn page(&self, path: &str) -> Option<Page> {
        match path {
            "/metrics" => {
                let text = metrics(&(self.count)(), self.started_unix_s);
                Some(Page { status: OK, content_type: "text/plain; version=0.0.4; charset=utf-8", text })
            }
            "/health" => {
                let counters = (self.count)();
                // The program ends with its node, so a probe gets this page or no answer.
                let (status, word) = if counters.memory_lost == 0 { (OK, "ok") } else { (LOST, "memory lost") };
                let health = Health {
                    status: word,
                    version: env!("CARGO_PKG_VERSION"),
                    backing: &self.backing,
                    uptime_seconds: self.started.elapsed().as_secs(),
                    sessions_open: counters.sessions_open(),
                };
                let text = serde_json::to_string(&health).ok()? + "\n";
                Some(Page { status, content_type: "application/json", text })
            }
            _ => None,
        }
    }
}

/// Returns the number of executed verbs by kind.
pub fn verbs(counters: &NodeCounters) -> [(&'static str, u64); 4] {
    let NodeCounters { reads, writes, swaps, adds, .. } = *counters;
    [("read", reads), ("write", writes), ("cas", swaps), ("fetch_add", adds)]
}

/// Returns the number of refused clients by reason.
pub fn refusals(counters: &NodeCounters) -> [(&'static str, u64); 10] {
    let NodeCounters { greeted_late, greeted_wrongly, refused_version, refused_token, refused_full, .. } = *counters;
    let NodeCounters { refused_plain, refused_tls, refused_handshake, refused_address, refused_fabric, .. } = *counters;
    [
        ("late", greeted_late),
        ("greeting", greeted_wrongly),
        ("version", refused_version),
        ("token", refused_token),
        ("full", refused_full),
        ("address", refused_address),
        ("fabric", refused_fabric),
        ("plain", refused_plain),
        ("tls", refused_tls),
        ("handshake", refused_handshake),
    ]
}

/// Returns the number of ended sessions by reason.
fn ends(counters: &NodeCounters) -> [(&'static str, u64); 4] {
    let NodeCounters { sessions_ended, sessions_fenced, sessions_too_slow, sessions_misunderstood, .. } = *counters;
    let dropped = sessions_fenced + sessions_too_slow + sessions_misunderstood;
    [
        ("closed", sessions_ended.saturating_sub(dropped)),
        ("fenced", sessions_fenced),
        ("slow", sessions_too_slow),
        ("misunderstood", sessions_misunderstood),
    ]
}

/// Returns the page `/metrics`.
fn metrics(counters: &NodeCounters, started_unix_s: f64) -> String {
    let mut text = Text::default();
    text.metric("process_start_time_seconds", "gauge", "When the process was started, in seconds since 1970.");
    text.sample("process_start_time_seconds", "", started_unix_s);
    text.metric("guira_build_info", "gauge", "Always 1; the label has the program's version.");
    text.sample("guira_build_info", &format!("{{version=\"{}\"}}", env!("CARGO_PKG_VERSION")), 1);
    text.labelled(
        "guira_verbs_total",
        "Verbs that this node executed; over RDMA none, because its network card does.",
        "kind",
        &verbs(counters),
    );
    text.counter("guira_batches_total", "Batches of verbs that were executed: round trips.", counters.batches);
    let help = "Requests that were refused: out of bounds, or without permission.";
    text.counter("guira_requests_refused_total", help, counters.requests_refused);
    text.counter("guira_received_bytes_total", "Bytes that clients sent.", counters.bytes_in);
    text.counter("guira_sent_bytes_total", "Bytes that were sent to clients.", counters.bytes_out);
    text.counter("guira_connections_accepted_total", "Connections accepted.", counters.connections_accepted);
    let help = "Connections without a session that were closed to accept another, or for other tokens.";
    text.counter("guira_connections_shed_total", help, counters.connections_shed);
    let help = "Failures to accept a connection, usually because of too many open files.";
    text.counter("guira_accept_errors_total", help, counters.accept_errors);
    let help = "1 if bytes of the table were lost, because its file was truncated: the node ends.";
    text.gauge("guira_memory_lost", help, counters.memory_lost);
    text.gauge("guira_sessions_open", "Sessions that are open.", counters.sessions_open());
    text.counter("guira_sessions_opened_total", "Sessions that began.", counters.sessions_opened);
    text.labelled("guira_sessions_ended_total", "Sessions that ended.", "reason", &ends(counters));
    text.labelled("guira_sessions_refused_total", "Clients that were refused.", "reason", &refusals(counters));
    let held = counters.holds_granted.saturating_sub(counters.holds_ended);
    text.gauge("guira_holds_open", "Client slots whose liveness sessions hold.", held);
    text.counter(
        "guira_holds_granted_total",
        "Client slots whose liveness was granted to sessions.",
        counters.holds_granted,
    );
    text.counter("guira_holds_taken_total", "Requests for client slots that were already held.", counters.holds_taken);
    let fences = [("dropped", counters.fences_dropped), ("no_session", counters.fences_no_session)];
    text.labelled("guira_fences_total", "Requests to drop a session.", "answer", &fences);
    text.latency(counters);
    text.0
}

/// The text of the page, built metric by metric.
#[derive(Default)]
struct Text(String);

impl Text {
    fn metric(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        self.line(format_args!("{name}{labels} {value}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{line}");
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.metric(name, "counter", help);
        self.sample(name, "", value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.metric(name, "gauge", help);
        self.sample(name, "", value);
    }

    fn labelled(&mut self, name: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        self.metric(name, "counter", help);
        for (of, value) in values {
            self.sample(name, &format!("{{{label}=\"{of}\"}}"), *value);
        }
    }

    /// Adds the answer times as a histogram: bucket b of a node's counters ends at 2^b nanoseconds.
    fn latency(&mut self, counters: &NodeCounters) {
        let name = "guira_answer_duration_seconds";
        let help = "Time from when the node notices a request to when the kernel has the answer.";
        self.metric(name, "histogram", help);
        let (_, bounded) = counters.answered_in.0.split_last().expect("there are buckets");
        let mut sum = 0;
        for (bucket, count) in bounded.iter().enumerate() {
            sum += count;
            let bound = (1_u64 << bucket) as f64 / 1e9;
            self.sample(&format!("{name}_bucket"), &format!("{{le=\"{bound}\"}}"), sum);
        }
        let all: u64 = counters.answered_in.0.iter().sum();
        self.sample(&format!("{name}_bucket"), "{le=\"+Inf\"}", all);
        self.sample(&format!("{name}_sum"), "", counters.answering_ns as f64 / 1e9);
        self.sample(&format!("{name}_count"), "", all);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Parses samples by name and labels; fails on an invalid or misplaced line.
    fn samples(text: &str) -> BTreeMap<String, f64> {
        let (mut samples, mut types) = (BTreeMap::new(), BTreeMap::new());
        let mut current = String::new();
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').unwrap();
                assert!(!help.is_empty() && !types.contains_key(name), "{line}");
                current = name.to_owned();
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                assert!(name == current && ["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "{line}");
            } else {
                let (key, value) = line.rsplit_once(' ').unwrap();
                let name = key.split('{').next().unwrap();
                let is_part =
                    ["_bucket", "_sum", "_count"].iter().any(|end| name.strip_suffix(end) == Some(current.as_str()));
                assert!(name == current || (is_part && types[&current] == "histogram"), "{line}");
                assert!(samples.insert(key.to_owned(), value.parse().unwrap()).is_none(), "{line}");
            }
        }
        samples
    }

    fn sample_counters() -> NodeCounters {
        let mut counters = NodeCounters::default();
        (counters.reads, counters.writes, counters.swaps, counters.adds) = (7, 5, 3, 1);
        (counters.sessions_opened, counters.sessions_ended, counters.sessions_fenced) = (9, 6, 2);
        (counters.holds_granted, counters.holds_ended, counters.refused_token) = (4, 1, 8);
        (counters.bytes_in, counters.answering_ns) = (u64::MAX, 1_500_000_000);
        (counters.answered_in.0[0], counters.answered_in.0[20], counters.answered_in.0[39]) = (1, 2, 3);
        counters
    }

    #[test]
    fn metrics_are_the_counters_in_the_format_of_prometheus() {
        let found = samples(&metrics(&sample_counters(), 1.5));
        for (key, value) in [
            ("process_start_time_seconds", 1.5),
            ("guira_verbs_total{kind=\"read\"}", 7.0),
            ("guira_verbs_total{kind=\"fetch_add\"}", 1.0),
            ("guira_sessions_open", 3.0),
            ("guira_sessions_ended_total{reason=\"closed\"}", 4.0),
            ("guira_sessions_ended_total{reason=\"fenced\"}", 2.0),
            ("guira_sessions_refused_total{reason=\"token\"}", 8.0),
            ("guira_holds_open", 3.0),
            ("guira_received_bytes_total", u64::MAX as f64),
            ("guira_answer_duration_seconds_bucket{le=\"0.000000001\"}", 1.0),
            ("guira_answer_duration_seconds_bucket{le=\"0.001048576\"}", 3.0),
            ("guira_answer_duration_seconds_bucket{le=\"+Inf\"}", 6.0),
            ("guira_answer_duration_seconds_count", 6.0),
            ("guira_answer_duration_seconds_sum", 1.5),
        ] {
            assert_eq!(found.get(key), Some(&value), "{key}: {found:#?}");
        }
        let buckets: Vec<(f64, f64)> = found
            .iter()
            .filter_map(|(key, count)| {
                let bound = key.strip_prefix("guira_answer_duration_seconds_bucket{le=\"")?.strip_suffix("\"}")?;
                Some((if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap() }, *count))
            })
            .collect();
        assert_eq!(buckets.len(), 40);
        for (bound, count) in &buckets {
            assert!(buckets.iter().all(|(other, fewer)| other > bound || fewer <= count), "{bound}: {count}");
        }
    }

    #[test]
    fn pages_are_metrics_and_health() {
        let shown = MetricsPages::new(Arc::new(sample_counters), "shm://a\"b");
        let health = shown.page("/health").unwrap();
        let health: serde_json::Value = serde_json::from_str(&health.text).unwrap();
        assert_eq!((&health["status"], &health["sessions_open"]), (&"ok".into(), &3.into()));
        assert_eq!(health["backing"], "shm://a\"b");
        samples(&shown.page("/metrics").unwrap().text);
        let lost = || {
            let mut counters = sample_counters();
            counters.memory_lost = 1;
            counters
        };
        let shown = MetricsPages::new(Arc::new(lost), "shm://a");
        let health = shown.page("/health").unwrap();
        assert!(health.status.starts_with("503") && health.text.contains("memory lost"), "{}", health.text);
        assert!(shown.page("/").is_none() && shown.page("/metrics/").is_none());
    }
}
