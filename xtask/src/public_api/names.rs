//! Modules of the workspace's crates, and what a path in one of them names.

use std::collections::BTreeMap;

use syn::{Item, UseTree};

use crate::rust::{self, RustFile};

/// Steps from a name to what it names, at most: re-exports of re-exports.
const MAX_STEPS: u32 = 16;

/// A module: its crate, as others name it, and its path in that crate.
pub type ModulePath = (String, Vec<String>);

/// An item by the module that defines it and its name there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    pub module: ModulePath,
    pub name: String,
}

/// The meaning of a path.
#[derive(Debug)]
pub enum Meaning {
    Item(Definition),
    Module(ModulePath),
}

/// The modules of every crate in `crates/`.
pub struct Crates<'f> {
    modules: BTreeMap<ModulePath, Vec<&'f Item>>,
}

/// One name that a `use` declaration brings into its module.
pub struct Import {
    pub name: String,
    pub path: Vec<String>,
}

impl<'f> Crates<'f> {
    pub fn new(files: &'f [RustFile]) -> Crates<'f> {
        let by_path: BTreeMap<&str, &RustFile> = files.iter().map(|file| (file.path.as_str(), file)).collect();
        let mut crates = Crates { modules: BTreeMap::new() };
        for (path, file) in &by_path {
            if let Some(directory) = path.strip_suffix("/src/lib.rs").filter(|path| path.starts_with("crates/")) {
                let source = format!("{directory}/src");
                crates.add(&by_path, (crate_name(directory), Vec::new()), &file.syntax.items, &source);
            }
        }
        crates
    }

    /// Adds a module and those inside it, whose files are in `directory`.
    fn add(&mut self, files: &BTreeMap<&str, &'f RustFile>, path: ModulePath, items: &'f [Item], directory: &str) {
        let items: Vec<&Item> = items.iter().filter(|item| !is_hidden(item)).collect();
        for module in items.iter().filter_map(|item| if let Item::Mod(module) = item { Some(module) } else { None }) {
            let name = module.ident.to_string();
            let inner = (path.0.clone(), [&path.1[..], std::slice::from_ref(&name)].concat());
            let inside = format!("{directory}/{name}");
            let file =
                || [format!("{inside}.rs"), format!("{inside}/mod.rs")].iter().find_map(|it| files.get(it.as_str()));
            match &module.content {
                Some((_, content)) => self.add(files, inner, content, &inside),
                None => drop(file().map(|file| self.add(files, inner, &file.syntax.items, &inside))),
            }
        }
        self.modules.insert(path, items);
    }

    /// The items of a module.
    pub fn items(&self, module: &ModulePath) -> &[&'f Item] {
        self.modules.get(module).map_or(&[], Vec::as_slice)
    }

    /// The modules of a crate, with their items.
    pub fn modules_of<'c>(&'c self, name: &'c str) -> impl Iterator<Item = (&'c ModulePath, &'c [&'f Item])> {
        self.modules.iter().filter(move |(path, _)| path.0 == name).map(|(path, items)| (path, items.as_slice()))
    }

    /// Resolves `path` in `module`; `None` if it leads out of the workspace.
    pub fn resolve(&self, module: &ModulePath, path: &[String]) -> Option<Meaning> {
        self.resolve_within(module, path, MAX_STEPS)
    }

    fn resolve_within(&self, module: &ModulePath, path: &[String], steps: u32) -> Option<Meaning> {
        let steps = steps.checked_sub(1)?;
        let (first, rest) = path.split_first()?;
        let mut meaning = match first.as_str() {
            "crate" => Meaning::Module((module.0.clone(), Vec::new())),
            "self" => Meaning::Module(module.clone()),
            "super" => Meaning::Module((module.0.clone(), module.1.split_last()?.1.to_vec())),
            name => match self.named(module, name, steps) {
                Some(meaning) => meaning,
                None => {
                    let root = (name.to_owned(), Vec::new());
                    self.modules.contains_key(&root).then_some(Meaning::Module(root))?
                }
            },
        };
        for name in rest {
            let Meaning::Module(inside) = meaning else { return None };
            meaning = match name.as_str() {
                "super" => Meaning::Module((inside.0.clone(), inside.1.split_last()?.1.to_vec())),
                name => self.named(&inside, name, steps)?,
            };
        }
        Some(meaning)
    }

    /// Resolves one name in `module`: an item, a module inside it, or an import.
    fn named(&self, module: &ModulePath, name: &str, steps: u32) -> Option<Meaning> {
        let inner = (module.0.clone(), [&module.1[..], &[name.to_owned()]].concat());
        if self.modules.contains_key(&inner) {
            return Some(Meaning::Module(inner));
        }
        let items = self.items(module);
        let is_defined = items.iter().any(|item| item_name(item).is_some_and(|known| known == name));
        let is_written_by_macro = || invocation_of(items, name).is_some();
        if is_defined || (!imports(items).any(|import| import.name == name) && is_written_by_macro()) {
            return Some(Meaning::Item(Definition { module: module.clone(), name: name.to_owned() }));
        }
        imports(items)
            .filter(|import| import.name == name && import.path != [name.to_owned()])
            .find_map(|import| self.resolve_within(module, &import.path, steps))
            .or_else(|| {
                let globs = imports(items).filter(|import| import.name == "*");
                globs.filter(|glob| !glob.path.is_empty()).find_map(|glob| {
                    match self.resolve_within(module, &glob.path, steps)? {
                        Meaning::Module(inside) if inside != *module => {
                            self.named(&inside, name, steps.checked_sub(1)?)
                        }
                        _ => None,
                    }
                })
            })
    }
}

/// `crates/fabric-shm` is `guira_fabric_shm`, and `crates/guira` is `guira`.
fn crate_name(directory: &str) -> String {
    match directory.trim_start_matches("crates/").replace('-', "_").as_str() {
        "guira" => "guira".to_owned(),
        name => format!("guira_{name}"),
    }
}

/// Whether an item is for tests only, or hidden from documentation.
fn is_hidden(item: &Item) -> bool {
    attributes(item).iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        let words = list.tokens.to_string();
        (list.path.is_ident("cfg") && (words == "test" || words == "doctest" || words == "doc"))
            || (list.path.is_ident("doc") && words == "hidden")
    })
}

/// The attributes of an item of a kind that is listed or searched.
pub fn attributes(item: &Item) -> &[syn::Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The name that an item defines, modules excepted.
pub fn item_name(item: &Item) -> Option<&syn::Ident> {
    match item {
        Item::Const(item) => Some(&item.ident),
        Item::Enum(item) => Some(&item.ident),
        Item::Fn(item) => Some(&item.sig.ident),
        Item::Static(item) => Some(&item.ident),
        Item::Struct(item) => Some(&item.ident),
        Item::Trait(item) => Some(&item.ident),
        Item::Type(item) => Some(&item.ident),
        _ => None,
    }
}

/// The invocation of a macro among `items` that may define `name`: its arguments have the identifier, or the macro has
/// it, which is defined there too.
pub fn invocation_of<'f>(items: &[&'f Item], name: &str) -> Option<&'f syn::Macro> {
    let invocations = items.iter().filter_map(|item| match item {
        Item::Macro(item) if item.ident.is_none() => Some(&item.mac),
        _ => None,
    });
    let defined = |invocation: &syn::Macro| {
        let is_its = |item: &&&Item| match item {
            Item::Macro(item) => item.ident.as_ref().is_some_and(|ident| invocation.path.is_ident(ident)),
            _ => false,
        };
        items.iter().find(is_its)
    };
    invocations.into_iter().find(|invocation| {
        let is_in_macro = match defined(invocation) {
            Some(Item::Macro(defined)) => has_ident(&defined.mac.tokens, name),
            _ => false,
        };
        has_ident(&invocation.tokens, name) || is_in_macro
    })
}

fn has_ident(tokens: &proc_macro2::TokenStream, name: &str) -> bool {
    let mut is_there = false;
    rust::walk_tokens(tokens, &mut |siblings, at| {
        is_there |= rust::ident_at(siblings, at).is_some_and(|ident| ident == name);
    });
    is_there
}

/// The names that the `use` declarations among `items` bring into their module.
fn imports(items: &[&Item]) -> impl Iterator<Item = Import> {
    let uses = items.iter().filter_map(|item| if let Item::Use(item) = item { Some(&item.tree) } else { None });
    uses.flat_map(imports_of).collect::<Vec<_>>().into_iter()
}

/// The names that one `use` declaration brings into its module; `*` for all of another module.
pub fn imports_of(tree: &UseTree) -> Vec<Import> {
    let mut found = Vec::new();
    flatten(tree, &mut Vec::new(), &mut found);
    found
}

fn flatten(tree: &UseTree, before: &mut Vec<String>, found: &mut Vec<Import>) {
    let import = |before: &[String], name: &syn::Ident, alias: String| {
        if name == "self" {
            let alias = if alias == "self" { before.last().cloned().unwrap_or_default() } else { alias };
            return Import { name: alias, path: before.to_vec() };
        }
        Import { name: alias, path: [before, &[name.to_string()]].concat() }
    };
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, found);
            before.pop();
        }
        UseTree::Name(name) => found.push(import(before, &name.ident, name.ident.to_string())),
        UseTree::Rename(rename) => found.push(import(before, &rename.ident, rename.rename.to_string())),
        UseTree::Glob(_) => found.push(Import { name: "*".to_owned(), path: before.clone() }),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, before, found)),
    }
}
