//! Clients that die at any step are recovered by those they left behind, and so are recoverers that die at any step,
//! and whoever recovers those.

mod audit;
mod deaths;
mod image;
mod lane;
mod life;
mod old;
mod scene;

use guira_fabric::Profile;

#[test]
fn shm_rows() {
    println!("seed {}", scene::SEED);
    deaths::enumerate_all("shm, rows", &scene::inline(Profile::Shm));
}

#[test]
fn shm_extents() {
    deaths::enumerate_all("shm, extents", &scene::extents(Profile::Shm));
}
