//! `cargo xtask chaos`: a shop that writes without pause, and faults on both sides of the relay, drawn from a seed.
//!
//! At the end all is quiet, whatever is owed or put aside arrives, and one oracle judges: nothing lost, no ghost,
//! first deliveries in order, nothing altered, and nothing twice that the slot had passed.

mod copies;
mod fault;
mod harm;
mod quarantine;
mod stage;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use testenv::oracle::judge;
use testenv::writer::{Load, Writer};
use tokio::time::sleep;

use crate::demo;
use fault::{Fault, Sequence};
use stage::{LIMIT, Stage};

/// For all that is owed when the faults are over.
const CALM_LIMIT: Duration = Duration::from_secs(180);

/// What to draw from, and for how long.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What the faults are drawn from; the same seed has the same sequence
    #[arg(long)]
    seed: Option<u64>,
    /// How long faults happen
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=1440))]
    minutes: u64,
    /// How many transactions the shop writes in a second
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Do not ask before a missing server is installed
    #[arg(long)]
    yes: bool,
}

pub(crate) async fn run(root: &Path, arguments: Arguments) -> Result<()> {
    crate::install::servers(arguments.yes)?;
    let binary = demo::build(root)?;
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("chaos: seed {seed}, {} minutes of faults", arguments.minutes);
    let mut stage = Stage::set(&binary).await?;
    let played = play(&mut stage, seed, &arguments).await;
    if let Err(error) = played {
        let logs = stage.save_logs(seed)?;
        bail!(
            "{error:#}\nreplay it with --seed {seed}; the logs are in {}: keep every promise",
            logs.display()
        );
    }
    Ok(())
}

async fn play(stage: &mut Stage, seed: u64, arguments: &Arguments) -> Result<()> {
    stage.start()?;
    stage.relay().wait_ready(LIMIT).await?;
    let load = Load {
        orders: 100,
        events: 1..=6,
        transactions_per_second: Some(f64::from(arguments.rate)),
        seed,
        ..Load::default()
    };
    let mut writer = stage.rig.write(&load);
    stage.consume().await?;
    let began = Instant::now();
    let end = Duration::from_secs(60 * arguments.minutes);
    let mut faults = Vec::new();
    for fault in Sequence::new(seed).take_while(|_| began.elapsed() < end) {
        sleep(fault.pause).await;
        faults.push(fault);
        let number = faults.len();
        println!("{:7.1} s  {number:>3}  {fault}", began.elapsed().as_secs_f64());
        harm::harm(stage, number, &fault)
            .await
            .with_context(|| format!("live through fault {number}: {fault}"))?;
        stage.ensure_running()?;
        if fault.recovers {
            // What is parked may be all there is: then only a row of the quarantine can end a hold.
            quarantine::retry(&stage.rig).await?;
            let ready = stage.relay().wait_ready(LIMIT).await;
            ready.with_context(|| format!("be ready again after fault {number}: {fault}"))?;
        }
    }
    println!("{:7.1} s       calm", began.elapsed().as_secs_f64());
    settle(stage, &mut writer, &faults).await
}

/// The shop sells once more and closes; everything arrives, and is judged.
async fn settle(stage: &mut Stage, writer: &mut Writer, faults: &[Fault]) -> Result<()> {
    writer.wait_events(100, LIMIT).await?;
    writer.stop().await?;
    let began = Instant::now();
    stage.wait_followed(CALM_LIMIT).await?;
    let parked = quarantine::release(&stage.rig, CALM_LIMIT).await?;
    println!("everything has left the relay after {:.1?}", began.elapsed());
    let truth = stage.rig.truth().await?;
    let deliveries = stage.empty().await?;
    let mut verdict = judge(&truth, &deliveries, &[]);
    let ids = quarantine::ids(&stage.rig).await?;
    let (again, forbidden) = verdict.forbidden.into_iter().partition(|copy| ids.contains(&copy.message_id));
    verdict.forbidden = forbidden;
    let again: Vec<_> = again;
    println!("{verdict}");
    println!("copies behind the mark of each fault, which says what the slot had passed:");
    for (kind, cost) in copies::by_kind(faults, &deliveries) {
        println!("{:>7}  after {:>2} x {kind} (at most {})", cost.copies, cost.faults, cost.most);
    }
    println!("{parked} events were put aside; {} copies of them were sent again from the table", again.len());
    println!("the relay's memory at its highest: {} MiB", stage.peak_bytes() >> 20);
    verdict.expect_clean()?;
    stage.relay().wait_ready(LIMIT).await?;
    stage.end().await
}
