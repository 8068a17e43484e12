//! The operators linked into a Rust program, which registers them in a session of the `ort` crate. Golden cases run in
//! sessions of the models that `models.py` makes of them. (Tests in Python register the library by its path.)

mod runtime;

use std::path::Path;

use kvcache_conformance::{Case, Expected, NamedInputs, Step, Tensor, cases};
use ort::memory::Allocator;
use ort::session::{Session, SessionInputValue, SessionOutputs};
use ort::value::{DynTensor, DynTensorRef};

/// A golden case, and a session of its node.
fn load(name: &str) -> (Case, ort::Result<Session>) {
    let case = cases().expect("the golden cases can be read").into_iter().find(|case| case.name == name);
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/session/models");
    (case.expect("a golden case"), runtime::session(&models.join(name).with_extension("onnx")))
}

/// The tensor in memory of its own, which a session may write.
fn value(tensor: &Tensor) -> ort::Result<DynTensor> {
    let shape: Vec<i64> = tensor.shape().iter().map(|&dim| dim as i64).collect();
    let mut value = DynTensor::new(&Allocator::default(), kvcache_ort::runtime_type(tensor.element()), shape)?;
    // SAFETY: the value has just been made of the tensor's type and shape, and so has as many bytes.
    unsafe {
        value.data_ptr_mut().cast::<u8>().copy_from_nonoverlapping(tensor.bytes().as_ptr(), tensor.bytes().len())
    };
    Ok(value)
}

fn same(got: &DynTensor, expected: &Tensor) -> bool {
    // SAFETY: the value is of the tensor's type and as large, and its bytes are initialized: by `value`.
    unsafe { std::slice::from_raw_parts(got.data_ptr().cast::<u8>(), expected.bytes().len()) == expected.bytes() }
}

/// The state of a case, in the caller's memory.
struct State {
    cache: DynTensor,
    scale: Option<DynTensor>,
}

impl State {
    fn new(case: &Case) -> ort::Result<Self> {
        Ok(Self { cache: value(&case.cache)?, scale: case.scale.as_ref().map(value).transpose()? })
    }

    fn run<'s>(&mut self, session: &'s mut Session, step: &Step) -> ort::Result<SessionOutputs<'s>> {
        let mut inputs: Vec<(&str, SessionInputValue<'_>)> = Vec::new();
        for (name, tensor) in step.inputs.named() {
            inputs.push((name, value(tensor)?.into()));
        }
        inputs.push(("cache", self.cache.view_mut().into()));
        inputs.extend(self.scale.as_mut().map(|scale| ("scale", scale.view_mut().into())));
        session.run(inputs)
    }

    fn is(&self, cache: &Tensor, scale: Option<&Tensor>) -> bool {
        same(&self.cache, cache) && self.scale.iter().zip(scale).all(|(got, expected)| same(got, expected))
    }
}

#[test]
fn golden_decoding_writes_the_callers_cache() -> ort::Result<()> {
    for name in ["decode-mode0-f32-f32", "decode-mode1-f16-int4-f16"] {
        let (case, session) = load(name);
        let (mut session, mut state) = (session?, State::new(&case)?);
        for step in &case.steps {
            let Expected::Success(after) = &step.expected else { panic!("{name} has legal calls alone") };
            let outputs = state.run(&mut session, step)?;
            for (name, expected) in ["key", "value"].into_iter().zip(&after.outputs) {
                let got: DynTensorRef<'_> = outputs[name].view().downcast()?;
                assert!(same(&got, expected), "{name} of {}", case.name);
            }
            drop(outputs);
            assert!(state.is(after.cache.as_ref().unwrap(), after.scale.as_ref()), "{name}");
        }
    }
    Ok(())
}

#[test]
fn a_node_that_cannot_work_is_refused_at_load() {
    let message = load("refuse-page-size-0").1.map(drop).unwrap_err().to_string();
    assert!(message.contains("node 'cached'") && message.contains("page_size is 0"), "{message}");
}
