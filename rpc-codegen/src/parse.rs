//! From descriptors to the model, and what the model cannot express.
//!
//! Rust names and types come from prost, options from the descriptor pool.

use std::collections::HashMap;

use protox::prost_reflect::{
    DescriptorPool, DynamicMessage, MethodDescriptor, ServiceDescriptor, Value,
};

use crate::{
    comments,
    error::{Cause, Error, Location, Problem, Unsupported},
    model::{Method, RustType, Service},
    names::{self, ServiceNames},
    sources::Sources,
};

/// Turns what prost recorded into services, or reports everything that stands in the way.
pub(crate) fn services(
    recorded: Vec<prost_build::Service>,
    sources: &Sources,
) -> Result<Vec<Service>, Error> {
    let mut services = Vec::with_capacity(recorded.len());
    let mut checks = Checks { sources, modules: HashMap::new(), problems: Vec::new() };
    for recorded in recorded {
        let descriptor = find(&sources.pool, &recorded);
        let service = service(recorded, &descriptor);
        checks.service(&service, &descriptor);
        services.push(service);
    }
    if checks.problems.is_empty() {
        Ok(services)
    } else {
        Err(Error::from(Cause::Problems(checks.problems)))
    }
}

fn find(pool: &DescriptorPool, recorded: &prost_build::Service) -> ServiceDescriptor {
    pool.services()
        .find(|service| {
            service.name() == recorded.proto_name && service.package_name() == recorded.package
        })
        .expect("prost was given the files of this pool")
}

fn service(recorded: prost_build::Service, descriptor: &ServiceDescriptor) -> Service {
    let methods = recorded.methods.into_iter().zip(descriptor.methods());
    Service {
        name: recorded.name,
        proto_name: recorded.proto_name,
        package: recorded.package,
        comments: comments::doc_lines(&recorded.comments),
        deprecated: recorded.options.deprecated(),
        methods: methods.map(|(recorded, descriptor)| method(recorded, &descriptor)).collect(),
    }
}

fn method(recorded: prost_build::Method, descriptor: &MethodDescriptor) -> Method {
    use prost_types::method_options::IdempotencyLevel;

    let hints = Hints::of(descriptor);
    Method {
        name: names::method(&recorded.name),
        proto_name: recorded.proto_name,
        comments: comments::doc_lines(&recorded.comments),
        request: RustType::new(recorded.input_type),
        reply: RustType::new(recorded.output_type),
        client_streaming: recorded.client_streaming,
        server_streaming: recorded.server_streaming,
        deprecated: recorded.options.deprecated(),
        idempotent: match recorded.options.idempotency_level() {
            IdempotencyLevel::IdempotencyUnknown => false,
            IdempotencyLevel::NoSideEffects | IdempotencyLevel::Idempotent => true,
        },
        inline_safe: hints.inline_safe,
        expected_reply_size: hints.expected_reply_size,
    }
}

/// `(verbwire.method)` of one method.
#[derive(Default)]
struct Hints {
    inline_safe: bool,
    expected_reply_size: Option<u64>,
}

impl Hints {
    fn of(method: &MethodDescriptor) -> Self {
        let pool = method.parent_pool();
        let Some(extension) = pool.get_extension_by_name("verbwire.method") else {
            return Self::default();
        };
        match &*method.options().get_extension(&extension) {
            Value::Message(hints) => Self::read(hints),
            _ => Self::default(),
        }
    }

    fn read(hints: &DynamicMessage) -> Self {
        let field = |name| hints.get_field_by_name(name);
        Self {
            inline_safe: field("inline_safe").is_some_and(|value| value.as_bool() == Some(true)),
            expected_reply_size: field("expected_reply_size")
                .and_then(|value| value.as_u64())
                .filter(|size| *size > 0),
        }
    }
}

/// Everything that is wrong with the services so far.
struct Checks<'a> {
    sources: &'a Sources,
    /// Full name of the service that a package and module name belong to.
    modules: HashMap<(String, String), String>,
    problems: Vec<Problem>,
}

impl Checks<'_> {
    fn service(&mut self, service: &Service, descriptor: &ServiceDescriptor) {
        let name = service.full_name();
        let module = ServiceNames::new(&service.name).client_module;
        let key = (names::module(&service.package), module.clone());
        if let Some(first) = self.modules.insert(key, name.clone()) {
            let at = self.locate_service(descriptor);
            self.report(at, Unsupported::Services { first, second: name, module });
        }
        self.methods(service, descriptor);
    }

    fn methods(&mut self, service: &Service, descriptor: &ServiceDescriptor) {
        let mut names: HashMap<&str, &str> = HashMap::new();
        for (method, descriptor) in service.methods.iter().zip(descriptor.methods()) {
            if let Some(first) = names.insert(&method.name, &method.proto_name) {
                let same_name = Unsupported::Methods {
                    service: service.full_name(),
                    first: first.to_owned(),
                    second: method.proto_name.clone(),
                    name: method.name.clone(),
                };
                self.report(self.locate_method(&descriptor), same_name);
            }
        }
    }

    fn report(&mut self, at: Location, what: Unsupported) {
        self.problems.push(Problem { at, what });
    }

    fn locate_service(&self, service: &ServiceDescriptor) -> Location {
        self.sources.locate(service.parent_file().name(), service.path())
    }

    fn locate_method(&self, method: &MethodDescriptor) -> Location {
        self.sources.locate(method.parent_file().name(), method.path())
    }
}
