//! The main space of a table that grows, of which only bytes with memory are registered: which part is registered next
//! when a client asks for some. Registering pins memory, so addresses without any must not be.
//!
//! A space has *areas*, such as rows and chunks, each of which gets memory from its start on. An area consists of
//! *units*, such as the segments of a table. Unit t of an area belongs to a part of 2^(floor(log2 t) - 6) units, or to
//! a part of its own: each doubling of an area takes 64 parts, and at most 1/64 of what is in use is registered too
//! early. A part consists of whole units, so no WRITE within a unit crosses two parts. If there is no memory for a
//! whole part, its units are registered as they are needed.
//!
//! Invariant: what is registered stays so, and is registered once.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use guira_network::wire::MAX_SEGMENTS;

use crate::VerbsError;

/// Parts of each doubling of an area, as a power of two: 64. Fewer, if a space would have too many.
const PARTS_SHIFT: u32 = 6;

/// Bytes of the main space that get memory from their start on, as a table grows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrowingArea {
    /// The bytes.
    pub bytes: Range<u64>,
    /// Bytes that get memory together: a WRITE that a death must not tear lies within one unit.
    pub unit_bytes: u64,
    /// Units that the table has before these, which have memory from the start.
    pub units_before: u64,
}

impl GrowingArea {
    /// Returns the number behind that of its last unit.
    fn end(&self) -> u64 {
        self.units_before + (self.bytes.end - self.bytes.start).div_ceil(self.unit_bytes)
    }

    /// Returns the unit with this byte.
    fn unit_of(&self, byte: u64) -> u64 {
        self.units_before + (byte - self.bytes.start) / self.unit_bytes
    }

    /// Returns the bytes of those of these units that are in the area.
    fn bytes_of(&self, units: Range<u64>) -> Range<u64> {
        let at = |unit: u64| {
            let unit = unit.clamp(self.units_before, self.end()) - self.units_before;
            self.bytes.start.saturating_add(unit.saturating_mul(self.unit_bytes)).min(self.bytes.end)
        };
        at(units.start)..at(units.end)
    }

    /// Returns the bytes of the units that lie in `stored` as a whole.
    fn whole_units_in(&self, stored: &Range<u64>) -> Range<u64> {
        let units = |bytes: u64| bytes.saturating_sub(self.bytes.start) / self.unit_bytes;
        let is_to_the_end = stored.end >= self.bytes.end;
        let end = if is_to_the_end { self.end() } else { self.units_before + units(stored.end) };
        let before_start = stored.start.saturating_sub(self.bytes.start).div_ceil(self.unit_bytes);
        self.bytes_of(self.units_before + before_start..end)
    }

    /// Returns the number of its parts.
    fn parts(&self, shift: u32) -> u64 {
        let (mut unit, mut parts) = (self.units_before, 0);
        while unit < self.end() {
            // Parts of a doubling have one size.
            let size = part_units(unit, shift);
            let next = (unit + 1).next_power_of_two().min(self.end());
            parts += next.div_ceil(size) - unit / size;
            unit = next;
        }
        parts
    }
}

/// Returns the number of units in the part that has `unit`.
fn part_units(unit: u64, shift: u32) -> u64 {
    1 << unit.checked_ilog2().unwrap_or(0).saturating_sub(shift)
}

/// The areas of a main space, and what of it is registered.
#[derive(Debug)]
pub(crate) struct Growth {
    /// In the order of their addresses. Bytes that do not grow are an area of one unit.
    areas: Vec<GrowingArea>,
    /// The bytes that do not grow.
    solid: Vec<Range<u64>>,
    shift: u32,
    /// In the order of their addresses.
    registered: Mutex<Vec<Range<u64>>>,
}

impl Growth {
    /// Takes the areas of a space of `main_bytes`, in the order of their addresses.
    ///
    /// # Errors
    /// `Mismatch` if they overlap or are not in the space.
    pub(crate) fn new(growing: &[GrowingArea], main_bytes: u64) -> Result<Growth, VerbsError> {
        let (mut areas, mut solid, mut from) = (Vec::new(), Vec::new(), 0);
        let end = GrowingArea { bytes: main_bytes..main_bytes, unit_bytes: 1, units_before: 0 };
        for area in growing.iter().chain([&end]) {
            let is_possible = from <= area.bytes.start
                && area.bytes.start <= area.bytes.end
                && area.bytes.end <= main_bytes.min(i64::MAX as u64)
                && (area.unit_bytes > 0 || area.bytes.is_empty())
                && area.units_before < 1 << 62;
            if !is_possible {
                return Err(VerbsError::Mismatch { reason: format!("{:?} cannot grow", area.bytes) });
            }
            let before = from..area.bytes.start;
            from = area.bytes.end;
            let whole = GrowingArea { unit_bytes: before.end - before.start, bytes: before.clone(), units_before: 0 };
            areas.extend([whole, area.clone()].into_iter().filter(|area| !area.bytes.is_empty()));
            solid.push(before);
        }
        let parts = |shift: u32| areas.iter().map(|area| area.parts(shift)).fold(0, u64::saturating_add);
        let shift = (0..=PARTS_SHIFT).rev().find(|shift| parts(*shift) <= MAX_SEGMENTS as u64).unwrap_or(0);
        Ok(Growth { areas, solid, shift, registered: Mutex::default() })
    }

    /// Registers what has memory when a node starts: all that does not grow, and the units that lie in `stored`.
    ///
    /// # Errors
    /// Those of [`Growth::provide`].
    pub(crate) fn provide_stored(
        &self,
        stored: &[Range<u64>],
        mut obtain: impl FnMut(Range<u64>) -> Result<(), VerbsError>,
    ) -> Result<(), VerbsError> {
        let units = self.areas.iter().flat_map(|area| stored.iter().map(|stored| area.whole_units_in(stored)));
        self.solid.iter().cloned().chain(units).try_for_each(|bytes| self.provide(&bytes, &mut obtain))
    }

    /// Makes `asked` registered: calls `obtain` with each part that is to get memory and be registered.
    ///
    /// # Errors
    /// The first error of `obtain`, for a part and for the units of it that are needed; `Mismatch` if these bytes are
    /// not in the space.
    pub(crate) fn provide(
        &self,
        asked: &Range<u64>,
        mut obtain: impl FnMut(Range<u64>) -> Result<(), VerbsError>,
    ) -> Result<(), VerbsError> {
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        let mut from = asked.start;
        loop {
            let mut next = registered.partition_point(|known| known.end <= from);
            while let Some(known) = registered.get(next).filter(|known| known.start <= from) {
                (from, next) = (known.end, next + 1);
            }
            if from >= asked.end {
                return Ok(());
            }
            let Some(area) = self.areas.iter().find(|area| area.bytes.contains(&from)) else {
                return Err(VerbsError::Mismatch { reason: format!("{asked:?} are no bytes of the region") });
            };
            let gap_start = next.checked_sub(1).map_or(0, |before| registered[before].end);
            let gap_end = registered.get(next).map_or(u64::MAX, |behind| behind.start);
            let free = |units: Range<u64>| {
                let bytes = area.bytes_of(units);
                bytes.start.max(gap_start)..bytes.end.min(gap_end)
            };
            let unit = area.unit_of(from);
            let size = part_units(unit, self.shift);
            let part = free(unit / size * size..unit / size * size + size);
            let needed = free(unit..area.unit_of(asked.end.min(part.end) - 1) + 1);
            let obtained = match obtain(part.clone()) {
                Ok(()) => part,
                Err(error) if error.is_lack_of_memory() && needed != part => obtain(needed.clone()).map(|()| needed)?,
                Err(error) => return Err(error),
            };
            from = obtained.end;
            registered.insert(next, obtained);
        }
    }
}

#[cfg(test)]
mod tests {
    use guira_fabric::FabricError;

    use super::*;

    const UNIT: u64 = 4096;

    fn area(start: u64, units: u64, units_before: u64) -> GrowingArea {
        GrowingArea { bytes: start..start + units * UNIT, unit_bytes: UNIT, units_before }
    }

    fn no_memory() -> VerbsError {
        VerbsError::Memory(FabricError::NoMemory { wanted: 1, available: 0, limiter: String::new() })
    }

    /// Makes `asked` registered and returns what was.
    fn provide(growth: &Growth, asked: Range<u64>) -> Vec<Range<u64>> {
        let mut obtained = Vec::new();
        growth
            .provide(&asked, |part| {
                obtained.push(part);
                Ok(())
            })
            .unwrap();
        obtained
    }

    /// A space of one area that grows from 3 units to 100,000, unit by unit: parts follow each other without gaps, each
    /// doubling takes 64 of them, and hardly more is registered than was asked for.
    #[test]
    fn an_area_grows_by_a_64th() {
        const UNITS: u64 = 100_000;
        let (start, before) = (3 * UNIT, 3);
        let growth = Growth::new(&[area(start, UNITS, before)], start + UNITS * UNIT).unwrap();
        let (mut parts, mut end) = (Vec::new(), start);
        for unit in 0..UNITS {
            let asked = start + unit * UNIT..start + (unit + 1) * UNIT;
            for part in provide(&growth, asked.clone()) {
                assert!(part.start == end && part.start <= asked.start && part.end >= asked.end, "{part:?}");
                end = part.end;
                parts.push(part);
            }
            assert!(end - asked.end <= (before + unit) * UNIT / 64, "{end} for unit {unit}");
        }
        assert_eq!((end, parts.len() as u64), (start + UNITS * UNIT, growth.areas[1].parts(PARTS_SHIFT)));
        let units = |part: &Range<u64>| before + (part.start - start) / UNIT;
        for doubling in [64, 1 << 10, 1 << 15] {
            let count = parts.iter().filter(|part| (doubling..2 * doubling).contains(&units(part))).count();
            assert_eq!(count, 64, "from {doubling} units on");
        }
        assert!(provide(&growth, start..end).is_empty(), "all of it is registered");
    }

    /// Bytes that were asked for in any order are registered once, also where a part has some already.
    #[test]
    fn every_byte_is_registered_once() {
        let areas = [area(0, 500, 0), area(600 * UNIT, 3_000, 200), area(4_000 * UNIT, 1, 1)];
        let main_bytes = 4_100 * UNIT;
        let mut seed = 7_u64;
        for _ in 0..50 {
            let growth = Growth::new(&areas, main_bytes).unwrap();
            let mut all = Vec::new();
            let mut note = |part: Range<u64>| {
                all.push(part);
                Ok(())
            };
            growth.provide_stored(&[0..UNIT * 5 / 2, 700 * UNIT + 1..720 * UNIT - 1], &mut note).unwrap();
            for _ in 0..200 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (seed >> 20) % (main_bytes - 8);
                growth.provide(&(at..(at + 1 + seed % (1 << 20)).min(main_bytes)), &mut note).unwrap();
            }
            growth.provide(&(0..main_bytes), &mut note).unwrap();
            all.sort_unstable_by_key(|part| part.start);
            assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start), "{all:?}");
            assert_eq!((all[0].start, all.last().unwrap().end), (0, main_bytes));
        }
    }

    /// A node that starts registers what does not grow, and of the rest the parts that have memory, not those of which
    /// only a piece of a unit has.
    #[test]
    fn a_node_begins_with_what_has_memory() {
        let main_bytes = 2_000 * UNIT;
        let start = 10 * UNIT;
        let growth = Growth::new(&[area(start, 1_000, 10)], main_bytes).unwrap();
        let stored = [0..start + 2 * UNIT + 5, start + 4 * UNIT - 3..start + 5 * UNIT, start + 200 * UNIT..main_bytes];
        let mut all = Vec::new();
        growth
            .provide_stored(&stored, |part| {
                all.push(part);
                Ok(())
            })
            .unwrap();
        let of = |from: u64, to: u64| start + from * UNIT..start + to * UNIT;
        assert_eq!(all[..5], [0..start, start + 1_000 * UNIT..main_bytes, of(0, 1), of(1, 2), of(4, 5)]);
        assert_eq!((&all[5], all.last()), (&of(200, 202), Some(&of(998, 1_000))), "units 210 and 211, 1,008 and 1,009");
        assert_eq!(provide(&growth, of(3, 5)), [of(3, 4)]);
    }

    /// Where there is no memory for a part, there may be for the units that are needed; a refusal registers nothing.
    #[test]
    fn units_do_where_there_is_no_memory_for_a_part() {
        let growth = Growth::new(&[area(0, 1_000, 640)], 1_000 * UNIT).unwrap();
        let mut asked = Vec::new();
        let mut at_most = |units: u64, bytes: Range<u64>| {
            growth.provide(&bytes, |part| {
                asked.push(part.clone());
                if part.end - part.start > units * UNIT { Err(no_memory()) } else { Ok(()) }
            })
        };
        assert!(at_most(0, UNIT..UNIT + 8).is_err());
        assert!(at_most(2, 3 * UNIT + 8..5 * UNIT).is_ok());
        assert!(at_most(8, 0..UNIT).is_ok());
        assert!(at_most(8, 7 * UNIT..9 * UNIT).is_ok());
        let of = |from: u64, to: u64| from * UNIT..to * UNIT;
        assert_eq!(asked, [of(0, 8), of(1, 2), of(0, 8), of(3, 5), of(0, 3), of(5, 8), of(8, 16)]);
        let other = || VerbsError::Mismatch { reason: "broken".to_owned() };
        let mut calls = 0;
        let refused = growth.provide(&of(20, 21), |_| {
            calls += 1;
            Err(other())
        });
        assert!(
            matches!(refused, Err(VerbsError::Mismatch { .. })) && calls == 1,
            "only memory may be missing in part"
        );
        assert_eq!(provide(&growth, of(20, 21)), [of(16, 24)]);
    }

    /// However large a table may become, its parts fit the list of a session.
    #[test]
    fn parts_are_never_too_many() {
        let large = |units: u64| GrowingArea { bytes: 0..units << 16, unit_bytes: 1 << 16, units_before: 1 };
        for bits in [10, 20, 30, 40, 46] {
            let parts = large(1 << bits).parts(PARTS_SHIFT);
            assert!(parts <= 64 * (bits - 4), "2^{bits} units: {parts}");
        }
        let area = |at: u64| {
            let bytes = at << 58..(at + 1) << 58;
            GrowingArea { bytes, unit_bytes: 8, units_before: 1 }
        };
        let areas: Vec<_> = (0..15).map(area).collect();
        let growth = Growth::new(&areas, 1 << 62).unwrap();
        let parts: u64 = growth.areas.iter().map(|area| area.parts(growth.shift)).sum();
        assert!(
            growth.shift < PARTS_SHIFT && parts <= MAX_SEGMENTS as u64 && parts > MAX_SEGMENTS as u64 / 4,
            "{parts}"
        );
    }

    /// A table without extents has no chunks, and an area for them of no bytes, in units of none.
    #[test]
    fn an_area_without_bytes_is_left_out() {
        let none = GrowingArea { bytes: 5 * UNIT..5 * UNIT, unit_bytes: 0, units_before: 0 };
        let growth = Growth::new(&[area(UNIT, 4, 64), none], 5 * UNIT).unwrap();
        assert_eq!(
            provide(&growth, 0..5 * UNIT),
            [0..UNIT, UNIT..2 * UNIT, 2 * UNIT..3 * UNIT, 3 * UNIT..4 * UNIT, 4 * UNIT..5 * UNIT]
        );
    }

    #[test]
    fn impossible_areas_are_refused() {
        let refused = |areas: &[GrowingArea]| {
            let refused = Growth::new(areas, 10 * UNIT).map(drop);
            assert!(matches!(refused, Err(VerbsError::Mismatch { .. })), "{refused:?}");
        };
        refused(&[area(0, 2, 0), area(UNIT, 2, 0)]);
        refused(&[area(8 * UNIT, 3, 0)]);
        refused(&[GrowingArea { unit_bytes: 0, ..area(0, 1, 0) }]);
        refused(&[GrowingArea { units_before: 1 << 62, ..area(0, 1, 0) }]);
        let growth = Growth::new(&[area(0, 10, 0)], 10 * UNIT).unwrap();
        let outside = growth.provide(&(10 * UNIT..10 * UNIT + 8), |_| Ok(()));
        assert!(matches!(outside, Err(VerbsError::Mismatch { .. })), "{outside:?}");
    }
}
