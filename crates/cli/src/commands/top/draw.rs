//! Draws a frame into a buffer, for terminals and tests. Does no I/O.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use guira::admin::{ClientStat, ClientState};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Gauge, Paragraph, Row, Sparkline, Table, Widget, Wrap};

use super::frame::{CounterNow, Frame, NodeNow, Rates, TableNow};
use crate::units::{bytes, count, counted, percent, rate};

/// Minimum size of the terminal: below it, nothing fits.
pub const MIN_COLUMNS: u16 = 60;
pub const MIN_LINES: u16 = 16;
/// Lines of the boxes about node and table, including borders.
const HEAD_LINES: u16 = 8;
/// Lines of the box with the latest round trips.
const HISTORY_LINES: u16 = 3;
/// Lines of the box with the counters that clients reported.
const COUNTER_LINES: u16 = 6;

/// Maximum lines of a problem.
const FOOT_LINES_MAX: u16 = 4;
/// Maximum number of clients listed in a printed frame.
const PRINTED_CLIENTS: usize = 100;

/// The content of the screen besides the frame.
#[derive(Clone, Copy, Default)]
pub struct Extras<'b> {
    /// [`Frame::activity`] at the latest samples, the oldest first.
    pub history: &'b [u64],
    /// The error of the latest sample, if it failed; the frame is older then.
    pub problem: Option<&'b str>,
    /// The keys that can be pressed.
    pub keys: &'b str,
}

/// Returns the frame as text, with up to [`PRINTED_CLIENTS`] clients.
pub fn text(frame: &Frame, columns: u16) -> String {
    let clients = frame.clients.list.len().clamp(1, PRINTED_CLIENTS) as u16;
    let lines = 1 + HEAD_LINES + COUNTER_LINES + 3 + clients + 1;
    let mut buffer = Buffer::empty(Rect::new(0, 0, columns, lines));
    draw(frame, Extras::default(), buffer.area, &mut buffer);
    let cells = buffer.content.chunks(usize::from(columns));
    let lines: Vec<String> =
        cells.map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()).collect();
    lines.join("\n").trim_end().to_owned()
}

/// Draws the frame.
pub fn draw(frame: &Frame, extras: Extras<'_>, area: Rect, buffer: &mut Buffer) {
    if area.width < MIN_COLUMNS || area.height < MIN_LINES {
        let size = format!("{} x {}; guira top needs {MIN_COLUMNS} x {MIN_LINES}", area.width, area.height);
        return Paragraph::new(size).wrap(Wrap { trim: true }).render(area, buffer);
    }
    let style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
    let problem = extras
        .problem
        .map(|problem| Paragraph::new(guira::admin::printable(problem)).style(style).wrap(Wrap { trim: true }));
    // A message with advice is longer than a line.
    let foot_lines = extras.problem.map_or(1, |text| text.chars().count().div_ceil(usize::from(area.width)) as u16 + 1);
    let foot_lines = foot_lines.min(FOOT_LINES_MAX);
    let has_history = !extras.history.is_empty();
    let is_low = area.height < 1 + HEAD_LINES + HISTORY_LINES + COUNTER_LINES + 5;
    let history_lines = if has_history && !is_low { HISTORY_LINES } else { 0 };
    let counter_lines = if area.height < 1 + HEAD_LINES + COUNTER_LINES + 5 { 0 } else { COUNTER_LINES };
    let [title, head, history, met, clients, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(HEAD_LINES),
        Constraint::Length(history_lines),
        Constraint::Length(counter_lines),
        Constraint::Fill(1),
        Constraint::Length(foot_lines),
    ])
    .areas(area);
    let [node, table] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(head);
    draw_title(frame, title, buffer);
    draw_activity(frame, node, buffer);
    draw_table(&frame.table, table, buffer);
    if history_lines > 0 {
        let shown = extras.history.len().min(usize::from(history.width.saturating_sub(2)));
        let bars = &extras.history[extras.history.len() - shown..];
        Sparkline::default()
            .block(boxed(frame.activity().map_or("", |(what, _)| what)))
            .data(bars)
            .style(Color::Cyan)
            .render(history, buffer);
    }
    draw_counters(&frame.met, met, buffer);
    draw_clients(frame, clients, buffer);
    match problem {
        Some(problem) => problem.render(foot, buffer),
        None => Line::raw(format!(" {}", extras.keys)).render(foot, buffer),
    }
}

fn boxed(title: &str) -> Block<'_> {
    Block::bordered().border_style(Color::DarkGray).title(Span::styled(format!(" {title} "), Style::reset()))
}

fn draw_title(frame: &Frame, area: Rect, buffer: &mut Buffer) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let title = vec![
        Span::raw(" guira top  "),
        Span::styled(guira::admin::printable(&frame.url), bold),
        Span::raw(format!("  {}", frame.format)),
    ];
    Line::from(title).render(area, buffer);
}

/// Draws what clients do: as their node counts it, and as their redo records show it.
fn draw_activity(frame: &Frame, area: Rect, buffer: &mut Buffer) {
    let changes = field("changes", frame.changes_per_s.map_or_else(|| "…".to_owned(), rate));
    let (title, lines) = match &frame.node {
        Some(node) if node.counts_verbs => return draw_node(node, changes, area, buffer),
        Some(node) => {
            let why = "Lookups are not counted: the network card executes them. rdma statistic shows its verbs.";
            let sessions = format!("{} refused, {} fenced", count(node.refused), count(node.fenced));
            let title = format!("node, {}", counted(node.sessions_open, "session"));
            (title, vec![changes, field("sessions", sessions), Line::from(why)])
        }
        None => {
            let why = "Lookups leave no trace in shared memory. Clients report their other counters when they close.";
            ("no node".to_owned(), vec![changes, Line::from(why)])
        }
    };
    Paragraph::new(lines).wrap(Wrap { trim: true }).block(boxed(&title)).render(area, buffer);
}

fn draw_node(node: &NodeNow, changes: Line<'static>, area: Rect, buffer: &mut Buffer) {
    let unknown = || "…".to_owned();
    let of = |shown: fn(&Rates) -> String| node.rates.as_ref().map_or_else(unknown, shown);
    let bytes_in_out =
        |rates: &Rates| format!("{}/s, {}/s", bytes(rates.bytes_in as u64), bytes(rates.bytes_out as u64));
    let fields = [
        ("round trips", of(|rates| rate(rates.round_trips))),
        ("verbs", of(|rates| format!("{}, {} reads", rate(rates.verbs()), share_of(rates.reads, rates.verbs())))),
        ("in, out", of(bytes_in_out)),
        ("answers", of(answers)),
        ("sessions", format!("{} refused, {} fenced", count(node.refused), count(node.fenced))),
    ];
    let title = format!("node, {}", counted(node.sessions_open, "session"));
    let lines = [changes].into_iter().chain(fields.map(|(name, value)| field(name, value)));
    Paragraph::new(lines.collect::<Vec<_>>()).block(boxed(&title)).render(area, buffer);
}

fn share_of(part: f64, whole: f64) -> String {
    format!("{:.0} %", if whole > 0.0 { 100.0 * part / whole } else { 0.0 })
}

fn answers(rates: &Rates) -> String {
    match (rates.median_ns, rates.p99_ns) {
        (Some(median), Some(p99)) => format!("p50 < {}, p99 < {}", bound(median), bound(p99)),
        _ => "none".to_owned(),
    }
}

/// Formats an upper bound in whole units, rounded up.
fn bound(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} µs", ns.div_ceil(1_000)),
        1_000_000..1_000_000_000 => format!("{} ms", ns.div_ceil(1_000_000)),
        _ => format!("{} s", ns.div_ceil(1_000_000_000)),
    }
}

/// Returns a line with a padded name and its value.
fn field(name: &str, value: String) -> Line<'static> {
    Line::from(vec![Span::styled(format!("{name:<12}"), Color::DarkGray), Span::raw(value)])
}

fn draw_table(table: &TableNow, area: Rect, buffer: &mut Buffer) {
    let block = boxed("table");
    let inside = block.inner(area);
    block.render(area, buffer);
    let [entries, fill, changes, space, damage] = Layout::vertical([Constraint::Length(1); 5]).areas(inside);
    field("entries", format!("{} of {}", count(table.entries), count(table.capacity))).render(entries, buffer);
    let [name, bar] = Layout::horizontal([Constraint::Length(12), Constraint::Fill(1)]).areas(fill);
    Line::styled("fill", Color::DarkGray).render(name, buffer);
    let shown = Gauge::default().ratio(table.fill.clamp(0.0, 1.0)).label(percent(table.fill));
    shown.gauge_style(Style::new().fg(Color::Green).bg(Color::Reset)).render(bar, buffer);
    let change = table.entries_per_s.map_or_else(
        || "…".to_owned(),
        |change| {
            let sign = if change < 0.0 { '-' } else { '+' };
            format!("{sign}{}", rate(change.abs()))
        },
    );
    field("change", format!("{change} ({:.1} s ago)", table.age_s)).render(changes, buffer);
    let text = match table.total_bytes {
        0 => "all in rows".to_owned(),
        total => format!("{} of {}", bytes(table.used_bytes), bytes(total)),
    };
    field("extents", text).render(space, buffer);
    if table.unverified_rows > 0 {
        let text = format!("{} DAMAGED: guira check", counted(table.unverified_rows, "row"));
        Line::styled(text, Color::Red).render(damage, buffer);
    }
}

/// Draws the counters that clients reported, in two columns.
fn draw_counters(met: &[CounterNow], area: Rect, buffer: &mut Buffer) {
    let block = boxed("reported by clients");
    let inside = block.inner(area);
    block.render(area, buffer);
    let columns: [Rect; 2] = Layout::horizontal([Constraint::Fill(1); 2]).spacing(3).areas(inside);
    for (column, part) in columns.into_iter().zip(met.chunks(met.len().div_ceil(2).max(1))) {
        let rows = part.iter().map(|CounterNow { what, total, per_s }| {
            let now = per_s.filter(|per_s| *per_s > 0.0).map_or_else(String::new, rate);
            let cells =
                [Line::styled(what.replace('_', " "), Color::DarkGray), Line::raw(count(*total)).right_aligned()];
            let style = if *what == "timeouts" && *total > 0 { Style::new().fg(Color::Yellow) } else { Style::new() };
            Row::new(cells.map(Cell::from).into_iter().chain([Cell::from(Line::raw(now).right_aligned())])).style(style)
        });
        let widths = [Constraint::Length(15), Constraint::Fill(1), Constraint::Length(10)];
        Widget::render(Table::new(rows, widths), column, buffer);
    }
}

fn draw_clients(frame: &Frame, area: Rect, buffer: &mut Buffer) {
    let clients = &frame.clients;
    let mut title = vec![format!("{} of {} clients live", count(clients.live as u64), count(clients.max.into()))];
    let others = [
        (clients.stopped, "stopped"),
        (clients.unknown, "unknown"),
        (clients.dead, "dead"),
        (clients.recovering, "being recovered"),
        (clients.damaged, "DAMAGED"),
    ];
    title.extend(others.iter().filter(|(some, _)| *some > 0).map(|(some, what)| format!("{some} {what}")));
    let title = title.join(", ");
    let block = boxed(&title);
    let room = usize::from(block.inner(area).height.saturating_sub(1));
    let hidden = clients.list.len().saturating_sub(room);
    // Clients that need attention come first.
    let mut list: Vec<&ClientStat> = clients.list.iter().collect();
    list.sort_by_key(|client| (client.state == ClientState::Live, client.slot));
    let shown = if hidden > 0 { room.saturating_sub(1) } else { room };
    let rows = list.iter().take(shown).map(|client| client_row(client));
    let more = (hidden > 0).then(|| Row::new(["…".to_owned(), format!("{} more", list.len() - shown.min(list.len()))]));
    let head = ["slot", "process", "state", "open for", "chunks", ""].map(Cell::from);
    let head = Row::new(head).style(Color::DarkGray);
    let widths = [6, 10, 12, 10, 8, 12].map(Constraint::Length);
    Widget::render(Table::new(rows.chain(more), widths).header(head).block(block), area, buffer);
}

fn client_row(client: &ClientStat) -> Row<'static> {
    let (state, color) = match client.state {
        ClientState::Live => ("live", Color::Reset),
        ClientState::Stopped => ("stopped", Color::Yellow),
        ClientState::Unknown => ("unknown", Color::DarkGray),
        ClientState::Dead => ("dead", Color::Red),
        ClientState::Recovering => ("recovering", Color::Yellow),
        _ => ("DAMAGED", Color::Red),
    };
    let since = UNIX_EPOCH + Duration::from_nanos(client.since_unix_ns);
    let age = SystemTime::now().duration_since(since).unwrap_or_default().as_secs();
    let open_for = match age {
        0..120 => format!("{age} s"),
        120..7_200 => format!("{} min", age / 60),
        _ => format!("{} h", age / 3600),
    };
    let committing = if client.committing { "committing" } else { "" };
    let (slot, process) = (client.slot.to_string(), client.process.to_string());
    let cells = [slot, process, state.to_owned(), open_for, count(client.chunks), committing.to_owned()];
    Row::new(cells).style(color)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::frame::Clients;
    use super::*;

    fn client(slot: u16, state: ClientState) -> ClientStat {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let since_unix_ns = (now - Duration::from_secs(300)).as_nanos() as u64;
        let process = 4000 + u64::from(slot);
        ClientStat { slot, generation: 1, state, process, since_unix_ns, committing: slot == 7, chunks: 2 }
    }

    fn frame() -> Frame {
        let rates = Rates {
            round_trips: 12_345.0,
            reads: 30_000.0,
            writes: 5_000.0,
            swaps: 5_000.0,
            adds: 0.0,
            bytes_in: 2_000_000.0,
            bytes_out: 6_000_000.0,
            median_ns: Some(2_048),
            p99_ns: Some(16_384),
        };
        Frame {
            url: "tcp://127.0.0.1:7711".to_owned(),
            format: "bytes:64".to_owned(),
            changes_per_s: Some(4_321.0),
            node: Some(NodeNow { counts_verbs: true, sessions_open: 12, refused: 3, fenced: 1, rates: Some(rates) }),
            table: TableNow {
                age_s: 0.26,
                entries: 621_000,
                capacity: 1_000_000,
                fill: 0.621,
                entries_per_s: Some(-120.0),
                unverified_rows: 0,
                live_bytes: 1 << 20,
                used_bytes: 2 << 20,
                total_bytes: 64 << 20,
            },
            met: ["lock_conflicts", "row_retries", "recoveries", "timeouts"]
                .map(|what| CounterNow { what, total: 1_234, per_s: Some(5.0) })
                .to_vec(),
            clients: Clients {
                live: 11,
                stopped: 0,
                unknown: 0,
                dead: 1,
                recovering: 0,
                damaged: 0,
                max: 1024,
                list: (0..12)
                    .map(|slot| client(slot, if slot == 7 { ClientState::Dead } else { ClientState::Live }))
                    .collect(),
            },
        }
    }

    /// Returns the content of a terminal of this size.
    fn shown(frame: &Frame, extras: Extras<'_>, columns: u16, lines: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
        terminal.draw(|screen| draw(frame, extras, screen.area(), screen.buffer_mut())).unwrap();
        let buffer = terminal.backend().buffer();
        let lines = buffer.content.chunks(usize::from(columns));
        lines.map(|line| line.iter().map(|cell| cell.symbol()).collect()).collect()
    }

    #[track_caller]
    fn has(lines: &[String], words: &str) {
        assert!(lines.iter().any(|line| line.contains(words)), "no {words:?} in\n{}", lines.join("\n"));
    }

    #[test]
    fn everything_is_there_on_the_usual_terminal() {
        let extras = Extras { history: &[1, 5, 9], problem: None, keys: "q quit" };
        let lines = shown(&frame(), extras, 80, 24);
        for words in [
            "tcp://127.0.0.1:7711  bytes:64",
            "changes     4,320/s",
            "round trips 12,300/s",
            "verbs       40,000/s, 75 % reads",
            "in, out     1.9 MiB/s, 5.7 MiB/s",
            "p50 < 3 µs, p99 < 17 µs",
            "node, 12 sessions",
            "sessions    3 refused, 1 fenced",
            "entries     621,000 of 1,000,000 ",
            "change      -120.0/s (0.3 s ago)",
            "62.1 %",
            "extents     2.0 MiB of 64.0 MiB ",
            "lock conflicts",
            "1,234      5.0/s",
            "11 of 1,024 clients live, 1 dead",
            "committing",
            "…      11 more",
            "q quit",
        ] {
            has(&lines, words);
        }
        let first = lines.iter().position(|line| line.contains("slot  ")).unwrap() + 1;
        assert!(lines[first].contains("4007") && lines[first].contains("dead"), "{}", lines.join("\n"));
    }

    #[test]
    fn unknown_numbers_are_shown_as_unknown() {
        let mut frame = frame();
        frame.node = None;
        let lines = shown(&frame, Extras::default(), 80, 24);
        ["changes     4,320/s", "no trace in shared", "no node"].iter().for_each(|words| has(&lines, words));
        assert!(!lines.iter().any(|line| line.contains("refused")), "{}", lines.join("\n"));
        frame.node = Some(NodeNow { counts_verbs: true, sessions_open: 1, refused: 0, fenced: 0, rates: None });
        has(&shown(&frame, Extras::default(), 80, 24), "round trips …");
        frame.node = Some(NodeNow { counts_verbs: false, sessions_open: 1, refused: 7, fenced: 0, rates: None });
        let lines = shown(&frame, Extras::default(), 80, 24);
        ["changes     4,320/s", "7 refused", "card executes them", "rdma statistic"]
            .iter()
            .for_each(|words| has(&lines, words));
        assert!(!lines.iter().any(|line| line.contains("round trips")), "{}", lines.join("\n"));
    }

    #[test]
    fn problems_and_damage_are_shown() {
        let mut frame = frame();
        frame.table.unverified_rows = 3;
        let extras = Extras { problem: Some("the node is gone"), ..Extras::default() };
        let lines = shown(&frame, extras, 80, 24);
        has(&lines, "3 rows DAMAGED");
        let long = format!("shm://{} does not exist; create it with: guira create", "x".repeat(100));
        has(&shown(&frame, Extras { problem: Some(&long), ..Extras::default() }, 80, 24), "guira create");
        has(&lines, "the node is gone");
    }

    /// Large numbers fit on a terminal of 80 columns, and an unknown state is not damage.
    #[test]
    fn large_numbers_fit_80_columns() {
        let mut frame = frame();
        let rates = Rates {
            round_trips: 12_345_678.0,
            reads: 12_345_678.0,
            bytes_in: 1_073_000_000.0,
            bytes_out: 1_073_000_000.0,
            ..frame.node.as_ref().and_then(|node| node.rates.clone()).unwrap()
        };
        frame.node = Some(NodeNow {
            counts_verbs: true,
            sessions_open: 1_024,
            refused: 12_345,
            fenced: 123,
            rates: Some(rates),
        });
        (frame.table.entries, frame.table.capacity) = (100_000_000, 100_000_000);
        frame.table.entries_per_s = Some(-12_345_678.0);
        (frame.clients.list[0].state, frame.clients.list[1].state) = (ClientState::Stopped, ClientState::Unknown);
        let lines = shown(&frame, Extras::default(), 80, 24);
        for words in [
            "round trips 12,300,000/s",
            "verbs       12,400,000/s, 100 % reads",
            "1023.3 MiB/s, 1023.3 MiB/s",
            "node, 1,024 sessions",
            "sessions    12,345 refused, 123 fenced",
            "entries     100,000,000 of 100,000,000",
            "change      -12,300,000/s (0.3 s ago)",
            "stopped",
            "unknown",
        ] {
            has(&lines, words);
        }
    }

    #[test]
    fn every_size_is_drawn() {
        let history = vec![7; 500];
        let extras = Extras { history: &history, problem: None, keys: "q quit" };
        let mut drawn = 0;
        for columns in (1..=MIN_COLUMNS + 1).chain([79, 80, 81, 200, 500]) {
            for lines in (1..=MIN_LINES + 1).chain([20, 23, 24, 25, 60, 200]) {
                shown(&frame(), extras, columns, lines);
                drawn += 1;
            }
        }
        println!("{drawn} sizes");
        has(&shown(&frame(), extras, 40, 10), "needs 60 x 16");
        has(&shown(&frame(), extras, MIN_COLUMNS, MIN_LINES), "clients live");
        has(&shown(&frame(), extras, 200, 60), "slot");
    }

    #[test]
    fn text_has_no_trailing_space() {
        let text = text(&frame(), 80);
        assert!(text.starts_with(" guira top") && !text.ends_with('\n'), "{text}");
        assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
        assert!(text.contains("4011"), "all clients fit: {text}");
        assert!(!text.contains("more"), "{text}");
    }
}
