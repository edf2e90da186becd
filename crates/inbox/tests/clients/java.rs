//! The README's Java: its statements are run, with the values that the program would give them.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use postrider_inbox::INBOX_SQL;
use testenv::Scope;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

#[tokio::test]
async fn the_statements_of_the_readme_do_what_it_says() -> Result<()> {
    let scope = Scope::shared("java").await?;
    let mut sql = scope.connect().await?;
    sql.batch_execute(INBOX_SQL).await?;
    let report = "create table report (id text primary key, counter bigint not null);
        insert into report values ('daily', 6)";
    sql.batch_execute(report).await?;
    let statements = statements()?;
    let [claim, look, failure] = statements.as_slice() else {
        anyhow::bail!("find the claim, the look and the failure in the README's Java: {statements:?}");
    };
    let work = "update report set counter = counter + 1 where id = 'daily'";
    // As JDBC sends it: setString is varchar, setBytes is bytea.
    let claim = sql.prepare_typed(claim, &[Type::VARCHAR, Type::VARCHAR, Type::BYTEA]).await?;
    let (consumer, id, error) = ("report-worker", "E-42", "no paper");
    for (content, verdict, counter) in
        [("one", "process", 7_i64), ("one", "duplicate", 7), ("two", "mismatch", 7)]
    {
        let transaction = sql.transaction().await?;
        let row = transaction.query_one(&claim, &[&consumer, &id, &content.as_bytes()]).await?;
        assert_eq!(row.get::<_, &str>(0), verdict);
        if verdict == "process" {
            transaction.execute(work, &[]).await?;
        }
        transaction.execute(look.as_str(), &[]).await?;
        transaction.commit().await?;
        let row = sql.query_one("select counter from report", &[]).await?;
        assert_eq!(row.get::<_, i64>(0), counter, "{verdict}");
    }
    let transaction = sql.transaction().await?;
    transaction.execute("select 1 / 0", &[]).await.expect_err("divide by zero");
    let seen = transaction.execute(look.as_str(), &[]).await.expect_err("look at a failed transaction");
    assert_eq!(seen.code(), Some(&SqlState::IN_FAILED_SQL_TRANSACTION));
    transaction.rollback().await?;
    let failure = sql.prepare_typed(failure, &[Type::VARCHAR, Type::VARCHAR, Type::VARCHAR]).await?;
    for (id, attempts) in [("E-42", None), ("E-43", Some(1)), ("E-43", Some(2))] {
        let row = sql.query_one(&failure, &[&consumer, &id, &error]).await?;
        assert_eq!(row.get::<_, Option<i32>>(0), attempts, "{id}");
    }
    Ok(())
}

/// The strings of the README's one piece of Java that are statements, with Postgres' own placeholders.
fn statements() -> Result<Vec<String>> {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(readme).context("read the README")?;
    let mut pieces = readme.split("```java\n").skip(1);
    let piece = pieces.next().context("find Java in the README")?;
    ensure!(pieces.next().is_none(), "find one piece of Java in the README");
    let java = piece.split("```").next().unwrap_or_default();
    // No string of it holds a quotation mark.
    let strings = java.split('"').skip(1).step_by(2);
    let statements = strings.filter(|text| text.starts_with("select "));
    Ok(statements.map(numbered).collect())
}

/// `?` of JDBC as `$1`, `$2` ….
fn numbered(statement: &str) -> String {
    let mut parts = statement.split('?');
    let first = parts.next().unwrap_or_default().to_owned();
    (1..).zip(parts).fold(first, |text, (number, part)| format!("{text}${number}{part}"))
}
