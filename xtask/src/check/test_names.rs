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
    let path = within(TESTS).map(str::to_owned).or(regression);
    path.map(|path| of_module(&module_of(&path), &file.syntax.items)).unwrap_or_default()
}

/// The tests of a file of a package's library, as `package::module::test`.
pub fn of_libraries(file: &RustFile, manifests: &[Manifest]) -> Vec<String> {
    let within = |package: &Manifest| {
        let path = file.path.strip_prefix(&package.inside("src/"))?.strip_suffix(".rs")?;
        Some(format!("{}/{path}", package.name))
    };
    let path = manifests.iter().find_map(within);
    path.map(|path| of_module(&module_of(&path), &file.syntax.items)).unwrap_or_default()
}

/// The module of a file, from its path without the extension.
fn module_of(path: &str) -> String {
    let root = ["/main", "/mod", "/lib"].into_iter().find_map(|root| path.strip_suffix(root));
    root.unwrap_or(path).replace('/', "::")
}

/// The tests among the `items` of `module` and of its inner modules.
fn of_module(module: &str, items: &[syn::Item]) -> Vec<String> {
    let is_test = |function: &syn::ItemFn| function.attrs.iter().any(|attribute| attribute.path().is_ident("test"));
    let tests = items.iter().flat_map(|item| match item {
        syn::Item::Fn(function) if is_test(function) => vec![format!("{module}::{}", function.sig.ident)],
        syn::Item::Mod(inner) => {
            let items = inner.content.as_ref().map_or(&[][..], |(_, items)| items);
            of_module(&format!("{module}::{}", inner.ident), items)
        }
        _ => Vec::new(),
    });
    tests.collect()
}
