//! The header `grpc-timeout`: at most eight digits and a unit.

use std::time::Duration;

use http::HeaderValue;

/// The header's name.
pub(crate) const GRPC_TIMEOUT: &str = "grpc-timeout";

/// Most digits that the header has.
const DIGITS: usize = 8;

/// The time that a header says; `None` if it is not of that form.
pub(crate) fn parse(value: &HeaderValue) -> Option<Duration> {
    let (unit, digits) = value.as_bytes().split_last()?;
    let is_number = (1..=DIGITS).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    let number: u64 = std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// The header of this time, as exactly as eight digits can say it.
pub(crate) fn header(time: Duration) -> HeaderValue {
    const MOST: u128 = 10_u128.pow(8) - 1;
    let units = [
        (time.as_nanos(), 'n'),
        (time.as_micros(), 'u'),
        (time.as_millis(), 'm'),
        (u128::from(time.as_secs()), 'S'),
        (u128::from(time.as_secs() / 60), 'M'),
    ];
    let (number, unit) = units
        .into_iter()
        .find(|(number, _)| *number <= MOST)
        .unwrap_or((u128::from(time.as_secs() / 3600).min(MOST), 'H'));
    let text = format!("{number}{unit}");
    HeaderValue::try_from(text).expect("digits and a letter are a header's value")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_comes_back_as_exactly_as_eight_digits_say_it() {
        for time in [
            Duration::ZERO,
            Duration::from_nanos(99_999_999),
            Duration::from_micros(99_999_999),
            Duration::from_millis(99_999_999),
            Duration::from_secs(99_999_999),
            Duration::from_secs(99_999_999 * 60),
            Duration::from_secs(99_999_999 * 3600),
        ] {
            assert_eq!(parse(&header(time)), Some(time), "{time:?}");
        }
        assert_eq!(header(Duration::from_nanos(100_000_001)), "100000u");
        assert_eq!(header(Duration::MAX), "99999999H");
    }

    #[test]
    fn what_is_no_timeout_is_refused() {
        for bad in ["", "1", "S", "123456789S", "-1S", "+1S", "1s", "1 S", "1.5S", "\u{e9}S"] {
            let value = HeaderValue::from_bytes(bad.as_bytes()).expect("a header's value");
            assert_eq!(parse(&value), None, "{bad}");
        }
    }
}
