//! The two rows of a key, as the authors' programs compute them.
//!
//! Both force the rows of a key to opposite parity: the store puts primary rows at odd numbers, the simulator at even
//! ones. Figures 4(a), 4(c) and 5 come from the simulator, figures 4(b) and 6 from the store.

use xxhash_rust::xxh64::xxh64;

/// One of the authors' two programs, whose hashes differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The store that runs on RDMA cards. It approximates powers by shifting the bits of floating-point numbers.
    Store,
    /// The simulator. It computes exact powers. Its digests are replaced by XXH64 with three seeds: they only serve as
    /// random numbers.
    Simulator,
}

/// The distribution of the distance between the rows of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distance {
    /// Below a bound that is large for few keys; the paper's factor f sets the scale.
    Dependent {
        /// The factor f.
        factor: f64,
    },
    /// Uniform over the table.
    Independent,
}

/// The rows of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPair {
    /// The row that a new key enters.
    pub primary: u64,
    /// The row that an entry is moved to.
    pub secondary: u64,
}

impl RowPair {
    /// Returns the lower of the rows.
    pub fn low(self) -> u64 {
        self.primary.min(self.secondary)
    }

    /// Returns the number of rows between the two, counting one of them.
    pub fn distance(self) -> u64 {
        self.primary.abs_diff(self.secondary)
    }
}

/// The number of bounds of distances: one for each count of zeros in a 32-bit word.
const BOUNDS: usize = 33;

/// The mapping from keys to rows.
#[derive(Clone, Debug)]
pub struct Placement {
    rows: u64,
    program: Program,
    /// The bound of the distance by the number of zeros; `None` for independent rows.
    bounds: Option<Box<[u64; BOUNDS]>>,
}

impl Placement {
    /// Creates the mapping of a table of `rows` rows.
    ///
    /// # Panics
    /// If `rows` is odd or 0: the parity of a row would change at the end of the table.
    pub fn new(rows: u64, program: Program, distance: Distance) -> Placement {
        assert!(rows > 0 && rows.is_multiple_of(2), "a table of {rows} rows has no two halves");
        let bounds = match distance {
            Distance::Independent => None,
            Distance::Dependent { factor } => {
                Some(Box::new(std::array::from_fn(|zeros| bound(program, factor, zeros))))
            }
        };
        Placement { rows, program, bounds }
    }

    /// Returns the number of rows of the table.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the rows of `key`.
    #[inline]
    pub fn of(&self, key: u32) -> RowPair {
        let bytes = key.to_le_bytes();
        let [first, second, third] = match self.program {
            Program::Store => [key, key ^ 0x0000_ffff, key ^ 0xffff_0000].map(|word| xxh64(&word.to_le_bytes(), 0)),
            Program::Simulator => [0, 1, 2].map(|seed| xxh64(&bytes, seed)),
        };
        // The parity of primary rows: odd in the store, even in the simulator.
        let (primary, zeros) = match self.program {
            Program::Store => ((first | 1) % self.rows, (third as u32).leading_zeros()),
            Program::Simulator => (first % (self.rows / 2) * 2, (third as u32).trailing_zeros()),
        };
        let secondary = match &self.bounds {
            Some(bounds) => (primary + ((second % bounds[zeros as usize]) | 1)) % self.rows,
            None if self.program == Program::Store => second.wrapping_add(second & 1) % self.rows,
            None => second % (self.rows / 2) * 2 + 1,
        };
        RowPair { primary, secondary }
    }
}

/// Returns the bound of the distance of a key with `zeros` zeros.
fn bound(program: Program, factor: f64, zeros: usize) -> u64 {
    let exponent = match program {
        // The store adds in single precision.
        Program::Store => f64::from(zeros as f32 + factor as f32),
        Program::Simulator => zeros as f64 + factor,
    };
    let power = match program {
        Program::Store => fast_power(factor, exponent),
        Program::Simulator => factor.powf(exponent),
    };
    // A cast saturates; bounds are 32-bit integers in the store.
    u64::from(power as u32).clamp(1, i32::MAX as u64)
}

/// The high word of 1.0, less a constant that halves the mean error of [`fast_power`].
const POWER_BIAS: f64 = 1_072_632_447.0;

/// Returns about `base` to the power of `exponent`: the high word of a floating-point number is about its logarithm
/// (Schraudolph, "A fast, compact approximation of the exponential function", 1999).
fn fast_power(base: f64, exponent: f64) -> f64 {
    let high = f64::from((base.to_bits() >> 32) as u32);
    let high = exponent * (high - POWER_BIAS) + POWER_BIAS;
    f64::from_bits(u64::from(high as u32) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The factor of the paper's experiments.
    const DEPENDENT: Distance = Distance::Dependent { factor: 2.3 };

    #[test]
    fn bounds_are_those_of_the_programs() {
        let bounds = |program| (0..10).map(|zeros| bound(program, 2.3, zeros)).collect::<Vec<_>>();
        assert_eq!(bounds(Program::Store), [6, 15, 36, 86, 198, 450, 1007, 2408, 5669, 13043]);
        assert_eq!(bounds(Program::Simulator), [6, 15, 35, 82, 190, 437, 1005, 2312, 5318, 12232]);
        assert_eq!(bound(Program::Store, 2.3, 32), i32::MAX as u64, "too large for a 32-bit integer");
    }

    /// A key worked out by hand from its three digests.
    #[test]
    fn a_key_of_the_store() {
        let placement = Placement::new(1 << 16, Program::Store, DEPENDENT);
        let (first, second, third) =
            (xxh64(&[1, 0, 0, 0], 0), xxh64(&[0xfe, 0xff, 0, 0], 0), xxh64(&[1, 0, 0xff, 0xff], 0));
        let bounds = [6, 15, 36, 86, 198, 450];
        let off = second % bounds[(third as u32).leading_zeros() as usize];
        let off = if off % 2 == 0 { off + 1 } else { off };
        let primary = if first % 2 == 0 { first + 1 } else { first } % (1 << 16);
        assert_eq!(placement.of(1), RowPair { primary, secondary: (primary + off) % (1 << 16) });
    }

    #[test]
    fn rows_of_a_key_have_opposite_parity() {
        for (program, parity) in [(Program::Store, 1), (Program::Simulator, 0)] {
            for distance in [DEPENDENT, Distance::Independent] {
                let placement = Placement::new(512, program, distance);
                for pair in (1..10_000).map(|key| placement.of(key)) {
                    assert!(pair.primary < 512 && pair.secondary < 512);
                    assert_eq!(
                        (pair.primary % 2, pair.secondary % 2),
                        (parity, 1 - parity),
                        "{program:?} {distance:?}"
                    );
                }
            }
        }
    }
}
