//! The points of the paper's figure 1 and READ rates of another paper, which calibrate the model.
//!
//! Figures 1(b) and 1(c) were measured on the paper's testbed, with ConnectX-5 cards at 100 Gbit/s.

use guira_fabric_sim::load::Kind;

/// Figure 1(b): concurrent requests of 8 bytes, and millions of WRITEs, READs and CAS a second.
pub const FIGURE_1B: [(u32, f64, f64, f64); 15] = [
    (24, 11.023, 8.89447, 8.71107),
    (48, 21.7164, 18.2324, 18.3253),
    (72, 32.1522, 27.029, 27.2056),
    (96, 41.264, 35.3034, 35.7243),
    (120, 44.7253, 40.9441, 43.6926),
    (144, 49.9753, 42.033, 43.6079),
    (168, 56.0231, 48.7462, 51.7615),
    (192, 62.3479, 53.8856, 51.6071),
    (216, 67.1398, 58.9421, 51.44),
    (240, 74.6773, 63.8456, 51.3159),
    (264, 80.9497, 68.5385, 51.1609),
    (288, 86.5568, 72.9398, 50.9803),
    (312, 92.6424, 77.108, 50.8663),
    (336, 98.6206, 81.0723, 50.7278),
    (360, 103.565, 84.4637, 50.5597),
];

/// Returns the series of figure 1(b) for a kind of verb: concurrent requests, and millions a second.
pub fn figure_1b(kind: Kind) -> Vec<(u32, f64)> {
    let of_kind = |point: &(u32, f64, f64, f64)| match kind {
        Kind::Write => (point.0, point.1),
        Kind::Read => (point.0, point.2),
        Kind::Cas => (point.0, point.3),
    };
    FIGURE_1B.iter().map(of_kind).collect()
}

/// Figure 1(a): bytes of a READ and its latency in microseconds, as the card's vendor gives them. Only the slope is
/// comparable: figure 1(b) shows 2.7 microseconds for the shortest READ.
pub const FIGURE_1A: [(usize, f64); 8] =
    [(8, 0.8), (16, 0.81), (32, 0.83), (64, 0.85), (128, 0.9), (256, 1.1), (512, 1.25), (1024, 1.4)];

/// Figure 1(c): millions of CAS a second on one address and on independent addresses of the main space, and of the
/// device space.
pub const FIGURE_1C: [(f64, f64); 2] = [(2.92891, 50.5597), (8.97495, 91.1164)];

/// Variable-sized linear probing with records of 8 bytes on ConnectX-5 EDR cards: bytes of a READ, and millions of
/// READs a second. Table 2 of the paper gives millions of lookups a second, table 1 READs a lookup and slots a READ;
/// their product is the rate. Where a table is emptier than assumed, a lookup takes one READ.
pub const READS_OF_SLOTS: [(usize, f64); 6] = [
    (5 * 8, 50.8 * 1.03),
    (13 * 8, 43.0),
    (13 * 8, 43.9 * 1.03),
    (23 * 8, 34.5),
    (23 * 8, 35.1),
    (23 * 8, 35.2 * 1.04),
];
