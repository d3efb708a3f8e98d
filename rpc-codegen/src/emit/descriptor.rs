//! The static description of a service, one in each of its two modules, since either may be left out.

use proc_macro2::TokenStream;
use quote::quote;

use crate::model::{Method, Service};

pub(super) fn service(service: &Service) -> TokenStream {
    let full_name = service.full_name();
    let methods = service.methods.iter().map(|each| method(&full_name, each));
    quote! {
        static SERVICE: ::verbwire::codegen::ServiceDescriptor =
            ::verbwire::codegen::ServiceDescriptor::new(#full_name, &[#(#methods),*]);
    }
}

fn method(service: &str, method: &Method) -> TokenStream {
    let name = &method.proto_name;
    let path = format!("/{service}/{name}");
    let idempotent = method.idempotent.then(|| quote!(.idempotent()));
    let inline_safe = method.inline_safe.then(|| quote!(.inline_safe()));
    let client_streaming = method.client_streaming.then(|| quote!(.client_streaming()));
    let server_streaming = method.server_streaming.then(|| quote!(.server_streaming()));
    let expected_reply_size =
        method.expected_reply_size.map(|size| quote!(.expected_reply_size(#size)));
    quote! {
        ::verbwire::codegen::MethodDescriptor::new(#name, #path)
            #idempotent
            #inline_safe
            #expected_reply_size
            #client_streaming
            #server_streaming
    }
}
