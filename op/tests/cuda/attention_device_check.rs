//! What the host checks of an attention call on a device, without a device: addresses are never dereferenced.

use kvcache_conformance::attention::{Case, Operator, Step};
use kvcache_conformance::backends::read;
use kvcache_conformance::{Expected, Tensor};
use kvcache_op::cuda::{
    DeviceAttentionCall, DeviceAttentionInputs, DeviceCacheAttentionInputs, DeviceInputs, DeviceMut, DeviceRef,
    OutputRows,
};
use kvcache_op::{Error, IndexInputs, MultiHeadAttention, MultiHeadCacheAttention};

/// The tensors of a call, on a device.
pub trait OnDevice<'a> {
    /// The input of this name.
    fn input(&mut self, name: &'static str) -> DeviceRef<'a>;
    /// `cache`.
    fn cache(&mut self) -> DeviceMut<'a>;
    /// `scale`, if there is one.
    fn scale(&mut self) -> Option<DeviceMut<'a>>;
}

/// The host's check of a step whose tensors lie on a device.
pub fn check<'a>(
    case: &Case,
    step: &'a Step,
    device: &mut impl OnDevice<'a>,
) -> Result<DeviceAttentionCall<'a>, Error> {
    let host = |name: &str| read(step.input(name));
    let attn_mask = step.inputs.contains_key("attn_mask").then(|| device.input("attn_mask"));
    match case.operator {
        Operator::MultiHeadAttention => {
            let inputs = DeviceAttentionInputs {
                query: device.input("query"),
                key: device.input("key"),
                value: device.input("value"),
                seqstarts: device.input("seqstarts"),
                kvstarts: device.input("kvstarts"),
                decoding_batches: host("decoding_batches"),
                max_seqlen: host("max_seqlen"),
                max_kvlen: host("max_kvlen"),
                attn_mask,
                exact_rows: true,
            };
            MultiHeadAttention::new(case.attributes.attention.clone())?.check_device(inputs)
        }
        Operator::MultiHeadCacheAttention => {
            let op = MultiHeadCacheAttention::new(case.attributes.clone())?;
            let inputs = DeviceCacheAttentionInputs {
                query: device.input("query"),
                stored: DeviceInputs {
                    current_key: device.input("current_key"),
                    current_value: device.input("current_value"),
                    indices: IndexInputs {
                        seqstarts: device.input("seqstarts"),
                        cachestarts: device.input("cachestarts"),
                        start_pos: device.input("start_pos"),
                        kvstarts: OutputRows::Kvstarts(host("kvstarts")),
                        max_seqlen: host("max_seqlen"),
                        max_kvlen: host("max_kvlen"),
                    },
                },
                decoding_batches: host("decoding_batches"),
                attn_mask,
            };
            let scale = device.scale();
            op.check_device(inputs, device.cache(), scale)
        }
    }
}

/// Tensors at addresses that no call is launched with.
struct Nowhere<'a> {
    case: &'a Case,
    step: &'a Step,
    last: u64,
}

impl Nowhere<'_> {
    fn address(&mut self) -> u64 {
        self.last += 1;
        (1 << 44) + (self.last << 36)
    }

    fn write<'a>(&mut self, tensor: &'a Tensor) -> DeviceMut<'a> {
        let address = self.address();
        // SAFETY: no call is launched.
        unsafe { DeviceMut::from_raw_parts(tensor.element(), tensor.shape(), address) }
    }
}

impl<'a> OnDevice<'a> for Nowhere<'a> {
    fn input(&mut self, name: &'static str) -> DeviceRef<'a> {
        let (tensor, address) = (self.step.input(name), self.address());
        // SAFETY: no call is launched.
        unsafe { DeviceRef::from_raw_parts(tensor.element(), tensor.shape(), address) }
    }

    fn cache(&mut self) -> DeviceMut<'a> {
        let case = self.case;
        self.write(case.cache.as_ref().expect("a case of a cache has one"))
    }

    fn scale(&mut self) -> Option<DeviceMut<'a>> {
        let case = self.case;
        case.scale.as_ref().map(|scale| self.write(scale))
    }
}

/// The host's check of a step.
pub fn check_nowhere(case: &Case, step: &Step) -> Result<(), Error> {
    check(case, step, &mut Nowhere { case, step, last: 0 }).map(drop)
}

/// The kind of error of a step that must be refused but that the host's check accepts, so that the device must find it.
pub fn left_to_device<'a>(case: &Case, step: &'a Step) -> Option<&'a str> {
    match &step.expected {
        Expected::Refusal { kind, .. } if check_nowhere(case, step).is_ok() => Some(kind),
        _ => None,
    }
}
