//! Calls of one node in sessions of the runtime.

use std::path::PathBuf;
use std::slice;

use kvcache_schema::ElementType;
use ort::logging::LogLevel;
use ort::memory::Allocator;
use ort::session::Session;
use ort::session::builder::SessionBuilder;
use ort::value::{DynTensor, DynTensorValueType, DynValue, TensorElementType};

use super::open::Runtime;
use super::protocol::{Call, Ended};
use crate::onnx::TensorProto;
use crate::tensor::Tensor;

/// Makes sessions of models with a library's operators.
pub(super) struct Sessions {
    runtime: Runtime,
    library: PathBuf,
    /// The last model, and its session.
    last: Option<(Vec<u8>, Session)>,
}

/// The tensors that calls change, by name.
pub(super) type State = Vec<(String, DynTensor)>;

/// Why a call gave nothing.
pub(super) enum Failure {
    /// It could not be made.
    Cannot(String),
    /// It was refused with this message.
    Refused(String),
}

impl Sessions {
    /// Sessions of this runtime, with the library at this path.
    ///
    /// # Errors
    /// If the library cannot be registered.
    pub(super) fn new(runtime: Runtime, library: PathBuf) -> Result<Self, String> {
        let sessions = Self { runtime, library, last: None };
        sessions.builder()?;
        Ok(sessions)
    }

    /// A builder with the library's operators. The sessions work on one thread, and the runtime prints nothing.
    fn builder(&self) -> Result<SessionBuilder, String> {
        let builder = Session::builder(&self.runtime.environment).map_err(|error| error.to_string())?;
        let builder = builder.with_log_level(LogLevel::Fatal).map_err(|error| error.to_string())?;
        let builder = builder.with_intra_threads(1).map_err(|error| error.to_string())?;
        builder.with_operator_library(&self.library).map_err(|error| error.to_string())
    }

    /// The session of a model: the last one, if that was of the same.
    pub(super) fn session(&mut self, model: &[u8]) -> Result<&mut Session, Failure> {
        if self.last.as_ref().is_none_or(|(last, _)| last != model) {
            self.last = None;
            let mut builder = self.builder().map_err(Failure::Cannot)?;
            let session = builder.commit_from_memory(model).map_err(|error| Failure::Refused(error.to_string()))?;
            self.last = Some((model.to_vec(), session));
        }
        match &mut self.last {
            Some((_, session)) => Ok(session),
            None => unreachable!("there is one, since just now if not before"),
        }
    }

    /// Makes a call: how it ended, with the state after it.
    pub(super) fn call(&mut self, call: &Call, state: &mut State) -> Ended {
        let outputs = tensors(&call.inputs).map_err(Failure::Cannot).and_then(|inputs| {
            let outputs = run(self.session(&call.model)?, &inputs, state)?;
            outputs.iter().map(|(name, value)| output(name, value)).collect::<Result<_, _>>().map_err(Failure::Cannot)
        });
        ended(outputs, state)
    }
}

/// How a call ended, with the state after it.
pub(super) fn ended(outputs: Result<Vec<TensorProto>, Failure>, state: &State) -> Ended {
    let after: Result<Vec<_>, _> = state.iter().map(|(name, tensor)| read(name, tensor)).collect();
    let nothing = Ended { cannot: None, refused: None, outputs: Vec::new(), state: Vec::new() };
    match (outputs, after) {
        (_, Err(message)) | (Err(Failure::Cannot(message)), _) => Ended { cannot: Some(message), ..nothing },
        (Err(Failure::Refused(message)), Ok(state)) => Ended { refused: Some(message), state, ..nothing },
        (Ok(outputs), Ok(state)) => Ended { outputs, state, ..nothing },
    }
}

/// Runs a session on these tensors themselves: its outputs, by position.
pub(super) fn run(
    session: &mut Session,
    inputs: &State,
    state: &mut State,
) -> Result<Vec<(String, DynValue)>, Failure> {
    let names: Vec<_> = session.outputs().iter().map(|output| output.name().to_owned()).collect();
    let mut values: Vec<(&str, ort::session::SessionInputValue<'_>)> =
        inputs.iter().map(|(name, tensor)| (name.as_str(), tensor.view().into())).collect();
    values.extend(state.iter_mut().map(|(name, tensor)| (name.as_str(), tensor.view_mut().into())));
    let mut outputs = session.run(values).map_err(|error| Failure::Refused(error.to_string()))?;
    let given = |name: String| match outputs.remove(&name) {
        Some(value) => Ok((name, value)),
        None => Err(Failure::Cannot(format!("the session gives no {name}"))),
    };
    names.into_iter().map(given).collect()
}

/// Tensors in the runtime's own memory, by name.
pub(super) fn tensors(protos: &[TensorProto]) -> Result<State, String> {
    protos.iter().map(|proto| Ok((proto.name.clone(), tensor(proto)?))).collect()
}

/// A tensor in the runtime's own memory.
fn tensor(proto: &TensorProto) -> Result<DynTensor, String> {
    let TensorProto { name, .. } = proto;
    let golden = proto.tensor().ok_or_else(|| format!("{name} is no tensor of the operators"))?;
    let element = match golden.element() {
        ElementType::Float32 => TensorElementType::Float32,
        ElementType::Float16 => TensorElementType::Float16,
        ElementType::Int8 => TensorElementType::Int8,
        ElementType::Int4 => TensorElementType::Int4,
        ElementType::Int64 => TensorElementType::Int64,
    };
    let tensor = DynTensor::new(&Allocator::default(), element, golden.shape());
    let mut tensor = tensor.map_err(|error| format!("{name} could not be made: {error}"))?;
    if !golden.bytes().is_empty() {
        let address = tensor.data_ptr_mut().cast::<u8>();
        // SAFETY: the runtime has just made a tensor of this type and shape in the memory of the CPU; it is not empty,
        // so it has an address and at least as many bytes.
        unsafe { slice::from_raw_parts_mut(address, golden.bytes().len()) }.copy_from_slice(golden.bytes());
    }
    Ok(tensor)
}

/// An output, which may be anything that a session gives.
pub(super) fn output(name: &str, value: &DynValue) -> Result<TensorProto, String> {
    match value.view().downcast::<DynTensorValueType>() {
        Ok(tensor) => read(name, &tensor),
        Err(_) => Err(format!("{name} is no tensor: {}", value.dtype())),
    }
}

/// The present elements of a tensor.
fn read(name: &str, tensor: &DynTensor) -> Result<TensorProto, String> {
    let element = match tensor.data_type() {
        TensorElementType::Float32 => ElementType::Float32,
        TensorElementType::Float16 => ElementType::Float16,
        TensorElementType::Int8 => ElementType::Int8,
        TensorElementType::Int4 => ElementType::Int4,
        TensorElementType::Int64 => ElementType::Int64,
        other => return Err(format!("{name} is {other}, no type of the operators")),
    };
    if !tensor.memory_info().is_cpu_accessible() {
        return Err(format!("{name} is not in the memory of the CPU"));
    }
    let shape: Option<Vec<_>> = tensor.shape().iter().map(|&axis| usize::try_from(axis).ok()).collect();
    let golden = shape.and_then(|shape| Tensor::zeros(element, shape));
    let mut golden = golden.ok_or_else(|| format!("{name} has shape {:?}", &**tensor.shape()))?;
    if !golden.bytes().is_empty() {
        let len = golden.bytes().len();
        // SAFETY: the tensor has this type and shape and is in the memory of the CPU; it is not empty, so it has an
        // address and as many bytes, which nobody writes while it is borrowed.
        let bytes = unsafe { slice::from_raw_parts(tensor.data_ptr().cast::<u8>(), len) };
        golden.bytes_mut().copy_from_slice(bytes);
    }
    Ok(TensorProto::new(name, &golden))
}
