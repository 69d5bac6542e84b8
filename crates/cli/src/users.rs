//! Names and numbers of users, from /etc/passwd of this host.

/// The file with the users of this host.
const PASSWD: &str = "/etc/passwd";

/// Returns the name of a user, or its number if it has no name on this host.
pub fn name(uid: u32) -> String {
    let users = std::fs::read(PASSWD).unwrap_or_default();
    name_in(&String::from_utf8_lossy(&users), uid).unwrap_or_else(|| uid.to_string())
}

/// Finds the name of the first user with this number in lines of the form NAME:PASSWORD:UID:…
fn name_in(users: &str, uid: u32) -> Option<String> {
    let mut entries = users.lines().map(|line| line.split(':'));
    entries.find_map(|mut fields| {
        let name = fields.next().filter(|name| !name.is_empty() && !name.contains(char::is_control))?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// Parses the name or the number of a user.
///
/// # Errors
/// The text is neither.
pub fn parse(text: &str) -> Result<u32, String> {
    let users = std::fs::read(PASSWD).unwrap_or_default();
    let known = uid_in(&String::from_utf8_lossy(&users), text).or_else(|| text.parse().ok());
    known.ok_or_else(|| format!("{text:?} is not a user of this host; use a name from {PASSWD} or a number"))
}

/// Finds the number of the first user with this name.
fn uid_in(users: &str, name: &str) -> Option<u32> {
    let mut entries = users.lines().map(|line| line.split(':'));
    entries.find_map(|mut fields| (fields.next()? == name && !name.is_empty()).then(|| fields.nth(1)?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names_or_numbers() {
        let users = "root:x:0:0:root:/root:/bin/sh\nbroken\n:x:7:7::/:\nada:x:1000:1000:Ada:/home/ada:/bin/sh\n";
        let names = [0, 1000, 7, 12].map(|uid| name_in(users, uid));
        assert_eq!(names, [Some("root".to_owned()), Some("ada".to_owned()), None, None]);
        assert_eq!(name(4_000_000_000), "4000000000");
        let numbers = ["root", "ada", "broken", "", "x"].map(|name| uid_in(users, name));
        assert_eq!(numbers, [Some(0), Some(1000), None, None, None]);
        assert_eq!((parse("root"), parse("4000000000")), (Ok(0), Ok(4_000_000_000)));
        for bad in ["nobody by that name", "-1", "4294967296", "1.5"] {
            assert!(parse(bad).unwrap_err().contains("not a user"), "{bad}");
        }
    }
}
