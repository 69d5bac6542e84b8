//! The examples print what they promise, and report mistakes without a panic.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use guira::{CreateOptions, ServeOptions, Store};
use guira_testing::{ReservedPort, unique_name, wait_until};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A command that runs an example: a program beside this test, which cargo builds with the tests of the package.
fn example(name: &str) -> Command {
    let test = std::env::current_exe().expect("a test has a file");
    // TARGET/PROFILE/deps/suite-0123456789abcdef
    let profile = test.parent().and_then(Path::parent).expect("deps is in a profile's directory");
    let program = profile.join("examples").join(name);
    assert!(program.is_file(), "{name} is not built: cargo build --profile test -p guira --example {name}");
    Command::new(program)
}

fn run(name: &str, arguments: &[&str]) -> Output {
    example(name).args(arguments).output().expect("the example starts")
}

/// Runs an example, which must succeed and print no error. Returns its output.
fn printed(example: &str, arguments: &[&str]) -> String {
    let output = run(example, arguments);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaints.is_empty(), "{example} {arguments:?}: {complaints}");
    String::from_utf8(output.stdout).expect("it prints text")
}

#[test]
fn a_shared_cache_serves_others_when_a_worker_is_killed() {
    let text = printed("shared_cache", &["3", "400"]);
    for id in 0..3 {
        assert!(text.contains(&format!("worker {id}: ")) && text.contains("hits in 200 requests\n"), "{text}");
    }
    assert!(text.contains("worker 0 is dead"), "{text}");
    for id in 1..3 {
        let line =
            text.lines().find(|line| line.contains("in 400 requests") && line.contains(&format!("worker {id}:")));
        let hits = line.and_then(|line| line.split(' ').nth(2)).and_then(|hits| hits.parse::<u64>().ok());
        // Of 400 requests for 500 questions, of which some are frequent, a good part must be hits.
        assert!(hits.is_some_and(|hits| (100..=400).contains(&hits)), "{text}");
    }
    assert_eq!(text.matches("in 400 requests").count(), 2, "the dead worker prints nothing more: {text}");
    assert!(text.contains(" answers in the cache, 0 of them wrong; check: 0 problems"), "{text}");
}

#[test]
fn word_counts_do_not_depend_on_the_number_of_processes() {
    let text = tempfile::NamedTempFile::new().unwrap();
    let (often, once) = ("the Cuckoo, THE cuckoo; the\n".repeat(2_000), "Guira-guira canta çedo");
    std::fs::write(&text, [often.as_bytes(), once.as_bytes(), &[b'x'; 5_000], b" \xff\xfe ", &[0; 100]].concat())
        .unwrap();
    let path = text.path().to_str().unwrap();
    for processes in ["1", "4"] {
        let printed = printed("word_count", &[path, processes]);
        let lines: Vec<&str> = printed.lines().collect();
        assert_eq!(lines[..2], ["      6000  the", "      4000  cuckoo"]);
        assert!(lines.contains(&"         2  guira") && lines.contains(&"         1  canta"), "{printed}");
        let sum = format!("10005 words counted by {processes} processes, 6 different; the text has 10005");
        assert_eq!(lines.last(), Some(&sum.as_str()));
    }
    std::fs::write(&text, "").unwrap();
    assert_eq!(printed("word_count", &[path, "3"]), "0 words counted by 3 processes, 0 different; the text has 0\n");
}

#[test]
fn a_generated_text_is_counted() {
    let printed = printed("word_count", &[]);
    assert_eq!(printed.lines().count(), 21, "{printed}");
    assert!(printed.ends_with("the text has 100000\n") && printed.contains("\n100000 words counted by 4"), "{printed}");
}

#[test]
fn readers_follow_a_live_configuration() {
    let printed = printed("live_config", &["2"]);
    let expected = |revision: u32, changes: &str| {
        (0..2).map(|id| format!("reader {id} at revision {revision}: {changes}\n")).collect::<String>()
    };
    let all = [
        expected(1, "log.level is info, cache.mib is 100, feature.beta is (unset)"),
        expected(2, "log.level is debug, feature.beta is on"),
        "a token that went stale: Different\n".to_owned(),
        expected(3, "cache.mib is 300"),
    ];
    assert_eq!(printed, all.concat());
}

#[test]
fn results_are_remembered_for_all_workers_when_one_is_killed() {
    let text = printed("memo_cache", &["3", "400"]);
    let lines: Vec<&str> = text.lines().collect();
    let [killed, counts, results] = lines[..] else { panic!("{text}") };
    assert!(killed.starts_with("worker 0 was killed: signal: 9 (SIGKILL); "), "{text}");
    let counts: Vec<u64> = counts.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
    let [hits, misses] = counts[..] else { panic!("{text}") };
    // Two workers ask 500 questions each about 401 arguments, each of which is computed at most once by each process.
    assert!(hits + misses >= 1_000 && (1..=3 * 401).contains(&misses), "{text}");
    assert!(results.ends_with(" results, 0 of them wrong; check: 0 problems"), "{text}");
}

#[test]
fn two_editors_of_a_typed_setting_lose_no_edit() {
    let text = printed("config_store", &[]);
    let lines: Vec<&str> = text.lines().collect();
    let [first, second, last] = lines[..] else { panic!("{text}") };
    assert!(first.starts_with("reader 0: ") && first.ends_with(" of 201 states, in order: true"), "{text}");
    assert!(second.starts_with("reader 1: ") && second.ends_with(" of 201 states, in order: true"), "{text}");
    assert!(last.starts_with("mail: revision 201, timeout 250ms, servers ["), "{text}");
    assert!(last.contains("\"anna 100\"") && last.contains("\"ben 100\""), "{text}");
}

#[test]
fn settings_are_changed_and_read_by_separate_commands() {
    let url = format!("shm://{}", unique_name());
    let url = url.as_str();
    assert_eq!(printed("config_store", &["set", url, "mail", "timeout_ms", "250"]), "");
    assert_eq!(printed("config_store", &["set", url, "mail", "server", "mx1"]), "");
    let mail = "mail: revision 2, timeout 250ms, servers [\"mx1\"]\n";
    for command in [&["get", url, "mail"][..], &["list", url], &["watch", url, "mail", "2"]] {
        assert_eq!(printed("config_store", command), mail);
    }
    let missing = run("config_store", &["get", url, "web"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).ends_with("has no setting \"web\"\n"));
    assert_eq!(printed("config_store", &["destroy", url]), "");
}

/// A running `web_service`, which is killed if a test does not end it.
struct Service {
    child: Child,
    address: String,
}

impl Service {
    /// Starts it on a free port, with a table of its own or that at the URL in `arguments`.
    fn start(arguments: &[&str]) -> Service {
        let mut command = example("web_service");
        let mut child =
            command.arg("127.0.0.1:0").args(arguments).stdout(Stdio::piped()).spawn().expect("the example starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("it has an output");
        BufReader::new(output).read_line(&mut line).expect("it prints its address");
        let address = line.split(['/', ' ']).nth(2).expect("an address").to_owned();
        Service { child, address }
    }

    /// Sends one request on a connection of its own, and returns the status and the body of the answer.
    async fn ask(&self, request: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let exchange = async {
            let mut stream = TcpStream::connect(&self.address).await?;
            let head = format!(
                "{request} HTTP/1.1\r\nhost: guira\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all(&[head.as_bytes(), body].concat()).await?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await?;
            Ok::<_, std::io::Error>(answer)
        };
        let answer = timeout(Duration::from_secs(60), exchange).await.expect("an answer in time").expect("an answer");
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("a complete head");
        let status = std::str::from_utf8(&answer[..end]).expect("a head of text").split(' ').nth(1);
        (status.and_then(|status| status.parse().ok()).expect("a status"), answer[end + 4..].to_vec())
    }

    /// Ends it as an operator would; it leaves nothing behind.
    fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
        assert!(self.child.wait().expect("it ends").success());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.child.kill().and_then(|()| self.child.wait()));
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

#[test]
fn a_web_service_maps_results_and_errors_to_statuses() {
    let service = Service::start(&[]);
    block_on(async {
        let text = |status, body: &str| (status, body.as_bytes().to_vec());
        assert_eq!(service.ask("GET /cuckoo", b"").await, text(404, ""));
        assert_eq!(service.ask("PUT /cuckoo", b"Guira").await, text(201, ""));
        assert_eq!(service.ask("PUT /cuckoo", b"Guira guira").await, text(204, ""));
        assert_eq!(service.ask("GET /cuckoo", b"").await, text(200, "Guira guira"));
        assert_eq!(service.ask("POST /visits/count", b"").await, text(200, "1\n"));
        assert_eq!(service.ask("POST /visits/count", b"").await, text(200, "2\n"));
        assert_eq!(service.ask("GET /visits/count", b"").await, text(200, "2\n"));
        assert_eq!(service.ask("GET /nobody/count", b"").await, text(404, ""));
        assert_eq!(service.ask("GET /cuckoo/count", b"").await.0, 409);
        assert_eq!(service.ask("POST /cuckoo/count", b"").await.0, 409);
        assert_eq!(service.ask("GET /cuckoo", b"").await, text(200, "Guira guira"));
        assert_eq!(service.ask("DELETE /cuckoo", b"").await, text(204, ""));
        assert_eq!(service.ask("DELETE /cuckoo", b"").await, text(404, ""));
        assert_eq!(service.ask("PATCH /cuckoo", b"").await.0, 405);
        // The table has hardly any space for values of this length.
        let large = vec![b'x'; 1 << 20];
        let mut statuses = Vec::new();
        for id in 0..8 {
            statuses.push(service.ask(&format!("PUT /large-{id}"), &large).await.0);
        }
        assert!(statuses.contains(&201) && statuses.ends_with(&[507]), "{statuses:?}");
    });
    service.stop();
}

/// [R-OPEN-3] A memory node that restarts with an empty table costs it some requests, and what was stored.
#[test]
fn a_web_service_outlives_the_table_of_its_node() {
    let port = ReservedPort::new();
    let options = ServeOptions::new(([127, 0, 0, 1], port.port).into());
    let serve = || Store::create_unnamed(&CreateOptions::new(100)).unwrap().serve(&options).unwrap();
    let node = serve();
    let service = Service::start(&[&format!("tcp://127.0.0.1:{}", port.port)]);
    let ask = |request: &str| block_on(service.ask(request, b"Guira guira"));
    assert_eq!(ask("PUT /cuckoo").0, 201);
    assert_eq!(ask("GET /cuckoo"), (200, b"Guira guira".to_vec()));
    node.stop().unwrap();
    let _node = serve();
    let mut refused = 0;
    wait_until("it goes on", || match ask("GET /cuckoo").0 {
        503 => {
            refused += 1;
            false
        }
        status => status == 404,
    });
    assert!(refused > 0, "the loss is reported");
    wait_until("its clients go on", || ask("PUT /cuckoo").0 == 201);
    assert_eq!(ask("GET /cuckoo").0, 200);
    service.stop();
}

#[test]
fn a_web_service_answers_a_thousand_requests_at_once() {
    // Each request has a connection: more descriptors than many systems allow at first, here and in the service.
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(4_096, |maximum| maximum.min(4_096)).max(limit.current.unwrap_or(4_096));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit }).expect("up to the hard limit");
    let service = std::sync::Arc::new(Service::start(&[]));
    block_on(async {
        let requests = (0..1_000).map(|id| {
            let service = service.clone();
            tokio::spawn(async move {
                match id % 2 {
                    0 => (200, service.ask("POST /visits/count", b"").await.0),
                    _ => (201, service.ask(&format!("PUT /visitor-{id}"), id.to_string().as_bytes()).await.0),
                }
            })
        });
        let requests: Vec<_> = requests.collect();
        for request in requests {
            let (expected, status) = request.await.expect("no panic");
            assert_eq!(status, expected);
        }
        assert_eq!(service.ask("GET /visits/count", b"").await, (200, b"500\n".to_vec()));
        assert_eq!(service.ask("GET /visitor-999", b"").await, (200, b"999".to_vec()));
    });
    std::sync::Arc::into_inner(service).expect("all requests are answered").stop();
}

#[test]
fn mistakes_are_reported_without_a_panic() {
    let mistakes: [(&str, &[&str], &str); 25] = [
        ("shared_cache", &["none"], "is not a number from 2 to 64; usage: shared_cache"),
        ("shared_cache", &["1"], "is not a number from 2 to 64; usage: shared_cache"),
        ("shared_cache", &["2", "-5"], "is not a number from 2 to 1000000; usage: shared_cache"),
        ("shared_cache", &["worker", "shm://guira-no-such-table", "1", "10"], "guira-no-such-table"),
        ("shared_cache", &["1", "2", "3"], "usage: shared_cache"),
        ("word_count", &["/no/such/file"], "/no/such/file: "),
        ("word_count", &["Cargo.toml", "0"], "usage: word_count"),
        ("word_count", &["Cargo.toml", "many"], "usage: word_count"),
        ("word_count", &["worker", "nowhere", "Cargo.toml", "0", "1"], "it has no scheme"),
        ("live_config", &["0"], "usage: live_config"),
        ("live_config", &["1", "2"], "usage: live_config"),
        ("live_config", &["reader", "shm://guira-no-such-table", "1"], "guira-no-such-table"),
        ("memo_cache", &["1"], "is not a number from 2 to 64; usage: memo_cache"),
        ("memo_cache", &["2", "many"], "is not a number from 100 to 2000; usage: memo_cache"),
        ("memo_cache", &["1", "2", "3"], "usage: memo_cache"),
        ("memo_cache", &["worker", "shm://guira-no-such-table", "1", "100", "1"], "guira-no-such-table"),
        ("config_store", &["set", "shm://guira-never-made", "mail", "color", "red"], "unknown field \"color\""),
        (
            "config_store",
            &["set", "shm://guira-never-made", "mail", "timeout_ms", "-1"],
            "not a number of milliseconds",
        ),
        ("config_store", &["get", "shm://guira-no-such-table", "mail"], "guira-no-such-table"),
        ("config_store", &["watch", "shm://guira-no-such-table", "mail", "last"], "is not a revision; usage"),
        ("config_store", &["list"], "usage: config_store"),
        ("web_service", &["8080"], "is not an IP:PORT; usage: web_service"),
        ("web_service", &["127.0.0.1:0", "cuckoo"], "it has no scheme"),
        ("web_service", &["127.0.0.1:0", "shm://guira-no-such-table"], "guira-no-such-table"),
        ("web_service", &["1", "2", "3"], "usage: web_service"),
    ];
    for (example, arguments, reason) in mistakes {
        let output = run(example, arguments);
        let complaint = String::from_utf8(output.stderr).expect("it prints text");
        assert_eq!(output.status.code(), Some(1), "{example} {arguments:?}: {complaint}");
        assert!(complaint.starts_with(&format!("{example}: ")) && complaint.contains(reason), "{complaint}");
        assert!(output.stdout.is_empty() && !complaint.contains("panicked"), "{complaint}");
    }
}
