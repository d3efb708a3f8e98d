//! The table of the suite: cases by transports.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use crate::backends::BACKENDS;
use crate::case::Case;

/// What became of a case over a transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    /// It passed.
    Ok,
    /// It failed.
    Fail,
    /// It does not apply, for this reason.
    Lacks(&'static str),
    /// A filter left it out.
    LeftOut,
}

impl Cell {
    /// Whether the case has run.
    pub fn has_run(self) -> bool {
        matches!(self, Self::Ok | Self::Fail)
    }

    /// The case ran, perhaps not for the first time: one failure is a failure.
    pub fn note(&mut self, outcome: Self) {
        if *self != Self::Fail {
            *self = outcome;
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Fail => "FAIL",
            Self::Lacks(_) => "-",
            Self::LeftOut => "",
        }
    }
}

/// The table as text; `rows` has one cell per transport and case. Transports over which nothing ran have no
/// column.
pub fn render(rows: &[(&Case, Vec<Cell>)]) -> String {
    let title = |case: &Case| format!("{}: {}", case.topic, case.name.replace('_', " "));
    let width = rows.iter().map(|(case, _)| title(case).len()).max().unwrap_or(0);
    let columns: Vec<_> = (0..BACKENDS.len())
        .filter(|column| rows.iter().any(|(_, cells)| cells[*column].has_run()))
        .collect();
    let mut out = format!("{:width$}", "conformance");
    for column in &columns {
        let name = BACKENDS[*column].name;
        push(&mut out, name, name.len());
    }
    out.push('\n');
    for (case, cells) in rows {
        let mut line = format!("{:width$}", title(case));
        for column in &columns {
            push(&mut line, cells[*column].text(), BACKENDS[*column].name.len());
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    columns.iter().for_each(|column| out.push_str(&reasons(rows, *column)));
    out
}

fn push(line: &mut String, text: &str, width: usize) {
    write!(line, "  {text:width$}").expect("a String takes all text");
}

/// What the dashes in a column mean; nothing if there are none.
fn reasons(rows: &[(&Case, Vec<Cell>)], column: usize) -> String {
    let mut seen = Vec::new();
    for (_, cells) in rows {
        if let Cell::Lacks(reason) = cells[column]
            && !seen.contains(&reason)
        {
            seen.push(reason);
        }
    }
    if seen.is_empty() {
        return String::new();
    }
    format!("-  {}: {}\n", BACKENDS[column].name, seen.join("; "))
}

/// Where `make test` looks for the table: in the device lab what it collects, else the place of the whole
/// suite's, for which a part of it must not pass.
pub fn place(left_out: usize) -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("LAB_OUT") {
        return Some(PathBuf::from(folder).join("conformance.txt"));
    }
    let target = PathBuf::from(env!("CARGO_MANIFEST_DIR")).with_file_name("target");
    (left_out == 0).then(|| target.join("conformance/table.txt"))
}

/// Writes a table.
///
/// # Errors
///
/// The file cannot be written.
pub fn write(path: &Path, table: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, table)
}
