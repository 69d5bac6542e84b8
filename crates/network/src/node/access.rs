//! The access control of a node: tokens and certificates. It can be replaced while the node runs; open sessions
//! continue.

use super::event::TokenNumber;
#[cfg(feature = "tls")]
use crate::tls::TlsServer;
use crate::wire::{Grant, Hello, Token};

/// The access control of a node. Without tokens and TLS every client is admitted.
#[derive(Clone, Debug, Default)]
pub struct NodeAccess {
    tokens: Vec<Token>,
    reader_tokens: Vec<Token>,
    #[cfg(feature = "tls")]
    tls: Option<TlsServer>,
}

impl NodeAccess {
    /// Creates an access control that admits every client.
    #[must_use]
    pub fn new() -> NodeAccess {
        NodeAccess::default()
    }

    /// Adds a token for read and write access; without one of the tokens a client is refused. Several tokens serve to
    /// replace one by another.
    #[must_use]
    pub fn token(mut self, token: Token) -> NodeAccess {
        self.tokens.push(token);
        self
    }

    /// Adds a token for read-only access. There may be several.
    #[must_use]
    pub fn reader_token(mut self, token: Token) -> NodeAccess {
        self.reader_tokens.push(token);
        self
    }

    /// Requires TLS and a client certificate that `tls` accepts. A token may be required as well.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: TlsServer) -> NodeAccess {
        self.tls = Some(tls);
        self
    }

    /// Returns the TLS configuration, if TLS is required.
    #[cfg(feature = "tls")]
    pub(super) fn tls_server(&self) -> Option<&TlsServer> {
        self.tls.as_ref()
    }

    #[cfg(feature = "tls")]
    fn requires_tls(&self) -> bool {
        self.tls.is_some()
    }

    #[cfg(not(feature = "tls"))]
    fn requires_tls(&self) -> bool {
        false
    }

    fn requires_token(&self) -> bool {
        !self.tokens.is_empty() || !self.reader_tokens.is_empty()
    }

    /// Whether clients must authenticate.
    pub(super) fn is_guarded(&self) -> bool {
        self.requires_token() || self.requires_tls()
    }

    /// Returns the access of a client, at most `most`, and its token; `None` if the client is refused.
    pub(super) fn granted(&self, hello: &Hello, most: Grant) -> Option<(Grant, Option<TokenNumber>)> {
        let (writer, reader) = (number_of(&self.tokens, hello.token), number_of(&self.reader_tokens, hello.token));
        let (allowed, token) = match (writer, reader) {
            (Some(number), _) => (most, Some(TokenNumber::Writer(number))),
            (None, Some(number)) => (Grant::ReadOnly, Some(TokenNumber::Reader(number))),
            (None, None) if self.requires_token() => return None,
            (None, None) => (most, None),
        };
        Some((if hello.wanted == Grant::ReadWrite { allowed } else { Grant::ReadOnly }, token))
    }
}

/// Returns the number of `token` in `tokens`, from 1; all are compared, so that the time does not depend on which it
/// is.
fn number_of(tokens: &[Token], token: Option<Token>) -> Option<usize> {
    let token = token?;
    let number = (1..).zip(tokens).fold(0, |known, (number, expected)| {
        // A multiplication instead of a branch.
        known + number * usize::from(known == 0) * usize::from(expected.matches(&token))
    });
    (number > 0).then_some(number)
}
