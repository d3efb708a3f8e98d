//! From encoded descriptor sets to the service. Owns the options and the errors of what was registered.

use bytes::Bytes;
use prost::Message;
use prost_types::FileDescriptorProto;

use crate::declared::Declared;
use crate::index::Index;
use crate::pb;
use crate::pb::server_reflection_server::ServerReflectionServer;
use crate::service::ReflectionService;

/// Why there is no reflection service of these descriptors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Bytes that were registered are not an encoded set.
    #[error("descriptor set {set} (of {len} bytes) is not an encoded FileDescriptorSet: {source}")]
    Decode {
        /// The how manieth of those that were registered, from 1.
        set: usize,
        /// Its length in bytes.
        len: usize,
        /// What does not fit.
        source: prost::DecodeError,
    },
    /// A file, or something in it, has no name.
    #[error("a {what} in {file:?} has no name; register the output of a protobuf compiler")]
    Nameless {
        /// The file, as far as it is known.
        file: String,
        /// What it is.
        what: &'static str,
    },
    /// A file imports another one that was not registered.
    #[error(
        "{file:?} imports {import:?}, which no registered set has; write sets with their imports \
         (verbwire-codegen does, protoc with --include_imports)"
    )]
    MissingImport {
        /// The file.
        file: String,
        /// What it imports.
        import: String,
    },
    /// Two sets have different files of one name.
    #[error(
        "two registered files are named {file:?}, and only the second declares {symbol:?}; compile them with an \
         include path that gives them different names"
    )]
    SameName {
        /// Their name.
        file: String,
        /// What the first does not declare.
        symbol: String,
    },
    /// A service was named that no set declares.
    #[error("no registered set declares a service {0:?}, which was named to be listed")]
    NoSuchService(String),
}

/// Makes a reflection service. Begin with [`configure`](Self::configure), end with [`build_v1`](Self::build_v1).
#[derive(Debug, Clone)]
#[must_use = "nothing is made before `build_v1` is called"]
pub struct Builder {
    sets: Vec<Bytes>,
    include_reflection_service: bool,
    listed: Option<Vec<String>>,
}

/// A `FileDescriptorSet` whose files are left encoded, so that they are sent with options that this crate does not know.
#[derive(Message)]
struct RawSet {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    file: Vec<Bytes>,
}

impl Builder {
    /// A service that knows itself.
    pub fn configure() -> Self {
        Self { sets: Vec::new(), include_reflection_service: true, listed: None }
    }

    /// Adds the files of an encoded `FileDescriptorSet`. They are sent as they are.
    ///
    /// A file that several sets have is taken from the first. Its name is that with which others import it.
    pub fn register_encoded_file_descriptor_set(mut self, set: &[u8]) -> Self {
        self.sets.push(Bytes::copy_from_slice(set));
        self
    }

    /// Whether the reflection service describes and lists itself. It does by default.
    pub fn include_reflection_service(mut self, include: bool) -> Self {
        self.include_reflection_service = include;
        self
    }

    /// Lists this service, by its full name as `shop.Orders`, and others that are named so, in the place of all that the sets
    /// declare. Those that are not listed are described all the same.
    pub fn with_service_name(mut self, name: impl Into<String>) -> Self {
        self.listed.get_or_insert_default().push(name.into());
        self
    }

    /// The service, for `add_service`.
    ///
    /// # Errors
    ///
    /// Each is a case of [`Error`], and says what to do.
    pub fn build_v1(mut self) -> Result<ServerReflectionServer<ReflectionService>, Error> {
        if self.include_reflection_service {
            self.sets.push(Bytes::from_static(pb::FILE_DESCRIPTOR_SET));
        }
        let mut index = Index::default();
        for (set, number) in self.sets.into_iter().zip(1..) {
            let len = set.len();
            let undecoded = |source| Error::Decode { set: number, len, source };
            for bytes in RawSet::decode(set).map_err(undecoded)?.file {
                let file = FileDescriptorProto::decode(bytes.clone()).map_err(undecoded)?;
                index.add(Declared::by(file)?, bytes)?;
            }
        }
        index.check_imports()?;
        if let Some(listed) = self.listed {
            index.list_only(listed)?;
        }
        Ok(ServerReflectionServer::new(ReflectionService::new(index)))
    }
}
