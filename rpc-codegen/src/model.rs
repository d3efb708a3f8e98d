//! A service as the emitters see it: plain data, without protobuf's descriptors.
//!
//! The types implement [`tonic_build::Service`] and [`tonic_build::Method`] too, so that stock tonic stubs can be
//! generated from the same description.

/// A protobuf service.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Service {
    /// Name as a Rust type: the name of the trait.
    pub name: String,
    /// Name in the `.proto` file.
    pub proto_name: String,
    /// Protobuf package, empty if the file has none.
    pub package: String,
    /// Lines of the comment, each with its leading space, as Markdown that rustdoc accepts.
    pub comments: Vec<String>,
    /// Marked `deprecated`.
    pub deprecated: bool,
    /// In the order of the file; the position is the method's number in the generated code.
    pub methods: Vec<Method>,
}

impl Service {
    /// Name with the package: `helloworld.Greeter`.
    pub fn full_name(&self) -> String {
        if self.package.is_empty() {
            self.proto_name.clone()
        } else {
            format!("{}.{}", self.package, self.proto_name)
        }
    }
}

/// A method of a [`Service`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Method {
    /// Name as a Rust function.
    pub name: String,
    /// Name in the `.proto` file.
    pub proto_name: String,
    /// Lines of the comment, each with its leading space, as Markdown that rustdoc accepts.
    pub comments: Vec<String>,
    /// Type of the request.
    pub request: RustType,
    /// Type of the reply.
    pub reply: RustType,
    /// The client sends more than one message.
    pub client_streaming: bool,
    /// The server sends more than one message.
    pub server_streaming: bool,
    /// Marked `deprecated`.
    pub deprecated: bool,
    /// May run twice: `idempotency_level` is `IDEMPOTENT` or `NO_SIDE_EFFECTS`.
    pub idempotent: bool,
    /// The handler neither blocks nor computes for long.
    pub inline_safe: bool,
    /// Usual size of a reply, in bytes.
    pub expected_reply_size: Option<u64>,
}

/// A Rust type as prost writes it in the module of the service's package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RustType {
    text: String,
}

impl RustType {
    /// Takes the text over: a path, a primitive type or `()`.
    pub(crate) fn new(text: String) -> Self {
        Self { text }
    }

    /// The type as it is written in the module of the service's package.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the text means the same in every module. If not, it is a path from the module of the service's package.
    pub fn is_absolute(&self) -> bool {
        // What prost maps the well-known types to. No message has such a name: prost's type names are upper camel case.
        const BUILT_IN: [&str; 8] = ["()", "bool", "f32", "f64", "i32", "i64", "u32", "u64"];
        self.text.starts_with("::")
            || self.text.starts_with("crate::")
            || BUILT_IN.contains(&self.text.as_str())
    }
}
