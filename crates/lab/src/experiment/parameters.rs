//! The parameters of an experiment by name: their values, bounds and axis labels.
//!
//! Invariants: every field of [`Experiment`] has one row in [`PARAMETERS`], under the name that it has in a plan file,
//! and a value within the bounds of that row is a value of the field.

use guira::EntryFormat;
use serde::{Deserialize, Serialize};

use super::{Experiment, Hashing, InsertRow, Kind, LabError, Lookup, Mix, Setting, Steered};

/// A parameter of an experiment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// The name in plan files and on the command line.
    pub name: &'static str,
    /// The label of an axis.
    pub label: &'static str,
    /// The unit of an axis, or an empty text.
    pub unit: &'static str,
    /// The values that it may have.
    pub accepts: Accepts,
    /// The settings in which it has an effect.
    settings: &'static [Setting],
}

/// The values that a parameter may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Accepts {
    /// Whole numbers between bounds.
    Integer(i64, i64),
    /// Powers of two between bounds.
    PowerOfTwo(i64, i64),
    /// Numbers between bounds.
    Number(f64, f64),
    /// Names.
    Name(&'static [&'static str]),
    /// Formats of entries.
    Format,
}

/// The largest number of clients: client slots of a table with locks of 16 bits.
const MAX_CLIENTS: i64 = 32_767;
/// The longest time of a parameter in microseconds: a minute of virtual time, hours of real time.
const MAX_SPAN_US: f64 = 60e6;

/// The largest READ, in slots of a word: what a verb may read.
const MAX_READ_SLOTS: i64 = 1 << 17;

const ALL: &[Setting] = &[
    Setting::Guira,
    Setting::AsPrinted,
    Setting::AsRun,
    Setting::Linear,
    Setting::Cuckoo,
    Setting::Dummy,
    Setting::Clover,
];
/// The settings of RCuckoo.
const RCUCKOO: &[Setting] = &[Setting::Guira, Setting::AsPrinted, Setting::AsRun];
/// The settings that run the protocol of Guira's own code, and not the messages of the authors.
const PROTOCOL: &[Setting] = &[Setting::Guira, Setting::AsPrinted];
/// The settings whose entries can be chosen, and whose clients can have several operations at once.
const NOT_AS_RUN: &[Setting] =
    &[Setting::Guira, Setting::AsPrinted, Setting::Linear, Setting::Cuckoo, Setting::Dummy, Setting::Clover];
/// The settings of other stores, which are built once and then only read.
const READ_ONLY: &[Setting] = &[Setting::Linear, Setting::Cuckoo, Setting::Dummy];
/// The settings among them whose clients read tables.
const TABLES: &[Setting] = &[Setting::Linear, Setting::Cuckoo];
const LINEAR: &[Setting] = &[Setting::Linear];
/// The settings whose clients call a service.
const CALLING: &[Setting] = &[Setting::Dummy, Setting::Clover];
const CLOVER: &[Setting] = &[Setting::Clover];
/// The settings that can have an element in front of the memory node.
const STEERABLE: &[Setting] = &[Setting::Guira, Setting::AsPrinted, Setting::Clover];
/// The names of all settings.
const SETTINGS: [&str; 7] = ["guira", "as-printed", "as-run", "linear", "cuckoo", "dummy", "clover"];

/// The names of lookups: of linear probing, and of cuckoo hashing.
const LOOKUPS: [&str; 6] = ["fixed", "variable", "unbounded", "parallel", "sequential", "sequential-all"];

/// The names of what an element steers: of Clover, and of RCuckoo.
const STEERED: [&str; 4] = ["changes", "all", "changes-as-printed", "locks"];

/// Every parameter, in the order of plan files.
pub const PARAMETERS: [Parameter; 47] = [
    row("setting", "setting", "", Accepts::Name(&SETTINGS), ALL),
    row("nic", "network card", "", Accepts::Name(&["connectx-3", "connectx-5", "connectx-6", "connectx-7"]), ALL),
    row("hosts", "client hosts", "", Accepts::Integer(1, 1024), ALL),
    row("clients", "clients", "", Accepts::Integer(1, MAX_CLIENTS), ALL),
    row("in-flight", "operations at once of a client", "", Accepts::Integer(1, 1024), NOT_AS_RUN),
    row("near-threads", "threads near the card of a host", "", Accepts::Integer(0, 1024), ALL),
    row("link-gbps", "speed of links", "Gbit/s", Accepts::Integer(1, 1600), ALL),
    row("workload", "workload", "", Accepts::Name(&["a", "b", "c", "w", "a-insert", "b-insert"]), ALL),
    row("theta", "Zipf exponent", "", Accepts::Number(0.0, 2.0), ALL),
    row("entries", "entries of the table", "", Accepts::Integer(1024, 10_000_000_000), ALL),
    row("fill", "fill", "%", Accepts::Number(1.0, 99.0), ALL),
    row("fill-to", "fill at the end", "%", Accepts::Number(1.0, 99.0), RCUCKOO),
    row("format", "entry format", "", Accepts::Format, ALL),
    row("value-bytes", "value", "bytes", Accepts::Integer(4, 1 << 20), PROTOCOL),
    row("queue", "local queues", "", Accepts::Name(&["host", "none"]), RCUCKOO),
    row("predictor-kib", "predictor of a client", "KiB", Accepts::Integer(0, 1 << 20), PROTOCOL),
    row("guess", "guess of a predictor", "", Accepts::Name(&["rationed", "always"]), PROTOCOL),
    row("factor", "locality factor f", "", Accepts::Number(1.1, 16.0), RCUCKOO),
    row("rows-per-lock", "rows per lock", "", Accepts::PowerOfTwo(1, 512), RCUCKOO),
    row("lock-bits", "width of a lock", "bits", Accepts::Integer(1, 16), PROTOCOL),
    row("locks-per-message", "locks per message", "", Accepts::Integer(1, 64), RCUCKOO),
    row("entries-per-row", "entries per row", "", Accepts::Integer(1, 14), PROTOCOL),
    row("covering-bytes", "largest covering READ", "bytes", Accepts::Integer(0, 1 << 20), RCUCKOO),
    row("hashing", "hashing", "", Accepts::Name(&["dependent", "independent"]), RCUCKOO),
    row("insert-row", "row of a new key", "", Accepts::Name(&["primary", "emptier"]), PROTOCOL),
    row("search", "search", "", Accepts::Name(&["breadth-first", "depth-first"]), RCUCKOO),
    row("search-row-ns", "time of a search for a full row", "ns", Accepts::Integer(0, 1_000_000), &[Setting::AsRun]),
    row("update-reads", "rows that an update reads", "", Accepts::Name(&["covering", "single"]), &[Setting::AsRun]),
    row("depth", "search depth", "moves", Accepts::Integer(1, 31), PROTOCOL),
    row("layout", "place of records", "", Accepts::Name(&["inline", "heap"]), TABLES),
    row("associativity", "records of a slot", "", Accepts::Integer(1, 4), &[Setting::Cuckoo]),
    row("lookup", "lookup", "", Accepts::Name(&LOOKUPS), TABLES),
    row("read-slots", "slots of a READ", "", Accepts::Integer(1, MAX_READ_SLOTS), LINEAR),
    row("assumed-fill", "fill assumed by the model", "%", Accepts::Number(1.0, 99.0), LINEAR),
    row("clusters", "clusters that a client tracks", "", Accepts::Integer(1, 1_000_000), LINEAR),
    row("key-theta", "Zipf exponent of the keys of records", "", Accepts::Number(0.0, 2.0), LINEAR),
    row("read-costs", "costs of READs in the model", "", Accepts::Name(&["printed", "measured"]), LINEAR),
    row("node-threads", "threads of the node's service", "", Accepts::Integer(1, 1024), CALLING),
    row("cache-keys", "keys that a client caches", "", Accepts::Integer(1, u32::MAX as i64), CLOVER),
    row("steering", "what the element steers", "", Accepts::Name(&STEERED), STEERABLE),
    row("element-keys", "keys that the element knows", "", Accepts::Integer(1, u32::MAX as i64), CLOVER),
    row("shortcut-lag-us", "time after which shortcuts are written", "µs", Accepts::Number(0.0, 1e6), CLOVER),
    row("compute-us", "computation of a client for an operation", "µs", Accepts::Number(0.0, 1_000.0), CLOVER),
    row("timeout-ms", "lock timeout", "ms", Accepts::Number(0.001, 60_000.0), RCUCKOO),
    row("deaths-per-second", "deaths of clients", "1/s", Accepts::Number(0.0, 50_000.0), RCUCKOO),
    row("span-us", "measured time", "µs", Accepts::Number(1.0, MAX_SPAN_US), ALL),
    row("warm-us", "time before the measurement", "µs", Accepts::Number(0.0, MAX_SPAN_US), ALL),
];

/// Picoseconds that a byte takes on a link of 1 Gbit/s.
const BYTE_PS_OF_GBPS: u32 = 8_000;

const fn row(
    name: &'static str,
    label: &'static str,
    unit: &'static str,
    accepts: Accepts,
    settings: &'static [Setting],
) -> Parameter {
    Parameter { name, label, unit, accepts, settings }
}

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A whole number.
    Integer(i64),
    /// Any other number.
    Number(f64),
    /// A name.
    Text(String),
}

impl Value {
    /// Reads a value as it is written on the command line: a number, or a text.
    pub fn parse(text: &str) -> Value {
        let integer = text.parse().map(Value::Integer).ok();
        let number = || text.parse().ok().filter(|number: &f64| number.is_finite()).map(Value::Number);
        integer.or_else(number).unwrap_or_else(|| Value::Text(text.to_owned()))
    }

    /// Returns the number, or `None` for a text.
    pub fn as_number(&self) -> Option<f64> {
        match self {
            Value::Integer(integer) => Some(*integer as f64),
            Value::Number(number) => Some(*number),
            Value::Text(_) => None,
        }
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Integer(integer) => write!(f, "{integer}"),
            Value::Number(number) => write!(f, "{number}"),
            Value::Text(text) => f.write_str(text),
        }
    }
}

impl Parameter {
    /// Returns the parameter of this name.
    ///
    /// # Errors
    /// [`LabError::UnknownParameter`].
    pub fn find(name: &str) -> Result<&'static Parameter, LabError> {
        let unknown = || {
            let names = PARAMETERS.iter().map(|parameter| parameter.name);
            LabError::UnknownParameter { name: name.to_owned(), nearest: nearest(name, names) }
        };
        PARAMETERS.iter().find(|parameter| parameter.name == name).ok_or_else(unknown)
    }

    fn check(&self, value: &Value) -> Result<(), LabError> {
        if self.accepts.holds(value) {
            return Ok(());
        }
        Err(LabError::Value {
            parameter: self.name.to_owned(),
            value: value.to_string(),
            expected: self.accepts.to_string(),
        })
    }
}

impl Accepts {
    fn holds(&self, value: &Value) -> bool {
        match (*self, value) {
            (Accepts::Integer(low, high), Value::Integer(integer)) => (low..=high).contains(integer),
            (Accepts::PowerOfTwo(low, high), Value::Integer(integer)) => {
                (low..=high).contains(integer) && integer.count_ones() == 1
            }
            (Accepts::Number(low, high), value) => {
                value.as_number().is_some_and(|number| (low..=high).contains(&number))
            }
            (Accepts::Name(names), Value::Text(text)) => names.contains(&text.as_str()),
            (Accepts::Format, Value::Text(text)) => text.parse::<EntryFormat>().is_ok(),
            _ => false,
        }
    }
}

impl std::fmt::Display for Accepts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Accepts::Integer(low, high) => write!(f, "a whole number from {low} to {high}"),
            Accepts::PowerOfTwo(low, high) => write!(f, "a power of two from {low} to {high}, to divide the rows"),
            Accepts::Number(low, high) => write!(f, "a number from {low} to {high}"),
            Accepts::Name(names) => write!(f, "one of {}", names.join(", ")),
            Accepts::Format => f.write_str(EntryFormat::ACCEPTED),
        }
    }
}

/// Sets one parameter.
pub(super) fn with(experiment: &Experiment, name: &str, value: &Value) -> Result<Experiment, LabError> {
    let parameter = Parameter::find(name)?;
    parameter.check(value)?;
    let wrong = |_| LabError::Value {
        parameter: name.to_owned(),
        value: value.to_string(),
        expected: parameter.accepts.to_string(),
    };
    let mut table = table_of(experiment);
    let value = match value {
        Value::Integer(integer) => toml::Value::Integer(*integer),
        Value::Number(number) => toml::Value::Float(*number),
        Value::Text(text) => toml::Value::String(text.clone()),
    };
    table.insert(name.to_owned(), value);
    table.try_into().map_err(wrong)
}

/// Returns the value of one parameter.
pub(super) fn value_of(experiment: &Experiment, name: &str) -> Option<Value> {
    match table_of(experiment).get(name)? {
        toml::Value::Integer(integer) => Some(Value::Integer(*integer)),
        toml::Value::Float(number) => Some(Value::Number(*number)),
        toml::Value::String(text) => Some(Value::Text(text.clone())),
        _ => None,
    }
}

/// Returns the parameters that have a value, by name.
fn table_of(experiment: &Experiment) -> toml::Table {
    // Plain numbers and texts, none beyond i64 in an experiment within its bounds: nothing can fail.
    toml::Table::try_from(experiment).unwrap_or_default()
}

/// Checks bounds and relations.
pub(super) fn check(experiment: &Experiment) -> Result<(), LabError> {
    for parameter in &PARAMETERS {
        if let Some(value) = value_of(experiment, parameter.name) {
            parameter.check(&value)?;
        }
    }
    check_slots(experiment)?;
    check_effects(experiment)?;
    if READ_ONLY.contains(&experiment.setting) {
        check_read_only(experiment)?;
    }
    if !RCUCKOO.contains(&experiment.setting) {
        check_records(experiment)?;
    }
    if experiment.hashing == Some(Hashing::Independent) && experiment.factor.is_some() {
        return Err(LabError::Conflict("independent hashing has no locality factor: remove factor".to_owned()));
    }
    if experiment.value_bytes.is_some() && !matches!(experiment.format, EntryFormat::Bytes { .. }) {
        let message = format!("values of format {} have a fixed length: remove value-bytes", experiment.format);
        return Err(LabError::Conflict(message));
    }
    if let Some(fill_to) = experiment.fill_to {
        if !experiment.workload.has(Kind::Insert) {
            return Err(LabError::Conflict("this workload has no inserts: remove fill-to".to_owned()));
        }
        if fill_to <= experiment.fill {
            let message = format!("fill-to is {fill_to}, but the table is {} % full at first", experiment.fill);
            return Err(LabError::Conflict(message));
        }
        if experiment.span_us.is_some() {
            return Err(LabError::Conflict("span-us and fill-to both say when to end: remove one".to_owned()));
        }
    }
    let deaths = experiment.deaths_per_second;
    if deaths.fract() != 0.0 {
        return Err(LabError::Conflict(format!("deaths-per-second is {deaths}, but must be a whole number")));
    }
    if let Some(gbps) = experiment.link_gbps
        && !BYTE_PS_OF_GBPS.is_multiple_of(gbps)
    {
        let message = format!("link-gbps is {gbps}, but the model has whole picoseconds for a byte: 8,000 / link-gbps");
        return Err(LabError::Conflict(message));
    }
    Ok(())
}

/// Refuses parameters that change nothing in the setting of an experiment.
fn check_effects(experiment: &Experiment) -> Result<(), LabError> {
    let (default, setting) = (Experiment::default(), experiment.setting);
    let conflict = |message: &str| Err(LabError::Conflict(message.to_owned()));
    let has_words =
        matches!(experiment.format, EntryFormat::Fixed { key_bytes: 4, value_bytes } if value_bytes % 8 == 4);
    if setting == Setting::AsRun && !has_words {
        let format = experiment.format;
        return conflict(&format!(
            "entries as run are words with keys of 4 bytes: fixed:4:4, fixed:4:12, not {format}"
        ));
    }
    if setting == Setting::AsRun && experiment.deaths_per_second > 0.0 && !experiment.workload.has(Kind::Update) {
        return conflict("clients of setting as-run die in updates: choose workload a or b");
    }
    if setting == Setting::AsRun && !experiment.workload.has(Kind::Update) && experiment.theta != default.theta {
        return conflict("setting as-run draws keys for workloads a and b only: remove theta");
    }
    for parameter in PARAMETERS.iter().filter(|parameter| !parameter.settings.contains(&setting)) {
        let name = parameter.name;
        if experiment.value_of(name) != default.value_of(name) {
            return conflict(&format!("setting {} has no {name}: remove it", setting.name()));
        }
    }
    if experiment.guess.is_some() && experiment.predictor_kib == 0 {
        return conflict("guess is for clients with a predictor: set predictor-kib, or remove guess");
    }
    if setting == Setting::AsRun && !experiment.workload.has(Kind::Insert) {
        let of_inserts = ["search", "search-row-ns"].into_iter().find(|name| experiment.value_of(name).is_some());
        if let Some(name) = of_inserts {
            return conflict(&format!("{name} is for inserts of setting as-run: remove it"));
        }
    }
    if let Some(steered) = experiment.steering
        && (steered == Steered::Locks) == (setting == Setting::Clover)
    {
        let has = if setting == Setting::Clover { "changes, all or changes-as-printed" } else { "locks" };
        return conflict(&format!("setting {} has steering {has}", setting.name()));
    }
    if experiment.element_keys.is_some() && experiment.steering.is_none() {
        return conflict("element-keys is for an element: set steering, or remove element-keys");
    }
    if experiment.update_reads.is_some() && !experiment.workload.has(Kind::Update) {
        return conflict("update-reads is for updates: remove it");
    }
    let chooses_row = setting == Setting::Guira && experiment.predictor_kib == 0;
    if experiment.insert_row == Some(InsertRow::Emptier) && !chooses_row {
        return conflict("insert-row emptier is for setting guira without a predictor: all others use the primary row");
    }
    Ok(())
}

/// Checks the parameters of a store that is built once and then only read.
fn check_read_only(experiment: &Experiment) -> Result<(), LabError> {
    let setting = experiment.setting.name();
    if experiment.workload != Mix::C {
        let message = format!("the table of setting {setting} is built once, and then only read: choose workload c");
        return Err(LabError::Conflict(message));
    }
    let is_of_cuckoo =
        |lookup: &Lookup| matches!(lookup, Lookup::Parallel | Lookup::Sequential | Lookup::SequentialAll);
    if experiment.lookup.is_some_and(|lookup| is_of_cuckoo(&lookup) != (experiment.setting == Setting::Cuckoo)) {
        let [linear, cuckoo] = [&LOOKUPS[..3], &LOOKUPS[3..]].map(|names| names.join(", "));
        let message = format!("lookups of setting linear are {linear}, and those of setting cuckoo {cuckoo}");
        return Err(LabError::Conflict(message));
    }
    if experiment.associativity.is_some_and(|records| records != 1 && records != 4) {
        return Err(LabError::Conflict("associativity is 1 or 4 records of a slot".to_owned()));
    }
    let is_modelled = matches!(experiment.lookup, Some(Lookup::Variable | Lookup::Unbounded));
    if is_modelled && experiment.read_slots.is_some() {
        let message = "read-slots is for READs of a fixed size, and lookup has the model choose it: remove one";
        return Err(LabError::Conflict(message.to_owned()));
    }
    if experiment.clusters.is_some() && experiment.lookup != Some(Lookup::Variable) {
        let message = "clusters change the size of READs: set lookup to variable";
        return Err(LabError::Conflict(message.to_owned()));
    }
    if !is_modelled && (experiment.assumed_fill.is_some() || experiment.read_costs.is_some()) {
        let message = "assumed-fill and read-costs are for the model: set lookup to variable or unbounded";
        return Err(LabError::Conflict(message.to_owned()));
    }
    Ok(())
}

/// Checks the format of the records of a store that is not RCuckoo.
fn check_records(experiment: &Experiment) -> Result<(), LabError> {
    if !matches!(experiment.format, EntryFormat::Fixed { key_bytes: 4, .. }) {
        let (setting, format) = (experiment.setting.name(), experiment.format);
        let message = format!("setting {setting} has keys of 4 bytes: choose format fixed:4:V, not {format}");
        return Err(LabError::Conflict(message));
    }
    Ok(())
}

/// Checks that there can be so many operations at once, and that a lock of this width can name each. A lock of one bit
/// names none.
fn check_slots(experiment: &Experiment) -> Result<(), LabError> {
    let clients = experiment.clients.saturating_mul(experiment.in_flight);
    if i64::from(clients) > MAX_CLIENTS {
        let message = format!("{clients} operations at once are more than {MAX_CLIENTS}: lower clients or in-flight");
        return Err(LabError::Conflict(message));
    }
    let Some(lock_bits) = experiment.lock_bits.filter(|bits| *bits > 1) else { return Ok(()) };
    // Of the values of a lock, the upper half marks poisoned ones.
    let slots = (1_u32 << (lock_bits - 1)) - 1;
    if clients > slots {
        let message =
            format!("{clients} clients are more than the {slots} slots of a table with locks of {lock_bits} bits");
        return Err(LabError::Conflict(message));
    }
    Ok(())
}

/// Returns the most similar of the names, unless none is similar.
pub fn nearest<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Option<String> {
    /// Changes of letters between a name and a similar one.
    const CHANGES_MAX: usize = 3;
    let closest = names.map(|known| (changes_between(name, known), known)).min()?;
    (closest.0 <= CHANGES_MAX.min(name.chars().count() / 2)).then(|| closest.1.to_owned())
}

/// The number of letters to insert, remove or replace between two texts.
fn changes_between(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, known) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *known);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::super::Mix;
    use super::*;

    fn text(value: &str) -> Value {
        Value::Text(value.to_owned())
    }

    #[test]
    fn every_parameter_is_a_field_and_every_field_a_parameter() {
        let mut experiment = Experiment::default();
        for parameter in &PARAMETERS {
            let value = match parameter.accepts {
                Accepts::Integer(low, _) | Accepts::PowerOfTwo(low, _) => Value::Integer(low),
                Accepts::Number(_, high) => Value::Number(high),
                Accepts::Name(names) => {
                    for name in names {
                        experiment.with(parameter.name, &text(name)).expect(name);
                    }
                    text(names[names.len() - 1])
                }
                Accepts::Format => text("bytes:64"),
            };
            experiment = experiment.with(parameter.name, &value).expect(parameter.name);
            assert_eq!(experiment.value_of(parameter.name), Some(value), "{}", parameter.name);
        }
        assert_eq!(table_of(&experiment).len(), PARAMETERS.len());
    }

    #[test]
    fn a_wrong_value_is_refused_with_the_values_that_are_right() {
        let error = |name, value| Experiment::default().with(name, &value).unwrap_err().to_string();
        assert_eq!(error("theta", Value::Number(2.5)), "theta is 2.5, but must be a number from 0 to 2");
        assert_eq!(error("theta", Value::Number(-0.1)), "theta is -0.1, but must be a number from 0 to 2");
        assert_eq!(error("clients", Value::Integer(0)), "clients is 0, but must be a whole number from 1 to 32767");
        assert!(error("rows-per-lock", Value::Integer(24)).contains("a power of two from 1 to 512"));
        assert!(error("nic", text("connectx-9")).contains("connectx-5, connectx-6"));
        assert!(error("format", text("fixed:4")).contains("fixed:K:V"));
        assert_eq!(error("client", Value::Integer(1)), "unknown parameter \"client\" (similar: clients)");
        assert_eq!(error("xyzzy", Value::Integer(1)), "unknown parameter \"xyzzy\"");
    }

    fn message(experiment: Experiment) -> String {
        experiment.check().unwrap_err().to_string()
    }

    #[test]
    fn parameters_that_do_not_go_together_are_refused() {
        let default = Experiment::default();
        assert_eq!(default.check(), Ok(()));
        assert!(message(Experiment { lock_bits: Some(8), ..default }).contains("127 slots"));
        assert_eq!(Experiment { lock_bits: Some(1), ..default }.check(), Ok(()));
        assert!(message(Experiment { theta: f64::NAN, ..default }).starts_with("theta is NaN"));
        let independent = Experiment { hashing: Some(Hashing::Independent), factor: Some(2.3), ..default };
        assert!(message(independent).contains("locality factor"));
        assert!(message(Experiment { value_bytes: Some(8), ..default }).contains("fixed:4:4 have a fixed length"));
        let always = Experiment { guess: Some(crate::experiment::Guess::Always), ..default };
        assert!(message(always).contains("set predictor-kib"));
        assert_eq!(Experiment { predictor_kib: 64, ..always }.check(), Ok(()));
        assert!(message(Experiment { in_flight: 200, ..default }).contains("64000 operations at once"));
        let emptier = Experiment { insert_row: Some(InsertRow::Emptier), ..default };
        assert_eq!(emptier.check(), Ok(()));
        assert!(message(Experiment { setting: Setting::AsPrinted, ..emptier }).contains("primary row"));
        let to = |workload, fill_to| Experiment { fill: 85.0, fill_to: Some(fill_to), workload, ..default };
        assert_eq!(to(Mix::W, 95.0).check(), Ok(()));
        assert!(message(to(Mix::A, 95.0)).contains("no inserts"));
        assert!(message(to(Mix::W, 85.0)).contains("85 % full"));
        assert!(message(Experiment { span_us: Some(5.0), ..to(Mix::W, 95.0) }).contains("span-us"));
    }

    #[test]
    fn what_has_no_effect_as_run_is_refused() {
        let default = Experiment::default();
        let rare = Experiment { deaths_per_second: 0.5, ..default };
        assert!(rare.check().unwrap_err().to_string().contains("whole number"));
        let odd = Experiment { link_gbps: Some(900), ..default };
        assert!(odd.check().unwrap_err().to_string().contains("picoseconds"));
        let dying = Experiment { setting: Setting::AsRun, deaths_per_second: 1.0, ..default };
        assert_eq!(dying.check(), Ok(()));
        assert!(message(Experiment { workload: Mix::AInsert, ..dying }).contains("die in updates"));
        let as_run = Experiment { setting: Setting::AsRun, ..default };
        assert_eq!(as_run.check(), Ok(()));
        for (name, value) in
            [("predictor-kib", Value::Integer(64)), ("value-bytes", Value::Integer(8)), ("depth", Value::Integer(3))]
        {
            assert!(message(as_run.with(name, &value).unwrap()).contains(name), "{name}");
        }
        assert_eq!(as_run.with("format", &text("fixed:4:60")).unwrap().check(), Ok(()));
        assert!(message(as_run.with("format", &text("fixed:8:8")).unwrap()).contains("not fixed:8:8"));
        assert!(message(as_run.with("search-row-ns", &Value::Integer(1)).unwrap()).contains("search-row-ns"));
        let covering = as_run.with("update-reads", &text("covering")).unwrap();
        assert_eq!(covering.check(), Ok(()));
        assert!(message(Experiment { workload: Mix::C, ..covering }).contains("update-reads"));
        let uniform = Experiment { theta: 0.0, ..as_run };
        assert_eq!(uniform.check(), Ok(()));
        assert!(message(Experiment { workload: Mix::W, ..uniform }).contains("remove theta"));
        assert!(message(as_run.with("in-flight", &Value::Integer(2)).unwrap()).contains("no in-flight"));
    }

    #[test]
    fn what_has_no_effect_on_other_stores_is_refused() {
        let default = Experiment::default();
        let linear = Experiment { setting: Setting::Linear, workload: Mix::C, ..default };
        assert_eq!(linear.check(), Ok(()));
        assert!(message(Experiment { workload: Mix::A, ..linear }).contains("choose workload c"));
        assert!(message(linear.with("format", &text("fixed:8:8")).unwrap()).contains("keys of 4 bytes"));
        assert!(message(linear.with("depth", &Value::Integer(5)).unwrap()).contains("setting linear has no depth"));
        let variable = Experiment { lookup: Some(Lookup::Variable), ..linear };
        assert_eq!(Experiment { assumed_fill: Some(50.0), ..variable }.check(), Ok(()));
        assert!(message(Experiment { read_slots: Some(32), ..variable }).contains("remove one"));
        assert_eq!(Experiment { clusters: Some(9), key_theta: Some(0.9), ..variable }.check(), Ok(()));
        assert!(message(Experiment { clusters: Some(9), ..linear }).contains("set lookup to variable"));
        assert!(message(Experiment { assumed_fill: Some(50.0), ..linear }).contains("are for the model"));
        let cuckoo = Experiment { setting: Setting::Cuckoo, ..linear };
        assert_eq!(cuckoo.check(), Ok(()));
        assert!(message(Experiment { lookup: Some(Lookup::Fixed), ..cuckoo }).contains("those of setting cuckoo"));
        assert!(message(Experiment { lookup: Some(Lookup::Parallel), ..linear }).contains("lookups of setting linear"));
        assert!(message(Experiment { associativity: Some(2), ..cuckoo }).contains("1 or 4"));
        assert!(message(Experiment { read_slots: Some(2), ..cuckoo }).contains("setting cuckoo has no read-slots"));
        assert!(message(Experiment { read_slots: Some(32), ..default }).contains("setting guira has no read-slots"));
        let dummy = Experiment { setting: Setting::Dummy, node_threads: Some(2), ..linear };
        assert_eq!(dummy.check(), Ok(()));
        assert!(message(Experiment { lookup: Some(Lookup::Fixed), ..dummy }).contains("setting dummy has no lookup"));
        assert!(message(Experiment { workload: Mix::A, ..dummy }).contains("choose workload c"));
        assert!(message(Experiment { node_threads: Some(0), ..dummy }).contains("node-threads is 0"));
        assert!(message(Experiment { node_threads: Some(1), ..linear }).contains("setting linear has no node-threads"));
        let clover = Experiment { setting: Setting::Clover, cache_keys: Some(1), compute_us: Some(0.5), ..default };
        assert_eq!(clover.check(), Ok(()));
        assert_eq!(Experiment { workload: Mix::W, node_threads: Some(2), ..clover }.check(), Ok(()));
        assert!(message(Experiment { cache_keys: Some(0), ..clover }).contains("cache-keys is 0"));
        assert!(message(Experiment { element_keys: Some(8), ..clover }).contains("set steering"));
        assert!(message(Experiment { steering: Some(Steered::Locks), ..clover }).contains("changes, all or"));
        for setting in [Setting::Guira, Setting::AsPrinted] {
            let steered = |steering| Experiment { setting, steering: Some(steering), ..default };
            assert!(message(steered(Steered::All)).contains("has steering locks"));
            assert_eq!(steered(Steered::Locks).check(), Ok(()));
        }
        let steered = Experiment { steering: Some(Steered::Changes), element_keys: Some(8), ..clover };
        assert_eq!(steered.check(), Ok(()));
        assert!(message(Experiment { element_keys: Some(0), ..steered }).contains("element-keys is 0"));
        assert!(message(Experiment { setting: Setting::Dummy, workload: Mix::C, ..steered }).contains("dummy has no"));
        assert!(message(Experiment { compute_us: Some(-1.0), ..clover }).contains("compute-us is -1"));
        assert!(message(Experiment { lookup: Some(Lookup::Fixed), ..clover }).contains("setting clover has no lookup"));
        assert!(message(clover.with("format", &text("bytes:64")).unwrap()).contains("keys of 4 bytes"));
        assert!(message(Experiment { cache_keys: Some(9), ..default }).contains("setting guira has no cache-keys"));
        assert!(message(Experiment { compute_us: Some(1.0), ..dummy }).contains("setting dummy has no compute-us"));
    }

    #[test]
    fn a_value_on_the_command_line_is_a_number_if_it_reads_as_one() {
        assert_eq!(Value::parse("8"), Value::Integer(8));
        assert_eq!(Value::parse("0.5"), Value::Number(0.5));
        assert_eq!(Value::parse("inf"), text("inf"));
        assert_eq!(Value::parse("connectx-6"), text("connectx-6"));
    }
}
