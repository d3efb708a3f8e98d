//! From paths to parsed `.proto` files.
//!
//! Owns the descriptor pool, which keeps the custom options that prost's descriptor types drop, and the paths of the
//! files that were read. Does not judge what the files say beyond what protobuf itself forbids.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use protox::{
    Compiler,
    file::{ChainFileResolver, File, FileResolver, GoogleFileResolver, IncludeFileResolver},
    prost_reflect::DescriptorPool,
};

use crate::error::{Cause, Error, Location, Remedy};

const OPTIONS_NAME: &str = "verbwire/options.proto";
const OPTIONS_SOURCE: &str = include_str!("../proto/verbwire/options.proto");

/// All files of one call of `compile`, imports included.
pub(crate) struct Sources {
    pub(crate) pool: DescriptorPool,
    origins: HashMap<String, Origin>,
}

struct Origin {
    /// `None` for a file that is built in.
    path: Option<PathBuf>,
    /// `false` for a file that was only imported.
    requested: bool,
}

impl Sources {
    pub(crate) fn open(
        protos: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> Result<Self, Error> {
        if protos.is_empty() {
            return Err(Error::from(Cause::NoFiles));
        }
        let includes: Vec<&Path> = includes.iter().map(AsRef::as_ref).collect();
        if let Some(include) = includes.iter().find(|include| !include.is_dir()) {
            return Err(Error::from(Cause::NoSuchInclude(include.to_path_buf())));
        }
        for proto in protos {
            check_exists(proto.as_ref(), &includes)?;
        }
        let mut compiler = Compiler::with_file_resolver(resolver(&includes));
        if let Err(source) = compiler.open_files(protos) {
            return Err(Error::from(cause(source, &includes)));
        }
        let origins = compiler.files().map(|file| {
            let origin =
                Origin { path: file.path().map(Path::to_owned), requested: !file.is_import() };
            (file.name().to_owned(), origin)
        });
        Ok(Self { origins: origins.collect(), pool: compiler.descriptor_pool() })
    }

    /// Paths of the files that were read, in the order in which they depend on each other.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.pool.files().filter_map(|file| self.origins.get(file.name())?.path.as_deref())
    }

    /// All files, encoded as a `google.protobuf.FileDescriptorSet`, with comments and custom options.
    pub(crate) fn descriptor_set(&self) -> Vec<u8> {
        self.pool.encode_to_vec()
    }

    /// Whether the file was named in the call, and not only imported.
    pub(crate) fn is_requested(&self, file: &str) -> bool {
        self.origins.get(file).is_some_and(|origin| origin.requested)
    }

    /// Where the item with this descriptor path begins in the file.
    pub(crate) fn locate(&self, file: &str, item: &[i32]) -> Location {
        let path = self.origins.get(file).and_then(|origin| origin.path.as_deref());
        let line = self.pool.get_file_by_name(file).and_then(|descriptor| {
            let source = descriptor.file_descriptor_proto().source_code_info.as_ref()?;
            let location = source.location.iter().find(|at| at.path == item)?;
            location.span.first().map(|line| line + 1)
        });
        Location {
            file: path.map_or_else(|| file.to_owned(), |path| path.display().to_string()),
            line,
        }
    }
}

/// protox would call a file that does not exist "not in any include path", which sends people looking in the wrong place.
fn check_exists(proto: &Path, includes: &[&Path]) -> Result<(), Error> {
    let is_built_in = proto == Path::new(OPTIONS_NAME);
    let is_included = || includes.iter().any(|include| include.join(proto).is_file());
    if is_built_in || proto.is_file() || is_included() {
        return Ok(());
    }
    Err(Error::from(Cause::FileNotFound {
        file: proto.to_owned(),
        includes: includes.iter().map(|path| path.to_path_buf()).collect(),
    }))
}

/// protox's error with where its file is, and for an import with what to do.
fn cause(source: protox::Error, includes: &[&Path]) -> Cause {
    let name = source.file().unwrap_or_default();
    let path = includes.iter().map(|include| include.join(name)).find(|path| path.is_file());
    let text = source.to_string();
    let import = text.strip_prefix("import '").and_then(|rest| rest.strip_suffix("' not found"));
    let Some(import) = import else {
        return Cause::Protobuf { path, source };
    };
    // Most often it is relative to a folder above the file that imports it.
    let above = path.iter().flat_map(|path| path.ancestors().skip(1));
    let folder = above.into_iter().find(|folder| folder.join(import).is_file());
    let folder = folder.map(|folder| {
        let is_here = folder.as_os_str().is_empty();
        if is_here { PathBuf::from(".") } else { folder.to_owned() }
    });
    let remedy = Remedy { import: import.to_owned(), folder, only_file: None };
    Cause::ImportNotFound { path, source, remedy }
}

fn resolver(includes: &[&Path]) -> ChainFileResolver {
    let mut resolver = ChainFileResolver::new();
    // First, so that a copy of another version in the user's tree cannot disagree with this generator.
    resolver.add(BuiltInOptions);
    for include in includes {
        resolver.add(IncludeFileResolver::new(include.to_path_buf()));
    }
    resolver.add(GoogleFileResolver::new());
    resolver
}

/// Serves `verbwire/options.proto` from memory.
struct BuiltInOptions;

impl FileResolver for BuiltInOptions {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        if name == OPTIONS_NAME {
            File::from_source(OPTIONS_NAME, OPTIONS_SOURCE)
        } else {
            Err(protox::Error::file_not_found(name))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROTOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/protos");

    fn names(sources: &Sources) -> Vec<&Path> {
        sources.paths().map(|path| path.strip_prefix(PROTOS).unwrap()).collect()
    }

    #[test]
    fn imports_are_among_the_files_that_cargo_has_to_watch() {
        let sources = Sources::open(&["packages.proto"], &[PROTOS]).unwrap();
        let expected =
            ["parts/more_items.proto", "parts/items.proto", "no_package.proto", "packages.proto"];
        assert_eq!(names(&sources), expected.map(Path::new));
    }

    #[test]
    fn built_in_files_are_not() {
        let sources = Sources::open(&["hints.proto", "well_known.proto"], &[PROTOS]).unwrap();
        let expected = ["hints.proto", "well_known.proto"];
        assert_eq!(names(&sources), expected.map(Path::new));
    }

    #[test]
    fn lines_are_counted_from_one() {
        let sources = Sources::open(&["greeter.proto"], &[PROTOS]).unwrap();
        // Field 6 of a file is its services, field 2 of a service its methods.
        let at = sources.locate("greeter.proto", &[6, 0, 2, 1]);
        assert_eq!(at.line, Some(11));
        assert!(at.file.ends_with("protos/greeter.proto"));
    }
}
