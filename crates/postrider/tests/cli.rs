//! The binary on its own: words, exit codes, and that no secret is ever shown. No servers.

use std::net::TcpListener;
use std::process::{Command, Output};

/// A port where nobody answers: bound and not listened to for as long as the value lives.
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
    check(&[], "--help", 0, &["run", "init", "doctor", "status", "slot", "config"]);
    check(&[], "--version", 0, &[env!("CARGO_PKG_VERSION")]);
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
    for words in ["slot list", "slot drop", "slot advance --to end", "slot create", "init", "status"] {
        check(&[("POSTRIDER_POSTGRES_URL", &url)], words, 1, &[NOBODY]);
    }
}
