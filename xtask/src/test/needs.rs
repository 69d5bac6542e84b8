//! System packages for the tests. Required are a C compiler to link with, the package lists that tests load as real
//! data, and groff, which formats the manual pages. Optional are valgrind, without which instructions cannot be
//! counted, tmux, without which `guira top` is not tested in a terminal, and iproute2, without which no packets are
//! dropped between a memory node and its clients.
//!
//! As root on Debian and its derivatives, missing packages are installed; otherwise the step fails with the exact
//! command. Without apt there are no package lists, and groff is not required: the tests that use them report that.

use super::Outcome;
use super::process::Shell;
use super::steps::Budget;

const UPDATE: [&str; 2] = ["apt-get", "update"];
const INSTALL_COMPILER: [&str; 5] = ["apt-get", "install", "--yes", "--no-install-recommends", "gcc"];
const INSTALL_ROFF: [&str; 5] = ["apt-get", "install", "--yes", "--no-install-recommends", "groff-base"];
const INSTALL_VALGRIND: [&str; 5] = ["apt-get", "install", "--yes", "--no-install-recommends", "valgrind"];
const INSTALL_TMUX: [&str; 5] = ["apt-get", "install", "--yes", "--no-install-recommends", "tmux"];
const INSTALL_IP: [&str; 5] = ["apt-get", "install", "--yes", "--no-install-recommends", "iproute2"];

/// Installs missing packages, or fails with the command that would.
pub fn install(shell: &Shell, budget: &Budget) -> Outcome {
    let host = Host::detect(shell, budget);
    let outcome = carry_out(plan(&host), shell, budget);
    let optional = [
        (host.has_valgrind, &INSTALL_VALGRIND, "instructions cannot be counted without valgrind"),
        (host.has_tmux, &INSTALL_TMUX, "screens are not tested without tmux"),
        (host.has_ip, &INSTALL_IP, "tests with two hosts do not run without ip"),
    ];
    for (is_there, install, without) in optional {
        if outcome == Outcome::Passed
            && let Outcome::Failed(reason) | Outcome::TimedOut(reason) =
                carry_out(plan_optional(&host, is_there, install), shell, budget)
        {
            shell.say(&format!("{without}: {reason}"));
        }
    }
    outcome
}

fn carry_out(plan: Plan, shell: &Shell, budget: &Budget) -> Outcome {
    match plan {
        Plan::Nothing => Outcome::Passed,
        Plan::Run(commands) => {
            for arguments in commands {
                shell.say(&arguments.join(" "));
                let mut command = shell.command(arguments[0], &arguments[1..]);
                command.env("DEBIAN_FRONTEND", "noninteractive");
                let outcome = shell.run(&mut command, budget);
                if outcome != Outcome::Passed {
                    return outcome;
                }
            }
            Outcome::Passed
        }
        Plan::Ask(message) => Outcome::Failed(message),
    }
}

/// The properties of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Host {
    is_root: bool,
    has_apt: bool,
    has_compiler: bool,
    has_roff: bool,
    has_package_lists: bool,
    has_valgrind: bool,
    has_tmux: bool,
    has_ip: bool,
}

impl Host {
    fn detect(shell: &Shell, budget: &Budget) -> Self {
        let holds = |script: &str| shell.succeeds("sh", ["-c", script], budget);
        Self {
            is_root: holds("[ \"$(id -u)\" = 0 ]"),
            has_apt: holds("command -v apt-get && command -v apt-cache"),
            has_compiler: holds("command -v gcc"),
            has_roff: holds("command -v groff"),
            has_package_lists: holds("apt-cache dumpavail | head -n 1 | grep -q ."),
            has_valgrind: holds("command -v valgrind"),
            has_tmux: holds("command -v tmux"),
            has_ip: holds("command -v ip"),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Plan {
    Nothing,
    Run(Vec<&'static [&'static str]>),
    Ask(String),
}

fn plan(host: &Host) -> Plan {
    if !host.has_apt {
        return match host.has_compiler {
            true => Plan::Nothing,
            false => Plan::Ask("install a C compiler under the name gcc".to_owned()),
        };
    }
    let mut commands: Vec<&'static [&'static str]> = Vec::new();
    if !host.has_package_lists {
        commands.push(&UPDATE);
    }
    if !host.has_compiler {
        commands.push(&INSTALL_COMPILER);
    }
    if !host.has_roff {
        commands.push(&INSTALL_ROFF);
    }
    match (commands.is_empty(), host.is_root) {
        (true, _) => Plan::Nothing,
        (false, true) => Plan::Run(commands),
        (false, false) => {
            let lines: Vec<String> = commands.iter().map(|command| format!("sudo {}", command.join(" "))).collect();
            Plan::Ask(format!("run: {}", lines.join(" && ")))
        }
    }
}

/// The plan for an optional package. It follows [`plan`], so the package lists exist.
fn plan_optional(host: &Host, is_there: bool, install: &'static [&'static str]) -> Plan {
    match (is_there, host.has_apt, host.is_root) {
        (true, _, _) => Plan::Nothing,
        (false, true, true) => Plan::Run(vec![install]),
        (false, true, false) => Plan::Ask(format!("run: sudo {}", install.join(" "))),
        (false, false, _) => Plan::Ask("install it with this system's package manager".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARE: Host = Host {
        is_root: true,
        has_apt: true,
        has_compiler: false,
        has_roff: false,
        has_package_lists: false,
        has_valgrind: false,
        has_tmux: false,
        has_ip: false,
    };
    const WHOLE: Host = Host { has_compiler: true, has_roff: true, has_package_lists: true, ..BARE };

    #[test]
    fn root_installs_exactly_what_is_missing() {
        assert_eq!(plan(&BARE), Plan::Run(vec![&UPDATE, &INSTALL_COMPILER, &INSTALL_ROFF]));
        assert_eq!(plan(&Host { has_package_lists: false, ..WHOLE }), Plan::Run(vec![&UPDATE]));
        assert_eq!(plan(&Host { has_compiler: false, ..WHOLE }), Plan::Run(vec![&INSTALL_COMPILER]));
        assert_eq!(plan(&Host { has_roff: false, ..WHOLE }), Plan::Run(vec![&INSTALL_ROFF]));
        assert_eq!(plan(&WHOLE), Plan::Nothing);
    }

    #[test]
    fn other_users_get_the_exact_command() {
        assert_eq!(
            plan(&Host { is_root: false, has_roff: true, ..BARE }),
            Plan::Ask("run: sudo apt-get update && sudo apt-get install --yes --no-install-recommends gcc".to_owned())
        );
    }

    #[test]
    fn optional_packages_are_installed_if_possible_and_never_required() {
        for install in [&INSTALL_VALGRIND, &INSTALL_TMUX, &INSTALL_IP] {
            assert_eq!(plan_optional(&BARE, false, install), Plan::Run(vec![install]));
            assert_eq!(plan_optional(&BARE, true, install), Plan::Nothing);
            let expected = format!("run: sudo {}", install.join(" "));
            assert_eq!(plan_optional(&Host { is_root: false, ..BARE }, false, install), Plan::Ask(expected));
            assert!(matches!(plan_optional(&Host { has_apt: false, ..BARE }, false, install), Plan::Ask(_)));
        }
        for is_there in 0..8 {
            let [has_valgrind, has_tmux, has_ip] = [1, 2, 4].map(|tool| is_there & tool != 0);
            assert_eq!(plan(&Host { has_valgrind, has_tmux, has_ip, ..BARE }), plan(&BARE), "they are not required");
        }
    }

    #[test]
    fn without_apt_only_the_compiler_is_required() {
        let host = Host { has_apt: false, ..BARE };
        assert!(matches!(plan(&host), Plan::Ask(_)));
        assert_eq!(plan(&Host { has_compiler: true, ..host }), Plan::Nothing);
    }
}
