//! What a user may choose about stubs.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{Attribute, parse::Parser};

use crate::{
    error::{Cause, Error},
    model::Service,
    select::selects,
};

/// Which stubs are wanted, and how they look.
#[derive(Debug, Clone)]
pub(crate) struct Stubs {
    pub(crate) client: bool,
    pub(crate) server: bool,
    pub(crate) handlers: Handlers,
    pub(crate) client_mod_attributes: Attributes,
    pub(crate) client_attributes: Attributes,
    pub(crate) server_mod_attributes: Attributes,
    pub(crate) server_attributes: Attributes,
    pub(crate) trait_attributes: Attributes,
}

impl Default for Stubs {
    fn default() -> Self {
        Self {
            client: true,
            server: true,
            handlers: Handlers::default(),
            client_mod_attributes: Attributes::new("client_mod_attribute"),
            client_attributes: Attributes::new("client_attribute"),
            server_mod_attributes: Attributes::new("server_mod_attribute"),
            server_attributes: Attributes::new("server_attribute"),
            trait_attributes: Attributes::new("trait_attribute"),
        }
    }
}

impl Stubs {
    /// Whether the attributes are Rust, which is said before anything else is done.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Self {
            client: _,
            server: _,
            handlers: _,
            client_mod_attributes,
            client_attributes,
            server_mod_attributes,
            server_attributes,
            trait_attributes,
        } = self;
        client_mod_attributes.check()?;
        client_attributes.check()?;
        server_mod_attributes.check()?;
        server_attributes.check()?;
        trait_attributes.check()
    }
}

/// How the methods of the trait that users implement look.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Handlers {
    pub(crate) future: HandlerFuture,
    pub(crate) receiver: Receiver,
    pub(crate) body: HandlerBody,
}

/// What a method of the trait returns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum HandlerFuture {
    /// A future of the implementation's own type: no allocation, and no trait objects.
    #[default]
    Unboxed,
    /// What the macro of the `async-trait` crate makes of an `async fn`: a box, so that trait objects exist.
    AsyncTrait,
}

/// The `self` of a method of the trait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Receiver {
    #[default]
    Reference,
    Arc,
}

/// Whether an implementation may leave a method out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum HandlerBody {
    #[default]
    Required,
    /// A method that is left out answers `Unimplemented`.
    Unimplemented,
}

/// Attributes of one option, each for the items that its path selects.
#[derive(Debug, Clone)]
pub(crate) struct Attributes {
    /// Name of the option, for its errors.
    option: &'static str,
    texts: Vec<(String, String)>,
}

impl Attributes {
    fn new(option: &'static str) -> Self {
        Self { option, texts: Vec::new() }
    }

    pub(crate) fn push(&mut self, path: String, attribute: String) {
        self.texts.push((path, attribute));
    }

    fn check(&self) -> Result<(), Error> {
        for (_, text) in &self.texts {
            parse(text).map_err(|source| Cause::Attribute {
                option: self.option,
                text: text.clone(),
                source,
            })?;
        }
        Ok(())
    }

    /// Those of a module. tonic's users name the package here, so that its name selects as well.
    pub(super) fn of_module(&self, service: &Service) -> Vec<Attribute> {
        let full_name = service.full_name();
        self.selected(|path| selects(path, &full_name) || selects(path, &service.package))
    }

    /// Those of a struct or trait.
    pub(super) fn of_item(&self, service: &Service) -> TokenStream {
        let full_name = service.full_name();
        let attributes = self.selected(|path| selects(path, &full_name));
        quote!(#(#attributes)*)
    }

    fn selected(&self, is_selected: impl Fn(&str) -> bool) -> Vec<Attribute> {
        let texts = self.texts.iter().filter(|(path, _)| is_selected(path));
        texts.flat_map(|(_, text)| parse(text).expect("options were checked")).collect()
    }
}

fn parse(text: &str) -> syn::Result<Vec<Attribute>> {
    Attribute::parse_outer.parse_str(text)
}

/// The conditions among the attributes: an item that names a conditional one is there under the same conditions.
pub(super) fn conditions(attributes: &[Attribute]) -> TokenStream {
    let conditions = attributes.iter().filter(|each| each.path().is_ident("cfg"));
    conditions.map(ToTokens::to_token_stream).collect()
}
