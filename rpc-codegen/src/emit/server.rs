//! The server module of a service.

use proc_macro2::{Ident, Literal, TokenStream};
use quote::quote;

use super::{
    HandlerFuture, Stubs, descriptor, doc, docs_or, handler, ident, interceptor, lint_attribute,
};
use crate::{
    model::{Method, Service},
    names::ServiceNames,
};

pub(super) fn module(service: &Service, stubs: &Stubs) -> TokenStream {
    let names = ServiceNames::new(&service.name);
    let module = ident(&names.server_module);
    let module_doc = doc(format!(" Generated server of `{}`.", service.full_name()));
    let lints = lint_attribute();
    let attributes = stubs.server_mod_attributes.of_module(service);
    let handlers = handlers(service, stubs);
    let wrapper = wrapper(service, &ident(&names.server), stubs);
    let dispatch = dispatch(service, &ident(&names.server), stubs);
    let descriptor = descriptor::service(service);
    quote! {
        #module_doc
        #lints
        #(#attributes)*
        pub mod #module {
            #handlers
            #wrapper
            #dispatch
            #descriptor
        }
    }
}

/// The trait that users implement.
fn handlers(service: &Service, stubs: &Stubs) -> TokenStream {
    let name = ident(&service.name);
    let docs = docs_or(&service.comments, || {
        format!(" Handlers of the methods of `{}`.", service.full_name())
    });
    let attributes = stubs.trait_attributes.of_item(service);
    let methods = service.methods.iter();
    let methods = methods.map(|method| handler::declaration(service, method, stubs.handlers));
    quote! {
        #docs
        #attributes
        pub trait #name: ::core::marker::Send + ::core::marker::Sync + 'static {
            #(#methods)*
        }
    }
}

/// The struct that makes an implementation a service.
fn wrapper(service: &Service, server: &Ident, stubs: &Stubs) -> TokenStream {
    let Generics { parameter, declared, bounded, sized } = Generics::new(service, stubs);
    let attributes = stubs.server_attributes.of_item(service);
    let docs = doc(format!(" Serves an implementation of [`{}`].", service.name));
    let interceptor = interceptor();
    let debug_name = server.to_string();
    quote! {
        #docs
        #attributes
        pub struct #server<#declared> {
            inner: ::std::sync::Arc<#parameter>,
        }

        impl<#bounded> #server<#parameter> {
            /// Takes the implementation over.
            pub fn new(service: #parameter) -> Self #sized {
                Self::from_arc(::std::sync::Arc::new(service))
            }

            /// Shares an implementation.
            pub fn from_arc(inner: ::std::sync::Arc<#parameter>) -> Self {
                Self { inner }
            }

            /// Takes the implementation over, and shows every request to `interceptor` first, which may change it
            /// or refuse the call.
            pub fn with_interceptor(
                service: #parameter,
                interceptor: #interceptor,
            ) -> ::verbwire::codegen::Intercepted<Self> #sized {
                let interceptor = ::verbwire::codegen::from_fn(interceptor);
                ::verbwire::codegen::Intercepted::new(Self::new(service), interceptor)
            }
        }

        impl<#declared> ::core::clone::Clone for #server<#parameter> {
            fn clone(&self) -> Self {
                Self { inner: ::std::sync::Arc::clone(&self.inner) }
            }
        }

        impl<#declared> ::core::fmt::Debug for #server<#parameter> {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.debug_struct(#debug_name).finish_non_exhaustive()
            }
        }
    }
}

/// From method numbers to handlers.
fn dispatch(service: &Service, server: &Ident, stubs: &Stubs) -> TokenStream {
    let Generics { parameter, declared, bounded, .. } = Generics::new(service, stubs);
    let full_name = service.full_name();
    let has_streams = |method: &Method| method.client_streaming || method.server_streaming;
    let arms = |streams: bool| {
        let methods = service.methods.iter().enumerate();
        let methods = methods.filter(|(_, method)| has_streams(method) == streams);
        methods.map(|(index, method)| arm(service, index, method, stubs)).collect::<Vec<_>>()
    };
    let body = choice(&arms(false), &quote!(unknown_method));
    let streaming = arms(true);
    let streaming = (!streaming.is_empty()).then(|| {
        let body = choice(&streaming, &quote!(unknown_streaming_method));
        quote! {
            fn call_streaming(
                &self,
                method: usize,
                request: ::verbwire::codegen::Request<::verbwire::codegen::StreamInput>,
            ) -> ::verbwire::codegen::StreamHandlerFuture {
                #body
            }
        }
    });
    quote! {
        impl<#bounded> ::verbwire::codegen::Service for #server<#parameter> {
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

            #streaming
        }

        impl<#declared> ::verbwire::codegen::NamedService for #server<#parameter> {
            const NAME: &'static str = #full_name;
        }
    }
}

/// One of `arms` by the method's number.
fn choice(arms: &[TokenStream], unknown: &TokenStream) -> TokenStream {
    if arms.is_empty() {
        return quote! {
            let _ = request;
            ::verbwire::codegen::#unknown(&SERVICE, method)
        };
    }
    quote! {
        let inner = ::std::sync::Arc::clone(&self.inner);
        match method {
            #(#arms)*
            other => ::verbwire::codegen::#unknown(&SERVICE, other),
        }
    }
}

fn arm(service: &Service, index: usize, method: &Method, stubs: &Stubs) -> TokenStream {
    let index = Literal::usize_unsuffixed(index);
    let parameter = parameter(service);
    let trait_name = ident(&service.name);
    let call = handler::call(quote!(<#parameter as #trait_name>), method, stubs.handlers);
    let run = match (method.client_streaming, method.server_streaming) {
        (false, false) => quote!(unary),
        (true, false) => quote!(client_streaming),
        (false, true) => quote!(server_streaming),
        (true, true) => quote!(bidi_streaming),
    };
    quote! {
        #index => ::verbwire::codegen::#run(request, move |request| async move {
            #call
        }),
    }
}

/// The type parameter of a server, in the places where it appears.
struct Generics {
    parameter: Ident,
    /// Where it is declared.
    declared: TokenStream,
    /// Where it has to be an implementation.
    bounded: TokenStream,
    /// The clause of a function that needs its size.
    sized: Option<TokenStream>,
}

impl Generics {
    fn new(service: &Service, stubs: &Stubs) -> Self {
        let parameter = parameter(service);
        let trait_name = ident(&service.name);
        match stubs.handlers.future {
            HandlerFuture::Unboxed => Self {
                declared: quote!(#parameter),
                bounded: quote!(#parameter: #trait_name),
                sized: None,
                parameter,
            },
            // So that `dyn Trait` can be served.
            HandlerFuture::AsyncTrait => Self {
                declared: quote!(#parameter: ?::core::marker::Sized),
                bounded: quote!(#parameter: #trait_name + ?::core::marker::Sized),
                sized: Some(quote!(where #parameter: ::core::marker::Sized,)),
                parameter,
            },
        }
    }
}

/// Name of the type parameter: a parameter `S` would hide the trait of a service `S`.
fn parameter(service: &Service) -> Ident {
    ident(if service.name == "S" { "T" } else { "S" })
}
