//! What a [`Library`](super::Library) and its worker process say to each other: messages, each after its length.

use std::io::{self, Read, Write};

use prost::Message;

use crate::onnx::TensorProto;

/// To the worker.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Request {
    #[prost(oneof = "Task", tags = "1, 2, 3, 4")]
    pub(super) task: Option<Task>,
}

/// What the worker is to do.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Task {
    /// The first: opens the runtime and the library. Answered by [`Opened`].
    #[prost(message, tag = "1")]
    Open(Open),
    /// Makes a session of the model, and tells in an [`Ended`] whether there is one.
    #[prost(bytes, tag = "2")]
    Load(Vec<u8>),
    /// Makes calls one after the other on the same state. Answered by an [`Ended`] for each.
    #[prost(message, tag = "3")]
    Run(Calls),
    /// Makes the first call many times, and a copying loop between. Answered by an [`Ended`] for the last, and [`Times`].
    #[prost(message, tag = "4")]
    Time(Time),
}

/// The files to open, and what the sessions are like.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Open {
    #[prost(string, tag = "1")]
    pub(super) runtime: String,
    #[prost(string, tag = "2")]
    pub(super) library: String,
}

/// What the worker has opened.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Opened {
    /// Why it could not be opened.
    #[prost(string, optional, tag = "1")]
    pub(super) error: Option<String>,
    /// The runtime's version.
    #[prost(string, tag = "2")]
    pub(super) version: String,
    /// Its execution providers.
    #[prost(string, repeated, tag = "3")]
    pub(super) providers: Vec<String>,
}

/// Calls on one state.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Calls {
    /// The inputs that the calls change.
    #[prost(message, repeated, tag = "1")]
    pub(super) state: Vec<TensorProto>,
    #[prost(message, repeated, tag = "2")]
    pub(super) calls: Vec<Call>,
}

/// A call.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Call {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) model: Vec<u8>,
    /// The inputs but the state.
    #[prost(message, repeated, tag = "2")]
    pub(super) inputs: Vec<TensorProto>,
}

/// How often to make a call, and what the copying loop moves in between.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Time {
    #[prost(message, optional, tag = "1")]
    pub(super) calls: Option<Calls>,
    #[prost(uint64, tag = "2")]
    pub(super) read_bytes: u64,
    #[prost(uint64, tag = "3")]
    pub(super) written_bytes: u64,
    #[prost(uint64, tag = "4")]
    pub(super) rounds: u64,
}

/// How a call ended.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Ended {
    /// Why it could not be made.
    #[prost(string, optional, tag = "1")]
    pub(super) cannot: Option<String>,
    /// With what message it was refused.
    #[prost(string, optional, tag = "2")]
    pub(super) refused: Option<String>,
    /// Else its outputs, by position.
    #[prost(message, repeated, tag = "3")]
    pub(super) outputs: Vec<TensorProto>,
    /// The state after it.
    #[prost(message, repeated, tag = "4")]
    pub(super) state: Vec<TensorProto>,
}

/// Nanoseconds of each round.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Times {
    #[prost(uint64, repeated, tag = "1")]
    pub(super) calls: Vec<u64>,
    #[prost(uint64, repeated, tag = "2")]
    pub(super) copies: Vec<u64>,
}

/// Writes a message.
pub(super) fn send(to: &mut impl Write, message: &impl Message) -> io::Result<()> {
    let bytes = message.encode_to_vec();
    to.write_all(&u64::try_from(bytes.len()).map_err(io::Error::other)?.to_le_bytes())?;
    to.write_all(&bytes)?;
    to.flush()
}

/// Reads a message.
pub(super) fn receive<M: Message + Default>(from: &mut impl Read) -> io::Result<M> {
    let mut len = [0; 8];
    from.read_exact(&mut len)?;
    let mut bytes = vec![0; usize::try_from(u64::from_le_bytes(len)).map_err(io::Error::other)?];
    from.read_exact(&mut bytes)?;
    M::decode(bytes.as_slice()).map_err(io::Error::other)
}
