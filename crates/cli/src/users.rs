//! Names of users, as this host's /etc/passwd has them.

/// The file with the users of this host.
const PASSWD: &str = "/etc/passwd";

/// The name of a user, or its number where this host has none for it.
pub fn name(uid: u32) -> String {
    let users = std::fs::read(PASSWD).unwrap_or_default();
    name_in(&String::from_utf8_lossy(&users), uid).unwrap_or_else(|| uid.to_string())
}

/// The name of the first user with this number: NAME:PASSWORD:UID:…
fn name_in(users: &str, uid: u32) -> Option<String> {
    let mut entries = users.lines().map(|line| line.split(':'));
    entries.find_map(|mut fields| {
        let name = fields.next().filter(|name| !name.is_empty() && !name.contains(char::is_control))?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
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
    }
}
