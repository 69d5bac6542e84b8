//! `cargo xtask c`: installs the library for C and C++ of bindings/c below the target directory, and builds and runs
//! its tests and examples there: by pkg-config and by CMake, with gcc and, where there is one, clang. `--install
//! PREFIX` installs an optimised library instead.
//!
//! cargo builds the archive. The shared library is linked from it, because rustc gives cdylibs a version script of its
//! own, beside which GNU ld accepts none that has versions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::report::{Format, Verdict};
use crate::shell::{Budget, Outcome, Shell};
use crate::tree;

/// The folder of the package.
const SOURCE: &str = "bindings/c";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The name of the shared library in programs: its number grows when they have to be compiled again.
const SONAME: &str = "libguira.so.0";
/// The libraries that the archive needs: `rustc --print native-static-libs`.
const PRIVATE: [&str; 7] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"];
/// Warnings of which the header and the tests are free.
const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"];
const SANITIZERS: [&str; 4] =
    ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g"];
/// The packages that are built for the tests, if not all are.
const PACKAGES: [&str; 5] = ["--locked", "-p", "guira-c", "-p", "guira-cli"];

#[derive(Args)]
pub struct Options {
    /// Install the library, optimised, into this folder, and test nothing.
    #[arg(long, value_name = "PREFIX")]
    install: Option<PathBuf>,
}

/// Runs `cargo xtask c`.
pub fn command(options: &Options, format: Format) -> Result<Verdict> {
    let shell = Shell::new(tree::workspace_root()?, format);
    let outcome = match &options.install {
        Some(prefix) => installed_release(&shell, &std::path::absolute(prefix)?),
        None => run(&shell, &PACKAGES, &[]),
    };
    shell.conclude("c", &outcome)
}

fn installed_release(shell: &Shell, prefix: &Path) -> Outcome {
    let installed = || {
        check_gcc(shell)?;
        let archive = archive(shell, &["build", "--release", "--locked", "-p", "guira-c"])?;
        install(shell, &archive, prefix)?;
        shell.say(&format!("installed libguira {VERSION} in {}", prefix.display()));
        Ok(())
    };
    installed().err().unwrap_or(Outcome::Passed)
}

/// Checks that the linker is there, before anything is built.
fn check_gcc(shell: &Shell) -> Result<(), Outcome> {
    match shell.succeeds("gcc", ["--version"]) {
        true => Ok(()),
        false => Err(Outcome::NotAvailable("gcc is missing; run: sudo apt-get install gcc".to_owned())),
    }
}

/// Builds, installs and tests the library, from the archive that the tests of `packages` use, and with their program
/// `guira`.
pub fn run(shell: &Shell, packages: &[&str], environment: &[(&str, &str)]) -> Outcome {
    tested(shell, packages, environment).err().unwrap_or(Outcome::Passed)
}

/// Runs the tests and examples under the sanitizers for addresses and undefined behaviour.
pub fn sanitizers(shell: &Shell) -> Outcome {
    let run = || {
        let kit = Kit::new(shell, &PACKAGES)?;
        for compiler in kit.compilers() {
            kit.test(&compiler, &SANITIZERS, &[])?;
        }
        Ok(())
    };
    run().err().unwrap_or(Outcome::Passed)
}

fn tested(shell: &Shell, packages: &[&str], environment: &[(&str, &str)]) -> Result<(), Outcome> {
    let kit = Kit::new(shell, packages)?;
    kit.check_symbols()?;
    for compiler in kit.compilers() {
        kit.test(&compiler, &["-O1"], environment)?;
    }
    kit.test_cmake()
}

/// Builds the archive by `cargo` with these arguments, and returns its path.
fn archive(shell: &Shell, arguments: &[&str]) -> Result<PathBuf, Outcome> {
    let format = ["--message-format", "json-render-diagnostics"];
    let messages = shell.target_directory("c").join("messages.json");
    fs::create_dir_all(shell.target_directory("c")).map_err(|error| failed(&messages, &error))?;
    let output = shell.read(shell.command("cargo", arguments).args(format), &Budget::unlimited(), &messages)?;
    let files = output.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let files = files.filter(|message| message["target"]["name"] == "guira_c" && message["profile"]["test"] == false);
    let files = files.flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default());
    let archive = files
        .filter_map(|file| file.as_str().map(PathBuf::from))
        .find(|file| file.extension().is_some_and(|name| name == "a"));
    archive.ok_or_else(|| Outcome::Failed("cargo built no archive".to_owned()))
}

/// Installs headers, libraries, and the files for pkg-config and CMake. They find each other wherever the folder is.
fn install(shell: &Shell, archive: &Path, prefix: &Path) -> Result<(), Outcome> {
    let source = shell.root().join(SOURCE);
    let (include, library) = (prefix.join("include"), prefix.join("lib"));
    let (pkg_config, cmake) = (library.join("pkgconfig"), library.join("cmake/guira"));
    // A library that cannot be linked leaves what was installed before as it is.
    let linked = link(shell, archive)?;
    for folder in [&include, &pkg_config, &cmake] {
        fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    }
    let copy = |from: &Path, to: &Path| fs::copy(from, to).map(drop).map_err(|error| failed(to, &error));
    for header in ["guira.h", "guira.hpp"] {
        copy(&source.join("include").join(header), &include.join(header))?;
    }
    copy(archive, &library.join("libguira.a"))?;
    let write = |name: &str, into: &Path, private: &str| {
        let from = source.join("packaging").join(name);
        let text = fs::read_to_string(&from).map_err(|error| failed(&from, &error))?;
        let text = text.replace("@VERSION@", VERSION).replace("@PRIVATE@", private);
        let text = text.replace("@URL@", env!("CARGO_PKG_REPOSITORY"));
        let into = into.join(name.trim_end_matches(".in"));
        fs::write(&into, text).map_err(|error| failed(&into, &error))
    };
    write("guira.pc.in", &pkg_config, &PRIVATE.join(" "))?;
    write("guira-config.cmake", &cmake, &PRIVATE.join(";"))?;
    write("guira-config-version.cmake", &cmake, "")?;
    let shared = format!("libguira.so.{VERSION}");
    // Programs that run keep the file that they have mapped.
    let _ = fs::remove_file(library.join(&shared));
    copy(&linked, &library.join(&shared))?;
    for (name, to) in [(SONAME, shared.as_str()), ("libguira.so", SONAME)] {
        let name = library.join(name);
        let linked = match fs::remove_file(&name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => symlink(to, &name),
        };
        linked.map_err(|error| failed(&name, &error))?;
    }
    Ok(())
}

/// Links the shared library below the target directory, and returns its path.
fn link(shell: &Shell, archive: &Path) -> Result<PathBuf, Outcome> {
    let script = shell.root().join(SOURCE).join("packaging/libguira.map");
    let linked = shell.target_directory("c").join("libguira.so");
    let mut link = shell.command("gcc", ["-shared", "-o"]);
    // It is not unloaded: its threads and fork handlers stay.
    link.arg(&linked).arg(format!("-Wl,-soname,{SONAME},--version-script,{}", script.display()));
    link.args(["-Wl,--gc-sections,--strip-debug,--as-needed,-z,defs,-z,now,-z,nodelete", "-Wl,--whole-archive"])
        .arg(archive);
    passed(shell, link.arg("-Wl,--no-whole-archive").args(PRIVATE))?;
    Ok(linked)
}

/// Compilers of one vendor.
struct Compiler {
    c: &'static str,
    /// `None` if there is no compiler for C++.
    cpp: Option<&'static str>,
}

/// An installed library, and what tests it.
struct Kit<'s> {
    shell: &'s Shell,
    prefix: PathBuf,
    folder: PathBuf,
}

impl Kit<'_> {
    fn new<'s>(shell: &'s Shell, packages: &[&str]) -> Result<Kit<'s>, Outcome> {
        check_gcc(shell)?;
        let archive = archive(shell, &[&["test", "--no-run"], packages].concat())?;
        let folder = shell.target_directory("c");
        let prefix = folder.join("prefix");
        // Files that are not installed any more would be found.
        let _ = fs::remove_dir_all(&prefix);
        install(shell, &archive, &prefix)?;
        Ok(Kit { shell, prefix, folder })
    }

    /// Returns the compilers that this machine has.
    fn compilers(&self) -> Vec<Compiler> {
        let vendors = [("gcc", "g++"), ("clang", "clang++")];
        let has = |name: &str| self.shell.succeeds(name, ["--version"]);
        let mut found = Vec::new();
        for (c, cpp) in vendors {
            match (has(c), has(cpp)) {
                (true, has_cpp) => found.push(Compiler { c, cpp: has_cpp.then_some(cpp) }),
                (false, _) => self.shell.say(&format!("{c} is missing: did not run with it")),
            }
            if has(c) && !has(cpp) {
                self.shell.say(&format!("{cpp} is missing: guira.hpp was not tested with it"));
            }
        }
        found
    }

    /// Compiles and runs tests and examples with `flags`.
    fn test(&self, compiler: &Compiler, flags: &[&str], environment: &[(&str, &str)]) -> Result<(), Outcome> {
        let tests = self.shell.root().join(SOURCE).join("tests");
        let examples = self.shell.root().join(SOURCE).join("examples");
        let strict = [&["-std=c99", "-pthread"][..], &WARNINGS, flags].concat();
        let test = self.compile(compiler.c, &strict, &tests.join("test.c"), Linked::Shared)?;
        self.run(&test, &[], environment)?;
        let birds = self.compile(compiler.c, &strict, &examples.join("birds.c"), Linked::Archive)?;
        self.run_example(&birds, "cuckoo: Guira guira")?;
        let readme = self.compile(compiler.c, &strict, &self.readme()?, Linked::Shared)?;
        self.run_example(&readme, "Guira guira")?;
        let Some(cpp) = compiler.cpp else { return Ok(()) };
        let strict = [&["-std=c++17"][..], &WARNINGS, flags].concat();
        // The first one ends the program where the second one throws.
        for flags in [&["-fno-exceptions"][..], &[]] {
            let flags = [&strict, flags].concat();
            let test = self.compile(cpp, &flags, &tests.join("test.cpp"), Linked::Shared)?;
            self.run(&test, &[], environment)?;
        }
        Ok(())
    }

    /// Compiles one source with the flags of pkg-config; without it, with the same flags.
    fn compile(&self, compiler: &str, flags: &[&str], source: &Path, linked: Linked) -> Result<PathBuf, Outcome> {
        let stem = source.file_name().unwrap_or_default().to_string_lossy().replace('.', "-");
        let program = self.folder.join(format!("{compiler}-{stem}"));
        let (cflags, libs) = self.flags()?;
        let library = self.prefix.join("lib");
        let mut compile = self.shell.command(compiler, flags);
        compile.args(cflags).arg(source).arg("-o").arg(&program);
        match linked {
            Linked::Shared => compile.args(libs).arg(format!("-Wl,-rpath,{}", library.display())),
            Linked::Archive => compile.arg(library.join("libguira.a")).args(PRIVATE),
        };
        passed(self.shell, &mut compile)?;
        Ok(program)
    }

    /// Returns the flags that compile and link programs.
    fn flags(&self) -> Result<(Vec<String>, Vec<String>), Outcome> {
        let library = self.prefix.join("lib");
        if !self.shell.succeeds("pkg-config", ["--version"]) {
            self.shell.say("pkg-config is missing: guira.pc was not tested");
            let include = format!("-I{}", self.prefix.join("include").display());
            return Ok((vec![include], vec![format!("-L{}", library.display()), "-lguira".to_owned()]));
        }
        let ask = |question: &str| {
            let mut command = self.shell.command("pkg-config", [question, "guira"]);
            command.env("PKG_CONFIG_PATH", library.join("pkgconfig"));
            let answer = self.shell.read(&mut command, &Budget::unlimited(), &self.folder.join("flags.txt"))?;
            Ok(answer.split_whitespace().map(str::to_owned).collect())
        };
        Ok((ask("--cflags")?, ask("--libs")?))
    }

    /// Writes the C program of the READMEs, with another table, and returns its path.
    fn readme(&self) -> Result<PathBuf, Outcome> {
        let text = |path: &str| {
            fs::read_to_string(self.shell.root().join(path)).map_err(|error| failed(Path::new(path), &error))
        };
        let (first, second) = (text("README.md")?, text("bindings/c/README.md")?);
        let block = |text: &str| Some(text.split_once("```c\n")?.1.split_once("```")?.0.to_owned());
        match (block(&first), block(&second)) {
            (Some(program), Some(other)) if program == other => {
                let path = self.folder.join("readme.c");
                let program = program.replace("shm://birds", &table());
                fs::write(&path, program).map_err(|error| failed(&path, &error))?;
                Ok(path)
            }
            _ => Err(Outcome::Failed("README.md and bindings/c/README.md do not have the same C program".to_owned())),
        }
    }

    /// Runs an example with some words as its input, looks for a line in its output, and destroys its table.
    fn run_example(&self, program: &Path, line: &str) -> Result<(), Outcome> {
        let table = table();
        let mut example = self.shell.command("sh", ["-c", r#"echo guira ani guira | "$0" "$1""#]);
        example.arg(program).arg(&table);
        let ran = self.shell.read(&mut example, &Budget::unlimited(), &self.folder.join("example.txt"));
        let destroyed = passed(self.shell, &mut self.shell.command(&self.guira(), ["destroy", &table]));
        match ran?.lines().any(|found| found == line) {
            true => destroyed,
            false => Err(Outcome::Failed(format!("{} did not print \"{line}\"", program.display()))),
        }
    }

    fn run(&self, program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Result<(), Outcome> {
        let mut command = self.shell.command(&program.to_string_lossy(), arguments);
        command.env("GUIRA_PROGRAM", self.guira()).envs(environment.iter().copied());
        passed(self.shell, &mut command)
    }

    /// The program `guira` that the tests of Rust use.
    fn guira(&self) -> String {
        self.shell.target_directory("debug").join("guira").to_string_lossy().into_owned()
    }

    /// Builds the examples by CMake, with both libraries, and runs them.
    fn test_cmake(&self) -> Result<(), Outcome> {
        if !self.shell.succeeds("cmake", ["--version"]) || !self.shell.succeeds("g++", ["--version"]) {
            self.shell.say("cmake or g++ is missing: the package for CMake was not tested");
            return Ok(());
        }
        let versions = self.prefix.join("lib/cmake/guira/guira-config-version.cmake");
        let mut check = self.shell.command("cmake", [format!("-DVERSION_FILE={}", versions.display())]);
        passed(self.shell, check.args(["-P", "bindings/c/tests/versions.cmake"]))?;
        let build = self.folder.join("cmake");
        let _ = fs::remove_dir_all(&build);
        let mut configure = self.shell.command("cmake", ["-S", "bindings/c/examples", "-B"]);
        configure.arg(&build).arg(format!("-DCMAKE_PREFIX_PATH={}", self.prefix.display()));
        passed(self.shell, &mut configure)?;
        passed(self.shell, self.shell.command("cmake", ["--build"]).arg(&build))?;
        ["words", "words_static"].iter().try_for_each(|name| self.run_example(&build.join(name), "guira 2"))
    }

    /// Checks that the shared library exports the functions of the header, with the versions that libguira.map gives
    /// each, and nothing else.
    fn check_symbols(&self) -> Result<(), Outcome> {
        let mut nm = self.shell.command("nm", ["--dynamic", "--defined-only", "--with-symbol-versions"]);
        nm.arg(self.prefix.join("lib/libguira.so"));
        let listed = self.shell.read(&mut nm, &Budget::unlimited(), &self.folder.join("symbols.txt"))?;
        let exported = listed.lines().filter_map(|line| line.split_whitespace().nth(2));
        let exported: BTreeSet<&str> = exported.filter(|name| !name.starts_with("GUIRA_")).collect();
        let path = self.shell.root().join(SOURCE).join("packaging/libguira.map");
        let map = fs::read_to_string(&path).map_err(|error| failed(&path, &error))?;
        let mapped = mapped(&map);
        let path = self.prefix.join("include/guira.h");
        let header = fs::read_to_string(&path).map_err(|error| failed(&path, &error))?;
        let declared: BTreeSet<&str> = functions(&header).collect();
        let versions: BTreeSet<String> = mapped.iter().map(|(name, node)| format!("{name}@@{node}")).collect();
        let is_exported = versions.iter().map(String::as_str).eq(exported.iter().copied());
        match is_exported && mapped.keys().eq(&declared) {
            true => Ok(()),
            false => Err(Outcome::Failed(format!(
                "exported are {exported:?}, in libguira.map {versions:?}, in guira.h {declared:?}"
            ))),
        }
    }
}

/// The library that a program is linked with.
#[derive(Clone, Copy)]
enum Linked {
    Shared,
    Archive,
}

/// Returns the functions that a header declares: words before a parenthesis in lines that begin with a type.
fn functions(header: &str) -> impl Iterator<Item = &str> {
    let lines = header.lines().filter(|line| ["int ", "void ", "const char *"].iter().any(|of| line.starts_with(of)));
    lines.filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
}

/// Returns the functions of a version script, each with its version node.
fn mapped(map: &str) -> BTreeMap<&str, &str> {
    let mut node = "";
    let mut mapped = BTreeMap::new();
    for line in map.lines().map(str::trim) {
        if let Some(name) = line.strip_suffix(" {") {
            node = name;
        } else if let Some(name) = line.strip_suffix(';').filter(|name| name.starts_with("guira_")) {
            mapped.insert(name, node);
        }
    }
    mapped
}

/// Returns the URL of the table of this process's examples.
fn table() -> String {
    format!("shm://guira-c-{}", std::process::id())
}

fn passed(shell: &Shell, command: &mut Command) -> Result<(), Outcome> {
    match shell.run(command, &Budget::unlimited()) {
        Outcome::Passed => Ok(()),
        outcome => Err(outcome),
    }
}

fn failed(path: &Path, error: &io::Error) -> Outcome {
    Outcome::Failed(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_a_version_script_are_found() {
        let map = "/* a {b}; */\nA_0 {\n    global:\n        guira_a;\n    local: *;\n};\nA_1 {\n  guira_b;\n} A_0;\n";
        assert!(mapped(map).into_iter().eq([("guira_a", "A_0"), ("guira_b", "A_1")]));
    }

    #[test]
    fn functions_of_a_header_are_found() {
        let header = " * int no(\nint a_b(struct c *d,\n         int e);\nvoid f(void);\nconst char *g(int h);\n";
        assert!(functions(header).eq(["a_b", "f", "g"]));
    }
}
