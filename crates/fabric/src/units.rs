//! Amounts of memory, formatted for messages.

use std::fmt;

/// A number of bytes that is displayed with a unit: `847 B`, `34.9 MiB`.
///
/// ```
/// use guira_fabric::ByteCount;
///
/// assert_eq!([847, 65_536, 36_597_760].map(|bytes| ByteCount(bytes).to_string()), ["847 B", "64.0 KiB", "34.9 MiB"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteCount(pub u64);

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut unit = 0;
        let mut unit_bytes = 1024_u64;
        // 1023.95 and more would be shown as 1024.0.
        while self.0 as f64 / unit_bytes as f64 >= 1023.95 && unit + 1 < UNITS.len() {
            unit_bytes *= 1024;
            unit += 1;
        }
        write!(f, "{:.1} {}", self.0 as f64 / unit_bytes as f64, UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_shown_in_the_largest_unit() {
        let shown = |bytes| ByteCount(bytes).to_string();
        assert_eq!([0, 1023, 1024, 1536].map(shown), ["0 B", "1023 B", "1.0 KiB", "1.5 KiB"]);
        assert_eq!([(1 << 20) - 1, 1 << 20, 3 << 29].map(shown), ["1.0 MiB", "1.0 MiB", "1.5 GiB"]);
        assert_eq!([1 << 60, u64::MAX].map(shown), ["1.0 EiB", "16.0 EiB"]);
    }
}
