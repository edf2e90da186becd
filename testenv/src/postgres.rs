//! A private Postgres server on a port that it keeps over restarts.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::account::Account;
use crate::home::{Home, last_lines};
use crate::port::Port;
use crate::sql::Sql;
use crate::tls::Certificates;
use crate::{binaries, children, eventually, url};

pub use crate::postgres_options::{PostgresOptions, Tls};

const BOOT_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// The superuser and its password; over TCP every role logs in with a password (SCRAM).
pub const SUPERUSER: &str = "postgres";
pub(crate) const SUPERUSER_PASSWORD: &str = "superuser-secret";

/// How a server is told to stop: <https://www.postgresql.org/docs/current/server-shutdown.html>.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// SIGTERM: waits for every client to leave.
    Smart,
    /// SIGINT: ends clients, sends walsenders everything, writes a checkpoint.
    Fast,
    /// SIGQUIT: as after a crash, recovery follows.
    Immediate,
}

/// A running (or stopped) private server. Dropping it ends the server and removes its folder.
#[derive(Debug)]
pub struct Postgres {
    bin: PathBuf,
    port: Port,
    certificates: Option<Certificates>,
    postmaster: Option<Child>,
    // After the postmaster, so that its guard finds nothing left to end.
    home: Home,
}

impl Postgres {
    /// Makes a data folder and starts a server in it: under a second where the machine is idle.
    pub async fn start(options: PostgresOptions) -> Result<Self> {
        let Some(bin) = options.bin.clone().or_else(binaries::postgres) else {
            bail!("find a PostgreSQL server: run `cargo xtask install`");
        };
        let home = Home::create("postgres", Account::find("postgres")?)?;
        let certificates = match options.tls {
            Tls::Off => None,
            Tls::Offered | Tls::Required => Some(Certificates::create(&home)?),
        };
        let mut server = Self { bin, port: Port::free()?, certificates, postmaster: None, home };
        server.make_data_folder().await?;
        server.home.write("data/pg_hba.conf", &options.access())?;
        let lines = options.lines(server.port(), server.home.folder(), server.certificates());
        server.configure(&lines)?;
        server.start_again().await?;
        Ok(server)
    }

    /// The URL of `database` for the role `user`; the password is percent-encoded as given.
    pub fn url(&self, user: &str, password: &str, database: &str) -> String {
        url::postgres(user, password, self.port(), database)
    }

    /// The URL of `database` for the superuser.
    pub fn admin_url(&self, database: &str) -> String {
        self.url(SUPERUSER, SUPERUSER_PASSWORD, database)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The folder of the unix socket, where every role is let in without a password.
    pub fn socket_folder(&self) -> &Path {
        self.home.folder()
    }

    /// The folder of the server's programs.
    pub fn bin(&self) -> &Path {
        &self.bin
    }

    /// The certificates, if it was started with TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// The postmaster's process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.postmaster.as_ref().map(Child::id)
    }

    /// Where the server logs, over all its restarts.
    pub fn log_path(&self) -> PathBuf {
        self.home.folder().join("postgres.log")
    }

    /// The log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// A superuser's connection, over the unix socket: also to a server that wants TLS.
    pub async fn connect(&self, database: &str) -> Result<Sql> {
        Sql::connect(&self.socket(database)).await
    }

    /// Creates an empty database.
    pub async fn create_database(&self, name: &str) -> Result<()> {
        let sql = self.connect("postgres").await?;
        sql.batch_execute(&format!("create database \"{name}\""))
            .await
            .with_context(|| format!("create database {name}"))
    }

    /// Ends every replication connection, as an administrator or a failing network would; returns how many.
    pub async fn terminate_walsenders(&self) -> Result<usize> {
        let sql = self.connect("postgres").await?;
        let ended = sql
            .query("select pg_terminate_backend(pid) from pg_stat_replication", &[])
            .await
            .context("terminate walsenders")?;
        Ok(ended.len())
    }

    /// Appends lines to `postgresql.conf`; they hold from the next [`Self::reload`] or start.
    pub fn configure(&self, settings: &[(impl AsRef<str>, impl AsRef<str>)]) -> Result<()> {
        use std::io::Write as _;
        let path = self.home.folder().join("data/postgresql.conf");
        let mut file = fs::OpenOptions::new().append(true).open(&path).context("open postgresql.conf")?;
        for (name, value) in settings {
            writeln!(file, "{} = '{}'", name.as_ref(), value.as_ref().replace('\'', "''"))
                .context("write postgresql.conf")?;
        }
        Ok(())
    }

    /// Lets the server read its configuration again.
    pub fn reload(&self) -> Result<()> {
        kill(self.running()?, Signal::SIGHUP).context("reload Postgres")
    }

    /// Starts the stopped server on its port, and waits until it answers.
    pub async fn start_again(&mut self) -> Result<()> {
        if self.postmaster.is_some() {
            bail!("start Postgres: it is running");
        }
        let log =
            fs::OpenOptions::new().create(true).append(true).open(self.log_path()).context("open the log")?;
        let mut command = self.program("postgres");
        command
            .arg("-D")
            .arg(self.home.folder().join("data"))
            .stdout(log.try_clone().context("share the log")?)
            .stderr(log)
            .process_group(0);
        let postmaster = command.spawn().context("start postgres")?;
        self.home.guard.watch("QUIT", postmaster.id().cast_signed())?;
        self.postmaster = Some(postmaster);
        let socket = self.socket("postgres");
        let answers = eventually("Postgres to answer", BOOT_LIMIT, async || {
            if let Some(status) = self.postmaster.as_mut().map(Child::try_wait).transpose()?.flatten() {
                self.postmaster = None;
                bail!("postgres ended with {status}");
            }
            Ok(Sql::connect(&socket).await.ok())
        });
        let answers = answers.await.map(drop);
        answers.with_context(|| format!("start Postgres; its log ends:\n{}", last_lines(&self.log())))
    }

    /// Stops the server and waits until it is gone; returns how long that took.
    ///
    /// # Errors
    /// Not gone within 30 s: it runs on, stopping.
    pub async fn stop(&mut self, mode: Stop) -> Result<Duration> {
        self.stop_within(mode, STOP_LIMIT).await
    }

    /// [`Self::stop`] with a limit of the caller's.
    pub async fn stop_within(&mut self, mode: Stop, limit: Duration) -> Result<Duration> {
        let started = Instant::now();
        self.signal_stop(mode)?;
        self.wait_stopped(limit).await.with_context(|| format!("stop Postgres ({mode:?})"))?;
        Ok(started.elapsed())
    }

    /// Tells the server to stop and does not wait: [`Self::wait_stopped`] does.
    pub fn signal_stop(&self, mode: Stop) -> Result<()> {
        let signal = match mode {
            Stop::Smart => Signal::SIGTERM,
            Stop::Fast => Signal::SIGINT,
            Stop::Immediate => Signal::SIGQUIT,
        };
        kill(self.running()?, signal).context("tell Postgres to stop")
    }

    /// Waits until a server that was told to stop is gone.
    pub async fn wait_stopped(&mut self, limit: Duration) -> Result<()> {
        let postmaster = self.postmaster.as_mut().context("wait for a server that is not running")?;
        eventually("Postgres to be gone", limit, async || Ok(postmaster.try_wait()?)).await?;
        self.postmaster = None;
        self.home.guard.rest()
    }

    /// Stops the server and starts it again.
    pub async fn restart(&mut self, mode: Stop) -> Result<()> {
        self.stop(mode).await?;
        self.start_again().await
    }

    /// Kills the server with all its processes at once, as when the machine loses power (what the operating system
    /// still holds is not lost); [`Self::start_again`] goes through recovery.
    pub async fn sigkill(&mut self) -> Result<()> {
        let postmaster = self.running()?;
        // One that is started while the others are looked for would live on, and no new server beside it.
        kill(postmaster, Signal::SIGSTOP).context("stop the postmaster")?;
        eventually("the postmaster to stand still", STOP_LIMIT, async || {
            Ok(children::is_stopped(postmaster).then_some(()))
        })
        .await?;
        // The postmaster first: alive, it would clean up after the others.
        let servants = children::of(postmaster)?;
        kill(postmaster, Signal::SIGKILL).context("kill the postmaster")?;
        for &pid in &servants {
            // One that has ended meanwhile is as dead as it should be.
            let _ = kill(pid, Signal::SIGKILL);
        }
        self.wait_stopped(STOP_LIMIT).await?;
        eventually("Postgres' processes to be gone", STOP_LIMIT, async || {
            Ok(servants.iter().all(|&pid| children::is_gone(pid)).then_some(()))
        })
        .await
    }

    /// Kills one of the server's own processes: the postmaster ends all the others and goes through recovery by itself.
    /// Returns when the server answers again.
    pub async fn crash(&self) -> Result<()> {
        let checkpointer = async || -> Result<i32> {
            let query = "select pid from pg_stat_activity where backend_type = 'checkpointer'";
            let row = self.connect("postgres").await?.query_one(query, &[]).await;
            Ok(row.context("find the checkpointer")?.get(0))
        };
        let pid = checkpointer().await?;
        kill(Pid::from_raw(pid), Signal::SIGKILL).context("kill the checkpointer")?;
        eventually("Postgres to recover from its crash", BOOT_LIMIT, async || {
            // While it recovers it refuses.
            Ok(checkpointer().await.ok().filter(|other| *other != pid).map(drop))
        })
        .await
    }

    fn socket(&self, database: &str) -> String {
        let (folder, port) = (self.socket_folder().display(), self.port());
        format!("host='{folder}' port={port} user='{SUPERUSER}' dbname='{database}'")
    }

    fn running(&self) -> Result<Pid> {
        let postmaster = self.postmaster.as_ref().context("reach Postgres: it is not running")?;
        Ok(Pid::from_raw(postmaster.id().cast_signed()))
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.bin.join(name));
        command
            .current_dir(self.home.folder())
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .env("LC_ALL", "C")
            .stdin(Stdio::null());
        self.home.account.run(&mut command);
        command
    }

    async fn make_data_folder(&self) -> Result<()> {
        let password = self.home.write("password", SUPERUSER_PASSWORD)?;
        let mut command = self.program("initdb");
        command
            .args([
                "--username",
                SUPERUSER,
                "--encoding",
                "UTF8",
                "--locale",
                "C",
                "--auth",
                "trust",
                "--no-sync",
            ])
            .arg("--pwfile")
            .arg(password)
            .arg("--pgdata")
            .arg(self.home.folder().join("data"));
        let made = tokio::task::spawn_blocking(move || command.output()).await.context("wait for initdb")?;
        let made = made.context("start initdb")?;
        if !made.status.success() {
            bail!("make a data folder: {}", String::from_utf8_lossy(&made.stderr));
        }
        Ok(())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.home.guard.release();
        if let Some(mut postmaster) = self.postmaster.take() {
            // The guard ends it; without this wait it would stay a zombie that the guard waits for.
            let _ = postmaster.wait();
        }
    }
}
