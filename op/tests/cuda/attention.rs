//! The attention operators: golden cases, the status word, and bits that depend on a token's own sequence alone.

use std::collections::BTreeMap;
use std::error::Error;

use kvcache_conformance::backends::{Backends, attention_attributes, read};
use kvcache_conformance::{CallResult, Case, Expected, Implementation, Operator, Outcome, Step, Suite, Tensor};
use kvcache_op::cuda::{
    self, DeviceAttentionCall, DeviceAttentionInputs, DeviceCacheAttentionInputs, DeviceInputs, Finding, OutputRows,
};
use kvcache_op::{
    AttentionAttributes, AttentionBackend, Backend, CacheAttentionAttributes, ElementType, IndexInputs,
    MultiHeadAttention, MultiHeadCacheAttention, Serial,
};
use libtest_mimic::Failed;

use crate::device::{Buffer, Gpu, Writable, outcome, shift};
use crate::golden::{cases, pass};
use crate::oracle::numbers;
use crate::status::of_numbers;

/// Cache and scale of a case, on the GPU.
struct State<'a> {
    gpu: &'a Gpu,
    cache: Option<Buffer>,
    scale: Option<Buffer>,
    unaligned: bool,
}

impl<'a> State<'a> {
    fn new(gpu: &'a Gpu, case: &Case, unaligned: bool) -> Result<Self, Box<dyn Error>> {
        let of = |tensor: &Tensor| Buffer::of(gpu, tensor, shift(tensor.element(), unaligned));
        let (cache, scale) = (case.cache.as_ref().map(of).transpose()?, case.scale.as_ref().map(of).transpose()?);
        Ok(Self { gpu, cache, scale, unaligned })
    }

    /// The host's check of a step, whose tensors are all in the GPU's memory; `then` gets the call. It writes `mass`.
    fn check<T>(
        &mut self,
        case: &Case,
        step: &Step,
        mass: Option<&mut Buffer>,
        then: impl FnOnce(DeviceAttentionCall<'_>) -> Result<T, Box<dyn Error>>,
    ) -> Result<T, Box<dyn Error>> {
        let stream = &*self.gpu.stream;
        let mut buffers = BTreeMap::new();
        for (&name, tensor) in &step.inputs {
            buffers.insert(name, Buffer::of(self.gpu, tensor, shift(tensor.element(), self.unaligned))?);
        }
        let views: BTreeMap<_, _> = buffers.iter().map(|(&name, buffer)| (name, (buffer, buffer.view()))).collect();
        let given = |name: &str| views.get(name).map(|(buffer, view)| buffer.read(view, stream));
        let input = |name: &str| given(name).unwrap_or_else(|| panic!("{} has no {name}", case.name));
        let host = |name: &str| read(&step.inputs[name]);
        let attributes = attention_attributes(&case.attributes);
        let mut mass = mass.map(Writable::new);
        let [mut cache, mut scale] = [&mut self.cache, &mut self.scale].map(|state| state.as_mut().map(Writable::new));
        let call = match case.operator {
            Operator::MultiHeadAttention => {
                let inputs = DeviceAttentionInputs {
                    query: input("query"),
                    key: input("key"),
                    value: input("value"),
                    seqstarts: input("seqstarts"),
                    kvstarts: input("kvstarts"),
                    decoding_batches: host("decoding_batches"),
                    max_seqlen: host("max_seqlen"),
                    max_kvlen: host("max_kvlen"),
                    attn_mask: given("attn_mask"),
                    exact_rows: true,
                };
                MultiHeadAttention::new(attributes.attention).and_then(|op| op.check_device(inputs))
            }
            _ => {
                let inputs = DeviceCacheAttentionInputs {
                    query: input("query"),
                    stored: DeviceInputs {
                        current_key: input("current_key"),
                        current_value: input("current_value"),
                        indices: IndexInputs {
                            seqstarts: input("seqstarts"),
                            cachestarts: input("cachestarts"),
                            start_pos: input("start_pos"),
                            kvstarts: OutputRows::Kvstarts(host("kvstarts")),
                            max_seqlen: host("max_seqlen"),
                            max_kvlen: host("max_kvlen"),
                        },
                    },
                    decoding_batches: host("decoding_batches"),
                    attn_mask: given("attn_mask"),
                };
                let cache = cache.as_mut().map(|cache| cache.tensor(stream)).expect("a case of a cache has one");
                let scale = scale.as_mut().map(|scale| scale.tensor(stream));
                let op = MultiHeadCacheAttention::new(attributes);
                op.and_then(|op| op.check_device(inputs, cache, scale))
            }
        };
        let call = call.and_then(|call| match mass.as_mut() {
            Some(mass) => call.with_mass(mass.tensor(stream)),
            None => Ok(call),
        });
        then(call.map_err(cuda::Error::from)?)
    }

    /// A call, done when this returns; only cache and scale stay on the GPU.
    fn call(&mut self, case: &Case, step: &Step) -> Result<Vec<Tensor>, Box<dyn Error>> {
        let (gpu, unaligned) = (self.gpu, self.unaligned);
        let heads = case.attributes["num_heads"] as usize;
        let keys = numbers(&step.inputs["kvstarts"]).last().map_or(0, |&keys| keys as usize);
        let mass =
            || Buffer::untouched(gpu, ElementType::Float32, &[heads, keys], shift(ElementType::Float32, unaligned));
        let mut mass = case.has_mass().then(mass).transpose()?;
        let output = self.check(case, step, mass.as_mut(), |call| {
            let (shape, scratch_len) = (call.output_shape(), call.scratch_bytes()?);
            let mut output = Buffer::untouched(gpu, case.t1(), &shape, shift(case.t1(), unaligned))?;
            let mut scratch = Buffer::untouched(gpu, ElementType::Int8, &[scratch_len], 0)?;
            {
                let (mut output, mut scratch) = (Writable::new(&mut output), Writable::new(&mut scratch));
                let scratch = scratch.tensor(&gpu.stream);
                call.launch(output.tensor(&gpu.stream), Some(scratch), &gpu.status, &gpu.stream)?;
            }
            gpu.stream.synchronize()?;
            output.download(gpu)
        })?;
        let mass = mass.map(|mass| mass.download(gpu)).transpose()?;
        Ok([Some(output), mass].into_iter().flatten().collect())
    }
}

/// The operators on the GPU as the conformance suite sees them.
struct AttentionOnDevice<'a> {
    gpu: &'a Gpu,
    unaligned: bool,
}

impl AttentionOnDevice<'_> {
    /// The kind of error of a step that must be refused but that the host's check accepts.
    fn left_to_device<'c>(&self, case: &'c Case) -> Option<&'c str> {
        let mut state = State::new(self.gpu, case, self.unaligned).ok()?;
        case.steps.iter().find_map(|step| match &step.expected {
            Expected::Refusal { kind, .. } if state.check(case, step, None, |_| Ok(())).is_ok() => Some(kind.as_str()),
            _ => None,
        })
    }

    fn run(&self, case: &Case) -> Result<Vec<CallResult>, Box<dyn Error>> {
        let mut state = State::new(self.gpu, case, self.unaligned)?;
        let mut results = Vec::new();
        for step in &case.steps {
            let outcome = outcome(state.call(case, step))?;
            self.gpu.nothing_found()?;
            let download =
                |buffer: &Option<Buffer>| buffer.as_ref().map(|buffer| buffer.download(self.gpu)).transpose();
            results.push(CallResult { outcome, cache: download(&state.cache)?, scale: download(&state.scale)? });
        }
        Ok(results)
    }
}

impl Implementation for AttentionOnDevice<'_> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        match self.left_to_device(case) {
            Some(kind) => Ok(vec![CallResult::unsupported(format!("{kind} is found by the device, in another test"))]),
            None => self.run(case).map_err(|error| error.to_string()),
        }
    }
}

pub fn every_case(gpu: &Gpu) -> Result<(), Failed> {
    pass(gpu, &cases(Suite::Attention)?, |unaligned| AttentionOnDevice { gpu, unaligned })
}

type Change = (&'static str, fn(&mut Vec<i64>));

/// A golden case, with an int64 input of its first step changed.
fn changed(name: &str, (input, change): Change) -> Result<Case, Failed> {
    let mut cases = cases(Suite::Attention)?;
    let place = cases.iter().position(|case| case.name == name).ok_or(format!("there is no golden case {name}"))?;
    let mut case = cases.swap_remove(place);
    let tensor = case.steps[0].inputs.get_mut(input).ok_or("there is no such input")?;
    let mut values = numbers(tensor).to_vec();
    change(&mut values);
    *tensor = of_numbers(&values, tensor.shape());
    Ok(case)
}

/// Wrong lengths and slots are found by the device. With a wrong length nothing is written; a key with a wrong slot
/// takes no part.
pub fn what_the_host_cannot_refuse(gpu: &Gpu) -> Result<(), Failed> {
    let checks: [(&str, Change, Finding, bool); 5] = [
        ("packed-causal1-decoding0", ("seqstarts", |starts| starts[0] = 1), Finding::Seqstarts, false),
        ("packed-causal1-decoding0", ("kvstarts", |starts| starts[1] = -1), Finding::Kvstarts, false),
        ("layout0-paged-f32-f32", ("start_pos", |start_pos| start_pos[0] = -1), Finding::StartPos, false),
        ("layout0-paged-f32-f32", ("cachestarts", |starts| starts[0] = 1 << 40), Finding::Slot, true),
        ("layout0-offset-f16-f16", ("cachestarts", |starts| starts[0] = -7), Finding::Slot, true),
    ];
    for (name, change, finding, writes) in checks {
        let case = changed(name, change)?;
        let mut state = State::new(gpu, &case, false)?;
        let output = state.call(&case, &case.steps[0])?.swap_remove(0);
        let status = gpu.status.take().ok_or(format!("{name}: nothing was found"))?;
        assert_eq!(status.finding, finding, "{name}");
        let untouched = output.bytes().iter().all(|&byte| byte == crate::device::UNTOUCHED);
        assert_eq!(untouched, !writes, "{name}");
    }
    Ok(())
}

/// Heads that are too long are refused when the kernels are prepared.
pub fn long_heads_are_refused(gpu: &Gpu) -> Result<(), Failed> {
    let attributes = CacheAttentionAttributes {
        attention: AttentionAttributes { num_heads: 1, head_dim: 264, ..Default::default() },
        ..Default::default()
    };
    let op = MultiHeadCacheAttention::new(attributes)?;
    let error = op.prepare_device(ElementType::Float32, ElementType::Float32, None, &gpu.stream).unwrap_err();
    assert_eq!(error.kind(), "too_large");
    assert_eq!(error.to_string(), "head_dim is 264, expected at most 256 on a CUDA device");
    Ok(())
}

fn number(i: usize) -> f32 {
    ((i * 2_654_435_761) >> 8) as u16 as f32 / 8192.0 - 4.0
}

/// Two sequences of more than a piece of keys, one of them with three queries.
fn long_case(max_seqlen: i64) -> Case {
    let floats = |shape: [usize; 3], seed: usize| {
        let numbers = (0..shape.iter().product()).flat_map(|i| number(i + seed).to_le_bytes());
        Tensor::new(ElementType::Float32, shape.to_vec(), &numbers.collect::<Vec<_>>()).expect("the bytes of its shape")
    };
    let inputs = BTreeMap::from([
        ("query", floats([4, 4, 24], 1)),
        ("key", floats([1800, 2, 24], 1000)),
        ("value", floats([1800, 2, 24], 500_000)),
        ("seqstarts", of_numbers(&[0, 1, 4], &[3])),
        ("kvstarts", of_numbers(&[0, 1100, 1800], &[3])),
        ("decoding_batches", of_numbers(&[1], &[1])),
        ("max_seqlen", of_numbers(&[max_seqlen], &[1])),
        ("max_kvlen", of_numbers(&[1100], &[1])),
    ]);
    let mut attributes = Operator::MultiHeadAttention.attributes();
    attributes.extend([("num_heads", 4), ("num_kv_heads", 2), ("head_dim", 24)]);
    Case {
        name: "long".to_owned(),
        folder: std::path::PathBuf::new(),
        about: "Sequences of several pieces.".to_owned(),
        rules: Vec::new(),
        operator: Operator::MultiHeadAttention,
        attributes,
        outputs: &["attn_output", "attention_mass"],
        any_nan: false,
        cache: None,
        scale: None,
        steps: vec![Step { inputs, expected: Expected::Refusal { kind: String::new(), mentions: Vec::new() } }],
    }
}

/// Whether each piece is a unit of work or a block goes over all of them: the same bits, close to the CPU's.
pub fn long_sequences(gpu: &Gpu) -> Result<(), Failed> {
    let mut outputs = Vec::new();
    // All queries are decoding steps, or those of the first sequence only.
    for max_seqlen in [3, 0] {
        let case = long_case(max_seqlen);
        let mut state = State::new(gpu, &case, false)?;
        outputs.push(state.call(&case, &case.steps[0])?);
        assert_eq!(gpu.status.take(), None);
    }
    assert!(outputs[0] == outputs[1], "the bits depend on how the work is cut");
    let attention = AttentionBackend::Reference;
    let host = Backends { backend: Backend::Reference, attention, workers: Serial };
    let Outcome::Done(expected) = host.run(&long_case(3))?.swap_remove(0).outcome else {
        return Err("the host refuses the call".into());
    };
    let floats = |tensor: &Tensor| -> Vec<f32> {
        tensor.bytes().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
    };
    for (output, expected) in outputs[0].iter().zip(&expected) {
        let difference = floats(output).into_iter().zip(floats(expected)).map(|(a, b)| (a - b).abs());
        let difference = difference.fold(0.0, f32::max);
        if difference >= 2e-5 {
            return Err(format!("{difference} from the reference").into());
        }
    }
    Ok(())
}

/// Scratch memory that is missing, or too small, is refused before anything is launched.
pub fn scratch_is_checked(gpu: &Gpu) -> Result<(), Failed> {
    for given in [None, Some(100)] {
        let case = long_case(3);
        State::new(gpu, &case, false)?.check(&case, &case.steps[0], None, |call| {
            let expected = call.scratch_bytes()?;
            let mut output = Buffer::untouched(gpu, case.t1(), &call.output_shape(), 0)?;
            let mut scratch = Buffer::untouched(gpu, ElementType::Int8, &[100], 0)?;
            let (mut output, mut scratch) = (Writable::new(&mut output), Writable::new(&mut scratch));
            let scratch = given.map(|_| scratch.tensor(&gpu.stream));
            let error = call.launch(output.tensor(&gpu.stream), scratch, &gpu.status, &gpu.stream).unwrap_err();
            assert_eq!(error, cuda::Error::Scratch { got: given.unwrap_or(0), expected });
            Ok(())
        })?;
    }
    Ok(())
}
