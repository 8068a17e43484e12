//! The C library on tensors of any description: types, devices, shapes, strides, offsets, null pointers.
//!
//! No function panics, and none accesses memory that a description does not give. Every error has a kind and a message.
//! What is legal is accepted, and gives the bits that the operator gives by its Rust interface.

use std::ffi::CStr;
use std::ptr;

use kvcache::{
    kvcache_attributes, kvcache_attributes_default, kvcache_check, kvcache_create, kvcache_error, kvcache_error_free,
    kvcache_error_kind, kvcache_error_message, kvcache_free, kvcache_indices, kvcache_inputs, kvcache_operator,
    kvcache_run, kvcache_step_begin, kvcache_step_end, kvcache_step_layer, kvcache_step_shape,
};
use kvcache_op::ElementType;
use kvcache_op::dlpack::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLTensor};

use crate::call::{Call, Ended, How, Operator};
use crate::operand::{Memory, Operand};
use crate::plan::Plan;
use crate::source::Source;
use crate::tally;

/// Runs the target on an input.
pub fn run(bytes: &[u8]) {
    let mut source = Source::new(bytes);
    let (of_call, of_descriptions) = (source.pick(&[0, 0, 0, 1, 2]), source.pick(&[0, 1, 1, 2, 3]));
    let by_step = source.flag();
    let mut call = Plan::new(&mut source, Operator::KeyValueCache, 1).call_of_all();
    for _ in 0..of_call {
        call.mutate(&mut source);
    }
    // DLPack has signed lengths: others cannot be said.
    let sayable = |shape: &[usize]| shape.iter().all(|&len| i64::try_from(len).is_ok());
    if !call.is_testable() || !call.operands.iter().all(|operand| sayable(&operand.shape)) {
        return;
    }
    let expected = call.run(How::REFERENCE);
    let shape = match &expected {
        Ended::Done(_) => output_shape(&call),
        _ => vec![0, 1, 1],
    };
    if !sayable(&shape) {
        return;
    }

    // Every tensor is described, and one of them, or of the outputs, is changed.
    let mut tensors: Vec<Described> = call.operands.iter().map(|operand| Described::new(operand.clone())).collect();
    let t1 = call.operand("current_key").map_or(ElementType::Float32, |operand| operand.element);
    for name in ["key", "value"] {
        tensors.push(Described::new(Operand { name, element: t1, shape: shape.clone(), bytes: vec![0xa5] }));
    }
    let mut nulls = Vec::new();
    let mut changed = false;
    for _ in 0..of_descriptions {
        let i = source.below(tensors.len());
        match source.below(5) {
            0 => nulls.push(tensors[i].memory.operand.name),
            _ => changed |= tensors[i].mutate(&mut source),
        }
    }
    let null_output = nulls.iter().any(|name| ["key", "value"].contains(name));
    let null_input = nulls.iter().any(|name| !["key", "value"].contains(name));
    let calls = Calls { call: &call, tensors: &tensors, nulls: &nulls, shape: &shape };
    let kind = if by_step { calls.run_step() } else { calls.run() };
    assert_ne!(kind.as_deref(), Some("panic"));
    tally::count(kind.is_none());
    if kind.is_none() {
        let Ended::Done(after) = &expected else {
            assert!(changed, "an illegal call is accepted: {expected:?}");
            return;
        };
        let given = tensors.iter().filter(|tensor| !nulls.contains(&tensor.memory.operand.name));
        for tensor in given.filter(|tensor| call.is_used(tensor.memory.operand.name)) {
            let Described { memory, ndim, shape, strides, .. } = tensor;
            let name = memory.operand.name;
            assert!(tensor.is_sound(), "{name} of {ndim} dimensions {shape:?} with strides {strides:?} is accepted");
        }
        if changed {
            return; // another legal call
        }
        let mut used = nulls.iter().filter(|&&name| name != "scale" && call.is_used(name));
        assert!(used.next().is_none(), "null pointers are accepted: {nulls:?}");
        let bytes = |name: &str| calls.find(name).map(|tensor| tensor.memory.bytes());
        let outputs = ["key", "value"].map(|name| bytes(name).unwrap_or_default());
        assert!(outputs.as_slice() == after.outputs, "other outputs than by the Rust interface");
        assert!((bytes("cache"), bytes("scale")) == (after.cache.clone(), after.scale.clone()), "another state");
    } else if let (Ended::Done(_), false, false, false) = (&expected, changed, null_input, null_output) {
        panic!("a legal call is refused: {kind:?}");
    }
}

/// The shape of the outputs of a legal call.
fn output_shape(call: &Call) -> Vec<usize> {
    let values = call.operand("kvstarts").map(Operand::values).unwrap_or_default();
    let current = call.operand("current_key").map_or(&[0, 0, 0][..], |operand| &operand.shape);
    let total = values.get(call.operand("kvstarts").map_or(0, |operand| operand.shape[0] - 1));
    let repeat = call.attribute("num_repeat") as usize;
    vec![total.copied().unwrap_or_default() as usize, current[1] * repeat, current[2]]
}

/// A tensor's memory, and what is said of it.
struct Described {
    memory: Memory,
    device: DLDevice,
    dtype: DLDataType,
    ndim: i32,
    shape: Vec<i64>,
    strides: Option<Vec<i64>>,
    byte_offset: u64,
    data_is_null: bool,
}

/// The type of DLPack of elements.
fn dtype_of(element: ElementType) -> DLDataType {
    let code = match element {
        ElementType::Float32 | ElementType::Float16 => DLDataTypeCode::FLOAT,
        _ => DLDataTypeCode::INT,
    };
    DLDataType { code, bits: element.bits() as u8, lanes: 1 }
}

/// How many elements a shape has, if that is a number.
fn elements(shape: &[i64]) -> Option<i64> {
    shape.iter().try_fold(1_i64, |elements, &len| elements.checked_mul(len))
}

impl Described {
    fn new(operand: Operand) -> Self {
        let shape: Vec<i64> = operand.shape.iter().map(|&len| len as i64).collect();
        Self {
            device: DLDevice { device_type: DLDeviceType::CPU, device_id: 0 },
            dtype: dtype_of(operand.element),
            ndim: shape.len() as i32,
            shape,
            strides: None,
            byte_offset: 0,
            data_is_null: false,
            memory: Memory::new(operand, 0),
        }
    }

    /// Changes one thing of the description; says whether the tensor is then another one.
    fn mutate(&mut self, source: &mut Source<'_>) -> bool {
        let mut other = true;
        match source.below(9) {
            0 => {
                // One of the three, mostly, and of the codes that of unsigned integers, which have the same bytes.
                let which = source.below(4);
                if [0, 3].contains(&which) {
                    self.dtype.code = DLDataTypeCode(source.pick(&[1, 1, 0, 2, 3, 4, 5, 6, 17, 255]));
                }
                if [1, 3].contains(&which) {
                    self.dtype.bits = source.pick(&[4, 8, 16, 32, 64, 0, 1, 255]);
                }
                if [2, 3].contains(&which) {
                    self.dtype.lanes = source.pick(&[2, 0, 4, u16::MAX]);
                }
                other = self.dtype != dtype_of(self.memory.operand.element);
            }
            1 => {
                self.device.device_type = DLDeviceType(source.pick(&[2, 3, 8, 10, 11, 13, 0, 18, u32::MAX]));
                self.device.device_id = source.number() as i32;
                // Pinned memory of a host is the host's.
                other = ![3, 11].contains(&self.device.device_type.0);
            }
            2 => {
                // Of no, or too many, dimensions nothing is read.
                self.ndim = source.pick(&[-1, i32::MIN, 65, i32::MAX]);
            }
            3 => {
                self.shape.resize(source.below(70), 1);
                self.ndim = self.shape.len() as i32;
                self.strides = None; // which were as many as there were dimensions
            }
            4 => {
                let i = source.below(self.shape.len());
                if let Some(&before) = self.shape.get(i) {
                    let there = elements(&self.shape);
                    self.shape[i] = source.number_near(before);
                    // Memory that is not there may be legal, of a cache for example.
                    if elements(&self.shape).is_some_and(|now| Some(now) > there) {
                        self.shape[i] = before;
                    }
                }
            }
            5 => {
                // Those of row-major order: the same tensor.
                self.strides = Some(self.row_major());
                other = false;
            }
            6 => {
                let mut strides = self.row_major();
                let i = source.below(strides.len());
                if let Some(stride) = strides.get_mut(i) {
                    *stride = source.number_near(*stride);
                }
                other = self.order_matters(&strides);
                self.strides = Some(strides);
            }
            7 => {
                let elements = self.memory.operand.len().is_none_or(|len| len > 0);
                self.data_is_null = true;
                other = elements;
            }
            _ => {
                // The same address, by another base.
                self.byte_offset = source.number() as u64;
                other = false;
            }
        }
        other
    }

    /// Whether it describes memory of this process that a legal call can have.
    fn is_sound(&self) -> bool {
        use DLDataTypeCode as Code;
        let has_rank = usize::try_from(self.ndim).is_ok_and(|rank| rank == self.shape.len() && rank <= 64);
        let is_known = matches!((self.dtype.code, self.dtype.bits), (Code::FLOAT, 16 | 32) | (Code::INT, 4 | 8 | 64));
        let has_lengths = self.shape.iter().all(|&len| len >= 0);
        let is_on_host =
            matches!(self.device.device_type, DLDeviceType::CPU | DLDeviceType::CUDAHOST | DLDeviceType::ROCMHOST);
        has_rank
            && is_known
            && self.dtype.lanes == 1
            && has_lengths
            && is_on_host
            && self.is_contiguous()
            && (!self.data_is_null || self.shape.contains(&0))
    }

    fn row_major(&self) -> Vec<i64> {
        let inner = |i: usize| self.shape[i + 1..].iter().fold(1_i64, |stride, &len| stride.wrapping_mul(len));
        (0..self.shape.len()).map(inner).collect()
    }

    /// Whether strides are others than those of row-major order along an axis of several elements.
    fn order_matters(&self, strides: &[i64]) -> bool {
        let along = self.shape.iter().zip(strides).zip(self.row_major());
        !self.shape.contains(&0) && { along }.any(|((&len, &stride), expected)| len != 1 && stride != expected)
    }

    fn is_contiguous(&self) -> bool {
        self.strides.as_ref().is_none_or(|strides| !self.order_matters(strides))
    }

    /// Whether the memory is as described. Where it is not, there is none: an access ends the process. Nothing of
    /// another order is accessed.
    fn is_real(&self) -> bool {
        let Operand { element, shape, .. } = &self.memory.operand;
        let there: Vec<i64> = shape.iter().map(|&len| len as i64).collect();
        let fits = elements(&self.shape).is_some_and(|now| Some(now) <= elements(&there));
        self.dtype == dtype_of(*element) && fits && self.is_contiguous()
    }

    /// The description, which lives as long as this.
    fn tensor(&self) -> DLTensor {
        let data = match (self.data_is_null, self.is_real()) {
            (true, _) => ptr::null_mut(),
            (false, true) => self.memory.data().wrapping_sub(self.byte_offset as usize),
            // Another address that no system maps.
            (false, false) => ptr::without_provenance_mut((1 << 62) + (1 << 61)),
        };
        DLTensor {
            data: data.cast(),
            device: self.device,
            ndim: self.ndim,
            dtype: self.dtype,
            shape: self.shape.as_ptr().cast_mut(),
            strides: self.strides.as_ref().map_or(ptr::null_mut(), |strides| strides.as_ptr().cast_mut()),
            byte_offset: self.byte_offset,
        }
    }
}

/// The calls of the C library that make one call of the operator.
struct Calls<'c> {
    call: &'c Call,
    tensors: &'c [Described],
    nulls: &'c [&'static str],
    shape: &'c [usize],
}

impl Calls<'_> {
    fn find(&self, name: &str) -> Option<&Described> {
        self.tensors.iter().find(|tensor| tensor.memory.operand.name == name)
    }

    /// The descriptions by name; null for those that are not given.
    fn described(&self) -> impl Fn(&str) -> *const DLTensor + use<> {
        let given = self.tensors.iter().filter(|tensor| !self.nulls.contains(&tensor.memory.operand.name));
        let given: Vec<_> = given.map(|tensor| (tensor.memory.operand.name, tensor.tensor())).collect();
        move |name| {
            let found = given.iter().find(|(other, _)| *other == name);
            found.map_or(ptr::null(), |(_, tensor)| ptr::from_ref(tensor))
        }
    }

    fn operator(&self) -> Result<Made, String> {
        let mut attributes: kvcache_attributes = kvcache_attributes_default();
        for (name, field) in [
            ("num_layer", &mut attributes.num_layer),
            ("layer_idx", &mut attributes.layer_idx),
            ("quant_bit", &mut attributes.quant_bit),
            ("quant_group", &mut attributes.quant_group),
            ("num_repeat", &mut attributes.num_repeat),
            ("cache_mode", &mut attributes.cache_mode),
            ("cache_layout", &mut attributes.cache_layout),
            ("page_size", &mut attributes.page_size),
        ] {
            *field = self.call.attribute(name);
        }
        let mut op = ptr::null_mut();
        // SAFETY: both are valid.
        kind(unsafe { kvcache_create(&raw const attributes, &raw mut op) })?;
        Ok(Made(op))
    }

    /// The kind of error by which a call is refused, if it is.
    fn run(&self) -> Option<String> {
        let op = match self.operator() {
            Ok(op) => op,
            Err(kind) => return Some(kind),
        };
        let tensor = self.described();
        let inputs = kvcache_inputs {
            current_key: tensor("current_key"),
            current_value: tensor("current_value"),
            indices: indices(&tensor),
        };
        let mut shape = [-1; 3];
        let (cache, scale) = (tensor("cache"), tensor("scale"));
        // SAFETY: an operator, and descriptions that are null or as they say.
        let checked = kind(unsafe { kvcache_check(op.0, &raw const inputs, cache, scale, shape.as_mut_ptr()) });
        let (key, value, workers) = (tensor("key"), tensor("value"), ptr::null());
        // SAFETY: the same; the memory is nobody else's.
        let ran = kind(unsafe { kvcache_run(op.0, &raw const inputs, cache, scale, key, value, workers) });
        match (checked, ran) {
            (Err(checked), ran) => {
                assert_eq!(ran.as_ref().err(), Some(&checked));
                Some(checked)
            }
            (Ok(()), ran) => {
                assert!(ran.is_err() || shape.map(|len| len as usize) == *self.shape);
                ran.err()
            }
        }
    }

    /// The same, by the call of a layer of a step.
    fn run_step(&self) -> Option<String> {
        let op = match self.operator() {
            Ok(op) => op,
            Err(kind) => return Some(kind),
        };
        let tensor = self.described();
        let indices = indices(&tensor);
        let (cache, scale, mut step) = (tensor("cache"), tensor("scale"), ptr::null_mut());
        let t1 = self
            .find("current_key")
            .map_or(DLDataType { code: DLDataTypeCode::FLOAT, bits: 32, lanes: 1 }, |key| key.dtype);
        // SAFETY: an operator, and descriptions that are null or as they say, of memory that outlives the step.
        let begun = kind(unsafe { kvcache_step_begin(op.0, t1, &raw const indices, cache, scale, &raw mut step) });
        if let Err(kind) = begun {
            return Some(kind);
        }
        let mut shape = [-1; 3];
        // SAFETY: a step, and room for three numbers.
        assert_eq!(kind(unsafe { kvcache_step_shape(step, shape.as_mut_ptr()) }), Ok(()));
        let [current_key, current_value, key, value] = ["current_key", "current_value", "key", "value"].map(&tensor);
        let layer = self.call.attribute("layer_idx");
        // SAFETY: a step that nobody else uses, and descriptions that are null or as they say.
        let ran = kind(unsafe { kvcache_step_layer(step, layer, current_key, current_value, key, value, ptr::null()) });
        // SAFETY: it has not ended.
        unsafe { kvcache_step_end(step) };
        ran.err()
    }
}

fn indices(tensor: &impl Fn(&str) -> *const DLTensor) -> kvcache_indices {
    kvcache_indices {
        seqstarts: tensor("seqstarts"),
        kvstarts: tensor("kvstarts"),
        cachestarts: tensor("cachestarts"),
        start_pos: tensor("start_pos"),
        max_seqlen: tensor("max_seqlen"),
        max_kvlen: tensor("max_kvlen"),
    }
}

/// An operator of the C library.
struct Made(*mut kvcache_operator);

impl Drop for Made {
    fn drop(&mut self) {
        // SAFETY: made by `kvcache_create`, and not used again.
        unsafe { kvcache_free(self.0) }
    }
}

/// The kind of an error, which is freed.
fn kind(error: *mut kvcache_error) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: an error that has not been freed, whose texts live as long.
    let [kind, message] =
        unsafe { [kvcache_error_kind(error), kvcache_error_message(error)].map(|text| CStr::from_ptr(text)) };
    let kind = kind.to_str().expect("UTF-8").to_owned();
    assert!(!kind.is_empty() && !message.to_str().expect("UTF-8").is_empty());
    // SAFETY: an error that has not been freed, and is not used again.
    unsafe { kvcache_error_free(error) };
    Err(kind)
}
