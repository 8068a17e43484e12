//! The checks of a call that stores current tokens, but for its outputs, in order: shapes, memory, indices.

use std::ptr;

use kvcache_kernels::{Geometry, Pointers, Quant, Stores};
use kvcache_schema::{CacheStrides, ElementType};

use super::alias_check::{self, AliasCheck};
use super::types::equal_type;
use super::{indices, shapes};
use crate::config::{CacheConfig, Config};
use crate::error::Error;
use crate::operands::{Operand, required};

pub(crate) const CURRENT: [&str; 2] = ["current_key", "current_value"];

/// The inputs that say where a call's tokens are.
pub(crate) struct IndexOperands<'t, 'a> {
    pub(crate) seqstarts: &'t Operand<'a>,
    /// Not there if the caller has said how many rows `key` has.
    pub(crate) kvstarts: Option<&'t Operand<'a>>,
    pub(crate) cachestarts: &'t Operand<'a>,
    pub(crate) start_pos: &'t Operand<'a>,
    pub(crate) max_seqlen: &'t Operand<'a>,
    pub(crate) max_kvlen: &'t Operand<'a>,
}

impl<'t, 'a> IndexOperands<'t, 'a> {
    /// The inputs from `seqstarts` to `max_kvlen`, and the rows in place of `kvstarts`.
    pub(crate) fn new(
        [seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen]: [Option<&'t Operand<'a>>; 6],
        at_most: Option<usize>,
    ) -> Result<Self, Error> {
        Ok(Self {
            seqstarts: required("seqstarts", seqstarts)?,
            kvstarts: if at_most.is_some() { None } else { Some(required("kvstarts", kvstarts)?) },
            cachestarts: required("cachestarts", cachestarts)?,
            start_pos: required("start_pos", start_pos)?,
            max_seqlen: required("max_seqlen", max_seqlen)?,
            max_kvlen: required("max_kvlen", max_kvlen)?,
        })
    }

    fn named(&self) -> impl Iterator<Item = (&'static str, &'t Operand<'a>)> {
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

/// `cache`, and `scale` if it is given.
#[derive(Clone, Copy)]
pub(crate) struct State<'t, 'a> {
    pub(crate) cache: &'t Operand<'a>,
    pub(crate) scale: Option<&'t Operand<'a>>,
}

impl<'t, 'a> State<'t, 'a> {
    pub(crate) fn new([cache, scale]: [Option<&'t Operand<'a>>; 2]) -> Result<Self, Error> {
        Ok(Self { cache: required("cache", cache)?, scale })
    }

    pub(crate) fn types(&self) -> (ElementType, Option<ElementType>) {
        (self.cache.tensor.element, self.scale.map(|scale| scale.tensor.element))
    }
}

/// The strides of `cache`, and of the `scale` that it has or would have; `None` where they are too large.
pub(crate) type Strides = [Option<CacheStrides>; 2];

/// What is known of a call whose types, shapes and memory have been checked, but no value of any tensor.
#[derive(Debug)]
pub(crate) struct CheckedTensors {
    pub(crate) geometry: Geometry,
    pub(crate) pointers: Pointers,
    /// The memory of every tensor checked so far.
    pub(crate) aliases: AliasCheck,
}

/// Checks the memory of tensors whose types and shapes have been checked. Before a layer's current tokens are known,
/// `current` is `None`.
pub(crate) fn tensors<'t, 'a: 't>(
    config: &CacheConfig,
    t1: ElementType,
    current: Option<[&Operand<'a>; 2]>,
    indices: impl IntoIterator<Item = (&'static str, &'t Operand<'a>)>,
    State { cache, scale }: State<'_, 'a>,
    ([batch, num_heads, head_dim], strides): ([usize; 3], Strides),
) -> Result<CheckedTensors, Error> {
    let mut aliases = AliasCheck::default();
    let current = current.map(|current| current.map(|operand| &operand.tensor));
    for (name, tensor) in CURRENT.into_iter().zip(current.into_iter().flatten()) {
        aliases.read(name, tensor.into())?;
    }
    for (name, operand) in indices {
        aliases.read(name, (&operand.tensor).into())?;
    }
    cache.check_writable("cache")?;
    aliases.write("cache", (&cache.tensor).into())?;
    if let Some(scale) = scale {
        if config.static_scales {
            aliases.read("scale", (&scale.tensor).into())?;
        } else {
            scale.check_writable("scale")?;
            aliases.write("scale", (&scale.tensor).into())?;
        }
    }

    let size = |name, operand: &Operand<'_>, strides: Option<CacheStrides>| {
        let shape = &operand.tensor.shape;
        Ok::<_, Error>((strides.ok_or_else(|| alias_check::overflow(name, shape))?, alias_check::len(name, shape)?))
    };
    let (cache_strides, cache_len) = size("cache", cache, strides[0])?;
    let quant = match (config.quant, scale) {
        (Some(bits), Some(scale)) => {
            let group = if config.static_scales { head_dim.max(1) } else { config.quant_group };
            let (strides, scale_len) = size("scale", scale, strides[1])?;
            Some(Quant { bits, group, rotated: config.rotated, t3: scale.tensor.element, scale_len, scale: strides })
        }
        _ => None,
    };
    let (layer_idx, t2) = (config.layer_idx, cache.tensor.element);
    let geometry = Geometry { batch, num_heads, head_dim, layer_idx, t1, t2, quant, cache_len, cache: cache_strides };
    let pointers = Pointers {
        current: current.map_or([ptr::null(); 2], |tensors| tensors.map(|tensor| tensor.data)),
        cache: cache.data_mut(),
        scale: scale.map_or(ptr::null_mut(), Operand::data_mut),
    };
    Ok(CheckedTensors { geometry, pointers, aliases })
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

/// Checks everything but the outputs, and without `current` tensors everything but those; the values of indices only
/// where they are on the host. `types` has found T1, T2 and T3 to be a legal combination. `at_most` are the rows in
/// place of `kvstarts`.
pub(crate) fn stores<'a>(
    config: &Config,
    t1: ElementType,
    current: Option<[&Operand<'a>; 2]>,
    index_inputs: &IndexOperands<'_, 'a>,
    mut state: State<'_, 'a>,
    at_most: Option<usize>,
) -> Result<(CheckedStores<'a>, AliasCheck), Error> {
    // A scale that is given without quantization is left untouched, and may be anything.
    state.scale = config.cache.quant.and(state.scale);
    for (name, operand) in index_inputs.named() {
        equal_type(name, operand.tensor.element, ElementType::Int64)?;
    }
    let (dims, room) = shapes::check(config, current, index_inputs, state)?;
    let checked = tensors(&config.cache, t1, current, index_inputs.named(), state, dims)?;
    let CheckedTensors { geometry, pointers, aliases } = checked;
    let current_rows = current.map(|[key, _]| key.tensor.shape[0]);
    let indices = indices::check(config, index_inputs, &room, current_rows)?;
    let stores = match indices {
        indices::Checked::Host(indices) => {
            // SAFETY: `types` has checked the types, `shapes::check` shapes, `tensors` alignment and overlap,
            // `indices::check` the indices. Each tensor's memory is valid for 'a, as a slice or by `from_raw_parts`,
            // for reads or writes of its shape, and borrowed so that no other call writes it. Without `current`,
            // `layer` is what the stores are used for.
            CheckedStores::Host(unsafe { Stores::assume_checked(geometry, indices, pointers) })
        }
        #[cfg(feature = "cuda")]
        indices::Checked::Device(total_kvlen) => {
            use kvcache_kernels::{DeviceAddressing, DeviceStores};
            use kvcache_schema::CacheMode;
            CheckedStores::Device(DeviceStores {
                seqstarts: index_inputs.seqstarts.address(),
                start_pos: index_inputs.start_pos.address(),
                cachestarts: index_inputs.cachestarts.address(),
                exact_rows: at_most.is_none(),
                ..crate::device::without_indices(
                    geometry,
                    pointers,
                    [room.max_t, current_rows.unwrap_or_default(), at_most.unwrap_or(total_kvlen)],
                    match config.mode {
                        CacheMode::Offset => DeviceAddressing::Offset,
                        CacheMode::Paged => DeviceAddressing::Paged { max_p: room.max_p, page_size: config.page_size },
                    },
                )
            })
        }
    };
    #[cfg(not(feature = "cuda"))]
    let _ = at_most;
    Ok((stores, aliases))
}
