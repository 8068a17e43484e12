//! Processes that serve many cases each.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::ChildStdin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::process::Process;

/// What a program answers when it has written a case's result.
const DONE: &str = "done";

/// How long a program may take to end when there are no more cases.
const END: Duration = Duration::from_secs(1);

/// The processes of a program that have nothing to do. A thread that runs a case takes one, or starts one.
#[derive(Debug, Default)]
pub(super) struct Servers(Mutex<Vec<Server>>);

/// A process that has been started for many cases.
#[derive(Debug)]
struct Server {
    /// Goes first, so that the process ends by itself.
    stdin: Option<ChildStdin>,
    answers: Receiver<String>,
    process: Process,
}

impl Servers {
    /// Lets a process run a case. One that has crashed or takes too long is not used again.
    pub(super) fn run(&self, words: &[String], case: &Path, result: &Path, limit: Duration) -> Result<(), String> {
        let (Some(case), Some(result)) = (in_a_line(case), in_a_line(result)) else {
            return Err(format!("{} has a tab or a line break: no line can hold it", case.display()));
        };
        let idle = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // One that has ended since its last case ended between cases, which is the fault of none.
        let living = || loop {
            let mut server = idle().pop()?;
            if let Ok(None) = server.process.child.try_wait() {
                return Some(server);
            }
        };
        let mut server = living().map_or_else(|| Server::start(words), Ok)?;
        let answer = server.ask(&format!("{case}\t{result}\n"), limit)?;
        idle().push(server);
        if answer == DONE { Ok(()) } else { Err(format!("the program answered {answer:?}, expected {DONE:?}")) }
    }
}

impl Server {
    fn start(words: &[String]) -> Result<Self, String> {
        let mut process = Process::start(words, true)?;
        let (stdin, stdout) = (process.child.stdin().take(), process.child.stdout().take());
        // A program that answers more than it is asked waits.
        let (sender, answers) = sync_channel(1);
        thread::spawn(move || {
            let lines = BufReader::new(stdout?).split(b'\n').map_while(Result::ok);
            for line in lines {
                sender.send(String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned()).ok()?;
            }
            Some(())
        });
        Ok(Self { stdin, answers, process })
    }

    fn ask(&mut self, line: &str, limit: Duration) -> Result<String, String> {
        // Where nothing can be written, nothing is answered, which is told below.
        if let Some(stdin) = &mut self.stdin {
            stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).unwrap_or_default();
        }
        match self.answers.recv_timeout(limit) {
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Timeout) => Err(self.process.out_of_time(limit)),
            Err(RecvTimeoutError::Disconnected) => Err(match self.process.wait(END)? {
                Some(status) => self.process.ended_with(status),
                None => "the program closed its standard output".to_owned(),
            }),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stdin.take());
        // Where it does not end by itself, it is ended.
        self.process.wait(END).map(drop).unwrap_or_default();
    }
}

/// A path as a part of a line, if it can be one.
fn in_a_line(path: &Path) -> Option<&str> {
    path.to_str().filter(|path| !path.contains(['\t', '\n', '\r']))
}
