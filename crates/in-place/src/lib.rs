//! One source text of an operation, compiled twice: as written for every lane, and without a future for lanes that
//! execute their batches in place.
//!
//! A future costs more instructions than a whole lookup in shared memory (docs/decisions/0021), and two copies of a
//! protocol drift apart. So the protocol is written once, as `async fn`s, and the functions that must cost no more than
//! their memory accesses carry [`macro@in_place`].
#![forbid(unsafe_code)]

use proc_macro::{Delimiter, Group, Ident, TokenStream, TokenTree};

/// Suffix of the second function's name.
const SUFFIX: &str = "_in_place";

/// Keeps the `async fn` that follows, and adds `NAME_in_place` after it, made from the same text:
///
/// - it is not `async`, and each awaited call `f(..).await` is `f_in_place(..)`, a function or method that exists
///   under that name (for batches: `guira_fabric::post_in_place`);
/// - the trait `Lane` is `LocalLane`, which must be in scope, and `dyn Lane` is `impl LocalLane`.
///
/// Both functions have the same attributes and documentation. The arguments of the attribute, if there are any, are
/// attributes of the second function only: `#[in_place(inline(always))]`.
///
/// # Errors
/// Does not compile if the item is not an `async fn`, or awaits anything but a call by name.
#[proc_macro_attribute]
pub fn in_place(attributes: TokenStream, function: TokenStream) -> TokenStream {
    match second(attributes, function.clone()) {
        Ok(second) => [function, second].into_iter().collect(),
        Err(message) => format!("compile_error!({message:?});").parse().unwrap_or_default(),
    }
}

/// Returns the second function, or the text of the compile error.
fn second(attributes: TokenStream, function: TokenStream) -> Result<TokenStream, String> {
    let mut made = Vec::new();
    if !attributes.is_empty() {
        made.push(TokenTree::Punct(proc_macro::Punct::new('#', proc_macro::Spacing::Alone)));
        made.push(TokenTree::Group(Group::new(Delimiter::Bracket, attributes)));
    }
    let (mut is_async, mut is_named) = (false, false);
    for token in function {
        match &token {
            TokenTree::Ident(word) if !is_async && word.to_string() == "async" => is_async = true,
            TokenTree::Ident(word) if is_async && !is_named && word.to_string() != "fn" => {
                is_named = true;
                made.push(TokenTree::Ident(Ident::new(&format!("{word}{SUFFIX}"), word.span())));
            }
            _ => push(&mut made, token)?,
        }
    }
    if is_named { Ok(made.into_iter().collect()) } else { Err("in_place is for an async fn".to_owned()) }
}

/// Appends a token of the first function, rewritten for the second.
fn push(made: &mut Vec<TokenTree>, token: TokenTree) -> Result<(), String> {
    match token {
        TokenTree::Group(group) => {
            let mut inner = Vec::new();
            for token in group.stream() {
                push(&mut inner, token)?;
            }
            let mut same = Group::new(group.delimiter(), inner.into_iter().collect());
            same.set_span(group.span());
            made.push(TokenTree::Group(same));
        }
        TokenTree::Ident(word) if word.to_string() == "await" => call_in_place(made)?,
        TokenTree::Ident(word) if word.to_string() == "Lane" => {
            if let Some(TokenTree::Ident(before)) = made.last()
                && before.to_string() == "dyn"
            {
                let span = before.span();
                made.pop();
                made.push(TokenTree::Ident(Ident::new("impl", span)));
            }
            made.push(TokenTree::Ident(Ident::new("LocalLane", word.span())));
        }
        other => made.push(other),
    }
    Ok(())
}

/// Rewrites `f(..).` or `f::<..>(..).`, which stands before an `await`, to `f_in_place(..)`.
fn call_in_place(made: &mut Vec<TokenTree>) -> Result<(), String> {
    let is_call = matches!(made.as_slice(), [.., TokenTree::Group(arguments), TokenTree::Punct(dot)]
        if dot.as_char() == '.' && arguments.delimiter() == Delimiter::Parenthesis);
    if is_call && let Some(TokenTree::Ident(name)) = name_before(made).and_then(|at| made.get_mut(at)) {
        let span = name.span();
        *name = Ident::new(&format!("{name}{SUFFIX}"), span);
        made.pop();
        return Ok(());
    }
    Err("in place, only a call by name can be awaited".to_owned())
}

/// Returns the index of the function's name in the call at the end of `made`, which is followed by a dot.
fn name_before(made: &[TokenTree]) -> Option<usize> {
    let is = |at: usize, sign: char| matches!(&made[at], TokenTree::Punct(punct) if punct.as_char() == sign);
    let mut at = made.len().checked_sub(3)?;
    if is(at, '>') {
        let mut depth = 0;
        loop {
            depth += i32::from(is(at, '>')) - i32::from(is(at, '<'));
            at = at.checked_sub(1)?;
            if depth == 0 {
                break;
            }
        }
        // Skips the two colons before the generics.
        at = at.checked_sub(2)?;
    }
    Some(at)
}
