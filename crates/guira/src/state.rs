//! Tokens of a key's state, and the results of changes that depend on it.

use guira_layout::{Generation, RowId, Version};
use guira_rcuckoo::{Operation, Outcome, Table};

use crate::{Error, OperationErrorKind};

/// A token of the state that a key was in when it was read ([`crate::Client::get_versioned`]), for
/// [`crate::Client::compare_and_swap`] and [`crate::Client::compare_and_remove`].
///
/// A change that depends on a token takes effect only if no client has changed the key since, not even to another value
/// and back. It may also fail if none has: an inline value shares its version with its neighbours in the row. Then read
/// and try again. A token belongs to one table, and other tables refuse it. It may be kept for as long as the table
/// exists. Source: R-CAS-2.
///
/// ```
/// # use guira::{CreateOptions, Store, Url};
/// # fn main() -> Result<(), guira::Error> {
/// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
/// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
/// # let mut client = store.client()?;
/// client.put(b"cuckoo", b"one")?;
/// let seen = client.get_versioned(b"cuckoo")?.expect("it was put").token;
/// client.put(b"cuckoo", b"two")?;
/// client.put(b"cuckoo", b"one")?;
/// assert_eq!(guira::Token::from_words(seen.to_words()), Some(seen));
/// // The value is the same again, but the state is not.
/// assert_eq!(client.compare_and_swap(b"cuckoo", seen, b"three")?, guira::Swap::Different);
/// assert_eq!(client.compare_and_swap(b"cuckoo", b"one", b"three")?, guira::Swap::Done);
/// # drop(client);
/// # Store::destroy(&url)
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    state: guira_rcuckoo::Token,
    /// The table's incarnation, drawn whenever one is formatted.
    incarnation: u64,
}

impl Token {
    pub(crate) fn new(table: &Table, state: guira_rcuckoo::Token) -> Token {
        Token { state, incarnation: table.superblock().incarnation }
    }

    /// Returns the token as four words, for programs in other languages: their meaning may change with each version of
    /// this library.
    pub fn to_words(self) -> [u64; 4] {
        match self.state {
            guira_rcuckoo::Token::Inline { row, version } => [self.incarnation, 0, row.0, version.0.into()],
            guira_rcuckoo::Token::Extent { generation } => [self.incarnation, 1, generation.0, 0],
        }
    }

    /// Returns the token of these words, from [`Self::to_words`]; `None` if no token has them.
    pub fn from_words(words: [u64; 4]) -> Option<Token> {
        let [incarnation, kind, first, second] = words;
        let state = match (kind, u32::try_from(second)) {
            (0, Ok(version)) => guira_rcuckoo::Token::Inline { row: RowId(first), version: Version(version) },
            (1, Ok(0)) => guira_rcuckoo::Token::Extent { generation: Generation(first) },
            _ => return None,
        };
        Some(Token { state, incarnation })
    }
}

/// A value and the state it was read in, from [`crate::Client::get_versioned`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Versioned {
    /// The value.
    pub value: Vec<u8>,
    /// The token of the state.
    pub token: Token,
}

/// The precondition of a change: the value or the state that the key must have. Converts from a value (`b"old"`,
/// `&bytes`) or a [`Token`].
///
/// ```
/// use guira::Expected;
///
/// let old = vec![7, 7];
/// assert_eq!(Expected::from(&old), Expected::Value(&[7, 7]));
/// assert_eq!(Expected::from(b"old"), Expected::Value(b"old"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected<'v> {
    /// The key has this value, whatever it had in the meantime: does not notice a value that changed and changed back
    /// (ABA). Source: R-CAS-1.
    Value(&'v [u8]),
    /// No client has changed the key since it was read. Source: R-CAS-2.
    Unchanged(Token),
}

impl<'v> Expected<'v> {
    /// Converts the precondition for `table`.
    pub(crate) fn of(self, table: &Table, operation: Operation) -> Result<guira_rcuckoo::Expected<'v>, Error> {
        match self {
            Expected::Value(value) => Ok(guira_rcuckoo::Expected::Value(value)),
            Expected::Unchanged(token) if token.incarnation == table.superblock().incarnation => {
                Ok(guira_rcuckoo::Expected::Unchanged(token.state))
            }
            // Rows, versions and generations are small numbers: in another table, the same ones may exist.
            Expected::Unchanged(_) => Err(OperationErrorKind::ForeignToken.during(operation).into()),
        }
    }
}

impl From<Token> for Expected<'_> {
    fn from(token: Token) -> Self {
        Expected::Unchanged(token)
    }
}

impl<'v> From<&'v [u8]> for Expected<'v> {
    fn from(value: &'v [u8]) -> Self {
        Expected::Value(value)
    }
}

impl<'v, const N: usize> From<&'v [u8; N]> for Expected<'v> {
    fn from(value: &'v [u8; N]) -> Self {
        Expected::Value(value)
    }
}

impl<'v> From<&'v Vec<u8>> for Expected<'v> {
    fn from(value: &'v Vec<u8>) -> Self {
        Expected::Value(value)
    }
}

/// The effect of [`crate::Client::put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The key did not exist, and was inserted.
    Inserted,
    /// The key existed, and its value was replaced.
    Replaced,
}

/// The effect of a change that depends on the key's state: [`crate::Client::compare_and_swap`],
/// [`crate::Client::compare_and_remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the key may have been in another state, and nothing changed"]
pub enum Swap {
    /// The key was as expected, and was changed.
    Done,
    /// Nothing changed: the key is in another state.
    Different,
    /// Nothing changed: there is no such key.
    Missing,
}

impl Swap {
    /// Whether the change was made: this is [`Swap::Done`].
    pub fn is_done(self) -> bool {
        self == Swap::Done
    }

    pub(crate) fn of(outcome: Outcome) -> Swap {
        match outcome {
            Outcome::Different => Swap::Different,
            Outcome::Missing => Swap::Missing,
            Outcome::Inserted | Outcome::Replaced | Outcome::Removed | Outcome::Exists => Swap::Done,
        }
    }
}
