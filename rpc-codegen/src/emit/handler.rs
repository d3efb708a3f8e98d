//! One method of the trait that users implement, in each of the forms that it may have.

use proc_macro2::TokenStream;
use quote::quote;

use super::{
    doc, docs_or, ident,
    options::{HandlerBody, HandlerFuture, Handlers, Receiver},
    type_from,
};
use crate::model::{Method, Service};

/// The declaration in the trait.
pub(super) fn declaration(service: &Service, method: &Method, handlers: Handlers) -> TokenStream {
    let docs = docs_or(&method.comments, || {
        format!(" Handles `{}.{}`.", service.full_name(), method.proto_name)
    });
    let names_stream = method.server_streaming && handlers.body == HandlerBody::Required;
    let stream = names_stream.then(|| reply_stream(service, method));
    let signature = signature(method, handlers);
    let body = match handlers.body {
        HandlerBody::Required => quote!(;),
        HandlerBody::Unimplemented => unimplemented(service, method, handlers.future),
    };
    quote! {
        #stream

        #docs
        #signature
        #body
    }
}

/// The type of a method's replies, which the implementation names.
fn reply_stream(service: &Service, method: &Method) -> TokenStream {
    let name = ident(&stream_name(method));
    let reply = type_from(&method.reply, "super");
    let docs = doc(format!(
        " The replies of `{}.{}`. The first error among them is the last item.",
        service.full_name(),
        method.proto_name
    ));
    quote! {
        #docs
        type #name: ::verbwire::codegen::Stream<
            Item = ::core::result::Result<#reply, ::verbwire::codegen::Status>,
        > + ::core::marker::Send + 'static;
    }
}

/// As tonic has it, but always a type's name in Rust.
fn stream_name(method: &Method) -> String {
    let words = method.proto_name.split('_').flat_map(|word| {
        let first = word.chars().next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(word.chars().skip(1))
    });
    words.chain("Stream".chars()).collect()
}

fn signature(method: &Method, handlers: Handlers) -> TokenStream {
    let name = ident(&method.name);
    let request = type_from(&method.request, "super");
    let request = if method.client_streaming {
        quote!(::verbwire::codegen::Streaming<#request>)
    } else {
        request
    };
    let reply = type_from(&method.reply, "super");
    let reply = match (method.server_streaming, handlers.body) {
        (false, _) => reply,
        (true, HandlerBody::Required) => {
            let stream = ident(&stream_name(method));
            quote!(Self::#stream)
        }
        // As in tonic: an associated type cannot be left out together with its method.
        (true, HandlerBody::Unimplemented) => quote!(::verbwire::codegen::BoxStream<#reply>),
    };
    let argument = quote!(request: ::verbwire::codegen::Request<#request>);
    let future = quote! {
        ::core::future::Future<
            Output = ::core::result::Result<
                ::verbwire::codegen::Response<#reply>,
                ::verbwire::codegen::Status,
            >,
        > + ::core::marker::Send
    };
    let arc = quote!(self: ::std::sync::Arc<Self>);
    match (handlers.future, handlers.receiver) {
        (HandlerFuture::Unboxed, Receiver::Reference) => {
            quote!(fn #name(&self, #argument) -> impl #future)
        }
        (HandlerFuture::Unboxed, Receiver::Arc) => {
            quote!(fn #name(#arc, #argument) -> impl #future)
        }
        // Lifetimes and bounds are those that the macro writes, or its implementations would not fit.
        (HandlerFuture::AsyncTrait, Receiver::Reference) => quote! {
            fn #name<'life0, 'async_trait>(
                &'life0 self,
                #argument,
            ) -> ::core::pin::Pin<::std::boxed::Box<dyn #future + 'async_trait>>
            where
                'life0: 'async_trait,
                Self: 'async_trait
        },
        (HandlerFuture::AsyncTrait, Receiver::Arc) => quote! {
            fn #name<'async_trait>(
                #arc,
                #argument,
            ) -> ::core::pin::Pin<::std::boxed::Box<dyn #future + 'async_trait>>
            where
                Self: 'async_trait
        },
    }
}

/// The body of a method that the implementation leaves out.
fn unimplemented(service: &Service, method: &Method, future: HandlerFuture) -> TokenStream {
    let text =
        format!("{}.{} is not implemented by this server", service.full_name(), method.proto_name);
    let answer = quote! {
        ::core::future::ready(::core::result::Result::Err(
            ::verbwire::codegen::Status::unimplemented(#text),
        ))
    };
    let answer = match future {
        HandlerFuture::Unboxed => answer,
        HandlerFuture::AsyncTrait => quote!(::std::boxed::Box::pin(#answer)),
    };
    quote! {
        {
            let _ = request;
            #answer
        }
    }
}

/// The handler of the value `inner`, an `Arc`, as the trait's: `inner.clone(request)` would be the `Arc`'s.
pub(super) fn call(
    implementation: TokenStream,
    method: &Method,
    handlers: Handlers,
) -> TokenStream {
    let name = ident(&method.name);
    let receiver = match handlers.receiver {
        Receiver::Reference => quote!(&inner),
        Receiver::Arc => quote!(inner),
    };
    quote!(#implementation::#name(#receiver, request).await)
}
