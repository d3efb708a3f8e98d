//! The client module of a service.

use proc_macro2::{Literal, TokenStream};
use quote::quote;

use super::{
    Stubs, deprecation, descriptor, doc, docs_or, ident, interceptor, lint_attribute,
    options::conditions, type_from,
};
use crate::{
    model::{Method, Service},
    names::ServiceNames,
};

pub(super) fn module(service: &Service, stubs: &Stubs) -> TokenStream {
    let names = ServiceNames::new(&service.name);
    let module = ident(&names.client_module);
    let client = ident(&names.client);
    let full_name = service.full_name();

    let module_doc = doc(format!(" Generated client of `{full_name}`."));
    let client_doc = docs_or(&service.comments, || format!(" Client of `{full_name}`."));
    let deprecated = deprecation(service.deprecated);
    let lints = lint_attribute();
    let descriptor = descriptor::service(service);
    let module_attributes = stubs.client_mod_attributes.of_module(service);
    let attributes = stubs.client_attributes.of_item(service);
    let interceptor = interceptor();
    let in_process = stubs.server.then(|| in_process(service, &names, stubs));
    let methods =
        service.methods.iter().enumerate().map(|(index, each)| method(service, index, each));

    quote! {
        #module_doc
        #lints
        #(#module_attributes)*
        pub mod #module {
            #client_doc
            #deprecated
            #[derive(Debug, Clone)]
            #attributes
            pub struct #client {
                client: ::verbwire::codegen::Client,
            }

            impl #client {
                /// Calls through the channel. Clones of the client share it.
                pub fn new(channel: ::verbwire::codegen::Channel) -> Self {
                    Self { client: ::verbwire::codegen::Client::new(channel, &SERVICE) }
                }

                /// Calls through the channel, and shows every request to `interceptor` first, which may change it
                /// or refuse the call.
                pub fn with_interceptor(
                    channel: ::verbwire::codegen::Channel,
                    interceptor: #interceptor,
                ) -> Self {
                    Self::new(channel.intercepted(::verbwire::codegen::from_fn(interceptor)))
                }

                #in_process

                /// The channel that calls go through.
                pub fn channel(&self) -> &::verbwire::codegen::Channel {
                    self.client.channel()
                }

                #(#methods)*
            }

            #descriptor
        }
    }
}

fn in_process(service: &Service, names: &ServiceNames, stubs: &Stubs) -> TokenStream {
    let conditions = conditions(&stubs.server_mod_attributes.of_module(service));
    let server_module = ident(&names.server_module);
    let server = ident(&names.server);
    let service = ident(&service.name);
    quote! {
        /// Calls the implementation in the caller's own task, without a transport.
        #conditions
        pub fn in_process<S: super::#server_module::#service>(service: S) -> Self {
            let server = super::#server_module::#server::new(service);
            Self::new(::verbwire::codegen::Channel::in_process(server))
        }
    }
}

fn method(service: &Service, index: usize, method: &Method) -> TokenStream {
    let name = ident(&method.name);
    let index = Literal::usize_unsuffixed(index);
    let request = type_from(&method.request, "super");
    let reply = type_from(&method.reply, "super");
    let deprecated = deprecation(method.deprecated);
    let docs = docs_or(&method.comments, || {
        format!(" Calls `{}.{}`.", service.full_name(), method.proto_name)
    });
    let (argument, into) = if method.client_streaming {
        let argument = quote!(impl ::verbwire::codegen::IntoStreamingRequest<Message = #request>);
        (argument, quote!(request.into_streaming_request()))
    } else {
        (quote!(impl ::verbwire::codegen::IntoRequest<#request>), quote!(request.into_request()))
    };
    let (call, begin) = match (method.client_streaming, method.server_streaming) {
        (false, false) => (quote!(Call), quote!(unary)),
        (true, false) => (quote!(Call), quote!(client_streaming)),
        (false, true) => (quote!(StreamingCall), quote!(server_streaming)),
        (true, true) => (quote!(StreamingCall), quote!(bidi_streaming)),
    };
    quote! {
        #docs
        #deprecated
        pub fn #name(
            &self,
            request: #argument,
        ) -> ::verbwire::codegen::#call<#reply> {
            self.client.#begin(#index, #into)
        }
    }
}
