//! A relay that stops says what, why and the cure; the cure is carried out to the letter.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use testenv::relay::Program;

use crate::run::{self, Run};
use crate::stage::{LIMIT, Stage};

/// What a relay said when it stopped.
pub(crate) struct Stop {
    pub(crate) text: String,
    pub(crate) cures: Vec<String>,
}

/// Starts the relay, which ends with exit code 1 and says all this.
pub(crate) async fn expect_stop(program: &Program, says: &[&str]) -> Result<Stop> {
    let started = Instant::now();
    let mut relay = Run::start(program)?;
    let stop = stopped(&mut relay, says).await?;
    println!("{}: {:?} from start to end", says.join(", "), started.elapsed());
    Ok(stop)
}

/// Waits for a running relay to end with exit code 1, having said all this, and said it once.
pub(crate) async fn stopped(relay: &mut Run, says: &[&str]) -> Result<Stop> {
    let text = relay.expect_end(1).await?;
    for part in says {
        ensure!(text.contains(part), "expect {part:?} in the log:\n{text}");
    }
    ensure!(relay.count_lines(" ERROR postrider") == 1, "expect one error in the log:\n{text}");
    let cures: Vec<String> =
        text.lines().filter_map(|line| line.strip_prefix("  cure: ")).map(str::to_owned).collect();
    ensure!(!cures.is_empty(), "expect a cure in the log:\n{text}");
    Ok(Stop { text, cures })
}

impl Stage {
    /// Carries out exactly what was printed, as an administrator: statements and `postrider` commands.
    pub(crate) async fn mend(&self, stop: &Stop) -> Result<()> {
        for cure in &stop.cures {
            self.carry_out(cure)
                .await
                .with_context(|| format!("carry out {cure}, a cure of:\n{}", stop.text))?;
        }
        Ok(())
    }

    /// One line of a cure.
    pub(crate) async fn carry_out(&self, cure: &str) -> Result<()> {
        match cure.strip_prefix("postrider ") {
            Some(words) => run::expect(&self.rig.admin, words, 0).await.map(drop),
            None => self.execute(cure).await,
        }
    }

    /// The relay stops and says this; what it prints as the cure is carried out; then it runs and delivers.
    pub(crate) async fn expect_stop_and_cure(&self, says: &[&str]) -> Result<Stop> {
        let stop = expect_stop(&self.rig.program, says).await?;
        self.mend(&stop).await?;
        self.expect_delivery().await.with_context(|| format!("after the cure of:\n{}", stop.text))?;
        Ok(stop)
    }

    /// Waits until nobody holds the slot.
    pub(crate) async fn wait_slot_free(&self) -> Result<()> {
        testenv::oracle::Slot::wait_free(&self.sql, self.name(), LIMIT).await.map(drop)
    }
}
