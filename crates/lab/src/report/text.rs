//! Texts of reports: numbers for people, and characters that XML reserves.

/// Formats a number with at most four digits that matter, thousands grouped: `0.125`, `11.44`, `4,000,000`.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let magnitude = value.abs();
    let digits = match magnitude {
        _ if magnitude >= 1000.0 => 0,
        _ if magnitude >= 100.0 => 1,
        _ if magnitude >= 1.0 => 2,
        _ => 4,
    };
    with_digits(value, digits, Zeros::Cut)
}

/// The treatment of zeros at the end of a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zeros {
    Keep,
    Cut,
}

/// Formats a number with this many digits after the point.
pub(super) fn with_digits(value: f64, digits: usize, zeros: Zeros) -> String {
    let text = format!("{:.digits$}", value.abs());
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let fraction = if zeros == Zeros::Cut { fraction.trim_end_matches('0') } else { fraction };
    let mut out = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if !fraction.is_empty() {
        out.push('.');
        out += fraction;
    }
    // A negative number that rounds to nothing is nothing.
    let is_zero = out.chars().all(|digit| matches!(digit, '0' | '.'));
    if value < 0.0 && !is_zero { format!("\u{2212}{out}") } else { out }
}

/// Escapes text for XML and HTML, attributes included. Characters that XML cannot contain become U+FFFD.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' | '\r' => out.push(letter),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            letter if letter.is_control() => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_matter() {
        for (value, text) in [
            (0.0, "0"),
            (0.125, "0.125"),
            (-0.5, "\u{2212}0.5"),
            (-0.000_01, "0"),
            (11.4432, "11.44"),
            (100.04, "100"),
            (320.0, "320"),
            (4e6, "4,000,000"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(number(value), text, "{value}");
        }
        assert_eq!(with_digits(2.0, 1, Zeros::Keep), "2.0");
    }

    #[test]
    fn every_reserved_character_is_escaped() {
        assert_eq!(escaped("a<b>&\"c'\u{1}\u{ffff}µ"), "a&lt;b&gt;&amp;&quot;c&#39;\u{fffd}\u{fffd}µ");
    }
}
