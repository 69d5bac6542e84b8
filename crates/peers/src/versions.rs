//! Versions of the compared libraries, as in the lock file.

/// The version of dashmap.
pub const DASHMAP: &str = "6.2.1";
/// The version of papaya.
pub const PAPAYA: &str = "0.2.5";
/// The version of LMDB, and of the binding that contains it.
pub const LMDB: &str = "0.9, by lmdb-rkv 0.14.0";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_match_the_lock_file() {
        let lock = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock");
        let lock = std::fs::read_to_string(lock).expect("the workspace has a lock file");
        let binding = LMDB.rsplit_once(' ').expect("the version comes last").1;
        for (name, version) in [("dashmap", DASHMAP), ("papaya", PAPAYA), ("lmdb-rkv", binding)] {
            let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
            assert!(lock.contains(&entry), "{name} {version} is not in Cargo.lock");
        }
    }
}
