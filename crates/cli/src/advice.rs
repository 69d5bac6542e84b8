//! Advice on what can be done about a failure: the commands that messages name.
//!
//! Invariants: a command works as it is printed, pasted into a shell by the user who reads it, except for words in
//! capitals; it is named only if it applies to the table, its owner and its file system.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use guira::admin::{LivingClient, shell_word};
use guira::errors::{
    AttachError, CloseReason, ConnectError, DamagedItem, LockFileProblem, ShmError, TlsFileError, TokenFileError,
};
use guira::{Error, OpenError, OpenOptions, OperationError, OperationErrorKind, Store, Url};
use guira_input::InputError;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

use crate::arguments::Command;
use crate::capacity::{self, ExistingRecords, FullDuring, Target};
use crate::commands::{TOKEN_FILE_VARIABLE, open_options, tls, url};
use crate::failure::Failure;

/// Permission bits of a file with a token or a key that it must not have, as for the library.
const OTHERS_MAY: u32 = 0o027;

/// The commands of this program that messages name. The suite fails if none of its tests executes one of them as a
/// message has it.
#[derive(Clone, Copy, Debug)]
pub enum Advised {
    CheckRepair,
    Copy,
    CopyMerge,
    Create,
    Destroy,
    Kick,
    Load,
    Serve,
    Stat,
}

impl Advised {
    fn words(self) -> &'static [&'static str] {
        match self {
            Advised::CheckRepair => &["check", "--repair"],
            Advised::Copy => &["copy"],
            Advised::CopyMerge => &["copy", "--merge"],
            Advised::Create => &["create"],
            Advised::Destroy => &["destroy"],
            Advised::Kick => &["kick"],
            Advised::Load => &["load"],
            Advised::Serve => &["serve"],
            Advised::Stat => &["stat"],
        }
    }
}

/// Returns a command of this program, as a shell takes it. If it reaches a memory node, it has the TLS options of this
/// process; what the environment has, it has as well.
pub fn guira(command: Advised, words: &[&str]) -> String {
    let is_of_node = |word: &&str| word.starts_with("tcp://") || word.starts_with("rdma://");
    let options = if words.iter().any(is_of_node) { tls::words() } else { Vec::new() };
    let words = command.words().iter().chain(words).copied().chain(options.iter().map(String::as_str)).map(shell_word);
    ["guira".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

/// Returns the command that creates a table at `url`, for a usual number of keys, and its directory if there is none.
pub fn create(url: &Url) -> String {
    let create = guira(Advised::Create, &[&url.to_string(), "--capacity", "10k"]);
    match url.path().as_deref().and_then(Path::parent).filter(|directory| !directory.exists()) {
        Some(directory) => format!("mkdir -p {} && {create}", shell_word(&directory.to_string_lossy())),
        None => create,
    }
}

/// Says how to remove the table at `url`, if this user can: a memory node removes its own.
pub fn destroy(url: &Url) -> Option<String> {
    let path = url.path()?;
    let directory = path.parent()?.metadata().ok()?;
    let own = rustix::process::geteuid().as_raw();
    let is_ours = [path.metadata().ok()?.uid(), directory.uid(), 0].contains(&own);
    // In a directory with the sticky bit, a name is removed by the owner of the file or of the directory.
    let may_remove = (is_ours || directory.mode() & 0o1000 == 0) && writable(path.parent()?).is_ok();
    may_remove.then(|| format!("{} removes it and everything in it", guira(Advised::Destroy, &[&url.to_string()])))
}

/// Says how to kill the process of a client slot: that of another user is killed by root.
pub fn kick(url: &Url, slot: u16, process: u64) -> String {
    let own = rustix::process::geteuid();
    let is_ours = |process: u64| Path::new(&format!("/proc/{process}")).metadata().map(|it| it.uid() == own.as_raw());
    let may_kill = url.path().is_none() || own.is_root() || is_ours(process).unwrap_or(false);
    let kick = guira(Advised::Kick, &[&url.to_string(), "--slot", &slot.to_string()]);
    if may_kill { kick } else { format!("as root, {kick}") }
}

/// Returns the failure of an input, with the command that converts it to text in UTF-8, if that helps; `reading` is the
/// rest of the command, which reads the text, for the name of the file.
pub fn of_input(failure: Failure, file: &Path, reading: impl FnOnce(&str) -> String) -> Failure {
    let Failure::Input { source: InputError::NotText { converter, .. }, .. } = &failure else { return failure };
    let file = if file == Path::new("-") { "FILE".into() } else { file.to_string_lossy() };
    let advice = format!("convert it: {converter} {} {}", shell_word(&file), reading(&file));
    Failure::Advised { advice, source: Box::new(failure) }
}

/// Returns advice on a command's failure, if there is any.
pub fn of_failure(command: &Command, failure: &Failure) -> Option<String> {
    let error = failure.of_store()?;
    match error {
        Error::Open(OpenError::AccessToken(
            TokenFileError::Exposed { path, .. } | TokenFileError::Owner { path, .. },
        ))
        | Error::Open(OpenError::TokenFile { path, .. }) => private(path),
        Error::Open(OpenError::TlsFile(error)) => match &**error {
            TlsFileError::Exposed { path, .. } | TlsFileError::Owner { path, .. } => private(path),
            _ => None,
        },
        Error::Open(OpenError::ReadOnlyGrant { .. }) => Some(format!(
            "set {TOKEN_FILE_VARIABLE} to the file of a token with write access: --token-file of guira serve"
        )),
        Error::Open(OpenError::Connect { source, .. }) => rejected(source),
        Error::Open(OpenError::Rdma { source, .. }) => match &**source {
            AttachError::Connect(source) => rejected(source),
            _ => None,
        },
        error => of_error(command, url(command)?, error),
    }
}

/// Returns advice on a session that a memory node refused.
fn rejected(error: &ConnectError) -> Option<String> {
    let ConnectError::Rejected { reason, .. } = error else { return None };
    match reason {
        CloseReason::Unauthorized => {
            Some(match std::env::var_os(TOKEN_FILE_VARIABLE).filter(|path| !path.is_empty()) {
                Some(path) => {
                    format!("{TOKEN_FILE_VARIABLE} is {}, not the file of a token of this node", path.display())
                }
                None => format!("set {TOKEN_FILE_VARIABLE} to the file of the node's token"),
            })
        }
        CloseReason::TlsRequired => Some("add --tls-ca FILE --tls-cert FILE --tls-key FILE".to_owned()),
        _ => None,
    }
}

/// Returns advice on an error about the table at `url`, such as a lock of another client.
fn of_error(command: &Command, url: &Url, error: &Error) -> Option<String> {
    let table = url.to_string();
    match error {
        Error::Operation(OperationError { kind: OperationErrorKind::Busy { owner, .. }, .. }) => {
            busy(url, owner.as_ref()?.slot()?)
        }
        Error::Operation(OperationError {
            kind: OperationErrorKind::Corrupt { item: DamagedItem::Lock(_) }, ..
        }) => Some(format!("{} frees it once no client is alive", guira(Advised::CheckRepair, &[&table]))),
        Error::Open(OpenError::TooManyClients { .. }) => Some(format!(
            "{} lists them, {} kills the process of one; guira create --max-clients N makes a table for more clients",
            guira(Advised::Stat, &[&table]),
            guira(Advised::Kick, &[&table, "--slot", "N"]),
        )),
        Error::Operation(OperationError { kind: OperationErrorKind::Full { .. }, .. }) => {
            larger_table(command, url, None)
        }
        Error::Operation(OperationError { kind: OperationErrorKind::NoSpace(space), .. })
            if space.refused.is_none() =>
        {
            larger_table(command, url, Some(space.value_bytes as u64))
        }
        Error::Open(OpenError::Region(ShmError::LockFile { problem, .. }))
            if !matches!(problem, LockFileProblem::Forbidden { .. }) =>
        {
            let store = open(url)?;
            let target = Target { url, from: None, existing: ExistingRecords::Keep };
            Some(capacity::another(target, store.table().config()))
        }
        _ => None,
    }
}

/// Returns advice on a lock of the client in `slot`.
fn busy(url: &Url, slot: u16) -> Option<String> {
    let store = open(url)?;
    let lock = store.slot_lock().ok()?.filter(|lock| (lock.first_slot..=lock.last_slot).contains(&slot));
    if let Some(lock) = lock {
        return Some(format!("cannot tell whether the client in slot {slot} is alive, because {lock}"));
    }
    let who = store.client_in(slot).ok()??;
    let (process, doing) = (who.process, doing(&who));
    let kill = match who.frozen {
        true => "thaw its control group, or kill it with kill -9".to_owned(),
        false => format!("{} kills that process", kick(url, slot, process)),
    };
    let stat = guira(Advised::Stat, &[&url.to_string()]);
    Some(format!("process {process} has client slot {slot}{doing}: {stat} lists the clients, {kill}"))
}

/// Describes the state of a client, as a continuation of a sentence.
fn doing(client: &LivingClient) -> &'static str {
    match client {
        LivingClient { frozen: true, .. } => " and is frozen with its control group",
        LivingClient { stopped: true, recovering: true, .. } => " and is stopped while recovering its dead client",
        LivingClient { stopped: true, .. } => " and is stopped",
        LivingClient { recovering: true, .. } => " and is recovering its dead client",
        _ => "",
    }
}

/// Returns the commands that make a larger table than the one at `url`.
fn larger_table(command: &Command, url: &Url, record_bytes: Option<u64>) -> Option<String> {
    if matches!(command, Command::Ycsb(_)) {
        // Its records need not be kept: the user can run with fewer.
        return None;
    }
    let store = open(url)?;
    let target = match command {
        Command::Copy(arguments) => arguments.target(),
        _ => Target { url, from: None, existing: ExistingRecords::Keep },
    };
    let stat = matches!(command, Command::Load(_)).then(|| store.stat().ok()).flatten();
    let full = stat.as_ref().map_or(FullDuring::Change, FullDuring::Load);
    Some(capacity::advice(target, store.table().config(), full, record_bytes))
}

fn open(url: &Url) -> Option<Store> {
    Store::open_with(url, &open_options().ok()?.read_only()).ok()
}

/// Returns a URL derived from `url` that no table has, where this user can create one.
pub fn free_url(url: &Url) -> String {
    let name = url.path().and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
    let elsewhere = url.path().filter(|path| path.parent().is_some_and(|directory| writable(directory).is_err()));
    let base = match (elsewhere, name) {
        (Some(_), Some(name)) => Url::shm(&name).map_or_else(|_| url.to_string(), |url| url.to_string()),
        _ => url.to_string(),
    };
    let named = |number: u32| format!("{base}-{number}");
    let is_free = |name: &String| {
        Store::open_with(name, &OpenOptions::default().read_only()).is_err_and(|error| error.is_not_found())
    };
    (2..100).map(named).find(is_free).unwrap_or_else(|| named(2))
}

/// Says what makes a file with a token or a key private, if it is not.
fn private(path: &Path) -> Option<String> {
    // No other file, such as a device, is changed for this.
    let metadata = path.metadata().ok().filter(|metadata| metadata.is_file())?;
    let own = rustix::process::geteuid();
    if metadata.mode() & OTHERS_MAY == 0 && [own.as_raw(), 0].contains(&metadata.uid()) {
        return None;
    }
    let (shown, copy) = (shell_word(&path.to_string_lossy()), path.file_name()?.to_string_lossy());
    let copied = format!("install -m 600 {shown} {}", shell_word(&format!("{copy}.private")));
    Some(match writable(path) {
        Err(Errno::ROFS) => format!(
            "its file system is mounted read-only, so copy it: {copied}; a secret of Kubernetes can have defaultMode: \
             0440"
        ),
        _ if own.is_root() || metadata.uid() == own.as_raw() => format!("chmod 600 {shown}"),
        _ => format!("it is not yours, so copy it: {copied}"),
    })
}

fn writable(path: &Path) -> Result<(), Errno> {
    accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_device_is_advised_to_be_private() {
        assert_eq!(private(Path::new("/dev/null")), None);
    }

    #[test]
    fn only_tables_that_this_user_can_remove_are_advised_to_be_removed() {
        assert_eq!(destroy(&"tcp://mem1".parse().unwrap()), None);
        assert_eq!(destroy(&"file:///proc/self/status".parse().unwrap()), None);
    }
}
