//! The specification of a cache and its management: dimensions, types, layout and mode of a cache, validated once, and
//! the figures that follow.

use std::ops::Deref;

use kvcache_kernels::{CacheRows, Rope, RowsError};
use kvcache_schema::{Attributes, CacheDims, CacheLayout, CacheMode, ElementType, QuantBit, STATIC_SCALES, shape};

use crate::error::Error;
use crate::sequences::positions::MAX_POSITION;

/// The dimensions of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Attention layers that share the cache (L).
    pub num_layer: usize,
    /// Cache heads (H).
    pub num_heads: usize,
    /// Elements of a head (Dh).
    pub head_dim: usize,
    /// Slots (MaxT).
    pub max_t: usize,
}

/// How sequences get their slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Pages of `page_size` slots, anywhere in the cache: `cache_mode` 1. Sequences share pages, and copy them when
    /// they write.
    Paged {
        /// Slots of a page.
        page_size: usize,
    },
    /// A run of neighboring slots for each sequence, with a reserve: `cache_mode` 0. Sequences share nothing.
    Runs,
    /// Cells anywhere in the cache. Attention sees all up to the last busy one: `cache_mode` 0, with an
    /// entry that writes and one that is the view. Sequences share cells, and copy them when they edit their positions.
    Cells,
}

/// What the stored keys are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyForm {
    /// Keys are stored after rotary embedding: a row that moves to another position is rotated by an update.
    Roped,
    /// Keys are stored before rotary embedding, which the graph applies to what the operator returns, by
    /// `key_positions`: positions are metadata.
    PreRope,
}

/// How many updates may rotate the rows of a sequence, as the errors of quantized keys add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ShiftLimit {
    /// 4 for an int4 cache, any number for others.
    #[default]
    ByType,
    /// So many.
    Updates(u32),
    /// Any number.
    Unlimited,
}

/// A cache and the way it is managed. [`check`](Self::check) makes a [`CacheSpec`] of it.
///
/// ```
/// # use kvcache_manager::{CacheSettings, Geometry, Mode};
/// let geometry = Geometry { num_layer: 2, num_heads: 8, head_dim: 64, max_t: 1024 };
/// let settings = CacheSettings { geometry, mode: Mode::Paged { page_size: 16 }, ..CacheSettings::default() };
/// assert_eq!(settings.check()?.num_pages(), 64);
/// # Ok::<(), kvcache_manager::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct CacheSettings {
    /// The dimensions: there is no default.
    pub geometry: Geometry,
    /// The order of the axes of `cache` and `scale`: [`CacheLayout::TokenMajor`] by default.
    pub layout: CacheLayout,
    /// The type of `cache`: float16 by default. A cache of float8e4m3fn without `quant` has static scales (`quant_type`
    /// 2): the operators are given them, and the manager has nothing to do with them.
    pub cache_type: ElementType,
    /// A quantized cache: how many neighbors share a scale, and the type of scales.
    pub quant: Option<(usize, ElementType)>,
    /// Whether keys are multiplied by a Hadamard matrix before they are quantized.
    pub quant_rotation: bool,
    /// How sequences get their slots: pages of 128 by default.
    pub mode: Mode,
    /// Fixes the columns of `cachestarts` (MaxP), and with it the pages of a sequence. By default `cachestarts` is as
    /// wide as the widest row of a step.
    pub max_pages: Option<usize>,
    /// Whether paged sequences whose tokens begin alike share pages: true by default, and false in the other modes.
    pub prefix_sharing: bool,
    /// What makes keys and values of the same tokens differ: the model, its adapters. Part of every prefix's key.
    pub fingerprint: String,
    /// What computes keys and values, as far as it decides their bits: instruction set, kernels, runtime. Part of every
    /// prefix's key, so that prefixes from a store have the bits of computed ones; sessions need not agree in it.
    pub computed_by: String,
    /// What the stored keys are: [`KeyForm::Roped`] by default.
    pub key_form: KeyForm,
    /// The rotary embedding of keys, by which rows can move to other positions. Without it they cannot, where keys are
    /// stored rotated.
    pub rope: Option<Rope>,
    /// Attention sees only so many last positions, a token's own among them. At every commit the rows go that no later
    /// token will see; in pages, whole pages of them.
    pub window: Option<usize>,
    /// The first rows of a sequence, which a window leaves and attention always sees.
    pub sink: usize,
    /// How many more positions than its own a window keeps, for drafts that are cut back.
    pub slack: usize,
    /// Whether only the pages of rows go that a window has passed, and the rows stay: `start_pos` and positions are
    /// as without a window, and attention's own window has to hide these rows. In `cachestarts` they
    /// have the first page of the cache, the null page, which nothing is written to.
    pub keep_rows: bool,
    /// What the number of cells that a step sees is rounded up to: 32 by default.
    pub pad: usize,
    /// Queues a defragmentation at commit where more than this part of the slots up to the last used one is free. Below
    /// 0 there is none.
    pub defrag_threshold: Option<f64>,
    /// How many updates may rotate the rows of a sequence.
    pub shift_limit: ShiftLimit,
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self {
            geometry: Geometry { num_layer: 0, num_heads: 0, head_dim: 0, max_t: 0 },
            layout: CacheLayout::TokenMajor,
            cache_type: ElementType::Float16,
            quant: None,
            quant_rotation: false,
            mode: Mode::Paged { page_size: 128 },
            max_pages: None,
            prefix_sharing: true,
            fingerprint: String::new(),
            computed_by: String::new(),
            key_form: KeyForm::Roped,
            rope: None,
            window: None,
            sink: 0,
            slack: 0,
            keep_rows: false,
            pad: 32,
            defrag_threshold: None,
            shift_limit: ShiftLimit::ByType,
        }
    }
}

impl CacheSettings {
    /// Checks everything.
    ///
    /// # Errors
    /// [`Error::SpecRange`], [`Error::SpecThreshold`], [`Error::Rope`], [`Error::Types`], [`Error::QuantGroup`],
    /// [`Error::SizeOverflow`].
    pub fn check(mut self) -> Result<CacheSpec, Error> {
        let Self { geometry, layout, cache_type, quant, mode, window, slack, .. } = self;
        let Geometry { num_layer, num_heads, head_dim, max_t } = geometry;
        let page_size = page_size(mode);
        let range = Error::check_spec;
        let limit = usize::MAX >> 1;
        range("num_layer", num_layer, 1, limit)?;
        range("num_heads", num_heads, 1, limit)?;
        range("head_dim", head_dim, 1, limit)?;
        range("max_t", max_t, 1, limit)?;
        range("page_size", page_size, 1, max_t)?;
        // Pages are counted in 32 bits, and one number is the end of a list.
        range("max_t / page_size", max_t / page_size, if self.keep_rows { 2 } else { 1 }, u32::MAX as usize - 1)?;
        let is_paged = matches!(mode, Mode::Paged { .. });
        let may_keep = window.is_some() && self.sink == 0 && is_paged;
        range("keep_rows", self.keep_rows.into(), 0, may_keep.into())?;
        if let Some(max_pages) = self.max_pages {
            range("max_pages", max_pages, 1, max_t)?;
        }
        // Positions are below 2^31.
        let positions = MAX_POSITION as usize;
        range("sink", self.sink, 0, positions)?;
        range("slack", slack, 0, positions)?;
        if let Some(window) = window {
            // One row is left then, at least: the next token continues a sequence.
            range("window", window, if slack == 0 { 2 } else { 1 }, positions)?;
        }
        range("pad", self.pad, 1, limit)?;
        if let Some(rope) = &self.rope {
            rope.check(head_dim)?;
        }
        self.prefix_sharing &= is_paged;
        self.defrag_threshold = self.defrag_threshold.filter(|threshold| threshold.is_nan() || *threshold >= 0.0);
        if let Some(got) = self.defrag_threshold.filter(|threshold| !threshold.is_finite()) {
            return Err(Error::SpecThreshold { got });
        }
        let dims = CacheDims { max_t, num_layer, num_heads, inner: head_dim };
        let rows = CacheRows::new(layout, dims, cache_type, quant).map_err(|error| match error {
            RowsError::QuantGroup { group, head_dim } => Error::QuantGroup { group, head_dim },
            RowsError::SizeOverflow { tensor, shape } => Error::SizeOverflow { tensor, shape },
            _ => Error::Types { cache: cache_type, scale: quant.map(|quant| quant.1) },
        })?;
        let is_quantized = quant.is_some() || rows.has_static_scales();
        range("quant_rotation", self.quant_rotation.into(), 0, is_quantized.into())?;
        let rows = rows.with_quant_rotation(self.quant_rotation);
        let spec = CacheSpec { settings: self, rows };
        let overflow = |tensor, shape| Error::SizeOverflow { tensor, shape };
        let cache = spec.cache_shape();
        shape::bytes(cache_type, &cache).ok_or(overflow("cache", cache))?;
        if let (Some((_, scale_type)), Some(scale)) = (quant, spec.scale_shape()) {
            let bytes = shape::bytes(scale_type, &scale).ok_or(overflow("scale", scale))?;
            rows.cache_len().checked_add(bytes).ok_or(overflow("scale", scale))?;
        }
        Ok(spec)
    }
}

/// Slots of a page; where there are cells, 1.
fn page_size(mode: Mode) -> usize {
    match mode {
        Mode::Paged { page_size } => page_size,
        Mode::Runs | Mode::Cells => 1,
    }
}

/// Checked [`CacheSettings`], whose fields it has, and what follows from them.
#[derive(Debug, Clone, PartialEq)]
pub struct CacheSpec {
    settings: CacheSettings,
    rows: CacheRows,
}

impl Deref for CacheSpec {
    type Target = CacheSettings;

    fn deref(&self) -> &CacheSettings {
        &self.settings
    }
}

impl CacheSpec {
    /// Slots of a page; in the modes `runs` and `cells`, 1.
    pub fn page_size(&self) -> usize {
        page_size(self.mode)
    }

    /// Pages, or cells, of the cache; slots after the last whole page are not used.
    pub fn num_pages(&self) -> usize {
        self.geometry.max_t / self.page_size()
    }

    /// The number of updates that may rotate the rows of a sequence, if there is a limit.
    pub fn shift_limit(&self) -> Option<u32> {
        match self.settings.shift_limit {
            ShiftLimit::ByType => (self.cache_type == ElementType::Int4).then_some(4),
            ShiftLimit::Updates(limit) => Some(limit),
            ShiftLimit::Unlimited => None,
        }
    }

    /// Why stored keys cannot be rotated, if they cannot.
    pub(crate) fn not_shiftable(&self) -> Option<&'static str> {
        match self.rope {
            None => Some("keys are stored rotated, and no rope is given"),
            Some(_) if self.cache_type == ElementType::Int8 && self.quant.is_none() => {
                Some("keys are int8 without scales")
            }
            Some(_) if self.rows.has_static_scales() => Some("keys are float8e4m3fn with static scales"),
            Some(_) => None,
        }
    }

    /// Where the bytes of slots lie, in this layout and these types.
    pub fn rows(&self) -> &CacheRows {
        &self.rows
    }

    /// The shape of `cache`, in elements: for int4 too the last axis is `head_dim`.
    pub fn cache_shape(&self) -> [usize; 5] {
        self.layout.shape(self.dims(self.geometry.head_dim))
    }

    /// The shape of `scale`, if the cache is quantized and its scales are not static.
    pub fn scale_shape(&self) -> Option<[usize; 5]> {
        self.quant.map(|(group, _)| self.layout.shape(self.dims(self.geometry.head_dim / group)))
    }

    /// The bytes of `cache` and `scale`.
    pub fn nbytes(&self) -> usize {
        self.rows.cache_len() + self.rows.scale_len()
    }

    /// The bytes of a slot: of all layers, keys and values, and scales.
    pub fn bytes_per_token(&self) -> usize {
        self.rows.row_len()
    }

    /// The slots of a cache with these dimensions and types that fits in `nbytes` bytes.
    pub fn max_tokens(&self, nbytes: usize) -> usize {
        nbytes / self.bytes_per_token()
    }

    /// The operator's attributes for this cache, with `layer_idx` 0 and `num_repeat` 1.
    pub fn attributes(&self) -> Attributes {
        let mut attributes = Attributes {
            num_layer: self.geometry.num_layer as i64,
            cache_layout: self.layout.code(),
            ..Attributes::default()
        };
        if let Mode::Paged { page_size } = self.mode {
            (attributes.cache_mode, attributes.page_size) = (CacheMode::Paged.code(), page_size as i64);
        }
        if let Some(((group, _), bit)) = self.quant.zip(QuantBit::of_element(self.cache_type)) {
            attributes.quant_bit = bit.code();
            attributes.quant_type = bit.quant_type();
            attributes.quant_group = group as i64;
        }
        if self.rows.has_static_scales() {
            (attributes.quant_bit, attributes.quant_type) = (QuantBit::Float8.code(), STATIC_SCALES);
        }
        attributes.quant_rotation = self.quant_rotation.into();
        attributes
    }

    fn dims(&self, inner: usize) -> CacheDims {
        let Geometry { num_layer, num_heads, max_t, .. } = self.geometry;
        CacheDims { max_t, num_layer, num_heads, inner }
    }
}
