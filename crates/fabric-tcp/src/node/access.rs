//! Who is let into a node: tokens, and certificates. A running node can be told anew; sessions that are open go on.

use super::event::TokenNumber;
#[cfg(feature = "tls")]
use crate::tls::TlsServer;
use crate::wire::{Grant, Hello, Token};

/// Who is let into a node. Without tokens and TLS: everybody.
#[derive(Clone, Debug, Default)]
pub struct NodeAccess {
    tokens: Vec<Token>,
    reader_tokens: Vec<Token>,
    #[cfg(feature = "tls")]
    tls: Option<TlsServer>,
}

impl NodeAccess {
    /// Lets everybody in.
    #[must_use]
    pub fn new() -> NodeAccess {
        NodeAccess::default()
    }

    /// Lets nobody in who does not know one of the tokens that were named. Several tokens are for the time in which
    /// one takes another's place.
    #[must_use]
    pub fn token(mut self, token: Token) -> NodeAccess {
        self.tokens.push(token);
        self
    }

    /// Lets those who know `token` read, and do nothing else. There may be several.
    #[must_use]
    pub fn reader_token(mut self, token: Token) -> NodeAccess {
        self.reader_tokens.push(token);
        self
    }

    /// Speaks TLS only, and lets those in who show a certificate that `tls` takes. A token may be wanted besides.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: TlsServer) -> NodeAccess {
        self.tls = Some(tls);
        self
    }

    /// How it speaks TLS, if it does.
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

    /// Whether a stranger is kept out.
    pub(super) fn is_guarded(&self) -> bool {
        self.requires_token() || self.requires_tls()
    }

    /// What a client may do, `most` at most, if it may come in.
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

/// Which of `tokens` is `token`, from 1; all of them are compared, so that the time does not tell which.
fn number_of(tokens: &[Token], token: Option<Token>) -> Option<usize> {
    let token = token?;
    let number = (1..).zip(tokens).fold(0, |known, (number, expected)| {
        // A number that is multiplied, and no branch.
        known + number * usize::from(known == 0) * usize::from(expected.matches(&token))
    });
    (number > 0).then_some(number)
}
