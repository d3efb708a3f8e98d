//! Runs every case over every transport, as the usual test runner would, and writes the table.
//!
//! Each case has a thread and a runtime of its own, a time limit, and its panic caught.

use std::cell::RefCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

mod arguments;

use crate::backends::{BACKENDS, Backend};
use crate::case::{Case, Time};
use crate::doomed;
use crate::fixture::Fixture;
use crate::table::{self, Cell};
use arguments::Arguments;

/// Longest time of a case on its own clock. The longest take seconds; devices that emulate each instruction, and machines that do
/// something else beside, take many times that.
const LIMIT: Duration = Duration::from_secs(120);
/// How much longer a case may take whose own clock does not tick any more.
const STUCK: Duration = Duration::from_secs(20);

/// What the panics of handlers that panic on purpose begin with; they are not shown.
pub const ON_PURPOSE: &str = "on purpose";

thread_local! {
    /// The last panic on the thread of a case; `None` on all other threads.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A case over a transport.
#[derive(Debug, Clone, Copy)]
struct Job<'a> {
    case: &'a Case,
    backend: &'static Backend,
    /// Its row and column in the table.
    cell: (usize, usize),
}

/// Runs the cases that the arguments choose, or serves if they say so.
pub fn main(cases: &[Case]) -> ExitCode {
    let mut words = std::env::args().skip(1);
    if let Some(part) = words.next().as_deref().and_then(doomed::Part::of_argument) {
        return play(part, &words.next().unwrap_or_default());
    }
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(why) => {
            eprintln!("conformance: {why}");
            return ExitCode::FAILURE;
        }
    };
    let (mut table, jobs) = plan(cases, &arguments);
    if arguments.list {
        for job in &jobs {
            println!("{}: test", job.case.path(job.backend.name));
        }
        return ExitCode::SUCCESS;
    }
    std::panic::set_hook(Box::new(note_panic));
    let started = Instant::now();
    println!("\nrunning {} tests", jobs.len());
    let failures = run_all(&jobs, arguments.threads, &mut table);
    for (name, why) in &failures {
        println!("\n---- {name} ----\n{why}");
    }
    let counts = Counts { run: jobs.len(), failed: failures.len(), took: started.elapsed() };
    let written = report(cases, table);
    if !failures.is_empty() {
        println!("failures:");
        failures.iter().for_each(|(name, _)| println!("    {name}"));
    }
    sum_up(written, &counts)
}

/// One row of cells per case, and what is to run.
fn plan<'a>(cases: &'a [Case], arguments: &Arguments) -> (Vec<Vec<Cell>>, Vec<Job<'a>>) {
    let mut jobs = Vec::new();
    let mut table = Vec::new();
    for (row, case) in cases.iter().enumerate() {
        let cells = BACKENDS.iter().enumerate().map(|(column, backend)| {
            if let Some(reason) = backend.lack(case.needs) {
                return Cell::Lacks(reason);
            }
            if arguments.choose(&case.path(backend.name)) {
                let cell = (row, column);
                jobs.push(Job { case, backend, cell });
            }
            Cell::LeftOut
        });
        table.push(cells.collect());
    }
    // Round by round, so that a case meets other neighbours each time.
    let jobs = vec![jobs; arguments.repeat].concat();
    (table, jobs)
}

/// Runs all jobs, several at a time; returns the names of those that failed, with the reasons.
fn run_all(jobs: &[Job<'_>], threads: usize, table: &mut [Vec<Cell>]) -> Vec<(String, String)> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new((table, Vec::new()));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let begun = Instant::now();
                    let outcome = run(job.case, job.backend);
                    let took = begun.elapsed().as_secs_f64();
                    let name = job.case.path(job.backend.name);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    let (row, column) = job.cell;
                    match outcome {
                        Ok(()) => {
                            println!("test {name} ... ok <{took:.1}s>");
                            done.0[row][column].note(Cell::Ok);
                        }
                        Err(why) => {
                            println!("test {name} ... FAILED <{took:.1}s>");
                            done.0[row][column].note(Cell::Fail);
                            done.1.push((name, why));
                        }
                    }
                }
            });
        }
    });
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.1
}

/// Runs a case on a thread that is left behind if it gets stuck.
fn run(case: &Case, backend: &'static Backend) -> Result<(), String> {
    let (done, outcome) = mpsc::channel();
    let (run, time) = (case.run, case.time);
    let thread = thread::Builder::new().name(case.path(backend.name));
    let spawned = thread.spawn(move || {
        PANIC.with_borrow_mut(|panic| *panic = Some(String::new()));
        let ran = catch_unwind(AssertUnwindSafe(|| drive(run, time, backend)));
        let ran = ran.unwrap_or_else(|_| {
            let panic = PANIC.with_borrow_mut(Option::take);
            Err(panic.unwrap_or_default())
        });
        // Nobody listens any more if it took too long.
        let _told = done.send(ran);
    });
    spawned.map_err(|error| format!("no thread: {error}"))?;
    let longest = LIMIT + STUCK;
    outcome
        .recv_timeout(longest)
        .unwrap_or_else(|_| Err(format!("stuck: not even its clock ticked within {longest:?}")))
}

fn drive(
    run: fn(Fixture) -> std::pin::Pin<Box<dyn Future<Output = ()>>>,
    time: Time,
    backend: &'static Backend,
) -> Result<(), String> {
    let runtime = runtime(time, backend);
    let case = run(Fixture::new(backend));
    let ended = runtime.block_on(async { tokio::time::timeout(LIMIT, case).await });
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended.map_err(|_elapsed| format!("did not end within {LIMIT:?}"))
}

fn runtime(time: Time, backend: &Backend) -> Runtime {
    let mut builder = match (time, backend.time) {
        (Time::Virtual, Time::Virtual) => {
            let mut builder = Builder::new_current_thread();
            builder.start_paused(true);
            builder
        }
        _ => {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(2);
            builder
        }
    };
    let runtime = builder.enable_all().build();
    runtime.expect("the system gives what a runtime needs")
}

/// Keeps the panic of a case for its report, and shows those of other threads.
fn note_panic(info: &std::panic::PanicHookInfo<'_>) {
    let is_on_purpose =
        info.payload().downcast_ref::<String>().is_some_and(|text| text.starts_with(ON_PURPOSE));
    if is_on_purpose {
        return;
    }
    let is_noted = PANIC
        .with_borrow_mut(|panic| panic.as_mut().map(|noted| *noted = info.to_string()).is_some());
    if !is_noted {
        eprintln!("{info}");
    }
}

/// Prints the table, and writes it to its place if it has one. Returns how many cells a filter left out.
fn report(cases: &[Case], table: Vec<Vec<Cell>>) -> io::Result<usize> {
    let left_out = table.iter().flatten().filter(|cell| **cell == Cell::LeftOut).count();
    let mut rows: Vec<_> = cases.iter().zip(table).collect();
    rows.retain(|(_, cells)| cells.iter().any(|cell| cell.has_run()));
    let table = table::render(&rows);
    println!("\n{table}");
    if let Some(path) = table::place(left_out) {
        table::write(&path, &table)?;
    }
    Ok(left_out)
}

/// What was run.
struct Counts {
    run: usize,
    failed: usize,
    took: Duration,
}

/// The last line, as the usual runner has it.
fn sum_up(written: io::Result<usize>, counts: &Counts) -> ExitCode {
    if let Err(error) = &written {
        println!("cannot write the table: {error}");
    }
    let is_ok = counts.failed == 0 && written.is_ok();
    println!(
        "\ntest result: {}. {} passed; {} failed; 0 ignored; 0 measured; {} filtered out; finished in {:.2}s\n",
        if is_ok { "ok" } else { "FAILED" },
        counts.run - counts.failed,
        counts.failed,
        written.unwrap_or(0),
        counts.took.as_secs_f64()
    );
    if is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// This binary as a server or a client that a case kills.
fn play(part: doomed::Part, target: &str) -> ExitCode {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the system gives what a runtime needs");
    match runtime.block_on(doomed::play(part, target)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
