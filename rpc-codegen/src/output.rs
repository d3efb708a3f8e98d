//! The written files: one per package, and one that holds the module tree of all packages of a folder.
//!
//! Owns the record of what this process has written, which keeps two compile calls of one build script from overwriting each
//! other's files.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use crate::{
    error::{Cause, Error},
    messages,
    names::{self, TREE_FILE},
    package::PackageText,
};

/// By the name of the package.
pub(crate) type Packages = BTreeMap<String, PackageText>;

/// What one call of `compile` writes.
pub(crate) struct Output<'a> {
    pub(crate) packages: Packages,
    /// The name of a further file for the module tree.
    pub(crate) include_file: Option<&'a Path>,
    /// Where encoded descriptors go, and they.
    pub(crate) descriptor_set: Option<(&'a Path, Vec<u8>)>,
}

/// Everything that this process, which is one run of one build script, wrote. Calls of `compile` know nothing else of each
/// other, and files of earlier runs must not count.
static WRITTEN: Mutex<Written> =
    Mutex::new(Written { folders: BTreeMap::new(), descriptor_sets: BTreeMap::new() });

struct Written {
    folders: BTreeMap<PathBuf, Folder>,
    descriptor_sets: BTreeMap<PathBuf, Vec<u8>>,
}

#[derive(Default)]
struct Folder {
    packages: Packages,
    /// Packages by the name of the further file that holds their tree.
    trees: BTreeMap<PathBuf, BTreeSet<String>>,
}

/// Writes the packages, the tree of these and all that were written into the folder before, and what else the call wants.
pub(crate) fn write(out_dir: &Path, output: Output<'_>) -> Result<(), Error> {
    let Output { packages, include_file, descriptor_set } = output;
    if let Some(name) = include_file {
        check_include_file(name)?;
    }
    fs::create_dir_all(out_dir).map_err(|error| Error::write(out_dir, error))?;
    let folder = out_dir.canonicalize().map_err(|error| Error::write(out_dir, error))?;
    let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    let Written { folders, descriptor_sets } = &mut *written;
    let folder = folders.entry(folder).or_default();
    let packages = folder.merge(packages, out_dir)?;
    if let Some((path, set)) = descriptor_set {
        write_descriptor_set(path, set, descriptor_sets)?;
    }
    folder.write(out_dir, packages, include_file)
}

impl Folder {
    /// The packages with what earlier calls generated for them.
    fn merge(&self, added: Packages, out_dir: &Path) -> Result<Packages, Error> {
        let mut merged = Packages::new();
        for (package, text) in added {
            let module = names::module(&package);
            let is_same_module =
                |other: &&String| **other != package && names::module(other) == module;
            if let Some(other) = self.packages.keys().find(is_same_module) {
                return Err(messages::package_clash(other.clone(), package));
            }
            let text = match self.packages.get(&package).cloned() {
                None => text,
                Some(mut known) => {
                    let out_dir = out_dir.to_owned();
                    let twice = |item| Cause::ItemTwice { item, package: package.clone(), out_dir };
                    known.merge(text).map_err(twice)?;
                    known
                }
            };
            merged.insert(package, text);
        }
        Ok(merged)
    }

    fn write(
        &mut self,
        out_dir: &Path,
        packages: Packages,
        include_file: Option<&Path>,
    ) -> Result<(), Error> {
        if let Some(name) = include_file {
            let tree = self.trees.entry(name.to_owned()).or_default();
            tree.extend(packages.keys().cloned());
            write_tree(&out_dir.join(name), tree.iter())?;
        }
        for (package, text) in packages {
            let path = out_dir.join(names::package_file(&package));
            write_if_changed(&path, text.to_text().as_bytes())?;
            self.packages.insert(package, text);
        }
        write_tree(&out_dir.join(TREE_FILE), self.packages.keys())
    }
}

fn write_tree<'a>(path: &Path, packages: impl Iterator<Item = &'a String>) -> Result<(), Error> {
    write_if_changed(path, Tree::new(packages).to_text().as_bytes())
}

fn write_descriptor_set(
    path: &Path,
    set: Vec<u8>,
    written: &mut BTreeMap<PathBuf, Vec<u8>>,
) -> Result<(), Error> {
    if written.get(path).is_some_and(|known| *known != set) {
        return Err(Error::from(Cause::DescriptorSetTwice(path.to_owned())));
    }
    write_if_changed(path, &set)?;
    written.insert(path.to_owned(), set);
    Ok(())
}

/// A tree includes the files of packages by their names alone, so that it has to be in their folder.
fn check_include_file(name: &Path) -> Result<(), Error> {
    let is_file_name = name.file_name().is_some_and(|file| file == name.as_os_str());
    let is_ours = name.to_string_lossy().starts_with(names::FILE_PREFIX);
    if is_file_name && !is_ours {
        Ok(())
    } else {
        Err(Error::from(Cause::IncludeFile(name.to_owned())))
    }
}

/// An unchanged file keeps its time stamp, so that the user's crate is not compiled again.
fn write_if_changed(path: &Path, content: &[u8]) -> Result<(), Error> {
    match fs::read(path) {
        Ok(present) if present == content => Ok(()),
        Ok(_) => fs::write(path, content),
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::write(path, content),
        Err(error) => Err(error),
    }
    .map_err(|error| Error::write(path, error))
}

/// Modules of all packages, nested as the packages are.
#[derive(Default)]
struct Tree {
    /// The package whose items are in this module. A module that only holds others has none.
    package: Option<String>,
    modules: BTreeMap<String, Tree>,
}

impl Tree {
    fn new<'a>(packages: impl IntoIterator<Item = &'a String>) -> Self {
        let mut root = Self::default();
        for package in packages {
            let mut node = &mut root;
            for module in names::module(package).split("::").filter(|m| !m.is_empty()) {
                node = node.modules.entry(module.to_owned()).or_default();
            }
            node.package = Some(package.clone());
        }
        root
    }

    fn to_text(&self) -> String {
        let mut text = String::from("// @generated by verbwire-codegen.\n\n");
        self.append(0, &mut text);
        text
    }

    fn append(&self, depth: usize, text: &mut String) {
        let indent = "    ".repeat(depth);
        if let Some(package) = &self.package {
            // Relative to this file, so that the folder may be anywhere.
            let file = names::package_file(package);
            text.push_str(&format!("{indent}include!(\"{file}\");\n"));
        }
        for (name, module) in &self.modules {
            let doc = match &module.package {
                Some(package) => format!("Items of the protobuf package `{package}`."),
                None => "Protobuf packages.".to_owned(),
            };
            text.push_str(&format!("{indent}/// {doc}\n{indent}pub mod {name} {{\n"));
            module.append(depth + 1, text);
            text.push_str(&format!("{indent}}}\n"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_nests_packages_and_escapes_keywords() {
        let packages = ["", "a.b", "a.b.c", "gen.type"].map(str::to_owned);
        let text = Tree::new(&packages).to_text();
        let expected = "\
// @generated by verbwire-codegen.

include!(\"verbwire-package..rs\");
/// Protobuf packages.
pub mod a {
    /// Items of the protobuf package `a.b`.
    pub mod b {
        include!(\"verbwire-package.a.b.rs\");
        /// Items of the protobuf package `a.b.c`.
        pub mod c {
            include!(\"verbwire-package.a.b.c.rs\");
        }
    }
}
/// Protobuf packages.
pub mod r#gen {
    /// Items of the protobuf package `gen.type`.
    pub mod r#type {
        include!(\"verbwire-package.gen.type.rs\");
    }
}
";
        assert_eq!(text, expected);
    }
}
