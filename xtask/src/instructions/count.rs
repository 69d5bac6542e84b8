//! Counting: the program is built like a release and runs under callgrind, which writes one dump for each case.
//!
//! Counts must not depend on the machine. The program starts with an empty environment, whose length would move its
//! stack; the C library is configured not to use instructions that only some processors have; build flags of the
//! environment are ignored. [`Setting`] lists the remaining dependencies.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, ensure};

use super::record::{Count, Counted, Setting};
use crate::artifact::Artifact;

const PACKAGE: &str = "guira-instructions";
/// The function whose instructions are counted, in `benches/instructions/src/main.rs`.
const COUNTED: &str = "guira_instructions::counted_operations";
/// Makes the C library copy memory as every x86-64 processor can; names that a version does not know are ignored. The
/// repeated string instructions would count once for each byte, and wider vectors would depend on the stack's place.
const TUNABLES: &str = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX2,-AVX2_Usable,-AVX,-AVX_Fast_Unaligned_Load,\
                        -ERMS,-FSRM";
/// The advice if valgrind is missing.
const HOW_TO_INSTALL: &str = "install valgrind, for instance: sudo apt-get install valgrind";

/// Counts every case. `wanted` is the setting of the record; counts of another target are refused.
pub fn count(root: &Path, wanted: Option<&Setting>) -> Result<Counted> {
    let taken_with = setting(root)?;
    if let Some(wanted) = wanted {
        let (target, here) = (&wanted["target"], &taken_with["target"]);
        ensure!(target == here, "the recorded counts are for {target} and cannot be compared with those of {here}");
    }
    let program = build(root)?;
    let directory = program.with_file_name(format!("{PACKAGE}-{}", std::process::id()));
    std::fs::create_dir(&directory).with_context(|| directory.display().to_string())?;
    let cases = run(&program, &directory);
    std::fs::remove_dir_all(&directory).with_context(|| directory.display().to_string())?;
    Ok(Counted { taken_with, cases: cases? })
}

fn setting(root: &Path) -> Result<Setting> {
    let version = output(Command::new("rustc").args(["-vV"]).current_dir(root))?;
    let mut lines = version.lines();
    let rustc = lines.next().unwrap_or_default().to_owned();
    let target = lines.find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?.to_owned();
    let cfg = output(Command::new("rustc").args(["--print", "cfg"]).current_dir(root))?;
    let features: Vec<&str> = cfg.lines().filter_map(|line| line.strip_prefix("target_feature=")).collect();
    let libc = output(Command::new("getconf").args(["GNU_LIBC_VERSION"]).current_dir(root))?;
    let valgrind = output(Command::new("valgrind").args(["--version"]).current_dir(root)).context(HOW_TO_INSTALL)?;
    let features = features.join(" ").replace('"', "");
    let setting = [
        ("rustc", rustc),
        ("target", target),
        ("target_features", features),
        ("libc", libc.trim().to_owned()),
        ("valgrind", valgrind.trim().to_owned()),
    ];
    Ok(setting.map(|(name, value)| (name.to_owned(), value)).into())
}

/// Builds the program like a release and returns the path of its executable.
fn build(root: &Path) -> Result<PathBuf> {
    // Built together with guira-cli, so that both use the same build of the libraries.
    let packages = ["--package", PACKAGE, "--package", "guira-cli", "--bin", PACKAGE];
    let arguments = ["build", "--release", "--message-format=json-render-diagnostics"].into_iter().chain(packages);
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(root);
    // Set to empty, so that no configuration adds flags either.
    command.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", "");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CARGO_PROFILE_") {
            command.env_remove(name);
        }
    }
    Artifact::program(&output(&mut command)?, PACKAGE).context("cargo built no executable")
}

/// Runs the program under callgrind, which writes one dump per case into `directory`.
fn run(program: &Path, directory: &Path) -> Result<BTreeMap<String, Count>> {
    let dump = directory.join("dump");
    let mut command = Command::new("valgrind");
    command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path))).env("GLIBC_TUNABLES", TUNABLES);
    command.args(["--quiet", "--vgdb=no", "--tool=callgrind", "--collect-atstart=no"]);
    command.args(["--compress-strings=no", "--compress-pos=no", "--dump-line=no"]);
    command.arg(format!("--toggle-collect={COUNTED}")).arg(format!("--dump-after={COUNTED}"));
    command.arg(format!("--callgrind-out-file={}", dump.display())).arg(program);
    let printed = output(&mut command)?;
    let mut cases = BTreeMap::new();
    for (index, line) in printed.lines().enumerate() {
        let case = line.split_once(' ').and_then(|(operations, case)| Some((operations.parse().ok()?, case)));
        let (operations, case): (u32, _) = case.with_context(|| format!("{PACKAGE} printed {line:?}"))?;
        let path = dump.with_extension((index + 1).to_string());
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("callgrind wrote no dump for {case:?}: it did not find {COUNTED}"))?;
        let sum = parse(&text, program).with_context(|| format!("the dump of {case:?}"))?;
        let each = |instructions: u64| (instructions as f64 / f64::from(operations) * 10.0).round() / 10.0;
        cases.insert(case.to_owned(), Count { program: each(sum.program), library: each(sum.library) });
    }
    let more = dump.with_extension((cases.len() + 1).to_string());
    ensure!(!more.exists(), "callgrind wrote more dumps than {PACKAGE} has cases");
    Ok(cases)
}

/// Instructions of all operations of a dump.
#[derive(Debug, PartialEq, Eq)]
struct Sum {
    program: u64,
    library: u64,
}

/// Sums up a dump of callgrind, in the format of its manual, with neither names nor positions compressed. Each line of
/// numbers is a position and its instructions; the line after `calls=` repeats the sum of the callee's own lines.
fn parse(text: &str, program: &Path) -> Result<Sum> {
    let program = program.to_str().context("the path of the program is not UTF-8")?;
    let (mut sum, mut summary, mut object) = (Sum { program: 0, library: 0 }, None, "");
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(path) = line.strip_prefix("ob=") {
            object = path;
        } else if let Some(total) = line.strip_prefix("summary: ") {
            summary = Some(total.trim().parse::<u64>()?);
        } else if line.starts_with("calls=") {
            lines.next();
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            let cost = line.split_whitespace().nth(1).ok_or_else(|| anyhow!("no cost in {line:?}"))?;
            let cost: u64 = cost.parse().with_context(|| format!("no cost in {line:?}"))?;
            *(if object == program { &mut sum.program } else { &mut sum.library }) += cost;
        }
    }
    // A parser error would not give the right sum.
    let (total, summary) = (sum.program + sum.library, summary.context("there is no summary")?);
    ensure!(
        total == summary && sum.program > 0,
        "its lines add up to {total} instructions, its summary says {summary}"
    );
    Ok(sum)
}

/// Runs a command and returns its standard output; its standard error is shown.
fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    ensure!(output.status.success(), "{program}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = "# callgrind format\nversion: 1\ncmd:  /p/a\npositions: line\nevents: Ir\nsummary: 137\n\n\
                        ob=/p/a\nfl=main.rs\nfn=a::work\n52 17\nfi=/x.rs\n2978 10\nfe=main.rs\n\
                        cob=/lib/libc.so.6\ncfn=memcpy\ncalls=1000 0\n54 100\n55 10\n\n\
                        ob=/lib/libc.so.6\nfl=???\nfn=memcpy\n0 100\n\ntotals: 137\n";

    #[test]
    fn a_dump_is_split_into_program_and_library_and_counts_calls_once() {
        let sum = parse(DUMP, Path::new("/p/a")).expect("it adds up");
        assert_eq!(sum, Sum { program: 37, library: 100 });
    }

    #[test]
    fn a_dump_that_does_not_add_up_is_refused() {
        let wrong = DUMP.replace("summary: 137", "summary: 136");
        assert!(parse(&wrong, Path::new("/p/a")).is_err());
        assert!(parse(&DUMP.replace("summary: 137\n", ""), Path::new("/p/a")).is_err());
        assert!(parse(DUMP, Path::new("/p/other")).is_err(), "nothing of the program was counted");
    }
}
