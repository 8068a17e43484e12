//! The worker process as the library sees it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use prost::Message;
use thiserror::Error;

use super::protocol::{Request, Task, receive, send};
use super::worker::ARGUMENT;

/// A worker process.
pub(super) struct Client {
    child: Child,
    socket: UnixStream,
    /// What the process prints, on either stream.
    printed: File,
    time_limit: Duration,
}

/// Why there is no answer. The process is then no more.
#[derive(Debug, Error)]
pub(super) enum Lost {
    #[error("the worker process could not be started: {0}")]
    NotStarted(io::Error),
    #[error("the process of the library ended with {status}{printed}")]
    Ended { status: Status, printed: String },
    #[error("no answer within {} s{printed}", time_limit.as_secs_f64())]
    TooLate { time_limit: Duration, printed: String },
    #[error("the worker process cannot be understood: {0}")]
    Unreadable(io::Error),
}

impl Client {
    /// Starts `program` as a worker.
    pub(super) fn start(program: &Path, time_limit: Duration) -> Result<Self, Lost> {
        let start = || {
            let (socket, other) = UnixStream::pair()?;
            socket.set_read_timeout(Some(time_limit))?;
            socket.set_write_timeout(Some(time_limit))?;
            let printed = tempfile::tempfile()?;
            let child = Command::new(program)
                .arg(ARGUMENT)
                .stdin(Stdio::from(OwnedFd::from(other)))
                .stdout(Stdio::from(printed.try_clone()?))
                .stderr(Stdio::from(printed.try_clone()?))
                .spawn()?;
            Ok(Self { child, socket, printed, time_limit })
        };
        start().map_err(Lost::NotStarted)
    }

    /// Sends a task.
    pub(super) fn send(&mut self, task: Task) -> Result<(), Lost> {
        send(&mut self.socket, &Request { task: Some(task) }).map_err(|error| self.lost(error))
    }

    /// Waits for an answer.
    pub(super) fn receive<M: Message + Default>(&mut self) -> Result<M, Lost> {
        receive(&mut self.socket).map_err(|error| self.lost(error))
    }

    /// What has become of a process with which nobody can talk any longer.
    fn lost(&mut self, error: io::Error) -> Lost {
        let ended = match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                self.end();
                return Lost::TooLate { time_limit: self.time_limit, printed: self.printed() };
            }
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                self.child.wait()
            }
            _ => Err(error),
        };
        match ended {
            Ok(status) => Lost::Ended { status: Status(status), printed: self.printed() },
            Err(error) => Lost::Unreadable(error),
        }
    }

    /// The last lines of what the process has printed.
    fn printed(&mut self) -> String {
        let mut text = Vec::new();
        let read = self.printed.rewind().and_then(|()| self.printed.read_to_end(&mut text));
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        match lines[lines.len().saturating_sub(3)..].join(" / ") {
            last if read.is_err() || last.is_empty() => String::new(),
            last => format!(", after it printed: {last}"),
        }
    }

    /// Ends the process, if it has not ended.
    fn end(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.end();
    }
}

/// How a process ended; signals have names.
#[derive(Debug)]
pub(super) struct Status(ExitStatus);

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0.signal() {
            Some(4) => "SIGILL",
            Some(6) => "SIGABRT",
            Some(7) => "SIGBUS",
            Some(8) => "SIGFPE",
            Some(9) => "SIGKILL",
            Some(11) => "SIGSEGV",
            _ => return self.0.fmt(f),
        };
        write!(f, "{name} ({})", self.0)
    }
}
