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
use kvcache_conformance::backends::cache_attributes;
use kvcache_conformance::random::{Plan, Unstructured, changed_case};
use kvcache_conformance::{Expected, Tensor};
use kvcache_op::dlpack::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLTensor};
use kvcache_op::{Attributes, ElementType};

use crate::tally;

pub fn run(bytes: &[u8]) {
    let entropy = &mut Unstructured::bytes(bytes);
    let (of_descriptions, by_step) = (entropy.pick(&[0, 1, 1, 2, 3]), entropy.one_in(2));
    let case = if entropy.one_in(3) { changed_case(entropy) } else { Plan::draw(entropy, 6, 12).call(entropy).case() };
    let shape = match &case.steps[0].expected {
        Expected::Success(after) => after["key"].shape().to_vec(),
        Expected::Refusal { .. } => vec![0, 1, 1],
    };

    // Every tensor is described, and one of them, or of the outputs, is changed.
    let mut tensors: Vec<Described> = Vec::new();
    for (name, tensor) in &case.steps[0].inputs {
        tensors.push(Described::new(name, tensor.clone()));
    }
    tensors.push(Described::new("cache", case.cache().clone()));
    tensors.extend(case.scale.iter().map(|scale| Described::new("scale", scale.clone())));
    for name in ["key", "value"] {
        let mut output = Tensor::zeros(case.t1(), shape.clone()).expect("a small output");
        output.bytes_mut().fill(0xa5);
        tensors.push(Described::new(name, output));
    }
    let mut nulls = Vec::new();
    let mut changed = false;
    for _ in 0..of_descriptions {
        let i = entropy.below(tensors.len());
        match entropy.one_in(5) {
            true => nulls.push(tensors[i].name),
            false => changed |= tensors[i].mutate(entropy),
        }
    }
    let kind = {
        let mut calls = Calls {
            attributes: &cache_attributes(&case.attributes),
            tensors: &mut tensors,
            nulls: &nulls,
            shape: &shape,
        };
        if by_step { calls.run_step() } else { calls.run() }.err()
    };
    assert_ne!(kind.as_deref(), Some("panic"));
    tally::count(kind.is_none());
    let is_used = |name: &str| name != "scale" || case.attributes["quant_bit"] != 0;
    match (&case.steps[0].expected, kind) {
        (Expected::Success(_), Some(kind)) => {
            assert!(changed || !nulls.is_empty(), "a legal call is refused: {kind}");
        }
        (Expected::Refusal { .. }, Some(_)) => {}
        (Expected::Refusal { kind, .. }, None) => assert!(changed, "an illegal call is accepted: {kind}"),
        (Expected::Success(after), None) => {
            let given = tensors.iter().filter(|tensor| !nulls.contains(&tensor.name) && is_used(tensor.name));
            for tensor in given {
                let Described { name, ndim, shape, strides, .. } = tensor;
                let is_sound = tensor.is_sound();
                assert!(is_sound, "{name} of {ndim} dimensions {shape:?} with strides {strides:?} is accepted");
            }
            if changed {
                return; // another legal call
            }
            assert!(!nulls.iter().any(|&name| name != "scale"), "null pointers are accepted: {nulls:?}");
            for (name, expected) in after {
                let got = tensors.iter().find(|tensor| tensor.name == *name).map(|tensor| &tensor.tensor);
                let is_same = got.is_some_and(|got| got == expected) || case.any_nan;
                assert!(is_same, "{name} is not the reference's");
            }
        }
    }
}

/// A tensor's memory, and what is said of it.
struct Described {
    name: &'static str,
    tensor: Tensor,
    device: DLDevice,
    dtype: DLDataType,
    ndim: i32,
    shape: Vec<i64>,
    strides: Option<Vec<i64>>,
    byte_offset: u64,
    data_is_null: bool,
}

fn dtype_of(element: ElementType) -> DLDataType {
    DLDataType { code: DLDataTypeCode(element.dlpack()), bits: element.bits() as u8, lanes: 1 }
}

/// A number near one, or at which something ends.
fn near(entropy: &mut Unstructured, number: i64) -> i64 {
    match entropy.below(4) {
        0 => entropy.pick(&[i64::MIN, i64::MAX, -1, 0, 1 << 31, 1 << 32, 1 << 62]),
        1 => number.wrapping_mul(entropy.below(7) as i64 - 3),
        _ => number.wrapping_add(entropy.pick(&[-1, 1, -2, 2, -3, 3])),
    }
}

fn elements(shape: &[i64]) -> Option<i64> {
    shape.iter().try_fold(1_i64, |elements, &len| elements.checked_mul(len))
}

impl Described {
    fn new(name: &'static str, tensor: Tensor) -> Self {
        let shape: Vec<i64> = tensor.shape().iter().map(|&len| len as i64).collect();
        Self {
            device: DLDevice { device_type: DLDeviceType::CPU, device_id: 0 },
            dtype: dtype_of(tensor.element()),
            ndim: shape.len() as i32,
            shape,
            strides: None,
            byte_offset: 0,
            data_is_null: false,
            name,
            tensor,
        }
    }

    /// Changes one thing of the description; says whether the tensor is then another one.
    fn mutate(&mut self, entropy: &mut Unstructured) -> bool {
        let mut other = true;
        match entropy.below(9) {
            0 => {
                // One of the three, mostly, and of the codes that of unsigned integers, which have the same bytes.
                let which = entropy.below(4);
                if [0, 3].contains(&which) {
                    self.dtype.code = DLDataTypeCode(entropy.pick(&[1, 1, 0, 2, 3, 4, 5, 6, 17, 255]));
                }
                if [1, 3].contains(&which) {
                    self.dtype.bits = entropy.pick(&[4, 8, 16, 32, 64, 0, 1, 255]);
                }
                if [2, 3].contains(&which) {
                    self.dtype.lanes = entropy.pick(&[2, 0, 4, u16::MAX]);
                }
                other = self.dtype != dtype_of(self.tensor.element());
            }
            1 => {
                self.device.device_type = DLDeviceType(entropy.pick(&[2, 3, 8, 10, 11, 13, 0, 18, u32::MAX]));
                self.device.device_id = entropy.next() as i32;
                // Pinned memory of a host is the host's.
                other = ![3, 11].contains(&self.device.device_type.0);
            }
            2 => {
                // Of no, or too many, dimensions nothing is read.
                self.ndim = entropy.pick(&[-1, i32::MIN, 65, i32::MAX]);
            }
            3 => {
                self.shape.resize(entropy.below(70), 1);
                self.ndim = self.shape.len() as i32;
                self.strides = None; // which were as many as there were dimensions
            }
            4 => {
                let i = entropy.below(self.shape.len());
                if let Some(&before) = self.shape.get(i) {
                    let there = elements(&self.shape);
                    self.shape[i] = near(entropy, before);
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
                let i = entropy.below(strides.len());
                if let Some(stride) = strides.get_mut(i) {
                    *stride = near(entropy, *stride);
                }
                other = self.order_matters(&strides);
                self.strides = Some(strides);
            }
            7 => {
                self.data_is_null = true;
                other = !self.tensor.bytes().is_empty();
            }
            _ => {
                // The same address, by another base.
                self.byte_offset = entropy.next();
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
        let there: Vec<i64> = self.tensor.shape().iter().map(|&len| len as i64).collect();
        let fits = elements(&self.shape).is_some_and(|now| Some(now) <= elements(&there));
        self.dtype == dtype_of(self.tensor.element()) && fits && self.is_contiguous()
    }

    /// The description, which lives as long as this.
    fn tensor(&mut self) -> DLTensor {
        let data = match (self.data_is_null, self.is_real()) {
            (true, _) => ptr::null_mut(),
            (false, true) => self.tensor.bytes_mut().as_mut_ptr().wrapping_sub(self.byte_offset as usize),
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
    attributes: &'c Attributes,
    tensors: &'c mut [Described],
    nulls: &'c [&'static str],
    shape: &'c [usize],
}

impl Calls<'_> {
    /// The descriptions by name; null for those that are not given.
    fn described(&mut self) -> impl Fn(&str) -> *const DLTensor + use<> {
        let given = self.tensors.iter_mut().filter(|tensor| !self.nulls.contains(&tensor.name));
        let given: Vec<_> = given.map(|tensor| (tensor.name, tensor.tensor())).collect();
        move |name| {
            let found = given.iter().find(|(other, _)| *other == name);
            found.map_or(ptr::null(), |(_, tensor)| ptr::from_ref(tensor))
        }
    }

    fn operator(&self) -> Result<Made, String> {
        let mut attributes: kvcache_attributes = kvcache_attributes_default();
        let given = self.attributes;
        (attributes.num_layer, attributes.layer_idx) = (given.num_layer, given.layer_idx);
        (attributes.quant_bit, attributes.quant_group) = (given.quant_bit, given.quant_group);
        (attributes.num_repeat, attributes.cache_mode) = (given.num_repeat, given.cache_mode);
        (attributes.cache_layout, attributes.page_size) = (given.cache_layout, given.page_size);
        let mut op = ptr::null_mut();
        // SAFETY: both are valid.
        kind(unsafe { kvcache_create(&raw const attributes, &raw mut op) })?;
        Ok(Made(op))
    }

    /// The kind of error by which a call is refused, if it is.
    fn run(&mut self) -> Result<(), String> {
        let op = self.operator()?;
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
        match &checked {
            Err(_) => assert_eq!(ran, checked),
            Ok(()) => assert!(ran.is_err() || shape.map(|len| len as usize) == *self.shape),
        }
        ran
    }

    /// The same, by the call of a layer of a step.
    fn run_step(&mut self) -> Result<(), String> {
        let op = self.operator()?;
        let tensor = self.described();
        let indices = indices(&tensor);
        let (cache, scale, mut step) = (tensor("cache"), tensor("scale"), ptr::null_mut());
        let t1 = self.tensors[0].dtype;
        // SAFETY: an operator, and descriptions that are null or as they say, of memory that outlives the step.
        kind(unsafe { kvcache_step_begin(op.0, t1, &raw const indices, cache, scale, &raw mut step) })?;
        let mut shape = [-1; 3];
        // SAFETY: a step, and room for three numbers.
        assert_eq!(kind(unsafe { kvcache_step_shape(step, shape.as_mut_ptr()) }), Ok(()));
        let [current_key, current_value, key, value] = ["current_key", "current_value", "key", "value"].map(&tensor);
        let layer = self.attributes.layer_idx;
        // SAFETY: a step that nobody else uses, and descriptions that are null or as they say.
        let ran = kind(unsafe { kvcache_step_layer(step, layer, current_key, current_value, key, value, ptr::null()) });
        // SAFETY: it has not ended.
        unsafe { kvcache_step_end(step) };
        ran
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
