//! The configuration from its sources, as tables.

use std::path::PathBuf;

use super::*;

/// A file of its own for one test, gone afterwards.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("postrider-config-{}-{name}", std::process::id()));
        std::fs::write(&path, text).expect("write a file of the test");
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).expect("remove a file of the test");
    }
}

fn load(file: Option<&File>, variables: &[(&str, &str)], set: &[&str]) -> Result<Loaded, String> {
    let sources = Sources {
        file: file.map(|file| file.0.clone()),
        variables: variables.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        set: set.iter().map(|&setting| setting.to_owned()).collect(),
    };
    sources.load().map_err(|error| error.to_string())
}

#[test]
fn the_two_urls_alone_are_enough() {
    let loaded = load(
        None,
        &[
            ("POSTRIDER_POSTGRES_URL", "postgres://a:b@c/d"),
            ("POSTRIDER_RABBITMQ_URL", "amqp://e"),
            ("HOME", "/"),
        ],
        &[],
    )
    .expect("load");
    let Config { postgres, outbox, rabbitmq, limits, retry, quarantine, http, log } = loaded.config;
    assert_eq!(postgres.url.expect("set").expose(), "postgres://a:b@c/d");
    assert_eq!((&*postgres.slot, &*postgres.publication), ("postrider", "postrider"));
    assert_eq!(postgres.report_every, Duration::from_secs(1));
    assert_eq!(outbox.table, ["postrider.outbox"]);
    assert_eq!(rabbitmq.brokers().iter().map(SecretUrl::expose).collect::<Vec<_>>(), ["amqp://e"]);
    assert_eq!(
        (&*rabbitmq.exchange, &*rabbitmq.exchange_type, rabbitmq.declare),
        ("postrider", "topic", true)
    );
    assert_eq!(rabbitmq.routing_key, "{aggregate_type}.{event_type}");
    assert_eq!((rabbitmq.lanes, rabbitmq.window_events, rabbitmq.events_per_key), (8, 128, 1));
    assert_eq!(rabbitmq.confirm_timeout, Duration::from_secs(30));
    assert_eq!(rabbitmq.heartbeat, Duration::from_secs(10));
    assert_eq!(rabbitmq.message_bytes_max, 16 << 20);
    assert_eq!((limits.in_flight_events, limits.in_flight_bytes), (16384, 64 << 20));
    assert_eq!((limits.events_per_second, limits.drain_timeout), (0, Duration::from_secs(10)));
    assert_eq!((retry.attempts, retry.first), (12, Duration::from_millis(100)));
    assert_eq!((retry.max, retry.jitter.to_string()), (Duration::from_secs(30), "0.2".to_owned()));
    assert_eq!((quarantine.scope, quarantine.unrouted), (Scope::Key, Unrouted::Key));
    assert_eq!(quarantine.burst_events, 50);
    assert_eq!((&*http.listen, http.stalled_after), ("127.0.0.1:9465", Duration::from_secs(60)));
    assert_eq!((log.format, &*log.level), (LogFormat::Text, "info"));
    assert!(loaded.warnings.is_empty());
}

#[test]
fn the_example_reads_back_to_the_defaults() {
    let file = File::new("example", &example());
    let from_example = load(Some(&file), &[], &[]).expect("load the example");
    let defaults = load(None, &[], &[]).expect("load the defaults");
    assert_eq!(format!("{:?}", from_example.config), format!("{:?}", defaults.config));
    assert_eq!(from_example.values.len(), defaults.values.len());

    // And what is commented out there is good as well, each for itself; but the database's certificates
    // are those of some machine.
    let rabbitmq: Vec<String> = example()
        .lines()
        .filter(|line| line.contains("amqps://"))
        .map(|line| line.replace("# ", ""))
        .collect();
    assert_eq!(rabbitmq.len(), 2);
    for line in rabbitmq {
        let file = File::new("commented", &format!("[rabbitmq]\n{line}"));
        load(Some(&file), &[], &[]).expect("load a commented line");
    }
}

#[test]
fn the_last_source_counts() {
    let file = File::new("layers", "[rabbitmq]\nlanes = 2\nwindow_events = 2\nexchange = 'file'\n");
    let variables = [("POSTRIDER_RABBITMQ_WINDOW_EVENTS", "3"), ("POSTRIDER_RABBITMQ_EXCHANGE", "variable")];
    let loaded =
        load(Some(&file), &variables, &["rabbitmq.exchange=first", "rabbitmq.exchange=a=b"]).expect("load");
    let rabbitmq = loaded.config.rabbitmq;
    assert_eq!((rabbitmq.lanes, rabbitmq.window_events, &*rabbitmq.exchange), (2, 3, "a=b"));
    assert_eq!(loaded.values["rabbitmq.lanes"].1, Origin::File { path: file.0.clone(), line: 2 });

    // The file can be named by a variable, the flag wins.
    let path = file.0.to_str().expect("UTF-8");
    assert_eq!(load(None, &[("POSTRIDER_CONFIG", path)], &[]).expect("load").config.rabbitmq.lanes, 2);
    assert_eq!(load(None, &[("POSTRIDER_CONFIG", "")], &[]).expect("load").config.rabbitmq.lanes, 8);
    load(Some(&file), &[("POSTRIDER_CONFIG", "/nonexistent")], &[]).expect("load");
}

#[test]
fn a_name_nobody_knows_is_an_error_with_the_nearest() {
    for (variables, set, file, words) in [
        (
            &[("POSTRIDER_RABBITMQ_EXCHNAGE", "x")][..],
            &[][..],
            "",
            "read POSTRIDER_RABBITMQ_EXCHNAGE: there is no key rabbitmq.exchnage; did you mean rabbitmq.exchange?",
        ),
        (
            &[],
            &["rabbitmq.lane=1"],
            "",
            "read --set: there is no key rabbitmq.lane; did you mean rabbitmq.lanes?",
        ),
        (&[], &["rabbitmq.slot=x"], "", "did you mean postgres.slot?"),
        (&[], &["rabitmq.url=x"], "", "read --set: there is no section rabitmq; did you mean rabbitmq?"),
        (&[], &["lanes"], "", "read --set: expected section.key=value"),
        (
            &[],
            &[],
            "\n[postgres]\nslto = 'x'",
            "line 3: there is no key postgres.slto; did you mean postgres.slot?",
        ),
        (&[], &[], "[metrics]\nport = 1", "line 1: there is no section metrics; did you mean"),
        (&[], &[], "postgres = 'x'", "expected a table of keys"),
        (&[("POSTRIDER_POSTGRES_PASSWORD", "x")], &[], "", "did you mean postgres.password_file?"),
    ] {
        let file = File::new("unknown", file);
        let error = load(Some(&file), variables, set).expect_err(words);
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn what_is_passed_over_is_a_warning() {
    let variables = [("POSTRIDER_PORT", "tcp://1"), ("POSTRIDER_SERVICE_HOST", "1")];
    let loaded = load(None, &variables, &[]).expect("load");
    assert_eq!(
        loaded.warnings,
        [
            "the variable POSTRIDER_PORT names no section and is passed over",
            "the variable POSTRIDER_SERVICE_HOST names no section and is passed over",
        ]
    );
}

#[test]
fn a_bad_value_is_an_error_that_names_key_source_and_form() {
    for (variables, set, file, words) in [
        (
            &[("POSTRIDER_RABBITMQ_LANES", "many")][..],
            &[][..],
            "",
            "read rabbitmq.lanes from POSTRIDER_RABBITMQ_LANES: expected a whole number from 1 to 256, got \"many\"",
        ),
        (&[], &["log.format=xml"], "", "read log.format from --set: expected one of text, json, got \"xml\""),
        (&[], &[], "[limits]\n\nin_flight_bytes = '64 MiB'", "line 3: expected a whole number from 1 to"),
        (&[], &[], "[limits]\nin_flight_bytes = 64 MiB", "line 2: "),
        (
            &[],
            &["rabbitmq.url=amqp://a", "rabbitmq.urls=amqp://b"],
            "",
            "choose a broker: rabbitmq.url (--set) and rabbitmq.urls (--set) are both set",
        ),
        (&[], &["retry.first_ms=2", "retry.max_ms=1"], "", "use retry.first_ms = 2 with retry.max_ms = 1"),
        (
            &[],
            &["rabbitmq.routing_key={aggregat}"],
            "",
            "read rabbitmq.routing_key from --set: {aggregat} is unknown",
        ),
        (&[], &["outbox.table="], "", "read outbox.table from --set: "),
    ] {
        let file = File::new("bad", file);
        let error = load(Some(&file), variables, set).expect_err(words);
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_secret_comes_from_a_file_and_is_never_shown() {
    let password = File::new("password", "hunter2\n");
    let path = password.0.to_str().expect("UTF-8");
    let by_file = format!("rabbitmq.password_file={path}");
    let loaded = load(None, &[("POSTRIDER_RABBITMQ_URL", "amqp://app@a")], &[&by_file]).expect("load");
    assert_eq!(loaded.config.rabbitmq.password.as_ref().expect("read").expose(), "hunter2");
    assert!(!format!("{loaded:?}{}", effective(&loaded)).contains("hunter2"));
    let variables =
        [("POSTRIDER_RABBITMQ_URLS", "amqp://app:hunter2@a"), ("POSTRIDER_POSTGRES_URL", "password=hunter2")];
    let loaded = load(None, &variables, &[]).expect("load");
    assert_eq!(loaded.config.rabbitmq.urls[0].expose(), "amqp://app:hunter2@a");
    assert!(!format!("{loaded:?}{}", effective(&loaded)).contains("hunter2"));

    for (variables, set, file, words) in [
        (
            &[("POSTRIDER_RABBITMQ_URL", "amqp://app:hunter2@a")][..],
            &[&*by_file][..],
            "",
            "rabbitmq.url (POSTRIDER_RABBITMQ_URL) holds one, and rabbitmq.password_file is set as well",
        ),
        (&[], &["postgres.password=hunter2"], "", "a password never comes from a flag"),
        (
            &[],
            &["postgres.url=postgres://a:hunter2@b"],
            "",
            "read postgres.url from --set: it holds a password",
        ),
        (
            &[],
            &["rabbitmq.urls=amqp://a,amqp://a:hunter2@b"],
            "",
            "read rabbitmq.urls from --set: it holds a password",
        ),
        (&[], &["rabbitmq.url=http://a:hunter2@b"], "", "expected an amqp:// or amqps:// URL"),
        (&[("POSTRIDER_POSTGRES_PASSWORD", "hunter2")], &[], "", "there is no key"),
        (&[], &[], "[rabbitmq]\nurl = 'amqp://a:hunter2@b", "line 2: "),
        (&[], &["rabbitmq.password_file=/nonexistent"], "", "read rabbitmq.password_file /nonexistent: "),
    ] {
        let file = File::new("secret", file);
        let error = load(Some(&file), variables, set).expect_err(words);
        assert!(error.contains(words) && !error.contains("hunter2"), "{error}");
    }
}

#[test]
fn the_effective_configuration_says_who_set_what_and_masks() {
    let variables = [
        ("POSTRIDER_POSTGRES_URL", "postgres://app:hunter2@db/shop"),
        ("POSTRIDER_RABBITMQ_URLS", "amqp://a:hunter2@x,amqp://a:hunter2@y"),
    ];
    let text = effective(&load(None, &variables, &["rabbitmq.lanes=4"]).expect("load"));
    assert!(!text.contains("hunter2"), "{text}");
    for line in [
        "[postgres]",
        "url = \"postgres://app:***@db/shop\"  # POSTRIDER_POSTGRES_URL",
        "# password_file is not set",
        "slot = \"postrider\"",
        "urls = [\"amqp://a:***@x\", \"amqp://a:***@y\"]  # POSTRIDER_RABBITMQ_URLS",
        "lanes = 4  # --set",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    toml::from_str::<toml::Table>(&text).expect("TOML");
}
