//! The builder of a specification, which checks it.

use kvcache_kernels::{CacheRows, Rope, RowsError};
use kvcache_schema::{CacheDims, CacheLayout, ElementType, QuantBit, shape};

use crate::error::Error;
use crate::sequences::positions::MAX_POSITION;
use crate::spec::{CacheSpec, Geometry, KeyForm, Mode, Quant, Settings, Window, page_size};

/// How many updates may rotate the rows of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShiftLimit {
    /// 4 for an int4 cache, no limit for others.
    Default,
    Given(Option<u32>),
}

/// Collects what a [`CacheSpec`] is made of.
#[derive(Debug, Clone)]
#[must_use]
pub struct CacheSpecBuilder {
    settings: Settings,
    shift_limit: ShiftLimit,
}

/// Setters: their arguments, and what of the builder becomes what.
macro_rules! setters {
    ($(
        $(#[$doc:meta])*
        $name:ident($($argument:ident: $type:ty),*) { $($($field:ident).+ = $value:expr),* }
    )*) => {
        impl CacheSpecBuilder {
            $(
                $(#[$doc])*
                pub fn $name(mut self, $($argument: $type),*) -> Self {
                    $(self.$($field).+ = $value;)*
                    self
                }
            )*
        }
    };
}

setters! {
    /// The order of the axes: [`CacheLayout::TokenMajor`] unless given.
    layout(layout: CacheLayout) { settings.layout = layout }
    /// The type of a cache without quantization: float16 unless given. A cache of float8e4m3fn has static scales
    /// (`quant_type` 2): the operators are given them, and the manager has nothing to do with them.
    cache_type(cache_type: ElementType) { settings.cache_type = cache_type, settings.quant = None }
    /// A quantized cache: the width of its elements, how many neighbors share a scale, and the type of scales.
    quantized(bit: QuantBit, group: usize, scale_type: ElementType) {
        settings.cache_type = bit.element(),
        settings.quant = Some(Quant { bit, group, scale_type })
    }
    /// Whether keys are multiplied by a Hadamard matrix before they are quantized (`quant_rotation`): they are not
    /// unless given.
    quant_rotation(quant_rotation: bool) { settings.quant_rotation = quant_rotation }
    /// How sequences get their slots: pages of 128 unless given.
    mode(mode: Mode) { settings.mode = mode }
    /// Fixes the columns of `cachestarts` (MaxP), and with it the pages of a sequence. Unless given, `cachestarts` is
    /// as wide as the widest row of a step.
    max_pages(max_pages: usize) { settings.max_pages = Some(max_pages) }
    /// Whether paged sequences whose tokens begin alike share pages: they do unless told otherwise.
    prefix_sharing(prefix_sharing: bool) { settings.prefix_sharing = prefix_sharing }
    /// What makes keys and values of the same tokens differ: the model, its adapters. Part of every prefix's key.
    fingerprint(fingerprint: impl Into<String>) { settings.fingerprint = fingerprint.into() }
    /// What computes keys and values, as far as it decides their bits: instruction set, kernels, runtime. Part of every
    /// prefix's key, so that prefixes from a store have the bits of computed ones; sessions need not agree in it.
    computed_by(computed_by: impl Into<String>) { settings.computed_by = computed_by.into() }
    /// What the stored keys are: [`KeyForm::Roped`] unless given.
    key_form(key_form: KeyForm) { settings.key_form = key_form }
    /// The rotary embedding of keys, by which rows can move to other positions. Unless given, they cannot, where keys
    /// are stored rotated.
    rope(rope: Rope) { settings.rope = Some(rope) }
    /// Attention sees only the last `window` positions, a token's own among them. At every commit the rows go that no
    /// later token will see; in pages, whole pages of them.
    window(window: usize) { settings.window.len = Some(window) }
    /// The first rows of a sequence, which a window leaves and attention always sees: none unless given.
    sink(sink: usize) { settings.window.sink = sink }
    /// How many more positions than its own a window keeps, for drafts that are cut back: none unless given.
    slack(slack: usize) { settings.window.slack = slack }
    /// Whether only the pages of rows go that a window has passed, and the rows stay: `start_pos` and positions are
    /// those of a sequence without a window, and attention's own window has to hide these rows. In `cachestarts` they
    /// have the first page of the cache, the null page, which nothing is written to.
    keep_rows(keep_rows: bool) { settings.window.keep_rows = keep_rows }
    /// What the number of cells that a step sees is rounded up to: 32 unless given.
    pad(pad: usize) { settings.pad = pad }
    /// Queues a defragmentation at commit where more than this part of the slots up to the last used one is free. There
    /// is none unless given; below 0 there is none either.
    defrag_threshold(defrag_threshold: f64) {
        settings.defrag_threshold = Some(defrag_threshold).filter(|threshold| threshold.is_nan() || *threshold >= 0.0)
    }
    /// How many updates may rotate the rows of a sequence, as the errors of quantized keys add up: 4 for int4 and any
    /// number for other types unless given.
    shift_limit(shift_limit: Option<u32>) { shift_limit = ShiftLimit::Given(shift_limit) }
}

impl CacheSpecBuilder {
    /// Checks everything.
    ///
    /// # Errors
    /// [`Error::SpecRange`], [`Error::SpecThreshold`], [`Error::Rope`], [`Error::Types`], [`Error::QuantGroup`],
    /// [`Error::SizeOverflow`].
    pub fn build(self) -> Result<CacheSpec, Error> {
        let Self { settings, shift_limit } = self;
        let Settings { geometry, layout, cache_type, quant, mode, max_pages, window, pad, .. } = settings;
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
        range("max_t / page_size", max_t / page_size, if window.keep_rows { 2 } else { 1 }, u32::MAX as usize - 1)?;
        let may_keep = window.len.is_some() && window.sink == 0 && matches!(mode, Mode::Paged { .. });
        range("keep_rows", window.keep_rows.into(), 0, may_keep.into())?;
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
        if let Some(rope) = &settings.rope {
            rope.check(head_dim)?;
        }
        if let Some(got) = settings.defrag_threshold.filter(|threshold| !threshold.is_finite()) {
            return Err(Error::SpecThreshold { got });
        }
        let dims = CacheDims { max_t, num_layer, num_heads, inner: head_dim };
        let quantized = quant.map(|quant| (quant.group, quant.scale_type));
        let rows = CacheRows::new(layout, dims, cache_type, quantized).map_err(|error| match error {
            RowsError::QuantGroup { group, head_dim } => Error::QuantGroup { group, head_dim },
            RowsError::SizeOverflow { tensor, shape } => Error::SizeOverflow { tensor, shape },
            _ => Error::Types { cache: cache_type, scale: quant.map(|quant| quant.scale_type) },
        })?;
        let is_quantized = quant.is_some() || rows.has_static_scales();
        range("quant_rotation", settings.quant_rotation.into(), 0, is_quantized.into())?;
        let rows = rows.with_quant_rotation(settings.quant_rotation);
        let shift_limit = match shift_limit {
            ShiftLimit::Given(limit) => limit,
            ShiftLimit::Default => (cache_type == ElementType::Int4).then_some(4),
        };
        let spec = CacheSpec { settings, shift_limit, rows };
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

impl CacheSpec {
    /// Begins a specification of a cache with these dimensions.
    pub fn builder(geometry: Geometry) -> CacheSpecBuilder {
        let settings = Settings {
            geometry,
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
            window: Window { len: None, sink: 0, slack: 0, keep_rows: false },
            pad: 32,
            defrag_threshold: None,
        };
        CacheSpecBuilder { settings, shift_limit: ShiftLimit::Default }
    }
}
