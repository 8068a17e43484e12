//! What a manager manages: dimensions, types, layout and mode of a cache, validated once, and the figures that follow.

use kvcache_kernels::{CacheRows, Rope, RowsError};
use kvcache_schema::{Attributes, CacheDims, CacheLayout, CacheMode, ElementType, QuantBit, shape};

use crate::error::Error;
use crate::positions::MAX_POSITION;

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
    /// Cells anywhere in the cache, of which attention sees those up to the last busy one: `cache_mode` 0, with an
    /// entry that writes and one that is the view. Sequences share cells, and copy them when they edit their positions.
    Cells,
}

/// What the stored keys are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyForm {
    /// Keys are stored after rotary embedding: a row that moves to another position is rotated by an update.
    Roped,
    /// Keys are stored before rotary embedding, which the graph applies to what the operator gives back, by
    /// `key_positions`: positions are metadata.
    Raw,
}

/// How many updates may rotate the rows of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShiftLimit {
    /// As many as the type bears.
    Default,
    Given(Option<u32>),
}

/// The window of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    len: Option<usize>,
    sink: usize,
    slack: usize,
}

/// The quantization of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Quant {
    bit: QuantBit,
    group: usize,
    scale_type: ElementType,
}

/// A checked description of a cache and of the way it is managed. Made by [`CacheSpec::builder`].
#[derive(Debug, Clone, PartialEq)]
pub struct CacheSpec {
    geometry: Geometry,
    layout: CacheLayout,
    cache_type: ElementType,
    quant: Option<Quant>,
    mode: Mode,
    max_pages: Option<usize>,
    prefix_sharing: bool,
    fingerprint: String,
    key_form: KeyForm,
    rope: Option<Rope>,
    window: Window,
    pad: usize,
    defrag_threshold: Option<f64>,
    shift_limit: Option<u32>,
    rows: CacheRows,
}

/// Collects what a [`CacheSpec`] is made of.
#[derive(Debug, Clone)]
#[must_use]
pub struct CacheSpecBuilder {
    geometry: Geometry,
    layout: CacheLayout,
    cache_type: ElementType,
    quant: Option<Quant>,
    mode: Mode,
    max_pages: Option<usize>,
    prefix_sharing: bool,
    fingerprint: String,
    key_form: KeyForm,
    rope: Option<Rope>,
    window: Window,
    pad: usize,
    defrag_threshold: Option<f64>,
    shift_limit: ShiftLimit,
}

impl CacheSpecBuilder {
    /// The order of the axes: [`CacheLayout::TokenMajor`] unless given.
    pub fn layout(self, layout: CacheLayout) -> Self {
        Self { layout, ..self }
    }

    /// The type of a cache without quantization: float16 unless given.
    pub fn cache_type(self, cache_type: ElementType) -> Self {
        Self { cache_type, quant: None, ..self }
    }

    /// A quantized cache: the width of its elements, how many neighbors share a scale, and the type of scales.
    pub fn quantized(self, bit: QuantBit, group: usize, scale_type: ElementType) -> Self {
        Self { cache_type: bit.element(), quant: Some(Quant { bit, group, scale_type }), ..self }
    }

    /// How sequences get their slots: pages of 128 unless given.
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Fixes the columns of `cachestarts` (MaxP), and with it the pages of a sequence. Unless given, `cachestarts` is
    /// as wide as the widest row of a step.
    pub fn max_pages(self, max_pages: usize) -> Self {
        Self { max_pages: Some(max_pages), ..self }
    }

    /// Whether paged sequences whose tokens begin alike share pages: they do unless told otherwise.
    pub fn prefix_sharing(self, prefix_sharing: bool) -> Self {
        Self { prefix_sharing, ..self }
    }

    /// What makes keys and values of the same tokens differ: the model, its adapters. Part of every prefix's key.
    pub fn fingerprint(self, fingerprint: impl Into<String>) -> Self {
        Self { fingerprint: fingerprint.into(), ..self }
    }

    /// What the stored keys are: [`KeyForm::Roped`] unless given.
    pub fn key_form(self, key_form: KeyForm) -> Self {
        Self { key_form, ..self }
    }

    /// The rotary embedding of keys, by which rows can move to other positions. Unless given, they cannot, where keys
    /// are stored rotated.
    pub fn rope(self, rope: Rope) -> Self {
        Self { rope: Some(rope), ..self }
    }

    /// Attention sees only the last `window` positions, a token's own among them. At every commit the rows go that no
    /// later token will see; in pages, whole pages of them.
    pub fn window(self, window: usize) -> Self {
        Self { window: Window { len: Some(window), ..self.window }, ..self }
    }

    /// The first rows of a sequence, which a window leaves and attention always sees: none unless given.
    pub fn sink(self, sink: usize) -> Self {
        Self { window: Window { sink, ..self.window }, ..self }
    }

    /// How many more positions than its own a window keeps, for drafts that are cut back: none unless given.
    pub fn slack(self, slack: usize) -> Self {
        Self { window: Window { slack, ..self.window }, ..self }
    }

    /// What the number of cells that a step sees is rounded up to: 32 unless given.
    pub fn pad(self, pad: usize) -> Self {
        Self { pad, ..self }
    }

    /// Queues a defragmentation at commit where more than this part of the slots up to the last used one is free. There
    /// is none unless given; below 0 there is none either.
    pub fn defrag_threshold(self, defrag_threshold: f64) -> Self {
        Self {
            defrag_threshold: Some(defrag_threshold).filter(|threshold| threshold.is_nan() || *threshold >= 0.0),
            ..self
        }
    }

    /// How many updates may rotate the rows of a sequence, as the errors of quantized keys add up: 4 for int4 and any
    /// number for other types unless given.
    pub fn shift_limit(self, shift_limit: Option<u32>) -> Self {
        Self { shift_limit: ShiftLimit::Given(shift_limit), ..self }
    }

    /// Checks everything.
    ///
    /// # Errors
    /// [`Error::SpecRange`], [`Error::SpecThreshold`], [`Error::Rope`], [`Error::Types`], [`Error::QuantGroup`],
    /// [`Error::SizeOverflow`].
    pub fn build(self) -> Result<CacheSpec, Error> {
        let Self { geometry, layout, cache_type, quant, mode, max_pages, prefix_sharing, fingerprint, .. } = self;
        let Self { key_form, rope, window, pad, defrag_threshold, shift_limit, .. } = self;
        let Geometry { num_layer, num_heads, head_dim, max_t } = geometry;
        let page_size = page_size(mode);
        let limit = usize::MAX >> 1;
        range("num_layer", num_layer, 1, limit)?;
        range("num_heads", num_heads, 1, limit)?;
        range("head_dim", head_dim, 1, limit)?;
        range("max_t", max_t, 1, limit)?;
        range("page_size", page_size, 1, max_t)?;
        // Pages are counted in 32 bits, and one number is the end of a list.
        range("max_t / page_size", max_t / page_size, 1, u32::MAX as usize - 1)?;
        if let Some(max_pages) = max_pages {
            range("max_pages", max_pages, 1, max_t)?;
        }
        // Positions are below 2^31.
        let positions = MAX_POSITION as usize;
        range("sink", window.sink, 0, positions)?;
        range("slack", window.slack, 0, positions)?;
        if let Some(len) = window.len {
            // One row is left then, at least: the next token continues a sequence.
            range("window", len, if window.slack == 0 { 2 } else { 1 }, positions)?;
        }
        range("pad", pad, 1, limit)?;
        if let Some(rope) = &rope {
            rope.check(head_dim)?;
        }
        if let Some(got) = defrag_threshold.filter(|threshold| !threshold.is_finite()) {
            return Err(Error::SpecThreshold { got });
        }
        let dims = CacheDims { max_t, num_layer, num_heads, inner: head_dim };
        let quantized = quant.map(|quant| (quant.group, quant.scale_type));
        let rows = CacheRows::new(layout, dims, cache_type, quantized).map_err(|error| match error {
            RowsError::QuantGroup { group, head_dim } => Error::QuantGroup { group, head_dim },
            RowsError::SizeOverflow { tensor, shape } => Error::SizeOverflow { tensor, shape },
            _ => Error::Types { cache: cache_type, scale: quant.map(|quant| quant.scale_type) },
        })?;
        let shift_limit = match shift_limit {
            ShiftLimit::Given(limit) => limit,
            ShiftLimit::Default => (cache_type == ElementType::Int4).then_some(4),
        };
        let spec = CacheSpec {
            geometry,
            layout,
            cache_type,
            quant,
            mode,
            max_pages,
            prefix_sharing,
            fingerprint,
            key_form,
            rope,
            window,
            pad,
            defrag_threshold,
            shift_limit,
            rows,
        };
        let overflow = |tensor, shape| Error::SizeOverflow { tensor, shape };
        let cache = spec.cache_shape();
        shape::bytes(cache_type, &cache).ok_or(overflow("cache", cache))?;
        if let (Some(quant), Some(scale)) = (quant, spec.scale_shape()) {
            let bytes = shape::bytes(quant.scale_type, &scale).ok_or(overflow("scale", scale))?;
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

fn range(name: &'static str, got: usize, min: usize, max: usize) -> Result<(), Error> {
    if (min..=max).contains(&got) { Ok(()) } else { Err(Error::SpecRange { name, got, min, max }) }
}

impl CacheSpec {
    /// Begins a specification of a cache with these dimensions.
    pub fn builder(geometry: Geometry) -> CacheSpecBuilder {
        CacheSpecBuilder {
            geometry,
            layout: CacheLayout::TokenMajor,
            cache_type: ElementType::Float16,
            quant: None,
            mode: Mode::Paged { page_size: 128 },
            max_pages: None,
            prefix_sharing: true,
            fingerprint: String::new(),
            key_form: KeyForm::Roped,
            rope: None,
            window: Window { len: None, sink: 0, slack: 0 },
            pad: 32,
            defrag_threshold: None,
            shift_limit: ShiftLimit::Default,
        }
    }

    /// The dimensions.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// How sequences get their slots.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The order of the axes of `cache` and `scale`.
    pub fn layout(&self) -> CacheLayout {
        self.layout
    }

    /// The type of `cache`.
    pub fn cache_type(&self) -> ElementType {
        self.cache_type
    }

    /// The width of a quantized cache's elements, how many neighbors share a scale, and the type of scales.
    pub fn quant(&self) -> Option<(QuantBit, usize, ElementType)> {
        self.quant.map(|quant| (quant.bit, quant.group, quant.scale_type))
    }

    /// Slots of a page; in the modes `runs` and `cells`, 1.
    pub fn page_size(&self) -> usize {
        page_size(self.mode)
    }

    /// Pages, or cells, of the cache; slots behind the last whole page are not used.
    pub fn num_pages(&self) -> usize {
        self.geometry.max_t / self.page_size()
    }

    /// The columns of `cachestarts`, where they are fixed.
    pub fn max_pages(&self) -> Option<usize> {
        self.max_pages
    }

    /// Whether sequences whose tokens begin alike share pages: never in the modes `runs` and `cells`.
    pub fn prefix_sharing(&self) -> bool {
        self.prefix_sharing && matches!(self.mode, Mode::Paged { .. })
    }

    /// What the stored keys are.
    pub fn key_form(&self) -> KeyForm {
        self.key_form
    }

    /// The rotary embedding of keys.
    pub fn rope(&self) -> Option<&Rope> {
        self.rope.as_ref()
    }

    /// Why stored keys cannot be rotated, if they cannot.
    pub(crate) fn not_shiftable(&self) -> Option<&'static str> {
        match self.rope {
            None => Some("keys are stored rotated, and no rope is given"),
            Some(_) if self.cache_type == ElementType::Int8 && self.quant.is_none() => {
                Some("keys are int8 without scales")
            }
            Some(_) => None,
        }
    }

    /// How many of the last positions attention sees, if it does not see all.
    pub fn window(&self) -> Option<usize> {
        self.window.len
    }

    /// The first rows of a sequence, which a window leaves.
    pub fn sink(&self) -> usize {
        self.window.sink
    }

    /// How many more positions than its own a window keeps.
    pub fn slack(&self) -> usize {
        self.window.slack
    }

    /// What the number of cells that a step sees is rounded up to.
    pub fn pad(&self) -> usize {
        self.pad
    }

    /// The part of free slots past which a commit queues a defragmentation.
    pub fn defrag_threshold(&self) -> Option<f64> {
        self.defrag_threshold
    }

    /// How many updates may rotate the rows of a sequence.
    pub fn shift_limit(&self) -> Option<u32> {
        self.shift_limit
    }

    /// What makes keys and values of the same tokens differ.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Where the bytes of slots lie, in this layout and these types.
    pub fn rows(&self) -> &CacheRows {
        &self.rows
    }

    /// The shape of `cache`, in elements: for int4 too the last axis is `head_dim`.
    pub fn cache_shape(&self) -> [usize; 5] {
        self.layout.shape(self.dims(self.geometry.head_dim))
    }

    /// The shape of `scale`, if the cache is quantized.
    pub fn scale_shape(&self) -> Option<[usize; 5]> {
        self.quant.map(|quant| self.layout.shape(self.dims(self.geometry.head_dim / quant.group)))
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

    /// The operator's attributes for this cache: those of layer 0, without repeated heads.
    pub fn attributes(&self) -> Attributes {
        let mut attributes = Attributes {
            num_layer: self.geometry.num_layer as i64,
            cache_layout: self.layout.code(),
            ..Attributes::default()
        };
        if let Mode::Paged { page_size } = self.mode {
            (attributes.cache_mode, attributes.page_size) = (CacheMode::Paged.code(), page_size as i64);
        }
        if let Some(quant) = self.quant {
            attributes.quant_bit = quant.bit.code();
            attributes.quant_group = quant.group as i64;
        }
        attributes
    }

    fn dims(&self, inner: usize) -> CacheDims {
        let Geometry { num_layer, num_heads, max_t, .. } = self.geometry;
        CacheDims { max_t, num_layer, num_heads, inner }
    }
}
