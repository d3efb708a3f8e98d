//! What one file declares, by full names. Pure; does not know other files.

use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    ServiceDescriptorProto,
};

use crate::builder::Error;

/// A file and all that it declares.
#[derive(Debug, Default)]
pub(crate) struct Declared {
    pub(crate) file: String,
    pub(crate) imports: Vec<String>,
    /// Everything that has a name, services included.
    pub(crate) symbols: Vec<String>,
    pub(crate) services: Vec<String>,
    /// The extended message and the number of the field.
    pub(crate) extensions: Vec<(String, i32)>,
}

impl Declared {
    pub(crate) fn by(file: FileDescriptorProto) -> Result<Self, Error> {
        let mut declared = Self { imports: file.dependency, ..Self::default() };
        declared.file = declared.named("file", file.name)?;
        let package = file.package.unwrap_or_default();
        for message in file.message_type {
            declared.message(&package, message)?;
        }
        for item in file.enum_type {
            declared.enumeration(&package, item)?;
        }
        for extension in file.extension {
            declared.extension(&package, extension)?;
        }
        for service in file.service {
            declared.service(&package, service)?;
        }
        Ok(declared)
    }

    fn named(&self, what: &'static str, name: Option<String>) -> Result<String, Error> {
        let nameless = || Error::Nameless { file: self.file.clone(), what };
        name.filter(|name| !name.is_empty()).ok_or_else(nameless)
    }

    /// Adds a symbol and returns its full name.
    fn symbol(
        &mut self,
        scope: &str,
        what: &'static str,
        name: Option<String>,
    ) -> Result<String, Error> {
        let name = self.named(what, name)?;
        let full = if scope.is_empty() { name } else { format!("{scope}.{name}") };
        self.symbols.push(full.clone());
        Ok(full)
    }

    fn message(&mut self, scope: &str, message: DescriptorProto) -> Result<(), Error> {
        let scope = self.symbol(scope, "message", message.name)?;
        for nested in message.nested_type {
            self.message(&scope, nested)?;
        }
        for item in message.enum_type {
            self.enumeration(&scope, item)?;
        }
        for field in message.field {
            self.symbol(&scope, "field", field.name)?;
        }
        for oneof in message.oneof_decl {
            self.symbol(&scope, "oneof", oneof.name)?;
        }
        for extension in message.extension {
            self.extension(&scope, extension)?;
        }
        Ok(())
    }

    /// Values stand beside their enum, as in C++, and not in it.
    fn enumeration(&mut self, scope: &str, item: EnumDescriptorProto) -> Result<(), Error> {
        self.symbol(scope, "enum", item.name)?;
        for value in item.value {
            self.symbol(scope, "value of an enum", value.name)?;
        }
        Ok(())
    }

    fn extension(&mut self, scope: &str, field: FieldDescriptorProto) -> Result<(), Error> {
        let number = field.number();
        // Names that a compiler has resolved begin with a dot.
        let extended = field.extendee().trim_start_matches('.').to_owned();
        self.symbol(scope, "extension", field.name)?;
        self.extensions.push((extended, number));
        Ok(())
    }

    fn service(&mut self, scope: &str, service: ServiceDescriptorProto) -> Result<(), Error> {
        let scope = self.symbol(scope, "service", service.name)?;
        for method in service.method {
            self.symbol(&scope, "method", method.name)?;
        }
        self.services.push(scope);
        Ok(())
    }
}
