//! Messages and enums, by prost-build.
//!
//! Owns the options that prost takes. Services are only recorded: prost is asked for the Rust names and types that belong to
//! them, since nobody else can name the messages as it does.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    rc::Rc,
};

use prost_build::{Config, Module, ServiceGenerator};

use crate::{
    comments,
    error::{Cause, Error},
    names,
    select::selects,
    sources::Sources,
};

/// The message of `verbwire/options.proto`.
const HINTS: &str = ".verbwire.MethodOptions";

/// What the user wants of messages. Paths are in prost's notation: `.package.Message.field`, or any end of it.
#[derive(Debug, Clone)]
pub(crate) struct MessageOptions {
    pub(crate) bytes: Vec<String>,
    pub(crate) btree_map: Vec<String>,
    pub(crate) boxed: Vec<String>,
    pub(crate) type_attributes: Vec<(String, String)>,
    pub(crate) message_attributes: Vec<(String, String)>,
    pub(crate) enum_attributes: Vec<(String, String)>,
    pub(crate) field_attributes: Vec<(String, String)>,
    pub(crate) extern_paths: Vec<(String, String)>,
    pub(crate) skip_debug: Vec<String>,
    pub(crate) disable_comments: Vec<String>,
    pub(crate) well_known_types: WellKnownTypes,
    pub(crate) enum_prefix: EnumPrefix,
    pub(crate) type_names: TypeNames,
}

/// Where the types of `google.protobuf` come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum WellKnownTypes {
    /// `prost-types`, and what Rust has itself.
    #[default]
    Ready,
    /// Generated as all others.
    Compiled,
}

/// What becomes of the enum's name in the names of its values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum EnumPrefix {
    #[default]
    Stripped,
    Retained,
}

/// Whether messages know their protobuf names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum TypeNames {
    #[default]
    Omitted,
    Implemented,
}

impl Default for MessageOptions {
    fn default() -> Self {
        Self {
            bytes: vec![".".to_owned()],
            btree_map: Vec::new(),
            boxed: Vec::new(),
            type_attributes: Vec::new(),
            message_attributes: Vec::new(),
            enum_attributes: Vec::new(),
            field_attributes: Vec::new(),
            extern_paths: Vec::new(),
            skip_debug: Vec::new(),
            disable_comments: Vec::new(),
            well_known_types: WellKnownTypes::default(),
            enum_prefix: EnumPrefix::default(),
            type_names: TypeNames::default(),
        }
    }
}

impl MessageOptions {
    /// Whether the type, or all types of the package, are taken from elsewhere.
    pub(crate) fn is_extern(&self, full_name: &str) -> bool {
        let is_ready = self.well_known_types == WellKnownTypes::Ready;
        let built_in = [(is_ready, ".google.protobuf"), (true, HINTS)];
        let built_in =
            built_in.into_iter().filter_map(|(is_extern, path)| is_extern.then_some(path));
        let given = self.extern_paths.iter().map(|(path, _)| path.as_str());
        built_in.chain(given).any(|path| path.starts_with('.') && selects(path, full_name))
    }

    fn config(&self) -> Result<Config, Error> {
        let mut config = Config::new();
        config
            .prost_path("::verbwire::codegen::prost")
            .prost_types_path("::verbwire::codegen::prost_types")
            .bytes(&self.bytes)
            .btree_map(&self.btree_map)
            .skip_debug(&self.skip_debug)
            .disable_comments(&self.disable_comments)
            // Hints, read here and of no use at run time. The path does not exist: nobody sends such a message.
            .extern_path(HINTS, "::verbwire::codegen::MethodOptions");
        if self.well_known_types == WellKnownTypes::Compiled {
            config.compile_well_known_types();
        }
        if self.enum_prefix == EnumPrefix::Retained {
            config.retain_enum_prefix();
        }
        if self.type_names == TypeNames::Implemented {
            config.enable_type_names();
        }
        for path in &self.boxed {
            config.boxed(path);
        }
        self.add_attributes(&mut config);
        self.add_extern_paths(&mut config)?;
        Ok(config)
    }

    fn add_attributes(&self, config: &mut Config) {
        for (path, attribute) in &self.type_attributes {
            config.type_attribute(path, attribute);
        }
        for (path, attribute) in &self.message_attributes {
            config.message_attribute(path, attribute);
        }
        for (path, attribute) in &self.enum_attributes {
            config.enum_attribute(path, attribute);
        }
        for (path, attribute) in &self.field_attributes {
            config.field_attribute(path, attribute);
        }
    }

    fn add_extern_paths(&self, config: &mut Config) -> Result<(), Error> {
        for (proto, path) in &self.extern_paths {
            // The same text is used in modules of any depth.
            let is_absolute = path.starts_with("::") || path.starts_with("crate::");
            if !is_absolute || syn::parse_str::<syn::Path>(path).is_err() {
                return Err(Error::from(Cause::ExternPath {
                    proto: proto.clone(),
                    path: path.clone(),
                }));
            }
            config.extern_path(proto, path);
        }
        Ok(())
    }
}

/// prost's part of the output.
pub(crate) struct Messages {
    /// Rust text by package. A package without messages may be missing.
    pub(crate) packages: BTreeMap<String, String>,
    /// In the order of files and, in a file, of services.
    pub(crate) services: Vec<prost_build::Service>,
}

impl Messages {
    /// Asks prost.
    pub(crate) fn generate(options: &MessageOptions, sources: &Sources) -> Result<Messages, Error> {
        let recorder = Recorder::default();
        let mut config = options.config()?;
        config.service_generator(Box::new(recorder.clone()));

        let mut packages: HashMap<Module, String> = HashMap::new();
        let mut requests = Vec::new();
        for file in sources.pool.files() {
            let mut descriptor = file.file_descriptor_proto().clone();
            comments::mark_code(&mut descriptor);
            let package = descriptor.package().to_owned();
            let module = Module::from_protobuf_package_name(&package);
            if let Some(other) = packages.insert(module.clone(), package.clone())
                && other != package
            {
                return Err(package_clash(other, package));
            }
            requests.push((module, descriptor));
        }

        let modules = config.generate(requests).map_err(Cause::Prost)?;
        let mut package_of =
            |module: Module| packages.remove(&module).expect("prost returns modules of its input");
        let packages =
            modules.into_iter().map(|(module, text)| (package_of(module), text)).collect();
        let services = recorder.services.take();
        Ok(Messages { packages, services })
    }
}

/// Both would go into one file, and into one module of the tree.
pub(crate) fn package_clash(first: String, second: String) -> Error {
    Error::from(Cause::PackageNames { module: names::module(&first), first, second })
}

/// Keeps the services that prost shows to it, and writes nothing.
#[derive(Clone, Default)]
struct Recorder {
    services: Rc<RefCell<Vec<prost_build::Service>>>,
}

impl ServiceGenerator for Recorder {
    fn generate(&mut self, service: prost_build::Service, _buf: &mut String) {
        self.services.borrow_mut().push(service);
    }
}
