//! Token files: files with the access token for a memory node, as 32 hexadecimal digits.
//!
//! Invariants: an error's text never contains a token; a file is refused, because others may know its token, if it
//! belongs to a user other than this one and root, if any user may read it, or if users other than its owner may change
//! it; a file is never replaced.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::owners::is_own_or_of_root;

/// Permission bits that let any user read the file, or its group change it. Its group may read it: services get files
/// that belong to root in this way, and access control lists look the same.
pub(super) const OTHERS_MAY: u32 = 0o027;
/// Bytes that are read from a file: a token with its line end, and enough to notice that there is more.
const MAX_FILE_BYTES: u64 = 64;
/// Hexadecimal digits of a token.
const TOKEN_DIGITS: usize = 32;

/// The access token of a memory node: 128 secret bits. `Debug` does not show it.
#[derive(Clone, Copy)]
pub struct AccessToken(pub(crate) [u64; 2]);

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessToken(..)")
    }
}

/// A token file cannot be read or created. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenFileError {
    /// The operating system refused.
    #[error("cannot {attempt} the token file {}: {source}", path.display())]
    Io {
        /// The attempted action.
        attempt: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        r#source: io::Error,
    },
    /// Any user may read the file, or users other than its owner may change it.
    #[error(
        "the token file {} has mode {mode:o}, so other users may know or change the token; make another with guira \
         token, or use a copy with mode 600",
        path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file belongs to a user other than this one and root.
    #[error(
        "the token file {} belongs to user {owner_uid}, who knows the token and can change it; make one of your own \
         with guira token, or use a copy of your own",
        path.display()
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// The id of the user who owns it.
        owner_uid: u32,
    },
    /// The file does not contain a token.
    #[error(
        "the token file {} does not contain exactly 32 hexadecimal digits; make one with guira token",
        path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
    },
    /// The operating system provides no random numbers.
    #[error("the operating system provides no random numbers: {reason}")]
    Random {
        /// The system's answer.
        reason: String,
    },
}

impl AccessToken {
    /// Reads the token in the file at `path`: 32 hexadecimal digits, and white space around them. The path may be a
    /// pipe, such as a shell's `<(command)`, whose mode is that of its owner.
    ///
    /// # Errors
    /// `Io`; `Owner` if the file belongs to a user other than this one and root; `Exposed` if any user may read it, or
    /// users other than its owner may change it; `Malformed`.
    pub fn read(path: &Path) -> Result<AccessToken, TokenFileError> {
        let failed = |attempt| move |source| TokenFileError::Io { attempt, path: path.to_owned(), source };
        let file = File::open(path).map_err(failed("open"))?;
        // Inspects the opened file, not the path, which may lead elsewhere by now.
        let metadata = file.metadata().map_err(failed("inspect"))?;
        let (owner_uid, mode) = (metadata.uid(), metadata.mode() & 0o777);
        if !is_own_or_of_root(owner_uid) {
            return Err(TokenFileError::Owner { path: path.to_owned(), owner_uid });
        }
        if mode & OTHERS_MAY != 0 {
            return Err(TokenFileError::Exposed { path: path.to_owned(), mode });
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(failed("read"))?;
        AccessToken::parse(&bytes).ok_or_else(|| TokenFileError::Malformed { path: path.to_owned() })
    }

    /// Makes a new token, and creates a file at `path` that only its owner may read.
    ///
    /// # Errors
    /// `Random`; `Io`, also if the name is taken: a file is never replaced, because clients may use its token.
    pub fn create(path: &Path) -> Result<AccessToken, TokenFileError> {
        let failed = |attempt| move |source| TokenFileError::Io { attempt, path: path.to_owned(), source };
        let random = || getrandom::u64().map_err(|error| TokenFileError::Random { reason: error.to_string() });
        let token = AccessToken([random()?, random()?]);
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(path).map_err(failed("create"))?;
        let written = file.write_all(format!("{:016x}{:016x}\n", token.0[0], token.0[1]).as_bytes());
        if let Err(source) = written.and_then(|()| file.sync_all()) {
            // Half a token is useless; if the file cannot be removed either, the error says enough.
            let _ = std::fs::remove_file(path);
            return Err(failed("write")(source));
        }
        Ok(token)
    }

    fn parse(bytes: &[u8]) -> Option<AccessToken> {
        let digits = bytes.trim_ascii();
        if digits.len() != TOKEN_DIGITS || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let text = str::from_utf8(digits).ok()?;
        let word = |digits: &str| u64::from_str_radix(digits, 16).ok();
        Some(AccessToken([word(&text[..16])?, word(&text[16..])?]))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Scratch {
            Scratch(std::env::temp_dir().join(guira_testing::unique_name()))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_token_file_is_private_and_never_replaced() {
        let scratch = Scratch::new();
        let made = AccessToken::create(&scratch.0).unwrap();
        assert_eq!(std::fs::metadata(&scratch.0).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(AccessToken::read(&scratch.0).unwrap().0, made.0);
        assert!(made.0[0] != 0 && made.0[1] != 0 && made.0[0] != made.0[1], "drawn at random");
        let error = AccessToken::create(&scratch.0).unwrap_err();
        assert!(matches!(&error, TokenFileError::Io { attempt: "create", .. }), "{error}");
        assert_eq!(AccessToken::read(&scratch.0).unwrap().0, made.0, "a file is never replaced");
        for mode in [0o604, 0o620, 0o602, 0o660, 0o644, 0o601] {
            std::fs::set_permissions(&scratch.0, std::fs::Permissions::from_mode(mode)).unwrap();
            let error = AccessToken::read(&scratch.0).unwrap_err();
            assert!(matches!(error, TokenFileError::Exposed { mode: seen, .. } if seen == mode), "{mode:o}: {error}");
        }
        for mode in [0o400, 0o440, 0o640] {
            std::fs::set_permissions(&scratch.0, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(AccessToken::read(&scratch.0).unwrap().0, made.0, "{mode:o}");
        }
        assert!(!format!("{made:?}").contains(&format!("{:x}", made.0[0])));
    }

    #[test]
    fn a_token_file_of_another_user_is_refused() {
        let scratch = Scratch::new();
        let made = AccessToken::create(&scratch.0).unwrap();
        if std::os::unix::fs::chown(&scratch.0, Some(65_534), None).is_err() {
            println!("skipped: only root can give files away");
            return;
        }
        let error = AccessToken::read(&scratch.0).unwrap_err();
        assert!(matches!(&error, TokenFileError::Owner { owner_uid: 65_534, .. }), "{error}");
        assert!(!error.to_string().contains(&format!("{:x}", made.0[0])), "{error}");
    }

    #[test]
    fn only_32_hexadecimal_digits_are_a_token() {
        let digits = "00112233445566778899aabbccddEEff";
        let token = AccessToken::parse(format!(" {digits}\n").as_bytes()).unwrap();
        assert_eq!(token.0, [0x0011_2233_4455_6677, 0x8899_aabb_ccdd_eeff]);
        let long = format!("{digits}0");
        for bad in
            ["", "\n", &digits[1..], &long, "+0112233445566778899aabbccddeeff", "zz112233445566778899aabbccddeeff"]
        {
            assert!(AccessToken::parse(bad.as_bytes()).is_none(), "{bad:?}");
        }
        assert!(AccessToken::parse("é112233445566778899aabbccddeef".as_bytes()).is_none());
    }
}
