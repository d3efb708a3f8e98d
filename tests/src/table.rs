//! The table of the suite: cases by transports.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;

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
    fn text(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Fail => "FAIL",
            Self::Lacks(_) => "-",
            Self::LeftOut => "",
        }
    }
}

/// The table as text; `rows` has one cell per transport and case.
pub fn render(rows: &[(&Case, Vec<Cell>)]) -> String {
    let title = |case: &Case| format!("{}: {}", case.topic, case.name.replace('_', " "));
    let width = rows.iter().map(|(case, _)| title(case).len()).max().unwrap_or(0);
    let mut out = format!("{:width$}", "conformance");
    for backend in BACKENDS {
        push(&mut out, backend.name, backend.name.len());
    }
    out.push('\n');
    for (case, cells) in rows {
        let mut line = format!("{:width$}", title(case));
        for (backend, cell) in BACKENDS.iter().zip(cells) {
            push(&mut line, cell.text(), backend.name.len());
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out.push_str(&reasons(rows));
    out
}

fn push(line: &mut String, text: &str, width: usize) {
    write!(line, "  {text:width$}").expect("a String takes all text");
}

/// What the dashes mean.
fn reasons(rows: &[(&Case, Vec<Cell>)]) -> String {
    let mut out = String::new();
    for (column, backend) in BACKENDS.iter().enumerate() {
        let mut seen = Vec::new();
        for (_, cells) in rows {
            if let Cell::Lacks(reason) = cells[column]
                && !seen.contains(&reason)
            {
                seen.push(reason);
            }
        }
        if !seen.is_empty() {
            writeln!(out, "-  {}: {}", backend.name, seen.join("; "))
                .expect("a String takes all text");
        }
    }
    out
}

/// Writes the table to where `make test` looks for it.
///
/// # Errors
///
/// The file cannot be written.
pub fn write(table: &str) -> io::Result<()> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .with_file_name("target")
        .join("conformance/table.txt");
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, table)
}
