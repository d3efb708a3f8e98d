//! Which protobuf items an option's path means.
//!
//! The rules are prost's, so that one notation serves messages, which prost generates, and services, which it does not.

/// Whether `pattern` means the item with this full name, which has no leading dot.
///
/// `.` means everything, `.a.b` the item `a.b` and all that it contains, and `b` or `a.b` each item whose name ends so.
pub(crate) fn selects(pattern: &str, full_name: &str) -> bool {
    match pattern.strip_prefix('.') {
        Some("") => true,
        Some(prefix) => is_part(full_name.strip_prefix(prefix), |rest| rest.starts_with('.')),
        None => is_part(full_name.strip_suffix(pattern), |rest| rest.ends_with('.')),
    }
}

fn is_part(rest: Option<&str>, has_border: impl FnOnce(&str) -> bool) -> bool {
    rest.is_some_and(|rest| rest.is_empty() || has_border(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leading_dot_compares_the_beginning() {
        assert!(selects(".", "a.b.C"));
        assert!(selects(".", ""));
        assert!(selects(".a", "a.b.C"));
        assert!(selects(".a.b.C", "a.b.C"));
        assert!(!selects(".a.b.C", "a.b"));
        assert!(!selects(".b", "a.b.C"));
    }

    #[test]
    fn without_a_dot_the_end_is_compared() {
        assert!(selects("C", "a.b.C"));
        assert!(selects("b.C", "a.b.C"));
        assert!(selects("a.b.C", "a.b.C"));
        assert!(!selects("a.b", "a.b.C"));
    }

    #[test]
    fn only_whole_names_count() {
        assert!(!selects(".a.b", "a.bc.C"));
        assert!(!selects("c.C", "a.bc.C"));
        assert!(!selects("", "a"));
    }
}
