//! The header `guira.h` is made of the sources: `GUIRA_UPDATE=1 cargo test -p guira-c --test header` writes it anew.

use std::path::Path;
use std::{env, fs};

#[test]
fn the_header_is_that_of_the_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("a valid configuration");
    let mut made = Vec::new();
    cbindgen::generate_with_config(folder, config).expect("the sources can be parsed").write(&mut made);
    let (made, path) = (String::from_utf8(made).expect("it is UTF-8"), folder.join("include/guira.h"));
    if env::var("GUIRA_UPDATE").is_ok_and(|value| value == "1") {
        fs::write(&path, &made).expect("the header can be written");
    }
    let committed = fs::read_to_string(&path).expect("the header exists");
    assert!(made == committed, "guira.h is out of date: GUIRA_UPDATE=1 cargo test -p guira-c --test header");
}
