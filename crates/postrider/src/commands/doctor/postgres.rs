//! The Postgres side: what stops a relay, and what will trouble it.

use postrider_postgres::{Admin, Error, Inspection, Stop, Subject};

use super::{Finding, Level};
use crate::config::Config;
use crate::metrics::Side;
use crate::peers;

/// Never fails: that the server cannot be asked is a finding.
pub(super) async fn look(config: &Config) -> Vec<Finding> {
    let (server, subject) =
        match peers::server(config).and_then(|server| Ok((server, peers::subject(config)?))) {
            Ok(asked) => asked,
            Err(error) => return vec![error_finding(format!("failed to {error}"), "")],
        };
    let admin = match Admin::connect(&server).await {
        Ok(admin) => admin,
        Err(error) => return vec![refused(error)],
    };
    let version = admin.version();
    let there = format!("PostgreSQL {version} answers at {}", admin.endpoint());
    let mut findings = vec![Finding::new(Side::Postgres, Level::Ok, there, "")];
    match admin.inspect(&subject).await {
        Ok(seen) => findings.extend(judge(&seen, &subject)),
        Err(error) => findings.push(refused(error)),
    }
    findings
}

/// What follows from one look at the server.
fn judge(seen: &Inspection, subject: &Subject) -> Vec<Finding> {
    if seen.in_recovery {
        let why = "a relay writes to the primary; name it in postgres.url, or several hosts with \
                   target_session_attrs=read-write";
        return vec![error_finding("the server is a standby", why)];
    }
    let mut findings = vec![match seen.verdict(subject) {
        Ok(()) => {
            let what = format!(
                "the slot {} and the publication {} are in place",
                subject.slot(),
                subject.publication()
            );
            Finding::new(Side::Postgres, Level::Ok, what, "")
        }
        Err(stop) => stopped(stop),
    }];
    if seen.wal_sender_timeout.is_none() {
        let why = "a relay whose host is lost keeps the slot for ever, and no standby takes over";
        findings.push(
            warning("wal_sender_timeout is off", why)
                .cure("alter system set wal_sender_timeout = '60s'")
                .cure("select pg_reload_conf()"),
        );
    }
    let Some(slot) = &seen.slot else { return findings };
    if let Some(status @ ("extended" | "unreserved")) = slot.wal_status.as_deref() {
        let why = match slot.safe_wal_size {
            Some(left) => format!(
                "after {} more of the log it may be lost, and with it every event that is not delivered",
                super::table::bytes(left)
            ),
            None => {
                "the server keeps more log for it than max_wal_size: see that the disk holds it".to_owned()
            }
        };
        findings
            .push(warning(format!("the slot {} falls behind (wal_status {status})", subject.slot()), why));
    }
    if slot.failover == Some(false) {
        let why = "after a failover it is not on the new primary; this is a command of the replication protocol: \
                   connect with replication=database";
        findings.push(
            warning(format!("the slot {} is not kept up on standbys", subject.slot()), why)
                .cure(format!("ALTER_REPLICATION_SLOT {} ( FAILOVER true )", subject.slot())),
        );
    }
    findings
}

fn refused(error: Error) -> Finding {
    match error {
        Error::Stop(stop) => stopped(*stop),
        Error::Standby { .. } | Error::Outage(_) => error_finding(format!("failed to {error}"), ""),
    }
}

fn stopped(stop: Stop) -> Finding {
    let Stop { reason: _, what, why, cure } = stop;
    Finding { cure, ..error_finding(what, why) }
}

fn error_finding(what: impl Into<String>, why: impl Into<String>) -> Finding {
    Finding::new(Side::Postgres, Level::Error, what, why)
}

fn warning(what: impl Into<String>, why: impl Into<String>) -> Finding {
    Finding::new(Side::Postgres, Level::Warning, what, why)
}

#[cfg(test)]
mod tests {
    use postrider_postgres::TableName;
    use serde_json::{Value, json};

    use super::*;

    /// A server on which all is well, with `changes` laid over its answer.
    fn findings(changes: &Value) -> Vec<(Level, String)> {
        let mut answer = json!({
            "database": "shop", "in_recovery": false, "wal_level": "logical", "wal_lsn": "0/2000",
            "wal_sender_timeout_s": 60.0, "system_identifier": "7", "timeline": 1, "stats_epoch": null,
            "schema": true, "role": "postrider_relay",
            "quarantine": { "granted": true },
            "slot": {
                "plugin": "pgoutput", "database": "shop", "temporary": false, "active_pid": null,
                "restart_lsn": "0/1000", "confirmed_flush_lsn": "0/1000", "wal_status": "reserved",
                "safe_wal_size": null, "catalog_xmin_age": 100, "decoded_txns": 0, "stats_reset": null
            },
            "publication": { "oid": 5, "xmin_age": 1000, "insert": true, "via_root": true },
            "tables": [
                { "exists": true, "partitioned": false, "logged": true, "covered": true, "narrowed": false }
            ],
            "record": {
                "publication_oid": 5, "system_identifier": "7", "timeline": 1, "slot_lsn": "0/1000",
                "watermark": null, "decoded_txns": 0, "stats_epoch": null
            }
        });
        for (path, value) in changes.as_object().expect("changes by path") {
            *answer.pointer_mut(path).expect("a key of the answer") = value.clone();
        }
        let seen: Inspection = serde_json::from_value(answer).expect("an answer");
        let subject =
            Subject::new("postrider", "postrider", vec![TableName::default_outbox()]).expect("names");
        judge(&seen, &subject).into_iter().map(|finding| (finding.level, finding.what)).collect()
    }

    #[test]
    fn one_look_tells_what_is_wrong() {
        let fine = "the slot postrider and the publication postrider are in place";
        for (changes, expected) in [
            (json!({}), vec![(Level::Ok, fine)]),
            (json!({ "/in_recovery": true }), vec![(Level::Error, "the server is a standby")]),
            (json!({ "/wal_level": "replica" }), vec![(Level::Error, "wal_level is replica")]),
            (
                json!({ "/wal_sender_timeout_s": 0.0 }),
                vec![(Level::Ok, fine), (Level::Warning, "wal_sender_timeout is off")],
            ),
            (
                json!({ "/slot/wal_status": "unreserved", "/slot/safe_wal_size": 1024 }),
                vec![
                    (Level::Ok, fine),
                    (Level::Warning, "the slot postrider falls behind (wal_status unreserved)"),
                ],
            ),
        ] {
            let expected: Vec<_> =
                expected.into_iter().map(|(level, what)| (level, what.to_owned())).collect();
            assert_eq!(findings(&changes), expected, "{changes}");
        }
    }
}
