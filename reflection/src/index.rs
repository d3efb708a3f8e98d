//! Where everything is declared. Owns the encoded files; does not know requests.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::builder::Error;
use crate::declared::Declared;

/// All files, and what is in which.
#[derive(Debug, Default)]
pub(crate) struct Index {
    files: Vec<File>,
    by_name: BTreeMap<String, Position>,
    by_symbol: BTreeMap<String, Position>,
    /// By the extended message and the number.
    by_extension: BTreeMap<String, BTreeMap<i32, Position>>,
    /// Those that are listed, in the order of their declarations.
    services: Vec<String>,
}

/// Of a file, in the order in which they were added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Position(usize);

#[derive(Debug)]
struct File {
    bytes: Bytes,
    imports: Vec<String>,
}

/// Encoded files, that which was asked for first, and after it all that it imports.
pub(crate) type Files = Vec<Bytes>;

impl Index {
    /// Adds a file that is not there yet.
    pub(crate) fn add(&mut self, declared: Declared, bytes: Bytes) -> Result<(), Error> {
        let Declared { file, imports, symbols, services, extensions } = declared;
        let position = Position(self.files.len());
        match self.by_name.entry(file) {
            Entry::Vacant(free) => free.insert(position),
            Entry::Occupied(taken) => {
                let known = &self.by_symbol;
                return match symbols.into_iter().find(|symbol| !known.contains_key(symbol)) {
                    Some(symbol) => Err(Error::SameName { file: taken.key().clone(), symbol }),
                    None => Ok(()),
                };
            }
        };
        self.files.push(File { bytes, imports });
        // The same file may be there under another name, compiled with another include path: the first counts.
        self.services.extend(services.into_iter().filter(|new| !self.by_symbol.contains_key(new)));
        for symbol in symbols {
            self.by_symbol.entry(symbol).or_insert(position);
        }
        for (extended, number) in extensions {
            self.by_extension.entry(extended).or_default().entry(number).or_insert(position);
        }
        Ok(())
    }

    /// Whether everything that files import is there.
    pub(crate) fn check_imports(&self) -> Result<(), Error> {
        for (name, position) in &self.by_name {
            let imports = &self.files[position.0].imports;
            if let Some(import) = imports.iter().find(|import| !self.by_name.contains_key(*import))
            {
                return Err(Error::MissingImport { file: name.clone(), import: import.clone() });
            }
        }
        Ok(())
    }

    /// Lists these services and no others.
    pub(crate) fn list_only(&mut self, listed: Vec<String>) -> Result<(), Error> {
        match listed.iter().find(|name| !self.services.contains(name)) {
            Some(unknown) => Err(Error::NoSuchService(unknown.clone())),
            None => {
                self.services = listed;
                Ok(())
            }
        }
    }

    pub(crate) fn services(&self) -> &[String] {
        &self.services
    }

    pub(crate) fn file(&self, name: &str) -> Option<Files> {
        Some(self.with_imports(*self.by_name.get(name)?))
    }

    pub(crate) fn file_of_symbol(&self, symbol: &str) -> Option<Files> {
        Some(self.with_imports(*self.by_symbol.get(symbol)?))
    }

    pub(crate) fn file_of_extension(&self, extended: &str, number: i32) -> Option<Files> {
        Some(self.with_imports(*self.by_extension.get(extended)?.get(&number)?))
    }

    /// The numbers of the extensions of a message; `None` if there is nothing of this name.
    pub(crate) fn extension_numbers(&self, extended: &str) -> Option<Vec<i32>> {
        match self.by_extension.get(extended) {
            Some(numbers) => Some(numbers.keys().copied().collect()),
            None => self.by_symbol.contains_key(extended).then(Vec::new),
        }
    }

    fn with_imports(&self, position: Position) -> Files {
        let mut order = vec![position];
        let mut seen = BTreeSet::from([position]);
        let mut next = 0;
        while let Some(&Position(at)) = order.get(next) {
            let imports = self.files[at].imports.iter();
            order.extend(
                imports.filter_map(|name| self.by_name.get(name)).filter(|at| seen.insert(**at)),
            );
            next += 1;
        }
        order.into_iter().map(|Position(at)| self.files[at].bytes.clone()).collect()
    }
}
