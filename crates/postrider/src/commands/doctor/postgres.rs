//! The Postgres side: what stops a relay, and what will trouble it.

use postrider_postgres::{Admin, Error, Severity, Stop, Symptom};

use super::{Finding, Level};
use crate::config::Config;
use crate::metrics::Side;
use crate::peers;

/// The columns without which no row of an outbox becomes a message.
const NEEDED: [&str; 5] = ["id", "aggregate_type", "aggregate_id", "event_type", "payload"];

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
    match admin.doctor(&subject, &NEEDED).await {
        Ok(symptoms) => {
            if symptoms.iter().all(|symptom| symptom.severity != Severity::Error) {
                let what = format!(
                    "the slot {} and the publication {} are in place",
                    subject.slot(),
                    subject.publication()
                );
                findings.push(Finding::new(Side::Postgres, Level::Ok, what, ""));
            }
            findings.extend(symptoms.into_iter().map(finding));
        }
        Err(error) => findings.push(refused(error)),
    }
    findings
}

fn finding(symptom: Symptom) -> Finding {
    let Symptom { severity, what, why, cure } = symptom;
    let level = match severity {
        Severity::Note => Level::Ok,
        Severity::Warning => Level::Warning,
        Severity::Error => Level::Error,
    };
    Finding { cure, ..Finding::new(Side::Postgres, level, what, why) }
}

fn refused(error: Error) -> Finding {
    match error {
        Error::Stop(stop) => {
            let Stop { reason: _, what, why, cure } = *stop;
            Finding { cure, ..error_finding(what, why) }
        }
        Error::Standby { .. } | Error::Outage(_) => error_finding(format!("failed to {error}"), ""),
    }
}

fn error_finding(what: impl Into<String>, why: impl Into<String>) -> Finding {
    Finding::new(Side::Postgres, Level::Error, what, why)
}
