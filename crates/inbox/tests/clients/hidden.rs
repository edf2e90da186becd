//! Work that keeps an SQL error to itself: Postgres answers the commit with a rollback and no error, and yet the message
//! must not be acknowledged as done. And work that fails by what is no text, or no error.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use testenv::consumer::Value;

use crate::once::reason;
use crate::station::{ATTEMPTS, LIMIT, Language, Station};

/// All that `work` does.
const PYTHON_WORK: &str = r#"
    database.execute("update report set counter = counter + 1 where id = 'daily'")
"#;
const PYTHON_HIDING: &str = r#"
    database.execute("update report set counter = counter + 1 where id = 'daily'")
    try:
        database.execute("select 1 / 0")
    except psycopg.Error:
        pass
"#;
const NODE_WORK: &str = r#"
  await database.query("update report set counter = counter + 1 where id = 'daily'");
"#;
const NODE_HIDING: &str = r#"
  await database.query("update report set counter = counter + 1 where id = 'daily'");
  await database.query('select 1 / 0').catch(() => {});
"#;
/// Half of a character, as in the name of a file.
const PYTHON_NO_TEXT: &str = r#"
    raise RuntimeError("no paper \udcff")
"#;
const NODE_NO_ERROR: &str = r"
  throw 'no paper';
";

pub(crate) async fn error(language: Language) -> Result<()> {
    let station = Station::new(language, "hidden error").await?;
    let worker = station.start(&with(language, "hiding", [PYTHON_HIDING, NODE_HIDING])?).await?;
    // The broker delivers the second only once the first is acknowledged.
    for id in ["E-42", "E-43"] {
        station.send(id, "one").await?;
        let first = worker.wait_log(&format!("{id}: "), LIMIT).await?;
        assert!(first.contains("failure 1: the work has hidden an error"), "{first}");
        let parked = station.parked().await?;
        assert_eq!((parked.message_id(), reason(&parked)), (id, "exhausted"));
        assert_eq!(parked.headers.get("inbox_parked_attempts"), Some(&Value::Int(ATTEMPTS)));
    }
    assert_eq!(station.counter().await?, 6);
    let failed =
        format!("select count(*) from postrider.inbox where status = 'failed' and attempts = {ATTEMPTS}");
    assert_eq!(station.number(&failed).await?, 2);
    Ok(())
}

pub(crate) async fn no_error(language: Language) -> Result<()> {
    let station = Station::new(language, "no error").await?;
    let worker = station.start(&with(language, "throwing", [PYTHON_NO_TEXT, NODE_NO_ERROR])?).await?;
    station.send("E-42", "one").await?;
    let first = worker.wait_log("E-42: ", LIMIT).await?;
    assert!(first.contains("failure 1: no paper"), "{first}");
    let parked = station.parked().await?;
    assert_eq!((parked.message_id(), reason(&parked)), ("E-42", "exhausted"));
    Ok(())
}

/// The program with nothing but its work replaced, in a folder of this test.
fn with(language: Language, test: &str, [python, node]: [&str; 2]) -> Result<PathBuf> {
    let (work, other) = match language {
        Language::Python => (PYTHON_WORK, python),
        Language::Node => (NODE_WORK, node),
    };
    let original = language.program();
    let source = fs::read_to_string(&original).with_context(|| format!("read {}", original.display()))?;
    ensure!(source.matches(work).count() == 1, "find the work once in {}", original.display());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{language:?}"));
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let libraries = folder.join("node_modules");
    if matches!(language, Language::Node) && !libraries.is_symlink() {
        symlink(language.folder().join("node_modules"), &libraries).context("link the libraries")?;
    }
    let program = folder.join(original.file_name().context("name the program")?);
    fs::write(&program, source.replace(work, other))
        .with_context(|| format!("write {}", program.display()))?;
    Ok(program)
}
