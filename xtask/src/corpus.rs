//! `cargo xtask corpus`: records what a real Postgres sends, for the decoder's tests.
//!
//! Each script in `crates/relay/corpus` runs in a database of its own and makes a slot named `corpus`; the slot's
//! messages are written beside it, as the README there says.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use testenv::{Postgres, PostgresOptions};

/// The values are printed as the relay's session has them printed.
const PINNED: &str = "
    set datestyle = 'ISO'; set timezone = 'UTC'; set intervalstyle = 'postgres';
    set extra_float_digits = 1; set bytea_output = 'hex';";
const MESSAGES: &str = "
    select data from pg_logical_slot_peek_binary_changes('corpus', null, null,
        'proto_version', '1', 'publication_names', 'postrider', 'messages', 'true')";

/// Records every script's `*.bin` anew.
pub(crate) async fn record() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/relay/corpus");
    let postgres = Postgres::start(PostgresOptions::default()).await?;
    let mut scripts = std::fs::read_dir(&folder)
        .context("list the corpus")?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    scripts.retain(|path| path.extension().is_some_and(|extension| extension == "sql"));
    scripts.sort();
    ensure!(!scripts.is_empty(), "find a script in {}", folder.display());
    for script in scripts {
        let database = script.file_stem().and_then(|stem| stem.to_str()).context("name the database")?;
        postgres.create_database(database).await?;
        run(&postgres, database, &script)?;
        let (messages, bytes) = peek(&postgres, database).await?;
        let recording = script.with_extension("bin");
        std::fs::write(&recording, &bytes).with_context(|| format!("write {}", recording.display()))?;
        println!("{database}.bin: {messages} messages, {} bytes", bytes.len());
    }
    Ok(())
}

fn run(postgres: &Postgres, database: &str, script: &Path) -> Result<()> {
    let status = Command::new(postgres.bin().join("psql"))
        .args(["--no-psqlrc", "--quiet", "--output=/dev/null", "--set=ON_ERROR_STOP=1", "--file"])
        .arg(script)
        .arg(postgres.admin_url(database))
        .env("PGCLIENTENCODING", "UTF8")
        .status()
        .context("start psql")?;
    ensure!(status.success(), "run {}: psql ended with {status}", script.display());
    Ok(())
}

async fn peek(postgres: &Postgres, database: &str) -> Result<(usize, Vec<u8>)> {
    let sql = postgres.connect(database).await?;
    sql.batch_execute(PINNED).await.context("pin the session")?;
    let rows = sql.query(MESSAGES, &[]).await.context("read the slot")?;
    let mut recording = Vec::new();
    for row in &rows {
        let message: &[u8] = row.try_get(0)?;
        recording.extend(u32::try_from(message.len())?.to_be_bytes());
        recording.extend(message);
    }
    // A slot's name is the whole server's, and the next script makes it again.
    sql.execute("select pg_drop_replication_slot('corpus')", &[]).await.context("drop the slot")?;
    Ok((rows.len(), recording))
}
