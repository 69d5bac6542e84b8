//! A directory of results: charts that are finished, so that an interrupted run can go on, and the files for readers.
//!
//! For each figure it has the charts as JSON and as CSV, and an entry in `manifest.json` with a fingerprint of
//! everything that the charts depend on. Invariants: every file is whole or not there, and the entry of a figure is
//! written after its charts, so a figure with an entry is complete.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::page::{Run, page};
use super::{Chart, csv, write_whole};

const MANIFEST_FILE: &str = "manifest.json";
/// The page for readers.
pub const PAGE_FILE: &str = "report.html";

/// A directory of results.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
    manifest: Manifest,
}

/// The finished figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Manifest {
    figures: Vec<Entry>,
}

/// A finished figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    /// The name of the figure.
    id: String,
    /// The fingerprint of the run.
    run: String,
    /// The fingerprint of the run and of the figure's definition.
    fingerprint: String,
    /// The names of its charts.
    charts: Vec<String>,
}

/// Returns a fingerprint of these texts: two lists with the same fingerprint are the same, as far as anyone will see.
pub fn fingerprint(parts: &[&str]) -> String {
    /// FNV-1a with 64 bits: nobody attacks it, and it never changes.
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(PRIME);
    let lengths = parts.iter().flat_map(|part| (part.len() as u64).to_le_bytes().into_iter().chain(part.bytes()));
    format!("{:016x}", lengths.fold(OFFSET, step))
}

impl Run {
    /// Returns the fingerprint of everything that charts depend on, besides their definition.
    fn fingerprint(&self) -> String {
        let commit = self.commit.as_deref().unwrap_or("");
        let [seed, seeds] = [self.seed, self.seeds.into()].map(|number| number.to_string());
        fingerprint(&[&self.version, commit, &seed, &seeds, if self.quick { "quick" } else { "full" }])
    }

    fn fingerprint_of(&self, definition: &str) -> String {
        fingerprint(&[&self.fingerprint(), definition])
    }
}

impl Directory {
    /// Opens a directory of results, or creates it. Proves that files can be written there. An unreadable manifest
    /// counts as none: its figures are measured again.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(path: &Path) -> io::Result<Directory> {
        fs::create_dir_all(path)?;
        let manifest = match fs::read(path.join(MANIFEST_FILE)) {
            Ok(text) => serde_json::from_slice(&text).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Manifest::default(),
            Err(error) => return Err(error),
        };
        let directory = Directory { path: path.to_owned(), manifest };
        directory.write_manifest()?;
        Ok(directory)
    }

    /// Returns the charts of a figure if a run with the same settings finished it.
    pub fn finished(&self, id: &str, run: &Run, definition: &str) -> Option<Vec<Chart>> {
        let entry = self.manifest.figures.iter().find(|entry| entry.id == id)?;
        if entry.fingerprint != run.fingerprint_of(definition) {
            return None;
        }
        self.charts_of(entry)
    }

    /// Stores the charts of a figure.
    ///
    /// # Errors
    /// The system's error; the figure is not finished then.
    pub fn store(&mut self, id: &str, run: &Run, definition: &str, charts: &[Chart]) -> io::Result<()> {
        self.manifest.figures.retain(|entry| entry.id != id);
        self.write_manifest()?;
        for chart in charts {
            let name = file_name(&chart.id);
            let json = serde_json::to_vec(chart)?;
            write_whole(&self.path.join(format!("{name}.json")), &json)?;
            write_whole(&self.path.join(format!("{name}.csv")), csv(chart).as_bytes())?;
        }
        self.manifest.figures.push(Entry {
            id: id.to_owned(),
            run: run.fingerprint(),
            fingerprint: run.fingerprint_of(definition),
            charts: charts.iter().map(|chart| chart.id.clone()).collect(),
        });
        self.manifest.figures.sort_by(|one, other| one.id.cmp(&other.id));
        self.write_manifest()
    }

    /// Writes the page of all figures that runs with the same settings finished, and returns its path. Figures are in
    /// this order; others come last, by name.
    ///
    /// # Errors
    /// The system's error.
    pub fn write_page(&self, run: &Run, order: &[&str]) -> io::Result<PathBuf> {
        let mut entries: Vec<&Entry> =
            self.manifest.figures.iter().filter(|entry| entry.run == run.fingerprint()).collect();
        let place = |entry: &Entry| order.iter().position(|id| *id == entry.id).unwrap_or(order.len());
        entries.sort_by_key(|entry| place(entry));
        let charts: Vec<Chart> = entries.into_iter().filter_map(|entry| self.charts_of(entry)).flatten().collect();
        let path = self.path.join(PAGE_FILE);
        write_whole(&path, page(run, &charts).as_bytes())?;
        Ok(path)
    }

    /// Reads the charts of a figure; `None` if a file is missing or damaged.
    fn charts_of(&self, entry: &Entry) -> Option<Vec<Chart>> {
        let read = |id: &String| {
            let text = fs::read(self.path.join(format!("{}.json", file_name(id)))).ok()?;
            serde_json::from_slice(&text).ok()
        };
        entry.charts.iter().map(read).collect()
    }

    fn write_manifest(&self) -> io::Result<()> {
        let text = serde_json::to_string_pretty(&self.manifest)? + "\n";
        write_whole(&self.path.join(MANIFEST_FILE), text.as_bytes())
    }
}

/// The name of a chart's files.
fn file_name(id: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
    let plain: String = id.chars().map(|letter| if is_plain(letter) { letter } else { '-' }).collect();
    if plain == id {
        return plain;
    }
    // Ids that differ have files that differ: FNV-1a.
    let hash = id.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{plain}-{hash:08x}")
}

#[cfg(test)]
mod tests {
    use super::super::{Shape, samples};
    use super::*;

    fn run(seed: u64) -> Run {
        let text = |text: &str| text.to_owned();
        Run { title: text("T"), command: text("c"), version: text("0.1.0"), commit: None, seed, seeds: 3, quick: true }
    }

    fn with_directory(test: impl FnOnce(&Path)) {
        test(guira_testing::ScratchFolder::new().path());
    }

    #[test]
    fn a_figure_is_finished_for_the_same_settings_only() {
        with_directory(|path| {
            let chart = samples::of(Shape::Lines);
            let mut directory = Directory::open(&path.join("a/b")).unwrap();
            assert_eq!(directory.finished("6c", &run(1), "plan"), None);
            directory.store("6c", &run(1), "plan", std::slice::from_ref(&chart)).unwrap();
            for reopened in [directory.clone(), Directory::open(&path.join("a/b")).unwrap()] {
                assert_eq!(reopened.finished("6c", &run(1), "plan"), Some(vec![chart.clone()]));
                assert_eq!(reopened.finished("6c", &run(2), "plan"), None);
                assert_eq!(reopened.finished("6c", &run(1), "another"), None);
                assert_eq!(reopened.finished("6a", &run(1), "plan"), None);
            }
            fs::write(path.join("a/b/Lines.json"), b"{").unwrap();
            assert_eq!(directory.finished("6c", &run(1), "plan"), None, "a damaged file is not a chart");
        });
    }

    #[test]
    fn the_page_has_the_figures_of_the_same_run_in_order() {
        with_directory(|path| {
            let mut directory = Directory::open(path).unwrap();
            for (id, seed, shape) in
                [("6a", 1, Shape::Bars), ("1b", 1, Shape::Lines), ("5", 2, Shape::Grid), ("own", 1, Shape::Curve)]
            {
                directory.store(id, &run(seed), "", &[samples::of(shape)]).unwrap();
            }
            let page = directory.write_page(&run(1), &["1b", "5", "6a"]).unwrap();
            let text = fs::read_to_string(page).unwrap();
            let places = ["figure-Lines", "figure-Bars", "figure-Curve"].map(|id| text.find(&format!("id=\"{id}\"")));
            assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}");
            assert!(!text.contains("figure-Grid"));
            let parts = fs::read_dir(path).unwrap().filter_map(Result::ok);
            assert!(parts.map(|file| file.file_name()).all(|name| !name.to_string_lossy().ends_with(".part")));
        });
    }

    #[test]
    fn a_fingerprint_tells_lists_of_texts_apart() {
        assert_eq!(fingerprint(&["a", "b"]), fingerprint(&["a", "b"]));
        let all = [vec!["ab"], vec!["a", "b"], vec!["", "ab"], vec!["b", "a"], vec![]];
        let unique: std::collections::BTreeSet<String> = all.iter().map(|parts| fingerprint(parts)).collect();
        assert_eq!(unique.len(), all.len());
    }
}
