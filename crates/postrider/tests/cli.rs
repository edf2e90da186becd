//! The binary on its own: words, exit codes, and that no secret is ever shown. No servers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// A port where nobody answers.
const NOBODY: &str = "127.0.0.1:1";

fn postrider(variables: &[(&str, &str)], words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.env_clear().envs(variables.iter().copied()).args(words.split_whitespace());
    command.output().expect("start the binary")
}

fn check(variables: &[(&str, &str)], words: &str, code: i32, says: &[&str]) {
    let output = postrider(variables, words);
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{words}: {text}");
    for part in says {
        assert!(text.contains(part), "{words} does not say {part:?}: {text}");
    }
    assert!(!text.contains("hunter2"), "{words} shows a secret: {text}");
}

#[test]
fn wrong_words_end_with_2() {
    check(&[], "", 2, &["Usage: postrider"]);
    check(&[], "rum", 2, &["run"]);
    check(&[], "slot advance --to here", 2, &["read \"here\" as an LSN"]);
    check(
        &[],
        "--help",
        0,
        &["run", "init", "doctor", "status", "slot", "quarantine", "inbox", "parked", "config"],
    );
    check(&[], "--version", 0, &[env!("CARGO_PKG_VERSION")]);
}

#[test]
fn which_events_of_the_quarantine_has_to_be_said() {
    for verb in ["retry", "discard", "discard --yes"] {
        let names = ["--id", "--aggregate", "--reason", "--older-than", "--position", "--all"];
        check(&[], &format!("quarantine {verb}"), 2, &names);
    }
    check(&[], "quarantine list --reason tired", 2, &["missing_column", "unrouted", "follower"]);
    check(&[], "quarantine retry --older-than 7", 2, &["7d, 12h, 30m or 45s"]);
    check(&[], "quarantine retry --position 0/1", 2, &["0/16B3748/3"]);
    check(&[], "quarantine retry --aggregate order", 2, &["order/42"]);
    check(&[], "quarantine retry --all --id a", 2, &["cannot be used with"]);
    check(&[], "quarantine list", 2, &["POSTRIDER_POSTGRES_URL"]);
}

#[test]
fn which_parked_messages_has_to_be_said() {
    for verb in ["retry", "discard", "discard --yes"] {
        check(&[], &format!("parked {verb} --queue q"), 2, &["--id", "--all"]);
    }
    check(&[], "parked list", 2, &["--queue"]);
    // An empty name, such as that of an unset variable, is not every name.
    check(&[], "parked list --queue=", 2, &["--queue <NAME>"]);
    check(&[], "parked retry --queue q --all --consumer=", 2, &["--consumer <NAME>"]);
    check(&[], "parked discard --queue q --id= --yes", 2, &["--id <MESSAGE_ID>"]);
    check(&[], "inbox prune --older-than 30d --consumer= --yes", 2, &["--consumer <NAME>"]);
    check(&[], "parked list --queue q --limit 1001", 2, &["1..=1000"]);
    check(&[], "parked retry --queue q --all --by-exchange --to-queue r", 2, &["cannot be used with"]);
    check(&[], "parked list --queue q", 2, &["POSTRIDER_RABBITMQ_URL"]);
    check(&[], "parked retry --queue q --all --consumer w", 2, &["POSTRIDER_POSTGRES_URL"]);
    let nobody = format!("amqp://app:hunter2@{NOBODY}");
    for words in ["list", "show", "retry --all", "discard --all", "discard --all --yes"] {
        check(&[("POSTRIDER_RABBITMQ_URL", &nobody)], &format!("parked {words} --queue q"), 1, &[NOBODY]);
    }
}

#[test]
fn a_wrong_configuration_ends_with_2_and_names_the_cure() {
    let postgres = ("POSTRIDER_POSTGRES_URL", "postgres://app:hunter2@127.0.0.1:1/shop");
    let rabbitmq = ("POSTRIDER_RABBITMQ_URL", "amqp://app:hunter2@127.0.0.1:1");
    check(
        &[("POSTRIDER_RABBITMQ_EXCHNAGE", "x")],
        "run",
        2,
        &["failed to read POSTRIDER_RABBITMQ_EXCHNAGE", "did you mean rabbitmq.exchange?"],
    );
    check(
        &[],
        "--set rabbitmq.lanes=none config",
        2,
        &["rabbitmq.lanes from --set", "a whole number from 1 to 256"],
    );
    check(&[], "--config /nonexistent config", 2, &["/nonexistent"]);
    check(&[], "--set postgres.password=hunter2 run", 2, &["postgres.password_file"]);
    check(&[], "--set postgres.url=postgres://a:hunter2@h/d run", 2, &["from --set: it holds a password"]);
    check(&[rabbitmq], "run", 2, &["POSTRIDER_POSTGRES_URL"]);
    check(&[postgres], "run", 2, &["POSTRIDER_RABBITMQ_URL"]);
    check(&[rabbitmq], "slot list", 2, &["POSTRIDER_POSTGRES_URL"]);
    check(
        &[("POSTRIDER_POSTGRES_URL", "mysql://a:hunter2@h")],
        "config",
        2,
        &["postgres.url", "postgres://"],
    );
    check(
        &[("POSTRIDER_POSTGRES_URL", "postgres://a:hunter2@h/d?sslmode=on")],
        "config",
        2,
        &["verify-full"],
    );
    check(&[("POSTRIDER_RABBITMQ_URL", "amqp://a:hunter2@h/?hartbeat=1")], "config", 2, &["heartbeat"]);
}

#[test]
fn a_port_in_use_ends_with_2() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("bind");
    let listen = taken.local_addr().expect("bound").to_string();
    let variables = [
        ("POSTRIDER_POSTGRES_URL", "postgres://app:hunter2@127.0.0.1:1/shop"),
        ("POSTRIDER_RABBITMQ_URL", "amqp://app:hunter2@127.0.0.1:1"),
        ("POSTRIDER_HTTP_LISTEN", &*listen),
    ];
    check(&variables, "run", 2, &["failed to listen on http.listen", &listen, "choose another port"]);
}

#[test]
fn the_example_is_a_configuration_file() {
    let example = postrider(&[], "config --example").stdout;
    let path = std::env::temp_dir().join(format!("postrider-example-{}.toml", std::process::id()));
    std::fs::write(&path, &example).expect("write the example");
    let file = path.to_str().expect("UTF-8");
    let from_file = postrider(&[("POSTRIDER_CONFIG", file)], "config");
    std::fs::remove_file(&path).expect("remove the example");
    let values = |stdout: &[u8]| -> Vec<String> {
        let text = String::from_utf8_lossy(stdout).into_owned();
        text.lines().map(|line| line.split("  #").next().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(values(&from_file.stdout), values(&postrider(&[], "config").stdout));
    assert!(String::from_utf8_lossy(&from_file.stdout).contains(file), "who set a value is named");
}

#[test]
fn the_effective_configuration_is_masked() {
    let variables = [
        ("POSTRIDER_POSTGRES_URL", "postgres://app:hunter2@h/shop?password=hunter2"),
        ("POSTRIDER_RABBITMQ_URLS", "amqp://app:hunter2@a,amqp://app:hunter2@b"),
        ("POSTRIDER_PORT", "tcp://10.0.0.1:9465"),
    ];
    check(
        &variables,
        "config",
        0,
        &["postgres://app:***@h/shop?password=***", "amqp://app:***@b", "POSTRIDER_PORT"],
    );
}

#[test]
fn a_server_that_does_not_answer_is_a_failure() {
    let url = format!("postgres://app:hunter2@{NOBODY}/shop");
    for words in [
        "slot list",
        "slot drop",
        "slot advance --to end",
        "slot create",
        "init",
        "status",
        "quarantine list --json",
        "quarantine show",
        "quarantine retry --all",
        "quarantine discard --all",
    ] {
        check(&[("POSTRIDER_POSTGRES_URL", &url)], words, 1, &[NOBODY]);
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.env_clear().args(["config", "--example"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("start the binary");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("wait for the binary");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn nobody_who_reads_stderr_is_no_failure_either() {
    let nobody = format!("amqp://app:hunter2@{NOBODY}");
    for (variables, words, code) in [
        // A complaint, a complaint of what is configured, a note before a complaint, and lines of the log.
        (&[("POSTRIDER_POSTGRES_URL", "postgres://app@127.0.0.1:1/shop")][..], "slot list", 1),
        (&[], "slot list", 2),
        (&[("POSTRIDER_RABBITMQ_URL", &*nobody)], "parked retry --queue q --all", 1),
        (&[("POSTRIDER_PORT", "tcp://10.0.0.1:9465")], "config", 0),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
        command.env_clear().envs(variables.iter().copied()).args(words.split_whitespace());
        let mut child = command.stdout(Stdio::null()).stderr(deaf()).spawn().expect("start the binary");
        assert_eq!(child.wait().expect("wait for the binary").code(), Some(code), "{words}");
    }
}

/// A pipe whose reader is gone before anything is written.
fn deaf() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("make a pipe");
    drop(reader);
    writer.into()
}

/// Kills what a failed test leaves.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It has ended already, unless the test failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn fetch(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connect to the relay");
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").expect("ask the relay");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read the answer");
    answer
}

#[test]
fn a_relay_without_servers_is_alive_and_not_ready_and_ends_when_it_is_told() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.env_clear().arg("run").stdout(Stdio::null()).stderr(Stdio::piped());
    command.env("POSTRIDER_POSTGRES_URL", format!("postgres://app:hunter2@{NOBODY}/shop?sslmode=disable"));
    command.env("POSTRIDER_RABBITMQ_URL", format!("amqp://app:hunter2@{NOBODY}"));
    command.env("POSTRIDER_HTTP_LISTEN", "127.0.0.1:0").env("POSTRIDER_LOG_FORMAT", "json");
    let mut relay = Killed(command.spawn().expect("start the binary"));
    let mut log = BufReader::new(relay.0.stderr.take().expect("piped")).lines().map(|line| {
        let line = line.expect("read the log");
        assert!(!line.contains("hunter2"), "{line}");
        serde_json::from_str::<Value>(&line).expect("one JSON object a line")
    });
    let address = log.find_map(|line| {
        let message = line["message"].as_str().expect("a message").to_owned();
        message.strip_prefix("listening on http://").map(str::to_owned)
    });
    let address = address.expect("the log says where the pages are");
    assert!(fetch(&address, "/livez").starts_with("HTTP/1.0 200 "));
    let ready = fetch(&address, "/readyz");
    assert!(ready.starts_with("HTTP/1.0 503 ") && ready.contains("\"ready\":false,\"reason\":"), "{ready}");
    assert!(fetch(&address, "/metrics").contains("postrider_events_published_total{slot=\"postrider\"} 0\n"));
    assert!(fetch(&address, "/status").contains("\"slot\":\"postrider\""));

    kill(Pid::from_raw(relay.0.id().cast_signed()), Signal::SIGTERM).expect("signal the relay");
    let rest: Vec<Value> = log.collect();
    assert_eq!(relay.0.wait().expect("wait for the relay").code(), Some(0), "{rest:?}");
}
