//! Names of tests as `cargo test` prints them. A test of the conformance suite has its plain name, every other test is
//! prefixed with its package.

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

/// The tests of a file of a package's library, as `package::module::test`. The package in `crates/x` is `guira-x`.
pub fn of_libraries(file: &RustFile) -> Vec<String> {
    let path = file.path.strip_prefix("crates/").and_then(|path| path.strip_suffix(".rs"));
    match path.and_then(|path| path.split_once("/src/")) {
        Some(("guira", inner)) => named(file, &format!("guira/{inner}")),
        Some((folder, inner)) => named(file, &format!("guira-{folder}/{inner}")),
        None => Vec::new(),
    }
}

/// The tests of a file with the module that `path`, without the extension, stands for.
fn named(file: &RustFile, path: &str) -> Vec<String> {
    let root = ["/main", "/mod", "/lib"].into_iter().find_map(|root| path.strip_suffix(root));
    let module = root.unwrap_or(path).replace('/', "::");
    file.tests().into_iter().map(|test| format!("{module}::{test}")).collect()
}
