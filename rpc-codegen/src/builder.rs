//! The options of a build script, and the order of work: read, ask prost, build the model, emit, write.

mod files;
mod messages;
mod stubs;

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    path::{Path, PathBuf},
};

use crate::{
    collisions,
    emit::{self, Stubs},
    error::{Cause, Error},
    messages::{MessageOptions, Messages},
    model::Service,
    output::{self, Output, Packages},
    parse,
    select::selects,
    sources::Sources,
};

/// Begins with the default options: clients and servers, `bytes` as `Bytes`, files into `OUT_DIR`.
pub fn configure() -> Builder {
    Builder {
        out_dir: None,
        include_file: None,
        descriptor_set: None,
        emit_rerun_if_changed: true,
        stubs: Stubs::default(),
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
    include_file: Option<PathBuf>,
    descriptor_set: Option<PathBuf>,
    emit_rerun_if_changed: bool,
    stubs: Stubs,
    messages: MessageOptions,
}

/// # Generating
impl Builder {
    /// Generates code for the files and all that they import, and tells Cargo to watch each file that was read.
    ///
    /// `protos` are paths, relative to the working directory or to an include path. Imports are looked for in the
    /// `includes`, in their order. A build script may call this several times: packages of all calls are in the one module
    /// tree of the output folder, and a package of several calls has the items of all.
    ///
    /// # Errors
    ///
    /// When no file is named; when an include path does not exist; when a file cannot be read or is not valid protobuf; when it asks for something that is not supported, such as
    /// streaming; when an option has no meaning in Rust; when an item was generated differently by an earlier call; when the
    /// output cannot be written. Nothing is written then, except for errors of writing itself.
    pub fn compile(
        self,
        protos: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> Result<(), Error> {
        self.stubs.check()?;
        let sources = Sources::open(protos, includes)?;
        collisions::check(&self.messages, &sources)?;
        let messages = Messages::generate(&self.messages, &sources)?;
        let packages = self.packages(messages, &sources)?;
        let out_dir = self
            .out_dir
            .or_else(|| env::var_os("OUT_DIR").map(PathBuf::from))
            .ok_or(Cause::OutDir)?;
        let descriptor_set = self.descriptor_set.as_deref();
        let output = Output {
            packages,
            include_file: self.include_file.as_deref(),
            descriptor_set: descriptor_set.map(|path| (path, sources.descriptor_set())),
        };
        output::write(&out_dir, output)?;
        if self.emit_rerun_if_changed {
            for path in sources.paths() {
                println!("cargo:rerun-if-changed={}", path.display());
            }
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
        collisions::check(&self.messages, &sources)?;
        let messages = Messages::generate(&self.messages, &sources)?;
        self.model(messages.services, &sources)
    }

    fn model(
        &self,
        mut recorded: Vec<prost_build::Service>,
        sources: &Sources,
    ) -> Result<Vec<Service>, Error> {
        recorded.retain(|service| !self.messages.is_extern(&service.package));
        let mut services = parse::services(recorded, sources)?;
        for service in &mut services {
            self.silence(service);
        }
        Ok(services)
    }

    /// prost does the same for messages.
    fn silence(&self, service: &mut Service) {
        let name = service.full_name();
        let is_silent =
            |item: &str| self.messages.disable_comments.iter().any(|path| selects(path, item));
        if is_silent(&name) {
            service.comments.clear();
        }
        for method in &mut service.methods {
            if is_silent(&format!("{name}.{}", method.proto_name)) {
                method.comments.clear();
            }
        }
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
            let text = emit::package(&name, items, services, &self.stubs)?;
            packages.insert(name, text);
        }
        Ok(packages)
    }
}
