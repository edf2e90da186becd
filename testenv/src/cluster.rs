//! Three private RabbitMQ nodes in one cluster, of which two can be taken away.
//!
//! Without two of its three members a quorum queue confirms nothing, while the node that is left serves all else.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::future::try_join_all;
use serde_json::Value;

use crate::account::Account;
use crate::epmd::Epmd;
use crate::eventually;
use crate::rabbitmq::{RabbitMq, RabbitMqOptions, new_cookie};

/// A quorum queue has as many members, unless it is declared otherwise.
const NODES: usize = 3;
const JOIN_LIMIT: Duration = Duration::from_secs(120);

/// A cluster of three nodes. Dropping it ends them all.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<RabbitMq>,
}

impl Cluster {
    /// Starts the first node, then the others, and waits until they are one cluster: twice as long as a node takes.
    pub async fn start() -> Result<Self> {
        let epmd = Arc::new(Epmd::start(Account::find("rabbitmq")?).await?);
        let cookie = new_cookie();
        let options = RabbitMqOptions::default();
        let prepare = |_| RabbitMq::prepare(&options, Arc::clone(&epmd), &cookie);
        let mut nodes = (0..NODES).map(prepare).collect::<Result<Vec<_>>>()?;
        for node in &nodes {
            // Nodes that look for each other while all of them boot wait for a lock longer than it takes to boot.
            let settings = settings(&nodes[0], node);
            node.write_configuration(&RabbitMqOptions { settings, ..options.clone() })?;
        }
        nodes[0].start_again().await?;
        let mut cluster = Self { nodes };
        cluster.regain_majority().await?;
        Ok(cluster)
    }

    /// The node that is never taken away: its URLs are the cluster's.
    pub fn node(&self) -> &RabbitMq {
        &self.nodes[0]
    }

    /// Kills the two other nodes.
    pub async fn lose_majority(&mut self) -> Result<()> {
        try_join_all(self.nodes.iter_mut().skip(1).map(RabbitMq::sigkill)).await.map(drop)
    }

    /// Starts them again, and waits until they are back in the cluster.
    pub async fn regain_majority(&mut self) -> Result<()> {
        try_join_all(self.nodes.iter_mut().skip(1).map(RabbitMq::start_again)).await?;
        self.wait_joined().await
    }

    async fn wait_joined(&self) -> Result<()> {
        eventually("three nodes in the cluster", JOIN_LIMIT, async || {
            let status = self.node().ctl().run(&["cluster_status", "--formatter", "json"]).await?;
            let status: Value = serde_json::from_str(&status).context("read the cluster's status")?;
            let running = status["running_nodes"].as_array().context("read which nodes run")?;
            Ok((running.len() == NODES).then_some(()))
        })
        .await
    }
}

/// A node without data joins the first; one that is left alone goes on.
fn settings(first: &RabbitMq, node: &RabbitMq) -> Vec<(String, String)> {
    let discovery = "cluster_formation.peer_discovery_backend";
    let peer = "cluster_formation.classic_config.nodes";
    [
        ("cluster_partition_handling".to_owned(), "ignore"),
        (discovery.to_owned(), "classic_config"),
        (format!("{peer}.1"), first.node_name()),
        (format!("{peer}.2"), node.node_name()),
    ]
    .map(|(key, value)| (key, value.to_owned()))
    .into()
}
