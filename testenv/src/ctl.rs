//! `rabbitmqctl` for one private node: what AMQP cannot ask for.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::account::Account;

/// Calls a node's command-line tool; each call takes about a second of CPU, so AMQP is better where it can.
#[derive(Clone, Debug)]
pub struct Ctl(Tool);

#[derive(Clone, Debug)]
enum Tool {
    Private(PrivateTool),
    /// The tool inside the container of this name.
    Container(String),
}

/// An installed tool with what it has to know of a private node.
#[derive(Clone, Debug)]
pub(crate) struct PrivateTool {
    pub(crate) program: PathBuf,
    /// Holds the cookie that lets the tool in.
    pub(crate) folder: PathBuf,
    pub(crate) account: Account,
    pub(crate) node: String,
    pub(crate) epmd_port: u16,
}

impl Ctl {
    /// Runs `rabbitmqctl` with these arguments and returns what it printed.
    ///
    /// # Errors
    /// The tool's own words when it exits with anything but 0.
    pub async fn run(&self, arguments: &[&str]) -> Result<String> {
        let mut command = match &self.0 {
            Tool::Private(tool) => tool.command(),
            Tool::Container(name) => {
                let mut command = Command::new("docker");
                command.args(["exec", name, "rabbitmqctl"]).stdin(Stdio::null());
                command
            }
        };
        command.arg("--quiet").args(arguments);
        let call = arguments.join(" ");
        let done =
            tokio::task::spawn_blocking(move || command.output()).await.context("wait for rabbitmqctl")?;
        let done = done.context("start rabbitmqctl")?;
        let printed = String::from_utf8_lossy(&done.stdout).into_owned();
        if !done.status.success() {
            bail!("run rabbitmqctl {call}: {printed}{}", String::from_utf8_lossy(&done.stderr));
        }
        Ok(printed)
    }

    /// Adds a user; it has no rights yet.
    pub async fn add_user(&self, user: &str, password: &str) -> Result<()> {
        self.run(&["add_user", user, password]).await.map(drop)
    }

    /// Adds a vhost; nobody has rights in it yet.
    pub async fn add_vhost(&self, vhost: &str) -> Result<()> {
        self.run(&["add_vhost", vhost]).await.map(drop)
    }

    /// Gives a user rights in a vhost, as three patterns of names: what it may configure, write and read.
    pub async fn set_permissions(&self, vhost: &str, user: &str, rights: [&str; 3]) -> Result<()> {
        let [configure, write, read] = rights;
        self.run(&["set_permissions", "--vhost", vhost, user, configure, write, read]).await.map(drop)
    }

    /// Closes every client's connection with code 320 and this reason.
    pub async fn close_all_connections(&self, reason: &str) -> Result<()> {
        self.run(&["close_all_connections", reason]).await.map(drop)
    }

    /// The tool of a private node.
    pub(crate) fn private(tool: PrivateTool) -> Self {
        Self(Tool::Private(tool))
    }

    /// The tool inside the container `name`.
    pub(crate) fn container(name: &str) -> Self {
        Self(Tool::Container(name.to_owned()))
    }

    /// For another process: what [`Self::from_json`] reads.
    pub(crate) fn to_json(&self) -> Value {
        match &self.0 {
            Tool::Container(name) => json!({ "container": name }),
            Tool::Private(tool) => json!({
                "program": tool.program,
                "folder": tool.folder,
                "node": tool.node,
                "epmd_port": tool.epmd_port,
            }),
        }
    }

    /// The tool that another process has described.
    pub(crate) fn from_json(found: &Value) -> Result<Self> {
        let text = |key: &str| found[key].as_str().with_context(|| format!("read {key}"));
        if let Ok(name) = text("container") {
            return Ok(Self::container(name));
        }
        let port = found["epmd_port"].as_u64().and_then(|port| u16::try_from(port).ok());
        Ok(Self::private(PrivateTool {
            program: PathBuf::from(text("program")?),
            folder: PathBuf::from(text("folder")?),
            account: Account::find("rabbitmq")?,
            node: text("node")?.to_owned(),
            epmd_port: port.context("read epmd_port")?,
        }))
    }
}

impl PrivateTool {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        self.environment(&mut command);
        command.args(["--node", &self.node]);
        command
    }

    /// What the node and its tools share: nothing of the caller's environment but PATH.
    pub(crate) fn environment(&self, command: &mut Command) {
        command
            .current_dir(&self.folder)
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .env("HOME", &self.folder)
            .env("LANG", "C.UTF-8")
            .env("ERL_EPMD_PORT", self.epmd_port.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            // Else a file of the installation would be read.
            .env("RABBITMQ_CONF_ENV_FILE", self.folder.join("environment"))
            // Eleven ports by default: as many calls at once, for all nodes of the machine.
            .env("RABBITMQ_CTL_DIST_PORT_MAX", "35999")
            .stdin(Stdio::null());
        self.account.run(command);
    }
}
