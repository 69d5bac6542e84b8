//! Rust files as the checks read them: their lines, which of these are test code, and the tests.
//!
//! rustfmt has formatted every file, so lines can be read without a parser. Test code is a file under `tests/` or in
//! `conformance/`, a file `tests.rs`, and what follows `#[cfg(test)]` and a module at the left margin.

use crate::tree::SourceFile;

/// One file.
pub struct RustFile {
    pub path: String,
    pub text: String,
    /// The first line of test code, from 1.
    first_test_line: usize,
}

impl RustFile {
    pub fn of(file: &SourceFile) -> RustFile {
        let SourceFile { path, text } = file.clone();
        let in_tests = ["conformance/", "tests/"].iter().any(|folder| path.starts_with(folder));
        let is_test = in_tests || path.contains("/tests/") || path.ends_with("/tests.rs");
        let lines: Vec<&str> = text.lines().collect();
        let is_module = |pair: &[&str]| pair[0] == "#[cfg(test)]" && module_of(pair[1]).is_some();
        let module = lines.windows(2).position(is_module);
        let first_test_line = if is_test { 1 } else { module.map_or(usize::MAX, |at| at + 1) };
        RustFile { path, text, first_test_line }
    }

    /// Whether `line`, from 1, is test code.
    pub fn is_test_line(&self, line: usize) -> bool {
        line >= self.first_test_line
    }

    /// The tests of the file, each with the modules of the file that it is in. Tests that a macro generates are not
    /// among them.
    pub fn tests(&self) -> Vec<String> {
        let (mut modules, mut found, mut is_test) = (Vec::<(usize, &str)>::new(), Vec::new(), false);
        for line in self.text.lines() {
            let code = line.trim_start();
            let margin = line.len() - code.len();
            if code == "}" && modules.last().is_some_and(|(of_module, _)| *of_module == margin) {
                modules.pop();
            } else if let Some(name) = module_of(code) {
                modules.push((margin, name));
            } else if code == "#[test]" {
                is_test = true;
            } else if let Some((name, _)) = code.strip_prefix("fn ").and_then(|code| code.split_once('('))
                && std::mem::take(&mut is_test)
            {
                let modules = modules.iter().map(|(_, name)| *name);
                found.push(modules.chain([name]).collect::<Vec<_>>().join("::"));
            }
        }
        found
    }
}

/// The name of the module that begins on this line.
fn module_of(code: &str) -> Option<&str> {
    let code = code.strip_suffix(" {")?;
    ["mod ", "pub mod ", "pub(crate) mod "].iter().find_map(|start| code.strip_prefix(start))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn file(path: &str, text: &str) -> RustFile {
        RustFile::of(&SourceFile { path: path.to_owned(), text: text.to_owned() })
    }

    #[test]
    fn lines_behind_cfg_test_are_test_code_and_others_are_not() {
        let text = "fn code() {}\n#[cfg(test)]\nfn helps() {}\n#[cfg(test)]\nmod tests {\n}\n";
        let lines = |path: &str| (1..=6).filter(|line| file(path, text).is_test_line(*line)).collect::<Vec<_>>();
        assert_eq!(lines("crates/a/src/lib.rs"), [4, 5, 6]);
        for path in ["crates/a/tests/b.rs", "conformance/src/lib.rs", "crates/a/src/b/tests.rs"] {
            assert_eq!(lines(path).len(), 6, "{path}");
        }
        assert!(!file("crates/a/src/lib.rs", "#[cfg(test)]\nmod tests;\nfn code() {}\n").is_test_line(3));
    }

    #[test]
    fn tests_have_the_names_of_their_modules() {
        let text = "#[test]\nfn a() {\n    if x {\n    }\n}\nmod b {\n    mod c {\n        #[test]\n        #[x]\n\
                    \x20       fn d() {}\n    }\n    fn helps() {}\n    #[test]\n    fn e() {}\n}\n#[test]\nfn f() {}\n";
        assert_eq!(file("a.rs", text).tests(), ["a", "b::c::d", "b::e", "f"]);
    }
}
