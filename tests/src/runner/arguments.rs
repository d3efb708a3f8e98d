//! The arguments that the usual test runner knows, as far as they make sense here, and how often all of it runs.
//!
//! One thing more: a filter that begins with `^` is about the start of a name, as `^rxe::` is not about `auto-rxe::`.

/// Which cases run, and how many at a time.
#[derive(Debug)]
pub(super) struct Arguments {
    filters: Vec<String>,
    skips: Vec<String>,
    exact: bool,
    /// Whether the names are only listed.
    pub(super) list: bool,
    /// Cases at a time.
    pub(super) threads: usize,
    /// How often all that is chosen runs, one after another.
    pub(super) repeat: usize,
}

/// Cases at a time unless told otherwise: many wait for a short deadline, so a core can serve some.
const THREADS: usize = 6;

impl Arguments {
    /// Reads the arguments behind the program's name.
    pub(super) fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments = Self {
            filters: Vec::new(),
            skips: Vec::new(),
            exact: false,
            list: false,
            threads: THREADS,
            repeat: 1,
        };
        let mut words = words.flat_map(|word| match word.split_once('=') {
            Some((name, value)) if name.starts_with("--") => {
                vec![name.to_owned(), value.to_owned()]
            }
            _ => vec![word],
        });
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--skip" => arguments.skips.push(value()?),
                "--test-threads" => arguments.threads = at_least_one(&word, &value()?)?,
                "--repeat" => arguments.repeat = at_least_one(&word, &value()?)?,
                "--exact" => arguments.exact = true,
                "--list" => arguments.list = true,
                "--color" | "--format" => drop(value()?),
                "--nocapture" | "--no-capture" | "--show-output" | "-q" | "--quiet" => {}
                filter if !filter.starts_with('-') => arguments.filters.push(word),
                _ => return Err(format!("unknown argument {word}")),
            }
        }
        Ok(arguments)
    }

    /// Whether a case of this name runs.
    pub(super) fn choose(&self, name: &str) -> bool {
        let matches = |filter: &String| match filter.strip_prefix('^') {
            _ if self.exact => name == filter,
            Some(start) => name.starts_with(start),
            None => name.contains(filter.as_str()),
        };
        let is_chosen = self.filters.is_empty() || self.filters.iter().any(matches);
        is_chosen && !self.skips.iter().any(matches)
    }
}

fn at_least_one(name: &str, value: &str) -> Result<usize, String> {
    let number = value.parse().ok().filter(|number| *number > 0);
    number.ok_or(format!("{name} takes a whole number of at least 1, not {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Arguments, String> {
        Arguments::parse(words.iter().map(|word| (*word).to_owned()))
    }

    #[test]
    fn filters_choose_and_skips_leave_out() {
        let arguments = parse(&["tcp", "--skip", "cancel", "--test-threads=3", "--repeat", "5"]);
        let arguments = arguments.expect("known");
        assert!(arguments.choose("tcp::calls::a"));
        assert!(!arguments.choose("tcp::cancel::a"));
        assert!(!arguments.choose("mem::calls::a"));
        assert_eq!((arguments.threads, arguments.repeat), (3, 5));
    }

    #[test]
    fn a_filter_may_be_tied_to_the_start_of_a_name() {
        let arguments = parse(&["^tcp::", "^auto-tcp::calls::"]).expect("known");
        assert!(arguments.choose("tcp::cancel::a"));
        assert!(arguments.choose("auto-tcp::calls::a"));
        assert!(!arguments.choose("auto-tcp::cancel::a"));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for words in [&["--frobnicate"][..], &["--skip"], &["--test-threads", "0"], &["--repeat=x"]]
        {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
