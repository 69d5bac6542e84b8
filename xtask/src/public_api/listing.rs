//! The lines of the API: what is public, by the paths that users write.

use proc_macro2::TokenTree;
use syn::{Fields, ImplItem, Item, Type, Visibility};

use super::names::{Crates, Definition, Meaning, ModulePath, attributes, imports_of, invocation_of, item_name};
use super::text;
use crate::rust;

/// Every line of the API of the crate `name`, in no order.
pub fn list(crates: &Crates<'_>, name: &str) -> Vec<String> {
    let mut listing = Listing { crates, lines: Vec::new() };
    listing.module(&(name.to_owned(), Vec::new()), name);
    listing.lines
}

struct Listing<'c, 'f> {
    crates: &'c Crates<'f>,
    lines: Vec<String>,
}

impl Listing<'_, '_> {
    /// The public items of `module`, which users reach as `path`.
    fn module(&mut self, module: &ModulePath, path: &str) {
        for item in self.crates.items(module) {
            match item {
                Item::Mod(inner) if is_public(&inner.vis) => {
                    let (name, inside) = (inner.ident.to_string(), format!("{path}::{}", inner.ident));
                    self.lines.push(format!("pub mod {inside}"));
                    self.module(&(module.0.clone(), [&module.1[..], &[name]].concat()), &inside);
                }
                Item::Use(declaration) if is_public(&declaration.vis) => {
                    for import in imports_of(&declaration.tree) {
                        self.import(module, &import.path, &format!("{path}::{}", import.name));
                    }
                }
                item => {
                    if let Some(name) = item_name(item).filter(|_| visibility(item).is_some_and(is_public)) {
                        let definition = Definition { module: module.clone(), name: name.to_string() };
                        self.item(&definition, item, &format!("{path}::{name}"));
                    }
                }
            }
        }
    }

    /// The items that a public `use` of `target` makes reachable as `path`.
    fn import(&mut self, module: &ModulePath, target: &[String], path: &str) {
        match self.crates.resolve(module, target) {
            Some(Meaning::Item(definition)) => {
                let items = self.crates.items(&definition.module);
                let by_name = |item: &&&Item| item_name(item).is_some_and(|name| *name == definition.name);
                if let Some(item) = items.iter().find(by_name) {
                    return self.item(&definition, item, path);
                }
                let written = invocation_of(items, &definition.name);
                let macro_text = written.map(|invocation| text::of(&without_docs(invocation))).unwrap_or_default();
                self.lines.push(format!("pub use {path} = {macro_text}"));
            }
            // Another crate as a whole has an API of its own.
            Some(Meaning::Module(inner)) if inner.1.is_empty() => {
                self.lines.push(format!("pub use {path} = {}", inner.0))
            }
            Some(Meaning::Module(inner)) => {
                self.lines.push(format!("pub mod {path}"));
                self.module(&inner, path);
            }
            None => self.lines.push(format!("pub use {path} = {}", target.join("::"))),
        }
    }

    /// One item, its parts and its implementations.
    fn item(&mut self, definition: &Definition, item: &Item, path: &str) {
        let is_open = attributes(item).iter().any(|attribute| attribute.path().is_ident("non_exhaustive"));
        let open = if is_open { "#[non_exhaustive] " } else { "" };
        match item {
            Item::Struct(item) => {
                self.lines.push(format!("{open}pub struct {path}{}", text::of(&item.generics)));
                self.fields(&item.fields, path, Owner::Struct);
            }
            Item::Enum(item) => {
                self.lines.push(format!("{open}pub enum {path}{}", text::of(&item.generics)));
                for variant in &item.variants {
                    let path = format!("{path}::{}", variant.ident);
                    self.lines.push(format!("pub variant {path}"));
                    self.fields(&variant.fields, &path, Owner::Variant);
                }
            }
            Item::Trait(item) => {
                let bounds = if item.supertraits.is_empty() {
                    String::new()
                } else {
                    format!(": {}", text::of(&item.supertraits))
                };
                self.lines.push(format!("pub trait {path}{}{bounds}", text::of(&item.generics)));
                for part in &item.items {
                    if let syn::TraitItem::Fn(function) = part {
                        self.function(&function.sig, path);
                    }
                }
            }
            Item::Fn(item) => self.lines.push(format!("pub {}", signature(&item.sig, path))),
            Item::Type(item) => {
                let target = text::of(&item.ty);
                self.lines.push(format!("pub type {path}{} = {target}", text::of(&item.generics)));
            }
            Item::Const(item) => self.lines.push(format!("pub const {path}: {}", text::of(&item.ty))),
            Item::Static(item) => self.lines.push(format!("pub static {path}: {}", text::of(&item.ty))),
            _ => {}
        }
        self.derives(item, path);
        self.implementations(definition, path);
    }

    fn fields(&mut self, fields: &Fields, path: &str, owner: Owner) {
        for (index, field) in fields.iter().enumerate() {
            if owner == Owner::Variant || is_public(&field.vis) {
                let name = field.ident.as_ref().map_or(index.to_string(), ToString::to_string);
                self.lines.push(format!("pub field {path}::{name}: {}", text::of(&field.ty)));
            }
        }
    }

    fn function(&mut self, sig: &syn::Signature, path: &str) {
        self.lines.push(format!("pub {}", signature(sig, &format!("{path}::{}", sig.ident))));
    }

    fn derives(&mut self, item: &Item, path: &str) {
        for attribute in attributes(item).iter().filter(|attribute| attribute.path().is_ident("derive")) {
            let syn::Meta::List(list) = &attribute.meta else { continue };
            let derived = list.tokens.to_string();
            let names = derived.split(',').map(|name| name.rsplit("::").next().unwrap_or_default().trim());
            let lines = names.filter(|name| !name.is_empty()).map(|name| format!("impl {name} for {path}"));
            self.lines.extend(lines);
        }
    }

    /// The methods and traits of a type, wherever its crate implements them.
    fn implementations(&mut self, definition: &Definition, path: &str) {
        let crates = self.crates;
        for (module, items) in crates.modules_of(&definition.module.0) {
            for item in items {
                match item {
                    Item::Impl(block) if self.is_of(module, &block.self_ty, definition) => {
                        self.implementation(block, path)
                    }
                    Item::Macro(_) => self.methods_of_macro(module, item, definition, path),
                    _ => {}
                }
            }
        }
    }

    /// Whether `found`, written in `module`, is the type of `definition`.
    fn is_of(&self, module: &ModulePath, found: &Type, definition: &Definition) -> bool {
        let Type::Path(found) = found else { return false };
        let path: Vec<String> = found.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        matches!(self.crates.resolve(module, &path), Some(Meaning::Item(known)) if known == *definition)
    }

    fn implementation(&mut self, block: &syn::ItemImpl, path: &str) {
        if let Some(target) = &block.trait_ {
            let (generics, bounds) = (text::of(&block.generics), block.generics.where_clause.as_ref().map(text::of));
            let (name, bounds) = (text::of(&target.0), bounds.map(|it| format!(" {it}")).unwrap_or_default());
            self.lines.push(format!("impl{generics} {name} for {path}{bounds}"));
            return;
        }
        for part in &block.items {
            match part {
                ImplItem::Fn(function) if is_public(&function.vis) => self.function(&function.sig, path),
                ImplItem::Const(item) if is_public(&item.vis) => {
                    self.lines.push(format!("pub const {path}::{}: {}", item.ident, text::of(&item.ty)));
                }
                _ => {}
            }
        }
    }

    /// The methods that a macro of the crate writes for a type, if `item` invokes it with the type's name first.
    fn methods_of_macro(&mut self, module: &ModulePath, item: &Item, definition: &Definition, path: &str) {
        let Some(invocation) = invocation_of(&[item], &definition.name) else { return };
        let first = invocation.tokens.clone().into_iter().next();
        let is_its = matches!(first, Some(TokenTree::Ident(name)) if name == definition.name);
        if !is_its || *module != definition.module {
            return;
        }
        let Some(name) = invocation.path.get_ident() else { return };
        let nearest = |defined: &&(ModulePath, &syn::ItemMacro)| {
            let (place, definition) = defined;
            definition.ident.as_ref().is_some_and(|known| known == name) && is_beside(place, module)
        };
        let macros = self.macros_of(&module.0);
        let Some((_, defined)) = macros.iter().find(nearest) else { return };
        let mut lines = Vec::new();
        rust::walk_tokens(&defined.mac.tokens, &mut |siblings, at| lines.extend(public_function(siblings, at, path)));
        self.lines.extend(lines);
    }

    fn macros_of(&self, name: &str) -> Vec<(ModulePath, &syn::ItemMacro)> {
        let mut found = Vec::new();
        for (module, items) in self.crates.modules_of(name) {
            for item in items {
                if let Item::Macro(item) = item {
                    found.push((module.clone(), item));
                }
            }
        }
        found
    }
}

/// The owner of listed fields: those of a variant are always public.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Struct,
    Variant,
}

/// Whether a macro that is defined in `place` is the one that a sibling in `module` names: both have one parent.
fn is_beside(place: &ModulePath, module: &ModulePath) -> bool {
    let parent = |path: &ModulePath| path.1.split_last().map(|(_, parent)| parent.to_vec());
    place == module || parent(place) == parent(module)
}

/// The line of the public function that begins at `at`, if one does.
fn public_function(siblings: &[TokenTree], at: usize, path: &str) -> Option<String> {
    let is_pub = |at: usize| rust::ident_at(siblings, at).is_some_and(|ident| ident == "pub");
    let is_fn = |at: usize| rust::ident_at(siblings, at).is_some_and(|ident| ident == "fn");
    let is_async = rust::ident_at(siblings, at + 1).is_some_and(|ident| ident == "async");
    if !is_pub(at) || !(is_fn(at + 1) || (is_async && is_fn(at + 2))) {
        return None;
    }
    let end = (at..siblings.len()).find(|at| rust::braces_at(siblings, *at).is_some())?;
    let tokens: proc_macro2::TokenStream = siblings[at + 1..end].iter().cloned().collect();
    let sig: syn::Signature = syn::parse2(tokens).ok()?;
    Some(format!("pub {}", signature(&sig, &format!("{path}::{}", sig.ident))))
}

/// A signature whose name is a path.
fn signature(sig: &syn::Signature, path: &str) -> String {
    let written = text::of(sig);
    let name = format!("fn {}", sig.ident);
    match written.split_once(&name) {
        Some((before, after)) => format!("{before}fn {path}{after}"),
        None => written,
    }
}

/// An invocation without the documentation in its arguments.
fn without_docs(invocation: &syn::Macro) -> proc_macro2::TokenStream {
    let mut kept = Vec::new();
    let tokens: Vec<TokenTree> = invocation.tokens.clone().into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        let is_attribute = rust::is_punct(&tokens, at, '#') && matches!(tokens.get(at + 1), Some(TokenTree::Group(_)));
        if is_attribute {
            at += 2;
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    let (path, arguments): (_, proc_macro2::TokenStream) = (&invocation.path, kept.into_iter().collect());
    quote::quote!(#path!(#arguments))
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn visibility(item: &Item) -> Option<&Visibility> {
    match item {
        Item::Const(item) => Some(&item.vis),
        Item::Enum(item) => Some(&item.vis),
        Item::Fn(item) => Some(&item.vis),
        Item::Static(item) => Some(&item.vis),
        Item::Struct(item) => Some(&item.vis),
        Item::Trait(item) => Some(&item.vis),
        Item::Type(item) => Some(&item.vis),
        _ => None,
    }
}
