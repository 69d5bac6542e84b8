//! Every command that a message advises works as it is printed, and helps.

use std::process::Command;

use guira_testing::{ScratchFolder, wait_until};

use crate::common::{Run, Table, guira, guira_with_input, mounting_shell, sh};
use crate::repair::{Loader, clients, signal};
use crate::serve::Server;

/// A case of advice: what provokes it, where its command is, and what must succeed once it was carried out: scripts of
/// `sh`, one after the other in one folder.
struct Case {
    name: &'static str,
    provoke: &'static str,
    code: i32,
    /// The text before the command, and behind it; empty for the end of the line.
    around: (&'static str, &'static str),
    after: &'static str,
}

/// The commands that messages of the program name, by the tests that execute each of them.
const EXECUTED: [(&str, fn()); 9] = [
    ("CheckRepair", the_advice_about_clients_works),
    ("Copy", advised_commands_work_as_they_are_printed),
    ("CopyMerge", advised_commands_work_as_they_are_printed),
    ("Create", advised_commands_work_as_they_are_printed),
    ("Destroy", advised_commands_work_as_they_are_printed),
    ("Kick", the_advice_about_clients_works),
    ("Load", advised_commands_work_as_they_are_printed),
    ("Serve", the_advice_for_a_full_table_of_a_node_works),
    ("Stat", the_advice_about_clients_works),
];

/// A command that messages name from now on needs a test.
#[test]
fn every_advised_command_is_executed() {
    let (_, commands) = include_str!("../../src/advice.rs").split_once("pub enum Advised {\n").expect("the commands");
    let (commands, _) = commands.split_once('}').expect("the end of the commands");
    assert!(commands.split(',').map(str::trim).eq(EXECUTED.map(|(command, _)| command).into_iter().chain([""])));
}

/// A table in a folder whose name a shell takes apart.
const BIRDS: &str = "mkdir \"my t's\"; B=\"file://$PWD/my t's/birds\"; guira create \"$B\" --capacity 1k >/dev/null;";

const CASES: [Case; 17] = [
    Case {
        name: "no such table",
        provoke: "guira put \"file://$PWD/a b\" heron Garza",
        code: 1,
        around: ("with: ", ""),
        after: "guira put \"file://$PWD/a b\" heron Garza",
    },
    Case {
        name: "a table to destroy",
        provoke: "guira create \"$B\" --capacity 1k",
        code: 1,
        around: ("nothing was changed; ", " removes it"),
        after: "guira create \"$B\" --capacity 1k",
    },
    Case {
        name: "a table of another format",
        provoke: "guira create \"$B\" --capacity 1k --entry fixed:8:8 --if-missing",
        code: 2,
        around: ("another table; ", " removes it"),
        after: "guira create \"$B\" --capacity 1k --entry fixed:8:8 --if-missing",
    },
    Case {
        name: "full of keys",
        provoke: "seq 3000 | sed 's/$/\tx/' > in; guira load \"$B\" in",
        code: 3,
        around: ("larger table with: ", ""),
        after: "test $(guira dump \"$B-2\" | wc -l) -ge 1000 && seq 9000 9900 | sed 's/$/\tx/' | guira load \"$B-2\" -",
    },
    Case {
        name: "full of keys of fixed length",
        provoke: "guira create file://$PWD/f --capacity 100 --entry fixed:4:1; seq 1000 3000 | sed 's/$/\tx/' | \
                  guira load file://$PWD/f -",
        code: 3,
        around: ("larger table with: ", ""),
        after: "guira put file://$PWD/f-2 9999 y && guira get file://$PWD/f-2 1000",
    },
    Case {
        name: "full of keys, and grown as far as it may",
        provoke: "guira create file://$PWD/g --capacity 1k --max-capacity 3k; seq 9000 | sed 's/$/\tx/' | \
                  guira load file://$PWD/g -",
        code: 3,
        around: ("larger table with: ", ""),
        after: "guira get file://$PWD/g-2 1000 && seq 9000 | sed 's/$/\ty/' | guira load file://$PWD/g-2 - && \
                guira stat file://$PWD/g-2 | grep 'grows to'",
    },
    Case {
        name: "full of large values",
        provoke: "head -c 9000000 /dev/zero > value; guira put \"$B\" big --value-file value",
        code: 3,
        around: ("larger table with: ", ""),
        after: "guira put \"$B-2\" big --value-file value",
    },
    Case {
        name: "a copy into a table with too little room",
        provoke: "guira create file://$PWD/from --capacity 3k; seq 3000 | sed 's/$/\tx/' | \
                  guira load file://$PWD/from -; guira put \"$B\" own x; guira copy file://$PWD/from \"$B\" --merge",
        code: 3,
        around: ("larger table with: ", ""),
        after: "guira get \"$B-2\" own && guira get \"$B-2\" 3000",
    },
    Case {
        name: "a lost lock file",
        provoke: "guira create file://$PWD/shared --capacity 1k --mode 644; guira put file://$PWD/shared heron Garza; \
                  rm shared.*.locks; guira put file://$PWD/shared heron Garza",
        code: 3,
        around: ("new table with: ", ""),
        after: "guira get file://$PWD/shared-2 heron && guira put file://$PWD/shared-2 heron Garza",
    },
    Case {
        name: "text in UTF-16",
        provoke: "printf 'heron\tGarza\n' | iconv -f UTF-8 -t UTF-16 > \"in the wild\"; \
                  guira load \"$B\" 'in the wild'",
        code: 2,
        around: ("convert it: ", ""),
        after: "guira get \"$B\" heron",
    },
    Case {
        name: "a table in a directory that is not there",
        provoke: "guira get \"file://$PWD/no such/directory/birds\" heron",
        code: 1,
        around: ("with: ", ""),
        after: "guira put \"file://$PWD/no such/directory/birds\" heron Garza",
    },
    Case {
        name: "a compressed file of digits",
        provoke: "printf '6b\t76\n' | gzip > in.gz; guira load --hex \"$B\" in.gz",
        code: 2,
        around: ("convert it: ", ""),
        after: "guira get \"$B\" k",
    },
    Case {
        name: "a compressed file, for a new table",
        provoke: "printf 'heron\tGarza\n' | gzip > 'in the.gz'; guira load \"file://$PWD/a b\" 'in the.gz' --create",
        code: 2,
        around: ("convert it: ", ""),
        after: "guira get \"file://$PWD/a b\" heron",
    },
    Case {
        name: "text in UTF-16, for quickstart",
        provoke: "printf 'heron\tGarza\n' | iconv -f UTF-8 -t UTF-16 > \"in the wild\"; \
                  guira quickstart 'in the wild'",
        code: 2,
        around: ("convert it: ", ""),
        after: "guira quickstart 'in the wild.utf8' --url \"file://$PWD/a b\"",
    },
    Case {
        name: "a token that others may read",
        provoke: "guira token 'the token' >/dev/null; chmod 644 'the token'; \
                  GUIRA_TOKEN_FILE='the token' guira get tcp://127.0.0.1:1 heron",
        code: 3,
        around: ("a copy with mode 600; ", ""),
        after: "GUIRA_TOKEN_FILE='the token' guira get tcp://127.0.0.1:1 heron 2>&1 | grep 'connection refused'",
    },
    Case {
        name: "a key with a dash",
        provoke: "guira put \"$B\" -- -v 7; guira get \"$B\" -v",
        code: 2,
        around: ("as a value, use '", "'"),
        after: "",
    },
    Case {
        name: "a table that is not there, for doctor",
        provoke: "guira doctor \"file://$PWD/a b\"",
        code: 1,
        around: ("-> create the table: ", ""),
        after: "guira put \"file://$PWD/a b\" heron Garza",
    },
];

fn run(folder: &ScratchFolder, script: &str) -> Run {
    let script = format!("B=\"file://$PWD/my t's/birds\"; {script}");
    Run::of(sh(Command::new("sh"), folder).arg(&script).output().expect("sh runs"), &[&script])
}

#[test]
fn advised_commands_work_as_they_are_printed() {
    for Case { name, provoke, code, around, after } in CASES {
        println!("{name}");
        let folder = ScratchFolder::in_shared_memory();
        run(&folder, BIRDS).expect(0);
        let refused = run(&folder, provoke).expect(code);
        let said = refused.text() + &refused.stderr;
        let (_, advice) = said.rsplit_once(around.0).unwrap_or_else(|| panic!("{name}: no {:?} in {said}", around.0));
        let line = advice.lines().next().unwrap_or_default();
        let command = if around.1.is_empty() { line } else { line.split(around.1).next().unwrap_or_default() };
        println!("  {command}");
        let command = match command.strip_prefix("-- ") {
            Some(_) => format!("guira get \"$B\" {command}"),
            None => command.to_owned(),
        };
        run(&folder, &command).expect(0);
        run(&folder, after).expect(0);
    }
}

/// Returns what is between two texts, the first time.
fn between<'t>(text: &'t str, before: &str, behind: &str) -> &'t str {
    let found = text.split_once(before).and_then(|(_, text)| text.split_once(behind));
    found.unwrap_or_else(|| panic!("no {before:?} before {behind:?} in {text}")).0
}

/// A stopped client is found and killed, and a dead one recovered, by the commands that messages name.
#[test]
fn the_advice_about_clients_works() {
    let folder = ScratchFolder::in_shared_memory();
    let table = Table::unused("advice");
    guira(&["create", table.url(), "--capacity", "100", "--max-clients", "1"]).expect(0);
    let mut loader = Loader::start(&table);
    let process = loader.id().to_string();
    let kills = |run: Run, behind: &str| between(&(run.text() + &run.stderr), "; guira kick ", behind).to_owned();

    signal(&loader, "-STOP");
    wait_until("it is reported as stopped", || clients(&table)[0]["state"] == "stopped");
    let listed = guira(&["list"]).expect(0).text();
    let stat = between(&listed, &format!("{}: 1 of its clients stopped; ", table.url()), " lists them");
    assert!(run(&folder, stat).expect(0).text().contains(&process));
    let full = guira(&["put", table.url(), "key", "value"]).expect(3).stderr;
    let stat = between(&full, "clients that died)", " lists them").rsplit("; ").next().expect("a part");
    assert!(run(&folder, stat).expect(0).text().contains(&process));
    // The number of the slot is one of those that it lists.
    let kick = between(&full, "lists them, ", " kills the process").replace("--slot N", "--slot 0");
    assert!(run(&folder, &kick).expect(0).text().contains(&format!("killed process {process}")));
    loader.kill();

    let mut loader = Loader::start(&table);
    signal(&loader, "-STOP");
    wait_until("it is reported as stopped", || clients(&table)[0]["state"] == "stopped");
    let kick = kills(guira(&["check", "--repair", table.url()]).expect(0), " kills it");
    run(&folder, &format!("guira kick {kick}")).expect(0);
    loader.kill();

    let mut loader = Loader::start(&table);
    loader.kill();
    let checked = guira(&["check", table.url()]).expect(0).text();
    let repair = between(&checked, "1 dead client to recover (", ")");
    assert!(run(&folder, repair).expect(0).text().contains("1 dead client recovered"));
}

/// The placeholders are the address of the node that the first command starts.
#[test]
fn the_advice_for_a_full_table_of_a_node_works() {
    let folder = ScratchFolder::in_shared_memory();
    let node = Server::start(&["--capacity", "100", "--entry", "fixed:4:1"]);
    let lines: String = (1000..3000).map(|n| format!("{n}\tx\n")).collect();
    let full = guira_with_input(&["load", &format!("tcp://{}", node.addr()), "-"], lines.as_bytes()).expect(3).stderr;
    let (_, commands) = full.rsplit_once("fill it with: guira serve ").expect("commands");
    let (serve, copy) = commands.trim().split_once("; ").expect("two commands");
    let larger = Server::start(&serve.split(' ').collect::<Vec<_>>());
    let copied = run(&folder, &copy.replace("HOST:PORT", larger.addr())).expect(0).text();
    assert!(copied.contains("verified: "), "{copied}");
    guira(&["put", &format!("tcp://{}", larger.addr()), "9999", "y"]).expect(0);
}

/// The commands at the end of quickstart work, too.
#[test]
fn the_next_steps_of_quickstart_work() {
    let folder = ScratchFolder::in_shared_memory();
    let quickstart = "printf 'the heron\tGarza\n' > in; guira quickstart in --keep --url \"file://$PWD/a b\"";
    let said = run(&folder, quickstart).expect(0).text();
    let (_, steps) = said.split_once("Try:\n").expect("next steps");
    let commands: Vec<&str> = steps.lines().map_while(|line| line.strip_prefix("  ")).collect();
    assert_eq!(commands.len(), 4, "{said}");
    for command in commands {
        run(&folder, command).expect(0);
    }
}

/// A token on a read-only file system, as containers have it, is copied.
#[test]
fn a_token_that_cannot_be_changed_is_copied() {
    let run = mounting_shell(
        "mkdir secret && mount -t tmpfs tmpfs secret && guira token secret/token >/dev/null && chmod 444 secret/token &&
         mount -o remount,ro secret && export GUIRA_TOKEN_FILE=secret/token
         guira get tcp://127.0.0.1:1 heron 2>said && exit 9
         eval \"$(sed -n 's/.*so copy it: \\([^;]*\\);.*/\\1/p' said)\" || exit 8
         GUIRA_TOKEN_FILE=token.private guira get tcp://127.0.0.1:1 heron",
    );
    let Some(run) = run else { return };
    assert!(run.stderr.contains("connection refused"), "{}", run.stderr);
    run.expect(3);
}

/// The table that takes the place of another user's belongs to the user who makes it, whatever the environment says.
#[test]
fn the_advice_for_a_table_of_another_user_works() {
    let folder = ScratchFolder::in_shared_memory();
    run(&folder, BIRDS).expect(0);
    if run(&folder, "chown 12345 \"my t's/birds\"").code != Some(0) {
        println!("NOT RUN: only root can give files away");
        return;
    }
    let script = "export GUIRA_OWNER=12345; seq 3000 | sed 's/$/\tx/' > in; guira load \"$B\" in 2>said && exit 9
                  eval \"$(sed -n 's/.*larger table with: //p' said | tail -1)\" || exit 8
                  guira get --owner 0 \"$B-2\" 1000 && guira destroy \"$B-2\"";
    run(&folder, script).expect(0);
}

/// In a user namespace, the users outside of it have no names and no numbers of their own.
#[test]
fn no_option_is_advised_for_users_outside_of_the_namespace() {
    let folder = ScratchFolder::in_shared_memory();
    run(&folder, BIRDS).expect(0);
    let script = "chown 12345 \"my t's/birds\" && chmod 666 \"my t's/birds\" && chmod 755 . && \
                  unshare --user --map-root-user true";
    if run(&folder, script).code != Some(0) {
        println!("NOT RUN: needs root and user namespaces");
        return;
    }
    for owner in ["", "--owner 65534"] {
        let script = format!("unshare --user --map-root-user guira put {owner} \"$B\" heron Garza");
        let refused = run(&folder, &script).expect(3).stderr;
        assert!(refused.contains("outside of this user namespace") && !refused.contains("(--owner"), "{refused}");
    }
}

/// The words in capitals are the only ones to be replaced.
#[test]
fn the_tools_that_are_named_for_other_formats_convert_them() {
    let folder = ScratchFolder::in_shared_memory();
    run(&folder, BIRDS).expect(0);
    let csv = "id,name,bird\n7,heron,\"Garza, blanca\"\n";
    let json = "[{\"key\": \"ibis\", \"value\": \"Corocoro\"},\n {\"key\": \"tern\", \"value\": \"Tijereta\"}]\n";
    for (tool, input, key, value) in [("mlr", csv, "heron", "Garza, blanca"), ("jq", json, "tern", "Tijereta")] {
        if run(&folder, &format!("{tool} --version")).code != Some(0) {
            println!("NOT RUN: {tool} is not installed");
            continue;
        }
        std::fs::write(folder.path().join("input"), input).expect("it is ours");
        let refused = run(&folder, "guira load \"$B\" input").expect(2).stderr;
        let at = refused.find(&format!("{tool} -")).expect("a command");
        let (advised, _) = refused[at..].split_once("; ").expect("the end of the command");
        let words = [("KEY", "name"), ("VALUE", "bird"), ("FILE", "input"), ("URL", "\"$B\"")];
        let command = words.iter().fold(advised.to_owned(), |command, (word, by)| command.replace(word, by));
        run(&folder, &command).expect(0);
        assert_eq!(run(&folder, &format!("guira get \"$B\" {key}")).expect(0).text(), value);
    }
}
