//! `verbwire`, the program beside the library: subcommands for those who run machines.
//!
//! Owns the choice of the subcommand, the output streams and the exit status: 0 well, 1 a problem, 2 wrong usage. What a
//! subcommand does is in the module of its name.

#![forbid(unsafe_code)]

mod doctor;

use std::io::Write;
use std::process::ExitCode;

const USAGE: &str = "\
verbwire: tools for machines that call over RDMA and TCP

    verbwire doctor [TARGET]    what is wrong with the RDMA set-up here or on the way to TARGET, and what to do
    verbwire doctor --help      its options
    verbwire --version
";

/// What a subcommand has to say, and how it ended.
pub(crate) struct Outcome {
    /// For standard output.
    pub(crate) out: String,
    /// For standard error.
    pub(crate) err: String,
    pub(crate) status: u8,
}

impl Outcome {
    pub(crate) fn well(out: impl Into<String>) -> Self {
        Self { out: out.into(), err: String::new(), status: 0 }
    }

    pub(crate) fn wrong_usage(why: &str, usage: &str) -> Self {
        Self { out: String::new(), err: format!("verbwire: {why}\n\n{usage}"), status: 2 }
    }
}

fn main() -> ExitCode {
    let arguments: Result<Vec<String>, _> =
        std::env::args_os().skip(1).map(|argument| argument.into_string()).collect();
    let outcome = match arguments {
        Ok(arguments) => run(&arguments),
        Err(odd) => Outcome::wrong_usage(&format!("{odd:?} is not UTF-8"), USAGE),
    };
    // A reader that has gone, as `head` goes, is no failure of ours; println! would panic.
    let _ = std::io::stdout().write_all(outcome.out.as_bytes());
    let _ = std::io::stderr().write_all(outcome.err.as_bytes());
    ExitCode::from(outcome.status)
}

fn run(arguments: &[String]) -> Outcome {
    let Some((command, rest)) = arguments.split_first() else {
        return Outcome::wrong_usage("which command?", USAGE);
    };
    match command.as_str() {
        "doctor" => doctor::run(rest),
        "-h" | "--help" | "help" => Outcome::well(USAGE),
        "-V" | "--version" => Outcome::well(format!("verbwire {}\n", env!("CARGO_PKG_VERSION"))),
        other => Outcome::wrong_usage(&format!("there is no command {other:?}"), USAGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_words(words: &[&str]) -> Outcome {
        run(&words.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn wrong_usage_ends_with_2_and_shows_the_usage() {
        for words in [&[][..], &["doktor"], &["doctor", "--jsn"], &["doctor", "a:1", "b:1"]] {
            let outcome = run_words(words);
            assert_eq!(outcome.status, 2, "{words:?}");
            assert!(outcome.out.is_empty(), "{words:?}");
            assert!(outcome.err.contains("verbwire doctor [TARGET]"), "{words:?}: {}", outcome.err);
        }
    }

    #[test]
    fn help_is_not_an_error() {
        for words in [&["--help"][..], &["doctor", "--help"]] {
            let outcome = run_words(words);
            assert_eq!(outcome.status, 0, "{words:?}");
            assert!(outcome.out.contains("verbwire doctor [TARGET]"), "{words:?}");
        }
    }

    #[test]
    fn this_machine_is_examined_and_described_whatever_it_is() {
        let outcome = run_words(&["doctor", "--json"]);
        assert!(outcome.status < 2 && outcome.err.is_empty(), "{}", outcome.err);
        assert!(outcome.out.starts_with("{\"verbwire\": "), "{}", outcome.out);
        assert!(outcome.out.contains("\"layer\": \"hardware\""), "{}", outcome.out);
        assert!(run_words(&["doctor"]).out.contains("\nprotocol\n"));
    }
}
