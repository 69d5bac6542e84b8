//! Versions of the libraries that are compared, as the lock file has them.

/// dashmap's.
pub const DASHMAP: &str = "6.2.1";
/// papaya's.
pub const PAPAYA: &str = "0.2.5";
/// That of LMDB's binding, which brings LMDB 0.9 along.
pub const LMDB: &str = "0.9, by lmdb-rkv 0.14.0";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_those_of_the_lock_file() {
        let lock = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock");
        let lock = std::fs::read_to_string(lock).expect("the workspace has a lock file");
        let binding = LMDB.rsplit_once(' ').expect("a version stands last").1;
        for (name, version) in [("dashmap", DASHMAP), ("papaya", PAPAYA), ("lmdb-rkv", binding)] {
            let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
            assert!(lock.contains(&entry), "{name} {version} is not what Cargo.lock has");
        }
    }
}
