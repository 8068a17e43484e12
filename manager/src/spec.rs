//! What a manager manages: dimensions, types, layout and mode of a cache, validated once, and the figures that follow.

use kvcache_kernels::{CacheRows, RowsError};
use kvcache_schema::{Attributes, CacheDims, CacheLayout, CacheMode, ElementType, QuantBit, shape};

use crate::error::Error;

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
}

/// The quantization of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Quant {
    bit: QuantBit,
    group: usize,
    scale_type: ElementType,
}

/// A checked description of a cache and of the way it is managed. Made by [`CacheSpec::builder`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSpec {
    geometry: Geometry,
    layout: CacheLayout,
    cache_type: ElementType,
    quant: Option<Quant>,
    page_size: usize,
    max_pages: Option<usize>,
    prefix_sharing: bool,
    fingerprint: String,
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

    /// Whether sequences whose tokens begin alike share pages: they do unless told otherwise.
    pub fn prefix_sharing(self, prefix_sharing: bool) -> Self {
        Self { prefix_sharing, ..self }
    }

    /// What makes keys and values of the same tokens differ: the model, its adapters. Part of every prefix's key.
    pub fn fingerprint(self, fingerprint: impl Into<String>) -> Self {
        Self { fingerprint: fingerprint.into(), ..self }
    }

    /// Checks everything.
    ///
    /// # Errors
    /// [`Error::SpecRange`], [`Error::Types`], [`Error::QuantGroup`], [`Error::SizeOverflow`].
    pub fn build(self) -> Result<CacheSpec, Error> {
        let Self { geometry, layout, cache_type, quant, mode, max_pages, prefix_sharing, fingerprint } = self;
        let Geometry { num_layer, num_heads, head_dim, max_t } = geometry;
        let Mode::Paged { page_size } = mode;
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
        let dims = CacheDims { max_t, num_layer, num_heads, inner: head_dim };
        let quantized = quant.map(|quant| (quant.group, quant.scale_type));
        let rows = CacheRows::new(layout, dims, cache_type, quantized).map_err(|error| match error {
            RowsError::QuantGroup { group, head_dim } => Error::QuantGroup { group, head_dim },
            RowsError::SizeOverflow { tensor, shape } => Error::SizeOverflow { tensor, shape },
            _ => Error::Types { cache: cache_type, scale: quant.map(|quant| quant.scale_type) },
        })?;
        let spec =
            CacheSpec { geometry, layout, cache_type, quant, page_size, max_pages, prefix_sharing, fingerprint, rows };
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
        }
    }

    /// The dimensions.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// How sequences get their slots.
    pub fn mode(&self) -> Mode {
        Mode::Paged { page_size: self.page_size }
    }

    /// Slots of a page.
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// Pages of the cache; slots behind the last whole one are not used.
    pub fn num_pages(&self) -> usize {
        self.geometry.max_t / self.page_size
    }

    /// The columns of `cachestarts`, where they are fixed.
    pub fn max_pages(&self) -> Option<usize> {
        self.max_pages
    }

    /// Whether sequences whose tokens begin alike share pages.
    pub fn prefix_sharing(&self) -> bool {
        self.prefix_sharing
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
            cache_mode: CacheMode::Paged.code(),
            cache_layout: self.layout.code(),
            page_size: self.page_size as i64,
            ..Attributes::default()
        };
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
