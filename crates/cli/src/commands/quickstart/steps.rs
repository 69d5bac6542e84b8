//! The steps of a quickstart. The result of each is shown as soon as it is done.

use std::io;
use std::time::Instant;

use guira::errors::InsufficientSpace;
use guira::{CreateOptions, OpenOptions, Preset, Store, Url};
use guira_lab::driver::OperationTally;

use super::changes::{self, COUNTERS, Changes, SHARED_KEYS};
use super::frames;
use super::report::{Change, Check, Input, Load, ReadBack, Report, Table};
use super::source::{FORMAT, Source, Survey, SurveyBuilder};
use super::worker::{Compared, Stored};
use crate::commands::{check, create};
use crate::failure::Failure;
use crate::loader::shard_of;
use crate::output::Output;
use crate::progress::Progress;
use crate::units;
use crate::workers::Worker;

/// Rounds of changes of each process: enough for all of them to overlap.
const ROUNDS: u32 = 20_000;
/// Client slots besides those of the processes.
const SPARE_CLIENTS: u16 = 60;
/// Number of size classes of values for which a process may have a chunk.
const CLASSES: u64 = 54;
/// Share of the available memory that a quickstart uses if its data does not fit.
const FALLBACK_SHARE: f64 = 0.8;

/// The parameters of the steps.
pub struct Steps<'s> {
    /// The table to create.
    pub url: &'s Url,
    /// Number of processes that use it at the same time.
    pub processes: u32,
    /// The data.
    pub source: &'s Source,
    /// The output for the results.
    pub output: &'s Output,
}

/// The created table, and the data to load into it.
pub struct Prepared {
    store: Store,
    survey: Survey,
    /// Number of records of the source, including those for which there is not enough memory.
    records_all: u64,
}

impl Steps<'_> {
    /// Reads the source and creates a table for it. If memory is short, uses only the first part of the source.
    pub fn create(&self) -> Result<Prepared, Failure> {
        let mut survey = self.survey(u64::MAX)?;
        let records_all = survey.records;
        let created = self.create_for(&survey);
        let insufficient_space = match &created {
            Err(failure) => failure.of_store().and_then(guira::Error::insufficient_space),
            Ok(_) => None,
        };
        let created = match insufficient_space {
            Some(InsufficientSpace { wanted_bytes, available_bytes }) => {
                let part = available_bytes as f64 / wanted_bytes.max(1) as f64 * FALLBACK_SHARE;
                survey = self.survey((survey.records as f64 * part) as u64)?;
                self.create_for(&survey)
            }
            None => created,
        };
        Ok(Prepared { store: created?, survey, records_all })
    }

    /// Carries out the other steps.
    pub fn show(&self, prepared: &Prepared, report: &mut Report) -> Result<(), Failure> {
        let input = Input::new(self.source.name(), &prepared.survey, prepared.records_all);
        self.output.human_line(&input.human())?;
        let created =
            create::Created::of(&prepared.store, Preset::Hardened, capacity(&prepared.survey, self.processes));
        let table = Table::new(&created);
        self.output.human_line(&table.human())?;
        (report.input, report.table) = (Some(input), Some(table));
        let load = self.load(prepared)?;
        self.output.human_line(&load.human(self.processes))?;
        report.load = Some(load);
        let read_back = self.read_back(prepared)?;
        self.output.human_line(&read_back.human())?;
        report.read_back = Some(read_back);
        let change = self.change(prepared)?;
        self.output.human_line(&change.human())?;
        report.change = Some(change);
        let checked = prepared.store.check()?;
        let check = Check::new(checked.is_clean(), check::summary(&self.url.to_string(), &checked));
        self.output.human_line(&check.human(&check::problems(&checked)))?;
        report.check = Some(check);
        report.first_key = guira_input::printable(&prepared.survey.first_key, 200);
        Ok(())
    }

    fn survey(&self, records_max: u64) -> Result<Survey, Failure> {
        let mut surveyor = SurveyBuilder::default();
        let mut progress = Progress::new(self.output, "reading", None);
        for (record, number) in self.source.records()?.zip(0..records_max) {
            let record = record?;
            surveyor.add(&record.key, &record.value);
            progress.tick(number, || units::counted(number, "record"));
        }
        progress.finish();
        let survey = surveyor.finish();
        if survey.records == 0 {
            return Err(Failure::Misuse(format!(
                "{} has no records, or there is not enough memory for any",
                self.source.name()
            )));
        }
        Ok(survey)
    }

    fn create_for(&self, survey: &Survey) -> Result<Store, Failure> {
        let clients = u16::try_from(self.processes).unwrap_or(u16::MAX / 2) + SPARE_CLIENTS;
        let options = CreateOptions::new(capacity(survey, self.processes))
            .format(FORMAT)
            .max_clients(clients)
            .extent_bytes(extent_bytes(survey, self.processes));
        create::create(self.url, &options, self.output)
    }

    fn start(&self, name: String, task: &str, index: u32) -> Result<Worker, Failure> {
        let (url, index, rounds) = (self.url.to_string(), index.to_string(), ROUNDS.to_string());
        let arguments = ["quickstart-worker", "--url", &url, "--task", task, "--index", &index, "--rounds", &rounds];
        Worker::start(name, &arguments)
    }

    /// Sends every record to the process of its key, so that the last one of a key wins. Returns the time at which the
    /// first record was ready to be sent.
    fn send(&self, what: &'static str, prepared: &Prepared, workers: &mut [Worker]) -> Result<Instant, Failure> {
        let mut surveyor = SurveyBuilder::default();
        let mut progress = Progress::new(self.output, what, Some(prepared.survey.records));
        let mut records = self.source.records()?.zip(0..prepared.survey.records).peekable();
        records.peek();
        let started = Instant::now();
        for (record, number) in records {
            let record = record?;
            surveyor.add(&record.key, &record.value);
            let shard = shard_of(&record.key, workers.len());
            workers[shard].write(|to| frames::write(to, &record.key, &record.value))?;
            progress.tick(number, || units::counted(number, "record"));
        }
        for worker in workers {
            worker.write(frames::write_end)?;
        }
        progress.finish();
        if surveyor.finish() != prepared.survey {
            let changed = io::Error::other("it changed in the meantime; try again");
            return Err(Failure::host(format!("read {} twice", self.source.name()))(changed));
        }
        Ok(started)
    }

    fn load(&self, prepared: &Prepared) -> Result<Load, Failure> {
        let start = |index| self.start(format!("loading process {index}"), "store", index);
        let mut workers = (0..self.processes).map(start).collect::<Result<Vec<_>, _>>()?;
        let started = self.send("loading", prepared, &mut workers)?;
        let mut total = Stored::default();
        for worker in workers {
            let stored: Stored = worker.finish()?;
            total.records += stored.records;
            total.inserted += stored.inserted;
            total.tally.merge(&stored.tally);
        }
        let elapsed = started.elapsed();
        let stat = prepared.store.stat()?;
        Ok(Load::new(&total, elapsed, &stat))
    }

    fn read_back(&self, prepared: &Prepared) -> Result<ReadBack, Failure> {
        let mut workers = [self.start("comparing process".to_owned(), "compare", 0)?];
        let started = self.send("comparing", prepared, &mut workers)?;
        let [worker] = workers;
        let compared: Compared = worker.finish()?;
        Ok(ReadBack::new(compared, prepared.survey.records, started.elapsed()))
    }

    fn change(&self, prepared: &Prepared) -> Result<Change, Failure> {
        let mut client = prepared.store.client()?;
        for process in 0..self.processes {
            for counter in 0..COUNTERS {
                client.put(changes::counter_key(process, counter).as_bytes(), b"0")?;
            }
        }
        drop(client);
        let start = |index| self.start(format!("changing process {index}"), "change", index);
        let mut workers = (0..self.processes).map(start).collect::<Result<Vec<_>, _>>()?;
        workers.iter_mut().try_for_each(Worker::receive::<()>)?;
        let started = Instant::now();
        workers.iter_mut().try_for_each(|worker| worker.send(&()))?;
        let changes = workers.into_iter().map(Worker::finish::<Changes>).collect::<Result<Vec<_>, _>>()?;
        let elapsed = started.elapsed();
        // A separate store, so that the result does not depend on anything this process did before.
        let mut reader = Store::open_with(self.url, &OpenOptions::default().read_only())?.reader();
        let wrong = changes::verify(&changes, |key| reader.get(key.as_bytes()))?;
        let mut tally = OperationTally::default();
        changes.iter().for_each(|changes| tally.merge(&changes.tally));
        Ok(Change::new(self.processes, &tally, wrong, elapsed))
    }
}

/// Returns the capacity of the table: the keys of the input, those that are changed, and a margin.
fn capacity(survey: &Survey, processes: u32) -> u64 {
    let changed = u64::from(processes * (COUNTERS + 1) + SHARED_KEYS);
    survey.records + survey.records / 8 + changed + 1000
}

/// Returns the memory for values outside the rows: the input's, and one chunk per process and size class.
fn extent_bytes(survey: &Survey, processes: u32) -> u64 {
    let held = survey.extent_bytes + survey.extent_bytes / 10;
    let chunk_bytes = (held / 512).clamp(64 << 10, 1 << 20).next_power_of_two();
    held + u64::from(processes + 2) * CLASSES * chunk_bytes
}
