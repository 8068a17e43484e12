//! A process of a program under test, with all that it starts itself, and what it writes of a case.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use kvcache_schema::ElementType;
use process_wrap::std::{ChildWrapper, CommandWrap};
use safetensors::SafeTensors;

use crate::read::read_tensor;
use crate::run::Outcome;
use crate::tensor::Tensor;

/// A process, and what it has written to standard error. It ends, with those that it has started, when this goes.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) child: Box<dyn ChildWrapper>,
    /// A file takes what it writes: nobody need read it meanwhile, and processes that it leaves behind hold nothing up.
    log: File,
}

/// Runs a command to its end, which must come within a limit, and with success.
pub(super) fn run_once(words: &[impl AsRef<OsStr>], limit: Duration) -> Result<(), String> {
    let mut process = Process::start(words, false)?;
    match process.wait(limit)? {
        None => Err(process.out_of_time(limit)),
        Some(status) if !status.success() => Err(process.ended_with(status)),
        Some(_) => Ok(()),
    }
}

impl Process {
    /// Starts a command; its standard input and output are pipes, or nothing and the log.
    pub(super) fn start(words: &[impl AsRef<OsStr>], pipes: bool) -> Result<Self, String> {
        let not_started = |error| format!("{} could not be started: {error}", words[0].as_ref().display());
        let log = tempfile::tempfile().map_err(not_started)?;
        let to_log = || log.try_clone().map(Stdio::from).map_err(not_started);
        let (stdin, stdout, stderr) =
            if pipes { (Stdio::piped(), Stdio::piped(), to_log()?) } else { (Stdio::null(), to_log()?, to_log()?) };
        let mut command = CommandWrap::with_new(&words[0], |command| {
            command.args(&words[1..]).stdin(stdin).stdout(stdout).stderr(stderr);
        });
        // With the processes that it starts itself.
        #[cfg(unix)]
        command.wrap(process_wrap::std::ProcessGroup::leader());
        #[cfg(windows)]
        command.wrap(process_wrap::std::JobObject);
        Ok(Self { child: command.spawn().map_err(not_started)?, log })
    }

    /// Waits for its end, but not longer than a limit.
    pub(super) fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>, String> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(500);
        loop {
            let status =
                self.child.try_wait().map_err(|error| format!("the program could not be waited for: {error}"))?;
            if status.is_some() || start.elapsed() >= limit {
                return Ok(status);
            }
            thread::sleep(pause.min(limit.saturating_sub(start.elapsed())));
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Ends it, since its time is over, and says so.
    pub(super) fn out_of_time(&mut self, limit: Duration) -> String {
        self.end();
        format!("the program was ended after {} seconds{}", limit.as_secs_f64(), self.said())
    }

    /// How it ended itself.
    pub(super) fn ended_with(&mut self, status: ExitStatus) -> String {
        format!("the program ended with {status}{}", self.said())
    }

    /// Ends it if it has not ended: where that cannot be done, nobody is left to be told.
    fn end(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.child.kill().unwrap_or_default();
        }
    }

    /// The end of what it has written, which says why it ended.
    fn said(&mut self) -> String {
        let end = last_bytes(&mut self.log, 2000).unwrap_or_default();
        let end = String::from_utf8_lossy(&end).trim().to_owned();
        if end.is_empty() { String::new() } else { format!(": {end}") }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

fn last_bytes(file: &mut File, most: u64) -> io::Result<Vec<u8>> {
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(most)))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// More than any case's results have.
const MOST_BYTES: u64 = 1 << 30;

pub(crate) struct Results {
    metadata: HashMap<String, String>,
    bytes: Vec<u8>,
}

impl Results {
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let file = fs::symlink_metadata(path).map_err(|error| format!("the program wrote no result: {error}"))?;
        // What is read may not end, like a pipe, or fit in no memory.
        if !file.is_file() || file.len() > MOST_BYTES {
            return Err(format!("the program's result is no regular file of at most {MOST_BYTES} bytes"));
        }
        let bytes = fs::read(path).map_err(|error| format!("the program's result cannot be read: {error}"))?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(unreadable)?;
        Ok(Self { metadata: header.metadata().clone().unwrap_or_default(), bytes })
    }

    /// How call `i` ended: with the outputs called so, or with a refusal.
    pub(super) fn outcome(&self, i: usize, outputs: &[&str]) -> Result<Outcome, String> {
        match self.metadata.get(&format!("{i}.error")) {
            Some(message) => Ok(Outcome::refused(message.clone())),
            None => outputs.iter().map(|name| self.tensor(i, name, None)).collect::<Result<_, _>>().map(Outcome::Done),
        }
    }

    /// A tensor after call `i`; if the one that it is like is int4, it is that too.
    fn tensor(&self, i: usize, name: &str, like: Option<&Tensor>) -> Result<Tensor, String> {
        let int4 = like.filter(|like| like.element() == ElementType::Int4);
        let file = SafeTensors::deserialize(&self.bytes).map_err(unreadable)?;
        let view = file.tensor(&format!("{i}.{name}")).map_err(unreadable)?;
        let is = || format!("the program's {i}.{name} is {:?} of shape {:?}", view.dtype(), view.shape());
        if let Some(like) = int4 {
            // As it lies in the case, or with the axes of the cache.
            let (whole, axes) = (vec![like.bytes().len()], packed_shape(like.shape()));
            if view.shape() != whole && Some(view.shape()) != axes.as_deref() {
                let axes = axes.map_or_else(String::new, |axes| format!(" or {axes:?}"));
                return Err(format!("{}, expected {whole:?}{axes}", is()));
            }
        }
        read_tensor(&view, int4.map(|like| like.shape().to_vec()).as_ref()).ok_or_else(is)
    }

    /// The same, if there is one that it should be like.
    pub(super) fn optional(&self, i: usize, name: &str, like: Option<&Tensor>) -> Result<Option<Tensor>, String> {
        like.map(|like| self.tensor(i, name, Some(like))).transpose()
    }
}

/// The shape of the bytes of int4 elements, two in each; none if a byte has elements of two rows.
fn packed_shape(shape: &[usize]) -> Option<Vec<usize>> {
    let (last, axes) = shape.split_last()?;
    (last % 2 == 0).then(|| [axes, &[last / 2]].concat())
}

fn unreadable(error: safetensors::SafeTensorError) -> String {
    format!("the program's result cannot be read: {error}")
}
