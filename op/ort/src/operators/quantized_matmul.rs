//! `QuantizedMatMul` and `QuantizedGather`.

use kvcache_op::{
    Dim, ElementType, GatherInputs, MatMulInputs, MatrixInputs, QuantizedGather, QuantizedMatMul, TensorRef, Workers,
};
use kvcache_schema::{quantized_gather, quantized_matmul};

use crate::compute::{Compute, at};
use crate::error::Error;
use crate::node::Node;
use crate::shape_inference::Inference;
use crate::signature::Signature;
use crate::tensors::HostTensors;

pub(crate) struct QuantizedMatMulNode {
    operator: QuantizedMatMul,
    has_minima: bool,
    has_bias: bool,
}

impl Compute for QuantizedMatMulNode {
    const SIGNATURE: Signature = Signature {
        name: quantized_matmul::NAME,
        domains: &quantized_matmul::DOMAINS,
        inputs: &quantized_matmul::INPUTS,
        outputs: &quantized_matmul::OUTPUTS,
        optional_output: None,
        output_type: None,
        on_cuda: false,
    };

    fn new(node: &Node<'_>) -> Result<Self, Error> {
        let [has_minima, has_bias] = [node.has_input(at!(Self, "minima"))?, node.has_input(at!(Self, "bias"))?];
        Ok(Self { operator: QuantizedMatMul::new(node.attributes()?)?, has_minima, has_bias })
    }

    fn infer_shape(node: &Inference<'_>) -> Result<Vec<Dim>, Error> {
        let operator = QuantizedMatMul::new(node.attributes())?;
        operator.infer_shape(node.shape(at!(Self, "x"))).ok_or(Error::Missing { name: "x" })
    }

    fn run(&self, tensors: &HostTensors<'_>, workers: &dyn Workers) -> Result<(), Error> {
        let inputs = MatMulInputs {
            x: tensors.read(at!(Self, "x"))?,
            matrix: MatrixInputs {
                panels: tensors.read(at!(Self, "panels"))?,
                scales: tensors.read(at!(Self, "scales"))?,
                minima: optional(tensors, self.has_minima, at!(Self, "minima"))?,
            },
            bias: optional(tensors, self.has_bias, at!(Self, "bias"))?,
        };
        let call = self.operator.check(&inputs)?;
        let y = tensors.write(0, call.output_shape())?;
        Ok(call.run(y, workers)?)
    }
}

pub(crate) struct QuantizedGatherNode {
    operator: QuantizedGather,
    has_minima: bool,
}

impl Compute for QuantizedGatherNode {
    const SIGNATURE: Signature = Signature {
        name: quantized_gather::NAME,
        domains: &quantized_gather::DOMAINS,
        inputs: &quantized_gather::INPUTS,
        outputs: &quantized_gather::OUTPUTS,
        optional_output: None,
        output_type: Some(ElementType::Float32),
        on_cuda: false,
    };

    fn new(node: &Node<'_>) -> Result<Self, Error> {
        let has_minima = node.has_input(at!(Self, "minima"))?;
        Ok(Self { operator: QuantizedGather::new(node.attributes()?)?, has_minima })
    }

    fn infer_shape(node: &Inference<'_>) -> Result<Vec<Dim>, Error> {
        let operator = QuantizedGather::new(node.attributes())?;
        operator.infer_shape(node.shape(at!(Self, "indices"))).ok_or(Error::Missing { name: "indices" })
    }

    fn run(&self, tensors: &HostTensors<'_>, workers: &dyn Workers) -> Result<(), Error> {
        let inputs = GatherInputs {
            indices: tensors.read(at!(Self, "indices"))?,
            matrix: MatrixInputs {
                panels: tensors.read(at!(Self, "panels"))?,
                scales: tensors.read(at!(Self, "scales"))?,
                minima: optional(tensors, self.has_minima, at!(Self, "minima"))?,
            },
        };
        let call = self.operator.check(&inputs)?;
        let y = tensors.write(0, call.output_shape())?;
        Ok(call.run(y, workers)?)
    }
}

/// The input at `index`, if the node has it.
fn optional<'a>(tensors: &HostTensors<'a>, given: bool, index: usize) -> Result<Option<TensorRef<'a>>, Error> {
    given.then(|| tensors.read(index)).transpose()
}
