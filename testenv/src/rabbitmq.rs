//! A private RabbitMQ node on ports that it keeps over restarts.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::account::Account;
use crate::ctl::{Ctl, PrivateTool};
use crate::epmd::Epmd;
use crate::home::{Home, last_lines};
use crate::port::Port;
use crate::tls::Certificates;
use crate::{binaries, eventually, seed, url};

const BOOT_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// The user, and its password, that a node has from its first boot.
pub const GUEST: &str = "guest";

/// What to start; the default is a node without plugins and without TLS.
#[derive(Clone, Debug, Default)]
pub struct RabbitMqOptions {
    /// Names of plugins that come with the server.
    pub plugins: Vec<&'static str>,
    /// The share of the machine's memory above which publishers are blocked; none: the server's default.
    pub memory_watermark: Option<f64>,
    /// Whether there is a second port, for amqps.
    pub tls: bool,
    /// Further lines of `rabbitmq.conf`, as key and value.
    pub settings: Vec<(String, String)>,
}

/// A running (or stopped) private node. Dropping it ends the node and removes its folder.
#[derive(Debug)]
pub struct RabbitMq {
    bin: PathBuf,
    amqp: Port,
    amqps: Option<Port>,
    distribution: Port,
    certificates: Option<Certificates>,
    tool: PrivateTool,
    ctl: Ctl,
    node: Option<Child>,
    // After the node, so that its guard finds nothing left to end.
    home: Home,
    /// Held, so that it outlives the node.
    _epmd: Arc<Epmd>,
}

impl RabbitMq {
    /// Makes a node's folder and starts the node: five to eight seconds.
    pub async fn start(options: RabbitMqOptions) -> Result<Self> {
        let epmd = Arc::new(Epmd::start(Account::find("rabbitmq")?).await?);
        let mut server = Self::prepare(&options, epmd, &new_cookie())?;
        server.write_configuration(&options)?;
        server.start_again().await?;
        Ok(server)
    }

    /// Makes a node's folder; nodes that share port mapper and cookie may talk to each other. Its configuration is
    /// still to be written.
    pub(crate) fn prepare(options: &RabbitMqOptions, epmd: Arc<Epmd>, cookie: &str) -> Result<Self> {
        let Some(bin) = binaries::rabbitmq() else {
            bail!("find a RabbitMQ server: run `cargo xtask install`");
        };
        let home = Home::create("rabbitmq", Account::find("rabbitmq")?)?;
        home.write(".erlang.cookie", cookie)?;
        home.write("environment", "")?;
        let certificates = if options.tls { Some(Certificates::create(&home)?) } else { None };
        let amqp = Port::free()?;
        let tool = PrivateTool {
            program: bin.join("rabbitmqctl"),
            folder: home.folder().to_owned(),
            account: home.account,
            node: format!("postrider-{}@localhost", amqp.number()),
            epmd_port: epmd.port(),
        };
        Ok(Self {
            bin,
            amqp,
            amqps: if options.tls { Some(Port::free()?) } else { None },
            distribution: Port::free()?,
            certificates,
            ctl: Ctl::private(tool.clone()),
            tool,
            node: None,
            home,
            _epmd: epmd,
        })
    }

    /// The node's name, as other nodes know it.
    pub(crate) fn node_name(&self) -> &str {
        &self.tool.node
    }

    /// The URL of `vhost` for `user`, without TLS.
    pub fn url(&self, user: &str, password: &str, vhost: &str) -> String {
        url::rabbitmq("amqp", user, password, "127.0.0.1", self.port(), vhost)
    }

    /// The URL of the vhost `/` for the first user.
    pub fn guest_url(&self) -> String {
        self.url(GUEST, GUEST, "/")
    }

    /// The URL of `vhost` for `user` with TLS, by the name `localhost`; none if the node was started without.
    pub fn tls_url(&self, user: &str, password: &str, vhost: &str) -> Option<String> {
        let port = self.amqps.as_ref()?.number();
        Some(url::rabbitmq("amqps", user, password, "localhost", port, vhost))
    }

    /// The AMQP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.amqp.number()
    }

    /// The amqps port on 127.0.0.1, if there is one.
    pub fn tls_port(&self) -> Option<u16> {
        self.amqps.as_ref().map(Port::number)
    }

    /// The certificates, if it was started with TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// The leader of the node's process group, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.node.as_ref().map(Child::id)
    }

    /// Where the node logs, over all its restarts.
    pub fn log_path(&self) -> PathBuf {
        self.home.folder().join("rabbitmq.log")
    }

    /// The log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// The node's command-line tool; each call takes about a second of CPU.
    pub fn ctl(&self) -> &Ctl {
        &self.ctl
    }

    /// Raises the memory alarm: publishers are blocked, as when memory is short.
    pub async fn block(&self) -> Result<()> {
        self.ctl.run(&["set_vm_memory_high_watermark", "0"]).await.map(drop)
    }

    /// Clears the memory alarm.
    pub async fn unblock(&self) -> Result<()> {
        self.ctl.run(&["set_vm_memory_high_watermark", "0.8"]).await.map(drop)
    }

    /// Freezes the node with all its processes: its connections stay open and silent.
    pub fn pause(&self) -> Result<()> {
        killpg(self.group()?, Signal::SIGSTOP).context("freeze RabbitMQ")
    }

    /// Lets a frozen node go on.
    pub fn resume(&self) -> Result<()> {
        killpg(self.group()?, Signal::SIGCONT).context("thaw RabbitMQ")
    }

    /// Starts the stopped node on its ports, and waits until it speaks AMQP.
    pub async fn start_again(&mut self) -> Result<()> {
        if self.node.is_some() {
            bail!("start RabbitMQ: it is running");
        }
        let log =
            fs::OpenOptions::new().create(true).append(true).open(self.log_path()).context("open the log")?;
        let mut command = self.program(&self.bin.join("rabbitmq-server"))?;
        command.stdout(log.try_clone().context("share the log")?).stderr(log).process_group(0);
        let node = command.spawn().context("start rabbitmq-server")?;
        self.home.guard.watch("KILL", -node.id().cast_signed())?;
        self.node = Some(node);
        let port = self.port();
        let answers = eventually("RabbitMQ to speak AMQP", BOOT_LIMIT, async || {
            if let Some(status) = self.node.as_mut().map(Child::try_wait).transpose()?.flatten() {
                self.node = None;
                bail!("rabbitmq-server ended with {status}");
            }
            Ok(greets(port).await.then_some(()))
        });
        let answers = answers.await;
        answers.with_context(|| format!("start RabbitMQ; its log ends:\n{}", last_lines(&self.log())))
    }

    /// Stops the node in good order and waits until it is gone; returns how long that took.
    ///
    /// # Errors
    /// Not gone within a minute: it runs on, stopping.
    pub async fn stop(&mut self) -> Result<Duration> {
        let started = Instant::now();
        let node = self.node.as_mut().context("stop RabbitMQ: it is not running")?;
        kill(Pid::from_raw(node.id().cast_signed()), Signal::SIGTERM).context("tell RabbitMQ to stop")?;
        eventually("RabbitMQ to be gone", STOP_LIMIT, async || Ok(node.try_wait()?)).await?;
        self.forget_node()?;
        Ok(started.elapsed())
    }

    /// Stops the node and starts it again.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        self.start_again().await
    }

    /// Lets the node write down which queues it has. RabbitMQ 3.10 does so only some time after their declaration: a
    /// quorum queue that is younger when the node is killed comes back empty, or without a leader.
    pub async fn remember_queues(&self) -> Result<()> {
        self.ctl().run(&["eval", "[dets:sync(Table) || Table <- dets:all()]."]).await.map(drop)
    }

    /// Kills the node with all its processes at once.
    pub async fn sigkill(&mut self) -> Result<()> {
        killpg(self.group()?, Signal::SIGKILL).context("kill RabbitMQ")?;
        let node = self.node.as_mut().context("kill RabbitMQ: it is not running")?;
        eventually("RabbitMQ to be gone", STOP_LIMIT, async || Ok(node.try_wait()?)).await?;
        self.forget_node()?;
        // The shell that we started is gone, the node that it started a moment later.
        let port = self.port();
        eventually("RabbitMQ's port to be free", STOP_LIMIT, async || {
            Ok(std::net::TcpListener::bind(("127.0.0.1", port)).ok().map(drop))
        })
        .await
    }

    fn group(&self) -> Result<Pid> {
        let leader = self.pid().context("reach RabbitMQ: it is not running")?;
        Ok(Pid::from_raw(leader.cast_signed()))
    }

    /// The node has ended: its process id may soon be another's.
    fn forget_node(&mut self) -> Result<()> {
        self.node = None;
        self.home.guard.rest()
    }

    fn program(&self, program: &Path) -> Result<Command> {
        let folder = self.home.folder();
        let mut command = Command::new(program);
        self.tool.environment(&mut command);
        command
            .env("ERL_CRASH_DUMP_SECONDS", "0")
            .env("RABBITMQ_NODENAME", &self.tool.node)
            .env("RABBITMQ_DIST_PORT", self.distribution.number().to_string())
            .env("RABBITMQ_MNESIA_BASE", self.home.subfolder("mnesia")?)
            .env("RABBITMQ_LOG_BASE", self.home.subfolder("log")?)
            .env("RABBITMQ_LOGS", "-")
            .env("RABBITMQ_GENERATED_CONFIG_DIR", self.home.subfolder("generated")?)
            .env("RABBITMQ_PLUGINS_EXPAND_DIR", self.home.subfolder("expanded")?)
            .env("RABBITMQ_PID_FILE", folder.join("pid"))
            .env("RABBITMQ_CONFIG_FILE", folder.join("rabbitmq.conf"))
            .env("RABBITMQ_ADVANCED_CONFIG_FILE", folder.join("no-advanced.config"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", folder.join("enabled_plugins"))
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}");
        Ok(command)
    }

    /// Writes `rabbitmq.conf` and the list of plugins.
    pub(crate) fn write_configuration(&self, options: &RabbitMqOptions) -> Result<()> {
        self.home.write("enabled_plugins", &format!("[{}].\n", options.plugins.join(",")))?;
        let mut lines = vec![
            format!("listeners.tcp.1 = 127.0.0.1:{}", self.port()),
            // A machine with a full disk is not what a test of ours is about.
            "disk_free_limit.absolute = 1MB".to_owned(),
        ];
        if let Some(share) = options.memory_watermark {
            lines.push(format!("vm_memory_high_watermark.relative = {share}"));
        }
        if let (Some(port), Some(files)) = (&self.amqps, &self.certificates) {
            lines.push(format!("listeners.ssl.1 = 127.0.0.1:{}", port.number()));
            lines.push(format!("ssl_options.cacertfile = {}", files.authority().display()));
            lines.push(format!("ssl_options.certfile = {}", files.certificate.display()));
            lines.push(format!("ssl_options.keyfile = {}", files.key.display()));
            lines.push("ssl_options.verify = verify_none".to_owned());
            lines.push("ssl_options.fail_if_no_peer_cert = false".to_owned());
        }
        lines.extend(options.settings.iter().map(|(key, value)| format!("{key} = {value}")));
        self.home.write("rabbitmq.conf", &(lines.join("\n") + "\n")).map(drop)
    }
}

impl Drop for RabbitMq {
    fn drop(&mut self) {
        self.home.guard.release();
        if let Some(mut node) = self.node.take() {
            // The guard kills its group; without this wait it would stay a zombie that the guard waits for.
            let _ = node.wait();
        }
    }
}

/// The secret that nodes and tools show each other.
pub(crate) fn new_cookie() -> String {
    format!("{:016X}", seed::random())
}

/// Whether somebody at the port answers the protocol header with a method frame: AMQP 0-9-1, section 2.2.4.
async fn greets(port: u16) -> bool {
    let greeting = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        stream.write_all(b"AMQP\x00\x00\x09\x01").await.ok()?;
        stream.read_u8().await.ok()
    };
    matches!(timeout(Duration::from_secs(5), greeting).await, Ok(Some(1)))
}
