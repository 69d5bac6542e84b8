//! Parsing and formatting of counts, sizes and times.

use std::time::Duration;

use guira::admin::ByteCount;

/// Parses a count: `10000`, `10_000`, `10k`, `1.5M`, `2G`, `1T` (powers of 1000).
pub fn parse_count(text: &str) -> Result<u64, String> {
    let factors = [("k", 1_000), ("K", 1_000), ("M", 1_000_000), ("G", 1_000_000_000), ("T", 1_000_000_000_000)];
    parse(text, &factors).ok_or_else(|| format!("{text:?} is not a number; write 10000, 10_000, 10k, 1.5M, 2G or 1T"))
}

/// Parses a size in bytes: `4096`, `64MiB`, `64M` or `1.5G` (powers of 1024), `64MB` (powers of 1000).
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let factors = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("kB", 1_000),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("K", 1 << 10),
        ("k", 1 << 10),
        ("M", 1 << 20),
        ("G", 1 << 30),
        ("T", 1 << 40),
        ("B", 1),
    ];
    parse(text, &factors)
        .ok_or_else(|| format!("{text:?} is not a size; write 4096, 64MiB, 1.5G (powers of 1024) or 1GB"))
}

/// Parses permission bits: `600`, `0o660`.
pub fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text.trim_start_matches("0o"), 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| format!("{text:?} is not a mode; write octal permission bits such as 600 or 660"))
}

/// Parses a time: `500ms`, `2s`, `1.5s`, `1min`, `100us`. A number without a unit is refused.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let factors =
        [("ns", 1), ("us", 1_000), ("µs", 1_000), ("ms", 1_000_000), ("min", 60_000_000_000), ("s", 1_000_000_000)];
    let is_bare = text.ends_with(|c: char| c.is_ascii_digit());
    let parsed = if is_bare { None } else { parse(text, &factors) };
    parsed.map(Duration::from_nanos).ok_or_else(|| format!("{text:?} is not a time; write 500ms, 2s or 1min"))
}

/// Maximum digits after a decimal point: exact in 128 bits for every factor.
const DECIMALS_MAX: usize = 15;

/// Parses a number and the factor after it. A fraction needs a factor, and is rounded up to a whole number.
fn parse(text: &str, factors: &[(&str, u64)]) -> Option<u64> {
    let suffixed = factors.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)));
    let (number, factor) = suffixed.unwrap_or((text, 1));
    let number = number.trim_end();
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) if factor > 1 => (whole, Some(fraction)),
        Some(_) => return None,
        None => (number, None),
    };
    let plain: String = whole.chars().filter(|c| *c != '_').collect();
    let is_number = whole.starts_with(|c: char| c.is_ascii_digit()) && is_digits(&plain);
    let whole = if is_number { plain.parse::<u64>().ok()?.checked_mul(factor)? } else { return None };
    match fraction {
        None => Some(whole),
        Some(digits) if is_digits(digits) && digits.len() <= DECIMALS_MAX => {
            let scale = 10_u128.pow(u32::try_from(digits.len()).ok()?);
            let part = (digits.parse::<u128>().ok()? * u128::from(factor)).div_ceil(scale);
            whole.checked_add(u64::try_from(part).ok()?)
        }
        Some(_) => None,
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Formats a number as `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Rounds a count down to two significant digits.
pub fn rounded_down(number: u64) -> u64 {
    let step = 10_u64.pow(number.max(1).ilog10().saturating_sub(1));
    number / step * step
}

/// Rounds a count up to two significant digits, in a form that [`parse_count`] reads: `1_300_000`.
pub fn rounded_up(number: u64) -> String {
    let step = 10_u64.pow(number.max(1).ilog10().saturating_sub(1));
    count(number.div_ceil(step).saturating_mul(step)).replace(',', "_")
}

/// Formats a number with its noun: `1 record`, `2 records`.
pub fn counted(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", count(number), if number == 1 { "" } else { "s" })
}

/// Formats a size: `47.8 MiB`.
pub fn bytes(number: u64) -> String {
    ByteCount(number).to_string()
}

/// Formats a rate with three significant digits: `307,000/s`.
pub fn rate(per_second: f64) -> String {
    if per_second < 1000.0 {
        return format!("{per_second:.1}/s");
    }
    let step = 10_f64.powf(per_second.log10().floor() - 2.0).max(1.0);
    format!("{}/s", count(((per_second / step).round() * step) as u64))
}

/// Formats a time in nanoseconds: `1.23 µs`.
pub fn time(nanoseconds: u64) -> String {
    let ns = nanoseconds as f64;
    match nanoseconds {
        0..1_000 => format!("{nanoseconds} ns"),
        1_000..1_000_000 => format!("{:.2} µs", ns / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

/// Formats a duration in seconds: `45 s`, `3 min 5 s`, `2 h 10 min`.
pub fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// Formats a fraction as a percentage: `62.1 %`.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Returns `part / whole`, or 0 if `whole` is 0.
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Returns events per second, given the elapsed time.
pub fn per_second(events: u64, elapsed_ns: u64) -> f64 {
    if elapsed_ns == 0 { 0.0 } else { events as f64 * 1e9 / elapsed_ns as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_parsed() {
        for (text, number) in [
            ("0", 0),
            ("10000", 10_000),
            ("10_000", 10_000),
            ("10k", 10_000),
            ("1M", 1_000_000),
            ("2 G", 2_000_000_000),
            ("1.5M", 1_500_000),
            ("0.25k", 250),
            ("1T", 1_000_000_000_000),
            ("1.2345k", 1235),
            ("1_0.5k", 10_500),
        ] {
            assert_eq!(parse_count(text), Ok(number), "{text}");
        }
        for text in [
            "",
            "M",
            "-1",
            "1.5",
            ".5M",
            "1.M",
            "1.-5M",
            "1.5.5M",
            "1.0000000000000001M",
            "_1",
            "1MM",
            "1MiB",
            "99999999999999999999",
            "99999999999G",
            "0x10",
            "+1",
        ] {
            assert!(parse_count(text).unwrap_err().contains("not a number"), "{text}");
        }
    }

    #[test]
    fn sizes_are_parsed() {
        for (text, number) in [
            ("4096", 4096),
            ("64MiB", 64 << 20),
            ("64M", 64 << 20),
            ("1G", 1 << 30),
            ("1 GiB", 1 << 30),
            ("1GB", 1_000_000_000),
            ("2k", 2048),
            ("3kB", 3000),
            ("7B", 7),
            ("1T", 1 << 40),
            ("1.5G", 3 << 29),
            ("0.5 KiB", 512),
            ("1.1GB", 1_100_000_000),
        ] {
            assert_eq!(parse_bytes(text), Ok(number), "{text}");
        }
        for text in ["", "MiB", "1.5", "1.5B", "-1", "1X", "1MiBs", "16777216T"] {
            assert!(parse_bytes(text).unwrap_err().contains("not a size"), "{text}");
        }
    }

    #[test]
    fn times_are_parsed() {
        for (text, milliseconds) in [("500ms", 500), ("2s", 2_000), ("1.5s", 1_500), ("1min", 60_000), ("0s", 0)] {
            assert_eq!(parse_time(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        assert_eq!([parse_time("100us"), parse_time("7ns")], [100_000, 7].map(|ns| Ok(Duration::from_nanos(ns))));
        for text in ["", "500", "s", "-1s", "1h", "1.5", "1.5ns", "99999999999999min"] {
            assert!(parse_time(text).unwrap_err().contains("not a time"), "{text}");
        }
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!((parse_mode("600"), parse_mode("0o660")), (Ok(0o600), Ok(0o660)));
        for text in ["", "800", "1777", "rw", "-600"] {
            assert!(parse_mode(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_formatted() {
        assert_eq!([0, 12, 123, 1234, 1_234_567].map(count), ["0", "12", "123", "1,234", "1,234,567"]);
        assert_eq!([0, 9, 1_299_999].map(rounded_down), [0, 9, 1_200_000]);
        assert_eq!([0, 9, 1_200_001].map(rounded_up), ["0", "9", "1_300_000"]);
        assert_eq!([1, 2].map(|n| counted(n, "record")), ["1 record", "2 records"]);
        let sizes = [0, 1023, 1024, 1536, 50_164_600, (1 << 20) - 1, u64::MAX];
        assert_eq!(sizes.map(bytes), ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "47.8 MiB", "1.0 MiB", "16.0 EiB"]);
        assert_eq!([0.0, 999.94, 307_123.0, 12_345_678.0].map(rate), ["0.0/s", "999.9/s", "307,000/s", "12,300,000/s"]);
        let times = [1, 1_234, 12_345_678, 1_500_000_000];
        assert_eq!(times.map(time), ["1 ns", "1.23 µs", "12.35 ms", "1.50 s"]);
        assert_eq!(percent(0.621), "62.1 %");
        assert_eq!((share(1, 4), share(1, 0), per_second(3, 1_500_000_000), per_second(3, 0)), (0.25, 0.0, 2.0, 0.0));
    }
}
