//! The checks of a call that stores current tokens, but for its outputs, in order: shapes, memory, indices.

use std::ptr;

use kvcache_kernels::{Geometry, Pointers, Stores};
use kvcache_schema::ElementType;

use super::alias_check::AliasCheck;
use super::{indices, shapes};
use crate::config::{CacheConfig, Config};
use crate::error::Error;
use crate::operands::{Operand, required};

pub(crate) const CURRENT: [&str; 2] = ["current_key", "current_value"];

/// The inputs of a call that stores current tokens.
#[derive(Clone, Copy)]
pub(crate) struct StoreInputs<'t, 'a> {
    /// `current_key` and `current_value`; not there before those of a layer are known.
    pub(crate) current: Option<[&'t Operand<'a>; 2]>,
    pub(crate) seqstarts: &'t Operand<'a>,
    /// Not there if the caller has said how many rows `key` has.
    pub(crate) kvstarts: Option<&'t Operand<'a>>,
    pub(crate) cachestarts: &'t Operand<'a>,
    pub(crate) start_pos: &'t Operand<'a>,
    pub(crate) max_seqlen: &'t Operand<'a>,
    pub(crate) max_kvlen: &'t Operand<'a>,
    pub(crate) cache: &'t Operand<'a>,
    pub(crate) scale: Option<&'t Operand<'a>>,
    /// The rows in place of `kvstarts`.
    #[cfg(feature = "cuda")]
    at_most: Option<usize>,
}

impl<'t, 'a> StoreInputs<'t, 'a> {
    /// The inputs by name: current tokens; those from `seqstarts` to `max_kvlen`; `cache` and `scale`; and the rows in
    /// place of `kvstarts`.
    pub(crate) fn new(
        current: Option<[&'t Operand<'a>; 2]>,
        [seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen]: [Option<&'t Operand<'a>>; 6],
        [cache, scale]: [Option<&'t Operand<'a>>; 2],
        at_most: Option<usize>,
    ) -> Result<Self, Error> {
        Ok(Self {
            current,
            seqstarts: required("seqstarts", seqstarts)?,
            kvstarts: if at_most.is_some() { None } else { Some(required("kvstarts", kvstarts)?) },
            cachestarts: required("cachestarts", cachestarts)?,
            start_pos: required("start_pos", start_pos)?,
            max_seqlen: required("max_seqlen", max_seqlen)?,
            max_kvlen: required("max_kvlen", max_kvlen)?,
            cache: required("cache", cache)?,
            scale,
            #[cfg(feature = "cuda")]
            at_most,
        })
    }

    /// T2 and T3.
    pub(crate) fn state_types(&self) -> (ElementType, Option<ElementType>) {
        (self.cache.tensor.element, self.scale.map(|scale| scale.tensor.element))
    }

    /// Checks the types of the indices.
    pub(crate) fn check_index_types(&self) -> Result<(), Error> {
        let equal =
            |(name, index): (_, &Operand<'_>)| shapes::equal_type(name, index.tensor.element, ElementType::Int64);
        self.indices().try_for_each(equal)
    }

    /// Page table entries per sequence (MaxP), in paged mode and once shapes have been checked.
    pub(super) fn max_p(&self) -> usize {
        self.cachestarts.tensor.shape[1]
    }

    fn indices(&self) -> impl Iterator<Item = (&'static str, &'t Operand<'a>)> + use<'t, 'a> {
        let inputs = [
            ("seqstarts", Some(self.seqstarts)),
            ("kvstarts", self.kvstarts),
            ("cachestarts", Some(self.cachestarts)),
            ("start_pos", Some(self.start_pos)),
            ("max_seqlen", Some(self.max_seqlen)),
            ("max_kvlen", Some(self.max_kvlen)),
        ];
        inputs.into_iter().filter_map(|(name, input)| Some((name, input?)))
    }
}

/// Checks the memory of tensors whose types and shapes have been checked.
pub(crate) fn memory<'t, 'a: 't>(
    config: &CacheConfig,
    current: Option<[&'t Operand<'a>; 2]>,
    indices: impl Iterator<Item = (&'static str, &'t Operand<'a>)>,
    (cache, scale): (&Operand<'a>, Option<&Operand<'a>>),
) -> Result<(Pointers, AliasCheck), Error> {
    let mut aliases = AliasCheck::default();
    let read = current.into_iter().flat_map(|current| CURRENT.into_iter().zip(current)).chain(indices);
    for (name, operand) in read {
        aliases.read(name, &operand.tensor)?;
    }
    cache.check_writable("cache")?;
    aliases.write("cache", &cache.tensor)?;
    if let Some(scale) = scale {
        if config.static_scales {
            aliases.read("scale", &scale.tensor)?;
        } else {
            scale.check_writable("scale")?;
            aliases.write("scale", &scale.tensor)?;
        }
    }
    let pointers = Pointers {
        current: current.map_or([ptr::null(); 2], |current| current.map(|operand| operand.tensor.data)),
        cache: cache.data_mut(),
        scale: scale.map_or(ptr::null_mut(), Operand::data_mut),
    };
    Ok((pointers, aliases))
}

/// Tokens and a layer of the cache, checked as far as the host can.
#[derive(Debug)]
pub(crate) enum CheckedStores<'a> {
    Host(Stores<'a>),
    #[cfg(feature = "cuda")]
    Device(kvcache_kernels::DeviceStores),
}

impl CheckedStores<'_> {
    pub(crate) fn geometry(&self) -> &Geometry {
        match self {
            Self::Host(stores) => stores.geometry(),
            #[cfg(feature = "cuda")]
            Self::Device(stores) => &stores.geometry,
        }
    }

    /// Rows of the current tokens, and of `key` and `value`.
    pub(crate) fn rows(&self) -> [usize; 2] {
        match self {
            Self::Host(stores) => [stores.total_seqlen(), stores.total_kvlen()],
            #[cfg(feature = "cuda")]
            Self::Device(stores) => [stores.current_rows, stores.all_rows],
        }
    }
}

/// Checks everything but types and outputs, and without current tokens everything but those; the values of indices only
/// where they are on the host.
pub(crate) fn stores<'a>(
    config: &Config,
    t1: ElementType,
    mut inputs: StoreInputs<'_, 'a>,
) -> Result<(CheckedStores<'a>, AliasCheck), Error> {
    // A scale that is given without quantization is left untouched, and may be anything.
    inputs.scale = config.cache.quant.and(inputs.scale);
    let (geometry, max_t) = shapes::check(config, t1, &inputs)?;
    let (pointers, aliases) = memory(&config.cache, inputs.current, inputs.indices(), (inputs.cache, inputs.scale))?;
    #[cfg(feature = "cuda")]
    if inputs.seqstarts.on_device {
        return Ok((CheckedStores::Device(on_device(config, &inputs, geometry, max_t, pointers)?), aliases));
    }
    let indices = indices::check(config, &inputs, geometry.batch, max_t)?;
    // SAFETY: the caller has checked the types, `shapes::check` shapes, `memory` alignment and overlap,
    // `indices::check` the indices. Each tensor's memory is valid for 'a, as a slice or by `from_raw_parts`, for reads
    // or writes of its shape, and borrowed so that no other call writes it. Without current tokens, `layer` is what the
    // stores are used for.
    Ok((CheckedStores::Host(unsafe { Stores::assume_checked(geometry, indices, pointers) }), aliases))
}

/// A call on a device, whose shapes and memory have been checked; checks what indices are on the host.
#[cfg(feature = "cuda")]
fn on_device(
    config: &Config,
    inputs: &StoreInputs<'_, '_>,
    geometry: Geometry,
    max_t: usize,
    pointers: Pointers,
) -> Result<kvcache_kernels::DeviceStores, Error> {
    use kvcache_kernels::{DeviceAddressing, DeviceStores};
    use kvcache_schema::CacheMode;
    let total_kvlen = indices::check_on_host(config, inputs)?;
    let current_rows = inputs.current.map_or(0, |[key, _]| key.tensor.shape[0]);
    let addressing = match config.mode {
        CacheMode::Offset => DeviceAddressing::Offset,
        CacheMode::Paged => DeviceAddressing::Paged { max_p: inputs.max_p(), page_size: config.page_size },
    };
    let rows = [max_t, current_rows, inputs.at_most.unwrap_or(total_kvlen)];
    Ok(DeviceStores {
        seqstarts: inputs.seqstarts.address(),
        start_pos: inputs.start_pos.address(),
        cachestarts: inputs.cachestarts.address(),
        exact_rows: inputs.at_most.is_none(),
        ..crate::device::without_indices(geometry, pointers, rows, addressing)
    })
}
