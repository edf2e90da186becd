//! Ends a server whose owner died without a word.
//!
//! A destructor does not run after SIGKILL, an abort, or for a value in a static. So each server has a small shell
//! beside it that reads a pipe from us: the pipe closes when we die, however we die, and then the shell ends
//! what the last line named and removes the folder. An orderly drop closes the pipe as well: one way for all ends.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context as _, Result};

/// Lines are `SIGNAL TARGET`, the last one counts; `-` stands for nothing. What has not gone after five seconds is killed.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
signal=- target=-
while read -r next_signal next_target; do signal=$next_signal target=$next_target; done
if [ "$target" != - ]; then
    kill -s "$signal" -- $target
    tries=0
    while kill -0 -- $target && [ "$tries" -lt 50 ]; do sleep 0.1; tries=$((tries + 1)); done
    kill -s KILL -- $target
fi
rm -rf -- "$1"
"#;

/// The shell, and the pipe that keeps it waiting.
#[derive(Debug)]
pub(crate) struct Guard {
    shell: Child,
    pipe: Option<ChildStdin>,
}

impl Guard {
    /// Watches over `folder`, and over no process yet.
    pub(crate) fn start(folder: &Path) -> Result<Self> {
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "guard"])
            .arg(folder)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("start the guard's shell")?;
        let pipe = shell.stdin.take();
        Ok(Self { shell, pipe })
    }

    /// From now on `signal` goes to `target`, a process id, or minus a process group's.
    pub(crate) fn watch(&mut self, signal: &str, target: i32) -> Result<()> {
        self.say(&format!("{signal} {target}\n"))
    }

    /// From now on there is no process to end.
    pub(crate) fn rest(&mut self) -> Result<()> {
        self.say("- -\n")
    }

    fn say(&mut self, line: &str) -> Result<()> {
        let pipe = self.pipe.as_mut().expect("the pipe is open until drop");
        pipe.write_all(line.as_bytes()).context("tell the guard what to watch")
    }

    /// Lets the guard act, without waiting until it is through.
    pub(crate) fn release(&mut self) {
        self.pipe = None;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.release();
        // Nobody is left who could be told.
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn when_the_pipe_closes_the_process_ends_and_the_folder_goes() {
        let folder = std::env::temp_dir().join(format!("postrider-guard-{:016x}", crate::seed::random()));
        std::fs::create_dir(&folder).expect("a folder");
        let mut guard = Guard::start(&folder).expect("a guard");
        let mut process = Command::new("sleep").arg("60").process_group(0).spawn().expect("a process");
        guard.watch("KILL", -process.id().cast_signed()).expect("a listening guard");
        std::thread::sleep(Duration::from_millis(50));
        assert!(process.try_wait().expect("a child").is_none(), "while the pipe is open nothing happens");
        guard.release();
        assert!(!process.wait().expect("a child").success());
        drop(guard);
        assert!(!folder.exists());
    }
}
