//! The golden suite of static batching.

use std::error::Error;

use kvcache_conformance::backends::{read, static_attributes};
use kvcache_conformance::{CallResult, Case, Implementation, Step, Suite, Tensor};
use kvcache_op::StaticKeyValueCache;
use kvcache_op::cuda::{self, DeviceOutputs, StaticDeviceInputs};
use libtest_mimic::Failed;

use crate::device::{Buffer, Gpu, Writable, shift};
use crate::golden::{cases, pass, results};
use crate::graphs::{begin, capturable, end};

/// The operator on the GPU as the conformance suite sees it.
struct OnDevice<'a> {
    gpu: &'a Gpu,
    unaligned: bool,
    /// Whether the calls are captured into graphs, which are launched.
    captured: bool,
}

impl OnDevice<'_> {
    /// A call with tensors of the host, done when this returns; only cache and scale stay on the GPU.
    fn call(
        &self,
        op: &StaticKeyValueCache,
        step: &Step,
        cache: &mut Buffer,
        scale: Option<&mut Buffer>,
    ) -> Result<Vec<Tensor>, Box<dyn Error>> {
        let (gpu, stream) = (self.gpu, &*self.gpu.stream);
        let [current_key, current_value, start_pos] =
            ["current_key", "current_value", "start_pos"].map(|name| &step.inputs[name]);
        let t1 = current_key.element();
        let current = [
            Buffer::of(gpu, current_key, shift(t1, self.unaligned))?,
            Buffer::of(gpu, current_value, shift(current_value.element(), self.unaligned))?,
        ];
        let [current_key, current_value] = current.each_ref().map(Buffer::view);
        let (cache_type, scale_type) = (cache.element(), scale.as_ref().map(|scale| scale.element()));
        let mut cache = Writable::new(cache);
        let mut scale = scale.map(Writable::new);
        let inputs = StaticDeviceInputs {
            current_key: current[0].read(&current_key, stream),
            current_value: current[1].read(&current_value, stream),
            start_pos: read(start_pos),
        };
        let scale = scale.as_mut().map(|scale| scale.tensor(stream));
        let call = op.check_device(inputs, cache.tensor(stream), scale).map_err(cuda::Error::from)?;
        let shape = call.output_shape();
        let output = || Buffer::untouched(gpu, t1, &shape, shift(t1, self.unaligned));
        let [mut key, mut value] = [output()?, output()?];
        {
            let (mut key, mut value) = (Writable::new(&mut key), Writable::new(&mut value));
            let outputs = DeviceOutputs { key: key.tensor(stream), value: value.tensor(stream) };
            if self.captured {
                op.prepare_device(t1, cache_type, scale_type, stream)?;
                begin(gpu)?;
                let launched = call.launch(outputs, &gpu.status, stream);
                let graph = end(gpu);
                launched?;
                graph?.launch()?;
            } else {
                call.launch(outputs, &gpu.status, stream)?;
            }
        }
        stream.synchronize()?;
        Ok(vec![key.download(gpu)?, value.download(gpu)?])
    }
}

impl Implementation for OnDevice<'_> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let results = results(self.gpu, case, self.unaligned, |step, cache, scale| {
            let op = StaticKeyValueCache::new(static_attributes(&case.attributes)).map_err(cuda::Error::from)?;
            self.call(&op, step, cache, scale)
        });
        results.map_err(|error| error.to_string())
    }
}

/// The host refuses everything itself, so every case is run.
pub fn every_case(gpu: &Gpu) -> Result<(), Failed> {
    pass(gpu, &cases(Suite::Static)?, |unaligned| OnDevice { gpu, unaligned, captured: false })
}

/// The index inputs are made in memory of the graph.
pub fn captured(_: &Gpu) -> Result<(), Failed> {
    let gpu = &capturable()?;
    pass(gpu, &cases(Suite::Static)?, |unaligned| OnDevice { gpu, unaligned, captured: true })
}
