//! The Rust text of one package, item by item, so that what several calls of `compile` generate for it can be put together.

use quote::ToTokens;

/// What the file of a package holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PackageText {
    header: String,
    items: Vec<Item>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Item {
    /// Rust allows one item of this name in a module.
    name: String,
    text: String,
}

impl PackageText {
    pub(crate) fn new(header: String, items: Vec<syn::Item>) -> Self {
        let items = items.into_iter().map(|item| {
            let name = name(&item);
            let file = syn::File { shebang: None, attrs: Vec::new(), items: vec![item] };
            Item { name, text: prettyplease::unparse(&file) }
        });
        Self { header, items: items.collect() }
    }

    /// Adds the items that are not there yet, or returns the name of one that is there and differs.
    pub(crate) fn merge(&mut self, other: Self) -> Result<(), String> {
        for item in other.items {
            match self.items.iter().find(|known| known.name == item.name) {
                Some(known) if known.text == item.text => {}
                Some(_) => return Err(item.name),
                None => self.items.push(item),
            }
        }
        Ok(())
    }

    pub(crate) fn to_text(&self) -> String {
        let items = self.items.iter().map(|item| item.text.as_str());
        [self.header.as_str()].into_iter().chain(items).collect()
    }
}

/// Types and modules share their names; an implementation is named by what it is of.
fn name(item: &syn::Item) -> String {
    match item {
        syn::Item::Struct(item) => item.ident.to_string(),
        syn::Item::Enum(item) => item.ident.to_string(),
        syn::Item::Mod(item) => item.ident.to_string(),
        syn::Item::Impl(item) => {
            let of =
                item.trait_.as_ref().map(|(_, path, _)| format!("{} for ", path.to_token_stream()));
            format!("impl {}{}", of.unwrap_or_default(), item.self_ty.to_token_stream())
        }
        other => other.to_token_stream().to_string(),
    }
}
