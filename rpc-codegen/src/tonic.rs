//! The model as tonic-build sees it, so that stock tonic stubs can be generated from it.

use proc_macro2::TokenStream;

use crate::{
    emit,
    model::{Method, Service},
};

impl tonic_build::Service for Service {
    type Comment = String;
    type Method = Method;

    fn name(&self) -> &str {
        &self.name
    }

    fn package(&self) -> &str {
        &self.package
    }

    fn identifier(&self) -> &str {
        &self.proto_name
    }

    fn methods(&self) -> &[Method] {
        &self.methods
    }

    fn comment(&self) -> &[String] {
        &self.comments
    }
}

impl tonic_build::Method for Method {
    type Comment = String;

    fn name(&self) -> &str {
        &self.name
    }

    fn identifier(&self) -> &str {
        &self.proto_name
    }

    fn codec_path(&self) -> &str {
        "tonic_prost::ProstCodec"
    }

    fn client_streaming(&self) -> bool {
        self.client_streaming
    }

    fn server_streaming(&self) -> bool {
        self.server_streaming
    }

    fn comment(&self) -> &[String] {
        &self.comments
    }

    fn deprecated(&self) -> bool {
        self.deprecated
    }

    /// Well-known types are always those that the messages name too, so the second argument changes nothing.
    fn request_response_name(
        &self,
        proto_path: &str,
        _compile_well_known_types: bool,
    ) -> (TokenStream, TokenStream) {
        (emit::type_from(&self.request, proto_path), emit::type_from(&self.reply, proto_path))
    }
}
