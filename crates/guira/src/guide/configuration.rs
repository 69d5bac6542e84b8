//! Settings that change while the programs that use them run.
//!
//! One program writes settings, any number of programs read them. Readers take no lock and no client slot, need no
//! write permission, and see a change with the next lookup.
//!
//! ```
//! use std::time::Duration;
//!
//! use guira::{CreateOptions, OpenOptions, Store};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
//! struct Service {
//!     timeout: Duration,
//!     servers: Vec<String>,
//! }
//!
//! # fn main() -> guira::Result<()> {
//! # let name = format!("shm://{}", guira_testing::unique_name());
//! # let name = name.as_str();
//! // The editor. Everybody may read the table (0644), and only this user may change it.
//! let store = Store::create(name, &CreateOptions::new(1_000).mode(0o644))?;
//! let mut editor = store.typed::<str, Service>().client()?;
//! let mail = Service { timeout: Duration::from_secs(3), servers: vec!["mx1".to_owned()] };
//! editor.put("mail", &mail)?;
//!
//! // A program that uses the setting.
//! let settings = Store::open_with(name, &OpenOptions::new().read_only())?;
//! let mut reader = settings.typed::<str, Service>().reader();
//! assert_eq!(reader.get("mail")?, Some(mail));
//!
//! // A change that depends on the value: nothing that another editor writes meanwhile is lost.
//! editor.update_with("mail", |found| {
//!     let mut service = found?; // `None` leaves a missing key missing
//!     service.servers.push("mx2".to_owned());
//!     Some(service)
//! })?;
//! assert_eq!(reader.get("mail")?.map(|service| service.servers.len()), Some(2));
//! # drop(editor);
//! # Store::destroy(name)
//! # }
//! ```
//!
//! **Types.** A table stores bytes and knows nothing of types: all programs that share it must agree on them. Bytes
//! that cannot be decoded are an error ([`OperationErrorKind::WrongType`]) and stay as they are. [`Store::typed`] uses
//! the format of postcard, which has no schema: to change a struct, use new keys, or an enum with a variant for each
//! version.
//!
//! **Several settings that belong together.** There are no changes of several keys at once. Store what must change
//! together under one key; or write the settings first and then a revision number under a key of its own, which readers
//! look up first: a reader that sees the new revision sees every change made before it. The example `live_config` of
//! this crate does so.
//!
//! **Edits that exclude each other.** [`TypedClient::compare_and_swap`] changes a setting only if it still has the
//! value that the editor has read: the second of two editors is told. On bytes, [`Client::get_versioned`] returns a
//! token for the same purpose, which also notices a value that went away and came back.
//!
//! **Noticing changes.** There are no notifications. A lookup costs well under a microsecond in shared memory and one
//! round trip over TCP, so polling a revision is cheap. The example `config_store` of this crate has editors that
//! change the same setting and readers that follow it.
//!
//! [`Client::compare_and_swap`]: crate::Client::compare_and_swap
//! [`Client::get_versioned`]: crate::Client::get_versioned
//! [`OperationErrorKind::WrongType`]: crate::OperationErrorKind::WrongType
//! [`Store::typed`]: crate::Store::typed
//! [`TypedClient::compare_and_swap`]: crate::typed::TypedClient::compare_and_swap
