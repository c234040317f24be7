//! Sizes in user notation: 4K, 4KiB, 4096, 1.5G.

use std::fmt;
use std::str::FromStr;

/// A size in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size(pub u64);

const UNITS: [&str; 5] = ["", "K", "M", "G", "T"];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let wrong = || format!("'{text}' is no size: write 4096, 4K, 4KiB or 1G");
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim().to_ascii_uppercase();
        let unit = unit.strip_suffix("IB").filter(|u| !u.is_empty()).unwrap_or(&unit);
        let unit = if unit == "B" { "" } else { unit };
        let power = UNITS.iter().position(|u| *u == unit).ok_or_else(wrong)?;
        let factor = 1u64 << (10 * power);
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Size).ok_or_else(wrong);
        }
        let part: f64 = number.parse().map_err(|_| wrong())?;
        let bytes = part * factor as f64;
        // A fraction of a byte is a typing error; 2^60 is beyond any machine.
        if bytes.fract() == 0.0 && bytes < (1u64 << 60) as f64 {
            Ok(Size(bytes as u64))
        } else {
            Err(wrong())
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let power = (0..UNITS.len()).rev().find(|p| self.0 >> (10 * p) > 0).unwrap_or(0);
        let value = self.0 as f64 / (1u64 << (10 * power)) as f64;
        match (power, value.fract() == 0.0) {
            (0, _) => write!(f, "{} B", self.0),
            (_, true) => write!(f, "{value} {}iB", UNITS[power]),
            (_, false) => write!(f, "{value:.1} {}iB", UNITS[power]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Size;

    #[test]
    fn all_ways_of_writing_a_size_mean_the_same() {
        for text in ["4096", "4K", "4k", "4KiB", "4 KiB", "4096B", "4.0K"] {
            assert_eq!(text.parse(), Ok(Size(4096)), "{text}");
        }
        assert_eq!("1.5G".parse(), Ok(Size(3 << 29)));
        assert_eq!(Size(3 << 29).to_string(), "1.5 GiB");
        assert_eq!(Size(120 << 20).to_string(), "120 MiB");
    }

    #[test]
    fn what_is_no_size_is_refused_with_examples() {
        for text in ["", "K", "iB", "4X", "-4K", "4KB", "1.00001K", "99999999T", "4096 4096"] {
            let refused = text.parse::<Size>().unwrap_err();
            assert!(refused.contains("4KiB"), "{text}: {refused}");
        }
    }
}
