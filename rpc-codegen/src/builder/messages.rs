//! Options of messages and enums, which are prost's.

use super::Builder;
use crate::messages::{EnumPrefix, TypeNames, WellKnownTypes};

/// # Messages and enums
impl Builder {
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

    /// Puts a message field, or the case of a oneof, into a `Box`: one that is large and mostly absent. Fields that contain
    /// their own message are boxed anyway.
    pub fn boxed(mut self, path: impl Into<String>) -> Self {
        self.messages.boxed.push(path.into());
        self
    }

    /// Adds an attribute to messages, enums and oneofs.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), verbwire_codegen::Error> {
    /// verbwire_codegen::configure()
    ///     .type_attribute(".store", "#[derive(serde::Serialize)]")
    ///     .field_attribute("Page.data", "#[serde(skip)]")
    ///     .compile(&["proto/store.proto"], &["proto"])
    /// # }
    /// ```
    pub fn type_attribute(mut self, path: impl Into<String>, attribute: impl Into<String>) -> Self {
        let attribute = (path.into(), attribute.into());
        self.messages.type_attributes.push(attribute);
        self
    }

    /// Adds an attribute to messages, and to nothing else.
    pub fn message_attribute(
        mut self,
        path: impl Into<String>,
        attribute: impl Into<String>,
    ) -> Self {
        let attribute = (path.into(), attribute.into());
        self.messages.message_attributes.push(attribute);
        self
    }

    /// Adds an attribute to enums and oneofs, which are enums in Rust.
    pub fn enum_attribute(mut self, path: impl Into<String>, attribute: impl Into<String>) -> Self {
        let attribute = (path.into(), attribute.into());
        self.messages.enum_attributes.push(attribute);
        self
    }

    /// Adds an attribute to fields, and to values of enums.
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

    /// Generates the well-known types, of `google.protobuf`, as all others, into `google::protobuf`.
    ///
    /// By default they are those of `prost-types`; `Empty` is `()`, and wrappers, such as `StringValue`, are what they wrap.
    /// Generated ones take attributes, and an `extern_path` of their own.
    pub fn compile_well_known_types(mut self, enable: bool) -> Self {
        self.messages.well_known_types =
            if enable { WellKnownTypes::Compiled } else { WellKnownTypes::Ready };
        self
    }

    /// Leaves `Debug` away from these messages, enums and oneofs, so that one can be written that does not print secrets.
    pub fn skip_debug<P: Into<String>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        self.messages.skip_debug = paths.into_iter().map(Into::into).collect();
        self
    }

    /// Leaves the name of an enum in the names of its values: `Kind::KindSmall` instead of `Kind::Small`.
    pub fn retain_enum_prefix(mut self) -> Self {
        self.messages.enum_prefix = EnumPrefix::Retained;
        self
    }

    /// Implements `prost::Name`, which `prost_types::Any` needs in order to pack and unpack messages.
    pub fn enable_type_names(mut self) -> Self {
        self.messages.type_names = TypeNames::Implemented;
        self
    }

    /// Leaves the comments of these items out: messages, fields, enums, services and methods.
    ///
    /// Services and methods say what they belong to instead.
    pub fn disable_comments<P: Into<String>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        self.messages.disable_comments = paths.into_iter().map(Into::into).collect();
        self
    }
}
