//! Names of tests as `cargo test` prints them. A test of the conformance suite has its plain name, every other test is
//! prefixed with its package.

use crate::manifest::Manifest;
use crate::rust::RustFile;

const TESTS: &str = "conformance/tests/suite/";
/// The folder of the module `regressions`, which declares its files by path.
const REGRESSIONS: &str = "conformance/regressions/";

/// The tests of a file of the conformance suite, as `module::test`.
pub fn of_conformance(file: &RustFile) -> Vec<String> {
    let within = |directory: &str| file.path.strip_prefix(directory)?.strip_suffix(".rs");
    let regression = within(REGRESSIONS).map(|path| format!("regressions/{path}"));
    within(TESTS).map(str::to_owned).or(regression).map(|path| named(file, &path)).unwrap_or_default()
}

/// The tests of a file of a package's library, as `package::module::test`.
pub fn of_libraries(file: &RustFile, manifests: &[Manifest]) -> Vec<String> {
    let within = |package: &Manifest| {
        let path = file.path.strip_prefix(&package.inside("src/"))?.strip_suffix(".rs")?;
        Some(format!("{}/{path}", package.name))
    };
    manifests.iter().find_map(within).map(|path| named(file, &path)).unwrap_or_default()
}

/// The tests of a file with the module that `path`, without the extension, stands for.
fn named(file: &RustFile, path: &str) -> Vec<String> {
    let root = ["/main", "/mod", "/lib"].into_iter().find_map(|root| path.strip_suffix(root));
    let module = root.unwrap_or(path).replace('/', "::");
    file.tests().into_iter().map(|test| format!("{module}::{test}")).collect()
}
