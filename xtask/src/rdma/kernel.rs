//! The kernel of the virtual machine: Debian's, unpacked into the target directory, and nothing of it installed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::archive::Archive;
use crate::shell::{Budget, Outcome, Shell};

/// The package that depends on Debian's current kernel for x86-64.
const META_PACKAGE: &str = "linux-image-amd64";
/// The modules that the virtual machine loads. Soft-RoCE of Linux 6.1 asks for a CRC-32 without naming its module.
const MODULES: [&str; 5] = ["crc32_generic", "rdma_rxe", "ib_uverbs", "veth", "sch_netem"];

/// An unpacked kernel.
pub struct Kernel {
    /// The image that QEMU boots.
    pub image: PathBuf,
    modules: PathBuf,
    version: String,
}

impl Kernel {
    /// The kernel in `directory`, downloaded and unpacked there the first time.
    pub fn find(shell: &Shell, budget: &Budget, directory: &Path) -> Result<Kernel, Outcome> {
        let unpacked = directory.join("kernel");
        if !unpacked.is_dir() {
            unpack(shell, budget, directory, &unpacked)?;
        }
        let unusable = || Outcome::Failed(format!("{}: no kernel; remove the directory", unpacked.display()));
        let version = only_entry(&unpacked.join("lib/modules")).ok_or_else(unusable)?;
        let image = unpacked.join("boot").join(format!("vmlinuz-{version}"));
        Ok(Kernel { image, modules: unpacked.join("lib/modules").join(&version), version })
    }

    /// Adds the modules that Soft-RoCE needs, and a file with their names in the order in which to load them.
    pub fn add_modules(&self, archive: &mut Archive) -> Result<(), Outcome> {
        let failed = |error: std::io::Error| Outcome::Failed(format!("{}: {error}", self.modules.display()));
        let text = fs::read_to_string(self.modules.join("modules.dep")).map_err(failed)?;
        let built_in = fs::read_to_string(self.modules.join("modules.builtin")).map_err(failed)?;
        let needed = needed(&text, &built_in).map_err(|missing| {
            Outcome::NotAvailable(format!("Debian's kernel {} has no module {missing}", self.version))
        })?;
        let inside = Path::new("/lib/modules").join(&self.version);
        for path in &needed {
            archive.copy(&self.modules.join(path), &inside.join(path)).map_err(failed)?;
        }
        let kept = |line: &&str| line.split_once(':').is_some_and(|(path, _)| needed.iter().any(|own| own == path));
        let dependencies: String = text.lines().filter(kept).flat_map(|line| [line, "\n"]).collect();
        archive.add(&inside.join("modules.dep"), dependencies.as_bytes());
        archive.add(Path::new("/tests/modules"), format!("{}\n", MODULES.join("\n")).as_bytes());
        Ok(())
    }
}

/// Downloads Debian's kernel and unpacks it. The directory gets its name when it is complete.
fn unpack(shell: &Shell, budget: &Budget, directory: &Path, unpacked: &Path) -> Result<(), Outcome> {
    let failed = |error: std::io::Error| Outcome::Failed(format!("{}: {error}", directory.display()));
    let listed = directory.join("depends.txt");
    let mut depends = shell.command("apt-cache", ["depends", META_PACKAGE]);
    let depends = shell.read(&mut depends, budget, &listed).unwrap_or_default();
    let Some(package) = image_package(&depends) else {
        return Err(Outcome::NotAvailable(format!("the package lists have no {META_PACKAGE} (run: apt-get update)")));
    };
    shell.say(&format!("unpacking {package} to {}", unpacked.display()));
    let mut download = shell.command("apt-get", ["download", "--quiet", package]);
    if shell.run(download.current_dir(directory), budget) != Outcome::Passed {
        return Err(Outcome::NotAvailable(format!("{package} cannot be downloaded")));
    }
    let is_archive = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb");
    let mut entries = fs::read_dir(directory).map_err(failed)?.filter_map(|entry| Some(entry.ok()?.path()));
    let Some(archive) = entries.find(is_archive) else {
        return Err(Outcome::Failed(format!("apt-get left no package in {}", directory.display())));
    };
    let temporary = directory.join("kernel.tmp");
    let mut extract = shell.command("dpkg", ["--extract"]);
    let outcome = shell.run(extract.arg(&archive).arg(&temporary), budget);
    fs::remove_file(&archive).map_err(failed)?;
    let version = only_entry(&temporary.join("lib/modules")).unwrap_or_default();
    let mut depmod = shell.command(&super::program("depmod").unwrap_or_default().to_string_lossy(), ["-b"]);
    let outcomes = [outcome, shell.run(depmod.arg(&temporary).arg(version), budget)];
    if let Some(outcome) = outcomes.into_iter().find(|outcome| *outcome != Outcome::Passed) {
        return Err(outcome);
    }
    fs::rename(&temporary, unpacked).map_err(failed)
}

/// The package of the kernel's image in what `apt-cache depends` prints.
fn image_package(depends: &str) -> Option<&str> {
    let mut packages = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    packages.find(|package| package.starts_with("linux-image-"))
}

/// The name of the only entry of a directory.
fn only_entry(directory: &Path) -> Option<String> {
    let mut entries = fs::read_dir(directory).ok()?;
    let first = entries.next()?.ok()?;
    entries.next().is_none().then(|| first.file_name().to_string_lossy().into_owned())
}

/// The paths of [`MODULES`] and of all that they depend on, in the lines of `modules.dep`. Modules that the kernel
/// contains have none.
///
/// # Errors
/// The name of a module that is neither there nor contained.
fn needed(dependencies: &str, built_in: &str) -> Result<Vec<String>, &'static str> {
    let lines: BTreeMap<String, (&str, &str)> = dependencies
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(path, others)| (module_name(path), (path, others)))
        .collect();
    let is_built_in = |module: &str| built_in.lines().any(|path| module_name(path) == module);
    let mut found = Vec::new();
    for module in MODULES {
        match lines.get(module) {
            Some((path, others)) => found.extend([*path].into_iter().chain(others.split_whitespace())),
            None if is_built_in(module) => {}
            None => return Err(module),
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found.into_iter().map(str::to_owned).collect())
}

/// The name of the module in a file such as `kernel/net/ip6_tunnel.ko.xz`.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next().unwrap_or(file).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_with_all_that_they_need() {
        let dependencies = "kernel/a/rdma_rxe.ko: kernel/b/ib_uverbs.ko kernel/b/ib_core.ko\n\
                            kernel/b/ib_uverbs.ko: kernel/b/ib_core.ko\nkernel/b/ib_core.ko:\n\
                            kernel/c/crc32-generic.ko.xz:\nkernel/d/other.ko:\n";
        let found =
            needed(dependencies, "kernel/drivers/net/veth.ko\nkernel/net/sched/sch_netem.ko\n").expect("all are there");
        let expected =
            ["kernel/a/rdma_rxe.ko", "kernel/b/ib_core.ko", "kernel/b/ib_uverbs.ko", "kernel/c/crc32-generic.ko.xz"];
        assert_eq!(found, expected);
        assert_eq!(needed(dependencies, ""), Err("veth"));
    }

    #[test]
    fn the_image_is_what_the_meta_package_depends_on() {
        let printed = "linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n";
        assert_eq!(image_package(printed), Some("linux-image-6.1.0-56-amd64"));
        assert_eq!(image_package("linux-image-amd64\n"), None);
    }
}
