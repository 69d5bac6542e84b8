//! `cargo xtask test-rdma`: the tests of crates/fabric-verbs on Soft-RoCE, RDMA in software, in a virtual machine.
//!
//! The machine is QEMU's emulation of a processor, so neither hardware nor modules nor KVM of this host are needed; it
//! boots Debian's kernel with a file system in memory that contains the test programs and what they load. It has two
//! RDMA devices whose packets cross a link. Packages come from Debian's archive, and are installed if this is root.
//! Downloads stay in the target directory.
//!
//! A host that cannot do this, because it is no x86-64 or has no apt, makes the step of `cargo xtask test`
//! "not available". In the machine a test without a device fails instead of being skipped.

mod archive;
mod kernel;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;

use self::archive::Archive;
use self::kernel::Kernel;
use crate::artifact::Artifact;
use crate::report::{Format, Verdict};
use crate::test::{Budget, Outcome, Shell, target_directory};
use crate::tree;

/// The package whose tests run.
pub const PACKAGE: &str = "guira-fabric-verbs";
/// Limit for downloading packages, building the tests and running the machine.
pub const LIMIT_S: u64 = 1_200;
/// Limit for the machine, which is up after 10 seconds on two slow cores and needs a minute for the tests.
const MACHINE_LIMIT_S: u64 = 400;
/// Memory of the machine in MiB: ten times the test programs.
const MEMORY_MIB: &str = "1024";
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
    /// Run only tests whose name contains NAME, such as `end::`.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
}

/// Runs `cargo xtask test-rdma`. A host that cannot run the machine is a failure here.
pub fn command(options: &Options, format: Format) -> Result<Verdict> {
    let only = options.only.as_deref().unwrap_or_default();
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_:".contains(c);
    ensure!(only.chars().all(is_name), "--only {only:?} is not a part of the name of a test");
    let shell = Shell::new(tree::workspace_root()?, format);
    let budget = Budget { until: Instant::now() + Duration::from_secs(LIMIT_S), limit_s: LIMIT_S };
    let outcome = match build(&shell, &budget) {
        Ok(programs) => run(&shell, &budget, &programs, only),
        Err(outcome) => outcome,
    };
    let line = format!("test-rdma: {} {}", outcome.word(), outcome.detail());
    match format {
        Format::Human => println!("{}", line.trim_end()),
        Format::Json => println!("{}", serde_json::to_string_pretty(&outcome)?),
    }
    Ok(if outcome == Outcome::Passed { Verdict::Passed } else { Verdict::Failed })
}

/// Builds the test programs and returns their paths.
fn build(shell: &Shell, budget: &Budget) -> Result<Vec<PathBuf>, Outcome> {
    let directory = directory(shell)?;
    let json = "--message-format=json-render-diagnostics";
    let mut command = shell.command("cargo", ["test", "--no-run", json, "--lib", "--tests", "--package", PACKAGE]);
    let printed = shell.read(&mut command, budget, &directory.join("programs.json"))?;
    Ok(Artifact::all(&printed).filter(|it| it.profile.test).map(|it| it.executable).collect())
}

/// Runs test programs in the virtual machine: those of their tests whose names contain `only`.
pub fn run(shell: &Shell, budget: &Budget, programs: &[PathBuf], only: &str) -> Outcome {
    attempt(shell, budget, programs, only).unwrap_or_else(|outcome| outcome)
}

fn attempt(shell: &Shell, budget: &Budget, programs: &[PathBuf], only: &str) -> Result<Outcome, Outcome> {
    ensure_packages(shell, budget)?;
    let directory = directory(shell)?;
    let kernel = Kernel::find(shell, budget, &directory)?;
    let image = image(shell, budget, &kernel, programs, only)?;
    let archive = directory.join("initrd.cpio");
    fs::write(&archive, image).map_err(|error| Outcome::Failed(format!("{}: {error}", archive.display())))?;
    Ok(boot(shell, budget, &kernel, &archive, &directory.join("status")))
}

/// The directory of all that is downloaded or made.
fn directory(shell: &Shell) -> Result<PathBuf, Outcome> {
    let directory = target_directory(shell, "rdma");
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
    if !shell.succeeds("sh", ["-c", "[ \"$(id -u)\" = 0 ]"], budget) {
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

/// The file system of the machine.
fn image(
    shell: &Shell,
    budget: &Budget,
    kernel: &Kernel,
    programs: &[PathBuf],
    only: &str,
) -> Result<Vec<u8>, Outcome> {
    let mut archive = Archive::default();
    ["dev", "proc", "sys", "tmp", "run"].into_iter().for_each(|path| archive.directory(path));
    archive.add(Path::new("/init"), INIT.as_bytes());
    archive.add(Path::new("/tests/only"), only.as_bytes());
    archive.add(Path::new("/etc/libibverbs.d/rxe.driver"), b"driver rxe\n");
    kernel.add_modules(&mut archive)?;
    let own = [("busybox", "/bin/busybox"), ("ip", "/usr/bin/ip"), ("rdma", "/usr/bin/rdma"), ("tc", "/usr/bin/tc")];
    let own = own.into_iter().filter_map(|(name, to)| Some((program(name)?, PathBuf::from(to))));
    let libraries = LIBRARIES.iter().filter_map(|(name, _)| library(name)).map(|path| (path.clone(), path));
    let tests = programs
        .iter()
        .map(|path| (path.clone(), Path::new("/tests/programs").join(path.file_name().unwrap_or_default())));
    for (from, to) in own.chain(libraries).chain(tests) {
        let failed = |error: std::io::Error| Outcome::Failed(format!("{}: {error}", from.display()));
        archive.copy(&from, &to).map_err(failed)?;
        for library in shared_libraries(shell, budget, &from)? {
            archive.copy(&library, &library).map_err(failed)?;
        }
    }
    Ok(archive.finish())
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

/// Boots the machine and waits until it ends. Its output is shown as it is printed.
fn boot(shell: &Shell, budget: &Budget, kernel: &Kernel, archive: &Path, status: &Path) -> Outcome {
    // The result of an earlier machine must not be taken for this one's.
    drop(fs::remove_file(status));
    let mut qemu = shell.command("qemu-system-x86_64", ["-accel", "tcg,thread=multi"]);
    // With these features the kernel would copy memory by an instruction that QEMU executes byte by byte: torn words.
    qemu.args(["-cpu", "max,-erms,-fsrm"]);
    qemu.args(["-smp", PROCESSORS, "-m", MEMORY_MIB, "-nodefaults", "-display", "none", "-no-reboot"]);
    qemu.args(["-append", "console=ttyS0 quiet panic=-1 mitigations=off", "-serial", "stdio", "-serial"]);
    qemu.arg(format!("file:{}", status.display())).arg("-kernel").arg(&kernel.image).arg("-initrd").arg(archive);
    let until = budget.until.min(Instant::now() + Duration::from_secs(MACHINE_LIMIT_S));
    match shell.run(&mut qemu, &Budget { until, limit_s: MACHINE_LIMIT_S }) {
        Outcome::Passed => verdict(&fs::read_to_string(status).unwrap_or_default()),
        other => other,
    }
}

/// The outcome in what the machine wrote: the exit status of the tests, and how many of them passed.
fn verdict(written: &str) -> Outcome {
    let mut numbers = written.split_whitespace().map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(0)), Some(Ok(0))) => Outcome::Failed("no test ran".to_owned()),
        (Some(Ok(0)), Some(Ok(_))) => Outcome::Passed,
        (Some(Ok(status)), Some(Ok(_))) => Outcome::Failed(format!("exit status {status} of the tests")),
        _ => Outcome::Failed("the virtual machine ended without a result".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_that_ran_and_passed_are_a_success() {
        let failed = |text: &str| Outcome::Failed(text.to_owned());
        assert_eq!(verdict("0 31\n"), Outcome::Passed);
        assert_eq!(verdict("0 0\n"), failed("no test ran"));
        assert_eq!(verdict("101 30\r\n"), failed("exit status 101 of the tests"));
        assert_eq!(verdict(""), failed("the virtual machine ended without a result"));
        assert_eq!(verdict("0"), failed("the virtual machine ended without a result"));
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
