//! `verbwire doctor`: what is wrong with the RDMA set-up of this machine, or on the way to a server, and what to do.
//!
//! `facts` reads the machine through `tree`, `tries` tries the paths to a target, `rules` makes findings of both, `report` prints
//! them. Owns the arguments and the time limit of the whole. Changes nothing, starts no tool, needs no root.

mod facts;
mod finding;
mod json;
mod report;
mod rules;
#[cfg(test)]
mod tests;
mod tree;
mod tries;
mod trust;

use std::sync::mpsc;
use std::time::Duration;

use self::facts::Facts;
use self::finding::{Finding, Layer, Level};
use self::report::Report;
use self::rules::Build;
use self::tree::Tree;
use self::tries::Try;
use self::trust::{Files, Trust};
use super::Outcome;

const USAGE: &str = "\
verbwire doctor [TARGET] [--json] [--timeout SECONDS] [--root FOLDER] [--ca FILE [--cert FILE --key FILE]]

Says what is wrong with the RDMA set-up of this machine, by layer: hardware, driver, protocol, and what to do. With TARGET also
tries the paths to it: of host:port and auto:// over TCP, or TLS, as the library would, and over RDMA; of any other scheme that one.

    --json              the same as one JSON object
    --timeout SECONDS   for each step of a try; 5
    --root FOLDER       look at the files below FOLDER instead of /: a copy of another machine's /sys, /proc, /dev and /etc
    --ca FILE           the authorities that certificates of servers may come from, in PEM: for tls://, and for auto:// with TLS
    --cert FILE         a certificate to show, with those that lead to its authority; and --key FILE, its private key

Exit status: 0 no problem (there may be warnings), 1 a problem, 2 wrong usage.
";

/// For all files together, which are read in some milliseconds, and in an emulated guest on a busy machine took 10 s; a driver that
/// hangs lets them wait for ever.
const READING_LIMIT: Duration = Duration::from_secs(60);
const LONGEST_TIMEOUT: u64 = 3600;

struct Arguments {
    target: Option<String>,
    is_json: bool,
    timeout: Duration,
    root: String,
    files: Files,
}

pub(super) fn run(arguments: &[String]) -> Outcome {
    if arguments.iter().any(|argument| argument == "-h" || argument == "--help") {
        return Outcome::well(USAGE);
    }
    let build = Build { has_rdma: cfg!(feature = "rdma") };
    let report = parse(arguments).and_then(|arguments| {
        let report = examine(&arguments, build)?;
        Ok((arguments.is_json, report))
    });
    match report {
        Err(why) => Outcome::wrong_usage(&why, USAGE),
        Ok((is_json, report)) => Outcome {
            out: if is_json { report.for_programs() } else { report.for_people() },
            err: String::new(),
            status: u8::from(report.has_problem()),
        },
    }
}

fn parse(arguments: &[String]) -> Result<Arguments, String> {
    let mut parsed = Arguments {
        target: None,
        is_json: false,
        timeout: Duration::from_secs(5),
        root: "/".to_owned(),
        files: Files::default(),
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--json" => parsed.is_json = true,
            "--timeout" => parsed.timeout = seconds(value()?)?,
            "--root" => parsed.root = value()?.clone(),
            "--ca" => parsed.files.authority = Some(value()?.clone()),
            "--cert" => parsed.files.chain = Some(value()?.clone()),
            "--key" => parsed.files.key = Some(value()?.clone()),
            option if option.starts_with('-') => {
                return Err(format!("there is no option {option}"));
            }
            target => match parsed.target.replace(target.to_owned()) {
                None => {}
                Some(first) => return Err(format!("one target, not both {first} and {target}")),
            },
        }
    }
    Ok(parsed)
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(seconds @ 1..=LONGEST_TIMEOUT) => Ok(Duration::from_secs(seconds)),
        _ => Err(format!("--timeout takes 1 to {LONGEST_TIMEOUT} seconds, not {text:?}")),
    }
}

/// # Errors
///
/// The target is none, the root no folder, or a file for TLS of no use.
fn examine(arguments: &Arguments, build: Build) -> Result<Report, String> {
    let tree = Tree::new(&arguments.root);
    if !tree.is_folder("") {
        return Err(format!("--root {:?} is no folder", arguments.root));
    }
    let trust = Trust::read(&arguments.files)?;
    let facts = read(&tree);
    let has_device = facts.as_ref().is_some_and(|facts| !facts.devices.is_empty());
    let mut tries = match &arguments.target {
        Some(target) => tries::plan(target, build, has_device, &trust)?,
        None => Vec::new(),
    };
    let mut findings = match facts {
        Some(facts) => rules::judge(&facts, build),
        None => vec![reading_hangs()],
    };
    if let Some(failed) = try_all(&mut tries, &trust, arguments.timeout) {
        findings.push(failed);
    } else {
        findings.extend(rules::judge_tries(&tries));
    }
    Ok(Report { build, findings, tries })
}

/// The facts, read on a thread that is left behind if a driver does not let it go.
fn read(tree: &Tree) -> Option<Facts> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let reader = {
        let tree = tree.clone();
        // The receiver is gone if it took too long.
        move || drop(sender.send(Facts::of(&tree)))
    };
    match std::thread::Builder::new().spawn(reader) {
        Ok(_) => receiver.recv_timeout(READING_LIMIT).ok(),
        // No more threads: a machine in that state deserves an answer as well.
        Err(_) => Some(Facts::of(tree)),
    }
}

fn reading_hangs() -> Finding {
    let limit = READING_LIMIT.as_secs();
    let what = format!(
        "reading this machine's files in /sys, /proc and /dev did not end within {limit} s"
    );
    Finding::new(Layer::Driver, Level::Problem, "reading-hangs", what).advise(
        "a driver hangs, or the machine is very busy: 'uptime' tells, and 'dmesg | tail -50' which driver",
    )
}

/// Runs the tries on a runtime of their own. A finding, if there could be none.
fn try_all(tries: &mut [Try], trust: &Trust, limit: Duration) -> Option<Finding> {
    if tries.is_empty() {
        return None;
    }
    let runtime =
        match tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let what =
                    format!("no path was tried, because no runtime could be started: {error}");
                let finding = Finding::new(Layer::Driver, Level::Problem, "no-runtime", what);
                return Some(finding.advise(
                    "raise the limits of threads and descriptors: 'ulimit -u', 'ulimit -n'",
                ));
            }
        };
    runtime.block_on(tries::run_all(tries, trust, limit));
    // A look-up that hangs holds its thread; the program ends without it.
    runtime.shutdown_timeout(Duration::from_millis(500));
    None
}
