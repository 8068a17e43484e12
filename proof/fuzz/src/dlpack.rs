//! The C library on tensors of any description: types, devices, shapes, strides, offsets, null pointers.
//!
//! No function panics or overflows, and none accesses memory that a description does not give. Every error has a
//! kind and a message. What is legal is accepted, and gives the bits that the reference kernel gives.

use std::ffi::CStr;
use std::ptr;

use kvcache::{
    kvcache_attributes, kvcache_attributes_default, kvcache_check, kvcache_create, kvcache_error, kvcache_error_free,
    kvcache_error_kind, kvcache_error_message, kvcache_free, kvcache_indices, kvcache_inputs, kvcache_run,
    kvcache_step_begin, kvcache_step_end, kvcache_step_layer,
};
use kvcache_conformance::random::{Plan, Unstructured};
use kvcache_conformance::{AttributeValues, Expected, Tensor};
use kvcache_op::ElementType;
use kvcache_op::dlpack::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLTensor};

pub fn run(bytes: &[u8]) {
    let unstructured = &mut Unstructured::bytes(bytes);
    let (changes, by_step) = (unstructured.pick(&[0, 1, 1, 2, 3]), unstructured.one_in(2));
    let case = Plan::draw(unstructured, 6, 12).call(unstructured).case();
    let Expected::Success(after) = &case.steps[0].expected else { panic!("a plan is of a legal call") };
    let mut tensors: Vec<Described> = Vec::new();
    tensors.extend(case.steps[0].inputs.iter().map(|(&name, tensor)| Described::new(name, tensor.clone())));
    tensors.push(Described::new("cache", case.cache().clone()));
    tensors.extend(case.scale.iter().map(|scale| Described::new("scale", scale.clone())));
    for name in ["key", "value"] {
        let mut output = after[name].clone();
        output.bytes_mut().fill(0xa5);
        tensors.push(Described::new(name, output));
    }
    for _ in 0..changes {
        let at = unstructured.below(tensors.len());
        tensors[at].change(unstructured);
    }
    let outcome = call(&case.attributes, &mut tensors, by_step);
    let used = || tensors.iter().filter(|tensor| tensor.name != "scale" || case.attributes["quant_bit"] != 0);
    match outcome {
        Ok(()) => {
            if let Some(Described { name, shape, strides, .. }) = used().find(|tensor| !tensor.is_sound()) {
                panic!("{name} of shape {shape:?} with strides {strides:?} is accepted");
            }
        }
        Err(kind) => assert!(kind != "panic" && changes > 0, "a legal call is refused: {kind}"),
    }
    for tensor in used().filter(|_| changes == 0) {
        let expected = after.get(tensor.name).unwrap_or(&tensor.tensor);
        assert!(tensor.tensor == *expected || case.any_nan, "{} is not what it is by the reference", tensor.name);
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
    is_null: bool,
}

fn dtype_of(element: ElementType) -> DLDataType {
    DLDataType { code: DLDataTypeCode(element.dlpack()), bits: element.bits() as u8, lanes: 1 }
}

/// A number near one, or at which something ends.
fn near(unstructured: &mut Unstructured, number: i64) -> i64 {
    match unstructured.below(4) {
        0 => unstructured.pick(&[i64::MIN, i64::MAX, -1, 0, 1 << 31, 1 << 32, 1 << 54, 1 << 60, 1 << 62]),
        1 => number.wrapping_mul(unstructured.below(7) as i64 - 3),
        _ => number.wrapping_add(unstructured.pick(&[-1, 1, -2, 2, -3, 3])),
    }
}

impl Described {
    fn new(name: &'static str, tensor: Tensor) -> Self {
        let shape: Vec<i64> = tensor.shape().iter().map(|&len| len as i64).collect();
        Self {
            name,
            device: DLDevice { device_type: DLDeviceType::CPU, device_id: 0 },
            dtype: dtype_of(tensor.element()),
            ndim: shape.len() as i32,
            shape,
            strides: None,
            byte_offset: 0,
            data_is_null: false,
            is_null: false,
            tensor,
        }
    }

    /// Changes one thing of the description.
    fn change(&mut self, unstructured: &mut Unstructured) {
        match unstructured.below(10) {
            0 => self.dtype.code = DLDataTypeCode(unstructured.pick(&[1, 1, 0, 2, 3, 4, 5, 6, 17, 255])),
            1 => self.dtype.bits = unstructured.pick(&[4, 8, 16, 32, 64, 0, 1, 255]),
            2 => self.dtype.lanes = unstructured.pick(&[2, 0, 4, u16::MAX]),
            3 => self.device.device_type = DLDeviceType(unstructured.pick(&[2, 3, 8, 10, 11, 13, 0, 18, u32::MAX])),
            4 => {
                self.shape.resize(unstructured.below(70), 1);
                self.strides = None; // there were as many as dimensions
                // Of no, or too many, dimensions nothing is read.
                self.ndim = unstructured.pick(&[self.shape.len() as i32, -1, i32::MIN, 65, i32::MAX]);
            }
            5 => {
                let at = unstructured.below(self.shape.len());
                self.shape.iter_mut().skip(at).take(1).for_each(|len| *len = near(unstructured, *len));
            }
            6 => {
                let (mut strides, at) = (self.row_major(), unstructured.below(self.shape.len() + 1));
                strides.iter_mut().skip(at).take(1).for_each(|stride| *stride = near(unstructured, *stride));
                self.strides = Some(strides);
            }
            7 => self.byte_offset = unstructured.next(), // the same address, by another base
            8 => self.data_is_null = true,
            _ => self.is_null = true,
        }
    }

    fn row_major(&self) -> Vec<i64> {
        let inner = |i: usize| self.shape[i + 1..].iter().fold(1_i64, |stride, &len| stride.wrapping_mul(len));
        (0..self.shape.len()).map(inner).collect()
    }

    /// Whether strides are row-major along each axis of several elements.
    fn is_contiguous(&self) -> bool {
        let Some(strides) = self.strides.as_ref().filter(|_| !self.shape.contains(&0)) else { return true };
        let along = self.shape.iter().zip(strides).zip(self.row_major());
        { along }.all(|((&len, &stride), expected)| len == 1 || stride == expected)
    }

    /// The bytes of the shape, if memory can have so many.
    fn len(&self) -> Option<usize> {
        let bits = self
            .shape
            .iter()
            .try_fold(u128::from(self.dtype.bits), |bits, &len| bits.checked_mul(u128::try_from(len).ok()?));
        usize::try_from(bits?.div_ceil(8)).ok().filter(|&len| isize::try_from(len).is_ok())
    }

    /// Whether a legal call can have it.
    fn is_sound(&self) -> bool {
        let is_known = ElementType::ALL.into_iter().any(|element| dtype_of(element) == self.dtype);
        let is_on_host =
            matches!(self.device.device_type, DLDeviceType::CPU | DLDeviceType::CUDAHOST | DLDeviceType::ROCMHOST);
        let has_rank = usize::try_from(self.ndim).is_ok_and(|rank| rank == self.shape.len() && rank <= 64);
        let is_given = self.name == "scale" || !self.is_null;
        let has_data = !self.data_is_null || self.shape.contains(&0);
        let fits = self.is_null || self.len().is_some();
        is_known
            && is_on_host
            && has_rank
            && is_given
            && has_data
            && fits
            && self.dtype.lanes == 1
            && self.is_contiguous()
    }

    /// Whether the memory is as described, as far as a legal call reads or writes it.
    fn is_there(&self) -> bool {
        let fits = self.len().is_some_and(|len| len <= self.tensor.bytes().len());
        !self.is_sound() || (fits && self.dtype == dtype_of(self.tensor.element()))
    }

    /// The description, which lives as long as this. Where the memory is not as described, its address is one that no
    /// system maps: an access ends the process.
    fn tensor(&mut self) -> Option<DLTensor> {
        let data = match (self.data_is_null, self.is_sound() && self.is_there()) {
            (true, _) => ptr::null_mut(),
            (_, true) => self.tensor.bytes_mut().as_mut_ptr().wrapping_sub(self.byte_offset as usize),
            _ => ptr::without_provenance_mut((1 << 62) + (1 << 61)),
        };
        let tensor = DLTensor {
            data: data.cast(),
            device: self.device,
            ndim: self.ndim,
            dtype: self.dtype,
            shape: self.shape.as_ptr().cast_mut(),
            strides: self.strides.as_ref().map_or(ptr::null_mut(), |strides| strides.as_ptr().cast_mut()),
            byte_offset: self.byte_offset,
        };
        (!self.is_null).then_some(tensor)
    }
}

/// Makes one call of the operator by the C library, or checks it alone where memory is not there; gives the kind of the
/// error by which it is refused.
fn call(values: &AttributeValues, tensors: &mut [Described], by_step: bool) -> Result<(), String> {
    let is_there = tensors.iter().all(Described::is_there);
    let t1 = tensors.iter().find(|tensor| tensor.name == "current_key").expect("current keys").dtype;
    let described: Vec<_> = tensors.iter_mut().map(|tensor| (tensor.name, tensor.tensor())).collect();
    let tensor = |name: &str| {
        let found = described.iter().find(|(other, _)| *other == name).and_then(|(_, tensor)| tensor.as_ref());
        found.map_or(ptr::null(), ptr::from_ref)
    };
    let (mut attributes, value): (kvcache_attributes, _) = (kvcache_attributes_default(), |name| values[name]);
    (attributes.num_layer, attributes.layer_idx) = (value("num_layer"), value("layer_idx"));
    (attributes.quant_bit, attributes.quant_group) = (value("quant_bit"), value("quant_group"));
    (attributes.num_repeat, attributes.cache_mode) = (value("num_repeat"), value("cache_mode"));
    (attributes.cache_layout, attributes.page_size) = (value("cache_layout"), value("page_size"));
    attributes.quant_type = value("quant_type");
    let indices = kvcache_indices {
        seqstarts: tensor("seqstarts"),
        kvstarts: tensor("kvstarts"),
        cachestarts: tensor("cachestarts"),
        start_pos: tensor("start_pos"),
        max_seqlen: tensor("max_seqlen"),
        max_kvlen: tensor("max_kvlen"),
    };
    let inputs = kvcache_inputs { current_key: tensor("current_key"), current_value: tensor("current_value"), indices };
    let (cache, scale, key, value) = (tensor("cache"), tensor("scale"), tensor("key"), tensor("value"));
    let (mut op, mut step, none) = (ptr::null_mut(), ptr::null_mut(), ptr::null());
    // SAFETY: the attributes and the place of the operator are valid.
    kind(unsafe { kvcache_create(&raw const attributes, &raw mut op) })?;
    // SAFETY: an operator until it is freed, last; descriptions that are null or as they say, of memory that is nobody
    // else's; a step until it is ended.
    unsafe {
        let mut outcome = kind(kvcache_check(op, &raw const inputs, cache, scale, [0; 3].as_mut_ptr()));
        if is_there && !by_step {
            let ran = kind(kvcache_run(op, &raw const inputs, cache, scale, key, value, none));
            assert!(outcome.is_ok() || ran == outcome, "a check and a call refuse for two reasons");
            outcome = ran;
        } else if is_there {
            outcome = kind(kvcache_step_begin(op, t1, &raw const inputs.indices, cache, scale, &raw mut step));
            if outcome.is_ok() {
                let (k, v) = (inputs.current_key, inputs.current_value);
                outcome = kind(kvcache_step_layer(step, attributes.layer_idx, k, v, key, value, none));
                kvcache_step_end(step);
            }
        }
        kvcache_free(op);
        outcome
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
