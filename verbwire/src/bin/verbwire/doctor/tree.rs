//! Reading files below a root folder that nobody vouches for: they may be missing, vanish, hold any bytes, or be no files.
//!
//! Owns the root, so that a made-up tree or a copy of another machine's can stand in for `/`. Knows no file by name.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Longest part of a file that is read. The longest that are looked at, lists of modules and routes, are some KiB.
const LONGEST: u64 = 256 * 1024;

/// A folder in the place of `/`.
#[derive(Debug, Clone)]
pub(super) struct Tree(PathBuf);

/// What opening a device file for reading and writing gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Access {
    Opens,
    Missing,
    /// The system's words.
    Refused(String),
}

impl Tree {
    pub(super) fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    pub(super) fn is_this_machine(&self) -> bool {
        self.0 == Path::new("/")
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.at(path).exists()
    }

    pub(super) fn is_folder(&self, path: &str) -> bool {
        self.at(path).is_dir()
    }

    /// The file's text without the space around it. `None` if it is not there, cannot be read (as an unused GID's kind), or
    /// is no plain file: reading a pipe would never end. Bytes that are not UTF-8 become replacement characters.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let path = self.at(path);
        if !fs::metadata(&path).ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(LONGEST).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The file's only number, decimal or behind `0x`.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        let text = self.text(path)?;
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// The names in a folder, `2` before `10`; none if it cannot be read.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.at(path)) else { return Vec::new() };
        let mut names: Vec<String> = entries
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .collect();
        names.sort_by_key(|name| (name.parse::<u32>().unwrap_or(u32::MAX), name.clone()));
        names
    }

    /// The last name of what a symbolic link points to, as `mlx5_core` of `device/driver`.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.at(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// Tries to open a device file, as the libraries will, and closes it again.
    pub(super) fn access(&self, path: &str) -> Access {
        match OpenOptions::new().read(true).write(true).open(self.at(path)) {
            Ok(_) => Access::Opens,
            Err(error) if error.kind() == ErrorKind::NotFound => Access::Missing,
            Err(error) => Access::Refused(error.to_string()),
        }
    }
}
