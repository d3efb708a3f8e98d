//! The options of a build script, and the order of work: read, ask prost, build the model, emit, write.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    path::{Path, PathBuf},
};

use crate::{
    emit::{self, Stubs},
    error::{Cause, Error},
    messages::{self, MessageOptions, Messages},
    model::Service,
    output::{self, Packages},
    parse,
    sources::Sources,
};

/// Begins with the default options: clients and servers, `bytes` as `Bytes`, files into `OUT_DIR`.
pub fn configure() -> Builder {
    Builder {
        out_dir: None,
        stubs: Stubs { client: true, server: true },
        messages: MessageOptions::default(),
    }
}

/// Options of the generator. Begin with [`configure`], end with [`compile`](Self::compile).
///
/// Where an option takes paths of protobuf items, they are written as in prost: `.package.Message.field` is one item and all
/// that it contains, `.` is everything, and without the leading dot the end of the path is compared.
#[derive(Debug, Clone)]
#[must_use = "nothing is generated before `compile` is called"]
pub struct Builder {
    out_dir: Option<PathBuf>,
    stubs: Stubs,
    messages: MessageOptions,
}

impl Builder {
    /// Writes into this folder, and makes it if needed, instead of the `OUT_DIR` of the build script.
    ///
    /// The macros of the `verbwire` crate look into `OUT_DIR` only. Include `verbwire-protos.rs` of another folder with
    /// `include!`; it holds the module tree.
    pub fn out_dir(mut self, out_dir: impl Into<PathBuf>) -> Self {
        self.out_dir = Some(out_dir.into());
        self
    }

    /// Whether clients are generated. They are by default.
    pub fn build_client(mut self, enable: bool) -> Self {
        self.stubs.client = enable;
        self
    }

    /// Whether service traits and servers are generated. They are by default. Without them, clients have no `in_process`.
    pub fn build_server(mut self, enable: bool) -> Self {
        self.stubs.server = enable;
        self
    }

    /// The `bytes` fields that become `Bytes`, which is a reference into the received message; all others become `Vec<u8>`,
    /// which is a copy. Replaces the default, `["."]`.
    pub fn bytes<P: Into<String>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        self.messages.bytes = paths.into_iter().map(Into::into).collect();
        self
    }

    /// The map fields that become `BTreeMap`. All others become `HashMap`, with which two encodings of one message may
    /// differ.
    pub fn btree_map<P: Into<String>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        self.messages.btree_map = paths.into_iter().map(Into::into).collect();
        self
    }

    /// Adds an attribute, such as `#[derive(serde::Serialize)]`, to messages, enums and oneofs.
    pub fn type_attribute(mut self, path: impl Into<String>, attribute: impl Into<String>) -> Self {
        let attribute = (path.into(), attribute.into());
        self.messages.type_attributes.push(attribute);
        self
    }

    /// Adds an attribute to fields.
    pub fn field_attribute(
        mut self,
        path: impl Into<String>,
        attribute: impl Into<String>,
    ) -> Self {
        let attribute = (path.into(), attribute.into());
        self.messages.field_attributes.push(attribute);
        self
    }

    /// Takes the types of a package, or one type, from elsewhere instead of generating them: `.common`, `::common_protos`.
    ///
    /// Services of such a package are not generated either. The Rust path begins with `::` or `crate::`.
    pub fn extern_path(mut self, proto: impl Into<String>, path: impl Into<String>) -> Self {
        let path = (proto.into(), path.into());
        self.messages.extern_paths.push(path);
        self
    }

    /// Generates code for the files and all that they import, and tells Cargo to watch each file that was read.
    ///
    /// `protos` are paths, relative to the working directory or to an include path. Imports are looked for in the
    /// `includes`, in their order. A build script may call this several times; packages of all calls are in the one module
    /// tree of the output folder.
    ///
    /// # Errors
    ///
    /// When no file is named; when an include path does not exist; when a file cannot be read or is not valid protobuf; when it asks for something that is not supported, such as
    /// streaming; when an option has no meaning in Rust; when a package was generated differently by an earlier call; when the
    /// output cannot be written. Nothing is written then, except for errors of writing itself.
    pub fn compile(
        self,
        protos: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> Result<(), Error> {
        let sources = Sources::open(protos, includes)?;
        let messages = messages::generate(&self.messages, &sources)?;
        let packages = self.packages(messages, &sources)?;
        let out_dir = self
            .out_dir
            .or_else(|| env::var_os("OUT_DIR").map(PathBuf::from))
            .ok_or(Cause::OutDir)?;
        output::write(&out_dir, packages)?;
        for path in sources.paths() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
        Ok(())
    }

    /// Describes the services of the files instead of generating them: the input for another emitter, such as tonic's.
    ///
    /// # Errors
    ///
    /// As [`compile`](Self::compile), except for those of the output.
    pub fn services(
        &self,
        protos: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> Result<Vec<Service>, Error> {
        let sources = Sources::open(protos, includes)?;
        let messages = messages::generate(&self.messages, &sources)?;
        self.model(messages.services, &sources)
    }

    fn model(
        &self,
        mut recorded: Vec<prost_build::Service>,
        sources: &Sources,
    ) -> Result<Vec<Service>, Error> {
        recorded.retain(|service| !self.messages.is_extern_package(&service.package));
        parse::services(recorded, sources)
    }

    fn packages(&self, messages: Messages, sources: &Sources) -> Result<Packages, Error> {
        let services = self.model(messages.services, sources)?;
        let mut by_package: BTreeMap<&str, Vec<&Service>> = BTreeMap::new();
        for service in &services {
            by_package.entry(&service.package).or_default().push(service);
        }

        // A package that was asked for has a file even if there is nothing in it, so that it can be included.
        let requested = sources.pool.files().filter_map(|file| {
            let is_requested = sources.is_requested(file.name());
            is_requested.then(|| file.package_name().to_owned())
        });
        let mut names: BTreeSet<String> = requested.collect();
        names.extend(messages.packages.keys().cloned());
        names.extend(by_package.keys().map(|package| (*package).to_owned()));

        let mut packages = Packages::new();
        for name in names {
            let items = messages.packages.get(&name).map_or("", String::as_str);
            let services = by_package.get(name.as_str()).map_or(&[][..], Vec::as_slice);
            let text = emit::package(&name, items, services, self.stubs)?;
            packages.insert(name, text);
        }
        Ok(packages)
    }
}
