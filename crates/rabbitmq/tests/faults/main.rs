//! Ring `fault`: brokers that are blocked, frozen, killed, cut off, or deaf on one route.

mod broker;
mod closes;
mod returns;
#[path = "../rig/mod.rs"]
mod rig;
mod routes;

use anyhow::Result;
use postrider_relay::{Answer, Verdict, Window};
use testenv::RabbitMq;

use crate::rig::{message, window};

const EXCHANGE: &str = "postrider";

fn batch(id: u64, queue: &str) -> Window {
    let first = u32::try_from(id).expect("few windows") * 100;
    window(id, (first..first + 100).map(|number| message(number, EXCHANGE, &format!("{queue}.x"))))
}

fn confirmed(answer: &Answer) -> usize {
    answer.verdicts.iter().filter(|verdict| **verdict == Verdict::Confirmed).count()
}

/// Suspends (or resumes) a queue's process: it confirms nothing, as a quorum queue without a majority.
async fn order(server: &RabbitMq, queue: &str, what: &str) -> Result<()> {
    let call = format!(
        "{{ok, Queue}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<\"{queue}\">>)), \
         sys:{what}(amqqueue:get_pid(Queue))."
    );
    server.ctl().run(&["eval", &call]).await.map(drop)
}
