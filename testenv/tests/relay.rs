//! The relay's keeper, with a shell script in the binary's place.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use testenv::eventually;
use testenv::relay::Program;

const LIMIT: Duration = Duration::from_secs(20);

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/relay.sh");

#[tokio::test]
async fn a_relay_is_configured_read_and_ended() -> Result<()> {
    let program = Program::new(SCRIPT).set("postgres.url", "postgres://here");
    let mut relay = program.run()?;
    let line = relay.wait_log("args", LIMIT).await?;
    assert_eq!(line, "args run url postgres://here");
    assert!(relay.is_running()?);
    assert!(relay.usage()?.rss_bytes > 0);
    let exit = relay.terminate(LIMIT).await?;
    assert_eq!(exit.code(), Some(7));
    assert_eq!(relay.log().last().map(String::as_str), Some("draining"), "the log is complete");
    assert!(relay.folder().is_dir());
    Ok(())
}

#[tokio::test]
async fn a_relay_dies_with_its_value() -> Result<()> {
    let mut killed = Program::new(SCRIPT).run()?;
    killed.wait_log("args", LIMIT).await?;
    killed.kill().await?;
    assert!(!killed.is_running()?);

    let dropped = Program::new(SCRIPT).run()?;
    let process = PathBuf::from(format!("/proc/{}", dropped.pid()));
    let folder = dropped.folder().to_owned();
    assert!(process.exists());
    drop(dropped);
    assert!(!process.exists(), "killed and reaped");
    eventually("the folder to be gone", LIMIT, async || Ok((!Path::new(&folder).exists()).then_some(())))
        .await
}

#[tokio::test]
async fn a_command_says_how_it_ended() -> Result<()> {
    let program = Program::new(SCRIPT).set("rabbitmq.url", "amqp://there").argument("--set");
    let output = program.output(&["slot", "list"]).await?;
    assert_eq!(output.code, Some(3));
    assert_eq!(
        (output.stdout.as_str(), output.stderr.as_str()),
        ("out --set slot list\n", "err amqp://there\n")
    );
    let error = program.expect(&["init"]).await.expect_err("exit code 3 is no success").to_string();
    assert!(error.contains("exit code 3"), "{error}");
    Ok(())
}
