//! The process that has the sessions.

use std::env;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use super::open::Runtime;
use super::protocol::{Calls, Ended, Open, Opened, Request, Task, Time, Times, receive, send};
use super::session::{Failure, Sessions, ended, output, run, tensors};
use crate::performance::{Plan, Traffic, interleaved};

/// The only argument of a worker.
pub(super) const ARGUMENT: &str = "--onnxruntime-worker";

/// If this process was started by a [`Library`](super::Library) as its worker, does a worker's work and gives the
/// exit code.
///
/// It must be called first in `main`, before the arguments are read and anything is printed.
pub fn worker() -> Option<ExitCode> {
    let mut arguments = env::args_os().skip(1);
    if arguments.next().is_none_or(|argument| argument != ARGUMENT) {
        return None;
    }
    Some(match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the worker process ends: {error}");
            ExitCode::FAILURE
        }
    })
}

/// Answers requests until there are no more. They come over a socket, which is the standard input.
fn serve() -> io::Result<()> {
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let Request { task: Some(Task::Open(open)) } = receive(&mut socket)? else {
        return Err(io::Error::other("the first request opens nothing"));
    };
    let mut sessions = match opened(&open) {
        Ok((sessions, opened)) => {
            send(&mut socket, &opened)?;
            sessions
        }
        Err(error) => {
            return send(&mut socket, &Opened { error: Some(error), version: String::new(), providers: Vec::new() });
        }
    };
    loop {
        let request: Request = match receive(&mut socket) {
            Ok(request) => request,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        match request.task {
            Some(Task::Load(model)) => {
                let loaded = sessions.session(&model).map(|_| Vec::new());
                send(&mut socket, &ended(loaded, &Vec::new()))?;
            }
            Some(Task::Run(calls)) => run_calls(&mut sessions, &calls, |ended| send(&mut socket, ended))?,
            Some(Task::Time(time)) => {
                let (ended, timed) = time_call(&mut sessions, &time);
                send(&mut socket, &ended)?;
                send(&mut socket, &timed)?;
            }
            Some(Task::Open(_)) | None => return Err(io::Error::other("a request that is none")),
        }
    }
}

fn opened(open: &Open) -> Result<(Sessions, Opened), String> {
    let runtime = Runtime::open(Path::new(&open.runtime)).map_err(|error| error.to_string())?;
    let version = runtime.version.clone();
    let providers = runtime.providers().map_err(|error| error.to_string())?;
    let sessions = Sessions::new(runtime, Path::new(&open.library).to_owned())?;
    Ok((sessions, Opened { error: None, version, providers }))
}

fn run_calls(
    sessions: &mut Sessions,
    Calls { state, calls }: &Calls,
    mut answer: impl FnMut(&Ended) -> io::Result<()>,
) -> io::Result<()> {
    let mut state = match tensors(state) {
        Ok(state) => state,
        Err(message) => {
            let ended = ended(Err(Failure::Cannot(message)), &Vec::new());
            return calls.iter().try_for_each(|_| answer(&ended));
        }
    };
    calls.iter().try_for_each(|call| answer(&sessions.call(call, &mut state)))
}

/// Times the first call, which may be made again and again: it stores the same values each time.
fn time_call(sessions: &mut Sessions, time: &Time) -> (Ended, Times) {
    let traffic = Traffic { read: time.read_bytes, written: time.written_bytes };
    let mut timed = Times { calls: Vec::new(), copies: Vec::new() };
    let mut state = Vec::new();
    let outputs = time.calls.as_ref().ok_or_else(|| Failure::Cannot("no calls".to_owned())).and_then(|calls| {
        let [call] = calls.calls.as_slice() else {
            return Err(Failure::Cannot("one call is timed".to_owned()));
        };
        state = tensors(&calls.state).map_err(Failure::Cannot)?;
        let inputs = tensors(&call.inputs).map_err(Failure::Cannot)?;
        let session = sessions.session(&call.model)?;
        let mut last = Vec::new();
        let rounds = interleaved(Plan { traffic, rounds: time.rounds }, || {
            last = run(session, &inputs, &mut state)?;
            Ok(())
        })?;
        timed = Times { calls: rounds.calls, copies: rounds.copies };
        last.iter().map(|(name, value)| output(name, value)).collect::<Result<_, _>>().map_err(Failure::Cannot)
    });
    (ended(outputs, &state), timed)
}
