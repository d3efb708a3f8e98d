//! The server module of a service.

use proc_macro2::{Ident, Literal, TokenStream};
use quote::quote;

use super::{descriptor, doc, docs_or, ident, lint_attribute, type_from};
use crate::{
    model::{Method, Service},
    names::ServiceNames,
};

pub(super) fn module(service: &Service) -> TokenStream {
    let names = ServiceNames::new(&service.name);
    let module = ident(&names.server_module);
    let module_doc = doc(format!(" Generated server of `{}`.", service.full_name()));
    let lints = lint_attribute();
    let handlers = handlers(service);
    let wrapper = wrapper(service, &ident(&names.server));
    let dispatch = dispatch(service, &ident(&names.server));
    let descriptor = descriptor::service(service);
    quote! {
        #module_doc
        #lints
        pub mod #module {
            #handlers
            #wrapper
            #dispatch
            #descriptor
        }
    }
}

/// The trait that users implement.
fn handlers(service: &Service) -> TokenStream {
    let name = ident(&service.name);
    let docs = docs_or(&service.comments, || {
        format!(" Handlers of the methods of `{}`.", service.full_name())
    });
    let methods = service.methods.iter().map(|method| handler(service, method));
    quote! {
        #docs
        pub trait #name: ::core::marker::Send + ::core::marker::Sync + 'static {
            #(#methods)*
        }
    }
}

fn handler(service: &Service, method: &Method) -> TokenStream {
    let name = ident(&method.name);
    let request = type_from(&method.request, "super");
    let reply = type_from(&method.reply, "super");
    let docs = docs_or(&method.comments, || {
        format!(" Handles `{}.{}`.", service.full_name(), method.proto_name)
    });
    quote! {
        #docs
        fn #name(
            &self,
            request: ::verbwire::codegen::Request<#request>,
        ) -> impl ::core::future::Future<
            Output = ::core::result::Result<
                ::verbwire::codegen::Response<#reply>,
                ::verbwire::codegen::Status,
            >,
        > + ::core::marker::Send;
    }
}

/// The struct that makes an implementation a service.
fn wrapper(service: &Service, server: &Ident) -> TokenStream {
    let parameter = parameter(service);
    let trait_name = ident(&service.name);
    let docs = doc(format!(" Serves an implementation of [`{}`].", service.name));
    let debug_name = server.to_string();
    quote! {
        #docs
        pub struct #server<#parameter> {
            inner: ::std::sync::Arc<#parameter>,
        }

        impl<#parameter: #trait_name> #server<#parameter> {
            /// Takes the implementation over.
            pub fn new(service: #parameter) -> Self {
                Self::from_arc(::std::sync::Arc::new(service))
            }

            /// Shares an implementation.
            pub fn from_arc(inner: ::std::sync::Arc<#parameter>) -> Self {
                Self { inner }
            }
        }

        impl<#parameter> ::core::clone::Clone for #server<#parameter> {
            fn clone(&self) -> Self {
                Self { inner: ::std::sync::Arc::clone(&self.inner) }
            }
        }

        impl<#parameter> ::core::fmt::Debug for #server<#parameter> {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.debug_struct(#debug_name).finish_non_exhaustive()
            }
        }
    }
}

/// From method numbers to handlers.
fn dispatch(service: &Service, server: &Ident) -> TokenStream {
    let parameter = parameter(service);
    let trait_name = ident(&service.name);
    let full_name = service.full_name();
    let body = if service.methods.is_empty() {
        quote! {
            let _ = request;
            ::verbwire::codegen::unknown_method(&SERVICE, method)
        }
    } else {
        let arms = service.methods.iter().enumerate();
        let arms = arms.map(|(index, method)| arm(service, index, method));
        quote! {
            let inner = ::std::sync::Arc::clone(&self.inner);
            match method {
                #(#arms)*
                other => ::verbwire::codegen::unknown_method(&SERVICE, other),
            }
        }
    };
    quote! {
        impl<#parameter: #trait_name> ::verbwire::codegen::Service for #server<#parameter> {
            fn descriptor(&self) -> &'static ::verbwire::codegen::ServiceDescriptor {
                &SERVICE
            }

            fn call(
                &self,
                method: usize,
                request: ::verbwire::codegen::Request<::verbwire::codegen::Body>,
            ) -> ::verbwire::codegen::HandlerFuture {
                #body
            }
        }

        impl<#parameter> ::verbwire::codegen::NamedService for #server<#parameter> {
            const NAME: &'static str = #full_name;
        }
    }
}

/// The handler is named with its trait, because `inner.clone(request)` would be the `Arc`'s.
fn arm(service: &Service, index: usize, method: &Method) -> TokenStream {
    let index = Literal::usize_unsuffixed(index);
    let parameter = parameter(service);
    let trait_name = ident(&service.name);
    let name = ident(&method.name);
    quote! {
        #index => ::verbwire::codegen::unary(request, move |request| async move {
            <#parameter as #trait_name>::#name(&inner, request).await
        }),
    }
}

/// Name of the type parameter: a parameter `S` would hide the trait of a service `S`.
fn parameter(service: &Service) -> Ident {
    ident(if service.name == "S" { "T" } else { "S" })
}
