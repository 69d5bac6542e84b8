//! Enumerated deaths: clients that die at any step are recovered by other clients, and so are recoverers that die at
//! any step, and their recoverers.
//!
//! It covers every shape of operation, and everything the extent allocator does, and prints how many memory states it
//! tried for each shape. Clients are also stopped at any step and continue later. Third deaths are left out in most
//! operations on extents and after inserts that move more than three entries, and second ones after the WRITE of a
//! value of two chunks; `GUIRA_LONG=1` has them all.

mod audit;
mod deaths;
mod dropped;
mod fixture;
mod image;
mod lane;
mod leaks;
mod lifecycle;
mod more_chunks;
mod readers;
mod stalls;

use guira_conformance::BatchForms;
use guira_fabric::Profile;

/// Has the batches of operations examined, and those of the clients that recover others which died at any step of one.
pub fn examine_deaths(profile: Profile, forms: &BatchForms) {
    deaths::examine(&fixture::inline(profile), forms);
    deaths::examine(&fixture::extents(profile), forms);
    deaths::examine(&fixture::splits(profile), forms);
}

/// [R-RECOVER-2] [R-RECOVER-3] [R-RECOVER-5] [R-RECOVER-6] [R-COMMIT-1] [R-COMMIT-2] [R-COMMIT-3] Three deaths: at any
/// step of a change in rows, of its recovery, and of the recovery of the recoverer, where every word of a WRITE is a
/// step.
#[test]
fn deaths_in_shared_memory_lose_nothing() {
    let counts = deaths::enumerate_all("shm, rows", &fixture::inline(Profile::Shm));
    deaths::demand_cases(&counts, 150_000, 50_000);
}

/// [R-GROW-8] [R-GROW-9] [R-GROW-10] A death at any step of an insert that splits its segment, where every word of both
/// segments is a step, loses no key and has none twice; and the split is done once.
#[test]
fn deaths_in_a_split_lose_nothing() {
    for profile in Profile::ALL {
        let counts = deaths::enumerate_all(&format!("{profile}, splits"), &fixture::splits(profile));
        for case in &counts {
            assert!(case.memories[0] > 10 && case.replays > 0, "{case:?}");
        }
    }
}

/// [R-COMMIT-1] [R-RECOVER-2] [R-RECOVER-7] [R-EXTENT-2] [R-EXTENT-4] The same with values in extents, and with all
/// operations that claim, cut and release their chunks: no extent in use is marked or unreadable, and no other is
/// leaked.
#[test]
fn deaths_in_shared_memory_lose_no_extent() {
    let counts = deaths::enumerate_all("shm, extents", &fixture::extents(Profile::Shm));
    deaths::demand_cases(&counts, 30_000, 10_000);
}

/// [R-RECOVER-3] [R-COMMIT-2] The same where WRITEs are not torn, or torn at packets, and where lock words are taken by
/// plain CAS.
#[test]
fn deaths_over_networks_lose_nothing() {
    for profile in Profile::REMOTE {
        let counts = deaths::enumerate_all(&format!("{profile}, rows"), &fixture::inline(profile));
        deaths::demand_cases(&counts, 1_000, 1_000);
    }
}

/// [R-RECOVER-7] The same with values in extents.
#[test]
fn deaths_over_networks_lose_no_extent() {
    for profile in Profile::REMOTE {
        let counts = deaths::enumerate_all(&format!("{profile}, extents"), &fixture::extents(profile));
        deaths::demand_cases(&counts, 1_000, 0);
    }
}
