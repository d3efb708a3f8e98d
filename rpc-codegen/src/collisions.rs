//! Different protobuf names that become one name in Rust.
//!
//! Looks at messages, enums and packages before prost does, which panics, or writes what rustc refuses in a file that nobody
//! wrote. Names of services and methods are [`crate::parse`]'s.

use std::collections::HashMap;

use protox::prost_reflect::{EnumDescriptor, FileDescriptor, MessageDescriptor};

use crate::{
    error::{Cause, Error, Problem, Unsupported},
    messages::{EnumPrefix, MessageOptions},
    names::{self, ServiceNames},
    sources::Sources,
};

/// Reports all names that one would have to rename.
pub(crate) fn check(options: &MessageOptions, sources: &Sources) -> Result<(), Error> {
    let mut checks = Checks { options, sources, problems: Vec::new() };
    let mut modules: HashMap<String, Scope> = HashMap::new();
    let files = || sources.pool.files().filter(|file| !options.is_extern(file.package_name()));
    for file in files() {
        let module = names::module(file.package_name());
        checks.file(&file, modules.entry(module).or_default());
    }
    for file in files() {
        checks.package(&file, &mut modules);
    }
    if checks.problems.is_empty() {
        Ok(())
    } else {
        Err(Error::from(Cause::Problems(checks.problems)))
    }
}

/// The Rust names of one module or type, each with what has it.
#[derive(Default)]
struct Scope(HashMap<String, Item>);

#[derive(Clone)]
struct Item {
    kind: &'static str,
    /// Full name in protobuf.
    name: String,
}

impl Item {
    fn new(kind: &'static str, name: &str) -> Self {
        Self { kind, name: name.to_owned() }
    }
}

struct Checks<'a> {
    options: &'a MessageOptions,
    sources: &'a Sources,
    problems: Vec<Problem>,
}

impl Checks<'_> {
    fn file(&mut self, file: &FileDescriptor, scope: &mut Scope) {
        for message in file.messages() {
            self.message(&message, scope);
        }
        for each in file.enums() {
            self.enumeration(&each, scope);
        }
        for service in file.services() {
            let names = ServiceNames::new(&names::upper_camel(service.name()));
            for module in [names.client_module, names.server_module] {
                let item = Item::new("service", service.full_name());
                self.add(scope, module, item, file.name(), service.path());
            }
        }
    }

    /// The modules in which the package's own is, with names that messages and services may have taken.
    fn package(&mut self, file: &FileDescriptor, modules: &mut HashMap<String, Scope>) {
        // Field 2 of a file is its package.
        const PACKAGE: [i32; 1] = [2];
        let module = names::module(file.package_name());
        let mut parent = String::new();
        for name in module.split("::").filter(|name| !name.is_empty()) {
            let item = Item::new("package", file.package_name());
            let scope = modules.entry(parent.clone()).or_default();
            self.add(scope, name.to_owned(), item, file.name(), &PACKAGE);
            parent = if parent.is_empty() { name.to_owned() } else { format!("{parent}::{name}") };
        }
    }

    fn message(&mut self, message: &MessageDescriptor, scope: &mut Scope) {
        if message.is_map_entry() || self.options.is_extern(message.full_name()) {
            return;
        }
        let parent = message.parent_file();
        let (file, path) = (parent.name(), message.path());
        let item = || Item::new("message", message.full_name());
        self.add(scope, names::upper_camel(message.name()), item(), file, path);

        self.fields(message);
        let mut inner = Scope::default();
        for child in message.child_messages() {
            self.message(&child, &mut inner);
        }
        for child in message.child_enums() {
            self.enumeration(&child, &mut inner);
        }
        self.oneofs(message, &mut inner);
        if !inner.0.is_empty() {
            self.add(scope, names::module(message.name()), item(), file, path);
        }
    }

    fn fields(&mut self, message: &MessageDescriptor) {
        let mut scope = Scope::default();
        let file = message.parent_file();
        for field in message.fields() {
            if field.containing_oneof().is_some_and(|oneof| !oneof.is_synthetic()) {
                continue;
            }
            let item = Item::new("field", field.full_name());
            self.add(&mut scope, names::module(field.name()), item, file.name(), field.path());
        }
        for oneof in message.oneofs().filter(|oneof| !oneof.is_synthetic()) {
            let item = Item::new("oneof", oneof.full_name());
            self.add(&mut scope, names::module(oneof.name()), item, file.name(), oneof.path());
        }
    }

    /// prost makes an enum of each.
    fn oneofs(&mut self, message: &MessageDescriptor, inner: &mut Scope) {
        let file = message.parent_file();
        for oneof in message.oneofs().filter(|oneof| !oneof.is_synthetic()) {
            let mut name = names::upper_camel(oneof.name());
            let is_type = |item: &Item| matches!(item.kind, "message" | "enum");
            if inner.0.get(&name).is_some_and(is_type) {
                name.push_str("OneOf");
            }
            let item = Item::new("oneof", oneof.full_name());
            self.add(inner, name, item, file.name(), oneof.path());

            let mut cases = Scope::default();
            for field in oneof.fields() {
                let item = Item::new("field", field.full_name());
                let name = names::upper_camel(field.name());
                self.add(&mut cases, name, item, file.name(), field.path());
            }
        }
    }

    fn enumeration(&mut self, each: &EnumDescriptor, scope: &mut Scope) {
        if self.options.is_extern(each.full_name()) {
            return;
        }
        let parent = each.parent_file();
        let file = parent.name();
        let type_name = names::upper_camel(each.name());
        self.add(scope, type_name.clone(), Item::new("enum", each.full_name()), file, each.path());

        let mut values = Scope::default();
        let mut numbers = Vec::new();
        for value in each.values() {
            // Of several names for one number, prost takes the first.
            if numbers.contains(&value.number()) {
                continue;
            }
            numbers.push(value.number());
            let name = match self.options.enum_prefix {
                EnumPrefix::Stripped => names::enum_value(&type_name, value.name()),
                EnumPrefix::Retained => names::upper_camel(value.name()),
            };
            let item = Item::new("enum value", value.full_name());
            self.add(&mut values, name, item, file, value.path());
        }
    }

    fn add(&mut self, scope: &mut Scope, name: String, item: Item, file: &str, path: &[i32]) {
        let Some(first) = scope.0.get(&name) else {
            scope.0.insert(name, item);
            return;
        };
        // Two of these kinds are another check's, and a package is in many files.
        if first.kind == item.kind && matches!(item.kind, "service" | "package") {
            return;
        }
        let what = Unsupported::Items {
            first: format!("{} `{}`", first.kind, first.name),
            second: format!("{} `{}`", item.kind, item.name),
            name,
        };
        let at = self.sources.locate(file, path);
        self.problems.push(Problem { at, what });
    }
}
