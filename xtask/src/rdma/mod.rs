//! `cargo xtask test-rdma`: the tests of RDMA on Soft-RoCE, RDMA in software, in a virtual machine.
//!
//! The machine is QEMU's emulation of a processor, so neither hardware nor modules nor KVM of this host are needed; it
//! boots Debian's kernel with a file system in memory that contains the test programs and what they load. It has two
//! RDMA devices whose packets cross a link. Packages come from Debian's archive, and are installed if this is root.
//! Downloads stay in the target directory.
//!
//! A host that cannot do this, because it is no x86-64 or has no apt, makes the step of `cargo xtask release`
//! "not available". In the machine a test without a device fails instead of being skipped.

mod archive;
mod kernel;
mod suites;

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Args;

use self::archive::Archive;
use self::kernel::Kernel;
pub use self::suites::Selection;
use self::suites::{Run, Suite};
use crate::artifact::Artifact;
use crate::report::{Format, Verdict};
use crate::shell::{Budget, Outcome, Shell};
use crate::tree;

/// Limit for the machine, which emulates processors and so uses them while it hangs. It is up after 10 seconds on two
/// slow cores and then needs minutes for the default suite.
const MACHINE_LIMIT_S: u64 = 1_800;
/// Limit for the machine if it runs all suites.
const LONG_MACHINE_LIMIT_S: u64 = 5_400;
/// Memory of the machine in MiB: the programs twice, as an archive and unpacked, and memory that tests lock.
const MEMORY_MIB: &str = "3072";
const PROCESSORS: &str = "2";
const INIT: &str = include_str!("init.sh");

/// The programs that are run here or copied into the machine, and the packages that have them.
const PROGRAMS: [(&str, &str); 7] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("depmod", "kmod"),
    ("ip", "iproute2"),
    ("rdma", "iproute2"),
    ("tc", "iproute2"),
    ("ldd", "libc-bin"),
];
/// The libraries that test programs load by name, and the packages that have them.
const LIBRARIES: [(&str, &str); 2] = [("libibverbs.so.1", "libibverbs1"), ("libibverbs/librxe-", "ibverbs-providers")];

/// The tests to run.
#[derive(Args)]
pub struct Options {
    /// Run one suite: conformance (the conformance tests and those of memory nodes), kills (histories of killed
    /// processes), fence (a write that arrives after its client was fenced) or ycsb (a node and workloads A, B and C).
    /// With another NAME, such as end::, run the tests of the default suite whose names contain it.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Run all suites, one after the other.
    #[arg(long, conflicts_with = "only")]
    long: bool,
}

/// Runs `cargo xtask test-rdma`. A host that cannot run the machine is a failure here.
pub fn command(options: &Options, format: Format) -> Result<Verdict> {
    let selection = match (&options.only, options.long) {
        (Some(name), _) => Selection::of(name),
        (None, true) => Selection::Long,
        (None, false) => Selection::Default,
    };
    let part = selection.part().unwrap_or_default();
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_:".contains(c);
    ensure!(part.chars().all(is_name), "--only {part:?} is neither a suite nor a part of the name of a test");
    let shell = Shell::new(tree::workspace_root()?, format);
    let outcome = run(&shell, selection);
    let line = format!("test-rdma: {} {}", outcome.word(), outcome.detail());
    match format {
        Format::Human => println!("{}", line.trim_end()),
        Format::Json => println!("{}", serde_json::to_string_pretty(&outcome)?),
    }
    Ok(if outcome == Outcome::Passed { Verdict::Passed } else { Verdict::Failed })
}

/// Builds the test programs, if a selection needs any.
fn build(shell: &Shell, budget: &Budget, selection: Selection<'_>) -> Result<Vec<TestProgram>, Outcome> {
    if selection.suites().iter().flat_map(|suite| suite.runs).all(|run| matches!(run, Run::Script { .. })) {
        return Ok(Vec::new());
    }
    let directory = directory(shell)?;
    let json = "--message-format=json-render-diagnostics";
    let mut command = shell.command("cargo", ["test", "--no-run", json, "--lib", "--tests"]);
    // Always the same packages: another selection would compile their dependencies again.
    command.args(suites::PACKAGES.iter().flat_map(|package| ["--package", package]));
    let printed = shell.read(&mut command, budget, &directory.join("programs.json"))?;
    Ok(Artifact::all(&printed).filter_map(TestProgram::of).collect())
}

/// A test program that can be copied into the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestProgram {
    pub package: String,
    /// The name of its target.
    pub target: String,
    pub executable: PathBuf,
}

impl TestProgram {
    fn of(artifact: Artifact) -> Option<TestProgram> {
        let package = artifact.package().filter(|_| artifact.profile.test)?.to_owned();
        Some(TestProgram { package, target: artifact.target.name, executable: artifact.executable })
    }

    /// The names of its tests that contain one of `parts`, and `part`.
    fn tests(&self, shell: &Shell, budget: &Budget, parts: &[&str], part: &str) -> Result<Vec<String>, Outcome> {
        let into = directory(shell)?.join("tests.txt");
        let mut list = shell.command(&self.executable.to_string_lossy(), ["--list", "--format", "terse"]);
        let printed = shell.read(list.args(parts), budget, &into)?;
        let names = printed.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(names.filter(|name| name.contains(part)).map(str::to_owned).collect())
    }
}

/// A start of a program in the machine.
struct Start {
    suite: &'static str,
    environment: String,
    /// The program's path in the machine.
    program: String,
    arguments: String,
}

/// Runs the default suite, as a step of `cargo xtask release`.
pub fn step(shell: &Shell) -> Outcome {
    run(shell, Selection::Default)
}

/// Runs the selected suites in the virtual machine.
fn run(shell: &Shell, selection: Selection<'_>) -> Outcome {
    attempt(shell, &Budget::unlimited(), selection).unwrap_or_else(|outcome| outcome)
}

fn attempt(shell: &Shell, budget: &Budget, selection: Selection<'_>) -> Result<Outcome, Outcome> {
    ensure_packages(shell, budget)?;
    let programs = &build(shell, budget, selection)?;
    let directory = directory(shell)?;
    let kernel = Kernel::find(shell, budget, &directory)?;
    let mut archive = base(shell, budget, &kernel)?;
    let mut starts = Vec::new();
    for suite in selection.suites() {
        for run in suite.runs {
            let part = selection.part().unwrap_or_default();
            starts.extend(add(shell, budget, &mut archive, Part { suite, run, programs, part })?);
        }
    }
    let line = |Start { suite, environment, program, arguments }: &Start| {
        format!("{suite}|{environment}|{program}|{arguments}\n")
    };
    archive.add(Path::new("/tests/runs"), starts.iter().map(line).collect::<String>().as_bytes());
    let image = directory.join("initrd.cpio");
    fs::write(&image, archive.finish()).map_err(|error| Outcome::Failed(format!("{}: {error}", image.display())))?;
    let limit_s = if matches!(selection, Selection::Long) { LONG_MACHINE_LIMIT_S } else { MACHINE_LIMIT_S };
    let (outcome, written) = boot(shell, &kernel, &image, &directory.join("status"), limit_s)?;
    let results = Results::parse(&written);
    shell.say(results.to_string().trim_end());
    Ok(outcome.then(|| results.outcome()))
}

/// A run of a suite, and the part of the names of tests to which it is restricted.
struct Part<'p> {
    suite: &'static Suite,
    run: &'static Run,
    programs: &'p [TestProgram],
    part: &'p str,
}

/// Adds the programs of a run to the file system of the machine, and returns how they are started.
fn add(shell: &Shell, budget: &Budget, archive: &mut Archive, part: Part<'_>) -> Result<Vec<Start>, Outcome> {
    let Part { suite, run, programs, part } = part;
    let suite = suite.name;
    let (package, wanted, tests, environment) = match run {
        Run::Tests { package, program, tests, environment } => (*package, *program, *tests, *environment),
        Run::Script { name, text } => {
            let program = format!("/tests/programs/{name}");
            archive.add(Path::new(&program), text.as_bytes());
            copy(shell, budget, archive, &guira(shell, budget)?, Path::new("/tests/programs/guira"))?;
            return Ok(vec![Start { suite, environment: String::new(), program, arguments: String::new() }]);
        }
    };
    let is_wanted = |it: &&TestProgram| it.package == package && wanted.is_none_or(|target| target == it.target);
    let mut starts = Vec::new();
    for it in programs.iter().filter(is_wanted) {
        let tests = it.tests(shell, budget, tests, part)?;
        if tests.is_empty() {
            continue;
        }
        let program = Path::new("/tests/programs").join(it.executable.file_name().unwrap_or_default());
        copy(shell, budget, archive, &it.executable, &program)?;
        let arguments = format!("--test-threads 1 --nocapture --exact {}", tests.join(" "));
        starts.push(Start {
            suite,
            environment: environment.join(" "),
            program: program.to_string_lossy().into_owned(),
            arguments,
        });
    }
    Ok(starts)
}

/// Builds the program `guira` and returns its path.
fn guira(shell: &Shell, budget: &Budget) -> Result<PathBuf, Outcome> {
    let json = "--message-format=json-render-diagnostics";
    let words = ["build", "--profile", "test", json, "--package", suites::CLI, "--bin", "guira"];
    let printed = shell.read(&mut shell.command("cargo", words), budget, &directory(shell)?.join("guira.json"))?;
    Artifact::program(&printed, "guira").ok_or_else(|| Outcome::Failed("cargo built no program guira".to_owned()))
}

/// The directory of all that is downloaded or made.
fn directory(shell: &Shell) -> Result<PathBuf, Outcome> {
    let directory = shell.target_directory("rdma");
    let failed = |error: std::io::Error| Outcome::Failed(format!("{}: {error}", directory.display()));
    fs::create_dir_all(&directory).map_err(failed)?;
    Ok(directory)
}

/// Installs the packages that are missing, if this is root on a system with apt.
fn ensure_packages(shell: &Shell, budget: &Budget) -> Result<(), Outcome> {
    if env::consts::ARCH != "x86_64" {
        return Err(Outcome::NotAvailable("the virtual machine is an x86-64, and this host is not".to_owned()));
    }
    let missing = missing_packages();
    if missing.is_empty() {
        return Ok(());
    }
    let command = format!("apt-get install --yes --no-install-recommends {}", missing.join(" "));
    if program("apt-get").is_none() {
        return Err(Outcome::NotAvailable(format!("it needs the Debian packages {}", missing.join(", "))));
    }
    if !shell.succeeds("sh", ["-c", "[ \"$(id -u)\" = 0 ]"]) {
        return Err(Outcome::NotAvailable(format!("run: sudo {command}")));
    }
    shell.say(&command);
    let mut words = command.split(' ');
    let mut install = shell.command(words.next().unwrap_or_default(), words);
    install.env("DEBIAN_FRONTEND", "noninteractive");
    match (shell.run(&mut install, budget), missing_packages().as_slice()) {
        (Outcome::Passed, []) => Ok(()),
        _ => Err(Outcome::NotAvailable(format!("packages cannot be installed; run: {command}"))),
    }
}

fn missing_packages() -> Vec<&'static str> {
    let programs = PROGRAMS.iter().filter(|(name, _)| program(name).is_none());
    let libraries = LIBRARIES.iter().filter(|(name, _)| library(name).is_none());
    let mut packages: Vec<&str> = programs.chain(libraries).map(|(_, package)| *package).collect();
    packages.dedup();
    packages
}

/// The path of a program, also of those for administrators.
fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into(), "/bin".into()]);
    directories.map(|directory| directory.join(name)).find(|path| path.is_file())
}

/// The path of the first library whose path below a directory of libraries starts with `name`.
fn library(name: &str) -> Option<PathBuf> {
    let (inside, start) = name.rsplit_once('/').unwrap_or(("", name));
    let starts = |path: &PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(start));
    ["/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"].into_iter().find_map(|directory| {
        let entries = fs::read_dir(Path::new(directory).join(inside)).ok()?;
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(starts).collect();
        paths.sort();
        paths.into_iter().next()
    })
}

/// The file system of the machine without the programs of tests.
fn base(shell: &Shell, budget: &Budget, kernel: &Kernel) -> Result<Archive, Outcome> {
    let mut archive = Archive::default();
    ["dev", "proc", "sys", "tmp", "run"].into_iter().for_each(|path| archive.directory(path));
    archive.add(Path::new("/init"), INIT.as_bytes());
    archive.add(Path::new("/etc/libibverbs.d/rxe.driver"), b"driver rxe\n");
    kernel.add_modules(&mut archive)?;
    let own = [("busybox", "/bin/busybox"), ("ip", "/usr/bin/ip"), ("rdma", "/usr/bin/rdma"), ("tc", "/usr/bin/tc")];
    let own = own.into_iter().filter_map(|(name, to)| Some((program(name)?, PathBuf::from(to))));
    let libraries = LIBRARIES.iter().filter_map(|(name, _)| library(name)).map(|path| (path.clone(), path));
    for (from, to) in own.chain(libraries) {
        copy(shell, budget, &mut archive, &from, &to)?;
    }
    Ok(archive)
}

/// Adds a program to the file system, and the libraries that it loads.
fn copy(shell: &Shell, budget: &Budget, archive: &mut Archive, from: &Path, to: &Path) -> Result<(), Outcome> {
    let failed = |error: std::io::Error| Outcome::Failed(format!("{}: {error}", from.display()));
    archive.copy(from, to).map_err(failed)?;
    for library in shared_libraries(shell, budget, from)? {
        archive.copy(&library, &library).map_err(failed)?;
    }
    Ok(())
}

/// The shared libraries that the dynamic linker finds for a program; none for one that is linked statically.
fn shared_libraries(shell: &Shell, budget: &Budget, program: &Path) -> Result<Vec<PathBuf>, Outcome> {
    let into = directory(shell)?.join("libraries.txt");
    // ldd fails for programs without libraries.
    let mut ldd = shell.command("sh", ["-c", "ldd -- \"$1\" 2>&1 || true", "ldd"]);
    let printed = shell.read(ldd.arg(program), budget, &into)?;
    Ok(linked(&printed))
}

/// The paths in the output of ldd: `name => path (address)`, or `path (address)` for the linker itself.
fn linked(printed: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let (before, _) = line.rsplit_once(" (")?;
        let path = before.rsplit_once(" => ").map_or(before, |(_, path)| path).trim();
        path.starts_with('/').then(|| PathBuf::from(path))
    };
    printed.lines().filter_map(path).collect()
}

/// Boots the machine and waits until it ends. Its output is shown as it is printed. Returns how it ended, and the
/// results that it wrote.
fn boot(
    shell: &Shell,
    kernel: &Kernel,
    archive: &Path,
    status: &Path,
    limit_s: u64,
) -> Result<(Outcome, String), Outcome> {
    // The result of an earlier machine must not be taken for this one's.
    drop(fs::remove_file(status));
    let mut qemu = shell.command("qemu-system-x86_64", ["-accel", "tcg,thread=multi"]);
    // With these features the kernel would copy memory by an instruction that QEMU executes byte by byte: torn words.
    qemu.args(["-cpu", "max,-erms,-fsrm"]);
    qemu.args(["-smp", PROCESSORS, "-m", MEMORY_MIB, "-nodefaults", "-display", "none", "-no-reboot"]);
    qemu.args(["-append", "console=ttyS0 quiet panic=-1 mitigations=off", "-serial", "stdio", "-serial"]);
    qemu.arg(format!("file:{}", status.display())).arg("-kernel").arg(&kernel.image).arg("-initrd").arg(archive);
    let outcome = shell.run(&mut qemu, &Budget::of(limit_s));
    let written = fs::read_to_string(status).unwrap_or_default();
    Ok((outcome, written))
}

/// The counts of a suite.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SuiteResult {
    name: String,
    /// The exit status of its last program that failed; 0 if none did.
    status: u32,
    passed: u32,
    failed: u32,
}

/// The results that the machine wrote.
#[derive(Debug, PartialEq, Eq)]
struct Results {
    suites: Vec<SuiteResult>,
    /// Whether the last run has ended.
    is_complete: bool,
}

impl Results {
    /// Parses lines with a suite, an exit status and two counts, one for each run, and the word `end` behind them.
    fn parse(written: &str) -> Results {
        let mut results = Results { suites: Vec::new(), is_complete: false };
        for line in written.lines().map(str::trim) {
            let words: Vec<&str> = line.split(' ').collect();
            let numbers: Vec<u32> = words.iter().skip(1).filter_map(|word| word.parse().ok()).collect();
            match (words.as_slice(), numbers.as_slice()) {
                (["end"], _) => results.is_complete = true,
                ([name, _, _, _], [status, passed, failed]) => results.add(name, *status, *passed, *failed),
                _ => {}
            }
        }
        results
    }

    fn add(&mut self, name: &str, status: u32, passed: u32, failed: u32) {
        if self.suites.last().is_none_or(|suite| suite.name != name) {
            self.suites.push(SuiteResult { name: name.to_owned(), ..SuiteResult::default() });
        }
        if let Some(suite) = self.suites.last_mut() {
            suite.status = if status == 0 { suite.status } else { status };
            (suite.passed, suite.failed) = (suite.passed + passed, suite.failed + failed);
        }
    }

    fn outcome(&self) -> Outcome {
        let failed = |text: String| Outcome::Failed(text);
        match self.suites.iter().find(|suite| suite.status != 0 || suite.failed > 0) {
            _ if !self.is_complete => failed("the virtual machine ended without a result".to_owned()),
            Some(suite) => failed(format!("exit status {} of suite {}", suite.status, suite.name)),
            None if self.suites.iter().all(|suite| suite.passed == 0) => failed("no test ran".to_owned()),
            None => match self.suites.iter().find(|suite| suite.passed == 0) {
                Some(suite) => failed(format!("no test of suite {} ran", suite.name)),
                None => Outcome::Passed,
            },
        }
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |suite: &SuiteResult| format!("{}: {} passed, {} failed", suite.name, suite.passed, suite.failed);
        f.write_str(&self.suites.iter().map(line).collect::<Vec<_>>().join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_that_ran_and_passed_are_a_success() {
        let outcome = |text: &str| Results::parse(text).outcome();
        let failed = |text: &str| Outcome::Failed(text.to_owned());
        let incomplete = failed("the virtual machine ended without a result");
        assert_eq!(outcome("default 0 31 0\nend\n"), Outcome::Passed);
        assert_eq!(outcome("default 0 0 0\nend\n"), failed("no test ran"));
        assert_eq!(outcome("end\n"), failed("no test ran"));
        assert_eq!(outcome("default 0 3 0\nfence 0 0 0\nend\n"), failed("no test of suite fence ran"));
        assert_eq!(outcome("default 101 30 1\r\ndefault 0 2 0\r\nend\r\n"), failed("exit status 101 of suite default"));
        assert_eq!(outcome("default 0 31 0\n"), incomplete);
        assert_eq!(outcome(""), incomplete);
    }

    #[test]
    fn counts_of_the_runs_of_a_suite_are_summed() {
        let results = Results::parse("default 0 31 0\ndefault 101 2 1\nfence 0 4 0\nend\n");
        assert_eq!(results.to_string(), "default: 33 passed, 1 failed\nfence: 4 passed, 0 failed");
    }

    #[test]
    fn a_name_selects_a_suite_or_tests_of_the_default_one() {
        let names = |selection: Selection<'_>| selection.suites().iter().map(|suite| suite.name).collect::<Vec<_>>();
        assert_eq!(names(Selection::of("fence")), ["fence"]);
        assert_eq!((names(Selection::of("end::")), Selection::of("end::").part()), (vec!["default"], Some("end::")));
        assert_eq!(names(Selection::Long), ["default", "conformance", "kills", "fence", "ycsb"]);
    }

    #[test]
    fn libraries_are_read_from_what_ldd_prints() {
        let printed = "\tlinux-vdso.so.1 (0x00007ffc)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f6f)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x00007f70)\n\tnot a dynamic executable\n";
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(linked(printed), expected);
    }

    #[test]
    fn unknown_programs_and_libraries_have_no_path() {
        assert_eq!(program("no-such-program-anywhere"), None);
        assert_eq!(library("no-such-library"), None);
    }
}
