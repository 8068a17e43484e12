//! A library of custom operators as the suites see it.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{env, io};

use kvcache_schema::{DOMAINS, ElementType, multi_head_attention, multi_head_cache_attention, static_key_value_cache};
use thiserror::Error;

use super::client::{Client, Lost};
use super::open::{RuntimeError, runtime_path};
use super::protocol::{Call, Calls, Ended, Open, Opened, Task, Time, Times};
use crate::attention;
use crate::case::{Case, Outputs};
use crate::implementation::{CallResult, Implementation, Outcome};
use crate::onnx::{LeftOut, Node, NodeCase, TensorProto};
use crate::oracle::KINDS;
use crate::performance::{Plan, Rounds, Timed};
use crate::tensor::Tensor;

/// What ONNX Runtime says of a node whose operator nobody has registered.
const NOT_REGISTERED: &str = "is not a registered function/op";

/// Where to run the cases, and with what.
#[derive(Debug, Clone)]
pub struct Options {
    /// The library of custom operators.
    pub library: PathBuf,
    /// The library of ONNX Runtime; otherwise it is looked for as [`runtime_path`] says.
    pub runtime: Option<PathBuf>,
    /// The domain of the operators of dynamic batching.
    pub domain: String,
    /// The domain of `KeyValueCache` of static batching.
    pub static_domain: String,
    /// Who runs the nodes.
    pub provider: Provider,
    /// How long a call, or the making of a session, may take.
    pub time_limit: Duration,
    /// The program that is started as worker: it calls [`worker`](super::worker) first. Otherwise it is this one.
    pub worker: Option<PathBuf>,
}

impl Options {
    /// A library on the CPU, in the domains of current exports.
    pub fn new(library: impl Into<PathBuf>) -> Self {
        Self {
            library: library.into(),
            runtime: None,
            domain: DOMAINS[0].to_owned(),
            static_domain: static_key_value_cache::DOMAINS[0].to_owned(),
            provider: Provider::Cpu,
            time_limit: Duration::from_secs(60),
            worker: None,
        }
    }
}

/// Who runs the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provider {
    /// ONNX Runtime's provider for the CPU.
    Cpu,
    /// That for CUDA, which the suite cannot use yet: [`OpenError::OnDevice`].
    Cuda,
}

impl Provider {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Cpu, Self::Cuda];

    /// The provider's short name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }

    /// Its name in ONNX Runtime.
    const fn in_runtime(self) -> &'static str {
        match self {
            Self::Cpu => "CPUExecutionProvider",
            Self::Cuda => "CUDAExecutionProvider",
        }
    }
}

/// Why the cases cannot be run.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is no runtime.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// This program's own file is not known.
    #[error("no worker process can be started, for this program does not know its own file: {0}")]
    Worker(io::Error),
    /// The worker process ended, or did not answer.
    #[error("{} with ONNX Runtime at {}: {reason}", library.display(), runtime.display())]
    Lost {
        /// The library of operators.
        library: PathBuf,
        /// That of the runtime.
        runtime: PathBuf,
        /// What became of the process.
        reason: String,
    },
    /// The runtime cannot be opened, or does not take the library.
    #[error("{} with ONNX Runtime at {}: {message}", library.display(), runtime.display())]
    Refused {
        /// The library of operators.
        library: PathBuf,
        /// That of the runtime.
        runtime: PathBuf,
        /// What it says.
        message: String,
    },
    /// The runtime has no such provider.
    #[error("ONNX Runtime {version} at {} has no {provider}, only {}", runtime.display(), providers.join(" and "))]
    NoProvider {
        /// The runtime.
        runtime: PathBuf,
        /// Its version.
        version: String,
        /// What it is asked for.
        provider: &'static str,
        /// What it has.
        providers: Vec<String>,
    },
    /// The runtime has the provider, but the suite cannot use it.
    #[error("the suite cannot run cases on {provider} yet: their caches would have to lie in its memory")]
    OnDevice {
        /// The provider.
        provider: &'static str,
    },
    /// The library has none of the operators.
    #[error("{} registers none of the operators in {domain} (static batching: {static_domain}): {message}", library.display())]
    NoOperator {
        /// The library.
        library: PathBuf,
        /// The domain of dynamic batching.
        domain: String,
        /// That of static batching.
        static_domain: String,
        /// What ONNX Runtime says.
        message: String,
    },
}

/// A library of custom operators in ONNX Runtime, as an implementation of all suites.
///
/// Each case becomes a model of one node, whose inputs and outputs are the model's and have any rank, so that each call
/// reaches the operator. `cache` and `scale` are the same tensors in all calls of a case. What ONNX Runtime or the
/// library says when a session is made or a call fails is a refusal. That the library has no such operator is none: then
/// it cannot run the case. Threads that run cases at once have a worker process each.
pub struct Library {
    options: Options,
    runtime: PathBuf,
    program: PathBuf,
    version: String,
    left_out: LeftOut,
    /// The operators that the library has not, with their domains.
    missing: Vec<(&'static str, String)>,
    /// The worker processes that have nothing to do.
    idle: Mutex<Vec<Client>>,
}

impl Library {
    /// Opens the runtime and the library in a worker process, and looks which of the operators are there.
    ///
    /// # Errors
    /// If either cannot be opened, or none of the operators is there.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        let runtime = runtime_path(options.runtime.as_deref())?;
        let program = match &options.worker {
            Some(program) => program.clone(),
            None => env::current_exe().map_err(OpenError::Worker)?,
        };
        let mut library = Self {
            options,
            runtime,
            program,
            version: String::new(),
            left_out: LeftOut::Unnamed,
            missing: Vec::new(),
            idle: Mutex::default(),
        };
        let (client, Opened { version, providers, .. }) = library.start()?;
        library.idle = Mutex::new(vec![client]);
        let provider = library.options.provider.in_runtime();
        if !providers.iter().any(|available| available == provider) {
            return Err(OpenError::NoProvider { runtime: library.runtime, version, provider, providers });
        }
        if library.options.provider != Provider::Cpu {
            return Err(OpenError::OnDevice { provider });
        }
        if minor(&version).is_some_and(|minor| minor < 24) {
            // These crash on an input of the empty name.
            library.left_out = LeftOut::Empty;
        }
        library.version = version;
        library.find_operators()?;
        Ok(library)
    }

    /// The version of ONNX Runtime.
    pub fn runtime_version(&self) -> &str {
        &self.version
    }

    /// A new worker process that has opened everything.
    fn start(&self) -> Result<(Client, Opened), OpenError> {
        let Self { options, runtime, program, .. } = self;
        let lost = |lost: Lost| OpenError::Lost {
            library: options.library.clone(),
            runtime: runtime.clone(),
            reason: lost.to_string(),
        };
        let mut client = Client::start(program, options.time_limit).map_err(lost)?;
        client
            .send(Task::Open(Open {
                runtime: runtime.to_string_lossy().into_owned(),
                library: options.library.to_string_lossy().into_owned(),
            }))
            .map_err(lost)?;
        let mut opened: Opened = client.receive().map_err(lost)?;
        match opened.error.take() {
            None => Ok((client, opened)),
            Some(message) => {
                Err(OpenError::Refused { library: options.library.clone(), runtime: runtime.clone(), message })
            }
        }
    }

    /// Does something with a worker process: one that has nothing to do, or a new one.
    fn with_client<T>(&self, action: impl FnOnce(&mut Client) -> Result<T, Lost>) -> Result<T, String> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let client = idle().pop();
        let mut client = match client {
            Some(client) => client,
            None => self.start().map_err(|error| error.to_string())?.0,
        };
        let answer = action(&mut client).map_err(|lost| lost.to_string())?;
        idle().push(client);
        Ok(answer)
    }

    /// Tries which operators are not there.
    fn find_operators(&mut self) -> Result<(), OpenError> {
        let Options { domain, static_domain, .. } = &self.options;
        let operators = [
            (kvcache_schema::NAME, domain, &kvcache_schema::INPUTS[..9], 2),
            (static_key_value_cache::NAME, static_domain, &static_key_value_cache::INPUTS[..4], 2),
            (multi_head_attention::NAME, domain, &multi_head_attention::INPUTS[..8], 1),
            (multi_head_cache_attention::NAME, domain, &multi_head_cache_attention::INPUTS[..11], 1),
        ];
        let count = operators.len();
        let (mut missing, mut last) = (Vec::new(), String::new());
        for (operator, domain, inputs, outputs) in operators {
            let float = ["query", "key", "value", "current_key", "current_value", "cache"];
            let node = inputs.iter().fold(Node::new(operator, domain), |node, name| {
                let element = if float.contains(name) { ElementType::Float32 } else { ElementType::Int64 };
                node.input(name, element, None)
            });
            let names = if outputs == 1 { &multi_head_attention::OUTPUTS[..] } else { &kvcache_schema::OUTPUTS };
            let node = names.iter().fold(node, |node, name| node.output(name, ElementType::Float32, None));
            let tried = self.with_client(|client| {
                client.send(Task::Load(node.model()))?;
                client.receive::<Ended>()
            });
            // Whatever else is said of it, or even a crash, comes from an operator that is there.
            if let Ok(Ended { refused: Some(message), .. }) = tried
                && message.contains(NOT_REGISTERED)
            {
                missing.push((operator, domain.clone()));
                last = message;
            }
        }
        if missing.len() == count {
            let Options { library, domain, static_domain, .. } = self.options.clone();
            return Err(OpenError::NoOperator { library, domain, static_domain, message: last });
        }
        self.missing = missing;
        Ok(())
    }

    /// The domain in which the library has an operator that current exports have in `domain`.
    fn domain(&self, domain: &str) -> &str {
        if domain == DOMAINS[0] { &self.options.domain } else { &self.options.static_domain }
    }

    fn lacks(&self, case: &NodeCase<'_>) -> Option<String> {
        let domain = self.domain(case.domain);
        let is_missing = self.missing.iter().any(|(name, of)| (*name, of.as_str()) == (case.operator, domain));
        is_missing.then(|| format!("the library registers no {} in {domain}", case.operator))
    }

    /// The calls of a case.
    fn calls(&self, case: &NodeCase<'_>) -> Calls {
        let call = |i: usize| Call {
            model: case.node(i, self.domain(case.domain), self.left_out, |_| None).model(),
            inputs: case.calls[i].iter().map(|(name, tensor)| TensorProto::new(name, tensor)).collect(),
        };
        Calls {
            state: case.state.iter().map(|(name, tensor)| TensorProto::new(name, tensor)).collect(),
            calls: (0..case.calls.len()).map(call).collect(),
        }
    }

    /// How each call of a case ended.
    fn run_calls(&self, case: &NodeCase<'_>) -> Result<Vec<Results>, String> {
        let calls = self.calls(case);
        let mut done = 0;
        let ended = self.with_client(|client| {
            client.send(Task::Run(calls))?;
            let mut ended = Vec::new();
            for i in 0..case.calls.len() {
                done = i;
                ended.push(client.receive()?);
            }
            Ok(ended)
        });
        let ended = ended.map_err(|lost| format!("call {done}: {lost}"))?;
        ended.into_iter().enumerate().map(|(i, ended)| Results::new(i, case, ended)).collect()
    }
}

/// The number after the first dot of a version.
fn minor(version: &str) -> Option<u32> {
    version.split('.').nth(1)?.parse().ok()
}

/// The kind of error that a message names, as in `kvlen_mismatch: kvstarts gives ...`. ONNX Runtime puts words of its own
/// before the library's.
fn named_kind(message: &str) -> Option<String> {
    let names = |kind: &&&str| {
        message.match_indices(&format!("{kind}: ")).any(|(start, _)| message[..start].ends_with(' ') || start == 0)
    };
    KINDS.iter().find(names).map(|&kind| kind.to_owned())
}

/// What a call gave.
struct Results {
    outcome: Outcome<Vec<Tensor>>,
    cache: Option<Tensor>,
    scale: Option<Tensor>,
}

impl Results {
    fn new(i: usize, case: &NodeCase<'_>, ended: Ended) -> Result<Self, String> {
        if let Some(reason) = ended.cannot {
            return Err(format!("call {i}: {reason}"));
        }
        let read = |proto: &TensorProto| {
            proto.tensor().ok_or_else(|| format!("call {i}: {} came back as no tensor", proto.name))
        };
        let state = |name: &str| ended.state.iter().find(|proto| proto.name == name).map(read).transpose();
        let outcome = match ended.refused {
            Some(message) if message.contains(NOT_REGISTERED) => return Err(format!("call {i}: {message}")),
            Some(message) => Outcome::Refused { kind: named_kind(&message), message },
            None => {
                let outputs: Vec<_> = ended.outputs.iter().map(read).collect::<Result<_, _>>()?;
                if outputs.len() != case.outputs.len() {
                    return Err(format!("call {i}: {} outputs, expected {}", outputs.len(), case.outputs.len()));
                }
                Outcome::Done(outputs)
            }
        };
        Ok(Self { outcome, cache: state("cache")?, scale: state("scale")? })
    }

    /// The result of a call of `KeyValueCache`.
    fn of_cache(self) -> Result<CallResult, String> {
        let Self { outcome, cache, scale } = self;
        let outcome = match outcome {
            Outcome::Done(outputs) => match <[Tensor; 2]>::try_from(outputs) {
                Ok([key, value]) => Outcome::Done(Outputs { key, value }),
                Err(outputs) => return Err(format!("{} outputs, expected key and value", outputs.len())),
            },
            Outcome::Refused { kind, message } => Outcome::Refused { kind, message },
        };
        Ok(CallResult { outcome, cache: cache.ok_or("the worker gives no cache")?, scale })
    }

    /// The result of a call of an attention operator.
    fn of_attention(self) -> Result<attention::CallResult, String> {
        let Self { outcome, cache, scale } = self;
        let outcome = match outcome {
            Outcome::Done(mut outputs) => Outcome::Done(outputs.pop().ok_or("no output, expected attn_output")?),
            Outcome::Refused { kind, message } => Outcome::Refused { kind, message },
        };
        Ok(attention::CallResult { outcome, cache, scale })
    }
}

impl<A, I> Implementation<A, I> for Library
where
    for<'a> NodeCase<'a>: From<&'a Case<A, I>>,
{
    fn run(&self, case: &Case<A, I>) -> Result<Vec<CallResult>, String> {
        self.run_calls(&case.into())?.into_iter().map(Results::of_cache).collect()
    }

    fn cannot_run(&self, case: &Case<A, I>) -> Option<String> {
        self.lacks(&case.into())
    }
}

impl attention::Implementation for Library {
    fn run(&self, case: &attention::Case) -> Result<Vec<attention::CallResult>, String> {
        self.run_calls(&case.into())?.into_iter().map(Results::of_attention).collect()
    }

    fn cannot_run(&self, case: &attention::Case) -> Option<String> {
        self.lacks(&case.into())
    }
}

impl Timed for Library {
    fn time(&self, case: &Case, plan: Plan) -> Result<(Rounds, CallResult), String> {
        let node_case = case.into();
        let time = Time {
            calls: Some(self.calls(&node_case)),
            read_bytes: plan.traffic.read,
            written_bytes: plan.traffic.written,
            rounds: plan.rounds,
        };
        let (ended, times) = self.with_client(|client| {
            client.send(Task::Time(time))?;
            Ok((client.receive()?, client.receive::<Times>()?))
        })?;
        let result = Results::new(0, &node_case, ended)?.of_cache()?;
        Ok((Rounds { calls: times.calls, copies: times.copies }, result))
    }
}
