//! What can go wrong between a list of `.proto` files and the written Rust files, and where in the files it did.
//!
//! Owns the texts. Does not decide what is wrong: the modules that read and write do.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// Why nothing was generated.
///
/// The text begins with file and line wherever there is one, and ends with what to do about it. Several problems of one
/// kind of check are reported together, one to a line. `Debug` prints the same text, because that is what Cargo shows
/// when a build script's `main` returns this error or unwraps it.
pub struct Error {
    cause: Box<Cause>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Cause {
    #[error("no .proto file is named: give the path of at least one")]
    NoFiles,
    #[error("{}", missing_text(.0))]
    NoSuchFile(PathBuf),
    #[error("{}", include_text(.0))]
    NoSuchInclude(PathBuf),
    #[error(
        "cannot find {} in the working directory or in an include path ({})",
        .file.display(), list(.includes)
    )]
    FileNotFound { file: PathBuf, includes: Vec<PathBuf> },
    #[error("{}", protobuf_text(.path.as_deref(), .source))]
    Protobuf {
        /// Where the file of the error is, if it was found.
        path: Option<PathBuf>,
        source: protox::Error,
    },
    #[error("{}; {remedy}", protobuf_text(.path.as_deref(), .source))]
    ImportNotFound { path: Option<PathBuf>, source: protox::Error, remedy: Remedy },
    #[error("{}", lines(.0))]
    Problems(Vec<Problem>),
    #[error(
        "extern path `{path}` for `{proto}` is not an absolute Rust path: let it begin with `::` or `crate::`"
    )]
    ExternPath { proto: String, path: String },
    #[error("cannot generate messages: {0}; check the paths given to `extern_path`")]
    Prost(io::Error),
    #[error(
        "messages of package `{package}` are not valid Rust: {source}; check the attributes given to \
         `type_attribute`, `message_attribute`, `enum_attribute` and `field_attribute`"
    )]
    Messages { package: String, source: syn::Error },
    #[error(
        "`{text}`, given to `{option}`, is not an attribute: {source}; write it as in Rust, `#[..]`"
    )]
    Attribute { option: &'static str, text: String, source: syn::Error },
    #[error(
        "`{}`, given to `include_file`, is not the name of a file for the output folder: give a name \
         without a folder that does not begin with `verbwire-`",
        .0.display()
    )]
    IncludeFile(PathBuf),
    #[error(
        "{} was already written with other descriptors: name all files in one call of `compile`, or give the \
         second call another path",
        .0.display()
    )]
    DescriptorSetTwice(PathBuf),
    #[error("packages `{first}` and `{second}` have the same Rust module `{module}`: rename one")]
    PackageNames { first: String, second: String, module: String },
    #[error(
        "`{item}` of package `{package}` was already generated into {}, with other content: give both calls of \
         `compile` the same options, or the second one another `out_dir`",
        .out_dir.display()
    )]
    ItemTwice { item: String, package: String, out_dir: PathBuf },
    #[error("OUT_DIR is not set: call `out_dir` when running outside of a build script")]
    OutDir,
    #[error("cannot write {}: {source}", .path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// What to do about an import that was not found.
#[derive(Debug)]
pub(crate) struct Remedy {
    pub(crate) import: String,
    /// An include path with which it would be found.
    pub(crate) folder: Option<PathBuf>,
    /// The one file that was named, when its user named no include path.
    pub(crate) only_file: Option<PathBuf>,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.only_file, &self.folder) {
            (None, Some(folder)) => write!(f, "add {} to the include paths", folder.display()),
            (None, None) => {
                write!(f, "add the folder that contains {} to the include paths", self.import)
            }
            (Some(file), Some(folder)) => {
                write!(f, "call `configure().compile(&[{file:?}], &[{folder:?}])` instead")
            }
            (Some(file), None) => write!(
                f,
                "call `configure().compile(&[{file:?}], &[..])` instead, with the folder that contains {}",
                self.import
            ),
        }
    }
}

/// Something that is valid protobuf and cannot be generated.
#[derive(Debug, thiserror::Error)]
#[error("{at}: {what}")]
pub(crate) struct Problem {
    pub(crate) at: Location,
    pub(crate) what: Unsupported,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Unsupported {
    #[error(
        "methods `{first}` and `{second}` of service `{service}` have the same Rust name `{name}`: rename one"
    )]
    Methods { service: String, first: String, second: String, name: String },
    #[error("{first} and {second} have the same Rust name `{name}`: rename one")]
    Items { first: String, second: String, name: String },
    #[error(
        "services `{first}` and `{second}` have the same Rust module names, such as `{module}`: rename one"
    )]
    Services { first: String, second: String, module: String },
}

/// A place in a `.proto` file, as `file:line`.
#[derive(Debug)]
pub(crate) struct Location {
    pub(crate) file: String,
    pub(crate) line: Option<i32>,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.file),
            None => f.write_str(&self.file),
        }
    }
}

impl Error {
    /// The same for a user who named this file and no include path.
    pub(crate) fn of_only_file(mut self, file: &Path) -> Self {
        if let Cause::ImportNotFound { remedy, .. } = &mut *self.cause {
            remedy.only_file = Some(file.to_owned());
        }
        self
    }

    pub(crate) fn write(path: &Path, source: io::Error) -> Self {
        Self::from(Cause::Write { path: path.to_owned(), source })
    }
}

impl From<Cause> for Error {
    fn from(cause: Cause) -> Self {
        Self { cause: Box::new(cause) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.source()
    }
}

fn list(paths: &[PathBuf]) -> String {
    if paths.is_empty() {
        return "none was given".to_owned();
    }
    let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}

fn lines(problems: &[Problem]) -> String {
    let problems: Vec<_> = problems.iter().map(Problem::to_string).collect();
    problems.join("\n")
}

/// Build scripts run in the folder of their package, which not everybody knows.
fn missing_text(file: &Path) -> String {
    let file_text = file.display();
    if file.is_absolute() {
        return format!("{file_text} does not exist");
    }
    format!(
        "{file_text} does not exist in the working directory, which for a build script is the folder of its \
         Cargo.toml"
    )
}

fn include_text(path: &Path) -> String {
    let what = if path.exists() { "is not a folder" } else { "does not exist" };
    format!("include path {} {what}", path.display())
}

/// protox says the line in its `Debug` text only, and the name of the file as imports have it.
fn protobuf_text(path: Option<&Path>, source: &protox::Error) -> String {
    let mut text = format!("{source:?}");
    if let (Some(path), Some(name)) = (path, source.file())
        && let Some(rest) = text.strip_prefix(name)
    {
        text = format!("{}{rest}", path.display());
    }
    // Where a message may stand, a field of this name cannot.
    if let Some((at, _)) = text.split_once("expected ")
        && text.contains("'message'")
        && text.ends_with("but found 'edition'")
    {
        return format!("{at}protobuf editions are not supported, use syntax = \"proto3\"");
    }
    if source.to_string().ends_with("is not in any include path") {
        text.push_str("; add its folder, or one above it");
    }
    text
}
